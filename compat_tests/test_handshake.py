"""Protocol header, connection.start, login and connection.open: reference 1.1, 1.2, 1.3, 1.6."""

import re

import pytest

from warren.compat_tests.factory import Raw
from warren.compat_tests.field_table import Reader, Typed, encode_pairs
from warren.compat_tests.methods import encode_method
from warren.compat_tests.raw_client import RawClient
from warren.compat_tests.raw_connection import BODY, PROTOCOL_HEADER, Silence

AREA = "Connection: handshake and login"

CAPABILITIES = [
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "consumer_priorities",
    "direct_reply_to",
    "exchange_exchange_bindings",
    "per_consumer_qos",
    "publisher_confirms",
]

# The broker waits so long before it closes the socket: guessing passwords shall take time.
SILENT_DROP_S = (2.0, 6.0)


def dropped_silently(client: RawClient) -> None:
    low, high = SILENT_DROP_S
    assert low <= client.expect_socket_closed(high) <= high


def test_start_offers_version_0_9_and_the_known_mechanisms(raw: Raw) -> None:
    start = raw.connected().start()
    assert (start["version_major"], start["version_minor"]) == (0, 9)
    assert start["locales"] == b"en_US"
    assert {"PLAIN", "AMQPLAIN"} <= set(start["mechanisms"].decode().split(" "))


def test_server_properties_list_all_capabilities_as_booleans(raw: Raw) -> None:
    capabilities = raw.connected().start()["server_properties"]["capabilities"]
    assert {name: capabilities.get(name) for name in CAPABILITIES} == dict.fromkeys(
        CAPABILITIES, True
    )


def test_server_properties_are_long_strings_that_name_product_and_version(raw: Raw) -> None:
    client = raw.connected()
    client.send_bytes(PROTOCOL_HEADER)
    payload = client.read_frame().payload
    # Class id, method id and the two version octets come before the table.
    typed = Reader(payload[6:]).table(typed=True)
    wanted = ("product", "version", "platform", "copyright", "information", "cluster_name")
    assert {key: typed[key].code for key in wanted} == dict.fromkeys(wanted, "S")
    assert typed["capabilities"].code == "F"
    assert list(typed) == sorted(typed)
    version = re.match(r"(\d+)\.\d+", typed["version"].value)
    assert version is not None and int(version[1]) >= 3, "clients check features by this number"


def test_header_of_the_first_0_9_1_drafts_is_served_too(raw: Raw) -> None:
    client = raw.connected()
    client.send_bytes(b"AMQP\x01\x01\x00\x09")
    start = client.expect("connection.start")
    assert (start["version_major"], start["version_minor"]) == (0, 9)


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x0a\x00",
        b"AMQP\x00\x09\x09\x01",
        b"GET / HT",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
    ids=["unknown version", "unknown revision", "http", "tls"],
)
def test_other_protocol_headers_are_answered_with_ours_and_a_cut(raw: Raw, header: bytes) -> None:
    client = raw.connected()
    client.send_bytes(header)
    assert client.read_bytes(8) == PROTOCOL_HEADER
    client.expect_socket_closed(2.0)


def test_protocol_header_may_come_in_pieces(raw: Raw) -> None:
    client = raw.connected()
    for octet in PROTOCOL_HEADER:
        client.send_bytes(bytes([octet]))
    client.expect("connection.start")


def test_whole_handshake_may_be_pipelined(raw: Raw) -> None:
    client = raw.connected()
    client.send_bytes(PROTOCOL_HEADER)
    client.send_start_ok()
    client.send_method(0, "connection.tune-ok", channel_max=10, frame_max=8192)
    client.send_method(0, "connection.open", virtual_host=client.broker.vhost)
    for name in ("connection.start", "connection.tune", "connection.open-ok"):
        client.expect(name)


def test_plain_login_opens_a_connection_with_empty_known_hosts(raw: Raw) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok()
    client.tune()
    client.send_method(0, "connection.open", virtual_host=client.broker.vhost)
    assert client.expect("connection.open-ok")["known_hosts"] == ""


def test_amqplain_login_opens_a_connection(raw: Raw) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok(mechanism="AMQPLAIN")
    client.tune()


def test_any_locale_is_accepted(raw: Raw) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok(locale="tlh_KX")
    client.tune()


def test_client_properties_of_every_type_are_accepted(raw: Raw) -> None:
    raw(
        client_properties={
            "connection_name": "a name",
            "number": 5,
            "long": 2**40,
            "nothing": None,
            "list": [1, "two", {"three": 3.0}],
        }
    ).channel()


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
@pytest.mark.parametrize(
    ("user", "password"),
    [(None, "wrong"), ("nobody-of-this-name", "guest"), (None, "")],
    ids=["wrong password", "unknown user", "blank password"],
)
def test_refused_login_is_told_to_clients_that_can_hear_it(
    raw: Raw, mechanism: str, user: str | None, password: str
) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok(user=user, password=password, mechanism=mechanism)
    client.expect_close(
        403,
        f"Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile.",
        offender=(0, 0),
        timeout_s=2.0,
    )


@pytest.mark.slow
def test_refused_login_is_silent_for_other_clients(raw: Raw) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok(password="wrong", capabilities={})
    dropped_silently(client)


@pytest.mark.slow
def test_protocol_violations_before_login_are_dropped_silently_after_three_seconds(
    raw: Raw,
) -> None:
    """All clients wait at the same time; one after the other they would need three seconds each."""
    clients = [raw.connected() for _ in range(8)]
    for client in clients:
        client.start()
    authzid, no_nul, amqplain, mechanism, early_open, early_close, large, early_body = clients
    user, password = authzid.broker.user, authzid.broker.password
    authzid.send_start_ok(response=f"other\0{user}\0{password}".encode())
    no_nul.send_start_ok(response=f"{user} {password}".encode())
    amqplain.send_start_ok(mechanism="AMQPLAIN", response=encode_pairs({"LOGIN": user}))
    mechanism.send_start_ok(mechanism="CRAM-MD5", response=b"")
    early_open.send_method(0, "connection.open", virtual_host="/")
    early_close.send_method(0, "connection.close", reply_code=200)
    # The frame size is 4096 until tune-ok says otherwise.
    large.send_start_ok(client_properties={"padding": "x" * 5000})
    early_body.send_frame(BODY, 0, b"x")
    first, *others = clients
    dropped_silently(first)
    for client in others:
        client.expect_socket_closed(3.0)


@pytest.mark.slow
def test_clients_that_stall_in_the_handshake_are_dropped_after_ten_seconds(raw: Raw) -> None:
    mute, started, untuned = (raw.connected() for _ in range(3))
    for client in (started, untuned):
        client.start()
    untuned.send_start_ok()
    untuned.expect("connection.tune")
    assert 8.0 <= mute.expect_socket_closed(14.0) <= 13.0
    started.expect_socket_closed(3.0)
    untuned.expect_socket_closed(3.0)


def test_a_connection_that_only_knocks_does_no_harm(raw: Raw) -> None:
    raw.connected().abandon()
    raw().channel()


@pytest.mark.parametrize("name", ["no-such-vhost", ""], ids=["unknown", "empty"])
def test_open_of_a_missing_vhost_is_not_allowed(raw: Raw, name: str) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok()
    client.tune()
    client.send_method(0, "connection.open", virtual_host=name)
    client.expect_close(530, f"vhost {name} not found", offender=(10, 40))


def test_update_secret_is_accepted(raw: Raw) -> None:
    client = raw()
    client.send_method(0, "connection.update-secret", new_secret=b"new", reason="rotation")
    client.expect("connection.update-secret-ok")
    client.channel()


def test_frames_may_come_octet_by_octet(raw: Raw) -> None:
    client = raw.connected()
    client.start()
    fields = {
        "mechanism": "PLAIN",
        "response": f"\0{client.broker.user}\0{client.broker.password}",
        "locale": "en_US",
    }
    payload = encode_method("connection.start-ok", fields)
    frame = b"\x01\x00\x00" + len(payload).to_bytes(4, "big") + payload + b"\xce"
    for octet in frame:
        client.send_bytes(bytes([octet]))
    client.expect("connection.tune")


def test_nothing_follows_open_ok_unasked(raw: Raw) -> None:
    client = raw()
    with pytest.raises(Silence):
        client.read_frame(0.3)


def test_refused_client_that_answers_the_close_is_let_go_at_once(raw: Raw) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok(password="wrong")
    client.expect("connection.close")
    client.send_method(0, "connection.close-ok")
    assert client.expect_socket_closed() < 2


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"LOGIN": Typed("x", b"nobody"), "PASSWORD": "wrong"}, True),
        ({"LOGIN": "nobody", "PASSWORD": 5}, True),
        ({"LOGIN": 5, "PASSWORD": "wrong"}, False),
    ],
    ids=["binary name", "number for a password", "number for a name"],
)
def test_amqplain_reads_any_password_and_names_that_are_text(
    raw: Raw, fields: dict[str, object], told: bool
) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok(mechanism="AMQPLAIN", response=encode_pairs(fields))
    if told:
        assert client.expect("connection.close")["reply_code"] == 403
    else:
        dropped_silently(client)


@pytest.mark.parametrize("name", ["connection.tune-ok", "connection.close"])
def test_another_method_where_open_is_due_is_told(raw: Raw, name: str) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok()
    client.tune()
    client.send_method(0, name)
    client.expect_close(504, "unexpected method in connection state opening")


def test_channel_where_open_is_due_is_told(raw: Raw) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok()
    client.tune()
    client.send_method(1, "channel.open")
    text = "type 1, all octets = <<0,20,0,10,0>>"
    client.expect_close(505, text, offender=(0, 0))


def test_virtual_host_that_is_not_utf_8_is_a_frame_error(raw: Raw) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok()
    client.tune()
    client.send_method(0, "connection.open", virtual_host=b"\xff")
    client.expect_close(501, "Malformed UTF-8 in shortstr", offender=(10, 40))
