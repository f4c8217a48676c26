"""URIs of brokers: what they say, what is no URI, and what is shown of them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from warren.client.handshake import Tuning
from warren.shovel.uri import InvalidUri, TlsQuery, parse_uri


@pytest.mark.parametrize(
    ("text", "host", "port", "vhost"),
    [
        ("amqp://", None, 5672, "/"),
        ("amqp:///", None, 5672, ""),
        ("amqp:///own", None, 5672, "own"),
        ("AMQP://host", "host", 5672, "/"),
        ("amqps://host", "host", 5671, "/"),
        ("amqp://host:1/%2F", "host", 1, "/"),
        ("amqp://host/a%2Fb", "host", 5672, "a/b"),
        ("amqp://[::1]:7/v", "::1", 7, "v"),
        ("amqp://u:p@/v", None, 5672, "v"),
    ],
)
def test_host_port_and_virtual_host(text: str, host: str | None, port: int, vhost: str) -> None:
    uri = parse_uri(text)
    assert (uri.host, uri.port, uri.vhost) == (host, port, vhost)


def test_user_and_password_are_decoded_and_never_shown() -> None:
    uri = parse_uri("amqp://us%40er:se%2Fcret@host:5/v?password=hidden&heartbeat=3")
    assert (uri.username, uri.password) == ("us@er", "se/cret")
    assert uri.shown == "amqp://host:5/v"
    assert "cret" not in repr(uri)


def test_defaults() -> None:
    uri = parse_uri("amqp://host")
    assert (uri.username, uri.password, uri.tls, uri.mechanism) == (None, None, None, "PLAIN")
    assert (uri.tuning, uri.timeout_s) == (Tuning(heartbeat_s=10), 60)


def test_query_sets_what_a_connection_asks_for() -> None:
    query = (
        "heartbeat=0&connection_timeout=500&channel_max=4&frame_max=8192&auth_mechanism=external"
    )
    uri = parse_uri(f"amqp://host?{query}&unknown=1")
    assert (uri.tuning, uri.timeout_s, uri.mechanism) == (Tuning(0, 4, 8192), 0.5, "EXTERNAL")


def test_query_sets_tls() -> None:
    uri = parse_uri("amqps://host?cacertfile=/a&certfile=/b&keyfile=/c&verify=verify_peer")
    assert uri.tls == TlsQuery("/a", "/b", "/c", verify=True, server_name="host")
    assert parse_uri("amqps://host").tls == TlsQuery(server_name="host")
    named = parse_uri("amqps://host?server_name_indication=other").tls
    assert named is not None and named.server_name == "other"
    nobody = parse_uri("amqps://host?server_name_indication=disable").tls
    assert nobody is not None and nobody.server_name is None


def test_tls_context_verifies_where_it_is_asked_to(tmp_path: Path) -> None:
    authority = trustme.CA()
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    context = TlsQuery(cacertfile=str(file), verify=True, server_name="host").context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert TlsQuery().context().verify_mode is ssl.CERT_NONE
    with pytest.raises(OSError):
        TlsQuery(cacertfile=str(tmp_path / "missing")).context()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://host", '{unexpected_uri_scheme,"http"}'),
        ("host", "unable_to_parse_uri"),
        ("amqp:host", "unable_to_parse_uri"),
        ("amqp://[::1", "unable_to_parse_uri"),
        ("amqp://host:x", "unable_to_parse_uri"),
        ("amqp://host:99999", "port_out_of_range"),
        ("amqp://host:0", "port_out_of_range"),
        ("amqp://host/a/b", '{invalid_vhost,"/a/b"}'),
        ("amqp://host?heartbeat=x", '{not_an_integer,"x"}'),
        ("amqp://host?channel_max=-1", '{not_an_integer,"-1"}'),
        ("amqp://host?fail_if_no_peer_cert=5", "{require_boolean,'5'}"),
        ("amqp://host?host=other", "{parameter_unconfigurable_in_query,host}"),
    ],
)
def test_what_is_no_uri_is_told_as_a_term(text: str, reason: str) -> None:
    with pytest.raises(InvalidUri) as error:
        parse_uri(text)
    assert str(error.value) == f'"{text}" not a valid URI: {{{reason},"{text}"}}'


@pytest.mark.parametrize("value", [5, None, {}])
def test_other_json_is_no_uri(value: Any) -> None:
    with pytest.raises(InvalidUri):
        parse_uri(value)
