"""Limits of virtual hosts and users: setting and reading them, and refusals when they are reached.

A limit of 0 allows none, a negative one any number (policies_and_parameters.md sections 3 and 4).
Limits of a virtual host are the runtime parameter `limits` of component `vhost-limits`; those of
a user stand in its record, which is `core/access/access_control.py`'s. Counting is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from warren.core.access.clients_elsewhere import ClientsElsewhere
from warren.core.definitions.records import ParameterRecord
from warren.core.definitions.validation import (
    NotThere,
    ValidationFailed,
    expect_vhost,
    is_integer,
    is_storable,
    pairs,
    term,
)
from warren.core.errors import NotAllowed, PreconditionFailed
from warren.core.ports import Commit, Key, MetadataStore, Write

VHOST_QUOTAS = ("max-messages", "max-bytes")
QUEUE_QUOTAS = ("max-queue-messages", "max-queue-bytes")
USER_QUOTAS = ("max-messages", "max-bytes")
"""Messages and octets that may be held together: Warren's own limits (`core/access/quotas.py`)."""

VHOST_LIMITS = ("max-connections", "max-queues", *VHOST_QUOTAS, *QUEUE_QUOTAS)
USER_LIMITS = ("max-connections", "max-channels", *USER_QUOTAS)
COMPONENT = "vhost-limits"
NAME = "limits"


def validate_vhost_limits(limits: Any) -> dict[str, int]:
    """The limits, if they are limits of a virtual host; raises `ValidationFailed`."""
    return _validate(limits, VHOST_LIMITS, "limits")


def validate_user_limits(limits: Any) -> dict[str, int]:
    """The limits, if they are limits of a user; raises `ValidationFailed`."""
    return _validate(limits, USER_LIMITS, "user-limits")


def effective(limits: Mapping[str, int], name: str) -> int | None:
    """Return the limit of this name; None if any number is allowed."""
    limit = limits.get(name)
    return None if limit is None or limit < 0 else limit


class VhostLimits:
    """The limits of all virtual hosts, kept in the metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self.elsewhere = ClientsElsewhere()
        self._store = store

    def get(self, vhost: str) -> dict[str, int]:
        """The limits of the virtual host; empty when none is set."""
        stored = self._store.get(_key(vhost))
        if stored is None:
            return {}
        assert isinstance(stored.record, ParameterRecord)
        return dict(stored.record.value)

    def all(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Virtual hosts that have, or once had, limits."""
        for key, record, _ in self._store.records(("parameter", COMPONENT)):
            assert isinstance(record, ParameterRecord)
            yield key[2], dict(record.value)

    def replace(self, vhost: str, limits: Any) -> Commit:
        """Put these limits in place of all there are."""
        expect_vhost(self._store, vhost)
        record = ParameterRecord(validate_vhost_limits(limits))
        return self._store.transact([Write(_key(vhost), record)])

    def put(self, vhost: str, name: str, value: Any) -> Commit:
        """Set one limit."""
        return self.replace(vhost, {**self.get(vhost), name: value})

    def remove(self, vhost: str, name: str) -> Commit:
        """Lift one limit. An empty set of limits stays behind, as in RabbitMQ."""
        limits = self.get(vhost)
        limits.pop(name, None)
        return self.replace(vhost, limits)

    def clear(self, vhost: str) -> Commit:
        """Lift all limits; raises `NotThere` when there are none."""
        if self._store.get(_key(vhost)) is None:
            raise NotThere("Parameter does not exist")
        return self._store.transact([Write(_key(vhost), None)])

    def check_connection(self, vhost: str, user: str, open_now: int) -> None:
        """Raise `NotAllowed` if one more connection to the virtual host is one too many."""
        limit = effective(self.get(vhost), "max-connections")
        if limit is not None and open_now >= limit:
            raise NotAllowed(
                f"access to vhost '{vhost}' refused for user '{user}':"
                f" connection limit ({limit}) is reached"
            )

    def check_queue(self, vhost: str, queue: str, existing: int) -> None:
        """Raise `PreconditionFailed` if one more queue is one too many."""
        limit = effective(self.get(vhost), "max-queues")
        if limit is not None and existing >= limit:
            raise PreconditionFailed(
                f"cannot declare queue '{queue}': queue limit in vhost '{vhost}' ({limit})"
                " is reached"
            )


def check_user_connection(limits: Mapping[str, int], user: str, open_now: int) -> None:
    """Raise `NotAllowed` if one more connection of the user is one too many."""
    limit = effective(limits, "max-connections")
    if limit is not None and open_now >= limit:
        raise NotAllowed(
            f"connection refused for user '{user}': user connection limit ({limit}) is reached"
        )


def check_user_channel(limits: Mapping[str, int], user: str, open_now: int) -> None:
    """Raise `NotAllowed` if one more channel of the user is one too many."""
    limit = effective(limits, "max-channels")
    if limit is not None and open_now >= limit:
        raise NotAllowed(
            f"number of channels opened for user '{user}' has reached the maximum allowed"
            f" user limit of ({limit})"
        )


def _key(vhost: str) -> Key:
    return ("parameter", COMPONENT, vhost, NAME)


def _validate(limits: Any, known: tuple[str, ...], what: str) -> dict[str, int]:
    if not isinstance(limits, dict):
        raise ValidationFailed(f"{what} not a list {term(limits)}")
    unknown = {name: value for name, value in limits.items() if name not in known}
    if unknown:
        raise ValidationFailed(f"Unrecognised terms {pairs(unknown)} in {what}")
    for name, value in limits.items():
        if not is_integer(value) or not is_storable(value):
            raise ValidationFailed(f"{name} should be a number, actually was {term(value)}")
    return dict(limits)
