"""Environment variables: Warren's own, and those of RabbitMQ that deployments set.

Answerable for which variables count and what each sets. They override the file, and flags override
them; a `WARREN_` variable overrides RabbitMQ's of the same meaning. An empty variable counts as not
set. The table in `docs/configuration.md` has them all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from warren.config import AMQP_PORT, ANY_HOST, Config, Listener, checked_node_name, override

T = TypeVar("T")

NO_PLUGINS = "there are no plug-ins; what Warren has is always there"
NO_ERLANG = "Warren does not run on Erlang"

WITHOUT_EFFECT = {
    "RABBITMQ_ENABLED_PLUGINS_FILE": NO_PLUGINS,
    "RABBITMQ_LOGS": "log.file names the log file",
    "RABBITMQ_LOG_BASE": "log.dir is the directory of log.file",
    "RABBITMQ_PLUGINS_DIR": NO_PLUGINS,
    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": NO_ERLANG,
    "RABBITMQ_SERVER_ERL_ARGS": NO_ERLANG,
    "RABBITMQ_USE_LONGNAME": "node_name may have any host in it",
}
"""RabbitMQ's variables that have no effect here, and what Warren does instead."""

_DEFAULTS = {
    "RABBITMQ_DEFAULT_USER": "default_user",
    "RABBITMQ_DEFAULT_PASS": "default_pass",
    "RABBITMQ_DEFAULT_VHOST": "default_vhost",
}


class Environment:
    """The environment variables that are set and not empty."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._set = {name: value for name, value in variables.items() if value}

    def config_file(self, exists: Callable[[Path], bool]) -> str | None:
        """The configuration file to read. RabbitMQ's variable may omit `.conf`."""
        ours = self._set.get("WARREN_CONFIG")
        theirs = self._set.get("RABBITMQ_CONFIG_FILE")
        if ours is not None or theirs is None:
            return ours
        suffixed = f"{theirs}.conf"
        return suffixed if not exists(Path(theirs)) and exists(Path(suffixed)) else theirs

    def advanced_config(self, config_file: str | None) -> Path | None:
        """Where RabbitMQ would look for an advanced.config: by default, beside the configuration
        file."""
        named = self._set.get("RABBITMQ_ADVANCED_CONFIG_FILE")
        if named is not None:
            return Path(named if named.endswith(".config") else f"{named}.config")
        return None if config_file is None else Path(config_file).parent / "advanced.config"

    def apply(self, config: Config, *, host: str, node_name: str | None = None) -> Config:
        """The configuration, changed by the environment.

        `host` is the machine's name, `node_name` the value of a flag, which names a directory too.
        Raises ValueError, naming the variable.
        """
        config = dataclasses.replace(config, **self._defaults())
        config = override(config, node_name=self._node_name(host))
        config = self._with_secret(config)
        listener = self._rabbitmq_listener()
        if listener is not None:
            config = dataclasses.replace(config, amqp_listeners=(listener,))
        config = self._checked("WARREN_AMQP", lambda value: override(config, amqp=value), config)
        config = self._checked("WARREN_HTTP", lambda value: override(config, http=value), config)
        config = self._checked(
            "WARREN_PROCESSES", lambda value: override(config, processes=value), config
        )
        name = node_name or config.node_name or f"warren@{host}"
        return override(config, data_dir=self._data_dir(name))

    def warnings(self) -> list[str]:
        return [
            f"{name} has no effect in Warren: {instead}"
            for name, instead in WITHOUT_EFFECT.items()
            if name in self._set
        ]

    def _defaults(self) -> dict[str, Any]:
        return {field: self._set[name] for name, field in _DEFAULTS.items() if name in self._set}

    def _with_secret(self, config: Config) -> Config:
        """The configuration with the cluster's secret, unless the file has one."""
        secret = self._set.get("WARREN_CLUSTER_SECRET") or self._set.get("RABBITMQ_ERLANG_COOKIE")
        cluster = config.cluster
        if cluster is None or secret is None or cluster.secret or cluster.secret_file:
            return config
        return dataclasses.replace(
            config, cluster=dataclasses.replace(cluster, secret=secret.encode())
        )

    def _node_name(self, host: str) -> str | None:
        ours = self._checked("WARREN_NODE_NAME", checked_node_name, None)
        theirs = self._checked("RABBITMQ_NODENAME", checked_node_name, None)
        if ours is not None or theirs is None:
            return ours
        return theirs if "@" in theirs else f"{theirs}@{host}"

    def _data_dir(self, node_name: str) -> str | None:
        base = self._set.get("RABBITMQ_MNESIA_BASE")
        named = None if not base else str(Path(base) / node_name)
        return self._set.get("WARREN_DATA_DIR") or self._set.get("RABBITMQ_MNESIA_DIR") or named

    def _rabbitmq_listener(self) -> Listener | None:
        host = self._set.get("RABBITMQ_NODE_IP_ADDRESS")
        port = self._set.get("RABBITMQ_NODE_PORT")
        if host is None and port is None:
            return None
        number = AMQP_PORT
        if port is not None:
            number = self._checked("RABBITMQ_NODE_PORT", _port, AMQP_PORT)
        return Listener(host or ANY_HOST, number)

    def _checked(self, name: str, read: Callable[[str], T], default: T) -> T:
        value = self._set.get(name)
        if value is None:
            return default
        try:
            return read(value)
        except ValueError as error:
            raise ValueError(f"{name}={value}: {error}") from error


def _port(text: str) -> int:
    if ":" in text:
        raise ValueError("a port from 0 to 65535 was wanted")
    return Listener.parse(text).port
