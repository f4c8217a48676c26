"""What `rabbitmqctl` does to shovels, on whatever node of the cluster they run."""

from __future__ import annotations

from typing import Any

import click

from warren.mgmt.ctl.call import Call
from warren.mgmt.ctl.declaration import argument, command, option
from warren.mgmt.ctl.errors import CtlError, Exit, Refused
from warren.mgmt.ctl.formats import Answer, Table
from warren.shovel.redrive import Back, Death

COLUMNS = {
    "destination": "dest_uri",
    "destination_exchange": "dest_exchange",
    "destination_exchange_key": "dest_exchange_key",
    "destination_protocol": "dest_protocol",
    "destination_queue": "dest_queue",
    "last_changed": "timestamp",
    "name": "name",
    "node": "node",
    "source": "src_uri",
    "source_exchange": "src_exchange",
    "source_exchange_key": "src_exchange_key",
    "source_protocol": "src_protocol",
    "source_queue": "src_queue",
    "state": "state",
    "termination_reason": "reason",
    "type": "type",
    "vhost": "vhost",
}
"""The columns, and what they are called over HTTP."""


@command("shovel_status", "Show the shovels of all nodes.")
def shovel_status(call: Call) -> Answer:
    call.announce("Status of the shovels of all nodes ...")
    rows = call.client.get("shovels")
    return Table(
        tuple(COLUMNS), [[row.get(column, "") for column in COLUMNS.values()] for row in rows]
    )


@command("restart_shovel", "Restart a shovel.", argument("name"))
def restart_shovel(call: Call, name: str) -> Answer:
    call.announce(f"Restarting shovel {name} in virtual host {call.vhost} ...")
    _delete(call, name, "restart")
    return None


@command("delete_shovel", "Delete a shovel.", argument("name"))
def delete_shovel(call: Call, name: str) -> Answer:
    call.announce(f"Deleting shovel {name} in virtual host {call.vhost} ...")
    _delete(call, name)
    return None


def _delete(call: Call, name: str, *what: str) -> Any:
    try:
        call.client.delete("shovels", "vhost", call.vhost, name, *what)
    except Refused as refused:
        if refused.status != 404:
            raise
        raise CtlError(
            f"Shovel with the given name was not found on the target node '{call.node}'"
            f" and / or virtual host '{call.vhost}'"
        ) from refused


@command(
    "redrive",
    "Send the dead letters in a queue back to where they came from.",
    argument("queue"),
    option("--to", type=click.Choice([back.value for back in Back]), default="exchange"),
    option("--death", type=click.Choice([death.value for death in Death]), default="last"),
    option("--limit", type=click.IntRange(min=1), metavar="N", help="So many at most."),
)
def redrive(call: Call, queue: str, to: str, death: str, limit: int | None) -> Answer:
    call.announce(f"Sending what is in queue {queue} of vhost {call.vhost} back ...")
    if call.client.find("queues", call.vhost, queue) is None:
        raise CtlError("Queue not found", Exit.USAGE)
    body: dict[str, Any] = {"to": to, "death": death}
    if limit is not None:
        body["limit"] = limit
    begun = call.client.request("POST", "queues", call.vhost, queue, "redrive", body=body)
    return f"Shovel '{begun['shovel']}' does it, and ends: see shovel_status and the log"
