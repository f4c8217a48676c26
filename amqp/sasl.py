"""SASL mechanisms (amqp_semantics.md section 1.3): from a response to a user name and password.

`core/access/access_control.py` decides whether these are right. A response that does not have the
form of its mechanism is a `SyntaxFault`; the client is not told of it.
"""

from __future__ import annotations

from typing import NamedTuple

from warren.amqp.field_table import TableError, decode_fields
from warren.core.field import to_text

TLS_ONLY = frozenset({"EXTERNAL"})
_TEXTS = frozenset("Sx")
"""The types of fields that hold text."""
_CR_DEMO_ANSWER = b"My password is "


class SyntaxFault(Exception):
    """The response does not follow its mechanism."""


class Credentials(NamedTuple):
    """The user who logs in. `password` None: a certificate has proved the name already."""

    user: str
    password: str | None


class Challenge(NamedTuple):
    """The question that the client is to answer next."""

    octets: bytes


def offered(mechanisms: tuple[str, ...], tls: bool) -> tuple[str, ...]:
    """The mechanisms to offer on a listener with or without TLS."""
    return tuple(name for name in mechanisms if tls or name not in TLS_ONLY)


class Dialogue:
    """One authentication in progress."""

    __slots__ = ("_user", "mechanism")

    def __init__(self, mechanism: str) -> None:
        self.mechanism = mechanism
        self._user: str | None = None

    def respond(self, response: bytes, certificate_name: str | None) -> Credentials | Challenge:
        """Take the client's response. Raises `SyntaxFault`."""
        match self.mechanism:
            case "PLAIN":
                return _plain(response)
            case "AMQPLAIN":
                return _amqplain(response)
            case "EXTERNAL":
                # Without a certificate the name is empty, and no user has an empty name.
                return Credentials(certificate_name or "", None)
            case "RABBIT-CR-DEMO":
                return self._demo(response)
            case other:
                raise SyntaxFault(f"no such mechanism: {other}")

    def _demo(self, response: bytes) -> Credentials | Challenge:
        if self._user is None:
            self._user = to_text(response)
            return Challenge(b"Please tell me your password")
        if not response.startswith(_CR_DEMO_ANSWER):
            raise SyntaxFault("the response to the challenge has another form")
        return Credentials(self._user, to_text(response[len(_CR_DEMO_ANSWER) :]))


def _plain(response: bytes) -> Credentials:
    parts = response.split(b"\0")
    if len(parts) != 3 or parts[0]:
        raise SyntaxFault("a PLAIN response is NUL, user, NUL, password")
    return Credentials(to_text(parts[1]), to_text(parts[2]))


def _amqplain(response: bytes) -> Credentials:
    try:
        fields = decode_fields(response)
    except TableError as error:
        raise SyntaxFault(str(error)) from error
    login, password = fields.get("LOGIN"), fields.get("PASSWORD")
    if login is None or password is None or login.kind not in _TEXTS:
        raise SyntaxFault("an AMQPLAIN response has LOGIN and PASSWORD")
    # A PASSWORD field that is not text counts as an empty password, which is wrong for every user.
    return Credentials(
        to_text(login.value), to_text(password.value) if password.kind in _TEXTS else ""
    )
