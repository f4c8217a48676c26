"""Histories of whole clusters: some at random in CI, and those that once failed.

`python -P tests/simulation/cluster_history.py --seed S --count N` runs as many as one likes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import cluster_history
import pytest

from warren.mirror.remote.remote_client import RemoteClient
from warren.mirror.replication.copies.former_copies import FormerCopies

FROM = {
    "mirrors": (cluster_history.WIDER_FROM, cluster_history.WIDEST_FROM),
    "carriers": (cluster_history.CARRIERS_FROM,),
    "quorum": (cluster_history.QUORUM_FROM, cluster_history.HARD_FROM),
    "replaced": (cluster_history.REPLACED_FROM, cluster_history.LOST_AT_START_FROM),
    "unconfirmed": (cluster_history.UNCONFIRMED_FROM,),
    "retained": (cluster_history.RETAINED_FROM + 10, cluster_history.RETAINED_QUORUM_FROM),
    "operator": (cluster_history.MOVED_FROM,),
    "delayed": (cluster_history.SENT_LATER_FROM,),
    "returned": (cluster_history.RETURNED_FROM,),
    "damaged": (cluster_history.DAMAGED_FROM,),
}
"""The first seeds of each group; the next ones follow in turn."""

COUNT, COUNT_MAX = 5, 100
"""So many of each are run at least, and at most when they have not met everything yet: a change
in the broker makes other histories of them, and what one in thirty meets is in another one then."""

ONCE_FAILED = {
    120_300_055: "a leader that died while it changed the carrier forgot at which positions only"
    " the leader before it had retained messages",
    120_350_101: "a leader that was restarted without mirrors used a position once more, at which a"
    " mirror had another message",
    55_020_222: "a queue that was declared anew while the link to its leader was down got what had"
    " been published to the former one, and delivered as new what that had delivered",
    55_010_091: "a queue of which forgotten nodes had the only copies left its group in etcd",
    55_000_010: "a new node with the name of a forgotten member was taken for that member, and its"
    " vote was waited for",
    90_090_115: "a mirrored queue that was deleted left its messages in the store of its leader",
    90_070_535: "a mirror cut off from the store dropped its copy by an old definition when a later"
    " leader refused it",
    90_070_209: "a node that had stopped meanwhile started the member of a group that it had left",
    90_040_709: "what only a mirror had was not looked for when one led that had nothing",
    60_090_252: "a mirror was written down as in sync that had not heard of what was handed out",
    90_010_210: "a mirror was sent a retained message that was still in its copy of the queue",
    90_011_161: "what a leader had found at one mirror, another one was not sent",
    90_000_791: "a leader that gave up a hand-over went on while its target could still lead",
    60_000_003: "what a superseded leader alone had retained was dropped, and there again after a"
    " crash, when its node led",
    60_000_019: "the first message that a mirror retained was below where its log was thought to"
    " begin",
    60_000_023: "an object that led no more retained at positions of the next leader",
    60_000_073: "a leader whose disk had nothing retained was sent what it had in its queue again",
    60_000_169: "as 60000023",
    60_000_233: "as 60000023, and its node led again",
    60_000_262: "a queue was handed over to a mirror that its group went on without, and waited for"
    " another one for ever",
    60_001_351: "as 60000023, after a policy had changed",
    60_000_419: "what a leader had not on disk yet was not sent to a mirror that had just begun",
    40_050_867: "the winner of an election with votes from disk had not heard what was handed out",
    30_524_952: "a mirror left that was not wanted before all had come over to another carrier",
    30_526_948: "a change of policy waited for mirrors to report while their leader was silent",
    30_523_809: "a leader that joined its group late counted on a member that had died",
    30_522_111: "what tells a mirror to begin was thought to be everywhere before it was written",
    40_041_862: "what a copy on disk lacked that led without votes was not looked for",
    40_032_671: "a node that stopped declared lost+found again and again",
    30_502_114: "a group was made while its queue was deleted, and its node died",
    30_502_692: "a member that came back had no copy for the checks (their gap)",
    40_030_878: "a leader that was cut off handed out what it had announced long before",
    40_002_212: "what may have been delivered came as new from a leader that had no mirrors left",
    30_421_039: "what came as new was on its way to a node that stood still (a gap of the checks)",
    21_000_479: "what told a mirror to start was lost with its link, and not sent again",
    21_002_045: "a mirror was named for the carrier that its queue had just left",
    21_002_609: "votes counted that had been enough before another mirror was in sync",
    21_003_350: "what an earlier copy reported was taken for a report of the present one",
    20_060_046: "a member led without votes when its leader was about to be the only member",
    10_012_128: "a leader sent a mirror what it had got as batches, but not what it had got before",
    10_013_181: "a mirror dropped the copy that counted by a definition of the time before it",
}

SAME = 90_000_029
"""A history in which several nodes are down when all is to be well again."""

NOTICED = cluster_history.UNCONFIRMED_FROM + 10
"""A history in which a publish without a confirm is lost by the leader broken on purpose."""

DAMAGED = cluster_history.DAMAGED_FROM + 1_000_001
"""A history in which confirmed messages are lost by a leader that goes on with a damaged disk."""

RARE = {
    "mirrors": (
        "in-sync candidate 1 promoted",
        "leader came back and went on alone",
        "restarted before it was missed",
        "stopped in order",
        "synchronised by hand",
        "turned away",
    ),
    "carriers": (
        "fault during synchronisation",
        "in-sync candidate 1 promoted",
        "leader came back and went on alone",
        "restarted before it was missed",
        "turned away",
    ),
    "quorum": (
        "members changed",
        "in-sync candidate 1 promoted",
        "leader came back and went on alone",
    ),
    "replaced": (
        "deleted, as no node could lead it",
        "forgotten",
        "led without the votes it needs",
        "lost with its disk",
    ),
    "unconfirmed": (
        "stopped in order",
        "unconfirmed, and promised",
        "unconfirmed, handed over at an orderly stop",
        "unconfirmed, kept by a node that died",
    ),
    "damaged": (
        "a mirror led from its disk",
        "damaged on the disk of a leader",
        "lost at the end on the disk of a leader",
    ),
    "retained": (
        "fault during synchronisation",
        "retained by quorum queues",
        "retained messages compared",
    ),
    "operator": (
        "job died with its node",
        "job stopped",
        "node of a job killed",
        "moved in peace",
        "replayed in peace",
        "found in copied",
        "found in moved",
    ),
    "delayed": (
        "delayed",
        "delayed, dropped by hand",
        "delayed, sent by hand",
    ),
    "returned": ("died of the delivery limit",),
}
"""What the histories of a group are to meet, besides what all of them do.

What they meet less often than once in fifty is not here, but has tests of its own: that a mirror
leads which is not in sync, or a leader without the votes it needs, and `lost+found`.
"""

COMMON = (
    "consumer cancelled by the broker",
    "copies compared",
    "fault while a leader is awaited",
    "fault while confirms are awaited",
    "in-sync candidate 0 promoted",
    "last whole copy died",
    "leader died with unconfirmed publishes",
    "mirror in sync",
    "policy changed",
    "redelivered",
)


@pytest.mark.slow
@pytest.mark.parametrize("group", FROM)
def test_no_client_of_a_cluster_is_told_what_is_not_so(group: str) -> None:
    seen: Counter[str] = Counter()
    for number in range(COUNT_MAX):
        for first in FROM[group]:
            cluster_history.run(first + number, seen)
        missing = [name for name in COMMON + RARE[group] if not seen[name]]
        if number + 1 >= COUNT and not missing:
            return
    raise AssertionError(f"none of {missing} in {seen}")


def test_what_is_answered_before_mirrors_have_it_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of publishes without confirms is checked: a leader broken on purpose fails it."""
    monkeypatch.setattr(RemoteClient, "await_mirrors", lambda self, when_mirrors_have_all: None)
    seeds = range(NOTICED, NOTICED + COUNT_MAX)
    with pytest.raises(AssertionError, match="E1: "):
        for seed in seeds:
            cluster_history.run(seed, Counter())


def test_a_node_that_takes_its_damaged_disk_for_whole_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = FormerCopies.find
    monkeypatch.setattr(FormerCopies, "find", lambda *found, is_damaged: find(*found))
    with pytest.raises(AssertionError, match=r"E1: |not retained"):
        for seed in range(DAMAGED, DAMAGED + COUNT_MAX):
            cluster_history.run(seed, Counter())


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_what_once_failed(seed: int) -> None:
    cluster_history.run(seed, Counter())


def test_the_same_seed_is_the_same_history() -> None:
    """In any process: strings have another hash, and sets of them another order, in each."""
    run = f"cluster_history.run({SAME}, Counter())"
    script = f"from collections import Counter; import cluster_history; print({run}.trace)"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    traces = {
        subprocess.run(
            [sys.executable, "-P", "-c", script],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("7919", "31676")
    }
    assert len(traces) == 1
    assert f"{cluster_history.run(4712, Counter()).trace}\n" not in traces
