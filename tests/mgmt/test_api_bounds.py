"""Values that are too large or nested too deep are refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_client import ApiClient, reason

from warren import Broker

HUGE = "9" * 400
DEEP = "[" * 5000 + "]" * 5000
TOO_DEEP = (400, "JSON is nested deeper than 100 levels")


@pytest.fixture(scope="module")
def api() -> Iterator[ApiClient]:
    with Broker(http_port=0) as running:
        yield ApiClient(running)


def test_no_certificate_is_looked_at_for_ages(api: ApiClient) -> None:
    refused = api.get(f"/health/checks/certificate-expiration/{HUGE}/days")
    assert reason(refused) == (400, "Invalid expiration value.")


@pytest.mark.parametrize("path", ["/overview", "/vhosts", "/queues"])
@pytest.mark.parametrize(
    "huge", [f"lengths_age={HUGE}&lengths_incr=1", f"lengths_age={HUGE}&lengths_incr={HUGE}"]
)
def test_no_samples_are_kept_for_ages(api: ApiClient, path: str, huge: str) -> None:
    assert api.get(f"{path}?{huge}")[0] == 400


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/global-parameters/x", '{"value":%s}'),
        ("PUT", "/parameters/operator_policy/%2F/x", '{"value":%s}'),
        ("PUT", "/parameters/vhost-limits/%2F/limits", '{"value":%s}'),
        ("PUT", "/user-limits/guest/max-channels", '{"value":%s}'),
        ("PUT", "/policies/%2F/x", '{"pattern":"","definition":{"max-length":%s}}'),
        ("PUT", "/queues/%2F/q", '{"arguments":{"x":%s}}'),
        ("PUT", "/exchanges/%2F/x", '{"arguments":{"x":%s}}'),
        ("POST", "/bindings/%2F/e/amq.topic/e/amq.fanout", '{"arguments":{"x":%s}}'),
        (
            "POST",
            "/exchanges/%2F/amq.topic/publish",
            '{"properties":{"headers":{"x":%s}},"routing_key":"","payload":"",'
            '"payload_encoding":"string"}',
        ),
        ("POST", "/definitions", '{"global_parameters":[{"name":"x","value":%s}]}'),
    ],
)
def test_what_is_nested_too_deep_is_refused(
    api: ApiClient, method: str, path: str, body: str
) -> None:
    for deep in (DEEP, "[" * 200 + "]" * 200):
        refused = api.ask(method, path, (body % deep).encode())[:2]
        if path == "/definitions" and deep is DEEP:
            assert refused[0] == 400
        else:
            assert reason(refused) == TOO_DEEP


@pytest.mark.parametrize("key", ["k" * 256, "é" * 128, 7])
def test_no_binding_has_a_routing_key_that_amqp_cannot_say(api: ApiClient, key: object) -> None:
    path = "/bindings/%2F/e/amq.topic/e/amq.fanout"
    refused = reason(api.post(path, {"routing_key": key}))
    assert refused == (400, "routing_key should be a string of 255 octets at most")
    assert api.post(path, {"routing_key": "k" * 255})[0] == 201


def test_what_is_nested_as_deep_as_allowed_is_kept(api: ApiClient) -> None:
    deep: object = []
    for _ in range(90):
        deep = [deep]
    assert api.put("/queues/%2F/deep", {"arguments": {"x": deep}})[0] == 201
    assert api.get("/queues/%2F/deep")[1]["arguments"] == {"x": deep}


@pytest.mark.parametrize(
    "path", ["/queues/%2F/%FF", "/vhosts/%C3", "/queues/%2F/a%ED%A0%80", "/exchanges/%FF/x"]
)
def test_a_path_that_is_not_utf_8_is_refused(api: ApiClient, path: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        refused = api.ask(method, path, {} if method == "PUT" else None)[:2]
        assert reason(refused) == (400, "the path should be UTF-8")


def test_names_that_look_encoded_stay_as_they_are(api: ApiClient) -> None:
    for path, name in (("%25FF", "%FF"), ("%C3%A4%2Fb", "\u00e4/b"), ("a%00c", "a\0c")):
        assert api.put(f"/queues/%2F/{path}", {})[0] == 201
        assert api.get(f"/queues/%2F/{path}")[1]["name"] == name


def test_names_with_braces_are_in_paths_like_others(api: ApiClient) -> None:
    path = "/queues/%2F/%7B8e62f1c0%7D%7Bb"
    assert api.put(path, {})[0] == 201
    assert api.get(path)[1]["name"] == "{8e62f1c0}{b"
    assert api.delete(path)[0] == 204
