"""Reads `rabbitmq.conf`: lines of `key = value`, in RabbitMQ's sysctl format and with its keys.

Answerable for the grammar, for the keys, and for error texts that lead to the wrong line. An
unknown key is an error, as a typing mistake would go unnoticed otherwise. A key that RabbitMQ knows
and Warren does not need is a warning, which says what Warren does instead, so that existing files
can be used as they are. All errors of a file are reported together.

`#` starts a comment anywhere outside of single quotes. A dot inside a name is written `\\.`. If a
key is set twice, the later value counts. `conf_keys.py` and `unused_keys.py` have the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from warren.conf_keys import KEYS, ValueKind
from warren.conf_values import DISCOVERY, assemble
from warren.config import Config
from warren.core.patterns.pattern import InvalidPattern
from warren.unused_keys import AS_IT_IS, FAMILIES, UNUSED

SETTING = re.compile(r"\s*(?P<key>[^=\s#]+)\s*=\s*(?P<value>.*?)\s*\Z")
ERLANG = re.compile(r"\s*(?:%[^\n]*\s*)*\[")
"""The beginning of a file of Erlang terms."""
ADVANCED = (
    "Erlang terms, as RabbitMQ's advanced.config has, which Warren does not read: docs/"
    "configuration.md has the keys that say the same as key = value"
)
QUOTED = re.compile(r"'([^']*)'\s*(?:#.*)?\Z")


class ConfigError(ValueError):
    """The file cannot be used; `problems` names every wrong line."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Loaded(NamedTuple):
    """The configuration in a file, and the warnings for the user."""

    config: Config
    warnings: list[str]


class Findings(NamedTuple):
    """The usable part of the configuration in a file, and all warnings and problems."""

    config: Config
    warnings: list[str]
    problems: list[str]


class _Setting(NamedTuple):
    line: int
    key: str
    value: str


def parse_config(text: str, source: str = "rabbitmq.conf") -> Loaded:
    """The configuration in the text of a file. Raises `ConfigError`."""
    config, warnings, problems = examine_config(text, source)
    if problems:
        raise ConfigError(problems)
    return Loaded(config, warnings)


def examine_config(text: str, source: str = "rabbitmq.conf") -> Findings:
    """`parse_config` without raising: the problems, and a configuration that leaves out the wrong
    lines."""
    problems: list[str] = []
    warnings: list[str] = []
    if ERLANG.match(text):
        problems.append(f"{source} has {ADVANCED}")
        return Findings(Config(), warnings, problems)
    values: dict[str, dict[str, Any]] = {}
    for setting in _settings(text, source, problems):
        where = f"{source}, line {setting.line}"
        parts = _parts(setting.key)
        pattern = _find(KEYS, parts)
        if pattern is None:
            instead = _unused(parts)
            if instead is not None and _is_so_anyway(setting, parts):
                continue
            if instead is not None:
                warnings.append(f"{where}: {setting.key} has no effect in Warren: {instead}")
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
    problems += [f"{source}: {problem}" for problem in _contradictions(config)]
    backend = values.get(DISCOVERY, {}).get("", "classic_config")
    if config.cluster is None and not backend.endswith("classic_config"):
        warnings.append(
            f"{source}: {DISCOVERY} finds no other nodes as it is, and this one is alone: nodes of"
            " a cluster need to know where etcd is (docs/clustering.md)"
        )
    return Findings(config, warnings, problems)


def _contradictions(config: Config) -> Iterator[str]:
    """Problems between keys that are each valid by themselves."""
    for listeners, options, key, prefix in (
        (config.tls_listeners, config.ssl, "listeners.ssl", "ssl_options"),
        (config.http_tls_listeners, config.http_ssl, "management.ssl", "management.ssl"),
        (config.metrics_tls_listeners, config.metrics_ssl, "prometheus.ssl", "prometheus.ssl"),
    ):
        if listeners and not (options.certfile and options.keyfile):
            yield f"{key} needs {prefix}.certfile and {prefix}.keyfile"
        if options.versions and not set(options.versions) & {"tlsv1.2", "tlsv1.3"}:
            yield f"{prefix}.versions needs tlsv1.2 or tlsv1.3: older versions are not offered"
    links = config.cluster.link_ssl if config.cluster is not None else None
    if links is not None and None in (links.cacertfile, links.certfile, links.keyfile):
        yield (
            "cluster.links.ssl needs all of cacertfile, certfile and keyfile: each node"
            " shows a certificate, and looks at that of the other"
        )


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


def _find(patterns: Mapping[str, ValueKind], parts: list[str]) -> str | None:
    return next((one for one in patterns if _matches(one.split("."), parts)), None)


def _chosen_part(pattern: str, parts: list[str]) -> str:
    for wanted, part in zip(pattern.split("."), parts, strict=True):
        if wanted.startswith("$"):
            return part
    return ""


def _unused(parts: list[str]) -> str | None:
    """What Warren does instead of a key that RabbitMQ knows and that sets nothing here; None for
    other keys."""
    for pattern, instead in UNUSED.items():
        if _matches(pattern.split("."), parts):
            return instead
    for length in range(1, len(parts) + 1):
        instead = FAMILIES.get(".".join(parts[:length]), "")
        if instead:
            return instead
    return None


def _is_so_anyway(setting: _Setting, parts: list[str]) -> bool:
    return any(
        setting.value in values and _matches(pattern.split("."), parts)
        for pattern, values in AS_IT_IS.items()
    )


NEAR = 0.6
"""The least similarity of a key that is shown as a hint, of 1."""


def _nearest(parts: list[str]) -> str:
    """A hint at the known key that is most similar, with the names that the user chose."""
    candidates = {}
    for pattern in (*KEYS, *UNUSED):
        wanted = pattern.split(".")
        filled = [
            parts[index] if part.startswith("$") and index < len(parts) else part
            for index, part in enumerate(wanted)
        ]
        candidates[".".join(filled)] = pattern
    found = _most_similar(".".join(parts), candidates)
    return f"the nearest known key is {found}" if found else "no key looks like it"


def _most_similar(key: str, candidates: Iterable[str]) -> str:
    """The candidate that is most similar to the key; empty if none is similar."""
    # Those that begin alike come first: most of the others need not be looked at closely then.
    first, _, _ = key.partition(".")
    likely = sorted(candidates, key=lambda one: not one.startswith(first))
    matcher = SequenceMatcher(None, "", key)
    found = (NEAR, "")
    for candidate in likely:
        matcher.set_seq1(candidate)
        least = found[0]
        # The bounds are quick to compute.
        if matcher.real_quick_ratio() >= least and matcher.quick_ratio() >= least:
            found = max(found, (matcher.ratio(), candidate))
    return found[1]
