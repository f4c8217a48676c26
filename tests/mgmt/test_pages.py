"""Serving the files of the web pages."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from importlib.resources import files

import pytest

from warren import Broker

STATIC = sorted(file.name for file in files("warren.mgmt").joinpath("static").iterdir())


@pytest.fixture(scope="module", params=["", "/broker"])
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def broker(prefix: str) -> Iterator[Broker]:
    with Broker(http_port=0, path_prefix=prefix) as started:
        yield started


def ask(
    broker: Broker, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=10)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("name", STATIC)
def test_every_file_is_served_with_its_type_and_the_security_headers(
    broker: Broker, prefix: str, name: str
) -> None:
    response, body = ask(broker, f"{prefix}/{name}")
    assert response.status == 200
    assert body == files("warren.mgmt").joinpath("static", name).read_bytes()
    types = {"js": "text/javascript", "css": "text/css", "html": "text/html"}
    kind = types.get(name.rpartition(".")[2], "image/svg+xml")
    assert response.headers["Content-Type"] == f"{kind}; charset=utf-8"
    assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    assert "unsafe" not in response.headers["Content-Security-Policy"]
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_a_file_that_has_not_changed_is_not_sent_again(broker: Broker, prefix: str) -> None:
    etag = ask(broker, f"{prefix}/main.js")[0].headers["ETag"]
    known, body = ask(broker, f"{prefix}/main.js", headers={"If-None-Match": etag})
    assert (known.status, body) == (304, b"")
    other, body = ask(broker, f"{prefix}/main.js", headers={"If-None-Match": '"else"'})
    assert other.status == 200 and body


def test_the_pages_are_at_the_root_and_the_api_describes_itself(
    broker: Broker, prefix: str
) -> None:
    assert b"<title>Warren</title>" in ask(broker, f"{prefix}/")[1]
    for path in ("/api", "/api/"):
        response, _ = ask(broker, prefix + path)
        assert response.status == 301
        assert response.headers["Location"] == f"{prefix}/api/index.html"
    assert b"openapi.json" in ask(broker, f"{prefix}/api/index.html")[1]
    assert b"rabbitmqadmin" in ask(broker, f"{prefix}/cli/")[1]
    assert b"does not ship" in ask(broker, f"{prefix}/cli/rabbitmqadmin")[1]


def test_the_prefix_without_a_slash_leads_to_the_pages(broker: Broker, prefix: str) -> None:
    response, _ = ask(broker, prefix or "/")
    if prefix:
        assert (response.status, response.headers["Location"]) == (301, f"{prefix}/")
    else:
        assert response.status == 200


@pytest.mark.parametrize("path", ["/pages.py", "/../pages.py", "/static/main.js", "/%2e%2e/x.js"])
def test_nothing_else_is_served(broker: Broker, prefix: str, path: str) -> None:
    assert ask(broker, prefix + path)[0].status == 404


def test_a_page_is_not_told_to_ask_for_a_password(broker: Broker, prefix: str) -> None:
    path = f"{prefix}/api/whoami"
    assert "Basic" in ask(broker, path)[0].headers["WWW-Authenticate"]
    response, _ = ask(broker, path, headers={"X-Requested-With": "fetch"})
    assert response.status == 401
    assert "WWW-Authenticate" not in response.headers
