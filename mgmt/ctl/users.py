"""Users, their passwords, tags and limits; permissions and topic permissions."""

from __future__ import annotations

import sys
from typing import Any

import click

from warren.mgmt.ctl.call import CommandCall, parse_json
from warren.mgmt.ctl.declaration import argument, command, flag, option, optional, several
from warren.mgmt.ctl.errors import (
    CtlError,
    Exit,
    RequestRefused,
    WrongUsage,
    no_such_user,
    no_such_vhost,
)
from warren.mgmt.ctl.formats import Answer, Table, as_json

ALL = "all"
SECRET = argument("secret", required=False, metavar="[PASSWORD]")
"""Not named `password`, which is the option with the password for the login at --url."""

UNQUOTED = "User {} does not exist"


def _user(call: CommandCall, name: str) -> dict[str, Any]:
    """The user. Raises `CtlError` if it does not exist."""
    found = call.client.find("users", name)
    if found is None:
        raise no_such_user(name)
    assert isinstance(found, dict)
    return found


def _change(call: CommandCall, user: dict[str, Any], **changes: Any) -> None:
    """Write the user anew with these changes; other fields stay."""
    kept = ("password_hash", "hashing_algorithm", "tags")
    body = {**{key: user[key] for key in kept}, **changes}
    if "password" in changes:
        del body["password_hash"], body["hashing_algorithm"]
    call.client.put("users", user["name"], body=body)


def _password(given: str | None) -> str:
    """The argument, or an answer to a prompt, or the first line of a pipe. Raises `WrongUsage`."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        prompted: str = click.prompt("Password", hide_input=True, err=True)
        return prompted
    line = sys.stdin.readline()
    if not line:
        raise WrongUsage("Password is not provided via argument or stdin")
    return line.rstrip("\n")


def _expect_name(name: str) -> None:
    if not name:
        raise WrongUsage("user cannot be empty string.")


@command("add_user", "Add a user, who may do nothing yet.", argument("name"), SECRET)
def add_user(call: CommandCall, name: str, secret: str | None) -> Answer:
    _expect_name(name)
    password = _password(secret)
    call.announce(f'Adding user "{name}" ...')
    if call.client.find("users", name) is not None:
        raise CtlError(f'User "{name}" already exists', Exit.SOFTWARE)
    call.client.put("users", name, body={"password": password, "tags": ""})
    return (
        "Done. Don't forget to grant the user permissions to some virtual hosts!"
        " See 'warren ctl help set_permissions' to learn more."
    )


@command("delete_user", "Delete a user and close its connections.", argument("name"))
def delete_user(call: CommandCall, name: str) -> Answer:
    call.announce(f'Deleting user "{name}" ...')
    _user(call, name)
    call.client.delete("users", name)
    return None


@command("change_password", "Change a password.", argument("name"), SECRET)
def change_password(call: CommandCall, name: str, secret: str | None) -> Answer:
    password = _password(secret)
    call.announce(f'Changing password for user "{name}" ...')
    _change(call, _user(call, name), password=password)
    return None


@command(
    "clear_password",
    "Refuse every password of a user.",
    argument("name"),
)
def clear_password(call: CommandCall, name: str) -> Answer:
    call.announce(f'Clearing password for user "{name}" ...')
    _change(call, _user(call, name), password_hash="")
    return None


@command("authenticate_user", "Try a password.", argument("name"), SECRET)
def authenticate_user(call: CommandCall, name: str, secret: str | None) -> Answer:
    password = _password(secret)
    call.announce(f'Authenticating user "{name}" ...')
    body = {"username": name, "password": password}
    said = call.client.post("control", "authenticate", body=body)
    if not said["authenticated"]:
        raise CtlError(f'Error: failed to authenticate user "{name}"\n{said["reason"]}', Exit.DATA)
    return "Success"


@command("set_user_tags", "Set a user's tags; none clears them.", argument("name"), several("tags"))
def set_user_tags(call: CommandCall, name: str, tags: tuple[str, ...]) -> Answer:
    wanted = [tag for given in tags for tag in given.split(",") if tag]
    call.announce(f'Setting tags for user "{name}" to [{", ".join(wanted)}] ...')
    _change(call, _user(call, name), tags=wanted)
    return None


@command("list_users", "List users and their tags.")
def list_users(call: CommandCall) -> Answer:
    call.announce("Listing users ...")
    users = call.client.get("users")
    return Table(("user", "tags"), [[user["name"], user["tags"]] for user in users])


# Permissions


def _expect_both(call: CommandCall, user: str) -> None:
    """Raises `CtlError` unless user and virtual host exist."""
    if call.client.find("vhosts", call.vhost) is None:
        raise CtlError(f"Virtual host {call.vhost} does not exist")
    if call.client.find("users", user) is None:
        raise CtlError(UNQUOTED.format(user), Exit.NO_USER)


@command(
    "set_permissions",
    "Say by regular expressions what a user may configure, write and read.",
    argument("user"),
    argument("configure"),
    argument("write"),
    argument("read"),
)
def set_permissions(call: CommandCall, user: str, configure: str, write: str, read: str) -> Answer:
    call.announce(f'Setting permissions for user "{user}" in vhost "{call.vhost}" ...')
    _expect_both(call, user)
    body = {"configure": configure, "write": write, "read": read}
    _put_patterns(call, "permissions", user, body)
    return None


def _put_patterns(call: CommandCall, what: str, user: str, body: dict[str, str]) -> None:
    try:
        call.client.put(what, call.vhost, user, body=body)
    except RequestRefused as refused:
        match refused.answer.get("reason"):
            case ["invalid_regexp", pattern, why]:
                raise CtlError(f"'{pattern}' is no regular expression: {why}") from refused
        raise


@command("clear_permissions", "Take a user's permissions away.", argument("user"))
def clear_permissions(call: CommandCall, user: str) -> Answer:
    call.announce(f'Clearing permissions for user "{user}" in vhost "{call.vhost}" ...')
    _expect_both(call, user)
    _delete_if_there(call, "permissions", call.vhost, user)
    return None


def _delete_if_there(call: CommandCall, *path: str) -> None:
    try:
        call.client.delete(*path)
    except RequestRefused as refused:
        if refused.status != 404:
            raise


@command("list_permissions", "List permissions in a virtual host.")
def list_permissions(call: CommandCall) -> Answer:
    call.announce(f'Listing permissions for vhost "{call.vhost}" ...')
    rows = call.client.find("vhosts", call.vhost, "permissions")
    if rows is None:
        raise no_such_vhost(call.vhost)
    return _table(rows, "user", "configure", "write", "read")


@command("list_user_permissions", "List permissions of a user.", argument("user"))
def list_user_permissions(call: CommandCall, user: str) -> Answer:
    call.announce(f'Listing permissions for user "{user}" ...')
    return _table(_of_user(call, user, "permissions"), "vhost", "configure", "write", "read")


def _of_user(call: CommandCall, user: str, what: str) -> list[dict[str, Any]]:
    rows = call.client.find("users", user, what)
    if rows is None:
        raise CtlError(f'User "{user}" does not exist')
    assert isinstance(rows, list)
    return rows


def _table(rows: list[dict[str, Any]], *columns: str, headed: bool = True) -> Table:
    return Table(columns, [[row.get(column) for column in columns] for row in rows], headed)


# Topic permissions


@command(
    "set_topic_permissions",
    "Say what routing keys a user may publish and bind with.",
    argument("user"),
    argument("exchange"),
    argument("write"),
    argument("read"),
)
def set_topic_permissions(
    call: CommandCall, user: str, exchange: str, write: str, read: str
) -> Answer:
    call.announce(
        f'Setting topic permissions on "{exchange}" for user "{user}" in vhost "{call.vhost}" ...'
    )
    _expect_both(call, user)
    body = {"exchange": exchange, "write": write, "read": read}
    _put_patterns(call, "topic-permissions", user, body)
    return None


@command(
    "clear_topic_permissions",
    "Take topic permissions away, for an exchange or for all.",
    argument("user"),
    optional("exchange"),
)
def clear_topic_permissions(call: CommandCall, user: str, exchange: str | None) -> Answer:
    which = "" if exchange is None else f' on "{exchange}"'
    call.announce(
        f'Clearing topic permissions{which} for user "{user}" in vhost "{call.vhost}" ...'
    )
    _expect_both(call, user)
    path = ("topic-permissions", call.vhost, user)
    _delete_if_there(call, *(path if exchange is None else (*path, exchange or "amq.default")))
    return None


@command("list_topic_permissions", "List topic permissions in a virtual host.")
def list_topic_permissions(call: CommandCall) -> Answer:
    call.announce(f'Listing topic permissions for vhost "{call.vhost}" ...')
    rows = call.client.find("vhosts", call.vhost, "topic-permissions")
    if rows is None:
        raise no_such_vhost(call.vhost)
    return _table(rows, "user", "exchange", "write", "read")


@command("list_user_topic_permissions", "List topic permissions of a user.", argument("user"))
def list_user_topic_permissions(call: CommandCall, user: str) -> Answer:
    call.announce(f'Listing topic permissions for user "{user}" ...')
    rows = _of_user(call, user, "topic-permissions")
    return _table(rows, "vhost", "exchange", "write", "read", headed=False)


# Limits


@command("set_user_limits", "Set limits of a user.", argument("user"), argument("definition"))
def set_user_limits(call: CommandCall, user: str, definition: str) -> Answer:
    call.announce(f'Setting user limits to "{definition}" for user "{user}" ...')
    limits = parse_json(definition)
    if not isinstance(limits, dict):
        raise CtlError("user-limits should be a JSON object")
    _user(call, user)
    for name, value in limits.items():
        call.client.put("user-limits", user, name, body={"value": value})
    return None


@command(
    "clear_user_limits", "Lift a limit of a user, or all.", argument("user"), argument("limit")
)
def clear_user_limits(call: CommandCall, user: str, limit: str) -> Answer:
    which = "all limits" if limit == ALL else f'"{limit}" limit'
    call.announce(f'Clearing {which} for user "{user}" ...')
    there = _user(call, user).get("limits", {})
    for name in there if limit == ALL else [limit]:
        call.client.delete("user-limits", user, name)
    return None


@command(
    "list_user_limits",
    "List limits of a user, or of all.",
    option("--user", metavar="USER"),
    flag("--global", help="Of all users."),
)
def list_user_limits(call: CommandCall, user: str | None, **_global: bool) -> Answer:
    if user is None:
        call.announce("Listing limits for all users ...")
        rows = call.client.get("user-limits")
        return Table(("user", "limits"), [[row["user"], as_json(row["value"])] for row in rows])
    call.announce(f'Listing limits for user "{user}" ...')
    _user(call, user)
    rows = call.client.get("user-limits", user)
    return limits_answer(rows)


def limits_answer(rows: list[dict[str, Any]]) -> Answer:
    """The limits of one user or virtual host; an empty line, as RabbitMQ's, if there are none.

    Scripts read the first line.
    """
    limits = [[as_json(row["value"])] for row in rows if row["value"]]
    if not limits:
        return Table(("limits",), [[""]], False, json=[])
    return Table(("limits",), limits, False)
