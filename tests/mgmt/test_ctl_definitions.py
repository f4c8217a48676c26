"""`warren ctl`: definitions and feature flags."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from ctl_node import CtlNode


def test_exported_definitions_can_be_imported(ctl_node: CtlNode, tmp_path: Path) -> None:
    ctl_node("add_vhost", "moved", "--description", "here")
    ctl_node("set_policy", "-p", "moved", "short", ".*", '{"max-length":1}')
    file = tmp_path / "definitions.json"
    exported = ctl_node("export_definitions", str(file))
    assert (exported.code, exported.out) == (
        0,
        f'Exporting definitions in JSON to a file at "{file}" ...\n',
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ctl_node("delete_vhost", "moved")
    imported = ctl_node("import_definitions", str(file))
    assert imported.code == 0
    assert imported.lines[0] == (f'Importing definitions in JSON from a file at "{file}" ...')
    assert ctl_node.rows("list_policies", "-p", "moved") == [
        ["moved", "short", ".*", "all", '{"max-length":1}', "0"]
    ]
    assert ["moved", "here"] in ctl_node.rows("list_vhosts", "name", "description")


def test_definitions_go_through_pipes(ctl_node: CtlNode) -> None:
    exported = ctl_node("export_definitions", "-", "-q")
    definitions = json.loads(exported.out)
    assert "product_name" not in definitions
    definitions["vhosts"].append({"name": "piped"})
    for path in ([], ["-"]):
        imported = ctl_node("import_definitions", *path, stdin=json.dumps(definitions))
        assert imported.code == 0
    assert ["piped"] in ctl_node.rows("list_vhosts")


def test_definitions_that_are_none_are_refused(ctl_node: CtlNode, tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.touch()
    assert ctl_node("import_definitions", str(empty)).code == 65
    assert ctl_node("import_definitions", str(tmp_path / "none.json")).code == 65
    garbage = ctl_node("import_definitions", stdin="garbage")
    assert garbage.code == 65 and "Failed to deserialise" in garbage.err
    wrong = ctl_node("import_definitions", stdin='{"users":[{"name":"x"}]}')
    assert wrong.code == 65 and "tags" in wrong.err


def test_definitions_go_only_where_there_is_a_directory(ctl_node: CtlNode, tmp_path: Path) -> None:
    nowhere = ctl_node("export_definitions", str(tmp_path / "none" / "d.json"))
    assert nowhere.code == 65 and "does not exist" in nowhere.err
    assert ctl_node("export_definitions", str(tmp_path)).code == 65


def test_feature_flags_are_all_enabled(ctl_node: CtlNode) -> None:
    assert ["quorum_queue", "enabled"] in ctl_node.rows("list_feature_flags")
    assert ctl_node("enable_feature_flag", "all").code == 0
    assert ctl_node("enable_feature_flag", "quorum_queue").code == 0
    unknown = ctl_node("enable_feature_flag", "foo")
    assert (unknown.code, unknown.err.splitlines()[-1]) == (
        64,
        f"This feature flag is not supported by node {ctl_node.name}",
    )
