"""Encrypted values of configurations, as RabbitMQ 3.10 encodes them.

A value is the base64 of a salt of 16 octets, an initialisation vector (16 octets for all ciphers
here) and the cipher text. The key is PBKDF2 of the passphrase with the salt. The plain text is the
term (`erlang_term.py`), padded to whole blocks by octets that give the number of padding octets;
with ciphers that have no blocks that is one octet.

Ciphers come from the package `cryptography` (the extra `encode`), which is imported when a value is
encoded or decoded.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from warren.mgmt.ctl.erlang_term import NoTerm, Term, decode, encode

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import Cipher

SALT_BYTES = 16
VECTOR_BYTES = 16

DEFAULT_CIPHER = "aes_128_cbc"
DEFAULT_HASH = "sha256"
DEFAULT_ITERATIONS = 1


class CannotUnseal(ValueError):
    """The value cannot be decrypted: wrong passphrase, cipher or hash, or no such value."""


class Suite(NamedTuple):
    """A cipher: `family` with a mode, the size of its key, and of the blocks that are padded."""

    family: str
    mode: str
    key_bytes: int
    block_bytes: int


class Lock(NamedTuple):
    """How a value is encrypted."""

    cipher: str
    hash: str
    iterations: int


def _suites() -> dict[str, Suite]:
    suites = {"chacha20": Suite("chacha20", "", 32, 1)}
    for mode, block_bytes in (("cbc", 16), ("ctr", 1), ("ofb", 1), ("cfb8", 1), ("cfb128", 1)):
        for bits in (256, 192, 128):
            suites[f"aes_{bits}_{mode}"] = Suite("aes", mode, bits // 8, block_bytes)
    for mode in ("cbc", "cfb128", "cfb8", "ctr"):
        # Names without a number of bits stand for the smallest key.
        suites[f"aes_{mode}"] = suites[f"aes_128_{mode}"]
    return suites


CIPHERS: Mapping[str, Suite] = _suites()
"""Ciphers by RabbitMQ's names."""

_HASHES = {
    "blake2s": "blake2s",
    "blake2b": "blake2b",
    "sha3_512": "sha3_512",
    "sha3_384": "sha3_384",
    "sha3_256": "sha3_256",
    "sha3_224": "sha3_224",
    "sha512": "sha512",
    "sha384": "sha384",
    "sha256": "sha256",
    "sha224": "sha224",
    "sha": "sha1",
    "ripemd160": "ripemd160",
    "md5": "md5",
}

HASHES = tuple(name for name, known in _HASHES.items() if known in hashlib.algorithms_available)
"""Hashes by RabbitMQ's names, without those that this machine's OpenSSL lacks."""


def seal(
    term: Term,
    passphrase: str,
    lock: Lock,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> bytes:
    """The encrypted term, in base64. Raises `ImportError` without `cryptography`."""
    suite = CIPHERS[lock.cipher]
    salt, vector = random_bytes(SALT_BYTES), random_bytes(VECTOR_BYTES)
    plain = encode(term)
    missing = suite.block_bytes - len(plain) % suite.block_bytes
    encryptor = _cipher(suite, _key(passphrase, salt, lock), vector).encryptor()
    sealed = encryptor.update(plain + bytes((missing,)) * missing) + encryptor.finalize()
    return base64.b64encode(salt + vector + sealed)


def unseal(value: bytes, passphrase: str, lock: Lock) -> Term:
    """The term that was encrypted. Raises `CannotUnseal`, and `ImportError` as `seal` does."""
    suite = CIPHERS[lock.cipher]
    try:
        octets = base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise CannotUnseal from error
    salt, vector = octets[:SALT_BYTES], octets[SALT_BYTES : SALT_BYTES + VECTOR_BYTES]
    sealed = octets[SALT_BYTES + VECTOR_BYTES :]
    if not sealed or len(sealed) % suite.block_bytes:
        raise CannotUnseal
    decryptor = _cipher(suite, _key(passphrase, salt, lock), vector).decryptor()
    padded = decryptor.update(sealed) + decryptor.finalize()
    try:
        return decode(padded[: -padded[-1]])
    except NoTerm as error:
        raise CannotUnseal from error


def _key(passphrase: str, salt: bytes, lock: Lock) -> bytes:
    size = CIPHERS[lock.cipher].key_bytes
    return hashlib.pbkdf2_hmac(_HASHES[lock.hash], passphrase.encode(), salt, lock.iterations, size)


def _cipher(suite: Suite, key: bytes, vector: bytes) -> Cipher[Any]:
    from cryptography.hazmat.decrepit.ciphers import modes as older_modes
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if suite.family == "chacha20":
        return Cipher(algorithms.ChaCha20(key, vector), None)
    kinds: Mapping[str, Callable[[bytes], modes.Mode]] = {
        "cbc": modes.CBC,
        "ctr": modes.CTR,
        "ofb": older_modes.OFB,
        "cfb8": older_modes.CFB8,
        "cfb128": older_modes.CFB,
    }
    return Cipher(algorithms.AES(key), kinds[suite.mode](vector))
