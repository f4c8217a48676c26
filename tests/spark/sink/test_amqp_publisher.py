"""The publisher on a real broker, without Spark."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme
from broker_channel import drain, open_channel
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql.types import BinaryType, StringType, StructType
from server_process import ServerProcess

from warren import Broker
from warren.config import Listener, SslOptions
from warren.core.resources.alarms import Resource
from warren.spark_export.errors import PublishFailed
from warren.spark_export.sink import amqp_publisher
from warren.spark_export.sink.amqp_publisher import AmqpPublisher
from warren.spark_export.sink.publish_frames import FrameEncoder
from warren.spark_export.sink.sink import publish_batches
from warren.spark_export.sink.sink_columns import SinkColumns
from warren.spark_export.sink.sink_options import SinkOptions

SCHEMA = StructType().add("routing_key", StringType()).add("body", BinaryType())


def batch(count: int, key: str = "q", octets: int = 10, first: int = 0) -> pa.RecordBatch:
    """Rows whose bodies begin with their number."""
    bodies = [b"%06d" % number + b"x" * (octets - 6) for number in range(first, first + count)]
    return pa.record_batch(
        {"routing_key": pa.array([key] * count), "body": pa.array(bodies, pa.binary())}
    )


def options_for(broker: Broker, **more: str) -> SinkOptions:
    return SinkOptions.parse({"url": broker.url, "exchange": "", **more})


def publish(options: SinkOptions, *batches: pa.RecordBatch) -> int:
    columns = SinkColumns.of(SCHEMA, options)
    return publish_batches(iter(batches), options, columns, id_prefix="job-0-0-", purpose="a test")


@pytest.fixture
def channel(warren_broker: Broker) -> Iterator[BlockingChannel]:
    with open_channel(warren_broker) as channel:
        yield channel


def test_all_rows_arrive_in_order_with_their_ids(
    warren_broker: Broker, channel: BlockingChannel
) -> None:
    channel.queue_declare("q")
    empty = batch(0)
    assert (
        publish(options_for(warren_broker), empty, batch(1500), empty, batch(7, first=1500)) == 1507
    )
    found = drain(channel, "q")
    assert [body[:6] for _, _, body in found] == [b"%06d" % number for number in range(1507)]
    assert [one.message_id for _, one, _ in found] == [f"job-0-0-{n}" for n in range(1507)]
    assert {one.delivery_mode for _, one, _ in found} == {2}


def test_without_rows_there_is_no_connection() -> None:
    nowhere = SinkOptions.parse({"host": "127.0.0.1", "port": "1", "exchange": "x"})
    assert publish(nowhere, batch(0)) == 0


def test_bodies_longer_than_a_frame_arrive_whole(
    warren_broker: Broker, channel: BlockingChannel
) -> None:
    channel.queue_declare("q")
    publish(options_for(warren_broker), batch(3, octets=400_000), batch(1, octets=131_064))
    assert [len(body) for _, _, body in drain(channel, "q")] == [400_000] * 3 + [131_064]


@pytest.mark.parametrize("most", [1, 2, 100])
def test_no_more_than_allowed_are_unconfirmed(
    warren_broker: Broker,
    channel: BlockingChannel,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel.queue_declare("q")
    seen = []
    published = amqp_publisher.PublisherProtocol.published

    def count(protocol: Any, *arguments: Any) -> None:
        published(protocol, *arguments)
        seen.append(protocol.unconfirmed)

    monkeypatch.setattr(amqp_publisher.PublisherProtocol, "published", count)
    assert publish(options_for(warren_broker, maxInFlight=str(most)), batch(500)) == 500
    assert max(seen) == most
    assert channel.queue_declare("q", passive=True).method.message_count == 500


def test_an_unknown_exchange_fails_with_the_brokers_words(warren_broker: Broker) -> None:
    with pytest.raises(PublishFailed, match="404 NOT_FOUND - no exchange 'nowhere' in vhost '/'"):
        publish(options_for(warren_broker, exchange="nowhere"), batch(3))


@pytest.mark.parametrize("confirms", ["true", "false"])
def test_a_message_without_a_queue_fails_and_is_named(
    warren_broker: Broker, channel: BlockingChannel, confirms: str
) -> None:
    channel.queue_declare("q")
    with pytest.raises(PublishFailed) as failed:
        publish(options_for(warren_broker, confirms=confirms), batch(5), batch(5, key="nobody"))
    row = "row 5" if confirms == "true" else "a message"
    assert f"{row} was returned: 312 NO_ROUTE" in str(failed.value)
    assert "routing key 'nobody', message id 'job-0-0-5'" in str(failed.value)


def test_without_mandatory_a_message_may_vanish(warren_broker: Broker) -> None:
    assert publish(options_for(warren_broker, mandatory="false"), batch(5, key="nobody")) == 5


def test_a_full_queue_that_refuses_fails(warren_broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("q", arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    with pytest.raises(PublishFailed, match=r"row 1\d .*message id 'job-0-0-1\d'.* was nacked"):
        publish(options_for(warren_broker), batch(100))


def test_a_wrong_password_is_refused_and_not_shown(warren_broker: Broker) -> None:
    options = SinkOptions.parse(
        {"url": warren_broker.url.replace("guest:guest", "guest:s3cret"), "exchange": ""}
    )
    with pytest.raises(PublishFailed, match="ACCESS_REFUSED") as failed:
        publish(options, batch(1))
    assert "s3cret" not in str(failed.value) + repr(options)


def test_an_unknown_virtual_host_is_refused(warren_broker: Broker) -> None:
    options = SinkOptions.parse({"url": warren_broker.url_for("nowhere"), "exchange": ""})
    with pytest.raises(PublishFailed, match="NOT_ALLOWED - vhost nowhere not found"):
        publish(options, batch(1))


def test_nobody_who_listens_is_a_clear_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = SinkOptions.parse({"host": "127.0.0.1", "port": str(port), "exchange": ""})
    with pytest.raises(PublishFailed, match=rf"127\.0\.0\.1:{port}.*no connection.*refused"):
        publish(options, batch(1))


def test_a_blocked_publisher_waits_and_goes_on(
    warren_broker: Broker, channel: BlockingChannel
) -> None:
    channel.queue_declare("q")

    def alarm(short: bool) -> None:
        warren_broker.call(lambda node: node.alarms.report(Resource.MEMORY, short, "elsewhere"))

    alarm(True)
    options = options_for(warren_broker, confirmTimeoutMs="200", maxInFlight="10")
    waiting = threading.Event()

    class Watched(AmqpPublisher):
        def _wait(self, deadline: float | None) -> None:
            if self._protocol.blocked is not None:
                waiting.set()
            super()._wait(deadline)

    def clear() -> None:
        waiting.wait()
        alarm(False)

    clearing = threading.Thread(target=clear)
    clearing.start()
    columns = SinkColumns.of(SCHEMA, options)
    with Watched(options) as publisher:
        encoder = FrameEncoder(columns, options, id_prefix="", frame_max=publisher.frame_max)
        for rows in encoder.encode(batch(100), 0):
            publisher.publish(rows)
        publisher.finish()
    clearing.join()
    assert channel.queue_declare("q", passive=True).method.message_count == 100


def test_heartbeats_go_on_while_nobody_publishes(warren_broker: Broker) -> None:
    """The broker hangs up after two intervals of silence; more than that pass here."""
    warren_broker.call(lambda node: node)
    options = options_for(warren_broker, heartbeatSeconds="1", mandatory="false")
    columns = SinkColumns.of(SCHEMA, options)
    heard: list[bytes] = []
    beats = threading.Event()

    with AmqpPublisher(options) as publisher:
        data_to_send = publisher._protocol.data_to_send

        def watched() -> bytes:
            data = data_to_send()
            heard.extend([data] if data else [])
            if len(heard) == 6:
                beats.set()
            return data

        publisher._protocol.data_to_send = watched  # type: ignore[method-assign]
        assert beats.wait(60)
        assert set(heard) == {b"\x08\0\0\0\0\0\0\xce"}
        encoder = FrameEncoder(columns, options, id_prefix="", frame_max=publisher.frame_max)
        for rows in encoder.encode(batch(10), 0):
            publisher.publish(rows)
        publisher.finish()


class ScriptedBroker:
    """Opens a connection and a channel, then does with its socket what a test wants."""

    def __init__(self, then: Callable[[socket.socket], None]) -> None:
        self._then = then
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.options = SinkOptions.parse(
            {
                "host": "127.0.0.1",
                "port": str(self._server.getsockname()[1]),
                "exchange": "",
                "heartbeatSeconds": "0",
                "confirmTimeoutMs": "300",
            }
        )

    def __enter__(self) -> ScriptedBroker:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join()
        self._server.close()

    def _serve(self) -> None:
        connection, _ = self._server.accept()
        with connection:
            for answer in (START, TUNE, OPEN_OK, CHANNEL_OPEN_OK, SELECT_OK):
                connection.recv(65536)
                connection.sendall(answer)
            self._then(connection)


def method(channel: int, payload: bytes) -> bytes:
    return (
        b"\x01" + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"
    )


START = method(0, b"\0\x0a\0\x0a\0\x09\0\0\0\0\0\0\0\x05PLAIN\0\0\0\x05en_US")
TUNE = method(0, b"\0\x0a\0\x1e\0\x01\0\0\x20\0\0\0")
OPEN_OK = method(0, b"\0\x0a\0\x29\0")
CHANNEL_OPEN_OK = method(1, b"\0\x14\0\x0b\0\0\0\0")
SELECT_OK = method(1, b"\0\x55\0\x0b")


def read_to_the_end(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def test_confirms_that_do_not_come_fail_after_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amqp_publisher, "GOODBYE_S", 0.0)
    with ScriptedBroker(read_to_the_end) as peer:
        with pytest.raises(
            PublishFailed, match=r"a confirm did not come within 0\.3 s; 3 messages"
        ):
            publish(peer.options, batch(3))


def test_a_broker_that_vanishes_fails_the_rows_on_their_way() -> None:
    def vanish(connection: socket.socket) -> None:
        connection.recv(100_000)

    with ScriptedBroker(vanish) as peer:
        with pytest.raises(PublishFailed, match=r"the connection was lost: .*not confirmed"):
            publish(peer.options, batch(3000, octets=1000))


def test_the_brokers_last_words_are_heard_though_writing_failed() -> None:
    def close(connection: socket.socket) -> None:
        connection.recv(100)
        text = b"CONNECTION_FORCED - go away"
        connection.sendall(
            method(0, b"\0\x0a\0\x32\x01\x40" + bytes((len(text),)) + text + b"\0\0\0\0")
        )
        connection.shutdown(socket.SHUT_WR)
        read_to_the_end(connection)

    with ScriptedBroker(close) as peer:
        with pytest.raises(PublishFailed, match="320 CONNECTION_FORCED - go away"):
            publish(peer.options, batch(30_000, octets=1000))


def test_a_broker_that_is_killed_between_batches_fails_the_task(tmp_path: Path) -> None:
    server = ServerProcess(
        ["--amqp", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")], tmp_path
    )
    options = SinkOptions.parse({"url": server.url, "exchange": "", "mandatory": "false"})

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(5000)
        server.kill()
        yield batch(5000)

    columns = SinkColumns.of(SCHEMA, options)
    with pytest.raises(PublishFailed, match="the connection was lost"):
        publish_batches(batches(), options, columns, id_prefix="", purpose="a test")


def test_it_publishes_over_tls_with_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("localhost", "client"):
        certificate = authority.issue_cert(name, "127.0.0.1")
        certificate.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        certificate.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
    with Broker(
        tls_listeners=(Listener("127.0.0.1", 0),),
        ssl=SslOptions(
            cacertfile=tmp_path / "ca.pem",
            certfile=tmp_path / "localhost.pem",
            keyfile=tmp_path / "localhost.key",
            verify_peer=True,
            fail_if_no_peer_cert=True,
        ),
    ) as broker:
        url = f"amqps://guest:guest@127.0.0.1:{broker.tls_port}/%2F"
        files = {
            "caFile": str(tmp_path / "ca.pem"),
            "certFile": str(tmp_path / "client.pem"),
            "keyFile": str(tmp_path / "client.key"),
        }
        options = SinkOptions.parse({"url": url, "exchange": "", "mandatory": "false", **files})
        assert publish(options, batch(2000, octets=1000)) == 2000
        untrusting = SinkOptions.parse({"url": url, "exchange": "", "mandatory": "false"})
        with pytest.raises(PublishFailed, match=r"no connection: .*certificate verify failed"):
            publish(untrusting, batch(1))
