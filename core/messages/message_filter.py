"""The filter language: which messages an operator means.

    filter     = either
    either     = both { "or" both }
    both       = one { "and" one }
    one        = "not" one | "(" either ")" | test
    test       = field [ comparison ]
    comparison = ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) value
               | "contains" text | "like" text | "matches" text
               | "in" "(" value { "," value } ")" | "exists"
    field      = name { "." name | "[" number "]" }
    value      = text | number [ unit ] | "true" | "false" | "null"

A filter is parsed once and becomes one function, which is then asked about many messages. It reads
of a message only what it needs: properties and JSON bodies are decoded when a test asks for them.

The work for a message is bounded whatever the filter says: filters are short, `like` and `contains`
take time proportional to what they search, of a body they search the first `SEARCHED_BYTES`, larger
bodies are not decoded as JSON, and regular expressions are searched as `matcher.py` allows.

A field that a message does not have is equal to nothing, contains nothing and is neither less nor
greater than anything. One that is null is equal to null only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from warren.core.errors import BrokerError
from warren.core.field import Field, Table, to_json, to_octets
from warren.core.messages.message import Message
from warren.core.patterns.matcher import TooSlow
from warren.core.patterns.pattern import InvalidPattern, compile_pattern
from warren.core.ports import ContentCodec

LENGTH_MAX = 4096
"""Characters of a filter. Longer ones are not written by hand, and each test of a filter costs
every message that is looked at."""

NESTING_MAX = 32
"""Parentheses and negations within each other."""

TESTS_MAX = 64
"""Tests in one filter: each may search a body."""

SEARCHED_BYTES = 256 << 10
"""Octets of a body that are searched, and the largest JSON body that is decoded, which takes about
a millisecond."""

MATCHED_CHARACTERS = 1024
"""The longest text that a regular expression is searched in; longer ones do not match."""


class MessageState(StrEnum):
    """The state of a message in a queue."""

    READY = "ready"
    UNACKED = "unacked"
    WAITING = "waiting"


class Subject:
    """A message, as a filter looks at it. `now_s` is the time of day."""

    __slots__ = (
        "_codec",
        "_headers",
        "_json",
        "_now_s",
        "_properties",
        "_shown",
        "message",
        "state",
    )

    def __init__(
        self, message: Message, state: MessageState, codec: ContentCodec, now_s: float
    ) -> None:
        self.message = message
        self.state = state
        self._codec = codec
        self._now_s = now_s
        self._properties: dict[str, Any] | None = None
        self._headers: Table | None = None
        self._shown: dict[str, Any] = {}
        self._json: Any = _UNREAD

    @property
    def properties(self) -> dict[str, Any]:
        if self._properties is None:
            self._properties = to_json(self._codec.as_table(self.message.envelope.header))
        return self._properties

    def plain_property(self, name: str) -> Any:
        """A property other than the headers, which are not decoded for it; `MISSING` if absent."""
        octets = self._codec.property_text(self.message.envelope.header, name)
        if octets is None:
            return MISSING
        if name in _OCTETS_AS_NUMBERS:
            return octets[0]
        if name == "timestamp":
            return int(octets)
        return to_json({name: Field("S", octets)})[name]

    def header(self, name: str) -> Any:
        """A header as JSON has it; `MISSING` if absent.

        The headers are decoded only if the octets of the name occur in them: decoding takes 10 ms
        if they are large.
        """
        if name in self._shown:
            return self._shown[name]
        header = self.message.envelope.header
        if self._headers is None:
            if name.encode("utf-8", "replace") not in header:
                return MISSING
            self._headers = self._codec.headers(header)
        field = self._headers.get(name)
        value = MISSING if field is None else to_json({"": field})[""]
        self._shown[name] = value
        return value

    @property
    def json(self) -> Any:
        """The body, decoded; `MISSING` when it is no JSON, or too large."""
        if self._json is _UNREAD:
            self._json = _decoded(self.message.body)
        return self._json

    @property
    def age_s(self) -> float | _Missing:
        """Seconds since the publisher's timestamp."""
        timestamp = self.plain_property("timestamp")
        return MISSING if timestamp is MISSING else self._now_s - float(timestamp)


class _Missing:
    """Stands for a field that a message does not have."""


MISSING: Final = _Missing()
_UNREAD: Final = object()


def _decoded(body: bytes) -> Any:
    if len(body) > SEARCHED_BYTES:
        return MISSING
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return MISSING


Test: TypeAlias = Callable[[Subject], bool]
Read: TypeAlias = Callable[[Subject], Any]

ANY: Final[Test] = lambda subject: True  # noqa: E731
"""The empty filter: every message."""


class InvalidFilter(BrokerError):
    """The text is no filter; says where, counted from 1, and what was expected there."""

    def __init__(self, text: str, at: int, expected: str) -> None:
        found = f"'{text[at : at + 20]}'" if at < len(text) else "the end of the filter"
        super().__init__(f"filter, character {at + 1}: expected {expected}, found {found}")
        self.at = at


class FilterTooSlow(BrokerError):
    """A regular expression of the filter took too long."""


def parse_filter(text: str) -> Test:
    """The filter as a function. An empty text is every message. Raises `InvalidFilter`.

    The function raises `FilterTooSlow`.
    """
    if len(text) > LENGTH_MAX:
        raise InvalidFilter(text, LENGTH_MAX, f"{LENGTH_MAX} characters at most")
    tokens = _tokens(text)
    if len(tokens) == 1:
        return ANY
    return _Parser(text, tokens).whole()


# Words


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


_WORDS = re.compile(
    r"""(?P<space>\s+)
      | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?P<unit>[A-Za-z]+)?)
      | (?P<sign><=|>=|!=|[=<>(),.\[\]])
      | (?P<name>[A-Za-z_][A-Za-z0-9_-]*)""",
    re.VERBOSE | re.DOTALL,
)


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        found = _WORDS.match(text, at)
        if found is None:
            if text[at] in "\"'":
                raise InvalidFilter(text, at, "a text that ends with the same quotation mark")
            raise InvalidFilter(text, at, "a field, a value or an operator")
        # The group of a unit is inside that of its number.
        kind = "number" if found.lastgroup == "unit" else found.lastgroup
        assert kind is not None
        if kind != "space":
            tokens.append(_Token(kind, found.group(), at))
        at = found.end()
    tokens.append(_Token("end", "", len(text)))
    return tokens


_SECONDS: dict[str, float] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_OCTETS: dict[str, float] = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_UNITS = {"age": _SECONDS, "size": _OCTETS}
"""The fields whose numbers may have units, which are seconds and octets without one."""

_PROPERTIES = (
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)

_OCTETS_AS_NUMBERS = frozenset(("delivery_mode", "priority"))

_FIELDS: dict[str, Read] = {
    "position": lambda subject: subject.message.position,
    "state": lambda subject: subject.state.value,
    "redelivered": lambda subject: subject.message.redelivered,
    "exchange": lambda subject: subject.message.envelope.exchange,
    "routing_key": lambda subject: subject.message.envelope.routing_key,
    "size": lambda subject: subject.message.body_bytes,
    "age": lambda subject: subject.age_s,
    "body": lambda subject: subject.message.body[:SEARCHED_BYTES],
}

_TREES: dict[str, Read] = {
    "headers": lambda subject: subject.properties.get("headers", MISSING),
    "json": lambda subject: subject.json,
}
"""The trees that a path can go into."""

_WORDS_AS_VALUES = {"true": True, "false": False, "null": None}

FIELDS = (*_FIELDS, *_PROPERTIES, *_TREES)


def _property(name: str) -> Read:
    return lambda subject: subject.plain_property(name)


def _expiration(subject: Subject) -> Any:
    """The expiration as a number. AMQP has it as a text of digits, which as such would be compared
    digit by digit."""
    text = subject.plain_property("expiration")
    return int(text) if text is not MISSING and text.isdecimal() else MISSING


_FIELDS |= {name: _property(name) for name in _PROPERTIES}


class _Parser:
    """Recursive descent over the tokens of one filter."""

    def __init__(self, text: str, tokens: Sequence[_Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._tests = 0

    def whole(self) -> Test:
        test = self._either()
        if self._token.kind != "end":
            raise self._expected("'and', 'or' or the end")
        return test

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _expected(self, what: str) -> InvalidFilter:
        return InvalidFilter(self._text, self._token.at, what)

    def _accept(self, *texts: str) -> str | None:
        """Take the next token if it is one of these signs or words."""
        token = self._token
        if token.kind in ("sign", "name") and token.text.lower() in texts:
            self._next += 1
            return token.text.lower()
        return None

    def _demand(self, text: str) -> None:
        if self._accept(text) is None:
            raise self._expected(f"'{text}'")

    def _either(self) -> Test:
        tests = [self._both()]
        while self._accept("or"):
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda subject: any(t(subject) for t in tests)

    def _both(self) -> Test:
        tests = [self._one()]
        while self._accept("and"):
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else lambda subject: all(t(subject) for t in tests)

    def _one(self) -> Test:
        if self._depth == NESTING_MAX:
            raise self._expected(f"at most {NESTING_MAX} levels")
        self._depth += 1
        if self._accept("not"):
            negated = self._one()
            self._depth -= 1
            return lambda subject: not negated(subject)
        if self._accept("("):
            inner = self._either()
            self._demand(")")
            self._depth -= 1
            return inner
        self._depth -= 1
        return self._test()

    def _test(self) -> Test:
        if self._tests == TESTS_MAX:
            raise self._expected(f"at most {TESTS_MAX} tests")
        self._tests += 1
        field, read = self._field()
        sign = self._accept("=", "!=", "<", "<=", ">", ">=")
        if sign is not None:
            if sign not in ("=", "!=") and self._token.text.lower() == "null":
                raise self._expected("a value that may be less or greater than others")
            return _compared_field(sign, field, read, self._value(field))
        word = self._accept("contains", "like", "matches", "in", "exists")
        match word:
            case None:
                return lambda subject: read(subject) is True
            case "exists":
                return lambda subject: read(subject) is not MISSING
            case "in":
                return self._in(field, read)
            case "contains":
                return _contains(read, self._quoted())
            case "like":
                return _like(read, self._quoted())
        return self._matches(read)

    def _field(self) -> tuple[str, Read]:
        token = self._token
        if token.kind != "name":
            raise self._expected("a field, 'not' or '('")
        name = token.text
        plain = _FIELDS.get(name)
        if plain is not None:
            self._next += 1
            return name, plain
        tree = _TREES.get(name)
        if tree is None:
            raise self._expected(f"one of the fields {', '.join(FIELDS)}")
        self._next += 1
        steps = self._path()
        if name == "headers" and steps and isinstance(steps[0], str):
            header, below = steps[0], steps[1:]
            return name, lambda subject: _walked(subject.header(header), below)
        return name, lambda subject: _walked(tree(subject), steps)

    def _path(self) -> list[str | int]:
        steps: list[str | int] = []
        while True:
            if self._accept("."):
                token = self._token
                if token.kind == "name":
                    steps.append(token.text)
                elif token.kind == "text":
                    steps.append(_unquoted(token.text))
                else:
                    raise self._expected("a name, in quotation marks where it has other signs")
                self._next += 1
            elif self._accept("["):
                if not self._token.text.isdecimal():
                    raise self._expected("a number, 0 being the first")
                steps.append(int(self._token.text))
                self._next += 1
                self._demand("]")
            else:
                return steps

    def _quoted(self) -> str:
        if self._token.kind != "text":
            raise self._expected("a text in quotation marks")
        self._next += 1
        return _unquoted(self._tokens[self._next - 1].text)

    def _value(self, field: str) -> Any:
        token = self._token
        if token.kind == "text":
            return self._time() if field == "timestamp" else self._quoted()
        if token.kind == "number":
            return self._number(field)
        word = self._accept(*_WORDS_AS_VALUES)
        if word is None:
            raise self._expected("a number, true, false, null or a text in quotation marks")
        return _WORDS_AS_VALUES[word]

    def _time(self) -> float:
        try:
            since_1970 = seconds_since_1970(_unquoted(self._token.text))
        except (ValueError, OverflowError):
            raise self._expected("a time such as '2026-11-20T10:30:00Z'") from None
        self._next += 1
        return since_1970

    def _number(self, field: str) -> float:
        token = self._token
        digits = token.text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        unit = token.text[len(digits) :].lower()
        number = float(digits) if set(digits) & set(".eE") else int(digits)
        self._next += 1
        if not unit:
            return number
        units = _UNITS.get(field, {})
        if unit not in units:
            self._next -= 1
            known = ", ".join(units)
            raise self._expected(f"a number with one of {known}" if known else "a number alone")
        return number * units[unit]

    def _in(self, field: str, read: Read) -> Test:
        self._demand("(")
        values = [self._value(field)]
        while self._accept(","):
            values.append(self._value(field))
        self._demand(")")
        tests = [_compared_field("=", field, read, value) for value in values]
        return lambda subject: any(test(subject) for test in tests)

    def _matches(self, read: Read) -> Test:
        token = self._token
        pattern = self._quoted()
        try:
            matcher = compile_pattern(pattern, strict=True)
        except InvalidPattern as error:
            raise InvalidFilter(
                self._text, token.at, f"a regular expression ({error.reason})"
            ) from error

        def test(subject: Subject) -> bool:
            text = _as_text(read(subject))
            if text is None or len(text) > MATCHED_CHARACTERS:
                return False
            try:
                return matcher.search(text) is not None
            except TooSlow as slow:
                raise FilterTooSlow(f"filter: the pattern '{pattern}' takes too long") from slow

        return test


def seconds_since_1970(moment: str) -> float:
    """Convert a time in the notation of ISO 8601; without a zone it is in UTC. Raises `ValueError`
    and `OverflowError`."""
    parsed = datetime.fromisoformat(moment)
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _unquoted(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted[1:-1], flags=re.DOTALL)


def _walked(tree: Any, steps: Sequence[str | int]) -> Any:
    """The value at the end of a path."""
    for step in steps:
        if isinstance(step, str) and isinstance(tree, dict):
            tree = tree.get(step, MISSING)
        elif isinstance(step, int) and isinstance(tree, list) and step < len(tree):
            tree = tree[step]
        else:
            return MISSING
    return tree


# Tests


def _as_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compared_field(sign: str, field: str, read: Read, wanted: Any) -> Test:
    if field == "expiration" and _is_number(wanted):
        read = _expiration
    return _compared(sign, read, wanted)


def _compared(sign: str, read: Read, wanted: Any) -> Test:
    if sign == "!=":
        equal = _compared("=", read, wanted)
        return lambda subject: not equal(subject)
    of_kind: Callable[[Any], bool]
    if wanted is None:
        of_kind = lambda value: value is None  # noqa: E731
    elif isinstance(wanted, bool):
        of_kind = lambda value: isinstance(value, bool)  # noqa: E731
    elif isinstance(wanted, str):
        of_kind = lambda value: isinstance(value, str)  # noqa: E731
    else:
        of_kind = _is_number
    compare = _COMPARE[sign]

    def test(subject: Subject) -> bool:
        value = read(subject)
        if isinstance(value, bytes):
            value = _as_text(value)
        return of_kind(value) and compare(value, wanted)

    return test


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: one == other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def _contains(read: Read, wanted: str) -> Test:
    octets = to_octets(wanted)

    def test(subject: Subject) -> bool:
        value = read(subject)
        if isinstance(value, bytes):
            return octets in value
        # A list contains its items, and an object its names.
        return isinstance(value, str | list | dict) and wanted in value

    return test


def _like(read: Read, wanted: str) -> Test:
    """`*` stands for any characters; everything else for itself."""
    first, *others = wanted.split("*")
    if not others:
        return _compared("=", read, wanted)
    *middle, last = others

    def test(subject: Subject) -> bool:
        text = _as_text(read(subject))
        if text is None or len(text) < len(first) + len(last):
            return False
        if not text.startswith(first) or not text.endswith(last):
            return False
        at, end = len(first), len(text) - len(last)
        for part in middle:
            at = text.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True

    return test
