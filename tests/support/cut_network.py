"""A network of its own for a cluster, in which a node can be cut off from the others.

    script ---- clients of a, b, c, of etcd (a pair of interfaces each)
                   a     b     c
                   |     |     |
                 [ bridge, etcd ]        in a namespace of its own

Nodes and etcd are in network namespaces (`ip netns`), joined by a bridge. Clients have another way
to each of them, so that a node that is cut off can still be talked to. Cutting a node off takes
its port from the bridge: what it sends is lost without a word, as when a switch fails, and what
its processes have open stays open. `block` loses what one of them sends to one other.

The thread that makes the network is in a namespace of its own as well, until it removes it, and so
are the threads and processes that it starts: the interfaces of the machine stay as they are. A
browser fails the requests under way (ERR_NETWORK_CHANGED) when these change, and other tests have
browsers.

Needs root, and leaves nothing behind; what a killed process has left is removed by the next one.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import fork_server

CLUSTER_NET = "198.18.0"
CLIENTS_NET = "198.19"
"""RFC 2544 keeps 198.18.0.0/15 for tests; the first half is in the namespaces only."""

ETCD = "etcd"
NOWHERE = "02:00:00:00:00:fe"
"""An Ethernet address that no interface has."""

CLONE_NEWNET = 0x40000000
"""What `unshare` and `setns` are about: the network (sched.h)."""

NAMED = Path("/run/netns")
PREFIX = "warren-"


class NoNamespaces(Exception):
    """There can be no network namespaces here; the text says why."""


class Place(NamedTuple):
    """Where a process is: what the others call it, where clients find it, how it is started."""

    host: str = "127.0.0.1"
    client_host: str = "127.0.0.1"
    command: tuple[str, ...] = ()


class CutNetwork:
    """The namespaces of nodes of these names, and one for etcd. Raises `NoNamespaces`."""

    def __init__(self, *names: str) -> None:
        if os.geteuid() != 0:
            raise NoNamespaces("network namespaces need root")
        if shutil.which("ip") is None:
            raise NoNamespaces("`ip` is not installed (Debian: apt-get install iproute2)")
        _remove_left_over()
        # Made here, it would stay in the namespace of this thread, and so would its children.
        fork_server.ready()
        self._outside = _in_a_space_of_its_own()
        self._own = f"{PREFIX}{os.getpid()}-"
        self._hub = f"{self._own}etcd"
        self._interfaces: list[str] = []
        self._spaces: list[str] = []
        self._places: dict[str, Place] = {}
        try:
            self._make(names)
        except BaseException:
            self.remove()
            raise

    def _make(self, names: tuple[str, ...]) -> None:
        _ip("link", "set", "lo", "up")
        self.etcd = self._space(self._hub, f"{CLUSTER_NET}.1", 0)
        _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._hub, "addr", "add", f"{CLUSTER_NET}.1/24", "dev", "bridge")
        _ip("-n", self._hub, "link", "set", "bridge", "up")
        for number, name in enumerate(names, 1):
            space = f"{self._own}{name}"
            host = f"{CLUSTER_NET}.{number + 1}"
            self._places[name] = self._space(space, host, number)
            end = ("name", "cluster", "netns", space)
            _ip("-n", self._hub, "link", "add", _port(name), "type", "veth", "peer", *end)
            _ip("-n", space, "addr", "add", f"{host}/24", "dev", "cluster")
            _ip("-n", space, "link", "set", "cluster", "up")
            self.restore(name)
            _ip("-n", self._hub, "link", "set", _port(name), "up")

    def _space(self, space: str, host: str, number: int) -> Place:
        """A namespace that clients reach."""
        _ip("netns", "add", space)
        self._spaces.append(space)
        _ip("-n", space, "link", "set", "lo", "up")
        outside = f"wrn{os.getpid()}-{number}"
        net = f"{CLIENTS_NET}.{os.getpid() % 256}"
        end = ("name", "clients", "netns", space)
        _ip("link", "add", outside, "type", "veth", "peer", *end)
        self._interfaces.append(outside)
        _ip("addr", "add", f"{net}.{4 * number + 1}/30", "dev", outside)
        _ip("link", "set", outside, "up")
        client_host = f"{net}.{4 * number + 2}"
        _ip("-n", space, "addr", "add", f"{client_host}/30", "dev", "clients")
        _ip("-n", space, "link", "set", "clients", "up")
        return Place(host, client_host, ("ip", "netns", "exec", space))

    def place(self, name: str) -> Place:
        return self._places[name]

    def cut(self, name: str) -> None:
        """Nothing goes between the node and its peers and etcd from now on."""
        _ip("-n", self._hub, "link", "set", _port(name), "nomaster")

    def restore(self, name: str) -> None:
        _ip("-n", self._hub, "link", "set", _port(name), "master", "bridge")

    def block(self, sender: str, receiver: str) -> None:
        """What one sends to the other is lost from now on. Each is a node's name, or `ETCD`."""
        self._neighbour("replace", sender, receiver, "lladdr", NOWHERE, "nud", "permanent")

    def unblock(self, sender: str, receiver: str) -> None:
        """Undo `block`."""
        self._neighbour("del", sender, receiver)

    def _neighbour(self, change: str, sender: str, receiver: str, *how: str) -> None:
        """Change where the sender finds the receiver on the bridge."""
        space = self._hub if sender == ETCD else f"{self._own}{sender}"
        interface = "bridge" if sender == ETCD else "cluster"
        host = self.etcd.host if receiver == ETCD else self._places[receiver].host
        _ip("-n", space, "neigh", change, host, *how, "dev", interface)

    def remove(self) -> None:
        """When its processes have ended."""
        for interface in self._interfaces:
            with suppress(NoNamespaces):
                _ip("link", "del", interface)
        for space in self._spaces:
            with suppress(NoNamespaces):
                _ip("netns", "del", space)
        self._interfaces.clear()
        self._spaces.clear()
        if self._outside is not None:
            _call("setns", self._outside, CLONE_NEWNET)
            os.close(self._outside)
            self._outside = None


def _in_a_space_of_its_own() -> int | None:
    """Move this thread to a new namespace; returns the file of the one it was in."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _call("unshare", CLONE_NEWNET)
    except NoNamespaces:
        os.close(before)
        raise
    return before


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library that Python has from 3.12 on."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise NoNamespaces(f"{name}: {os.strerror(ctypes.get_errno())}")


def _port(name: str) -> str:
    return f"to-{name}"


def _remove_left_over() -> None:
    """Namespaces of processes that are no more; their interfaces go with them."""
    for space in NAMED.glob(f"{PREFIX}*-*") if NAMED.is_dir() else ():
        pid = space.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            with suppress(NoNamespaces):
                _ip("netns", "del", space.name)


def _ip(*arguments: str) -> None:
    done = subprocess.run(("ip", *arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise NoNamespaces(f"`ip {' '.join(arguments)}` failed: {said}")
