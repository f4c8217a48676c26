"""`warren perf` as a user runs it, against a small broker in a thread of the test.

The broker here knows the default exchange only. It speaks through warren.amqp's codecs, so what
it cannot decode fails the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result
from pamqp import commands

from warren.amqp.frames import HEAD, METHOD, content_frames, frame
from warren.amqp.methods import Method, decode_method, encode_method, make
from warren.core.field import long
from warren.mgmt.perf.command import perf

PASSWORD = "s@fe"
FRAME_MAX = 4096


class FakeBroker:
    """Queues and what was seen. `close_channel_after` publishes it closes the channel."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.queues: dict[str, deque[tuple[bytes, bytes]]] = {}
        self.consumers: dict[str, list[Peer]] = defaultdict(list)
        self.arguments: dict[str, Any] = {}
        self.deleted: list[str] = []
        self.acked = 0
        self.most_unconfirmed = 0
        self.close_channel_after: int | None = None
        self._context = context
        self._loop = asyncio.new_event_loop()
        self.peers: set[Peer] = set()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> FakeBroker:
        listening = threading.Event()
        self._loop.call_soon(lambda: self._loop.create_task(self._listen(listening)))
        self._thread.start()
        assert listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"amqp://guest:s%40fe@127.0.0.1:{self.port}/%2F"

    def deliver(self, queue: str) -> None:
        """Whatever waits in the queue, to the first consumer."""
        for consumer in self.consumers[queue]:
            while self.queues[queue]:
                consumer.deliver(queue, *self.queues[queue].popleft())

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    async def _listen(self, listening: threading.Event) -> None:
        self._server = await self._loop.create_server(
            lambda: Peer(self), "127.0.0.1", 0, ssl=self._context
        )
        self.port = self._server.sockets[0].getsockname()[1]
        listening.set()

    def _end(self) -> None:
        self._server.close()
        for peer in self.peers:
            peer.transport.abort()
        # The loop tells the sockets of their end in its next turns.
        self._loop.call_soon(self._loop.call_soon, self._loop.stop)


class Peer(asyncio.Protocol):
    """One connection of a client, and its channel."""

    transport: asyncio.Transport

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._data = b""
        self._publish: commands.Basic.Publish | None = None
        self._header = b""
        self._body = b""
        self._confirms = False
        self._published = 0
        self._confirmed = 0
        self._tag = 0
        self._no_ack = False
        self._unacked: dict[int, tuple[str, bytes, bytes]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._broker.peers.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        for consumers in self._broker.consumers.values():
            if self in consumers:
                consumers.remove(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._data.startswith(b"AMQP"):
            if len(self._data) < 8:
                return
            self._data = self._data[8:]
            self.send(make(commands.Connection.Start, mechanisms=b"PLAIN", locales=b"en_US"), 0)
        while len(self._data) >= 8:
            kind, channel, size = HEAD.unpack_from(self._data)
            if len(self._data) < size + 8:
                break
            payload, self._data = self._data[7 : size + 7], self._data[size + 8 :]
            if kind == METHOD:
                self._take(decode_method(payload), channel)
            else:
                self._take_content(payload)
        self._confirm()

    def send(self, method: Method, channel: int = 1) -> None:
        self.transport.write(frame(METHOD, channel, encode_method(method)))

    def deliver(self, queue: str, header: bytes, body: bytes) -> None:
        self._tag += 1
        if not self._no_ack:
            self._unacked[self._tag] = (queue, header, body)
        self.send(make(commands.Basic.Deliver, consumer_tag="c", delivery_tag=self._tag))
        self.transport.writelines(content_frames(1, header, body, FRAME_MAX))

    def _take(self, method: Any, channel: int) -> None:
        answer = getattr(self, "_on_" + method.name.lower().replace(".", "_"))(method)
        if answer is not None:
            self.send(answer, channel)

    def _on_connection_startok(self, method: commands.Connection.StartOk) -> Method:
        response: object = method.response
        if response != f"\0guest\0{PASSWORD}".encode():
            return self._close_connection(403, "ACCESS_REFUSED - Login was refused")
        return make(commands.Connection.Tune, channel_max=10, frame_max=FRAME_MAX)

    def _on_connection_tuneok(self, method: commands.Connection.TuneOk) -> None:
        assert method.frame_max == FRAME_MAX

    def _on_connection_open(self, method: commands.Connection.Open) -> Method:
        if method.virtual_host != "/":
            return self._close_connection(530, f"NOT_ALLOWED - vhost {method.virtual_host}")
        return make(commands.Connection.OpenOk)

    def _on_connection_close(self, method: Method) -> Method:
        return make(commands.Connection.CloseOk)

    def _on_connection_closeok(self, method: Method) -> None:
        self.transport.close()

    def _on_channel_open(self, method: Method) -> Method:
        return make(commands.Channel.OpenOk)

    def _on_channel_closeok(self, method: Method) -> None:
        pass

    def _on_queue_declare(self, method: commands.Queue.Declare) -> Method:
        name = method.queue
        if method.passive and name not in self._broker.queues:
            return self._close_channel(404, f"NOT_FOUND - no queue '{name}'")
        if not method.passive:
            self._broker.queues.setdefault(name, deque())
            self._broker.arguments[name] = method.arguments
        return make(commands.Queue.DeclareOk, queue=name)

    def _on_queue_delete(self, method: commands.Queue.Delete) -> Method:
        del self._broker.queues[method.queue]
        self._broker.deleted.append(method.queue)
        return make(commands.Queue.DeleteOk)

    def _on_confirm_select(self, method: Method) -> Method:
        self._confirms = True
        return make(commands.Confirm.SelectOk)

    def _on_basic_qos(self, method: Method) -> Method:
        self._confirm()
        return make(commands.Basic.QosOk)

    def _on_basic_consume(self, method: commands.Basic.Consume) -> Method | None:
        if method.queue not in self._broker.queues:
            return self._close_channel(404, f"NOT_FOUND - no queue '{method.queue}'")
        self._no_ack = method.no_ack
        self.send(make(commands.Basic.ConsumeOk, consumer_tag="c"))
        self._broker.consumers[method.queue].append(self)
        self._broker.deliver(method.queue)
        return None

    def _on_basic_publish(self, method: commands.Basic.Publish) -> None:
        self._publish = method
        self._header = b""

    def _on_basic_ack(self, method: commands.Basic.Ack) -> None:
        for tag in self._settled(method.delivery_tag, method.multiple):
            del self._unacked[tag]
            self._broker.acked += 1

    def _on_basic_nack(self, method: commands.Basic.Nack) -> None:
        assert method.requeue
        for tag in self._settled(method.delivery_tag, method.multiple):
            queue, header, body = self._unacked.pop(tag)
            self._broker.queues[queue].append((header, body))
            self._broker.deliver(queue)

    def _settled(self, tag: int | None, multiple: bool) -> list[int]:
        """A tag that is not unacked fails in the caller."""
        assert tag is not None
        return [each for each in self._unacked if each <= tag] if multiple else [tag]

    def _take_content(self, payload: bytes) -> None:
        if not self._header:
            self._header, self._body = payload, b""
        else:
            self._body += payload
        if len(self._body) < int.from_bytes(self._header[4:12], "big"):
            return
        publish, self._publish = self._publish, None
        assert publish is not None
        self._published += 1
        if self._published == self._broker.close_channel_after:
            self._confirms = False
            self.send(self._close_channel(406, "PRECONDITION_FAILED - enough"))
        elif publish.routing_key in self._broker.queues:
            self._broker.queues[publish.routing_key].append((self._header, self._body))
            self._broker.deliver(publish.routing_key)
        elif publish.mandatory:
            self.send(make(commands.Basic.Return, reply_code=312, reply_text="NO_ROUTE"))
            self.transport.writelines(content_frames(1, self._header, self._body, FRAME_MAX))

    def _confirm(self) -> None:
        """All that one read brought: the widest the client's window can be seen."""
        if not self._confirms or self._published == self._confirmed:
            return
        unconfirmed = self._published - self._confirmed
        self._broker.most_unconfirmed = max(self._broker.most_unconfirmed, unconfirmed)
        self._confirmed = self._published
        self.send(make(commands.Basic.Ack, delivery_tag=self._published, multiple=True))

    def _close_channel(self, code: int, text: str) -> Method:
        return make(commands.Channel.Close, reply_code=code, reply_text=text)

    def _close_connection(self, code: int, text: str) -> Method:
        return make(commands.Connection.Close, reply_code=code, reply_text=text)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


Run = Callable[..., Result]


@pytest.fixture
def run(broker: FakeBroker) -> Run:
    """The command against the broker."""
    return lambda *arguments: CliRunner().invoke(perf, [broker.url, *arguments])


def json_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


# Runs


def test_all_messages_sent_are_received_acked_and_measured(broker: FakeBroker, run: Run) -> None:
    report = json_of(run("-n", "500", "--ack-every", "7", "--prefetch", "50", "--json"))
    assert (report["outcome"], report["error"]) == ("completed", None)
    assert (report["sent"], report["received"]) == (500, 500)
    assert (report["sent_bytes"], report["received_bytes"]) == (50_000, 50_000)
    assert report["sent_per_s"] > 0
    assert report["received_per_s"] > 0
    assert report["consume_latency_ms"]["count"] == 500
    assert report["confirm_latency_ms"] is None
    assert broker.acked == 500


def test_the_queues_of_a_run_are_deleted_after_it(broker: FakeBroker, run: Run) -> None:
    json_of(run("-n", "10", "--queues", "3", "--queue-arg", "x-max-length=99", "--json"))
    assert len(broker.deleted) == 3
    assert broker.queues == {}
    assert list(broker.arguments.values()) == [{"x-max-length": long(99)}] * 3


def test_a_queue_that_was_there_before_stays(broker: FakeBroker, run: Run) -> None:
    broker.queues["mine"] = deque()
    json_of(run("-n", "10", "--queue", "mine", "--json"))
    assert list(broker.queues) == ["mine"]
    assert broker.deleted == []


def test_a_new_queue_with_a_given_name_is_deleted_unless_kept(broker: FakeBroker, run: Run) -> None:
    json_of(run("-n", "10", "-c", "0", "--queue", "kept", "--keep", "--json"))
    assert len(broker.queues["kept"]) == 10
    report = json_of(run("-n", "10", "-p", "0", "--queue", "kept", "--predeclared", "--json"))
    assert (report["sent"], report["received"]) == (0, 10)
    json_of(run("-n", "10", "--queue", "new", "--json"))
    assert broker.deleted == ["new"]


def test_confirms_stay_within_their_window(broker: FakeBroker, run: Run) -> None:
    report = json_of(run("-n", "300", "-c", "0", "--confirm", "20", "--json"))
    assert report["confirmed"] == report["sent"] == 300
    assert report["confirm_latency_ms"]["count"] == 300
    assert 0 < broker.most_unconfirmed <= 20


def test_shared_work_over_processes_and_connections_adds_up(run: Run) -> None:
    report = json_of(
        run(
            *("-n", "1001", "-p", "3", "-c", "2", "--queues", "2", "--processes", "2"),
            *("--producer-connections", "2", "--size", "0,12,9000", "--auto-ack", "--json"),
        )
    )
    assert (report["sent"], report["received"]) == (1001, 1001)


def test_requeued_messages_come_again(broker: FakeBroker, run: Run) -> None:
    report = json_of(run("-n", "100", "--requeue-every", "10", "--ack-every", "4", "--json"))
    assert report["requeued"] == 11
    assert report["received"] == 111
    assert broker.acked == 100


def test_unroutable_messages_are_counted(run: Run) -> None:
    report = json_of(
        run("-n", "40", "-c", "0", "--mandatory", "--routing-key", "nowhere", "--json")
    )
    assert (report["sent"], report["returned"]) == (40, 40)


def test_consumers_can_wait_until_all_is_published(run: Run) -> None:
    report = json_of(run("-n", "50", "--consume-after", "published", "--json"))
    assert report["received"] == 50


def test_a_run_by_time_ends_by_itself(run: Run) -> None:
    report = json_of(run("--time", "0.3", "--rate", "100", "--json"))
    assert 0 < report["sent"] <= 100
    assert report["elapsed_s"] >= 0.3


def test_the_summary_is_in_words(run: Run) -> None:
    result = run("-n", "20", "--confirm", "5")
    assert result.exit_code == 0, result.output
    assert "Sent 20 messages in" in result.stdout
    assert "Confirmed: all of them." in result.stdout
    assert "Received 20 messages in" in result.stdout
    assert "Milliseconds from sending to receiving: min " in result.stdout


def test_progress_goes_to_stderr_and_json_to_stdout_and_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result = run("-t", "1.3", "--rate", "50", "--progress", "--json", "--json-file", str(file))
    report = json_of(result)
    assert json.loads(file.read_text(encoding="utf-8")) == report
    assert "sent" in result.stderr
    assert "received" in result.stderr
    assert PASSWORD not in result.output


def test_ctrl_c_ends_the_run_with_its_summary_so_far(broker: FakeBroker) -> None:
    command = "from warren.mgmt.perf.command import perf; perf()"
    options = [broker.url, "--time", "0", "--rate", "200", "--progress"]
    with subprocess.Popen(
        [sys.executable, "-P", "-c", command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert "sent" in process.stderr.readline()
        # A terminal interrupts the workers, too.
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert output.startswith("Interrupted; this is what happened so far.\nSent ")
    assert "Traceback" not in errors
    assert broker.queues == {}


def test_amqps_checks_the_certificate_unless_told_not_to(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with FakeBroker(context) as broker:
        url = broker.url.replace("amqp:", "amqps:").replace("127.0.0.1", "localhost")
        for trust in (["--ca-file", str(tmp_path / "ca.pem")], ["--insecure"]):
            report = json_of(CliRunner().invoke(perf, [url, "-n", "20", "--json", *trust]))
            assert report["received"] == 20
        text = error_of(CliRunner().invoke(perf, [url, "-n", "20"]))
    assert "its certificate is refused: " in text


# Errors


def error_of(result: Result) -> str:
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    return result.stderr


def test_a_broker_that_is_not_there_is_named() -> None:
    with FakeBroker() as broker:
        port = broker.port
    text = error_of(CliRunner().invoke(perf, [f"amqp://127.0.0.1:{port}", "-n", "1"]))
    assert text == f"error: cannot reach a broker at 127.0.0.1:{port}: connection refused\n"


def test_a_refused_login_is_told_with_the_brokers_words(broker: FakeBroker) -> None:
    url = f"amqp://guest:wrong@127.0.0.1:{broker.port}"
    text = error_of(CliRunner().invoke(perf, [url, "-n", "1"]))
    assert "login as 'guest' refused" in text
    assert "403 ACCESS_REFUSED - Login was refused" in text
    assert "wrong" not in text


def test_an_unknown_vhost_is_told_with_the_brokers_words(broker: FakeBroker) -> None:
    text = error_of(CliRunner().invoke(perf, [broker.url.replace("%2F", "none"), "-n", "1"]))
    assert "vhost 'none' cannot be used" in text
    assert "530 NOT_ALLOWED - vhost none" in text


def test_a_channel_closed_by_the_broker_ends_the_run_with_its_words(run: Run) -> None:
    text = error_of(run("--predeclared", "--queue", "missing"))
    assert "the broker closed the channel: 404 NOT_FOUND - no queue 'missing'" in text


def test_a_run_that_fails_halfway_reports_what_it_did(broker: FakeBroker, run: Run) -> None:
    broker.close_channel_after = 30
    result = run("-n", "100", "--confirm", "10", "--json")
    assert "406 PRECONDITION_FAILED - enough" in error_of(result)
    report = json.loads(result.stdout)
    assert report["outcome"] == "failed"
    assert "PRECONDITION_FAILED" in report["error"]
    assert 20 <= report["confirmed"] < 30
    assert broker.queues == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["http://localhost"],
        ["--producers", "-1"],
        ["--producers", "0", "--consumers", "0"],
        ["--size", "large"],
        ["--header", "novalue"],
        ["--consume-after", "never"],
        ["--predeclared"],
        ["--auto-ack", "--prefetch", "5"],
    ],
)
def test_wrong_arguments_exit_with_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(perf, arguments)
    assert result.exit_code == 2, result.output
    assert "Error: " in result.stderr
