"""What can happen to nodes, to the network between them, and to etcd; and how it ends.

A fault is a function of a `Scene` that says what it did. It may leave nodes down or stopped and
connections cut: `Scene.heal` sets everything right.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import TypeAlias

from cut_network import ETCD
from running_cluster import ClusterProcess, RunningCluster, wait_until

from warren.mgmt.ctl.errors import CtlError

from .load import MIRRORED, QUORUM

LONG_S = 3.0
"""Longer than a node keeps its lease, or hears nothing of another one without finding it dead."""
STOP_S = 60.0
"""How long an orderly stop may take."""


class Scene:
    """A cluster, and what is wrong with it at the moment."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster
        self.rng = random.Random()
        self.complaints: list[str] = []
        self._frozen: list[ClusterProcess] = []
        self._drained: list[ClusterProcess] = []
        self._blocked: set[tuple[str, str]] = set()
        self._etcd_is = "up"

    # Who there is

    @property
    def names(self) -> list[str]:
        return list(self.cluster.nodes)

    @property
    def working(self) -> list[ClusterProcess]:
        """The nodes that are up and do not stand still."""
        nodes = self.cluster.nodes.values()
        return [node for node in nodes if node.is_up and node not in self._frozen]

    def any_node(self) -> ClusterProcess | None:
        return self.rng.choice(self.working) if self.working else None

    def leader(self, queue: str) -> ClusterProcess | None:
        """A node that works and leads the queue, as one of those that work sees it."""
        for asked in self.working:
            try:
                leader = asked.queue(queue).get("node")
            except (CtlError, OSError):
                continue
            return next((node for node in self.working if node.name == leader), None)
        return None

    def pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self.rng.uniform(least_s, most_s))

    # What is done to it

    def kill(self, node: ClusterProcess) -> str:
        node.kill()
        return short(node)

    def stop(self, node: ClusterProcess) -> str:
        """As SIGTERM does; the node must end by itself."""
        process = node.launched
        wait_until(lambda: not node.is_up or node.can_be_told_to_stop)
        process.send_signal(signal.SIGTERM)
        try:
            if (code := process.wait(STOP_S)) != 0:
                self.complaints.append(f"{node.name} ended with {code} when it was to stop")
        except subprocess.TimeoutExpired:
            self.complaints.append(f"{node.name} did not stop in {STOP_S:g} s")
        node.kill()
        return short(node)

    def freeze(self, node: ClusterProcess) -> str:
        node.stand_still()
        self._frozen.append(node)
        return short(node)

    def thaw(self) -> None:
        while self._frozen:
            self._frozen.pop().go_on()

    def drain(self, node: ClusterProcess) -> str:
        self._drained.append(node)
        try:
            node.does("POST", "control", "drain")
        except (CtlError, OSError) as error:
            return f"{short(node)} (refused: {type(error).__name__})"
        return short(node)

    def block(self, sender: str, receiver: str) -> None:
        assert self.cluster.network is not None
        if (sender, receiver) not in self._blocked:
            self.cluster.network.block(sender, receiver)
            self._blocked.add((sender, receiver))

    def separate(self, one: str, other: str) -> None:
        self.block(one, other)
        self.block(other, one)

    def unblock_all(self) -> None:
        while self._blocked:
            assert self.cluster.network is not None
            self.cluster.network.unblock(*self._blocked.pop())

    def lose_etcd(self, *, kill: bool) -> None:
        if self._etcd_is == "up":
            if kill:
                self.cluster.etcd.kill()
            else:
                self.cluster.etcd.stand_still()
            self._etcd_is = "down" if kill else "still"

    def regain_etcd(self) -> None:
        if self._etcd_is == "down":
            self.cluster.etcd.start()
        elif self._etcd_is == "still":
            self.cluster.etcd.go_on()
        self._etcd_is = "up"

    def heal(self) -> None:
        """Everything works again when this returns; nodes come back in any order."""
        self.regain_etcd()
        self.unblock_all()
        self.thaw()
        down = [node for node in self.cluster.nodes.values() if not node.is_up]
        self.rng.shuffle(down)
        for node in down:
            self._check_end(node)
            node.launch()
            if self.rng.random() < 0.5:
                self.pause(0.0, 1.0)
        for node in down:
            node.wait_until_ready()
        while self._drained:
            node = self._drained.pop()
            if node not in down:
                wait_until(lambda: _revives(node))  # noqa: B023

    def _check_end(self, node: ClusterProcess) -> None:
        """A node may end by itself when it starts without etcd, and says so; else never."""
        if (code := node.exit_code) not in (None, 1):
            self.complaints.append(f"{node.name} ended by itself, with {code}")
        node.kill()


def _revives(node: ClusterProcess) -> bool:
    """Not while it waits for etcd."""
    try:
        node.does("POST", "control", "revive")
    except CtlError:
        return False
    return True


Fault: TypeAlias = Callable[[Scene], str]

HAS_PLAIN = "a"
"""The node that has the queues without mirrors, where nodes are replaced."""


def short(node: ClusterProcess) -> str:
    name: str = node.name.partition("@")[0]
    return name


def _leader_or_any(scene: Scene) -> ClusterProcess | None:
    """Of one of the mirrored queues; any node that works if it cannot be told."""
    return scene.leader(scene.rng.choice(MIRRORED)) or scene.any_node()


def kill_leader(scene: Scene) -> str:
    node = _leader_or_any(scene)
    return scene.kill(node) if node else "nobody"


def kill_leader_and_heir(scene: Scene) -> str:
    """The second within a second of the first."""
    queue = scene.rng.choice(MIRRORED)
    first = scene.leader(queue)
    if first is None:
        return "nobody"
    said = scene.kill(first)
    scene.pause(0.0, 0.8)
    heir = scene.leader(queue) or scene.any_node()
    return said + (scene.kill(heir) if heir else "")


def kill_mirror(scene: Scene) -> str:
    leader = scene.leader(scene.rng.choice(MIRRORED))
    others = [node for node in scene.working if node is not leader]
    return scene.kill(scene.rng.choice(others)) if others else "nobody"


def kill_all(scene: Scene) -> str:
    nodes = scene.working
    scene.rng.shuffle(nodes)
    return "".join(scene.kill(node) for node in nodes)


def kill_and_start_leader(scene: Scene) -> str:
    """It is back at once."""
    node = _leader_or_any(scene)
    if node is None:
        return "nobody"
    scene.kill(node)
    node.launch()
    return short(node)


def freeze_leader(scene: Scene) -> str:
    node = _leader_or_any(scene)
    return scene.freeze(node) if node else "nobody"


def freeze_for_a_moment(scene: Scene) -> str:
    said = freeze_leader(scene)
    scene.pause(0.1, LONG_S)
    scene.thaw()
    return said


def freeze_all(scene: Scene) -> str:
    said = "".join(scene.freeze(node) for node in scene.working)
    scene.pause(0.1, LONG_S)
    scene.thaw()
    return said


def stop_leader(scene: Scene) -> str:
    node = _leader_or_any(scene)
    return scene.stop(node) if node else "nobody"


def stop_all(scene: Scene) -> str:
    nodes = scene.working
    scene.rng.shuffle(nodes)
    return "".join(scene.stop(node) for node in nodes)


def drain_leader(scene: Scene) -> str:
    node = _leader_or_any(scene)
    return scene.drain(node) if node else "nobody"


def drain_and_stop_leader(scene: Scene) -> str:
    node = _leader_or_any(scene)
    if node is None:
        return "nobody"
    said = scene.drain(node)
    scene.stop(node)
    return said


def restart_one_after_the_other(scene: Scene) -> str:
    """In order or by killing them; each starts before the next one ends."""
    said = ""
    for node in scene.working:
        said += scene.stop(node) if scene.rng.random() < 0.7 else scene.kill(node).upper()
        node.launch()
        scene.pause(0.5, 3.0)
    return said


def etcd_stands_still(scene: Scene) -> str:
    scene.lose_etcd(kill=False)
    return ""


def etcd_stands_still_for_a_moment(scene: Scene) -> str:
    scene.lose_etcd(kill=False)
    scene.pause(0.1, 2.0)
    scene.regain_etcd()
    return ""


def etcd_is_killed(scene: Scene) -> str:
    scene.lose_etcd(kill=True)
    return ""


def etcd_is_killed_and_started(scene: Scene) -> str:
    scene.lose_etcd(kill=True)
    scene.pause(0.0, 1.0)
    scene.regain_etcd()
    return ""


def cut_off(scene: Scene) -> str:
    """From peers and etcd."""
    node = _leader_or_any(scene)
    if node is None:
        return "nobody"
    for other in (*scene.names, ETCD):
        if other != short(node):
            scene.separate(short(node), other)
    return short(node)


def cut_from_peers(scene: Scene) -> str:
    node = _leader_or_any(scene)
    if node is None:
        return "nobody"
    for other in scene.names:
        if other != short(node):
            scene.separate(short(node), other)
    return short(node)


def cut_from_etcd(scene: Scene) -> str:
    node = _leader_or_any(scene)
    if node is None:
        return "nobody"
    scene.separate(short(node), ETCD)
    return short(node)


def cut_pair(scene: Scene) -> str:
    one, other = scene.rng.sample(scene.names, 2)
    scene.separate(one, other)
    return one + other


def cut_one_way(scene: Scene) -> str:
    sender, receiver = scene.rng.sample((*scene.names, ETCD), 2)
    scene.block(sender, receiver)
    return f"{sender}>{receiver}"


def flapping(scene: Scene) -> str:
    one, other = scene.rng.sample(scene.names, 2)
    for _ in range(5):
        scene.separate(one, other)
        scene.pause(0.05, 1.5)
        scene.unblock_all()
        scene.pause(0.05, 0.5)
    return one + other


def replace(scene: Scene) -> str:
    """A node is lost with its disk, and forgotten; one of its name begins with nothing.

    To be called while all copies are in sync: the others have everything then.
    """
    node = scene.rng.choice([node for node in scene.working if short(node) != HAS_PLAIN])
    was_member = node.name in node.queue(QUORUM)["members"]
    scene.kill(node)
    scene.pause(0.0, LONG_S)
    scene.rng.choice(scene.working).ctl("forget_cluster_node", node.name)
    shutil.rmtree(node.data_directory)
    node.start()
    if was_member:
        scene.rng.choice(scene.working).ctl("add_member", QUORUM, node.name)
    return short(node)


FAULTS: tuple[Fault, ...] = (
    kill_leader,
    kill_leader_and_heir,
    kill_mirror,
    kill_all,
    kill_and_start_leader,
    freeze_leader,
    freeze_for_a_moment,
    freeze_all,
    stop_leader,
    stop_all,
    drain_leader,
    drain_and_stop_leader,
    restart_one_after_the_other,
    etcd_stands_still,
    etcd_stands_still_for_a_moment,
    etcd_is_killed,
    etcd_is_killed_and_started,
)
CUTS: tuple[Fault, ...] = (
    cut_off,
    cut_from_peers,
    cut_from_etcd,
    cut_pair,
    cut_one_way,
    flapping,
)
"""They need a network of their own."""


def happen(scene: Scene, *, replaces: bool = False) -> str:
    """One to three faults, one after the other; what happened. With `replaces`, behind that."""
    known = FAULTS if scene.cluster.network is None else (*FAULTS, *CUTS)
    said = [f"replace {replace(scene)}"] if replaces else []
    for _ in range(scene.rng.choice((1, 1, 2, 2, 3))):
        fault = scene.rng.choice(known)
        said.append(f"{fault.__name__} {fault(scene)}".strip())
        scene.pause(0.0, 1.0)
    scene.pause(0.0, 1.5 * LONG_S)
    return ", ".join(said)
