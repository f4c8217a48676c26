"""/definitions: export, download and import over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_client import EVERYTHING, NOT_FOUND, VHOST_NOT_FOUND, Answer, ApiClient, reason

from warren import Broker
from warren.mgmt.ctl.control_client import ControlClient, LocalTarget
from warren.mgmt.http import server, slices

BOUNDARY = "frontier"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
QUEUE = {"name": "q", "durable": True, "auto_delete": False, "arguments": {}}


@pytest.fixture
def api() -> Iterator[ApiClient]:
    with Broker(http_port=0) as broker:
        yield ApiClient(broker)


def post_form(api: ApiClient, path: str = "/definitions", **fields: str) -> Answer:
    """As a page posts a form; `file` comes with the name of a file."""
    parts = []
    for name, value in fields.items():
        named = '; filename="d.json"' if name == "file" else ""
        parts.append(
            f"--{BOUNDARY}\r\nContent-Disposition: form-data; name={name}{named}\r\n\r\n{value}\r\n"
        )
    body = "".join([*parts, f"--{BOUNDARY}--\r\n"])
    return api.ask("POST", path, body.encode(), FORM)


def test_what_is_exported_is_imported_again(api: ApiClient) -> None:
    api.put("/vhosts/v1")
    api.put("/queues/v1/q", {"durable": True})
    status, exported = api.get("/definitions")
    assert status == 200 and exported["rabbitmq_version"] == "3.10.8"
    assert exported["queues"] == [{"vhost": "v1", **QUEUE}]
    assert api.get("/all-configuration") == (200, exported)
    api.delete("/vhosts/v1")
    assert api.post("/definitions", exported) == (204, None)
    assert api.get("/definitions") == (200, exported)


@pytest.mark.parametrize(
    "path", [["definitions"], ["definitions", "/"], ["control", "definitions"]]
)
def test_a_long_export_is_encoded_in_many_turns_of_the_loop(
    path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = server.encode
    encoded = [0]

    def counted(value: Any) -> bytes:
        encoded[-1] += 1
        return encode(value)

    def turn() -> None:
        encoded.append(0)
        asyncio.get_running_loop().call_soon(turn)

    queues = [{**QUEUE, "name": f"q{number:04}", "vhost": "/"} for number in range(2000)]
    with Broker(data_dir=tmp_path, control_socket=True) as broker:
        client = ControlClient(LocalTarget(tmp_path))
        client.post("definitions", body={"queues": queues})
        monkeypatch.setattr(slices, "SLICE_S", 0.0)
        monkeypatch.setattr(server, "encode", counted)
        broker.call(lambda node: turn())
        exported = client.get(*path)
        client.close()
    assert [queue["name"] for queue in exported["queues"]] == [queue["name"] for queue in queues]
    # A chunk, and at most all names and texts of the document.
    assert sum(encoded) > 2000 and max(encoded) <= slices.CHUNK + 20


def test_columns_choose_sections(api: ApiClient) -> None:
    assert api.get("/definitions?columns=queues,vhosts.name") == (200, {"queues": []})


def test_a_vhost_alone(api: ApiClient) -> None:
    api.put("/vhosts/v1")
    assert api.post("/definitions/v1", {"queues": [QUEUE]}) == (204, None)
    status, exported = api.get("/definitions/v1")
    assert status == 200 and exported["queues"] == [QUEUE]
    assert "users" not in exported
    assert api.get("/queues/%2F") == (200, [])


def test_a_vhost_that_is_not_there(api: ApiClient) -> None:
    assert reason(api.get("/definitions/nope")) == (400, "vhost_not_found")
    assert api.post("/definitions/nope", {}) == VHOST_NOT_FOUND


@pytest.mark.parametrize(
    ("wanted", "header"),
    [
        ("x.json", 'attachment; filename="x.json"'),
        ("a%22b%0d%0ac%2Fd", 'attachment; filename="a_b__c_d"'),
    ],
)
@pytest.mark.parametrize("path", ["/definitions", "/definitions/%2F"])
def test_a_download_has_a_name(api: ApiClient, path: str, wanted: str, header: str) -> None:
    answer = api.ask("GET", f"{path}?download={wanted}")
    assert answer.status == 200 and answer.headers["Content-Disposition"] == header
    assert answer.headers["Content-Type"] == "application/json"
    assert "Content-Disposition" not in api.ask("GET", path).headers


def test_a_page_posts_a_file(api: ApiClient) -> None:
    assert post_form(api, file='{"vhosts": [{"name": "v1"}]}').status == 204
    assert api.get("/vhosts/v1")[0] == 200
    answer = post_form(api, file='{"vhosts": [{"name": "v2"}]}', redirect="../#/done")
    assert (answer.status, answer.headers["Location"]) == (303, "../#/done")
    assert api.get("/vhosts/v2")[0] == 200
    answer = post_form(api, "/definitions/v1", file='{"queues": [{"name": "q", "durable": true}]}')
    assert answer.status == 204 and len(api.get("/queues/v1")[1]) == 1


@pytest.mark.parametrize(
    "redirect",
    ["http://elsewhere/", "//elsewhere/", "/\\elsewhere", "javascript:alert(1)", "/\t/elsewhere"],
)
def test_a_page_is_not_sent_to_another_server(api: ApiClient, redirect: str) -> None:
    answer = post_form(api, file='{"vhosts": [{"name": "v1"}]}', redirect=redirect)
    assert answer.status == 400 and answer.headers["Location"] is None
    assert api.get("/vhosts/v1") == NOT_FOUND


@pytest.mark.parametrize("body", [b"{bad", b"[]", b'"x"'])
def test_what_is_no_definitions(api: ApiClient, body: bytes) -> None:
    assert reason(api.post("/definitions", body)) == (400, "failed_to_parse_json")
    answer = post_form(api, file=body.decode(), redirect="../#/done")
    assert (answer.status, answer.json["reason"]) == (400, "failed_to_parse_json")


def test_a_form_without_a_file(api: ApiClient) -> None:
    assert post_form(api, redirect="../#/done").status == 400
    assert api.ask("POST", "/definitions", b"garbage", FORM).status == 400


def test_nothing_is_no_error(api: ApiClient) -> None:
    assert api.post("/definitions") == (204, None)
    assert api.post("/definitions/%2F", {}) == (204, None)


def test_reasons_are_those_of_single_requests(api: ApiClient) -> None:
    refused = api.post("/definitions", {"queues": [{"vhost": "nope", **QUEUE}]})
    assert reason(refused) == (400, ["no_such_vhost", "nope"])
    refused = api.post("/definitions", {"users": [{"name": "x"}]})
    assert reason(refused) == (400, "tags_not_present")
    policy = {"vhost": "/", "name": "x", "pattern": "", "definition": {"a": 1}}
    told = '[{&lt;&lt;"a"&gt;&gt;,1}] are not recognised policy settings'
    refused = api.post("/definitions", {"policies": [policy]})
    assert reason(refused) == (400, f"Validation failed\n\n{told}\n (//x)")


def test_whoever_imports_a_vhost_may_do_everything_in_it(api: ApiClient) -> None:
    api.post("/definitions", {"vhosts": [{"name": "v1"}]})
    shown = {"user": "guest", "vhost": "v1", **EVERYTHING}
    assert api.get("/permissions/v1/guest") == (200, shown)
