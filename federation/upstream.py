"""The parameter of an upstream: its checks, which report every problem at once, and its meaning.

The error texts are RabbitMQ's, and scripts match on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warren.core.definitions.validation import ValidationFailed, term
from warren.shovel import checks
from warren.shovel.checks import Check, Problems
from warren.shovel.transfer import AckMode
from warren.shovel.uri import Uri, parse_uri

COMPONENT = "federation-upstream"

RECONNECT_DELAY_S_MIN = 0.05
"""The least reconnect delay: a link is always tried again, but never in a busy loop."""

CONSUMER_TAG = "federation-link-{}"

QUEUE_ARGUMENTS: Final[Mapping[str, str]] = {
    "expires": "x-expires",
    "message-ttl": "x-message-ttl",
    "ha-policy": "x-ha-policy",
    "queue-type": "x-queue-type",
}
"""Keys for arguments of the queue declared at the upstream, and the names of these arguments."""


@dataclass(frozen=True)
class Upstream:
    """An upstream broker, as one federated exchange or queue sees it.

    `exchange` and `queue` are the names there; None: the same name as here.
    """

    name: str
    uris: Sequence[Uri]
    exchange: str | None
    queue: str | None
    consumer_tag: str
    prefetch: int
    reconnect_delay_s: float
    ack_mode: AckMode
    trusts_user_id: bool
    hops_max: int
    queue_arguments: Mapping[str, str | int]
    keeps_queue: bool
    """Whether queue and helper exchange stay at the upstream when the federation ends."""


def check(name: str, value: Any) -> None:
    """Raise `ValidationFailed` with every problem of an upstream's parameter, one on each line."""
    if not isinstance(value, dict):
        raise ValidationFailed(f"{name} not a list {term(value)}")
    problems = checks.missing(name, value, ("uri",)) + problems_of(name, value, CHECKS)
    if problems:
        raise ValidationFailed("\n".join(problems))


def problems_of(name: str, value: Mapping[str, Any], known: Mapping[str, Check]) -> Problems:
    """The problems of the keys in a parameter or in a member of a set."""
    problems = []
    for key, checked in known.items():
        if key in value:
            problems += checked(key, value[key])
    return problems + checks.unrecognised(name, value, known)


def parse(name: str, value: Mapping[str, Any], vhost: str) -> Upstream:
    """The upstream defined by a parameter that has passed `check`. `vhost` is the parameter's
    virtual host, which is also that of a URI without a path."""
    delay_s = value.get("reconnect-delay", 5)
    return Upstream(
        name,
        uris=uris(value, vhost),
        exchange=value.get("exchange"),
        queue=value.get("queue"),
        consumer_tag=value.get("consumer-tag", CONSUMER_TAG.format(name)),
        prefetch=checks.prefetch(value.get("prefetch-count", 1000)),
        reconnect_delay_s=max(delay_s, RECONNECT_DELAY_S_MIN),
        ack_mode=AckMode(value.get("ack-mode", "on-confirm")),
        trusts_user_id=value.get("trust-user-id", False),
        hops_max=int(value.get("max-hops", 1)),
        queue_arguments={
            argument: _as_argument(value[key])
            for key, argument in QUEUE_ARGUMENTS.items()
            if key in value
        },
        keeps_queue=value.get("resource-cleanup-mode") == "never",
    )


def uris(value: Mapping[str, Any], vhost: str) -> list[Uri]:
    """All URIs of a parameter that has passed `check`."""
    return [parse_uri(uri, vhost) for uri in checks.listed(value["uri"])]


def _as_argument(value: str | float) -> str | int:
    return value if isinstance(value, str) else int(value)


OVERRIDES: Final[Mapping[str, Check]] = {
    "exchange": checks.name,
    "queue": checks.name,
    "consumer-tag": checks.name,
    "prefetch-count": checks.number,
    "reconnect-delay": checks.number,
    "max-hops": checks.number,
    "expires": checks.number,
    "message-ttl": checks.number,
    "trust-user-id": checks.boolean,
    "ack-mode": checks.ack_mode,
    "resource-cleanup-mode": checks.one_of("default", "never"),
    "ha-policy": checks.text,
    "queue-type": checks.one_of("classic", "quorum"),
    # These have no effect: bindings are requested together, and on a channel of their own.
    "bind-nowait": checks.boolean,
    "channel-use-mode": checks.one_of("multiple", "single"),
}
"""Keys of an upstream that a set may override."""

CHECKS: Final[Mapping[str, Check]] = {"uri": checks.uris, **OVERRIDES}
