"""Serves a `KeyStore` as etcd's JSON gateway does: `EtcdClient` sees no difference.

Answerable for durable answers: no answer to a change, a question or a watch leaves before the
revision it names is on disk. So a revision that a node has heard of survives any crash. A lease
is not on disk, so it is kept alive while the disk takes no change, as when it is full.

This module imports aiohttp.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import msgspec
from aiohttp import web

from warren.core.ports import Clock, Commit
from warren.core.scheduling.periodic import Periodic
from warren.mirror.definitions.etcd_messages import (
    Header,
    KeepAliveAnswer,
    KeyValue,
    Range,
    Txn,
    WatchAnswer,
    WatchCreate,
    WatchLine,
)
from warren.mirror.definitions.key_store import Compacted, Declined, KeyStore

REQUEST_BYTES_MAX = 16 << 20
"""Ten times the limit of etcd at its defaults, which writers keep to."""
LEASE_CHECK_S = 0.25
HEAD = b"\0head"
"""The key on disk under which the revision is kept; keys of definitions begin with a slash."""

DECLINED_STATUS = 400


class KeyDisk(Protocol):
    """The disk of a store; `persist.definitions.key_file.KeyFile` implements it."""

    def load(self) -> dict[bytes, bytes]: ...

    def write(self, changes: Sequence[tuple[bytes, bytes | None]], /) -> Commit: ...


class KeptHead(msgspec.Struct, array_like=True):
    """The id and the revision of a store on disk."""

    cluster_id: int
    revision: int


class LeaseWanted(msgspec.Struct):
    """A request for a lease, or about one."""

    TTL: int = 0
    ID: int = 0


class WatchWanted(msgspec.Struct):
    create_request: WatchCreate


Handle: TypeAlias = Callable[[bytes], object]


class KeyGateway:
    """A store, its disk and its watchers. `start` and `stop` the check for expired leases."""

    def __init__(self, disk: KeyDisk, clock: Clock) -> None:
        """Raises what `load` raises, and msgspec's errors for unreadable values."""
        self._disk = disk
        self._clock = clock
        self._watchers: set[asyncio.Event] = set()
        self._written: Commit | None = None
        self._lease_check = Periodic(clock, self._end_leases)
        self.store = self._loaded()
        self._save()

    def add_to(self, app: web.Application) -> None:
        """Serve the requests of etcd's JSON gateway in an HTTP server."""
        for path, handle in (
            ("/v3/kv/range", self._range),
            ("/v3/kv/txn", self._txn),
            ("/v3/lease/grant", self._grant),
            ("/v3/lease/revoke", self._revoke),
        ):
            app.router.add_post(path, self._answering(handle))
        keep_alive = self._answering(self._keep_alive, names_revision=False)
        app.router.add_post("/v3/lease/keepalive", keep_alive)
        app.router.add_post("/v3/watch", self._watch)

    def start(self) -> None:
        self._lease_check.start()

    def stop(self) -> None:
        self._lease_check.stop()

    def end_lease_of(self, key: bytes) -> bool:
        """End the lease that keeps a key; returns whether there was one."""
        ended = self.store.end_lease_of(key)
        self._save()
        return ended

    def change(self, txn: Txn) -> None:
        """Carry out a transaction whose answer is not needed."""
        self.store.txn(txn)
        self._save()

    def _loaded(self) -> KeyStore:
        kept = self._disk.load()
        if HEAD not in kept:
            return KeyStore(secrets.randbits(62) + 1)
        head = msgspec.msgpack.decode(kept.pop(HEAD), type=KeptHead)
        values = [msgspec.msgpack.decode(value, type=KeyValue) for value in kept.values()]
        return KeyStore(head.cluster_id, head.revision, values)

    def _save(self) -> None:
        """Begin to write the changes to disk, and wake the watchers."""
        changed = self.store.take_changed()
        if not changed and self._written is not None:
            return
        head = KeptHead(self.store.cluster_id, self.store.revision)
        self._written = self._disk.write(
            [
                (HEAD, msgspec.msgpack.encode(head)),
                *(
                    (key, None if value is None else msgspec.msgpack.encode(value))
                    for key, value in changed
                ),
            ]
        )
        for watcher in self._watchers:
            watcher.set()

    def _end_leases(self, now: float) -> float:
        self.store.expire(now)
        self._save()
        return LEASE_CHECK_S

    # Requests

    def _answering(
        self, handle: Handle, *, names_revision: bool = True
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            body = await request.read()
            try:
                result = handle(body)
            except msgspec.MsgspecError as error:
                return _refusal(f"the request cannot be read: {error}", 3)
            except Declined as declined:
                return _refusal(str(declined), declined.code)
            content = msgspec.json.encode(result)
            self._save()
            if names_revision:
                await self._on_disk()
            return web.Response(body=content, content_type="application/json")

        return answer

    async def _on_disk(self) -> None:
        """Return when all changes made so far are on disk."""
        written = self._written
        if written is not None and not written.done:
            reached = asyncio.Event()
            written.then(reached.set)
            await reached.wait()

    def _range(self, body: bytes) -> object:
        return self.store.range(_read(body, Range))

    def _txn(self, body: bytes) -> object:
        return self.store.txn(_read(body, Txn))

    def _grant(self, body: bytes) -> object:
        wanted = _read(body, LeaseWanted)
        return self.store.grant(wanted.TTL, secrets.randbits(62) + 1, self._clock.now())

    def _keep_alive(self, body: bytes) -> object:
        wanted = _read(body, LeaseWanted)
        kept = self.store.keep_alive(wanted.ID, self._clock.now())
        # No revision is named, as it may not be on disk yet; nodes do not look at it.
        header = Header(self.store.cluster_id)
        return KeepAliveAnswer(msgspec.structs.replace(kept, header=header))

    def _revoke(self, body: bytes) -> object:
        self.store.revoke(_read(body, LeaseWanted).ID)
        return {}

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        wanted = _read(await request.read(), WatchWanted).create_request
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        changed = asyncio.Event()
        self._watchers.add(changed)
        # A client ends its watch by closing the connection.
        with suppress(ConnectionResetError):
            try:
                await self._tell(wanted, response, changed)
            finally:
                self._watchers.discard(changed)
        return response

    async def _tell(
        self, wanted: WatchCreate, response: web.StreamResponse, changed: asyncio.Event
    ) -> None:
        """Send events until the history they need is compacted, or the connection is closed."""
        start = wanted.start_revision or self.store.revision + 1
        await self._on_disk()
        await _say(response, WatchAnswer(self.store.header, created=True))
        while True:
            changed.clear()
            try:
                events = self.store.events(start, wanted.key, wanted.range_end)
            except Compacted as gone:
                answer = WatchAnswer(
                    self.store.header, canceled=True, compact_revision=gone.revision
                )
                await _say(response, answer)
                return
            start = max(start, self.store.revision + 1)
            if events:
                answer = WatchAnswer(self.store.header, events=events)
                await self._on_disk()
                await _say(response, answer)
            await changed.wait()


async def _say(response: web.StreamResponse, answer: WatchAnswer) -> None:
    await response.write(msgspec.json.encode(WatchLine(answer)) + b"\n")


def _read(body: bytes, kind: type[Any]) -> Any:
    return msgspec.json.decode(body, type=kind, strict=False)


def _refusal(message: str, code: int) -> web.Response:
    content = msgspec.json.encode({"message": message, "code": code})
    return web.Response(status=DECLINED_STATUS, body=content, content_type="application/json")
