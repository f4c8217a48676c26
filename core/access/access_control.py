"""Users, passwords, tags and permissions: who may log in, and do which things.

Answerable for the rules of amqp_semantics.md sections 1.3 and 2.3 and for the texts a refused
client reads; not for SASL, nor for what HTTP makes of tags. Everything that is set is written to
the metadata store, and everything that is decided is read from it, so that definitions which
arrive by another way (an import, another node) count at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from warren.core.access.limits import validate_user_limits
from warren.core.access.password import (
    DEFAULT_ALGORITHM,
    SALT_BYTES,
    Passwords,
    check_algorithm,
    hash_password,
    password_matches,
)
from warren.core.definitions.records import (
    PermissionRecord,
    TopicPermissionRecord,
    UserRecord,
    VirtualHostRecord,
)
from warren.core.definitions.validation import NotThere, expect_vhost
from warren.core.errors import AccessRefused, BrokerError
from warren.core.patterns.pattern import compile_permission
from warren.core.patterns.stored_patterns import NO_VALUES, StoredPatterns
from warren.core.ports import Commit, Key, MetadataStore, Precondition, Write

Kind: TypeAlias = Literal["queue", "exchange"]
Permission: TypeAlias = Literal["configure", "write", "read"]
TopicPermission: TypeAlias = Literal["write", "read"]

DEFAULT_LOOPBACK_USERS = frozenset({"guest"})
# Permissions call the default exchange this; its own name is empty.
DEFAULT_EXCHANGE_SHOWN = "amq.default"

NAME_MAX = 255
"""Characters of a name: AMQP has no room for a longer one."""


class LoginRefused(BrokerError):
    """The login failed. The text is for the log; the peer must not learn the reason."""

    def __init__(self, user: str, reason: str, *, only_loopback: bool = False) -> None:
        super().__init__(f"user '{user}' - {reason}")
        self.user = user
        self.reason = reason
        self.only_loopback = only_loopback


class UserExists(BrokerError):
    """A user of that name is there already."""


class NoSuchUser(NotThere):
    """There is no user of that name."""


@dataclass(frozen=True, slots=True)
class User:
    """A user who logged in, with the tags of that moment.

    `unrestricted`: no permissions are asked for. That is the node itself, when it does what an
    operator set up; no client can log in as such a user.
    """

    name: str
    tags: frozenset[str]
    unrestricted: bool = False

    @property
    def impersonator(self) -> bool:
        """Whether `user_id` of a message may name another user."""
        return "impersonator" in self.tags


class AccessControl:
    """Users and permissions of a node, on top of its metadata store.

    `random_bytes(n)` gives the salts (`os.urandom`).
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        random_bytes: Callable[[int], bytes],
        loopback_users: Iterable[str] = DEFAULT_LOOPBACK_USERS,
        passwords: Passwords | None = None,
    ) -> None:
        self._store = store
        self._passwords = passwords or Passwords()
        self._random_bytes = random_bytes
        self._loopback_users = frozenset(loopback_users)
        self._patterns = StoredPatterns(compile_permission)
        self._permissions: dict[tuple[str, str], PermissionRecord] = {}
        self._topic_permissions: dict[tuple[str, str, str], TopicPermissionRecord] = {}
        for kind in ("permission", "topic_permission"):
            for key, record, _ in store.records((kind,)):
                self._changed(key, record)
            store.watch((kind,), self._changed)

    def authenticate(self, user: str, password: str, from_loopback: bool) -> User:
        """The user with this password. Raises `LoginRefused`."""
        record = self._record(user)
        # An unknown user costs as much time as a wrong password.
        probe = record or UserRecord(password_hash=bytes(36))
        matches = password_matches(password, probe.password_hash, probe.hashing_algorithm)
        if record is None or not matches:
            raise LoginRefused(user, "invalid credentials")
        return self._admit(user, record, from_loopback)

    def authenticate_by_certificate(self, user: str, from_loopback: bool) -> User:
        """The user a verified certificate names. Raises `LoginRefused`."""
        record = self._record(user)
        if record is None:
            raise LoginRefused(user, "no such user")
        return self._admit(user, record, from_loopback)

    def _admit(self, name: str, record: UserRecord, from_loopback: bool) -> User:
        if name in self._loopback_users and not from_loopback:
            raise LoginRefused(name, "can only connect via localhost", only_loopback=True)
        return User(name, frozenset(record.tags))

    def vhost_allowed(self, user: User, vhost: str) -> bool:
        """Whether the user has permissions of any kind in the virtual host."""
        return user.unrestricted or (user.name, vhost) in self._permissions

    def check_resource(
        self, user: User, vhost: str, kind: Kind, name: str, permission: Permission
    ) -> None:
        """Raise `AccessRefused` unless the user has the permission for that name."""
        if user.unrestricted:
            return
        if kind == "exchange" and not name:
            name = DEFAULT_EXCHANGE_SHOWN
        granted = self._permissions.get((user.name, vhost))
        if granted is None or not self._grants(granted, permission, name, user.name, vhost):
            raise AccessRefused(
                f"access to {kind} '{name}' in vhost '{vhost}' refused for user '{user.name}'"
            )

    def has_topic_permission(self, user: User, vhost: str, exchange: str) -> bool:
        """Whether the user has a topic permission for the exchange, so that `check_topic` may
        refuse a key."""
        return not user.unrestricted and (user.name, vhost, exchange) in self._topic_permissions

    def check_topic(
        self, user: User, vhost: str, exchange: str, routing_key: str, permission: TopicPermission
    ) -> None:
        """Raise `AccessRefused` if a topic permission for the exchange excludes the key."""
        if user.unrestricted:
            return
        granted = self._topic_permissions.get((user.name, vhost, exchange))
        values = _placeholders(user.name, vhost)
        if granted is not None and not self._grants(
            granted, permission, routing_key, user.name, vhost, values
        ):
            raise AccessRefused(
                f"access to topic '{routing_key}' in exchange '{exchange}' in vhost '{vhost}'"
                f" refused for user '{user.name}'"
            )

    def _grants(
        self,
        granted: PermissionRecord | TopicPermissionRecord,
        permission: Permission,
        name: str,
        user: str,
        vhost: str,
        values: Mapping[str, str] = NO_VALUES,
    ) -> bool:
        """Whether the pattern of this permission matches the name.

        A key in CC may be of any length, and searching it takes as long as it is long.
        """
        if len(name) > NAME_MAX:
            return False
        kind = "permission" if isinstance(granted, PermissionRecord) else "topic permission"
        owner = f"{permission} {kind} of user '{user}' in virtual host '{vhost}'"
        pattern: str = getattr(granted, permission)
        return self._patterns.matcher(pattern, owner, values).search(name) is not None

    def user_limits(self, user: str) -> Mapping[str, int]:
        """The limits set for the user, by name."""
        record = self._record(user)
        return record.limits if record is not None else {}

    def has_user(self, name: str) -> bool:
        return self._record(name) is not None

    def user(self, name: str) -> UserRecord:
        """Raises `NoSuchUser`."""
        record = self._record(name)
        if record is None:
            raise NoSuchUser(f"user '{name}' does not exist")
        return record

    def users(self) -> list[tuple[str, UserRecord]]:
        """All users by name."""
        found = []
        for key, record, _ in self._store.records(("user",)):
            assert isinstance(record, UserRecord)
            found.append((key[1], record))
        return found

    def add_user(self, name: str, password: str, tags: Iterable[str] = ()) -> Commit:
        """Raises `UserExists`, or `ValidationFailed` for a blank password."""
        if self._record(name) is not None:
            raise UserExists(f'User "{name}" already exists')
        return self._put_user(
            name, UserRecord(self._hashed(password), self._passwords.algorithm, list(tags))
        )

    def put_user(
        self,
        name: str,
        tags: Iterable[str],
        *,
        password: str | None = None,
        password_hash: bytes | None = None,
        hashing_algorithm: str = DEFAULT_ALGORITHM,
    ) -> Commit:
        """Make or overwrite a user, as HTTP and imports do; its limits stay.

        Without a password and a hash, or with an empty one, the user cannot log in with a password.
        A rule for passwords refuses the empty one, and a new user that has neither. Raises
        `ValidationFailed`.
        """
        if password:
            password_hash, hashing_algorithm = self._hashed(password), self._passwords.algorithm
        elif password is not None or (password_hash is None and self._record(name) is None):
            self._passwords.check("")
        return self._put_user(
            name,
            UserRecord(
                password_hash or b"",
                check_algorithm(hashing_algorithm),
                list(tags),
                dict(self.user_limits(name)),
            ),
        )

    def change_password(self, name: str, password: str) -> Commit:
        return self._update_user(
            name,
            password_hash=self._hashed(password),
            hashing_algorithm=self._passwords.algorithm,
        )

    def clear_password(self, name: str) -> Commit:
        return self._update_user(name, password_hash=b"")

    def set_user_limits(self, name: str, limits: Any) -> Commit:
        """Set the limits given and keep the others; raises `ValidationFailed`."""
        merged = {**self.user(name).limits, **validate_user_limits(limits)}
        return self._update_user(name, limits=merged)

    def clear_user_limits(self, name: str, limit: str | None = None) -> Commit:
        """Lift one limit, or all."""
        limits = self.user(name).limits
        kept = {} if limit is None else {key: n for key, n in limits.items() if key != limit}
        return self._update_user(name, limits=kept)

    def delete_user(self, name: str) -> Commit:
        """Delete the user and its permissions. The caller closes the user's connections."""
        self.user(name)
        writes = [Write(("user", name), None)]
        for kind in ("permission", "topic_permission"):
            writes += [Write(stored.key, None) for stored in self._store.records((kind, name))]
        return self._store.transact(writes)

    def set_permissions(
        self, user: str, vhost: str, configure: str, write: str, read: str
    ) -> Commit:
        """Raises `InvalidPattern`, `NoSuchUser` or `NoSuchVhost`."""
        for pattern in (configure, write, read):
            compile_permission(pattern)
        self._expect_both(user, vhost)
        record = PermissionRecord(configure, write, read)
        return self._store.transact([Write(("permission", user, vhost), record)])

    def clear_permissions(self, user: str, vhost: str) -> Commit:
        self._expect_both(user, vhost)
        return self._store.transact([Write(("permission", user, vhost), None)])

    def set_topic_permissions(
        self, user: str, vhost: str, exchange: str, write: str, read: str
    ) -> Commit:
        """Raises `InvalidPattern`, `NoSuchUser` or `NoSuchVhost`."""
        for pattern in (write, read):
            compile_permission(pattern, _placeholders(user, vhost))
        self._expect_both(user, vhost)
        record = TopicPermissionRecord(write, read)
        return self._store.transact([Write(("topic_permission", user, vhost, exchange), record)])

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> Commit:
        """Clear the user's topic permissions for one exchange, or for all of the virtual host."""
        self._expect_both(user, vhost)
        prefix: Key = ("topic_permission", user, vhost)
        if exchange is not None:
            return self._store.transact([Write((*prefix, exchange), None)])
        return self._store.transact(
            [Write(stored.key, None) for stored in self._store.records(prefix)]
        )

    def writes_to_forget_vhost(self, vhost: str) -> list[Write]:
        """The writes that delete the permissions in a virtual host together with it."""
        return [
            Write(stored.key, None)
            for kind in ("permission", "topic_permission")
            for stored in self._store.records((kind,))
            if stored.key[2] == vhost
        ]

    def _record(self, user: str) -> UserRecord | None:
        stored = self._store.get(("user", user))
        if stored is None:
            return None
        assert isinstance(stored.record, UserRecord)
        return stored.record

    def _hashed(self, password: str) -> bytes:
        return self._passwords.hashed(password, self._random_bytes(SALT_BYTES))

    def _update_user(self, name: str, **changes: Any) -> Commit:
        return self._put_user(name, msgspec.structs.replace(self.user(name), **changes))

    def _put_user(self, name: str, record: UserRecord) -> Commit:
        return self._store.transact([Write(("user", name), record)])

    def _expect_both(self, user: str, vhost: str) -> None:
        expect_vhost(self._store, vhost)
        self.user(user)

    def _changed(self, key: Key, record: object | None) -> None:
        """Keep the records of permissions in tables, where checks find them at once."""
        match key:
            case ("permission", user, vhost):
                self._permissions.pop((user, vhost), None)
                if record is not None:
                    assert isinstance(record, PermissionRecord)
                    self._permissions[user, vhost] = record
            case ("topic_permission", user, vhost, exchange):
                self._topic_permissions.pop((user, vhost, exchange), None)
                if record is not None:
                    assert isinstance(record, TopicPermissionRecord)
                    self._topic_permissions[user, vhost, exchange] = record


def create_defaults(
    store: MetadataStore,
    *,
    random_bytes: Callable[[int], bytes],
    user: str = "guest",
    password: str = "guest",
    vhost: str = "/",
    tags: Iterable[str] = ("administrator",),
    permissions: tuple[str, str, str] = (".*", ".*", ".*"),
) -> Commit | None:
    """Give an empty store a virtual host and a user who may do everything in it.

    None, and nothing written, if there is a user or a virtual host already.
    `permissions` are configure, write, read.
    """
    for kind in ("vhost", "user"):
        if next(store.records((kind,)), None) is not None:
            return None
    for pattern in permissions:
        compile_permission(pattern)
    hashed = hash_password(password, random_bytes(SALT_BYTES))
    return store.transact(
        [
            Write(("vhost", vhost), VirtualHostRecord(description="Default virtual host")),
            Write(("user", user), UserRecord(hashed, tags=list(tags))),
            Write(("permission", user, vhost), PermissionRecord(*permissions)),
        ],
        # If several nodes start at once, only the first of them writes.
        [Precondition(("vhost", vhost), 0), Precondition(("user", user), 0)],
    )


def _placeholders(user: str, vhost: str) -> dict[str, str]:
    return {"{username}": user, "{vhost}": vhost}
