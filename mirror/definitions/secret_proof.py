"""A proof of the cluster's secret in etcd: a node with another secret learns at its start that it
is wrong.

Without the proof such a node would be a member that no other node can talk to. The secret cannot be
computed from the proof, and guessing it is expensive because of scrypt. The proof does not give
access to the cluster: the links have their own (`mirror/links/handshake.py`).

Key, below the prefix of the cluster: `cluster/secret`, with salt and proof in hexadecimal. The
first node to start when none is up sets the secret, so that it can be changed.
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
"""The cost parameter of scrypt: one proof takes some 20 ms and 8 MiB."""

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
    """Whether this is the cluster's secret. It becomes that if there is none, or if no node is up.

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
            # A node that starts at the same time may have set the secret just before it came up.
            newest = (await etcd.range(Range(key))).kvs
            return bool(newest) and _read(newest[0].value).holds_for(secret)
    return False


def _read(value: bytes) -> SecretProof:
    try:
        return msgspec.json.decode(value, type=SecretProof)
    except msgspec.MsgspecError:
        # An unreadable proof holds for no secret.
        return SecretProof("", "")
