"""Files of definitions that a node loads when it starts."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from definitions_node import exports, new_node, queue_item

from warren.core.node import Node
from warren.mgmt.definitions.at_start import load_definitions
from warren.mgmt.definitions.errors import DefinitionsFileRefused


def write(path: Path, *queues: str, **more: Any) -> None:
    path.write_text(json.dumps({"queues": [queue_item(name) for name in queues], **more}))


def load(node: Node, path: Path, **options: Any) -> bool:
    return asyncio.run(load_definitions(node, path, **options))


def test_a_file_is_loaded(tmp_path: Path) -> None:
    node = new_node()
    write(tmp_path / "a.json", "one")
    assert load(node, tmp_path / "a.json")
    assert list(node.vhosts["/"].queues) == ["one"]


def test_files_of_a_directory_are_loaded_by_name(tmp_path: Path) -> None:
    node = new_node()
    write(tmp_path / "b.json", "second")
    write(tmp_path / "a.json", "first")
    (tmp_path / ".hidden").write_text("{")
    (tmp_path / "folder").mkdir()
    assert load(node, tmp_path)
    assert list(node.vhosts["/"].queues) == ["first", "second"]


def test_a_node_without_anything_gets_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(json.dumps(exports(new_node())))
    node = new_node(empty=True)
    load(node, tmp_path / "all.json")
    assert node.access.authenticate("guest", "guest", True)


def test_unchanged_files_are_skipped(tmp_path: Path) -> None:
    node = new_node()
    path = tmp_path / "a.json"
    write(path, "one")
    assert load(node, path, skip_if_unchanged=True)
    node.vhosts["/"].delete(queues=[node.vhosts["/"].queues["one"]])
    assert not load(node, path, skip_if_unchanged=True)
    assert not node.vhosts["/"].queues
    assert load(node, path)
    assert list(node.vhosts["/"].queues) == ["one"]
    write(path, "one", "two")
    assert load(node, path, skip_if_unchanged=True)
    assert list(node.vhosts["/"].queues) == ["one", "two"]


def test_the_hash_is_not_exported(tmp_path: Path) -> None:
    node = new_node()
    write(tmp_path / "a.json", "one")
    load(node, tmp_path)
    assert exports(node)["global_parameters"] == []


@pytest.mark.parametrize("content", ["{", '{"queues": 5}', '{"vhosts": [{}]}'])
def test_errors_name_the_file_and_nothing_is_kept(tmp_path: Path, content: str) -> None:
    node = new_node()
    write(tmp_path / "a.json", "one")
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(DefinitionsFileRefused) as caught:
        load(node, tmp_path, skip_if_unchanged=True)
    assert caught.value.text.startswith(f"definitions in {tmp_path / 'b.json'} not loaded: ")
    assert list(node.vhosts["/"].queues) == ["one"]
    write(tmp_path / "b.json", "two")
    assert load(node, tmp_path, skip_if_unchanged=True)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DefinitionsFileRefused) as caught:
        load(new_node(), tmp_path / "none.json")
    assert str(tmp_path / "none.json") in caught.value.text


def test_what_is_logged_can_be_parsed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a b.json"
    lost = {"source": "amq.direct", "vhost": "/", "destination": "none", "arguments": {}}
    binding = {**lost, "destination_type": "queue", "routing_key": ""}
    write(path, "one", "amq.x\nforged", bindings=[binding])
    node = new_node()
    with caplog.at_level(logging.INFO, "warren.definitions"):
        load(node, path)
        load(node, path, skip_if_unchanged=True)
    assert caplog.messages == [
        'reserved_name_not_imported kind=queue vhost=/ name="amq.x\\nforged"',
        "binding_ignored reason=\"no queue 'none' in vhost '/'\"",
        "definitions_imported items=3 bindings_ignored=1",
        f'definitions_loaded path="{path}"',
        f'definitions_unchanged path="{path}"',
    ]
