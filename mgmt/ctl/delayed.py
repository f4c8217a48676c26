"""Delayed messages of an exchange: listing them, cancelling one, sending one at once."""

from __future__ import annotations

from typing import Any

import click

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command, flag, option
from warren.mgmt.ctl.errors import CtlError, Exit, RequestRefused
from warren.mgmt.ctl.formats import Answer, Table

COLUMNS = ("id", "due_at", "due_in", "routing_key", "payload_bytes")


@command(
    "list_delayed_messages",
    "List the delayed messages of an exchange, the next due first. Times are in milliseconds.",
    argument("exchange"),
    option("--count", default=100, type=click.IntRange(1, 500), metavar="N", help="At most."),
    option(
        "--offset", default=0, type=click.IntRange(0, 10_000), metavar="N", help="After so many."
    ),
    option("--filter", "text", default="", metavar="FILTER", help="Those that this filter finds."),
    flag("--published", help="In the order in which they were published: finds any of them."),
)
def list_delayed_messages(
    call: CommandCall, exchange: str, count: int, offset: int, text: str, published: bool
) -> Answer:
    call.announce(f"Listing delayed messages of exchange {exchange} in vhost {call.vhost} ...")
    where = ("exchanges", call.vhost, exchange, "delayed")
    query = {"count": str(count), "filter": text}
    try:
        if published:
            found = _published(call, where, query)
        else:
            found = call.client.get(*where, **query, offset=str(offset))["items"]
    except RequestRefused as refused:
        raise CtlError(refused.reason, Exit.USAGE) from refused
    return Table(COLUMNS, [[row[name] for name in COLUMNS] for row in found])


def _published(
    call: CommandCall, where: tuple[str, ...], query: dict[str, str]
) -> list[dict[str, Any]]:
    """The first messages found in the order of publishing. One answer may have none and go on."""
    found: list[dict[str, Any]] = []
    start: str | None = ""
    while start is not None and len(found) < int(query["count"]):
        left = str(int(query["count"]) - len(found))
        page = call.client.get(
            *where, **{**query, "count": left, "order": "published", "from": start}
        )
        found += page["items"]
        start = page["next"]
    return found


@command(
    "cancel_delayed_message",
    "Drop a delayed message.",
    argument("exchange"),
    argument("id"),
)
def cancel_delayed_message(call: CommandCall, exchange: str, id: str) -> Answer:
    call.announce(f"Cancelling delayed message {id} of exchange {exchange} ...")
    try:
        call.client.delete("exchanges", call.vhost, exchange, "delayed", id)
    except RequestRefused as refused:
        raise CtlError(refused.reason, Exit.USAGE) from refused
    return None


@command(
    "send_delayed_message",
    "Route a delayed message now.",
    argument("exchange"),
    argument("id"),
)
def send_delayed_message(call: CommandCall, exchange: str, id: str) -> Answer:
    call.announce(f"Sending delayed message {id} of exchange {exchange} ...")
    try:
        call.client.post("exchanges", call.vhost, exchange, "delayed", id, "send", body={})
    except RequestRefused as refused:
        raise CtlError(refused.reason, Exit.USAGE) from refused
    return None
