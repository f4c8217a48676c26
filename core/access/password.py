"""Password hashes as RabbitMQ keeps them: four bytes of salt, then the digest of salt and password.

A hash is bytes here; exports show it in base64. The empty hash is that of a user who cannot log in
with a password (policies_and_parameters.md section 5).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from warren.core.definitions.validation import ValidationFailed
from warren.core.patterns.pattern import compile_permission

SALT_BYTES = 4
DEFAULT_ALGORITHM = "rabbit_password_hashing_sha256"
# The algorithm of exports older than 3.6, which do not name one.
OLDEST_ALGORITHM = "rabbit_password_hashing_md5"
ALGORITHMS: dict[str, Callable[[bytes], Any]] = {
    "rabbit_password_hashing_sha256": hashlib.sha256,
    "rabbit_password_hashing_sha512": hashlib.sha512,
    # MD5 verifies passwords of old exports; hardened systems allow it only when it says so.
    "rabbit_password_hashing_md5": lambda data: hashlib.md5(data, usedforsecurity=False),
}


class Passwords:
    """How new passwords are hashed, and what they must be like.

    A password has `length_min` characters or more, and `pattern` is found in it. Passwords that
    were given before, and hashes, are not looked at.
    """

    def __init__(
        self, algorithm: str = DEFAULT_ALGORITHM, length_min: int = 0, pattern: str | None = None
    ) -> None:
        self.algorithm = check_algorithm(algorithm)
        self._length_min = length_min
        self._pattern = None if pattern is None else compile_permission(pattern)

    def hashed(self, password: str, salt: bytes) -> bytes:
        """The hash to keep. Raises `ValidationFailed`."""
        hashed = hash_password(password, salt, self.algorithm)
        self.check(password)
        return hashed

    def check(self, password: str) -> None:
        """Raise `ValidationFailed` unless it is what a password must be like."""
        if len(password) < self._length_min:
            raise ValidationFailed(
                f"passwords need {self._length_min} characters or more, this has {len(password)}"
            )
        if self._pattern is not None and not self._pattern.search(password):
            raise ValidationFailed("the password is not like this node's rule for passwords")


def hash_password(password: str, salt: bytes, algorithm: str = DEFAULT_ALGORITHM) -> bytes:
    """The hash to keep. Raises `ValidationFailed` for a blank password."""
    assert len(salt) == SALT_BYTES, salt
    if not password:
        raise ValidationFailed("password cannot be blank")
    try:
        secret = password.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValidationFailed("password is not valid Unicode") from None
    return _hash(secret, salt, check_algorithm(algorithm))


def check_algorithm(algorithm: str) -> str:
    """The algorithm, if it is one of ours; raises `ValidationFailed`."""
    if algorithm not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise ValidationFailed(f"hashing algorithm '{algorithm}' unknown; should be one of {known}")
    return algorithm


def password_matches(password: str, stored_hash: bytes, algorithm: str) -> bool:
    """Whether this is the password; a blank password and an empty hash never match.

    Takes as long whether or not it matches.
    """
    if not password or len(stored_hash) <= SALT_BYTES or algorithm not in ALGORITHMS:
        return False
    try:
        secret = password.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return hmac.compare_digest(_hash(secret, stored_hash[:SALT_BYTES], algorithm), stored_hash)


def _hash(secret: bytes, salt: bytes, algorithm: str) -> bytes:
    digest: bytes = ALGORITHMS[algorithm](salt + secret).digest()
    return salt + digest
