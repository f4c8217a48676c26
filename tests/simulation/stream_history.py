"""Histories of streams in a cluster: writers and readers at all nodes while nodes and links fail.

What must hold, whatever fails:

- S1: an offset is read with one body, by every reader at every node and at any time;
- S2: a reader gets one offset after the other, and leaves out only what was removed at the front;
- S3: what was confirmed is in the stream once, unless it was removed at the front; what was not
  confirmed is there once or not at all; what one writer publishes is in its order;
- S4: at rest every member has the same messages at the same offsets, and knows when they came;
- S5: at rest no client and no node waits, and nothing is left when the streams are deleted.

    python -P tests/simulation/stream_history.py --seed S --count N
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import cluster_checks as checks
from cluster import Cluster, random_delays
from cluster_disk import Disk, backings_on, other_queues_on_disk
from cluster_faults import Faults
from cluster_unconfirmed import Unconfirmed
from pamqp import commands
from pipe import BODY, HEADER, Client, Frame

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.backing.stream_log import StreamLog
from warren.core.field import Field, Table, long, longstr
from warren.core.queues.stream_queue import StreamingQueue
from warren.core.scheduling.waiting import run as run_to_end
from warren.mirror.replication.definition.queue_members import members_of

FAULTY_S = (2.0, 5.0, 9.0)
FAULT_COUNTS = (0, 1, 2, 3, 4, 6)
QUIET_S = 60.0
"""Longer than anybody waits for anything."""

ARRIVED_S = 15.0
"""When a message arrived is known as well as that: it may have waited for another leader."""

FAULTS = (
    "crash",
    "crash_leader",
    "crash_leader",
    "crash_two",
    "crash_all",
    "crash_and_return",
    "crash_twice",
    "break_link",
    "break_link_of_leader",
    "break_link_of_leader",
    "part",
    "flap",
    "isolate",
    "isolate_from_store",
    "isolate_from_all",
    "slow_store",
    "crash_while_store_is_slow",
    "crash_while_synchronising",
    "stop",
    "stop",
    "one_way",
    "freeze",
    "freeze",
    "isolate_from_store_for_long",
    "return_while_store_is_slow",
)

SMALL_SEGMENTS = {"max-length-bytes": 4000, "stream-max-segment-size-bytes": 1500}


class Record:
    """What is known of one stream: what was published to it, and what was read of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.read: dict[int, bytes] = {}
        self.published_at: dict[bytes, float] = {}
        self.confirmed: set[bytes] = set()
        self.is_trimmed = False


class Session:
    """A client with one channel, which writes or reads."""

    def __init__(self, history: StreamHistory, node: str) -> None:
        self.history = history
        self.node = node
        self.client: Client = history.cluster[node].connects()
        self.is_over = False
        history.connected += 1
        self.name = f"{node}{history.connected}"
        self.client.opens_channel(1)
        self._content: tuple[Any, bytes, int, bytes] | None = None

    def poll(self) -> None:
        if self.is_over or self.node in self.history.cluster.frozen:
            return
        for frame in self.client.frames():
            self._take(frame)
        if self.client.pipe.ended:
            self.is_over = True

    def _take(self, frame: Frame) -> None:
        if frame.kind == HEADER:
            assert self._content is not None
            method, _, _, _ = self._content
            left = int.from_bytes(frame.payload[4:12], "big")
            self._content = (method, frame.payload, left, b"")
        elif frame.kind == BODY:
            assert self._content is not None
            method, header, left, body = self._content
            self._content = (method, header, left - len(frame.payload), body + frame.payload)
        else:
            method = frame.method
            if method.name == "Basic.Deliver":
                self._content = (method, b"", -1, b"")
            elif method.name in ("Channel.Close", "Connection.Close"):
                self.history.seen[f"closed: {method.reply_code}"] += 1
                self.ends(method)
            else:
                self.told(method)
        if self._content is not None and not self._content[2]:
            method, header, _, body = self._content
            self._content = None
            self.delivered(method, header, body)

    def told(self, method: Any) -> None:
        """An answer that is not a delivery."""

    def delivered(self, method: Any, header: bytes, body: bytes) -> None:
        raise AssertionError(f"{self.name} reads nothing")

    def ends(self, method: Any) -> None:
        assert method.reply_code in (404, 405, 320, 541), method.reply_text
        self.is_over = True

    def dies_with_node(self) -> None:
        self.is_over = True

    def vanishes(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.client.vanishes()


class Writer(Session):
    """Publishes with confirms, in order, to all streams."""

    def __init__(self, history: StreamHistory, node: str) -> None:
        super().__init__(history, node)
        self.client.selects_confirms()
        self._unsettled: dict[int, tuple[Record, bytes]] = {}
        self._seq = 0

    def publishes(self, record: Record) -> None:
        self._seq += 1
        body = b"%s/%d" % (self.name.encode(), self._seq)
        if self.history.random.random() < 0.05:
            body += bytes(2000)
        record.published_at[body] = self.history.now
        self._unsettled[self._seq] = (record, body)
        self.client.publishes(record.name, body, delivery_mode=self.history.random.choice((1, 2)))

    def told(self, method: Any) -> None:
        if method.name not in ("Basic.Ack", "Basic.Nack"):
            return
        tag = method.delivery_tag
        tags = [one for one in self._unsettled if one <= tag] if method.multiple else [tag]
        for one in tags:
            record, body = self._unsettled.pop(one)
            if method.name == "Basic.Ack":
                record.confirmed.add(body)
                self.history.seen["confirmed"] += 1
            else:
                self.history.seen["refused"] += 1

    @property
    def is_waiting(self) -> bool:
        return not self.is_over and bool(self._unsettled)


class Reader(Session):
    """Reads one stream from some offset on, and acknowledges."""

    def __init__(
        self, history: StreamHistory, node: str, record: Record, offset: Field | None
    ) -> None:
        super().__init__(history, node)
        self.record = record
        self.offset = offset
        self.next: int | None = offset.value if offset is not None and offset.kind == "l" else None
        prefetch = history.random.choice((1, 3, 20, 200))
        self.client.sends(commands.Basic.Qos, prefetch_count=prefetch)
        arguments: Table = {} if offset is None else {"x-stream-offset": offset}
        self.client.sends(commands.Basic.Consume, queue=record.name, arguments=arguments)

    def told(self, method: Any) -> None:
        if method.name == "Basic.Cancel":
            self.history.seen["reader cancelled"] += 1
            self.vanishes()

    def delivered(self, method: Any, header: bytes, body: bytes) -> None:
        history, record = self.history, self.record
        offset = AmqpContentCodec().headers(header)["x-stream-offset"].value
        assert not method.redelivered
        known = record.read.setdefault(offset, body)
        assert known == body, f"S1: {record.name} {offset} is {known[:20]!r} and {body[:20]!r}"
        if self.next is not None and offset != self.next:
            assert record.is_trimmed and offset > self.next, (
                f"S2: {self.name} got {offset} of {record.name} and expected {self.next}"
            )
        self.next = offset + 1
        history.seen["read"] += 1
        self.client.sends(commands.Basic.Ack, delivery_tag=method.delivery_tag)


class NoLedger:
    """Streams need no account of who may have lost what: a majority has everything."""

    def node_died(self, name: str) -> None:
        """Nothing to note."""


class StreamHistory(Faults):
    """One seed, one history."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.seed = seed
        self.seen = seen
        self.random = random = Random(seed)
        self.is_wide = True
        self.ledger = NoLedger()  # type: ignore[assignment]
        # Clients ask for confirms of all publishes, so this hears of nodes only.
        self.unconfirmed = Unconfirmed(self)  # type: ignore[arg-type]
        names = "abcde" if random.random() < 0.15 else "abc"
        disks: dict[str, Disk] = {}
        slow_s = random.choice((0.002, 0.01, 0.2))
        for name in names:
            disks[name] = Disk(lambda: random.uniform(0.0005, slow_s))
        self.cluster = Cluster(
            *names,
            seed=seed,
            delay=random_delays(seed, random.choice((0.002, 0.01, 0.05))),
            new_backing=backings_on(disks),
            card_sync_s=random.choice((0.002, 0.2)),
        )
        self.streams: list[Record] = []
        self.sessions: list[Session] = []  # type: ignore[assignment]
        self.pauses_unless = None
        self.trace = self.connected = 0
        self.lost = set()
        self._blocked = set()
        self._stopping = set()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._ordered = 0

    @property
    def now(self) -> float:
        return self.cluster.clock.now()

    @property
    def live(self) -> list[Session]:  # type: ignore[override]
        return [session for session in self.sessions if not session.is_over]

    def note(self, who: str, what: object) -> None:
        self.trace = zlib.crc32(f"{self.now:.6f} {who} {what!r}".encode(), self.trace)

    # Time

    def after(self, delay_s: float, step: Callable[[], None]) -> None:
        self._ordered += 1
        self._due.append((self.now + delay_s, self._ordered, step))
        self._due.sort(key=lambda due: due[:2])

    def _step(self, seconds: float) -> None:
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            at, _, step = self._due.pop(0)
            self._advance(max(0.0, at - self.now))
            step()
        self._advance(max(0.0, end - self.now))

    def _advance(self, seconds: float) -> None:
        self.cluster.clock.advance(seconds)
        for session in self.sessions:
            session.poll()
        self.sessions = self.live  # type: ignore[assignment]
        checks.check_one_leader(self.cluster)

    def _rest(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self._step(min(0.5, max(end - self.now, 0.001)))

    # The course of it

    def run(self) -> None:
        random = self.random
        self._set_up()
        faulty_s = random.choice(FAULTY_S)
        end = self.now + faulty_s
        for _ in range(random.choice(FAULT_COUNTS)):
            fault = random.choice(FAULTS)
            self.after(random.uniform(0.1, faulty_s), lambda fault=fault: self._hit(fault))
        while self.now < end:
            self._act()
            self._step(random.choice((0.0, 0.001, 0.005, 0.02, 0.1)))
        self._heal()
        self._rest(QUIET_S)
        self._check_rest()
        self._finish()

    def _set_up(self) -> None:
        random = self.random
        self._step(0.5)
        client = self.cluster["a"].connects()
        client.opens_channel(1)
        for number in range(random.randint(1, 2)):
            record = Record(f"s{number}")
            self.streams.append(record)
            arguments: Table = {"x-queue-type": longstr("stream")}
            if random.random() < 0.3:
                arguments["x-initial-cluster-size"] = long(random.choice((1, 2, 3)))
            if random.random() < 0.4:
                record.is_trimmed = True
                policies = self.cluster["a"].node.policies
                policies.set("/", record.name, f"^{record.name}$", SMALL_SEGMENTS, 0, "queues")
            client.sends(
                commands.Queue.Declare, queue=record.name, durable=True, arguments=arguments
            )
        while not all([self._is_known_at(node) for node in self.cluster.nodes]):
            self._step(0.3)
        self._step(random.choice((0.0, 3.0)))
        client.vanishes()

    def _is_known_at(self, node: str) -> bool:
        """Otherwise what is published there goes nowhere."""
        known = self.cluster[node].node.vhosts["/"].queues
        return all([record.name in known for record in self.streams])

    def _act(self) -> None:
        random = self.random
        if not self.cluster.working:
            return
        node = random.choice(self.cluster.working)
        writers = [session for session in self.live if isinstance(session, Writer)]
        readers = [session for session in self.live if isinstance(session, Reader)]
        record = random.choice(self.streams)
        chance = random.random()
        if not writers or (chance < 0.03 and len(writers) < 6):
            self.sessions.append(Writer(self, node))
        elif chance < 0.06 and len(readers) < 8:
            self._reads(node, record)
        elif chance < 0.07 and readers:
            random.choice(readers).vanishes()
        elif chance < 0.075:
            self._change_members(record)
        elif chance < 0.08:
            self._hand_over(record)
        elif chance < 0.9:
            writer = random.choice(writers)
            if writer.node not in self.cluster.frozen:
                for _ in range(random.choice((1, 1, 1, 5, 40))):
                    assert isinstance(writer, Writer)
                    writer.publishes(record)

    def _reads(self, node: str, record: Record) -> None:
        offset = self.random.choice(
            (
                None,
                longstr("first"),
                longstr("next"),
                longstr("last"),
                long(self.random.randint(0, 1 + len(record.read))),
                Field("T", int(self.cluster[node].clock.wall_time()) - 2),
            )
        )
        self.sessions.append(Reader(self, node, record, offset))

    def _change_members(self, record: Record) -> None:
        found = checks.record_of(self.cluster, record.name)
        if found is None:
            return
        self.seen["members changed"] += 1
        node = self.random.choice(self.cluster.working)
        change = self.cluster[node].mirroring.queue_members
        key = ("queue", "/", record.name)
        members = members_of(found)
        others = sorted(set(self.cluster.nodes) - set(members))
        if others and (len(members) < 3 or self.random.random() < 0.4):
            work = change.add(key, found.queue_id, self.random.choice(others))
        else:
            work = change.remove(key, found.queue_id, self.random.choice(members))
        run_to_end(work, lambda result: None)

    def _hand_over(self, record: Record) -> None:
        found = checks.record_of(self.cluster, record.name)
        if found is None or found.leader not in self.cluster.working or not found.in_sync:
            return
        mirroring = self.cluster[found.leader].mirroring
        led = mirroring.led(found.queue_id)
        if led is not None and not led.leader.fenced and not led.queue.is_held:
            self.seen["handed over"] += 1
            mirroring.hand_overs.begin(led, self.random.choice(list(found.in_sync)))

    def _heal(self) -> None:
        self._due.clear()
        self._end_faults()
        for name in self.cluster.nodes:
            self.cluster.restore_store(name)
        self._blocked.clear()
        for name in sorted(self.cluster.dead):
            self.cluster.restart(name)
        self._rest(1.5)
        for one in self.cluster.nodes:
            for other in self.cluster.nodes:
                if one < other:
                    self._link(one, other)

    # What must hold

    def _check_rest(self) -> None:
        waiting = [
            session.name
            for session in self.live
            if isinstance(session, Writer) and session.is_waiting
        ]
        assert not waiting, f"S5: {waiting} wait for confirms"
        for record in self.streams:
            self._check_copies(record)

    def _check_copies(self, record: Record) -> None:
        found = checks.record_of(self.cluster, record.name)
        assert found is not None
        copies = {found.leader, *found.in_sync}
        assert copies == set(members_of(found)), f"S5: not all are in sync: {found}"
        logs = {node: self._log(node, found.queue_id) for node in sorted(copies)}
        contents = {node: self._contents(log) for node, log in logs.items()}
        first = contents[found.leader]
        for node, content in contents.items():
            assert content == first, (
                f"S4: {node} has {len(content)} of {record.name}, {found.leader} {len(first)}: "
                f"{sorted(set(content.items()) ^ set(first.items()))[:4]}"
            )
            log = logs[node]
            assert (log.length, log.first) == (len(content), min(content, default=log.first)), (
                f"S4: {node} counts {log.length} from {log.first}, and has {len(content)}"
            )
            assert log.next_position == logs[found.leader].next_position, f"S4: {node}"
            state = (len(log._uncommitted), log.committed, log.next_position, log.is_in_doubt)
            assert not log._uncommitted and not log.is_in_doubt, f"S5: {node}: {state}, {found}"
            self.seen["copies compared"] += 1
        self._check_messages(record, first, logs)

    def _check_messages(
        self, record: Record, content: dict[int, bytes], logs: dict[str, StreamLog]
    ) -> None:
        for offset, body in record.read.items():
            if offset in content:
                assert content[offset] == body, f"S1: {record.name} {offset}"
            else:
                assert record.is_trimmed and offset < min(content, default=1 << 62), (
                    f"S3: {record.name} has lost {offset}, which was read"
                )
        bodies = Counter(content.values())
        twice = [body for body, count in bodies.items() if count > 1]
        assert not twice, f"S3: {record.name} has {twice[:3]} more than once"
        if not record.is_trimmed:
            lost = record.confirmed - bodies.keys()
            assert not lost, f"S3: {record.name} has lost {sorted(lost)[:3]} of {len(lost)}"
        last: dict[bytes, int] = {}
        for offset in sorted(content):
            writer, _, number = content[offset].rstrip(b"\0").partition(b"/")
            assert int(number) > last.get(writer, 0), f"S3: {content[offset][:20]!r} came late"
            last[writer] = int(number)
        for node, log in logs.items():
            for offset in list(content)[:: max(1, len(content) // 20)]:
                arrived_at = log.arrived_at(offset)
                assert arrived_at is not None
                ahead_s = self.cluster[node].clock.wall_time() - self.now
                late_s = arrived_at - ahead_s - record.published_at[content[offset]]
                assert -2 <= late_s < ARRIVED_S, f"S4: {offset} came {late_s:.1f} s late to {node}"

    def _log(self, node: str, queue_id: int) -> StreamLog:
        copy = self.cluster[node].mirroring.copies.by_queue.get(queue_id)
        if copy is not None:
            backing = copy.mirror.levels[0].backing
            assert isinstance(backing, StreamLog)
            return backing
        queue = self.cluster[node].node.local_queues[queue_id]
        assert isinstance(queue, StreamingQueue)
        return queue.log

    @staticmethod
    def _contents(log: StreamLog) -> dict[int, bytes]:
        return {one.position: one.body for one in log.peek(0, 1 << 30, 1 << 40).messages}

    def _finish(self) -> None:
        """Readers read everything, and the streams are deleted."""
        for session in self.live:
            if isinstance(session, Reader) and self.random.random() < 0.5:
                session.vanishes()
        for record in self.streams:
            for node in self.cluster.alive:
                self._reads_all(node, record)
        admin = Session(self, self.random.choice(self.cluster.alive))
        for record in self.streams:
            admin.client.sends(commands.Queue.Delete, queue=record.name)
        self._rest(5.0)
        for session in list(self.live):
            session.vanishes()
        self._rest(5.0)
        checks.check_nothing_left(self.cluster)
        for name in self.cluster.alive:
            mirroring = self.cluster[name].mirroring
            left = (mirroring._led, mirroring.copies.by_queue, mirroring.from_afar.origins)
            assert not any(left), f"S5: {name} keeps {left}"
            assert not mirroring._leadership.promoted
        self.seen["histories"] += 1

    def _reads_all(self, node: str, record: Record) -> None:
        found = checks.record_of(self.cluster, record.name)
        assert found is not None
        log = self._log(found.leader, found.queue_id)
        reader = Reader(self, node, record, longstr("first"))
        self.sessions.append(reader)
        self._rest(3.0)
        before = None
        while reader.next != before:
            before = reader.next
            for _ in range(20):
                self._step(0.05)
        assert not log.length or reader.next == log.next_position, (
            f"S2: {reader.name} read up to {reader.next} of {log.next_position}"
        )


def run(seed: int, seen: Counter[str]) -> StreamHistory:
    """Raises with the seed in the message."""
    from cluster_history import faults_logged

    with faults_logged() as faults, other_queues_on_disk():
        history = StreamHistory(seed, seen)
        try:
            history.run()
        except Exception as error:
            if faults:
                raise AssertionError(f"seed {seed}: {faults[0]}") from error
            if isinstance(error, AssertionError):
                raise AssertionError(f"seed {seed}: {error}") from error
            raise
        assert not faults, f"seed {seed}: {faults[0]}"
    return history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args()
    logging.getLogger("warren").propagate = False
    seen: Counter[str] = Counter()
    failed = []
    started = time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        try:
            run(seed, seen)
        except Exception:
            failed.append(seed)
            if not options.keep_going:
                raise
            print(seed, traceback.format_exc().strip().splitlines()[-1][:300], flush=True)
    elapsed_s = time.monotonic() - started
    print(f"{options.count} histories from seed {options.seed} in {elapsed_s:.0f} s")
    for name, count in sorted(seen.items()):
        print(f"{count:10} {name}")
    print(f"failed: {len(failed)} {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
