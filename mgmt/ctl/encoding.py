"""Encrypted values of configurations: encoding, decoding, and the ciphers and hashes for that."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from warren.extras import install_command
from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import command, option, optional
from warren.mgmt.ctl.erlang_term import Atom, NoTerm, parse, text_of
from warren.mgmt.ctl.errors import BadArgument, CtlError, Exit
from warren.mgmt.ctl.formats import Answer, Document
from warren.mgmt.ctl.sealed_term import (
    CIPHERS,
    DEFAULT_CIPHER,
    DEFAULT_HASH,
    DEFAULT_ITERATIONS,
    HASHES,
    CannotUnseal,
    Lock,
    seal,
    unseal,
)

LINE_MAX = 80

ITERATIONS_MAX = 100_000_000
"""More iterations would take minutes."""

UNREADABLE = (
    "Failed to decrypt the value. Things to check: is the passphrase correct?"
    " Are the cipher and hash algorithms the same as those used for encryption?"
)

VALUE, PASSPHRASE = optional("value"), optional("passphrase")
CIPHER = option("--cipher", metavar="CIPHER", default=DEFAULT_CIPHER, help="See list_ciphers.")
HASH = option("--hash", metavar="HASH", default=DEFAULT_HASH, help="See list_hashes.")
ITERATIONS = option(
    "--iterations", type=int, metavar="N", default=DEFAULT_ITERATIONS, help="Of the hash [1]."
)


@command(
    "encode",
    "Encrypt a value of a configuration, as RabbitMQ reads it.",
    VALUE,
    PASSPHRASE,
    CIPHER,
    HASH,
    ITERATIONS,
)
def encode_value(
    call: CommandCall,
    value: str | None,
    passphrase: str | None,
    cipher: str,
    hash: str,
    iterations: int,
) -> Answer:
    lock = _lock(cipher, hash, iterations)
    call.announce("Encrypting value ...")
    given = _asked("Value to encode", value)
    try:
        term = parse(given)
    except NoTerm as error:
        raise CtlError(
            f"the value is no Erlang term: {error}; write a text as '\"text\"' or '<<\"text\">>'"
        ) from error
    secret = _asked("Passphrase", passphrase, hidden=True)
    try:
        sealed = seal(term, secret, lock)
    except ImportError as error:
        raise _missing_package() from error
    return text_of((Atom("encrypted"), sealed))


@command(
    "decode",
    "Decrypt a value of a configuration that was encrypted here or by RabbitMQ.",
    VALUE,
    PASSPHRASE,
    CIPHER,
    HASH,
    ITERATIONS,
)
def decode_value(
    call: CommandCall,
    value: str | None,
    passphrase: str | None,
    cipher: str,
    hash: str,
    iterations: int,
) -> Answer:
    lock = _lock(cipher, hash, iterations)
    call.announce("Decrypting value...")
    sealed = _sealed_in(_asked("Value to decode", value))
    secret = _asked("Passphrase", passphrase, hidden=True)
    try:
        return text_of(unseal(sealed, secret, lock))
    except CannotUnseal as error:
        raise CtlError(UNREADABLE) from error
    except ImportError as error:
        raise _missing_package() from error


@command("list_ciphers", "List the ciphers of encode and decode.")
def list_ciphers(call: CommandCall) -> Answer:
    call.announce("Listing supported ciphers ...")
    return _names(CIPHERS)


@command("list_hashes", "List the hash functions of encode and decode.")
def list_hashes(call: CommandCall) -> Answer:
    call.announce("Listing supported hash algorithms ...")
    return _names(HASHES)


def _names(names: Iterable[str]) -> Document:
    """An Erlang list, in lines as long as Erlang makes them."""
    lines, line = [], "["
    for name in names:
        if len(line) + len(name) >= LINE_MAX:
            lines.append(line)
            line = " "
        line += f"{name},"
    lines.append(line[:-1] + "]")
    return Document("\n".join(lines), {"result": "ok", "value": list(names)}, alone=True)


def _lock(cipher: str, hash: str, iterations: int) -> Lock:
    if cipher not in CIPHERS:
        raise BadArgument("The requested cipher is not supported.")
    if hash not in HASHES:
        raise BadArgument("The requested hash is not supported")
    if not 0 < iterations <= ITERATIONS_MAX:
        raise BadArgument("The requested number of iterations is incorrect")
    return Lock(cipher, hash, iterations)


def _asked(what: str, given: str | None, *, hidden: bool = False) -> str:
    """The argument, or the answer to a prompt, or the next line of the piped input."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        prompted: str = click.prompt(what, hide_input=hidden, err=True)
        return prompted
    line = sys.stdin.readline()
    if not line:
        raise CtlError("not_enough_args")
    return line.rstrip("\n")


def _sealed_in(text: str) -> bytes:
    """The value in base64: from `{encrypted,<<"...">>}`, from a binary, or the text itself."""
    try:
        term = parse(text)
    except NoTerm:
        return text.encode()
    match term:
        case (Atom("encrypted"), bytes() as sealed) | (bytes() as sealed):
            return sealed
    return text.encode()


def _missing_package() -> CtlError:
    command = install_command("encode")
    return CtlError(f"this needs the package cryptography: {command}", Exit.CONFIG)
