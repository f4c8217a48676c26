"""Reads `rabbitmq.conf`: lines of `key = value`, in RabbitMQ's sysctl format and with its keys.

Answerable for the grammar, for the keys, and for saying what is wrong in words that lead to the
line. A key nobody knows is an error, for it is a typing error that would go unnoticed; a key that
RabbitMQ knows and Warren has no use for is a warning, so that existing files can be used as they
are. All errors of a file are reported together.

`#` starts a comment anywhere outside of single quotes. A dot inside a name is written `\\.`. A key
that is set twice counts as set last. `conf_keys.py` has the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from warren.conf_keys import FAMILIES_WITHOUT_EFFECT, KEYS, KEYS_WITHOUT_EFFECT, Kind
from warren.conf_values import DISCOVERY, assemble
from warren.config import Config
from warren.core.pattern import InvalidPattern

SETTING = re.compile(r"\s*(?P<key>[^=\s#]+)\s*=\s*(?P<value>.*?)\s*\Z")
QUOTED = re.compile(r"'([^']*)'\s*(?:#.*)?\Z")


class ConfigError(Exception):
    """The file cannot be used; `problems` names every line that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Loaded(NamedTuple):
    """What a file says, and what to tell the user about it."""

    config: Config
    warnings: list[str]


class _Setting(NamedTuple):
    line: int
    key: str
    value: str


def parse_config(text: str, source: str = "rabbitmq.conf") -> Loaded:
    """The configuration in the text of a file. Raises `ConfigError`."""
    problems: list[str] = []
    warnings: list[str] = []
    values: dict[str, dict[str, Any]] = {}
    for setting in _settings(text, source, problems):
        where = f"{source}, line {setting.line}"
        parts = _parts(setting.key)
        pattern = _find(KEYS, parts)
        if pattern is None:
            if _is_known_elsewhere(parts):
                warnings.append(f"{where}: {setting.key} has no effect in Warren")
            else:
                problems.append(f"{where}: unknown key {setting.key}; {_nearest(parts)}")
            continue
        kind = KEYS[pattern]
        try:
            value = kind.parse(setting.value)
        except (ValueError, InvalidPattern):
            problems.append(f"{where}: {setting.key} = {setting.value}: {kind.wanted} was wanted")
            continue
        values.setdefault(pattern, {})[_chosen_part(pattern, parts)] = value
    config = assemble(values)
    for listeners, ssl, key, options in (
        (config.tls_listeners, config.ssl, "listeners.ssl", "ssl_options"),
        (config.http_tls_listeners, config.http_ssl, "management.ssl", "management.ssl"),
    ):
        if listeners and not (ssl.certfile and ssl.keyfile):
            problems.append(f"{source}: {key} needs {options}.certfile and {options}.keyfile")
    links = config.cluster.link_ssl if config.cluster is not None else None
    if links is not None and None in (links.cacertfile, links.certfile, links.keyfile):
        problems.append(
            f"{source}: cluster.links.ssl needs all of cacertfile, certfile and keyfile: each node"
            " shows a certificate, and looks at that of the other"
        )
    if config.tls_listeners and config.proxy_protocol:
        problems.append(f"{source}: proxy_protocol is not offered together with listeners.ssl")
    backend = values.get(DISCOVERY, {}).get("", "classic_config")
    if config.cluster is None and not backend.endswith("classic_config"):
        warnings.append(
            f"{source}: {DISCOVERY} finds no other nodes as it is, and this one is alone: nodes of"
            " a cluster need to know where etcd is (docs/clustering.md)"
        )
    if problems:
        raise ConfigError(problems)
    return Loaded(config, warnings)


def _settings(text: str, source: str, problems: list[str]) -> Iterator[_Setting]:
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = SETTING.match(line)
        value = "" if match is None else _without_comment(match["value"])
        if match is None or not value:
            problems.append(f"{source}, line {number}: {line.strip()!r} is not key = value")
            continue
        yield _Setting(number, match["key"], value)


def _without_comment(value: str) -> str:
    quoted = QUOTED.match(value)
    return quoted[1] if quoted else value.partition("#")[0].rstrip()


def _parts(key: str) -> list[str]:
    """The parts of a key: split at dots, but not at `\\.`, which is a dot of the name."""
    return [part.replace(r"\.", ".") for part in re.split(r"(?<!\\)\.", key)]


def _matches(pattern: list[str], parts: list[str]) -> bool:
    return len(pattern) == len(parts) and all(
        wanted.startswith("$") or wanted == part
        for wanted, part in zip(pattern, parts, strict=True)
    )


def _find(patterns: Mapping[str, Kind], parts: list[str]) -> str | None:
    return next((one for one in patterns if _matches(one.split("."), parts)), None)


def _chosen_part(pattern: str, parts: list[str]) -> str:
    for wanted, part in zip(pattern.split("."), parts, strict=True):
        if wanted.startswith("$"):
            return part
    return ""


def _is_known_elsewhere(parts: list[str]) -> bool:
    if any(_matches(known.split("."), parts) for known in KEYS_WITHOUT_EFFECT):
        return True
    beginnings = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return not beginnings.isdisjoint(FAMILIES_WITHOUT_EFFECT)


def _nearest(parts: list[str]) -> str:
    """The known key that looks most like it, with the names the user chose."""
    candidates = {}
    for pattern in (*KEYS, *KEYS_WITHOUT_EFFECT):
        wanted = pattern.split(".")
        filled = [
            parts[index] if part.startswith("$") and index < len(parts) else part
            for index, part in enumerate(wanted)
        ]
        candidates[".".join(filled)] = pattern
    found = get_close_matches(".".join(parts), candidates, n=1, cutoff=0.0)
    return f"the nearest known key is {found[0]}"
