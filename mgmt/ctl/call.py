"""The first argument of each command's function: the common options, and the node's client."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from warren.mgmt.ctl.control_client import (
    DEFAULT_TIMEOUT_S,
    ControlClient,
    LocalTarget,
    NodeTarget,
    RemoteTarget,
)
from warren.mgmt.ctl.errors import CtlError, Exit, no_such_vhost
from warren.mgmt.ctl.formats import Style
from warren.mgmt.node_configuration import read_configuration
from warren.rabbitmq_conf import ConfigError

DEFAULT_VHOST = "/"
PASSWORD_VARIABLE = "WARREN_CTL_PASSWORD"
DEFAULT_USER = "guest"


@dataclass(frozen=True)
class Options:
    """The options that every command has."""

    node: str | None = None
    vhost: str | None = None
    timeout: float | None = None
    quiet: bool = False
    silent: bool = False
    formatter: str = "table"
    no_table_headers: bool = False
    dry_run: bool = False
    data_dir: str | None = None
    url: str | None = None
    username: str | None = None
    password: str | None = None
    cacert: str | None = None
    insecure: bool = False

    @property
    def style(self) -> Style:
        return Style(self.formatter, not (self.silent or self.no_table_headers))


class DryRun(Exception):
    """Ends a command with --dry-run, after it has said what it would do."""


@dataclass
class CommandCall:
    """One run of a command, with its options. It connects to the node at its first request."""

    options: Options
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _client: ControlClient | None = None
    _name: str | None = None

    @property
    def vhost(self) -> str:
        vhost = self.options.vhost
        return DEFAULT_VHOST if vhost is None else vhost

    @property
    def client(self) -> ControlClient:
        """The client of the node. Raises `CtlError` if the node cannot be determined or reached."""
        if self._client is None:
            timeout_s = self.options.timeout
            client = ControlClient(
                self._target(),
                DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s or None,
                _warn,
            )
            if self.options.node is not None:
                self._name = _checked_name(client, self.options.node)
            self._client = client
        return self._client

    @property
    def node(self) -> str:
        """The name of the node, as the node itself reports it."""
        if self._name is None:
            client = self.client
            self._name = self._name or _name(client)
        return self._name

    def announce(self, banner: str) -> None:
        """Say what the command does. With --dry-run the command ends here."""
        options = self.options
        if not (options.quiet or options.silent or options.formatter in ("json", "csv")):
            print(banner, flush=True)
        if options.dry_run:
            raise DryRun

    def of_vhost(self, vhost: str) -> CommandCall:
        """The same call for another virtual host."""
        return CommandCall(
            replace(self.options, vhost=vhost), self.variables, self.client, self._name
        )

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def expect_vhost(self, name: str) -> Any:
        """The virtual host's row in the API. Raises `CtlError` if it does not exist."""
        found = self.client.find("vhosts", name)
        if found is None:
            raise no_such_vhost(name)
        return found

    # Which node

    def _target(self) -> NodeTarget:
        options = self.options
        if options.url is not None:
            username = options.username or DEFAULT_USER
            return RemoteTarget(
                options.url, username, self._password(username), options.cacert, options.insecure
            )
        if options.username is not None or options.password is not None:
            raise CtlError("--username and --password go with --url", Exit.USAGE)
        return LocalTarget(self._data_directory())

    def _password(self, username: str) -> str:
        given = self.options.password
        if given is None:
            given = self.variables.get(PASSWORD_VARIABLE)
        if given is not None:
            return given
        if not sys.stdin.isatty():
            raise CtlError(f"--password or {PASSWORD_VARIABLE} is wanted with --url", Exit.USAGE)
        prompted: str = click.prompt(f"Password of {username}", hide_input=True, err=True)
        return prompted

    def _data_directory(self) -> Path:
        """The data directory, looked for where the node looks: flag, environment, file, default.

        Raises `CtlError`.
        """
        if self.options.data_dir == "":
            raise CtlError("--data-dir is empty", Exit.USAGE)
        if self.options.data_dir is not None:
            return Path(self.options.data_dir)
        try:
            flags = {"node_name": self.options.node}
            config, _ = read_configuration(None, self.variables, flags)
        except (ConfigError, OSError, ValueError) as error:
            raise CtlError(
                f"the configuration, which says where the data directory is, cannot be read:"
                f" {error}\n--data-dir says it too",
                Exit.CONFIG,
            ) from error
        if config.data_dir is None:
            raise CtlError("the configured node keeps nothing on disk", Exit.CONFIG)
        return config.data_dir


def _name(client: ControlClient) -> str:
    return str(client.get("overview", columns="node")["node"])


def _checked_name(client: ControlClient, wanted: str) -> str:
    """The node's name. Raises `CtlError` if the node reached is not the one that was named."""
    name = _name(client)
    if wanted not in (name, name.partition("@")[0]):
        client.close()
        raise CtlError(f"the node there is {name}, not {wanted}")
    return name


def parse_json(text: str) -> Any:
    """The JSON of an argument. Raises `CtlError`."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except msgspec.DecodeError as error:
        raise CtlError(f"JSON decoding error. Reason: {error}") from error


def _warn(text: str) -> None:
    print(f"Warning: {text}", file=sys.stderr, flush=True)
