"""Definitions, exported and imported, and feature flags."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command, flag, option, optional, several
from warren.mgmt.ctl.errors import BadArgument, CtlError, Exit, RequestRefused
from warren.mgmt.ctl.formats import Answer, Document, Table, as_json
from warren.mgmt.ctl.vhosts import checked_columns

STANDARD = "-"
FORMAT = option("--format", type=click.Choice(["json"]), default="json", metavar="json")
FLAG_COLUMNS = ("name", "state", "stability", "provided_by", "desc", "doc_url")
ALL = "all"
PRIVATE = 0o600
"""The mode of exported files, as definitions contain hashes of passwords."""


@command("export_definitions", "Write definitions to a file, or to -.", argument("path"), FORMAT)
def export_definitions(call: CommandCall, path: str, format: str) -> Answer:
    if path == STANDARD:
        exported = _exported(call)
        return Document(as_json(exported), exported)
    target = Path(path)
    if not target.parent.is_dir():
        raise BadArgument(f"Directory {target.parent} does not exist")
    call.announce(f'Exporting definitions in JSON to a file at "{path}" ...')
    octets = msgspec.json.format(msgspec.json.encode(_exported(call)), indent=2)
    try:
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE), "wb") as file:
            file.write(octets)
    except OSError as error:
        raise CtlError(f"{path} cannot be written: {error.strerror}", Exit.DATA) from error
    return None


def _exported(call: CommandCall) -> Any:
    """The definitions, in the form of RabbitMQ's command line.

    Over the network they are in the form of RabbitMQ's HTTP API: a node gives the form of the
    command line through its control socket only.
    """
    if call.client.target.local:
        return call.client.get("control", "definitions")
    return call.client.get("definitions")


@command(
    "import_definitions",
    "Read definitions from a file, or from standard input.",
    optional("path"),
    FORMAT,
    flag("--skip-if-unchanged", help="Accepted as RabbitMQ does; what is the same stays anyway."),
)
def import_definitions(
    call: CommandCall, path: str | None, format: str, skip_if_unchanged: bool
) -> Answer:
    if path in (None, STANDARD):
        call.announce("Importing definitions in JSON from standard input ...")
        octets = sys.stdin.buffer.read()
    else:
        assert path is not None
        if not Path(path).is_file():
            raise BadArgument(f"File {path} does not exist")
        call.announce(f'Importing definitions in JSON from a file at "{path}" ...')
        try:
            octets = Path(path).read_bytes()
        except OSError as error:
            raise CtlError(f"{path} cannot be read: {error.strerror}", Exit.DATA) from error
    _check_definitions(octets)
    try:
        call.client.post("definitions", body=octets)
    except RequestRefused as refused:
        raise CtlError(refused.reason, Exit.DATA if refused.status == 400 else refused.code) from (
            refused
        )
    return "Successfully imported definitions."


def _check_definitions(octets: bytes) -> None:
    """Raises `CtlError` unless this is a JSON object."""
    if not octets.strip():
        raise CtlError("the definitions are empty", Exit.DATA)
    try:
        msgspec.json.decode(octets, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CtlError(
            f"Failed to deserialise input (format: JSON) (error: {error})", Exit.DATA
        ) from error


# Feature flags


@command("list_feature_flags", "List feature flags.", several("columns"))
def list_feature_flags(call: CommandCall, columns: tuple[str, ...]) -> Answer:
    chosen = checked_columns(columns, FLAG_COLUMNS, ("name", "state"))
    call.announce("Listing feature flags ...")
    rows = call.client.get("feature-flags")
    return Table(chosen, [[row.get(column) for column in chosen] for row in rows])


@command("enable_feature_flag", "Enable a feature flag, or all.", argument("name"))
def enable_feature_flag(call: CommandCall, name: str) -> Answer:
    if name == ALL:
        call.announce("Enabling all feature flags ...")
        names = [row["name"] for row in call.client.get("feature-flags")]
    else:
        call.announce(f'Enabling feature flag "{name}" ...')
        names = [name]
    for one in names:
        try:
            call.client.put("feature-flags", one, "enable")
        except RequestRefused as refused:
            raise CtlError(
                f"This feature flag is not supported by node {call.node}", Exit.USAGE
            ) from refused
    return None


@command("list_unreadable_definitions", "List definitions that are kept and cannot be read.")
def list_unreadable_definitions(call: CommandCall) -> Answer:
    call.announce(f"Listing unreadable definitions of node {call.node} ...")
    columns = ("key", "reason")
    rows = call.client.get("unreadable-definitions")
    return Table(columns, [[row[name] for name in columns] for row in rows])
