"""What etcd holds so that a node with another secret than the cluster's hears of it at its start.

Without it such a node would be a member whom nobody can talk to. The secret cannot be computed
from the proof, and guessing it costs what scrypt makes it cost. Nobody gains entry by the proof:
the links have their own (`mirror/links/handshake.py`).

Key, below the prefix of the cluster: `cluster/secret`, salt and proof in hexadecimal. When no node
is up, whoever starts first says what the secret is, so that it can be changed.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from warren.mirror.definitions.etcd import EtcdClient
from warren.mirror.definitions.etcd_messages import (
    Range,
    Txn,
    end_of,
    modified_at,
    none_exists,
    put,
)

COST = 1 << 13
"""Takes some 20 ms and 8 MiB."""

TRIES_MAX = 10


class SecretProof(msgspec.Struct, frozen=True):
    salt: str
    proof: str

    @classmethod
    def of(cls, secret: bytes, salt: str) -> SecretProof:
        proof = hashlib.scrypt(secret, salt=bytes.fromhex(salt), n=COST, r=8, p=1)
        return cls(salt, proof.hex())

    def holds_for(self, secret: bytes) -> bool:
        return hmac.compare_digest(self.of(secret, self.salt).proof, self.proof)


async def is_secret_of(etcd: EtcdClient, prefix: str, secret: bytes, new_salt: str) -> bool:
    """Whether this is the cluster's secret; it is from now on, if no node is up.

    `new_salt` is in hexadecimal. Raises `EtcdError`.
    """
    root = prefix.rstrip("/").encode() + b"/"
    key, up = root + b"cluster/secret", root + b"up/"
    for _ in range(TRIES_MAX):
        found = (await etcd.range(Range(key))).kvs
        if found and _read(found[0].value).holds_for(secret):
            return True
        own = msgspec.json.encode(SecretProof.of(secret, new_salt))
        revision = found[0].mod_revision if found else 0
        nobody_up = [none_exists(up, end_of(up))] if found else []
        answer = await etcd.txn(
            Txn(compare=[modified_at(key, revision), *nobody_up], success=[put(key, own)])
        )
        if answer.succeeded:
            return True
        if found and (await etcd.range(Range(up, end_of(up)))).kvs:
            # Another that starts with us may have said what the secret is just before it came up.
            newest = (await etcd.range(Range(key))).kvs
            return bool(newest) and _read(newest[0].value).holds_for(secret)
    return False


def _read(value: bytes) -> SecretProof:
    try:
        return msgspec.json.decode(value, type=SecretProof)
    except msgspec.MsgspecError:
        # Nothing is proved by what cannot be read.
        return SecretProof("", "")
