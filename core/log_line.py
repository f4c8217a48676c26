"""One event, one line: `event key=value key="a value"`.

Answerable for the form of a line, so that lines can be parsed and nothing a client says can forge
one. A value that is empty or has spaces, quotes, `=`, backslashes or anything that cannot be seen
is written as a JSON string, with all that cannot be seen escaped; long ones are cut. A value that
is None is left out. Where lines go, and which, is `warren/log_output.py`'s.

The names of loggers are `warren.` and a category of `LOG_CATEGORIES` in `warren/config.py`.
"""

from __future__ import annotations

import json
import logging
import re

VALUE_MAX = 512
"""Characters of a value. Reply texts and names of entities have at most 255 octets; a pair of
them fits."""

_PLAIN = re.compile(r'[^\s"=\\]+')


def log_event(log: logging.Logger, level: int, event: str, /, **values: object) -> None:
    """Log an event; nothing is formatted that is not wanted."""
    if log.isEnabledFor(level):
        log.log(level, "%s", event_line(event, **values))


def log_fault(log: logging.Logger, event: str, /, **values: object) -> None:
    """Log a fault of the broker as an error, with the traceback of the exception in hand."""
    log.error("%s", event_line(event, **values), exc_info=True)


def event_line(event: str, /, **values: object) -> str:
    """The event and its values as one line."""
    written = [f"{key}={_value(value)}" for key, value in values.items() if value is not None]
    return " ".join((event, *written))


def visible(text: str) -> str:
    """The text with everything escaped that cannot be seen, line breaks among it."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if len(text) > VALUE_MAX:
        text = f"{text[:VALUE_MAX]}..."
    if text.isprintable() and _PLAIN.fullmatch(text):
        return text
    return f'"{"".join(map(_quoted, text))}"'


def _quoted(letter: str) -> str:
    return f"\\{letter}" if letter in '"\\' else _visible(letter)


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else json.dumps(letter)[1:-1]
