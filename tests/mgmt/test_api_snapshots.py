"""Snapshots over HTTP, requested by a client without Spark."""

from __future__ import annotations

import json
import signal
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pika
import pytest
from api_client import EVERYTHING

from warren import Broker
from warren.mgmt import snapshot_service
from warren.persist.recovery.recovery import STORE_DIRECTORY
from warren.persist.snapshots.pins import PINS_DIRECTORY

SECRET = b"for somebody else"
BODY = b"for the reader"
PATIENCE_S = 30.0


class Got(NamedTuple):
    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        return self.status, self.json["error"]


class Client:
    """With a login, or the token of a snapshot."""

    def __init__(self, broker: Broker, user: str = "", token: str = "") -> None:
        self._address = (broker.host, broker.http_port)
        basic = b64encode(f"{user}:{user}".encode()).decode()
        self._authorization = f"Basic {basic}" if user else f"Bearer {token}"

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Got:
        connection = HTTPConnection(*self._address, timeout=PATIENCE_S)
        try:
            sent = {"Authorization": self._authorization, **headers}
            octets = None if body is None else json.dumps(body).encode()
            connection.request(method, f"/api/snapshots{path}", octets, sent)
            response = connection.getresponse()
            return Got(response.status, response.headers, response.read())
        finally:
            connection.close()

    def read(self, path: str, first: int = 0, last: int = (1 << 40)) -> Got:
        return self.ask("GET", path, Range=f"bytes={first}-{last}")


class Made(NamedTuple):
    id: str
    client: Client
    fields: dict[str, Any]

    def ask(self, method: str, path: str = "", body: Any = None) -> Got:
        return self.client.ask(method, f"/{self.id}{path}", body)

    def read(self, path: str, first: int = 0, last: int = (1 << 40)) -> Got:
        return self.client.read(f"/{self.id}{path}", first, last)

    @property
    def log_name(self) -> str:
        (name,) = [row["name"] for row in self.ask("GET", "/log").json]
        return str(name)


def make(broker: Broker, user: str = "reader", **body: Any) -> Made:
    got = Client(broker, user).ask("POST", "", body)
    assert got.status == 201, got.body
    answer = got.json
    snapshot = answer["snapshot"]
    return Made(snapshot["id"], Client(broker, token=answer["token"]), snapshot)


def start(directory: Path) -> Broker:
    return Broker(data_dir=directory, http_port=0, control_socket=True)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of the test's own, for what changes it or looks at its files."""
    with filled(tmp_path / "data") as running:
        yield running


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Where tests only make and read snapshots; the process that makes them is started once."""
    with filled(tmp_path_factory.mktemp("shared") / "data") as running:
        yield running


@contextmanager
def filled(directory: Path) -> Iterator[Broker]:
    """With a queue that `reader` may read, and one it may not; `other` may read both."""
    with start(directory) as running:
        for user in ("reader", "other"):
            running.add_user(user, user, ("management",))
        running.set_permissions("reader", "/", configure="", write="", read="open")
        running.set_permissions("other", "/")
        publish(running, "open", BODY)
        publish(running, "closed", SECRET)
        publish(running, "open", BODY)
        yield running


def publish(broker: Broker, queue: str, body: bytes) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    connection.close()


def test_a_snapshot_has_the_queues_that_its_user_may_read(shared_broker: Broker) -> None:
    made = make(shared_broker)
    assert [(one["name"], one["rows"]) for one in made.fields["queues"]] == [("open", 2)]
    assert {one["name"] for one in make(shared_broker, "other").fields["queues"]} == {
        "open",
        "closed",
    }


def test_octets_of_other_queues_are_zeroes(shared_broker: Broker) -> None:
    made = make(shared_broker)
    log = made.read(f"/log/{made.log_name}")
    assert log.status == 206
    assert log.body.count(BODY) == 2 and SECRET not in log.body and b"closed" not in log.body
    all_of_it = make(shared_broker, "other")
    log = all_of_it.read(f"/log/{all_of_it.log_name}")
    assert log.body.count(BODY) == 2 and SECRET in log.body


def test_pieces_join_to_the_file_and_have_checksums(shared_broker: Broker) -> None:
    made = make(shared_broker)
    path = f"/log/{made.log_name}"
    whole = made.read(path)
    size = len(whole.body)
    assert whole.headers["Content-Range"] == f"bytes 0-{size - 1}/{size}"
    parts = [made.read(path, first, first + 99) for first in range(0, size, 100)]
    assert b"".join(part.body for part in parts) == whole.body
    for part in (whole, *parts):
        assert int(part.headers["Warren-Crc32"], 16) == crc32(part.body)
        assert "Content-Encoding" not in part.headers


def test_an_answer_has_a_piece_at_most(
    shared_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(shared_broker)
    path = f"/log/{made.log_name}"
    monkeypatch.setattr(snapshot_service, "PIECE_BYTES_MAX", 50)
    got = made.read(path)
    assert len(got.body) == 50 and got.headers["Content-Range"].startswith("bytes 0-49/")


def test_files_are_read_by_other_threads_than_that_of_the_loop(
    shared_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: set[int] = set()
    loops: set[int] = set()
    read, find = snapshot_service._read_piece, snapshot_service.SnapshotService.find

    def reads(*arguments: Any) -> snapshot_service.ServedPiece:
        readers.add(threading.get_ident())
        return read(*arguments)

    def finds(*arguments: Any, **more: Any) -> Any:
        loops.add(threading.get_ident())
        return find(*arguments, **more)

    monkeypatch.setattr(snapshot_service, "_read_piece", reads)
    monkeypatch.setattr(snapshot_service.SnapshotService, "find", finds)
    made = make(shared_broker)
    made.read(f"/log/{made.log_name}")
    assert readers and len(loops) == 1 and not readers & loops


def test_entries_are_read_as_files_are(shared_broker: Broker) -> None:
    made = make(shared_broker)
    (queue,) = made.fields["queues"]
    got = made.read(f"/queues/{queue['queue_id']}")
    assert got.status == 206 and got.body.startswith(b"\x93NUMPY")
    assert made.read("/queues/0000000000000001").error == (404, "FileNotFound")


@pytest.mark.parametrize("path", ["/queues/..%2Faccess.json", "/log/..%2Fsnapshot.json", "/log/x"])
def test_nothing_but_its_files_can_be_read(shared_broker: Broker, path: str) -> None:
    assert make(shared_broker).read(path).error == (400, "OptionRefused")


def test_a_range_beyond_the_end_is_refused(shared_broker: Broker) -> None:
    made = make(shared_broker)
    path = f"/log/{made.log_name}"
    size = len(made.read(path).body)
    beyond = made.read(path, size, size + 9)
    assert beyond.status == 416 and beyond.headers["Content-Range"] == f"bytes */{size}"
    assert len(made.read(path, size - 5, size + 9).body) == 5
    assert made.ask("GET", path).status == 400


def test_only_the_token_of_the_snapshot_opens_it(shared_broker: Broker) -> None:
    made, other = make(shared_broker), make(shared_broker, "other")
    strangers = [
        Client(shared_broker, token="x"),
        Client(shared_broker, token=""),
        other.client,
        Client(shared_broker, "reader"),
        Client(shared_broker, "guest"),
    ]
    for stranger in strangers:
        for method, path in (("GET", ""), ("GET", "/log"), ("DELETE", ""), ("PUT", "")):
            assert stranger.ask(method, f"/{made.id}{path}").status == 401
    assert made.ask("GET").status == 200


def test_the_token_is_told_again_to_the_user_it_was_made_for(shared_broker: Broker) -> None:
    made = make(shared_broker)
    path = f"/{made.id}/token"
    token = Client(shared_broker, "reader").ask("POST", path).json["token"]
    assert Client(shared_broker, token=token).ask("GET", f"/{made.id}").status == 200
    assert Client(shared_broker, "other").ask("POST", path).status == 401
    assert made.client.ask("POST", path).status == 401


def test_who_may_not_read_a_queue_any_more_may_not_go_on(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_service, "CHECKED_S", 0.0)
    made = make(broker)
    path = f"/log/{made.log_name}"
    broker.set_permissions("reader", "/", configure="", write="", read="^$")
    assert made.read(path).status == 401
    broker.set_permissions("reader", "/", **EVERYTHING)
    assert made.read(path).status == 206


def test_a_queue_that_may_not_be_read_is_refused_by_name(shared_broker: Broker) -> None:
    reader = Client(shared_broker, "reader")
    assert reader.ask("POST", "", {"vhost": "/", "queues": ["closed"]}).status == 401
    assert reader.ask("POST", "", {"queues": ["closed"]}).error == (404, "QueueUnknown")
    assert reader.ask("POST", "", {"queues": ["ope"]}).error == (404, "QueueUnknown")
    assert make(shared_broker, pattern="o.*").fields["queues"][0]["name"] == "open"
    assert reader.ask("POST", "", {"pattern": "("}).error == (400, "OptionRefused")


def test_a_snapshot_is_released(broker: Broker, tmp_path: Path) -> None:
    made = make(broker)
    path = f"/log/{made.log_name}"
    assert made.ask("DELETE").status == 204
    assert made.read(path).error == (410, "SnapshotGone")
    pins = tmp_path / "data" / STORE_DIRECTORY / PINS_DIRECTORY
    assert not (pins / made.id).exists()


def test_a_lease_ends_and_is_renewed(broker: Broker) -> None:
    short, kept = make(broker, lease_s=1), make(broker, lease_s=60)
    deadline = time.monotonic() + PATIENCE_S
    while short.ask("GET").status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert short.ask("GET").error == (410, "SnapshotGone")
    assert kept.ask("PUT", body={"lease_s": 1000}).json["expires_us"] > (time.time() + 900) * 1e6
    assert kept.ask("PUT", body={"lease_s": 0}).status == 400


def test_a_node_that_restarts_goes_on_serving_what_it_made(tmp_path: Path) -> None:
    with start(tmp_path / "data") as first:
        publish(first, "open", BODY)
        made = make(first, "guest")
        token = Client(first, "guest").ask("POST", f"/{made.id}/token").json["token"]
        before = made.read(f"/log/{made.log_name}").body
    with start(tmp_path / "data") as second:
        again = Made(made.id, Client(second, token=token), made.fields)
        assert again.read(f"/log/{again.log_name}").body == before
        assert again.ask("DELETE").status == 204


def test_a_file_that_was_cut_is_as_long_as_it_is(broker: Broker, tmp_path: Path) -> None:
    made = make(broker)
    name = made.log_name
    pins = tmp_path / "data" / STORE_DIRECTORY / PINS_DIRECTORY
    log = pins / made.id / "log" / name
    octets = log.read_bytes()
    log.unlink()
    log.write_bytes(octets[:70])
    assert len(made.read(f"/log/{name}").body) == 70
    log.unlink()
    assert made.read(f"/log/{name}").error == (404, "FileNotFound")


def test_all_readers_together_stay_below_the_rate(tmp_path: Path) -> None:
    """What was read must be paid for by waiting: the pace says how long, and each read asks it."""
    with start(tmp_path / "data") as broker:
        service = broker_service(broker)
        publish(broker, "open", bytes(100_000))
        made = make(broker, "guest")
        path = f"/log/{made.log_name}"
        before = service._pace.wait_s(0.0)
        size = len(made.read(path).body)
        after = service._pace.wait_s(0.0)
        assert size > 100_000 and after > before


def broker_service(broker: Broker) -> snapshot_service.SnapshotService:
    management = broker._running.management
    assert management is not None and management.managed.snapshots is not None
    return management.managed.snapshots


def cursor(broker: Broker, user: str, action: str, holder: str, **more: Any) -> Got:
    body = {"action": action, "holder": holder, **more}
    return Client(broker, user).ask("POST", "/cursors/archive", body)


def test_a_cursor_has_one_holder(broker: Broker) -> None:
    assert cursor(broker, "reader", "take_cursor", "a").status == 200
    assert cursor(broker, "reader", "take_cursor", "a").status == 200
    assert cursor(broker, "reader", "take_cursor", "b").error == (409, "CursorInUse")
    assert cursor(broker, "reader", "leave_cursor", "b").status == 200
    assert cursor(broker, "reader", "take_cursor", "b").error == (409, "CursorInUse")
    assert cursor(broker, "reader", "leave_cursor", "a").status == 200
    assert cursor(broker, "other", "take_cursor", "c").error == (409, "CursorInUse")
    assert cursor(broker, "reader", "take_cursor", "b").status == 200


def test_a_cursor_keeps_snapshots(broker: Broker) -> None:
    assert cursor(broker, "reader", "take_cursor", "a").status == 200
    first = make(broker, cursor="archive", holder="a", lease_s=0.01)
    second = make(broker, cursor="archive", holder="a", lease_s=0.01)
    assert cursor(broker, "reader", "release_others", "a", needed=[second.id]).status == 200
    assert first.ask("GET").status == 410 and second.ask("GET").status == 200
    refused = Client(broker, "reader").ask("POST", "", {"cursor": "archive", "holder": "b"})
    assert refused.error == (409, "CursorInUse")


def test_the_process_that_makes_snapshots_may_end_at_any_time(broker: Broker) -> None:
    make(broker)
    process = broker_service(broker)._maker._process
    assert process is not None
    process.kill()
    process.wait()
    assert make(broker).ask("GET").status == 200


def test_a_node_that_stops_waits_for_no_snapshot(broker: Broker) -> None:
    """A thread of it waits for the answer, and would keep the process alive."""
    make(broker)
    maker = broker_service(broker)._maker
    process = maker._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    asking = threading.Thread(target=maker.ask, args=({"no": "question"},))
    asking.start()
    maker.end()
    asking.join(PATIENCE_S)
    assert not asking.is_alive()


def test_a_question_that_nobody_reads_does_not_stop_the_end(broker: Broker) -> None:
    make(broker)
    maker = broker_service(broker)._maker
    process = maker._process
    assert process is not None and process.stdin is not None and process.stdout is not None
    process.stdin.write(b"half a question")
    maker.end()
    assert process.stdin.closed and process.stdout.closed
    assert make(broker).ask("GET").status == 200


def test_where_snapshots_are_made_is_told(shared_broker: Broker) -> None:
    (row,) = Client(shared_broker, "reader").ask("GET", "/nodes").json
    assert (row["protocol"], row["port"]) == ("http", shared_broker.http_port)
