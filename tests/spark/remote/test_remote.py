"""Reading from a node over HTTP, as tasks of Spark do; without Spark."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme
from broker_channel import open_channel
from pika.adapters.blocking_connection import BlockingChannel
from stream_batches import Query

from warren import Broker
from warren.config import Listener, SslOptions
from warren.mgmt import snapshot_service
from warren.persist.snapshots.pin_owner import owner_of
from warren.spark_export.decode.schema import columns
from warren.spark_export.errors import (
    CursorInUse,
    OptionRefused,
    QueueUnknown,
    RecordDamaged,
    SnapshotGone,
    StoreRefused,
)
from warren.spark_export.node_urls import NodeAddress, NodeLogin, parse_node_url
from warren.spark_export.remote import lease_keeper, remote_node, remote_store
from warren.spark_export.remote.remote_files import RemoteFiles
from warren.spark_export.remote.remote_store import RemoteStore
from warren.spark_export.snapshot.options import parse_options
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot import list_snapshots, pins_directory
from warren.spark_export.source.source import BatchReader, MessageStoreSource

COUNT = 200


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of the test's own, for what depends on its snapshots, cursors and users."""
    with filled(tmp_path) as broker:
        yield broker


@pytest.fixture(scope="module")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def shared_broker(shared_directory: Path) -> Iterator[Broker]:
    """Where tests only read; the process that makes snapshots for it is started once."""
    with filled(shared_directory) as broker:
        yield broker


@contextmanager
def filled(directory: Path) -> Iterator[Broker]:
    """Two queues whose messages stand one behind the other in the log, and one with priorities."""
    with start(directory) as broker:
        with open_channel(broker) as channel:
            channel.queue_declare("orders", durable=True)
            channel.queue_declare("invoices", durable=True)
            channel.queue_declare("jobs", durable=True, arguments={"x-max-priority": 3})
            # Nobody waits for each of them; the confirm of the last one comes after all.
            quick = channel.connection.channel()
            for number in range(COUNT):
                publish(quick, "orders", b"%d" % number)
                publish(quick, "invoices", b"%d" % (1000 + number))
            for number in range(6):
                publish(quick, "jobs", b"%d" % number, priority=number % 3)
            quick.close()
            channel.queue_declare("last", durable=True)
            publish(channel, "last", b"0")
            channel.queue_delete("last")
        yield broker


@pytest.fixture(autouse=True)
def no_connections() -> Iterator[None]:
    yield
    remote_node.close_connections()


def start(tmp_path: Path) -> Broker:
    return Broker(data_dir=tmp_path / "data", http_port=0, control_socket=True)


def publish(channel: BlockingChannel, queue: str, body: bytes, **properties: int) -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))


def url(broker: Broker) -> str:
    return f"warren://{broker.host}:{broker.http_port}"


def reader_of(path: object, **options: str) -> BatchReader:
    """What Spark gets of a source, as its tasks get it."""
    chosen = {"path": str(path), "columns": "queue,seq,body,state,_corrupt_record", **options}
    source = MessageStoreSource(chosen)
    reader = source.reader(source.schema())
    copy: BatchReader = pickle.loads(pickle.dumps(reader))
    return copy


def rows(path: object, **options: str) -> list[dict[str, Any]]:
    return read(reader_of(path, **options))


def read(reader: BatchReader) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            found += batch.to_pylist()
    return sorted(found, key=lambda row: (row["queue"], row["seq"], row["body"] or b""))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queue": "orders"},
        {"queuePattern": "in.*|jobs", "minPartitions": "3"},
        {"maxPartitionBytes": "3000", "vhost": "/"},
        {"include": "ready"},
        {"startingTimestamp": "2100-01-01"},
    ],
)
def test_a_node_gives_what_its_directory_has(
    shared_directory: Path, shared_broker: Broker, options: dict[str, str]
) -> None:
    found = rows(url(shared_broker), **options)
    assert found == rows(shared_directory / "data", **options)
    if not options:
        assert len(found) == 2 * COUNT + 6


def test_what_a_queue_has_does_not_come_piece_by_piece(
    shared_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of other queues between those that are read cost no request each."""
    reads = 0
    read_once = remote_node.NodeClient.read

    def counted(self: remote_node.NodeClient, *path: str, start: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return read_once(self, *path, start=start, size=size)

    monkeypatch.setattr(remote_node.NodeClient, "read", counted)
    assert len(rows(url(shared_broker), queue="orders")) == COUNT
    assert reads < 10


def test_tasks_have_no_password(broker: Broker) -> None:
    broker.add_user("reader", "s3cret-pw", ("management",))
    broker.set_permissions("reader", "/")
    options = {"username": "reader", "password": "s3cret-pw", "queue": "orders"}
    reader = reader_of(url(broker), **options)
    partitions = pickle.dumps(reader.partitions())
    assert b"s3cret-pw" not in pickle.dumps(reader) and b"s3cret-pw" not in partitions
    assert len(read(reader)) == COUNT
    query = Query(url(broker), **options)
    assert b"s3cret-pw" not in pickle.dumps(query.reader)
    shown = repr(RemoteFiles(NodeAddress("h", 1), "id", "t0ken"))
    assert "t0ken" not in shown and "s3cret-pw" not in repr(
        parse_options({"path": url(broker), **options})
    )


def test_who_may_not_read_reads_nothing(broker: Broker) -> None:
    broker.add_user("reader", "reader", ("management",))
    broker.set_permissions("reader", "/", configure="", write="", read="orders")
    login = {"username": "reader", "password": "reader"}
    assert {row["queue"] for row in rows(url(broker), **login)} == {"orders"}
    with pytest.raises(QueueUnknown, match="no durable queue 'invoices'"):
        rows(url(broker), queue="invoices", **login)
    with pytest.raises(StoreRefused, match="401 Login failed"):
        rows(url(broker), username="reader", password="wrong")


def test_a_damaged_record_is_a_row(tmp_path: Path, broker: Broker) -> None:
    reader = reader_of(url(broker), queue="orders")
    (snapshot,) = list_snapshots(tmp_path / "data")
    (log,) = (snapshot.directory / "log").iterdir()
    octets = bytearray(log.read_bytes())
    at = octets.index(b"17\0\0", octets.index(b"orders"))
    octets[at] ^= 1
    log.unlink()
    log.write_bytes(octets)
    damaged = [row for row in read(reader) if row["_corrupt_record"]]
    assert len(damaged) == 1 and damaged[0]["body"] is None
    named = {"snapshot": snapshot.id, "queue": "orders", "mode": "FAILFAST"}
    with pytest.raises(RecordDamaged):
        read(reader_of(url(broker), **named, columns="queue,seq,body"))


def test_a_snapshot_that_was_released_is_gone(tmp_path: Path, broker: Broker) -> None:
    reader = reader_of(url(broker), queue="orders")
    partitions = reader.partitions()
    for snapshot in list_snapshots(tmp_path / "data"):
        snapshot.release()
    with pytest.raises(SnapshotGone, match="released, or its lease ran out"):
        reader.partitions()
    with pytest.raises(SnapshotGone):
        list(reader.read(partitions[0]))


class Proxy:
    """Passes connections on to `port`; `cuts` of them are cut when an answer has begun."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cuts = 0
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"warren://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self.port)) as node:
            threading.Thread(target=_pass, args=(client, node), daemon=True).start()
            while octets := node.recv(300):
                client.sendall(octets)
                if self.cuts:
                    self.cuts -= 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
            client.shutdown(socket.SHUT_RDWR)


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while octets := source.recv(4096):
            target.sendall(octets)
        target.shutdown(socket.SHUT_WR)


def test_a_broken_connection_is_no_end(
    shared_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_node, "WAITS_S", (0.0,) * 6)
    proxy = Proxy(shared_broker.http_port)
    reader = reader_of(proxy.url, queue="orders")
    partitions = reader.partitions()
    remote_node.close_connections()
    before, proxy.cuts = proxy.accepted, 4
    found = [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]
    assert [int(row["body"]) for row in found] == list(range(COUNT))
    assert proxy.cuts == 0 and proxy.accepted >= before + 4
    proxy.close()


def test_octets_that_changed_on_the_way_are_asked_for_again(
    shared_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_node, "WAITS_S", (0.0,))
    crcs: list[int] = []

    def once_wrong(octets: bytes) -> int:
        crcs.append(snapshot_service.crc32(octets))
        return crcs[-1] ^ (len(crcs) == 1)

    monkeypatch.setattr(remote_node, "crc32", once_wrong)
    assert len(rows(url(shared_broker), queue="orders")) == COUNT
    assert crcs[0] == crcs[1]


def test_a_node_that_restarts_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(tmp_path) as first, open_channel(first) as channel:
        channel.queue_declare("orders", durable=True)
        publish(channel, "orders", b"1")
        proxy = Proxy(first.http_port)
        reader = reader_of(proxy.url)
        query = Query(proxy.url)
        end = query.reader.latestOffset(query.at, query.reader.getDefaultReadLimit())
    restarted: list[Broker] = []

    def restart(_: float) -> None:
        if not restarted:
            restarted.append(start(tmp_path))
            restarted[0].start()
            proxy.port = restarted[0].http_port

    monkeypatch.setattr(remote_node.time, "sleep", restart)
    try:
        assert [row["body"] for row in read(reader)] == [b"1"]
        assert restarted
        # A stream that comes back reads the batch again by the name in its offset.
        query.restart()
        assert query.read(query.at, end) == [1]
    finally:
        for node in restarted:
            node.stop()
        proxy.close()


def test_a_node_of_a_cluster_that_restarts_is_waited_for(
    shared_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = NodeAddress(shared_broker.host, shared_broker.http_port)
    store = RemoteStore([address], NodeLogin("guest", "guest"))
    snapshot = store.create(QueueSelector(), lease_s=60, needs_state=False)
    all_nodes = RemoteStore._nodes
    pauses: list[float] = []

    def nodes_that_run(self: RemoteStore) -> dict[str, NodeAddress]:
        return all_nodes(self) if len(pauses) == 2 else {"another": address}

    monkeypatch.setattr(RemoteStore, "_nodes", nodes_that_run)
    monkeypatch.setattr(remote_store.time, "sleep", pauses.append)
    assert store.open(snapshot.name).queues == snapshot.queues
    with pytest.raises(SnapshotGone, match="which has part of the snapshot, does not run"):
        store.open("third!20260131T120000Z-89abcdef")


def test_a_node_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_node, "WAITS_S", ())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(StoreRefused, match=f"http://127.0.0.1:{port} does not answer: .*refused"):
        rows(f"warren://127.0.0.1:{port}")


def test_a_host_that_drops_what_it_is_sent_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_node, "WAITS_S", ())
    monkeypatch.setattr(remote_node, "CONNECT_TIMEOUT_S", 0.2)
    # Linux drops attempts to connect while as many wait as the listener allows.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        port = full.getsockname()[1]
        for _ in range(3):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        with pytest.raises(StoreRefused, match=f"http://127.0.0.1:{port} does not answer: timed"):
            rows(f"warren://127.0.0.1:{port}")


def test_an_answer_has_its_time_on_a_connection_after_one_that_the_node_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_node, "CONNECT_TIMEOUT_S", 0.2)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]"

    def serve(listener: socket.socket) -> None:
        for delay_s in (0.0, 0.6):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                time.sleep(delay_s)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        client = remote_node.NodeClient(NodeAddress(*listener.getsockname()), "Basic eA==")
        for _ in range(2):
            assert client.ask("GET", "nodes", once=True) == []


@contextmanager
def answering(octets: bytes) -> Iterator[int]:
    """A port where each connection is answered with these octets, and closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client:
                        client.recv(4096)
                        client.sendall(octets)

        threading.Thread(target=answer, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("scheme", "octets", "why"),
    [
        ("warren", b"AMQP\0\0\x09\x01", "AMQP is spoken there, and not HTTP; .* 15672"),
        ("warren", b"SSH-2.0-x\r\n", "no HTTP is spoken there: 'SSH-2.0-x"),
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "no TLS is spoken there; .* http://"),
    ],
    ids=["amqp", "ssh", "plain"],
)
def test_a_port_of_another_protocol_is_refused_at_once(
    scheme: str, octets: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_node, "WAITS_S", (60.0,))
    with answering(octets) as port, pytest.raises(StoreRefused, match=why) as refused:
        rows(f"{scheme}://127.0.0.1:{port}")
    assert "\0" not in str(refused.value)


def test_the_second_node_of_a_url_is_asked_at_once_when_the_first_is_silent(
    shared_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_node, "WAITS_S", (60.0,))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    both = f"warren://127.0.0.1:{port},127.0.0.1:{shared_broker.http_port}"
    assert len(rows(both, queue="orders")) == COUNT


def test_nodes_of_a_url_are_asked_again_while_none_answers(
    shared_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_node, "WAITS_S", (1.0, 2.0))
    proxies = [Proxy(shared_broker.http_port) for _ in range(2)]
    entries = [NodeAddress("127.0.0.1", int(one.url.rpartition(":")[2])) for one in proxies]
    for proxy in proxies:
        proxy.cuts = 1
    pauses: list[float] = []
    monkeypatch.setattr(remote_node.time, "sleep", pauses.append)
    proxies[0].cuts = 2
    store = RemoteStore(entries, NodeLogin("guest", "guest"))
    assert len(store.nodes()) == 1
    assert pauses == [1.0] and [proxy.accepted for proxy in proxies] == [2, 2]
    # The one that answered is asked first from now on.
    assert len(store.nodes()) == 1
    assert proxies[0].accepted == 2
    for proxy in proxies:
        proxy.close()


def test_a_node_that_cannot_make_snapshots_says_what_is_missing(
    shared_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.mgmt.api.snapshots.can_make", lambda: False)
    with pytest.raises(StoreRefused, match=r"numpy is not installed beside it"):
        rows(url(shared_broker))


def test_a_snapshot_goes_with_the_application_it_was_made_for(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = RemoteStore([NodeAddress(broker.host, broker.http_port)], NodeLogin("guest", "guest"))
    options = {"lease_s": 3600, "needs_state": False}
    kept = store.create(QueueSelector(), **options)  # type: ignore[arg-type]
    with subprocess.Popen(["sleep", "1000"]) as application:
        owner = owner_of(application.pid)
        assert owner is not None
        for _ in range(2):
            store.create(QueueSelector(), **options, owner=owner)  # type: ignore[arg-type]
        assert len(list_snapshots(tmp_path / "data")) == 3
        application.kill()
    deadline = time.monotonic() + 30
    while len(list_snapshots(tmp_path / "data")) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [one.id for one in list_snapshots(tmp_path / "data")] == [kept.parts[0].files.snapshot]


def test_a_node_that_is_gone_is_tried_once_when_an_application_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each snapshot that it made: there may be thousands."""
    pauses: list[float] = []
    monkeypatch.setattr(remote_node, "WAITS_S", (1.0, 2.0))
    monkeypatch.setattr(remote_node.time, "sleep", pauses.append)
    with subprocess.Popen(["true"]) as application:
        owner = owner_of(application.pid)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    leases = tmp_path / "leases"
    leases.mkdir()
    (leases / lease_keeper.OWNER_FILE).write_text(json.dumps(owner))
    for number in range(5):
        parts = [[asdict(NodeAddress("127.0.0.1", port)), f"snapshot-{number}", "token"]]
        (leases / f"snapshot-{number}.json").write_text(json.dumps(parts))
    lease_keeper.keep(leases)
    assert pauses == [1.0, 2.0] and not leases.exists()


# Streams with a cursor


def cursors(tmp_path: Path) -> list[str]:
    return [one.cursor or "" for one in list_snapshots(tmp_path / "data")]


def test_a_cursor_at_a_node_keeps_a_snapshot_for_one_stream(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_store, "CURSOR_WAIT_S", 0.0)
    options = {"queue": "orders", "cursor": "archive", "maxOffsetsPerTrigger": "50"}
    query = Query(url(broker), **options)
    assert query.batch() == list(range(50))
    assert cursors(tmp_path) == ["archive"]
    second = Query.__new__(Query)
    with pytest.raises(CursorInUse, match="another stream reads with cursor archive"):
        second.__init__(url(broker), **options)  # type: ignore[misc]
    query.reader.stop()
    query.restart(**options)
    assert query.batch() == list(range(50, 100))
    query.reader.stop()


def test_a_cursor_is_free_as_soon_as_its_stream_was_killed(
    shared_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark does at the end of each query; the node would miss it after 30 seconds."""
    monkeypatch.setattr(remote_store, "CURSOR_WAIT_S", 25.0)
    script = Path(__file__).parents[2] / "support" / "cursor_holder.py"
    with subprocess.Popen(
        [sys.executable, str(script), url(shared_broker)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"reads\n"
        holder.kill()
    query = Query(url(shared_broker), queue="orders", cursor="archive")
    query.reader.stop()


def test_over_tls_the_node_is_who_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    pem = tmp_path / "server.pem"
    with Broker(
        data_dir=tmp_path / "data",
        control_socket=True,
        http_tls_listeners=(Listener("127.0.0.1", 0),),
        http_ssl=SslOptions(cacertfile=tmp_path / "ca.pem", certfile=pem, keyfile=pem),
    ) as broker:
        with open_channel(broker) as channel:
            channel.queue_declare("orders", durable=True)
            publish(channel, "orders", b"1")
        management = broker._running.management
        assert management is not None
        path = f"https://127.0.0.1:{management.https_ports[0]}"
        ca_file = str(tmp_path / "ca.pem")
        with pytest.raises(StoreRefused, match="certificate verify failed"):
            rows(path)
        assert [row["body"] for row in rows(path, caFile=ca_file)] == [b"1"]
        remote_node.close_connections()


# URLs and options


def test_urls_of_nodes() -> None:
    parse: Callable[[str], Any] = lambda text: parse_node_url(text, None, None, None)  # noqa: E731
    assert parse("warren://n") == ([NodeAddress("n", 15672)], NodeLogin("guest", "guest"))
    assert parse("https://a:b%40c@n/p/") == (
        [NodeAddress("n", 15671, True, "/p")],
        NodeLogin("a", "b@c"),
    )
    assert parse("http://[::1]:1,n:2")[0] == [NodeAddress("::1", 1), NodeAddress("n", 2)]
    assert NodeAddress("::1", 1).url == "http://[::1]:1"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "warren://"}, "names no host"),
        ({"path": "warren://n:x"}, "has no port"),
        ({"path": "warren://n?x=1"}, "has a query"),
        ({"path": "warren://a:b@n", "username": "c"}, "and so do options username"),
        ({"path": "warren://n", "caFile": "/x"}, "caFile is for https"),
        ({"path": "warren://n", "snapshotDirectory": "/x"}, "snapshotDirectory is for data"),
        ({"path": "/data", "password": "x"}, "password is for a path such as warren://"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionRefused, match=text) as refused:
        parse_options(options)
    assert "b@" not in str(refused.value)


def test_a_snapshot_is_opened_by_its_id(tmp_path: Path, broker: Broker) -> None:
    reader_of(url(broker), queue="orders")
    (snapshot,) = list_snapshots(tmp_path / "data")
    assert len(rows(url(broker), snapshot=snapshot.id)) == COUNT
    assert pins_directory(tmp_path / "data").exists()
    store = RemoteStore([NodeAddress(broker.host, broker.http_port)], NodeLogin("guest", "guest"))
    store.release(store.named(snapshot.id).name)
    assert list_snapshots(tmp_path / "data") == []


def test_columns_are_the_same(shared_broker: Broker) -> None:
    options = parse_options({"path": url(shared_broker)})
    assert columns(options) == columns(parse_options({"path": "/data"}))
