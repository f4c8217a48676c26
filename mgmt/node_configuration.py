"""The configuration of a node as its flags, the environment and a file give it together.

Apart from `server_command.py`, because the command line looks for a node's data directory with it
and must start quickly.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from pathlib import Path

from warren.config import Config, override
from warren.environment import Environment
from warren.rabbitmq_conf import ConfigError, Loaded, parse_config


def read_configuration(
    config_file: str | None, variables: Mapping[str, str], flags: Mapping[str, str | None]
) -> Loaded:
    """Flags over environment over file over defaults. `flags` are those of `override`.

    Raises `ConfigError`, `OSError` for the file, `ValueError` for flags and variables.
    """
    environment = Environment(variables)
    path = config_file or environment.config_file(Path.exists)
    loaded = Loaded(Config(), [])
    if path is not None:
        config, warnings = parse_config(_text(path), path)
        loaded = Loaded(dataclasses.replace(config, config_file=Path(path)), warnings)
    host = socket.gethostname().split(".")[0]
    config = environment.apply(loaded.config, host=host, node_name=flags.get("node_name"))
    return Loaded(override(config, **flags), loaded.warnings + environment.warnings())


def _text(path: str) -> str:
    octets = Path(path).read_bytes()
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError as error:
        line = octets.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}, line {line}: {error.reason}: not UTF-8"]) from error
