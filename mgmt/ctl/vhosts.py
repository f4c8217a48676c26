"""Virtual hosts, their tags and limits, and the firehose."""

from __future__ import annotations

from typing import Any

from warren.mgmt.ctl.call import CommandCall, parse_json
from warren.mgmt.ctl.declaration import argument, command, flag, option, several
from warren.mgmt.ctl.errors import CtlError, RequestRefused, WrongUsage, no_such_vhost
from warren.mgmt.ctl.formats import Answer, Table, as_json
from warren.mgmt.ctl.users import limits_answer

COLUMNS = ("name", "description", "tags", "default_queue_type", "tracing", "cluster_state")


@command(
    "add_vhost",
    "Add a virtual host; one that is there already stays as it is.",
    argument("name"),
    option("--description", default="", metavar="TEXT"),
    option("--tags", default="", metavar="A,B"),
    option("--default-queue-type", metavar="TYPE"),
)
def add_vhost(
    call: CommandCall, name: str, description: str, tags: str, default_queue_type: str | None
) -> Answer:
    if not name:
        raise WrongUsage("virtual host name cannot be empty string.")
    call.announce(f'Adding vhost "{name}" ...')
    if call.client.find("vhosts", name) is None:
        body = {"description": description, "tags": tags}
        if default_queue_type is not None:
            body["defaultqueuetype"] = default_queue_type
        call.client.put("vhosts", name, body=body)
    return None


@command("delete_vhost", "Delete a virtual host and all that is in it.", argument("name"))
def delete_vhost(call: CommandCall, name: str) -> Answer:
    call.announce(f'Deleting vhost "{name}" ...')
    call.expect_vhost(name)
    call.client.delete("vhosts", name)
    return None


@command("list_vhosts", "List virtual hosts.", several("columns"))
def list_vhosts(call: CommandCall, columns: tuple[str, ...]) -> Answer:
    chosen = checked_columns(columns, COLUMNS, ("name",))
    call.announce("Listing vhosts ...")
    vhosts = call.client.get("vhosts", columns=",".join(chosen))
    return Table(chosen, [[_shown(vhost.get(column)) for column in chosen] for vhost in vhosts])


def _shown(value: Any) -> Any:
    """The value to print: an object, which has the state on each node, becomes a list of pairs."""
    if isinstance(value, dict):
        return [f"{{{node}, {state}}}" for node, state in value.items()]
    return value


def checked_columns(
    wanted: tuple[str, ...], known: tuple[str, ...], default: tuple[str, ...]
) -> tuple[str, ...]:
    """The wanted columns, or else the default ones. Names may be separated by commas, too.

    Raises `WrongUsage` for an unknown column.
    """
    names = tuple(name for given in wanted for name in given.replace(",", " ").split())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise WrongUsage(f"Info key(s) {','.join(unknown)} are not supported")
    return names or default


@command("set_vhost_tags", "Set tags of a virtual host.", argument("name"), several("tags"))
def set_vhost_tags(call: CommandCall, name: str, tags: tuple[str, ...]) -> Answer:
    if not name:
        raise WrongUsage("virtual host name cannot be empty string.")
    call.announce(f'Setting tags for virtual host "{name}" to [{", ".join(tags)}] ...')
    _change(call, name, tags=",".join(tags))
    return None


def _change(call: CommandCall, name: str, **changes: Any) -> None:
    """Write the virtual host anew with these changes; other fields stay."""
    there = call.expect_vhost(name)
    body = {"description": there["description"], "tags": ",".join(there["tags"]), **changes}
    call.client.put("vhosts", name, body=body)


@command("trace_on", "Start the firehose of a virtual host.")
def trace_on(call: CommandCall) -> Answer:
    call.announce(f'Starting tracing for vhost "{call.vhost}" ...')
    _change(call, call.vhost, tracing=True)
    return f"Trace enabled for vhost {call.vhost}"


@command("trace_off", "Stop the firehose of a virtual host.")
def trace_off(call: CommandCall) -> Answer:
    call.announce(f'Stopping tracing for vhost "{call.vhost}" ...')
    _change(call, call.vhost, tracing=False)
    return f"Trace disabled for vhost {call.vhost}"


@command("restart_vhost", "Start a virtual host that failed.")
def restart_vhost(call: CommandCall) -> Answer:
    call.announce(f"Trying to restart vhost '{call.vhost}' on node '{call.node}' ...")
    call.expect_vhost(call.vhost)
    call.client.post("vhosts", call.vhost, "start", call.node)
    return f"Vhost '{call.vhost}' is already running on node '{call.node}'"


# Limits


@command("set_vhost_limits", "Set limits in place of all there are.", argument("definition"))
def set_vhost_limits(call: CommandCall, definition: str) -> Answer:
    call.announce(f'Setting vhost limits to "{definition}" for vhost "{call.vhost}" ...')
    limits = parse_json(definition)
    call.expect_vhost(call.vhost)
    try:
        call.client.put("parameters", *_limits_of(call.vhost), body={"value": limits})
    except RequestRefused as refused:
        raise CtlError(refused.reason) from refused
    return None


@command("clear_vhost_limits", "Lift the limits of a virtual host.")
def clear_vhost_limits(call: CommandCall) -> Answer:
    call.announce(f'Clearing vhost "{call.vhost}" limits ...')
    call.expect_vhost(call.vhost)
    try:
        call.client.delete("parameters", *_limits_of(call.vhost))
    except RequestRefused as refused:
        raise CtlError("Parameter does not exist") from refused
    return None


def _limits_of(vhost: str) -> tuple[str, str, str]:
    return ("vhost-limits", vhost, "limits")


@command("list_vhost_limits", "List limits.", flag("--global", help="Of all virtual hosts."))
def list_vhost_limits(call: CommandCall, **flags: bool) -> Answer:
    if flags["global"]:
        call.announce("Listing limits for all vhosts ...")
        rows = call.client.get("vhost-limits")
        limits = [[row["vhost"], as_json(row["value"])] for row in rows if row["value"]]
        return Table(("vhost", "limits"), limits)
    call.announce(f'Listing limits for vhost "{call.vhost}" ...')
    rows = call.client.find("vhost-limits", call.vhost)
    if rows is None:
        raise no_such_vhost(call.vhost)
    return limits_answer(rows)
