"""Figures as JSON: totals, rates and, if the request asks for them, samples of the past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warren.core.messages.message_stats import MessageStats
from warren.mgmt.http.errors import BadRequest
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.statistics import figures
from warren.mgmt.statistics.history import SAMPLES_MAX, Figures, PastWindow, Sample

FAMILIES = (
    ("publish_in", "publish_out"),
    ("publish", "confirm", "return_unroutable", "drop_unroutable"),
    (
        "ack",
        "deliver",
        "deliver_get",
        "deliver_no_ack",
        "get",
        "get_empty",
        "get_no_ack",
        "redeliver",
    ),
    ("disk_reads", "disk_writes"),
)
"""Message stats that are shown together: all of a family when one of them is not 0."""

AGE_S_MAX = 1 << 53
"""Longer than any history, and the most that a float counts in whole seconds."""

_DELIVERIES = tuple(
    MessageStats._fields.index(name) for name in ("get", "get_no_ack", "deliver", "deliver_no_ack")
)
_PLACES = {name: at for at, name in enumerate(MessageStats._fields)}


def window(request: ApiRequest, kind: str) -> PastWindow | None:
    """The window that the query asks for by `KIND_age` and `KIND_incr`, such as `msg_rates_age`.

    None if one of the two is missing. Raises `BadRequest`.
    """
    age, increment = request.query(f"{kind}_age"), request.query(f"{kind}_incr")
    if not age or not increment:
        return None
    try:
        asked = PastWindow(int(age), int(increment))
    except ValueError as error:
        raise BadRequest(f"{kind}_age and {kind}_incr should be whole seconds") from error
    if not 0 <= asked.age_s <= AGE_S_MAX or not 1 <= asked.increment_s <= AGE_S_MAX:
        raise BadRequest(f"{kind}_age and {kind}_incr should be whole seconds")
    if asked.age_s // asked.increment_s > SAMPLES_MAX:
        raise BadRequest(f"{kind}_age / {kind}_incr asks for more than {SAMPLES_MAX} samples")
    return asked


def times(request: ApiRequest, kind: str) -> list[float]:
    """The times of the samples of this kind that are asked for, newest first; may be empty.

    Raises `BadRequest`.
    """
    return times_of_kinds(request, kind)[0]


def times_of_kinds(request: ApiRequest, *kinds: str) -> list[list[float]]:
    """The times of the samples of each kind. Raises `BadRequest`.

    They are computed from one moment, so that kinds with equal windows have equal times.
    """
    statistics, now = request.managed.statistics, request.node.clock.now()
    windows = [window(request, kind) for kind in kinds]
    return [[] if asked is None else statistics.times(asked, now) for asked in windows]


class ShownStats:
    """Figures of one object: the current ones, their rates, and the samples that were asked for.

    `names` has the name of the figure at each place of the tuples.
    """

    def __init__(
        self,
        names: Sequence[str],
        current: Figures,
        rates: Figures,
        samples: Sequence[Sample] = (),
        wall_offset_s: float = 0.0,
    ) -> None:
        self._names = names
        self._current = current
        self._rates = rates
        self._samples = samples
        self._wall_offset_s = wall_offset_s

    def message_stats(self) -> dict[str, Any]:
        """The families with activity since the node's start or, as samples tell, before it."""
        shown: dict[str, Any] = {}
        latest = self._samples[0].figures if self._samples else self._current
        for family in FAMILIES:
            values = [(name, self._places(name)) for name in family]
            if any(self._sum(of, places) for _, places in values for of in (self._current, latest)):
                for name, places in values:
                    self._put(shown, name, places)
        return shown

    def levels(self, *names: str) -> dict[str, Any]:
        """The figures of these names, each with its details: rate, samples and averages."""
        shown: dict[str, Any] = {}
        for name in names:
            self._put(shown, name, (self._names.index(name),))
        return shown

    def _places(self, name: str) -> tuple[int, ...]:
        return _DELIVERIES if name == "deliver_get" else (_PLACES[name],)

    def _put(self, shown: dict[str, Any], name: str, places: tuple[int, ...]) -> None:
        shown[name] = self._sum(self._current, places)
        details: dict[str, Any] = {"rate": self._sum(self._rates, places)}
        if self._samples:
            samples = [(sample.at, self._sum(sample.figures, places)) for sample in self._samples]
            self._add_samples(details, samples)
        shown[f"{name}_details"] = details

    def _add_samples(self, details: dict[str, Any], samples: list[tuple[float, float]]) -> None:
        """`samples` are newest first."""
        (newest, last), (oldest, first) = samples[0], samples[-1]
        elapsed = newest - oldest
        details["samples"] = [
            {"sample": value, "timestamp": round((at + self._wall_offset_s) * 1000)}
            for at, value in samples
        ]
        details["avg_rate"] = (last - first) / elapsed if elapsed else 0.0
        details["avg"] = sum([value for _, value in samples]) / len(samples)

    @staticmethod
    def _sum(of: Figures, places: tuple[int, ...]) -> float:
        return of[places[0]] if len(places) == 1 else sum([of[place] for place in places])


def wall_offset_s(request: ApiRequest) -> float:
    """The offset from the node's clock to seconds since 1970."""
    return request.managed.statistics.wall_offset_s


def exchange_stats(
    current: Figures, rates: Figures, samples: Sequence[Sample] = (), wall_offset_s: float = 0.0
) -> dict[str, Any]:
    """The message stats of an exchange; empty if it never had a message."""
    if not any(current):
        return {}
    return ShownStats(figures.EXCHANGE, current, rates, samples, wall_offset_s).levels(
        *figures.EXCHANGE
    )
