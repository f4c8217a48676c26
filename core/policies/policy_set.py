"""The policies of one virtual host, or its operator policies, in the order in which they are tried.

There may be thousands of policies, and tens of thousands of queues that look for theirs. So one
that is set changes one, and a queue tries only those that can be meant for its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from warren.core.patterns.matcher import Matcher
from warren.core.policies.policy_definition import NOT_FOR
from warren.core.queues.queue_type import CLASSIC, QueueType

Kind: TypeAlias = Literal["queue", "exchange"]

APPLIES_TO: Mapping[str, frozenset[Kind]] = {
    "queues": frozenset({"queue"}),
    "exchanges": frozenset({"exchange"}),
    "all": frozenset({"queue", "exchange"}),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy or an operator policy of a virtual host."""

    vhost: str
    name: str
    pattern: str
    apply_to: str
    definition: Mapping[str, Any]
    priority: int | float
    age: int
    expression: Matcher

    def is_for(self, kind: Kind, queue_type: QueueType = CLASSIC) -> bool:
        """Whether it is for queues of this type, or for exchanges, if their names match."""
        if kind not in APPLIES_TO[self.apply_to]:
            return False
        return kind != "queue" or self.definition.keys().isdisjoint(NOT_FOR[queue_type])


class PolicySet:
    """`characters` are those of all patterns together."""

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        self.characters = 0
        self._named: dict[str, Policy] = {}
        self._ordered: list[Policy] | None = None
        # The policies that are tried for objects of a kind, and for queues of a type.
        self._candidates: dict[tuple[Kind, QueueType], list[Policy]] = {}
        for policy in policies:
            self.put(policy)

    def __len__(self) -> int:
        return len(self._named)

    def put(self, policy: Policy) -> None:
        """Take a policy in, in place of the one of its name."""
        self.remove(policy.name)
        self._named[policy.name] = policy
        self.characters += len(policy.pattern)

    def remove(self, name: str) -> None:
        """Let the policy of this name go, if there is one."""
        policy = self._named.pop(name, None)
        if policy is not None:
            self.characters -= len(policy.pattern)
        self._ordered = None
        self._candidates.clear()

    def characters_without(self, name: str) -> int:
        """How many characters the patterns of all other policies have together."""
        policy = self._named.get(name)
        return self.characters - (0 if policy is None else len(policy.pattern))

    def age_of(self, name: str) -> int:
        """The age of a policy that is set: a name keeps it when its policy is replaced."""
        policy = self._named.get(name)
        if policy is not None:
            return policy.age
        return max([policy.age for policy in self._named.values()], default=0) + 1

    def ordered(self) -> list[Policy]:
        """In order of precedence: priority, then age, then name. Not to be changed."""
        if self._ordered is None:
            self._ordered = sorted(
                self._named.values(),
                key=lambda policy: (-policy.priority, policy.age, policy.name),
            )
        return self._ordered

    def matching(self, name: str, kind: Kind, queue_type: QueueType = CLASSIC) -> Policy | None:
        """The first that applies to an object of this name and kind."""
        candidates = self._candidates.get((kind, queue_type))
        if candidates is None:
            candidates = [one for one in self.ordered() if one.is_for(kind, queue_type)]
            self._candidates[kind, queue_type] = candidates
        for policy in candidates:
            if policy.expression.search(name) is not None:
                return policy
        return None
