"""Which nodes a cluster has, as one of them sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple


class Nodes(NamedTuple):
    """`name` is the node that looks.

    `running` are the nodes that can be reached from here, `present` those that are up for the
    cluster, and `members` all, up or not; this one is among the first two. `may_lead`: whether a
    node is not in maintenance. `machine_of`: see `Membership.machine_of`. `silent`: see
    `Abreast.silent`.
    """

    name: str
    running: Callable[[], Collection[str]]
    present: Callable[[], Collection[str]]
    members: Callable[[], Collection[str]] = tuple
    may_lead: Callable[[str], bool] = lambda node: True
    machine_of: Callable[[str], str] = str
    silent: Callable[[], Collection[str]] = tuple
