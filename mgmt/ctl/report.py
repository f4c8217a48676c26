"""`report`: prints the outputs of many other commands, to help to find a fault of a node."""

from __future__ import annotations

import sys

from warren.mgmt.ctl import (
    cluster,
    definitions,
    diagnostics,
    listing,
    node,
    policies,
    users,
    vhosts,
)
from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import CtlCommand, command
from warren.mgmt.ctl.errors import CtlError
from warren.mgmt.ctl.formats import Answer

OF_NODE: list[tuple[CtlCommand, dict[str, object]]] = [
    (node.status, {"unit": "gb"}),
    (cluster.cluster_status, {}),
    (node.environment, {}),
    (diagnostics.os_env, {}),
    (listing.list_connections, {"columns": tuple(listing.CONNECTIONS)}),
    (listing.list_channels, {"columns": tuple(listing.CHANNELS)}),
    (vhosts.list_vhosts, {"columns": vhosts.COLUMNS}),
    (users.list_users, {}),
    (policies.list_global_parameters, {}),
    (definitions.list_feature_flags, {"columns": ()}),
]

OF_VHOST: list[tuple[CtlCommand, dict[str, object]]] = [
    (
        listing.list_queues,
        {"columns": tuple(listing.QUEUES), "online": False, "offline": False, "local": False},
    ),
    (listing.list_exchanges, {"columns": tuple(listing.EXCHANGES)}),
    (listing.list_bindings, {"columns": ()}),
    (listing.list_consumers, {"columns": tuple(listing.CONSUMERS)}),
    (users.list_permissions, {}),
    (policies.list_policies, {}),
    (policies.list_operator_policies, {}),
    (policies.list_parameters, {}),
]


@command("report", "Print what support needs to see. It contains names of queues and users.")
def report(call: CommandCall) -> Answer:
    """Print the parts one by one, or the reason where one fails or needs the control socket."""
    call.announce(f"Reporting server status of node {call.node} ...\n")
    for asked, arguments in OF_NODE:
        _part(call, asked, arguments)
    for vhost in call.client.get("vhosts", columns="name"):
        there = call.of_vhost(vhost["name"])
        for asked, arguments in OF_VHOST:
            _part(there, asked, arguments)
    return None


def _part(call: CommandCall, asked: CtlCommand, arguments: dict[str, object]) -> None:
    try:
        text = asked.answer(call, arguments)
    except CtlError as error:
        text = f"(left out: {error.text})\n"
    sys.stdout.write(f"{text}\n")
