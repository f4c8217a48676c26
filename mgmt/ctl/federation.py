"""`rabbitmqctl`'s commands for federation links, on whatever node of the cluster they run."""

from __future__ import annotations

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command, flag
from warren.mgmt.ctl.errors import CtlError, RequestRefused
from warren.mgmt.ctl.formats import Answer, Table

COLUMNS = {
    "error": "error",
    "exchange": "exchange",
    "id": "id",
    "last_changed": "timestamp",
    "local_connection": "local_connection",
    "node": "node",
    "queue": "queue",
    "status": "status",
    "type": "type",
    "upstream": "upstream",
    "upstream_exchange": "upstream_exchange",
    "upstream_queue": "upstream_queue",
    "uri": "uri",
    "vhost": "vhost",
}
"""The columns, with the names that the HTTP API has for them."""

NOT_FOUND = "Link with the given ID was not found"


@command(
    "federation_status",
    "Show the federation links of all nodes.",
    flag("--only-down", help="Only links that are down."),
)
def federation_status(call: CommandCall, only_down: bool) -> Answer:
    call.announce("Listing federation links of all nodes ...")
    path = ("federation-links", "state", "down") if only_down else ("federation-links",)
    rows = call.client.get(*path)
    return Table(
        tuple(COLUMNS), [[row.get(column, "") for column in COLUMNS.values()] for row in rows]
    )


@command("restart_federation_link", "Restart a federation link.", argument("id"))
def restart_federation_link(call: CommandCall, id: str) -> Answer:
    call.announce(f"Restarting federation link {id} ...")
    for row in call.client.get("federation-links"):
        if row["id"] == id:
            _restart(call, row["vhost"], id, row["node"])
            return None
    raise CtlError(NOT_FOUND)


def _restart(call: CommandCall, vhost: str, link_id: str, node: str) -> None:
    try:
        call.client.delete("federation-links", "vhost", vhost, link_id, node, "restart")
    except RequestRefused as refused:
        if refused.status != 404:
            raise
        # The link has ended meanwhile.
        raise CtlError(NOT_FOUND) from refused
