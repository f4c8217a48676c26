"""What a connection leaves in the log, and that no client can write there what it likes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pamqp import commands
from pipe import PROTOCOL_HEADER, Broker, Client, method_frame, start_ok

from warren.amqp.peer import CAPABILITIES
from warren.core.field import Field, Table, longstr

FORGED = "x\r\n2026-01-01 00:00:00,000 INFO warren.audit vhost_deleted who=guest"


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, "warren"):
        yield


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """Level, logger and text of what was logged, without the peers; forgets it."""
    found = [
        f"{record.levelname} {record.name} {record.message}"
        for record in caplog.records
        if record.levelno >= level
    ]
    caplog.clear()
    assert all(line.isprintable() and len(line.splitlines()) == 1 for line in found)
    assert all("peer=" in line for line in found)
    return [_without_peer(line) for line in found]


def _without_peer(line: str) -> str:
    before, _, rest = line.partition(' peer="')
    return before + rest.partition('"')[2]


def named_start_ok(name: str) -> bytes:
    flags: Table = {flag: Field("t", True) for flag in CAPABILITIES}
    return method_frame(
        0,
        commands.Connection.StartOk,
        client_properties={"capabilities": Field("F", flags), "connection_name": longstr(name)},
        mechanism="PLAIN",
        response=b"\0guest\0guest",
        locale="en_US",
    )


def test_a_connection_that_is_closed_in_order(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    client = broker.connects()
    opened = "INFO warren.connection connection_opened user=guest vhost=/ tls=false"
    assert lines(caplog) == ["INFO warren.connection connection_accepted tls=false", opened]
    client.sends(commands.Connection.Close, 0, reply_code=200)
    client.vanishes()
    closed = "INFO warren.connection connection_closed user=guest vhost=/ by=client"
    assert lines(caplog) == [closed]


def test_the_peer_and_the_name_of_a_connection_are_told(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    client = broker.accepts()
    client.sends_octets(PROTOCOL_HEADER + named_start_ok(FORGED))
    client.sends(commands.Connection.TuneOk, 0, channel_max=9, frame_max=4096, heartbeat=0)
    client.sends(commands.Connection.Open, 0, virtual_host="/")
    broker.settle()
    (line,) = [message for message in caplog.messages if message.startswith("connection_opened")]
    assert line.startswith('connection_opened peer="127.0.0.1:40001 -> 127.0.0.1:5672" user=guest')
    assert r'name="x\r\n2026-01-01 00:00:00,000 INFO' in line and len(lines(caplog)) == 2


def test_a_connection_that_is_lost(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    client = broker.connects()
    lines(caplog)
    client.vanishes()
    lost = "WARNING warren.connection connection_lost user=guest vhost=/ state=running"
    assert lines(caplog) == [lost]


def test_who_only_looks_whether_the_port_is_open_is_not_worth_a_line(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.accepts().vanishes()
    assert lines(caplog) == []


def test_a_handshake_that_ends_early_says_where(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    client = broker.accepts()
    client.sends_octets(PROTOCOL_HEADER)
    client.vanishes()
    assert lines(caplog, logging.WARNING) == [
        "WARNING warren.connection connection_lost state=awaiting_start_ok"
    ]
    broker.accepts()
    broker.advance(10)
    assert lines(caplog, logging.WARNING) == [
        "WARNING warren.connection handshake_timed_out state=awaiting_header"
    ]
    client = broker.accepts()
    client.sends_octets(PROTOCOL_HEADER)
    client.sends(commands.Connection.Open, 0, virtual_host="/")
    client.vanishes()
    assert lines(caplog, logging.WARNING) == [
        "WARNING warren.connection handshake_failed state=awaiting_start_ok "
        'reason="unexpected Connection.Open"'
    ]
    broker.accepts().sends_octets(b"GET / HT")
    broker.settle()
    assert lines(caplog, logging.WARNING) == [
        "WARNING warren.connection protocol_refused header=474554202f204854"
    ]


def test_a_refused_login_says_who_and_why(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    client = broker.accepts()
    client.sends_octets(PROTOCOL_HEADER + start_ok("eve\nforged", "secret"))
    client.vanishes()
    found = lines(caplog, logging.WARNING)
    assert found == [
        r'WARNING warren.connection login_refused user="eve\nforged" reason="invalid credentials"'
    ]


def test_an_error_of_the_client_closes_with_its_reason(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    lines(caplog)
    client.sends(commands.Queue.Declare, queue="no\x1b[31m\u2028such", passive=True)
    client.receives_close(404)
    assert lines(caplog) == [
        "WARNING warren.channel channel_closed user=guest vhost=/ channel=1 code=404 "
        "reason=\"NOT_FOUND - no queue 'no\\u001b[31m\\u2028such' in vhost '/'\""
    ]
    client.sends(commands.Queue.Declare, 9)
    client.receives_connection_close(504)
    assert lines(caplog) == [
        "WARNING warren.connection connection_closed user=guest vhost=/ by=broker code=504 "
        "reason=\"CHANNEL_ERROR - expected 'channel.open'\""
    ]


def test_a_close_by_the_operator_is_no_warning(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    lines(caplog)
    client.broker.node.close_all("enough")
    client.receives_connection_close(320)
    client.sends(commands.Connection.CloseOk, 0)
    client.vanishes()
    assert lines(caplog) == [
        "INFO warren.connection connection_closed user=guest vhost=/ by=broker code=320 "
        'reason="CONNECTION_FORCED - enough"'
    ]


def test_missed_heartbeats_are_one_line(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.connects(heartbeat_s=1)
    lines(caplog)
    broker.advance(10)
    assert lines(caplog) == ["WARNING warren.connection heartbeats_missed heartbeat_s=1"]


def test_deletions_and_purges_are_audited(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    for queue in ("q", "a b"):
        client.declares(queue)
    client.sends(commands.Exchange.Declare, exchange="e", exchange_type="fanout")
    client.receives(commands.Exchange.DeclareOk)
    lines(caplog)
    client.sends(commands.Queue.Purge, queue="q")
    client.sends(commands.Queue.Delete, queue="a b")
    client.sends(commands.Queue.Delete, queue="never there")
    client.sends(commands.Exchange.Delete, exchange="e")
    client.sends(commands.Exchange.Delete, exchange="e")
    client.broker.settle()
    assert lines(caplog) == [
        "INFO warren.audit queue_purged who=guest vhost=/ queue=q messages=0",
        'INFO warren.audit queue_deleted who=guest vhost=/ queue="a b" messages=0',
        "INFO warren.audit exchange_deleted who=guest vhost=/ exchange=e",
    ]


def test_what_is_refused_is_not_audited(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.declares("q")
    client.consumes("q")
    lines(caplog)
    client.sends(commands.Queue.Delete, queue="q", if_unused=True)
    client.receives_close(406)
    assert not any("warren.audit" in line for line in lines(caplog))


def test_messages_leave_no_lines(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.declares("q")
    client.consumes("q")
    caplog.clear()
    for _ in range(10):
        client.publishes("q")
    for delivery in client.receives_deliveries():
        client.acks(delivery.method.delivery_tag)
    client.broker.settle()
    assert caplog.records == []


def test_virtual_hosts_and_alarms(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.node.add_vhost("v 1")
    broker.node.delete_vhost("v 1")
    broker.alarm(True)
    broker.alarm(True)
    broker.alarm(False)
    assert [f"{record.levelname} {record.name} {record.message}" for record in caplog.records] == [
        'INFO warren.vhost vhost_created vhost="v 1"',
        'INFO warren.vhost vhost_deleted vhost="v 1"',
        "WARNING warren.alarm alarm_raised resource=memory node=warren@test blocks=all",
        "WARNING warren.alarm alarm_cleared resource=memory node=warren@test",
    ]
