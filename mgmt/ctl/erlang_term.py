"""Erlang terms, as text and in the binary form of encrypted values.

Terms are: integers, floats, atoms (`Atom`), binaries (`bytes`), lists (`list`; a text in double
quotes is a list of its code points) and tuples (`tuple`). Maps, processes, functions and other
terms are refused: values of configurations are never of these kinds.

The binary form is Erlang's external term format, version 131.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from warren.core.erlang_text import binary_text

Term: TypeAlias = "int | float | Atom | bytes | list[Any] | tuple[Any, ...]"

DEPTH_MAX = 100
"""Limit of nested lists and tuples."""

INTEGER_OCTETS_MAX = 1000
"""Larger integers are refused, because to print one would take long."""


class Atom(str):
    """An atom, as the string of its name."""

    __slots__ = ()


class NoTerm(ValueError):
    """The text or the octets are not a term of the supported kinds."""


# Text

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<float>-?\d{1,300}\.\d{1,300}(?:[eE][+-]?\d{1,2})?)
    | (?P<integer>-?\d{1,1000})
    | (?P<atom>[a-z][\w@]*)
    | '(?P<quoted>(?:[^'\\]|\\.)*)'
    | "(?P<text>(?:[^"\\]|\\.)*)"
    | (?P<mark><<|>>|/utf8|[{}\[\],])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x\{([0-9a-fA-F]+)\}|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"b": "\b", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "s": " ", "t": "\t", "v": "\v"}
_CODE_POINTS = 0x110000


def parse(text: str) -> Term:
    """The term of a text. Raises `NoTerm`."""
    reader = _TextReader(text)
    term = reader.term(0)
    reader.end()
    return term


class _TextReader:
    """Reads a text, one token at a time."""

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        self._at = 0

    def end(self) -> None:
        if self._at != len(self._text):
            raise self._wrong("the end")

    def term(self, depth: int) -> Term:
        kind, value = self._take()
        match kind:
            case "integer":
                return int(value)
            case "float":
                return float(value)
            case "atom":
                return Atom(value)
            case "quoted":
                return Atom(_unescaped(value))
            case "text":
                return [ord(char) for char in _unescaped(value)]
        if depth == DEPTH_MAX:
            raise NoTerm(f"more than {DEPTH_MAX} lists and tuples in one another")
        match value:
            case "{":
                return tuple(self._items("}", depth))
            case "[":
                return self._items("]", depth)
            case "<<":
                return b"".join([self._piece(piece) for piece in self._pieces()])
        raise self._wrong("a term", value)

    def _items(self, close: str, depth: int) -> list[Term]:
        items: list[Term] = []
        if self._is_next(close):
            return items
        while True:
            items.append(self.term(depth + 1))
            if self._is_next(close):
                return items
            self._expect(",")

    def _pieces(self) -> list[tuple[str, str]]:
        """The pieces of a binary: texts and numbers."""
        pieces: list[tuple[str, str]] = []
        if self._is_next(">>"):
            return pieces
        while True:
            kind, value = self._take()
            if kind == "text" and self._is_next("/utf8"):
                kind = "utf8"
            pieces.append((kind, value))
            if self._is_next(">>"):
                return pieces
            self._expect(",")

    def _piece(self, piece: tuple[str, str]) -> bytes:
        kind, value = piece
        if kind == "utf8":
            return _unescaped(value).encode("utf-8", "surrogatepass")
        octets = [ord(char) for char in _unescaped(value)] if kind == "text" else []
        if kind == "integer":
            octets = [int(value)]
        elif kind != "text":
            raise self._wrong("a text or a number", value)
        if not all(0 <= octet < 256 for octet in octets):
            raise NoTerm('what stands in a binary has to be octets; <<"..."/utf8>> is for others')
        return bytes(octets)

    def _take(self) -> tuple[str, str]:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._wrong("a term")
        self._at = found.end()
        kind = found.lastgroup
        assert kind is not None
        return kind, found[kind]

    def _is_next(self, mark: str) -> bool:
        found = _TOKEN.match(self._text, self._at)
        if found is None or found["mark"] != mark:
            return False
        self._at = found.end()
        return True

    def _expect(self, mark: str) -> None:
        if not self._is_next(mark):
            raise self._wrong(f"'{mark}'")

    def _wrong(self, wanted: str, came: str | None = None) -> NoTerm:
        rest = self._text[self._at : self._at + 20] if came is None else came
        return NoTerm(f"{wanted} was wanted, and {f'{rest!r}' if rest else 'the end'} came")


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_meant, text)


def _meant(found: re.Match[str]) -> str:
    octal, long, short, char = found.groups()
    if char is not None:
        return _ESCAPED.get(char, char)
    code = int(octal, 8) if octal else int(long or short, 16)
    if code >= _CODE_POINTS:
        raise NoTerm(f"there is no character {code:x}")
    return chr(code)


def text_of(term: Term) -> str:
    """The term as Erlang shows it, in one line."""
    match term:
        case Atom():
            return (
                term if re.fullmatch(r"[a-z][\w@]*", term, re.ASCII) else f"'{_escaped(term, 39)}'"
            )
        case bytes():
            return binary_text(term)
        case float():
            mantissa, exponent, power = repr(term).partition("e")
            mantissa += "" if "." in mantissa else ".0"
            return f"{mantissa}{exponent}{power.removeprefix('+')}"
        case tuple():
            return "{" + ",".join(map(text_of, term)) + "}"
        case list():
            if term and all(_is_shown(item) for item in term):
                return '"' + _escaped("".join(map(chr, term)), 34) + '"'
            return "[" + ",".join(map(text_of, term)) + "]"
    return str(term)


_SHOWN_SO = {code: name for name, code in ((n, ord(c)) for n, c in _ESCAPED.items() if n != "s")}


def _is_shown(item: object) -> bool:
    """Whether it is a character that Erlang prints in a quoted text."""
    if not isinstance(item, int):
        return False
    return 32 <= item < 127 or 160 <= item < 256 or item in _SHOWN_SO


def _escaped(text: str, quote: int) -> str:
    shown = {code: f"\\{name}" for code, name in _SHOWN_SO.items()}
    return text.translate({**shown, quote: f"\\{chr(quote)}", ord("\\"): "\\\\"})


# Octets

VERSION = 131
_SMALL_INTEGER, _INTEGER, _FLOAT, _SMALL_BIG, _LARGE_BIG = 97, 98, 70, 110, 111
_ATOM, _SMALL_ATOM, _ATOM_UTF8, _SMALL_ATOM_UTF8 = 100, 115, 118, 119
_SMALL_TUPLE, _LARGE_TUPLE, _NIL, _STRING, _LIST, _BINARY = 104, 105, 106, 107, 108, 109

_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_U16 = struct.Struct(">H")
_DOUBLE = struct.Struct(">d")


def encode(term: Term) -> bytes:
    """The octets of a term."""
    return bytes((VERSION,)) + _octets(term)


def _octets(term: Term) -> bytes:
    match term:
        case Atom():
            name = term.encode()
            return bytes((_ATOM_UTF8,)) + _U16.pack(len(name)) + name
        case bytes():
            return bytes((_BINARY,)) + _U32.pack(len(term)) + term
        case float():
            return bytes((_FLOAT,)) + _DOUBLE.pack(term)
        case int():
            return _integer(term)
        case tuple():
            small = len(term) < 256
            head = bytes((_SMALL_TUPLE, len(term))) if small else bytes((_LARGE_TUPLE,))
            head += b"" if small else _U32.pack(len(term))
            return head + b"".join(map(_octets, term))
    nil = bytes((_NIL,))
    if not term:
        return nil
    if len(term) < 1 << 16 and all(isinstance(item, int) and 0 <= item < 256 for item in term):
        return bytes((_STRING,)) + _U16.pack(len(term)) + bytes(term)
    return bytes((_LIST,)) + _U32.pack(len(term)) + b"".join(map(_octets, term)) + nil


def _integer(number: int) -> bytes:
    if 0 <= number < 256:
        return bytes((_SMALL_INTEGER, number))
    if -(1 << 31) <= number < 1 << 31:
        return bytes((_INTEGER,)) + _I32.pack(number)
    magnitude = abs(number)
    digits = magnitude.to_bytes((magnitude.bit_length() + 7) // 8, "little")
    if len(digits) < 256:
        return bytes((_SMALL_BIG, len(digits), number < 0)) + digits
    return bytes((_LARGE_BIG,)) + _U32.pack(len(digits)) + bytes((number < 0,)) + digits


def decode(octets: bytes) -> Term:
    """The term of the octets. Raises `NoTerm`."""
    reader = _OctetReader(octets)
    if reader.number(1) != VERSION:
        raise NoTerm("it does not begin as a term")
    term = reader.term(0)
    if reader.left:
        raise NoTerm("something follows the term")
    return term


class _OctetReader:
    """Reads octets from the front."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._octets) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise NoTerm("it ends too early")
        self._at += count
        return self._octets[self._at - count : self._at]

    def number(self, octets: int) -> int:
        return int.from_bytes(self.take(octets), "big")

    def term(self, depth: int) -> Term:
        if depth > DEPTH_MAX:
            raise NoTerm(f"more than {DEPTH_MAX} lists and tuples in one another")
        tag = self.number(1)
        read = _READ.get(tag)
        if read is not None:
            return read(self)
        if tag in (_SMALL_TUPLE, _LARGE_TUPLE):
            return tuple(self._terms(self.number(1 if tag == _SMALL_TUPLE else 4), depth))
        if tag != _LIST:
            raise NoTerm(f"it has a term of the kind {tag}")
        items = self._terms(self.number(4), depth)
        if self.number(1) != _NIL:
            raise NoTerm("it has a list without an end")
        return items

    def _terms(self, count: int, depth: int) -> list[Term]:
        if count > self.left:
            raise NoTerm("it ends too early")
        return [self.term(depth + 1) for _ in range(count)]

    def big(self, size_octets: int) -> int:
        size = self.number(size_octets)
        if size > INTEGER_OCTETS_MAX:
            raise NoTerm(f"it has an integer of {size} octets")
        negative = self.number(1)
        magnitude = int.from_bytes(self.take(size), "little")
        return -magnitude if negative else magnitude

    def atom(self, size_octets: int, encoding: str) -> Atom:
        return Atom(self.take(self.number(size_octets)).decode(encoding, "replace"))


_READ: Mapping[int, Callable[[_OctetReader], Term]] = {
    _SMALL_INTEGER: lambda reader: reader.number(1),
    _INTEGER: lambda reader: int.from_bytes(reader.take(4), "big", signed=True),
    _FLOAT: lambda reader: float(_DOUBLE.unpack(reader.take(8))[0]),
    _SMALL_BIG: lambda reader: reader.big(1),
    _LARGE_BIG: lambda reader: reader.big(4),
    _ATOM: lambda reader: reader.atom(2, "latin-1"),
    _SMALL_ATOM: lambda reader: reader.atom(1, "latin-1"),
    _ATOM_UTF8: lambda reader: reader.atom(2, "utf-8"),
    _SMALL_ATOM_UTF8: lambda reader: reader.atom(1, "utf-8"),
    _NIL: lambda reader: [],
    _STRING: lambda reader: list(reader.take(reader.number(2))),
    _BINARY: lambda reader: reader.take(reader.number(4)),
}
