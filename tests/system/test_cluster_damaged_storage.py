"""A leader whose log is damaged on disk: clients get the messages that its mirrors have."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree

import pytest
from running_cluster import ClusterProcess, RunningCluster, publish, take, wait_until

from warren.persist.layout.format import decode_checkpoint

COUNT = 200
DAMAGED = (20, 21, 150, 199)


def flip_in_log(data_directory: Path, body: bytes) -> int:
    """Flip a bit of the body wherever the log has it; returns in how many places."""
    places = 0
    for path in (data_directory / "store" / "log").iterdir():
        octets = bytearray(path.read_bytes())
        for found in re.finditer(re.escape(body), octets):
            with path.open("r+b") as file:
                file.seek(found.end() - 3)
                file.write(bytes([octets[found.end() - 3] ^ 0x10]))
            places += 1
    return places


def cut_log_at(data_directory: Path, body: bytes) -> None:
    """End the log in the middle of a body, as if the power had gone before the rest was synced."""
    for path in (data_directory / "store" / "log").iterdir():
        at = path.read_bytes().find(body)
        if at >= 0:
            with path.open("r+b") as file:
                file.truncate(at + len(body) // 2)
            return
    raise AssertionError("the log does not have it")


def checkpoint_of(node: ClusterProcess) -> int:
    """The place in the log from which on a start of the node reads it."""
    return decode_checkpoint((node.data_directory / "store" / "checkpoint").read_bytes()).place


@pytest.mark.parametrize("carrier", ["gm", "log"])
def test_damaged_messages_come_from_a_mirror(running_cluster: RunningCluster, carrier: str) -> None:
    a, b = running_cluster["a"], running_cluster["b"]
    bodies = [b"<%s %05d>" % (carrier.encode(), at) + b"x" * 3000 for at in range(COUNT)]
    definition = {"ha-mode": "all", "ha-sync-mode": "automatic", "ha-replication": carrier}
    a.changes("policies", "/", "d", body={"pattern": "^damaged$", "definition": definition})
    client = a.connect()
    client.channel().queue_declare("damaged", durable=True, arguments={"x-queue-mode": "lazy"})
    wait_until(lambda: len(a.in_sync("damaged")) == 2)
    publisher = client.channel()
    publisher.confirm_delivery()
    publish(publisher, "damaged", bodies)
    assert [flip_in_log(a.data_directory, bodies[number]) for number in DAMAGED] == [1] * 4

    channel = b.connect().channel()
    # Messages that are on their way when the queue moves come again, marked.
    seen: set[bytes] = set()
    for method, _, body in channel.consume("damaged", inactivity_timeout=20):
        assert body is not None, set(bodies) - seen
        assert method.redelivered or body not in seen
        seen.add(body)
        channel.basic_ack(method.delivery_tag)
        if len(seen) == len(bodies):
            break
    channel.cancel()
    assert seen == set(bodies)
    assert a.log.count("message_lost") >= 1
    wait_until(lambda: b.queue("damaged")["node"] != a.name)
    wait_until(lambda: a.name in b.queue("damaged")["synchronised_slave_nodes"])


def test_a_reader_of_a_stream_misses_no_message_that_is_damaged(
    running_cluster: RunningCluster,
) -> None:
    a, b = running_cluster["a"], running_cluster["b"]
    bodies = [b"<stream %05d>" % at + b"x" * 3000 for at in range(COUNT)]
    channel = a.connect().channel()
    channel.queue_declare("read", durable=True, arguments={"x-queue-type": "stream"})
    wait_until(lambda: a.log.count("mirror_in_sync queue=read ") == 2)
    channel.confirm_delivery()
    publish(channel, "read", bodies)
    assert [flip_in_log(a.data_directory, bodies[number]) for number in DAMAGED] == [1] * 4

    reader = b.connect().channel()
    reader.basic_qos(prefetch_count=10)
    read: list[bytes] = []
    first = {"x-stream-offset": "first"}
    for method, _, body in reader.consume("read", arguments=first, inactivity_timeout=20):
        assert body is not None, f"{len(read)} were read"
        read.append(body)
        reader.basic_ack(method.delivery_tag)
        if len(read) == COUNT:
            break
    reader.cancel()
    assert read == bodies
    assert a.log.count("message_lost") and b.queue("read")["node"] != a.name


def publish_to_all_kinds(running_cluster: RunningCluster, what: str) -> dict[str, list[bytes]]:
    """Messages for three queues that node a leads, and others mirror; by the queues' names."""
    a = running_cluster["a"]
    channel = a.connect().channel()
    channel.confirm_delivery()
    published = {}
    for kind in ("gm", "log", "quorum"):
        name = f"{kind} {what}"
        if kind == "quorum":
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
            wait_until(lambda name=name: len(a.queue(name).get("online", ())) == 3)
        else:
            definition = {"ha-mode": "all", "ha-sync-mode": "automatic", "ha-replication": kind}
            policy = {"pattern": f"^{name}$", "definition": definition}
            a.changes("policies", "/", name, body=policy)
            channel.queue_declare(name, durable=True)
            wait_until(lambda name=name: len(a.in_sync(name)) == 2)
        published[name] = [b"<%s %05d>" % (name.encode(), at) for at in range(COUNT)]
        publish(channel, name, published[name])
    return published


def has_all_copies(leader: ClusterProcess, name: str) -> bool:
    row = leader.queue(name)
    copies = row.get("online", ()) if row["type"] == "quorum" else ["", *leader.in_sync(name)]
    return row["node"] == leader.name and len(copies) == 3


def kill_at_once(*nodes: ClusterProcess) -> None:
    """No node may notice that another one is gone."""
    for node in nodes:
        node.stand_still()
    for node in nodes:
        node.kill()


def test_damage_that_is_found_when_all_nodes_are_started_costs_no_message(
    running_cluster: RunningCluster,
) -> None:
    a, b, c = (running_cluster[node] for node in "abc")
    published = publish_to_all_kinds(running_cluster, "at start")
    kill_at_once(a, b, c)
    for bodies in published.values():
        assert [flip_in_log(a.data_directory, bodies[number]) for number in DAMAGED] == [1] * 4
    place = checkpoint_of(a)
    for node in (a, b, c):
        node.launch()
    for node in (a, b, c):
        node.wait_until_ready()

    for name, bodies in published.items():
        b.until_queue(name, lambda row: row.get("messages") == COUNT)
        assert take(b.connect().channel(), name, COUNT) == bodies
        assert b.queue(name)["node"] != a.name
    assert a.log.count("copies_may_lack_messages") == 1
    # The next start does not find the same damage again.
    wait_until(lambda: checkpoint_of(a) > place)
    damaged = a.log.count("journal_damaged")
    a.kill()
    a.start()
    assert a.log.count("journal_damaged") == damaged > 0


def test_what_a_leader_has_lost_by_damage_is_not_dropped_by_mirrors_that_come_when_it_leads_on(
    running_cluster: RunningCluster,
) -> None:
    a, b, c = (running_cluster[node] for node in "abc")
    published = publish_to_all_kinds(running_cluster, "late")
    kill_at_once(a, b, c)
    for bodies in published.values():
        assert [flip_in_log(a.data_directory, bodies[number]) for number in DAMAGED] == [1] * 4
    a.start()
    a.until_queue("quorum late", lambda row: "waits_for" in row)
    row = a.queue("quorum late")
    assert row["state"] == "down"
    assert row["waits_for"].startswith(f"nodes that may have what the damaged disk of {a.name}")
    lost, quorum = [], published.pop("quorum late")
    for name, bodies in published.items():
        left = [body for number, body in enumerate(bodies) if number not in DAMAGED]
        assert take(a.connect().channel(), name, len(left)) == left
        lost += [bodies[number] for number in DAMAGED]

    for node in (b, c):
        node.start()
    b.until_queue("quorum late", lambda row: row.get("messages") == COUNT)
    assert take(b.connect().channel(), "quorum late", COUNT) == quorum
    a.until_queue("lost+found", lambda row: row.get("messages") == len(lost))
    assert sorted(take(a.connect().channel(), "lost+found", len(lost))) == sorted(lost)


def test_what_a_leader_has_lost_is_not_dropped_by_mirrors_that_had_left_before(
    running_cluster: RunningCluster,
) -> None:
    """The leader has gone on without them, and is killed and damaged then."""
    a, b, c = (running_cluster[node] for node in "abc")
    published = publish_to_all_kinds(running_cluster, "alone")
    del published["quorum alone"]
    for node in (b, c):
        node.kill()
    for name in published:
        wait_until(lambda name=name: not a.queue(name)["slave_nodes"])
    a.kill()
    for bodies in published.values():
        assert [flip_in_log(a.data_directory, bodies[number]) for number in DAMAGED] == [1] * 4
    a.start()
    lost = []
    for name, bodies in published.items():
        left = [body for number, body in enumerate(bodies) if number not in DAMAGED]
        assert take(a.connect().channel(), name, len(left)) == left
        lost += [bodies[number] for number in DAMAGED]
    for node in (b, c):
        node.start()
    a.until_queue("lost+found", lambda row: row.get("messages", 0) >= len(lost))
    # What was consumed while a mirror was away cannot be told from what was lost.
    found = take(a.connect().channel(), "lost+found", a.queue("lost+found")["messages"])
    assert set(lost) <= set(found)


def test_the_end_of_a_log_that_is_lost_while_all_nodes_are_down_costs_no_message(
    running_cluster: RunningCluster,
) -> None:
    a, b, c = (running_cluster[node] for node in "abc")
    published = publish_to_all_kinds(running_cluster, "cut off")
    kill_at_once(a, b, c)
    first = next(iter(published))
    cut_log_at(a.data_directory, published[first][COUNT // 2])
    for node in (a, b, c):
        node.launch()
    for node in (a, b, c):
        node.wait_until_ready()

    for name, bodies in published.items():
        b.until_queue(name, lambda row: row.get("messages") == COUNT)
        assert take(b.connect().channel(), name, COUNT) == bodies
        assert b.queue(name)["node"] != a.name
    assert a.log.count("leader_lacks_messages") == len(published)


def test_a_disk_that_is_put_back_from_an_older_copy_costs_no_message(
    running_cluster: RunningCluster, tmp_path: Path
) -> None:
    a, b, c = (running_cluster[node] for node in "abc")
    published = publish_to_all_kinds(running_cluster, "put back")
    kill_at_once(a, b, c)
    copytree(a.data_directory, tmp_path / "older", ignore=ignore_patterns("*.sock"))
    for node in (a, b, c):
        node.launch()
    for node in (a, b, c):
        node.wait_until_ready()
    for name in published:
        wait_until(lambda name=name: has_all_copies(a, name))
        channel = a.connect().channel()
        channel.confirm_delivery()
        more = [b"<%s, more %05d>" % (name.encode(), at) for at in range(COUNT)]
        publish(channel, name, more)
        published[name] += more

    kill_at_once(a, b, c)
    rmtree(a.data_directory)
    copytree(tmp_path / "older", a.data_directory)
    for node in (a, b, c):
        node.launch()
    for node in (a, b, c):
        node.wait_until_ready()
    for name, bodies in published.items():
        b.until_queue(name, lambda row: row.get("messages") == 2 * COUNT)
        assert take(b.connect().channel(), name, 2 * COUNT) == bodies
        assert b.queue(name)["node"] != a.name
