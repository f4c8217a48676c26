"""Moves definitions from the source to the target, with an outcome for each item.

An import of definitions ends at the first item that is refused, and skips others without an error.
So items are sent in lots, a refused lot is halved until the refused item is alone, and in the end
the target's definitions are read and compared with the source's. So each item that the target lacks
is reported.

Sending an item again changes nothing, so a run can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from warren.core.access.limits import USER_QUOTAS, VHOST_QUOTAS
from warren.mgmt.ctl.errors import RequestRefused
from warren.mgmt.migrate.errors import MigrateError
from warren.mgmt.migrate.side import Side

Item: TypeAlias = Mapping[str, Any]
Identity: TypeAlias = tuple[str, ...]

IDENTITY: Mapping[str, tuple[str, ...]] = {
    "users": ("name",),
    "vhosts": ("name",),
    "permissions": ("user", "vhost"),
    "topic_permissions": ("user", "vhost", "exchange"),
    "global_parameters": ("name",),
    "exchanges": ("vhost", "name"),
    "policies": ("vhost", "name"),
    "parameters": ("vhost", "component", "name"),
    "queues": ("vhost", "name"),
    "bindings": (
        "vhost",
        "source",
        "destination_type",
        "destination",
        "routing_key",
        "arguments",
    ),
}
"""The sections, in the order in which they are sent, and the keys that identify an item."""

OF_VHOST = ("vhosts", "exchanges", "policies", "parameters", "queues", "bindings")
"""The sections that are moved if only one virtual host is asked for."""

LOT = 1000

UNCHANGEABLE = frozenset({"exchanges", "queues"})
"""Sections whose existing items an import leaves unchanged."""

OF_CLUSTER = frozenset({"cluster_name", "internal_cluster_id", "imported_definition_hash_value"})
"""Global parameters that identify the cluster; the target keeps its own."""

OF_VHOSTS_LIST = ("description", "tags", "default_queue_type")
"""Fields of a virtual host that are in the API's list, but not in definitions."""


class Fate(Enum):
    TAKEN = "taken"
    SAME = "same"
    """The target had the item already, the same as at the source."""
    LEFT = "left"
    """The item does not concern the target."""
    REFUSED = "refused"


class ItemOutcome(NamedTuple):
    """The result for an item, or in a dry run the expected one. `reason` is empty for most."""

    section: str
    identity: Identity
    fate: Fate
    reason: str = ""

    @property
    def shown(self) -> str:
        return " ".join(f"'{part}'" for part in self.identity)


class TargetFacts(NamedTuple):
    """Facts about the target that are read before anything is sent."""

    username: str
    """The user of the login there."""
    exchange_types: Collection[str]


def move_definitions(
    source: Side, target: Side, *, vhost: str | None = None, dry_run: bool = False
) -> list[ItemOutcome]:
    """Move definitions. Raises `CtlError` if a broker cannot be asked, and `MigrateError`."""
    definitions = _wanted(_definitions(source), vhost)
    if vhost is not None and not definitions["vhosts"]:
        raise MigrateError(f"the source has no virtual host '{vhost}'")
    there = _definitions(target)
    overview = target.get("overview")
    facts = TargetFacts(
        target.username, frozenset(kind["name"] for kind in overview["exchange_types"])
    )
    outcomes = []
    for section, items in definitions.items():
        to_send, settled = sort_out(section, items, _by_identity(section, there[section]), facts)
        outcomes += settled
        if dry_run:
            outcomes += [_outcome(section, item, Fate.TAKEN) for item in to_send]
        else:
            outcomes += _send(target, section, to_send)
    return outcomes if dry_run else _compared(definitions, _definitions(target), outcomes)


def sort_out(
    section: str, items: Iterable[Item], there: Mapping[Identity, Item], target: TargetFacts
) -> tuple[list[Item], list[ItemOutcome]]:
    """The items that have to be sent, and the outcomes of the others."""
    to_send = []
    settled = []
    for item in items:
        present = there.get(identity(section, item))
        reason = _left(section, item, present, target)
        if reason is not None:
            settled.append(_outcome(section, item, Fate.LEFT, reason))
        elif present is not None and not differences(item, present):
            settled.append(_outcome(section, item, Fate.SAME))
        elif (reason := _impossible(section, item, present, target)) is not None:
            settled.append(_outcome(section, item, Fate.REFUSED, reason))
        else:
            to_send.append(item)
    return to_send, settled


def identity(section: str, item: Item) -> Identity:
    return tuple(_text(item.get(key, "")) for key in IDENTITY[section])


def differences(item: Item, present: Item) -> list[str]:
    """The keys that both have with different values."""
    return [key for key in item if key in present and _text(item[key]) != _text(present[key])]


def unknown_keys(reason: str, definition: Mapping[str, Any]) -> list[str]:
    """The keys of a policy's definition that its refusal says are not recognised."""
    if "not recognised" not in reason:
        return []
    return [key for key in definition if f'"{key}"' in reason]


def _left(section: str, item: Item, present: Item | None, target: TargetFacts) -> str | None:
    if section == "global_parameters" and item["name"] in OF_CLUSTER:
        return "the target stays the cluster it is"
    if section == "users" and item["name"] == target.username and present is not None:
        return "this command logs in at the target as this user"
    return None


def _impossible(section: str, item: Item, present: Item | None, target: TargetFacts) -> str | None:
    """Why the target cannot have this item, as far as that is known without sending it."""
    if present is not None:
        if section not in UNCHANGEABLE:
            return None
        return _other(differences(item, present))
    if section == "queues":
        if item["name"].startswith("amq."):
            return "clients cannot declare a queue whose name begins with amq."
    if section == "exchanges" and item["type"] not in target.exchange_types:
        return f"the target has no exchanges of the type {item['type']}"
    return None


def _definitions(side: Side) -> dict[str, list[Item]]:
    exported = side.get("definitions")
    found: dict[str, list[Item]] = {section: exported.get(section, []) for section in IDENTITY}
    described = {one["name"]: one for one in side.get("vhosts")}
    found["vhosts"] = [
        {**item, **_description(described.get(item["name"], {}))} for item in found["vhosts"]
    ]
    # Each queue has a binding to the default exchange, which need not be sent.
    found["bindings"] = [item for item in found["bindings"] if item["source"]]
    return found


def _description(vhost: Item) -> dict[str, Any]:
    said = {key: vhost[key] for key in OF_VHOSTS_LIST if vhost.get(key) not in (None, "undefined")}
    kind = said.pop("default_queue_type", None)
    return said if kind is None else {**said, "metadata": {"default_queue_type": kind}}


def _wanted(definitions: Mapping[str, list[Item]], vhost: str | None) -> dict[str, list[Item]]:
    if vhost is None:
        return dict(definitions)
    return {
        section: [
            item
            for item in definitions[section]
            if item["name" if section == "vhosts" else "vhost"] == vhost
        ]
        for section in OF_VHOST
    }


def _send(target: Side, section: str, items: Sequence[Item]) -> Iterator[ItemOutcome]:
    for start in range(0, len(items), LOT):
        yield from _send_lot(target, section, items[start : start + LOT])


def _send_lot(target: Side, section: str, items: Sequence[Item]) -> Iterator[ItemOutcome]:
    reason = _refusal(target, section, items)
    if reason is None:
        yield from (_outcome(section, item, Fate.TAKEN) for item in items)
    elif len(items) == 1:
        yield _send_in_part(target, section, items[0], reason)
    else:
        middle = len(items) // 2
        yield from _send_lot(target, section, items[:middle])
        yield from _send_lot(target, section, items[middle:])


def _send_in_part(target: Side, section: str, item: Item, reason: str) -> ItemOutcome:
    """Send a policy or limits without the keys that the target does not know; each refusal may name
    more. RabbitMQ names no unknown limit of a user, and answers 500."""
    key = {"policies": "definition", "parameters": "value", "users": "limits"}.get(section)
    definition = item.get(key) if key is not None else None
    left_out: list[str] = []
    refusal: str | None = reason
    while refusal is not None and isinstance(definition, dict):
        unknown = unknown_keys(refusal, definition) or [
            name for name in definition if name in (*USER_QUOTAS, *VHOST_QUOTAS)
        ]
        definition = {name: value for name, value in definition.items() if name not in unknown}
        left_out += unknown
        if not unknown or not (definition or section == "users"):
            break
        refusal = _refusal(target, section, [{**item, str(key): definition}])
    if refusal is None:
        text = f"taken without what the target does not know: {', '.join(left_out)}"
        return _outcome(section, item, Fate.REFUSED, text)
    return _outcome(section, item, Fate.REFUSED, reason)


def _refusal(target: Side, section: str, items: Sequence[Item]) -> str | None:
    """Send these items; returns why the target refuses one of them, or None."""
    try:
        target.post("definitions", body={"rabbit_version": "3.10.8", section: items})
    except RequestRefused as refused:
        if refused.status not in (400, 500):
            raise
        return _reason(refused)
    return None


def _reason(refused: RequestRefused) -> str:
    """The reason as one line: of a list, which starts with an atom, the sentence at its end."""
    if refused.status == 500:
        return "the target answers 500: see its log"
    reason = refused.answer.get("reason")
    text = reason[-1] if isinstance(reason, list) and reason else refused.text
    return " ".join(str(text).split())


def _compared(
    definitions: Mapping[str, list[Item]],
    there: Mapping[str, list[Item]],
    outcomes: Iterable[ItemOutcome],
) -> list[ItemOutcome]:
    """The outcomes, changed to a refusal for sent items that the target lacks or has otherwise."""
    sources = {section: _by_identity(section, items) for section, items in definitions.items()}
    targets = {section: _by_identity(section, there[section]) for section in definitions}
    refused = {(one.section, one.identity) for one in outcomes if one.fate is Fate.REFUSED}
    compared = []
    for one in outcomes:
        present = targets[one.section].get(one.identity)
        item = sources[one.section][one.identity]
        if one.fate is not Fate.TAKEN:
            compared.append(one)
        elif present is None:
            reason = _missing(one.section, item, refused)
            compared.append(one._replace(fate=Fate.REFUSED, reason=reason))
        elif changed := differences(item, present):
            compared.append(one._replace(fate=Fate.REFUSED, reason=_other(changed)))
        else:
            compared.append(one)
    return compared


def _other(keys: list[str]) -> str:
    return f"the target has it already, with another {', '.join(keys)}"


def _missing(section: str, item: Item, refused: Collection[tuple[str, Identity]]) -> str:
    if section == "bindings":
        vhost = item["vhost"]
        ends = [("exchanges", (vhost, item["source"]))]
        ends.append((f"{item['destination_type']}s", (vhost, item["destination"])))
        for kind, name in ends:
            if (kind, name) in refused:
                return f"{kind.removesuffix('s')} '{name[1]}' was not taken"
    return "the target passed over it and did not say why"


def _by_identity(section: str, items: Iterable[Item]) -> dict[Identity, Item]:
    return {identity(section, item): item for item in items}


def _outcome(section: str, item: Item, fate: Fate, reason: str = "") -> ItemOutcome:
    return ItemOutcome(section, identity(section, item), fate, reason)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
