"""Reads a node's configuration from its flags, the environment and a file.

It is apart from `server_command.py`, because the command line finds a node's data directory with it
and must start quickly.
"""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from warren.config import Config, override
from warren.environment import Environment
from warren.rabbitmq_conf import ADVANCED, ConfigError, Findings, Loaded, examine_config


def read_configuration(
    config_file: str | None, variables: Mapping[str, str], flags: Mapping[str, str | None]
) -> Loaded:
    """The configuration: flags override the environment, which overrides the file and defaults.

    `flags` are the arguments of `override`. Raises `ConfigError`.
    """
    config, warnings, problems = examine_configuration(config_file, variables, flags)
    if problems:
        raise ConfigError(problems)
    return Loaded(config, warnings)


def examine_configuration(
    config_file: str | None, variables: Mapping[str, str], flags: Mapping[str, str | None]
) -> Findings:
    """All problems of the configuration, and what it is without the wrong settings.

    The arguments are those of `read_configuration`.
    """
    environment = Environment(variables)
    path = config_file or environment.config_file(Path.exists)
    config, warnings, problems = _examine_file(path)
    warnings += environment.warnings()
    warnings += _advanced_config(path, environment)
    host = socket.gethostname().split(".")[0]
    try:
        config = environment.apply(config, host=host, node_name=flags.get("node_name"))
    except ValueError as error:
        problems.append(str(error))
    for name, value in flags.items():
        try:
            config = override(config, **{name: value})
        except ValueError as error:
            problems.append(f"--{name.replace('_', '-')} {value}: {error}")
    return Findings(config, warnings, problems)


def _examine_file(path: str | None) -> Findings:
    if path is None:
        return Findings(Config(), [], [])
    try:
        text = _text(path)
    except OSError as error:
        return Findings(Config(), [], [f"{path} cannot be read: {error.strerror}"])
    except ConfigError as error:
        return Findings(Config(), [], error.problems)
    config, warnings, problems = examine_config(text, path)
    return Findings(dataclasses.replace(config, config_file=Path(path)), warnings, problems)


NO_TERMS = re.compile(r"(\s|%[^\n]*\n)*\[\s*\]\s*\.?\s*\Z")
"""Matches a file of Erlang terms that sets nothing."""


def _advanced_config(path: str | None, environment: Environment) -> list[str]:
    """A warning if there is RabbitMQ's second file, in Erlang's terms: Warren does not read it."""
    file = environment.advanced_config(path)
    if file is None:
        return []
    try:
        text = file.read_text("utf-8", "replace")
    except OSError:
        return []
    if NO_TERMS.match(text):
        return []
    return [f"{file} is not read: it has {ADVANCED}"]


def _text(path: str) -> str:
    octets = Path(path).read_bytes()
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError as error:
        line = octets.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}, line {line}: {error.reason}: not UTF-8"]) from error
