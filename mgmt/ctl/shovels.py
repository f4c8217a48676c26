"""`rabbitmqctl`'s commands for shovels, on whatever node of the cluster they run."""

from __future__ import annotations

from typing import Any

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command
from warren.mgmt.ctl.errors import CtlError, RequestRefused
from warren.mgmt.ctl.formats import Answer, Table

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
"""The columns, with the names that the HTTP API has for them."""


@command("shovel_status", "Show the shovels of all nodes.")
def shovel_status(call: CommandCall) -> Answer:
    call.announce("Status of the shovels of all nodes ...")
    rows = call.client.get("shovels")
    return Table(
        tuple(COLUMNS), [[row.get(column, "") for column in COLUMNS.values()] for row in rows]
    )


@command("restart_shovel", "Restart a shovel.", argument("name"))
def restart_shovel(call: CommandCall, name: str) -> Answer:
    call.announce(f"Restarting shovel {name} in virtual host {call.vhost} ...")
    _delete(call, name, "restart")
    return None


@command("delete_shovel", "Delete a shovel.", argument("name"))
def delete_shovel(call: CommandCall, name: str) -> Answer:
    call.announce(f"Deleting shovel {name} in virtual host {call.vhost} ...")
    _delete(call, name)
    return None


def _delete(call: CommandCall, name: str, *what: str) -> Any:
    try:
        call.client.delete("shovels", "vhost", call.vhost, name, *what)
    except RequestRefused as refused:
        if refused.status != 404:
            raise
        raise CtlError(
            f"Shovel with the given name was not found on the target node '{call.node}'"
            f" and / or virtual host '{call.vhost}'"
        ) from refused
