"""Policies, operator policies, runtime parameters and global parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from warren.mgmt.ctl.call import CommandCall, parse_json
from warren.mgmt.ctl.declaration import argument, command, option
from warren.mgmt.ctl.errors import CtlError, RequestRefused, no_such_vhost
from warren.mgmt.ctl.formats import Answer, Table, as_json

COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
MISSING = "Parameter does not exist"
NOT_FOUND = 404

PRIORITY = option("--priority", type=int, default=0, metavar="N")
APPLY_TO = option("--apply-to", default="all", metavar="queues|exchanges|all")


@contextmanager
def _missing_told(call: CommandCall, vhost: str | None) -> Iterator[None]:
    """Turns a 404 into a `CtlError` that names the missing thing: the virtual host if it does not
    exist, otherwise the parameter."""
    try:
        yield
    except RequestRefused as refused:
        if refused.status != NOT_FOUND:
            raise
        if vhost is not None and call.client.find("vhosts", vhost) is None:
            raise no_such_vhost(vhost) from refused
        raise CtlError(MISSING) from refused


def _set(
    call: CommandCall,
    what: str,
    name: str,
    pattern: str,
    definition: str,
    priority: int,
    apply_to: str,
) -> None:
    body = {
        "pattern": pattern,
        "definition": parse_json(definition),
        "priority": priority,
        "apply-to": apply_to,
    }
    with _missing_told(call, call.vhost):
        call.client.put(what, call.vhost, name, body=body)


def _list(call: CommandCall, what: str) -> Answer:
    rows = call.client.find(what, call.vhost)
    if rows is None:
        raise no_such_vhost(call.vhost)
    return Table(COLUMNS, [[_shown(row, column) for column in COLUMNS] for row in rows])


def _shown(row: dict[str, Any], column: str) -> Any:
    return as_json(row[column]) if column == "definition" else row[column]


@command(
    "set_policy",
    "Set a policy.",
    argument("name"),
    argument("pattern"),
    argument("definition"),
    PRIORITY,
    APPLY_TO,
)
def set_policy(
    call: CommandCall, name: str, pattern: str, definition: str, priority: int, apply_to: str
) -> Answer:
    call.announce(
        f'Setting policy "{name}" for pattern "{pattern}" to "{definition}"'
        f' with priority "{priority}" for vhost "{call.vhost}" ...'
    )
    _set(call, "policies", name, pattern, definition, priority, apply_to)
    return None


@command("clear_policy", "Clear a policy.", argument("name"))
def clear_policy(call: CommandCall, name: str) -> Answer:
    call.announce(f'Clearing policy "{name}" on vhost "{call.vhost}" ...')
    with _missing_told(call, call.vhost):
        call.client.delete("policies", call.vhost, name)
    return None


@command("list_policies", "List policies.")
def list_policies(call: CommandCall) -> Answer:
    call.announce(f'Listing policies for vhost "{call.vhost}" ...')
    return _list(call, "policies")


@command(
    "set_operator_policy",
    "Set a policy that limits what others may set.",
    argument("name"),
    argument("pattern"),
    argument("definition"),
    PRIORITY,
    APPLY_TO,
)
def set_operator_policy(
    call: CommandCall, name: str, pattern: str, definition: str, priority: int, apply_to: str
) -> Answer:
    call.announce(
        f'Setting operator policy override "{name}" for pattern "{pattern}" to "{definition}"'
        f' with priority "{priority}" for vhost "{call.vhost}" ...'
    )
    _set(call, "operator-policies", name, pattern, definition, priority, apply_to)
    return None


@command("clear_operator_policy", "Clear an operator policy.", argument("name"))
def clear_operator_policy(call: CommandCall, name: str) -> Answer:
    call.announce(f'Clearing operator policy "{name}" on vhost "{call.vhost}" ...')
    with _missing_told(call, call.vhost):
        call.client.delete("operator-policies", call.vhost, name)
    return None


@command("list_operator_policies", "List operator policies.")
def list_operator_policies(call: CommandCall) -> Answer:
    call.announce(f'Listing operator policy overrides for vhost "{call.vhost}" ...')
    return _list(call, "operator-policies")


# Parameters


@command(
    "set_parameter",
    "Set a runtime parameter.",
    argument("component"),
    argument("name"),
    argument("value"),
)
def set_parameter(call: CommandCall, component: str, name: str, value: str) -> Answer:
    call.announce(
        f'Setting runtime parameter "{name}" for component "{component}" to "{value}"'
        f' in vhost "{call.vhost}" ...'
    )
    body = {"value": parse_json(value)}
    with _missing_told(call, call.vhost):
        call.client.put("parameters", component, call.vhost, name, body=body)
    return None


@command("clear_parameter", "Clear a runtime parameter.", argument("component"), argument("name"))
def clear_parameter(call: CommandCall, component: str, name: str) -> Answer:
    call.announce(
        f'Clearing runtime parameter "{name}" for component "{component}"'
        f' on vhost "{call.vhost}" ...'
    )
    with _missing_told(call, call.vhost):
        call.client.delete("parameters", component, call.vhost, name)
    return None


@command("list_parameters", "List runtime parameters.")
def list_parameters(call: CommandCall) -> Answer:
    call.announce(f'Listing runtime parameters for vhost "{call.vhost}" ...')
    call.expect_vhost(call.vhost)
    rows = [row for row in call.client.get("parameters") if row["vhost"] == call.vhost]
    return Table(
        ("component", "name", "value"),
        [
            [row["component"], row["name"], as_json(row["value"])]
            for row in rows
            if row["component"] != "operator_policy"
        ],
    )


@command("set_global_parameter", "Set a global parameter.", argument("name"), argument("value"))
def set_global_parameter(call: CommandCall, name: str, value: str) -> Answer:
    call.announce(f'Setting global runtime parameter "{name}" to "{value}" ...')
    call.client.put("global-parameters", name, body={"value": parse_json(value)})
    return None


@command("clear_global_parameter", "Clear a global parameter.", argument("name"))
def clear_global_parameter(call: CommandCall, name: str) -> Answer:
    call.announce(f'Clearing global runtime parameter "{name}" ...')
    with _missing_told(call, None):
        call.client.delete("global-parameters", name)
    return None


@command("list_global_parameters", "List global parameters.")
def list_global_parameters(call: CommandCall) -> Answer:
    call.announce("Listing global runtime parameters ...")
    rows = call.client.get("global-parameters")
    return Table(("name", "value"), [[row["name"], as_json(row["value"])] for row in rows])


@command("set_cluster_name", "Name the cluster.", argument("name"))
def set_cluster_name(call: CommandCall, name: str) -> Answer:
    call.announce(f"Setting cluster name to {name} ...")
    call.client.put("cluster-name", body={"name": name})
    return None
