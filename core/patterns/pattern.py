r"""The regular expressions of permissions and policies: PCRE's language on Python's engine.

RabbitMQ searches with PCRE, not anchored, on the bytes of a name. Here a pattern is translated
and then searched by `re` with ASCII classes (`\w`, `\d` and `(?i)` know ASCII letters only, as in
PCRE) on the characters of a name.

Translated: `(?<name>...)`, options in the middle such as `a(?i)b|c`, POSIX classes such as
`[[:alpha:]]`, `\z`, `\Z`, `\h`, `\x{41}`, `\Q...\E`. What `re` has no word for, such as recursion,
`\K`, `\R`, `\p{L}` or callouts, is refused when the pattern is set. One difference remains: `.`
is a character and not a byte.

A pattern can take long to compile, and time exponential in the length of a name to be searched for
(`(a+)+$`): what is too long, nested too deep, or too long with fixed repetitions written out, is
refused; `matcher.py` bounds the search.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from warren.core.definitions.validation import string
from warren.core.errors import BrokerError
from warren.core.patterns.matcher import PLAIN_LENGTH_MAX, Matcher, TooLarge, matcher

POSIX_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r" \t\n\r\f\v",
    "blank": r" \t",
    "punct": r"!-/:-@\[-`{-~",
    "print": r" -~",
    "graph": r"!-~",
    "cntrl": r"\x00-\x1f\x7f",
    "xdigit": "0-9a-fA-F",
    "word": r"\w",
    "ascii": r"\x00-\x7f",
}
# The reasons that `re` gives, in PCRE's words, and whether PCRE points at the end of the pattern.
PCRE_REASONS = {
    "missing ), unterminated subpattern": ("missing )", True),
    "unbalanced parenthesis": ("unmatched parentheses", False),
    "unterminated character set": ("missing terminating ] for character class", True),
    "bad escape (end of pattern)": ("\\ at end of pattern", True),
    "multiple repeat": ("nothing to repeat", False),
}
NESTING_MAX = 50
"""Groups within groups. `re` compiles them by recursion, which Python limits: the possible depth
would depend on the caller."""

COUNT_MAX = 65_535
"""PCRE's limit for a number in braces."""

SHOWN_MAX = 256
"""Characters of a pattern in the text of an error."""

HEAD_MAX = 16
"""Characters that tell what kind of group begins: options are six letters and a sign at most."""

COUNT = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")
OPTIONS = re.compile(r"\(\?[imsx]*(?:-[imsx]+)?\)")
POSIX_CLASS = re.compile(r"\[:(\^?)([a-z]+):\]")
HEX_ESCAPE = re.compile(r"\\x\{([0-9a-fA-F]{1,6})\}")
NEVER = re.compile(r"(?!)")
EMPTY = re.compile(r"^$")


class InvalidPattern(BrokerError):
    """A regular expression that is none, or that is beyond `re`.

    `reason` is an Erlang tuple such as `{"missing )",1}`.
    """

    def __init__(self, pattern: str, reason: str) -> None:
        shown = pattern if len(pattern) <= SHOWN_MAX else f"{pattern[:SHOWN_MAX]}..."
        super().__init__(f"invalid regular expression '{shown}': {reason}")
        self.pattern = shown
        self.reason = reason


class PatternTooLarge(InvalidPattern):
    """A pattern that would take too long to compile; PCRE may have taken it."""


def compile_pattern(
    pattern: str,
    values: Mapping[str, str] | None = None,
    *,
    ignore_case: bool = False,
    owner: str | None = None,
    strict: bool = False,
) -> Matcher:
    """The pattern ready to be searched for; raises `InvalidPattern`.

    `values` replace placeholders such as `{username}` and stand for themselves: a user whose name
    is `.*` does not match more than that. `owner` is whose pattern it is, for the log. `strict`:
    a search that takes too long raises `TooSlow`.
    """
    if len(pattern) > PLAIN_LENGTH_MAX:
        raise PatternTooLarge(pattern, _too_large(f"longer than {PLAIN_LENGTH_MAX} characters"))
    translation = _Translation(pattern, values or {})
    try:
        return matcher(
            translation.text,
            translation.written_out,
            ignore_case=ignore_case,
            owner=owner,
            strict=strict,
        )
    except TooLarge as error:
        raise PatternTooLarge(pattern, _too_large(str(error))) from None
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise InvalidPattern(pattern, _reason(pattern, error)) from None


def compile_permission(
    pattern: str, values: Mapping[str, str] | None = None, *, owner: str | None = None
) -> Matcher:
    """Like `compile_pattern`; an empty permission matches nothing but the empty name."""
    return compile_pattern(pattern, values, owner=owner) if pattern else EMPTY


def _too_large(why: str) -> str:
    return f"{{{string(f'regular expression is too large: {why}')},0}}"


def _reason(pattern: str, error: Exception) -> str:
    if not isinstance(error, re.error):
        unknown = isinstance(error, ValueError)
        text = "option is not supported" if unknown else "regular expression is too large"
        return f"{{{string(text)},0}}"
    text, at_end = PCRE_REASONS.get(error.msg, (error.msg, False))
    position = len(pattern) if at_end else error.pos or 0
    return f"{{{string(text)},{position}}}"


class _Translation:
    """One pass over a PCRE pattern that writes the same for `re`.

    `re` allows options only around a group, so `a(?i)b|c` becomes `a(?i:b)|(?i:c)`: each open
    group, and the pattern as a whole, keeps the options set in it, closes them before `|` and `)`
    and opens them again after `|`.

    `written_out` is the length of the text if all that is repeated `{n}` times were written n
    times; `_lengths` are those of the open groups, `_last` that of what a count would repeat.
    """

    def __init__(self, pattern: str, values: Mapping[str, str]) -> None:
        self.pattern = pattern
        self.values = values
        self.at = 0
        self.out: list[str] = []
        self.options: list[list[str]] = [[]]
        self._lengths = [0]
        self._last = 0
        while self.at < len(pattern):
            self._step()
        self._emit(")" * len(self.options[0]))
        self.text = "".join(self.out)
        self.written_out = sum(self._lengths)

    def _emit(self, text: str, consumed: int = 0) -> None:
        self.out.append(text)
        self.at += consumed
        self._lengths[-1] += len(text)
        self._last = len(text)

    def _step(self) -> None:
        match self.pattern[self.at]:
            case "\\":
                self._escape()
            case "[":
                self._character_class()
            case "(":
                self._group()
            case ")":
                closing = self.options.pop() if len(self.options) > 1 else []
                self._emit(")" * len(closing) + ")", 1)
                if len(self._lengths) > 1:
                    self._last = self._lengths.pop()
                    self._lengths[-1] += self._last
            case "|":
                opened = self.options[-1]
                self._emit(")" * len(opened) + "|" + "".join(opened), 1)
            case "{":
                self._brace()
            case other:
                self._emit(other, 1)

    def _brace(self) -> None:
        """Translate a brace: a count, a placeholder, or else the brace itself, because the engine
        for slow patterns knows other meanings, such as `{e}`, which allows errors."""
        if counts := COUNT.match(self.pattern, self.at):
            least = self._count(counts[1])
            self._count(counts[2] or "0")
            repeated = self._last * max(least, 1)
            self._lengths[-1] += repeated - self._last
            self._emit(counts[0], len(counts[0]))
            self._last += repeated
        elif not self._placeholder():
            self._emit(r"\{", 1)

    def _count(self, digits: str) -> int:
        if len(digits) > len(str(COUNT_MAX)) or int(digits) > COUNT_MAX:
            reason = f"{{{string('number too big in {} quantifier')},{self.at}}}"
            raise InvalidPattern(self.pattern, reason)
        return int(digits)

    def _placeholder(self) -> bool:
        for placeholder, value in self.values.items():
            if self.pattern.startswith(placeholder, self.at):
                self._emit(re.escape(value), len(placeholder))
                return True
        return False

    def _group(self) -> None:
        rest = self.pattern[self.at : self.at + HEAD_MAX]
        if rest.startswith("(?#"):
            end = self.pattern.find(")", self.at)
            self.at = len(self.pattern) if end < 0 else end + 1
        elif (options := OPTIONS.match(rest)) and len(options[0]) > 3:
            opening = options[0][:-1] + ":"
            self.options[-1].append(opening)
            self._check_nesting()
            self._emit(opening, len(options[0]))
        else:
            self.options.append([])
            self._check_nesting()
            self._lengths.append(0)
            named = rest.startswith("(?<") and rest[3:4] not in ("=", "!")
            self._emit("(?P<" if named else "(", 3 if named else 1)

    def _check_nesting(self) -> None:
        if len(self.options) + sum(map(len, self.options)) > NESTING_MAX:
            reason = f"{{{string('parentheses are too deeply nested')},{self.at}}}"
            raise InvalidPattern(self.pattern, reason)

    def _escape(self) -> None:
        if not self._translate_escape():
            letter = self.pattern[self.at + 1 : self.at + 2]
            special = {"z": r"\Z", "Z": r"(?=\n?\Z)", "h": r"[ \t]", "E": ""}
            self._emit(special.get(letter, "\\" + letter), 1 + len(letter))

    def _character_class(self) -> None:
        """Translate a class up to its closing bracket; a `]` that comes first, or after `^`, is
        itself."""
        self._emit("[", 1)
        if self._next() == "^":
            self._emit("^", 1)
        if self._next() == "]":
            self._emit(r"\]", 1)
        while (character := self._next()) not in ("]", ""):
            if character == "\\":
                self._escape_in_class()
            elif posix := POSIX_CLASS.match(self.pattern, self.at):
                self._posix_class(posix)
            elif character == "{" and self._placeholder():
                pass
            else:
                # `re` announces a meaning for these inside a class; here they are themselves.
                special = character in "[&~|" or self.pattern.startswith("--", self.at - 1)
                self._emit("\\" + character if special else character, 1)
        self._emit(character, len(character))

    def _escape_in_class(self) -> None:
        if not self._translate_escape():
            letter = self.pattern[self.at + 1 : self.at + 2]
            special = {"h": r" \t", "E": ""}
            self._emit(special.get(letter, "\\" + letter), 1 + len(letter))

    def _translate_escape(self) -> bool:
        """Translate an escape that means the same inside a class and outside of it; False if none
        is here."""
        if hexadecimal := HEX_ESCAPE.match(self.pattern, self.at):
            code = int(hexadecimal[1], 16)
            self._emit(re.escape(chr(min(code, 0x10FFFF))), len(hexadecimal[0]))
            return True
        if self.pattern.startswith(r"\Q", self.at):
            end = self.pattern.find(r"\E", self.at)
            literal = self.pattern[self.at + 2 : end if end >= 0 else None]
            self._emit(re.escape(literal), 2 + len(literal) + (2 if end >= 0 else 0))
            return True
        return False

    def _posix_class(self, posix: re.Match[str]) -> None:
        negated, name = posix.groups()
        members = POSIX_CLASSES.get(name)
        if members is None or negated:
            reason = f"{{{string('unknown POSIX class name')},{self.at}}}"
            raise InvalidPattern(self.pattern, reason)
        self._emit(members, len(posix[0]))

    def _next(self) -> str:
        return self.pattern[self.at : self.at + 1]
