"""Who may log in and who may do what, with the texts a refused client reads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

import pytest

from warren.core.access.access_control import (
    AccessControl,
    LoginRefused,
    NoSuchUser,
    User,
    UserExists,
    create_defaults,
)
from warren.core.access.password import Passwords
from warren.core.definitions.records import PermissionRecord, UserRecord, VirtualHostRecord
from warren.core.definitions.validation import NoSuchVhost, ValidationFailed
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.errors import AccessRefused
from warren.core.patterns.pattern import InvalidPattern
from warren.core.ports import Write


@pytest.fixture
def store() -> VolatileMetadataStore:
    store = VolatileMetadataStore()
    store.transact([Write(("vhost", "/"), VirtualHostRecord())])
    return store


@pytest.fixture
def access(store: VolatileMetadataStore) -> AccessControl:
    return AccessControl(store, random_bytes=os.urandom)


def granted(access: AccessControl, configure: str, write: str, read: str) -> User:
    access.add_user("bob", "secret")
    access.set_permissions("bob", "/", configure, write, read)
    return access.authenticate("bob", "secret", from_loopback=False)


class TestLogin:
    def test_the_right_password_admits(self, access: AccessControl) -> None:
        access.add_user("bob", "secret", ["management", "impersonator"])
        user = access.authenticate("bob", "secret", from_loopback=False)
        assert user == User("bob", frozenset({"management", "impersonator"}))
        assert user.impersonator
        access.put_user("bob", [], password="secret")
        assert not access.authenticate("bob", "secret", from_loopback=False).impersonator

    @pytest.mark.parametrize(
        ("user", "password"),
        [("bob", "wrong"), ("bob", ""), ("nobody", "secret"), ("nobody", ""), ("bob", "\ud800")],
    )
    def test_anything_else_is_refused_alike(
        self, access: AccessControl, user: str, password: str
    ) -> None:
        access.add_user("bob", "secret")
        with pytest.raises(LoginRefused) as refused:
            access.authenticate(user, password, from_loopback=True)
        assert refused.value.text == f"user '{user}' - invalid credentials"
        assert not refused.value.only_loopback

    @pytest.mark.parametrize("stored_hash", [b"", b"salt", b"short"])
    def test_without_a_hash_no_password_is_right(
        self, access: AccessControl, stored_hash: bytes
    ) -> None:
        access.put_user("bob", [], password_hash=stored_hash)
        for password in ("", "x"):
            with pytest.raises(LoginRefused):
                access.authenticate("bob", password, from_loopback=True)

    def test_guest_logs_in_from_the_own_machine_only(self, store: VolatileMetadataStore) -> None:
        access = AccessControl(store, random_bytes=os.urandom)
        access.add_user("guest", "guest")
        access.authenticate("guest", "guest", from_loopback=True)
        with pytest.raises(LoginRefused) as refused:
            access.authenticate("guest", "guest", from_loopback=False)
        assert refused.value.only_loopback
        with pytest.raises(LoginRefused):
            access.authenticate_by_certificate("guest", from_loopback=False)
        open_to_all = AccessControl(store, random_bytes=os.urandom, loopback_users=())
        open_to_all.authenticate("guest", "guest", from_loopback=False)

    def test_a_certificate_needs_a_user_but_no_password(self, access: AccessControl) -> None:
        access.put_user("CN=bob", ["monitoring"])
        user = access.authenticate_by_certificate("CN=bob", from_loopback=False)
        assert user.tags == {"monitoring"}
        with pytest.raises(LoginRefused):
            access.authenticate_by_certificate("CN=eve", from_loopback=False)

    @pytest.mark.parametrize(
        ("algorithm", "digest"),
        [
            ("rabbit_password_hashing_sha256", hashlib.sha256),
            ("rabbit_password_hashing_sha512", hashlib.sha512),
            ("rabbit_password_hashing_md5", hashlib.md5),
        ],
    )
    def test_hashes_of_other_brokers_are_understood(
        self, access: AccessControl, algorithm: str, digest: Callable[[bytes], hashlib._Hash]
    ) -> None:
        hashed = b"salt" + digest(b"salt" + "pä55".encode()).digest()
        access.put_user("bob", [], password_hash=hashed, hashing_algorithm=algorithm)
        access.authenticate("bob", "pä55", from_loopback=True)
        with pytest.raises(LoginRefused):
            access.authenticate("bob", "pass", from_loopback=True)

    def test_equal_passwords_have_different_hashes(self, access: AccessControl) -> None:
        access.add_user("a", "same")
        access.add_user("b", "same")
        assert access.user("a").password_hash != access.user("b").password_hash
        assert len(access.user("a").password_hash) == 36


class TestUsers:
    def test_a_user_cannot_be_added_twice(self, access: AccessControl) -> None:
        access.add_user("bob", "secret")
        with pytest.raises(UserExists, match='User "bob" already exists'):
            access.add_user("bob", "other")

    def test_a_blank_password_is_refused(self, access: AccessControl) -> None:
        with pytest.raises(ValidationFailed, match="blank"):
            access.add_user("bob", "")
        access.add_user("bob", "secret")
        with pytest.raises(ValidationFailed, match="blank"):
            access.change_password("bob", "")
        access.authenticate("bob", "secret", from_loopback=True)

    def test_passwords_change_and_are_cleared(self, access: AccessControl) -> None:
        access.put_user(
            "bob", [], password_hash=b"", hashing_algorithm="rabbit_password_hashing_md5"
        )
        access.change_password("bob", "new")
        access.authenticate("bob", "new", from_loopback=True)
        access.clear_password("bob")
        with pytest.raises(LoginRefused):
            access.authenticate("bob", "new", from_loopback=True)

    def test_overwriting_a_user_keeps_its_limits(self, access: AccessControl) -> None:
        access.add_user("bob", "secret")
        access.set_user_limits("bob", {"max-channels": 3})
        access.put_user("bob", ["administrator"], password="other")
        assert access.user("bob").tags == ["administrator"]
        assert access.user_limits("bob") == {"max-channels": 3}

    def test_an_unknown_algorithm_is_refused(self, access: AccessControl) -> None:
        with pytest.raises(ValidationFailed, match="rot13"):
            access.put_user("bob", [], password_hash=b"x", hashing_algorithm="rot13")

    def test_limits_are_merged_and_lifted(self, access: AccessControl) -> None:
        access.add_user("bob", "secret")
        access.set_user_limits("bob", {"max-channels": 3})
        access.set_user_limits("bob", {"max-connections": -1})
        assert access.user("bob").limits == {"max-channels": 3, "max-connections": -1}
        assert access.user_limits("nobody") == {}
        access.clear_user_limits("bob", "max-channels")
        assert access.user("bob").limits == {"max-connections": -1}
        access.clear_user_limits("bob")
        assert access.user("bob").limits == {}
        with pytest.raises(ValidationFailed, match="Unrecognised terms"):
            access.set_user_limits("bob", {"bogus": 1})

    def test_deleting_a_user_takes_its_permissions_along(
        self, access: AccessControl, store: VolatileMetadataStore
    ) -> None:
        bob = granted(access, ".*", ".*", ".*")
        access.set_topic_permissions("bob", "/", "amq.topic", "^a", "^a")
        access.delete_user("bob")
        assert not access.vhost_allowed(bob, "/")
        assert [stored.key for stored in store.records(())] == [("vhost", "/")]
        with pytest.raises(NoSuchUser):
            access.delete_user("bob")

    def test_users_are_listed_by_name(self, access: AccessControl) -> None:
        for name in ("b", "a"):
            access.add_user(name, "x")
        assert [name for name, _ in access.users()] == ["a", "b"]


class TestRulesForPasswords:
    def test_a_password_that_breaks_the_rule_is_refused(self, store: VolatileMetadataStore) -> None:
        AccessControl(store, random_bytes=os.urandom).add_user("ann", "12345678")
        for passwords in (Passwords(length_min=8), Passwords(pattern="^.{8,}$")):
            access = AccessControl(store, random_bytes=os.urandom, passwords=passwords)
            for attempt in (
                lambda access: access.add_user("new", "1234567"),
                lambda access: access.put_user("new", [], password="1234567"),
                lambda access: access.change_password("ann", "1234567"),
            ):
                with pytest.raises(ValidationFailed):
                    attempt(access)
            access.add_user("new", "12345678")
            access.delete_user("new")

    @pytest.mark.parametrize("rule", [{"length_min": 8}, {"pattern": "^.{8,}$"}])
    def test_an_empty_password_breaks_it_and_no_password_for_a_new_user(
        self, store: VolatileMetadataStore, rule: dict[str, Any]
    ) -> None:
        AccessControl(store, random_bytes=os.urandom).add_user("ann", "12345678")
        access = AccessControl(store, random_bytes=os.urandom, passwords=Passwords(**rule))
        for name, given in (("ann", {"password": ""}), ("new", {"password": ""}), ("new", {})):
            with pytest.raises(ValidationFailed):
                access.put_user(name, [], **given)
        access.authenticate("ann", "12345678", True)
        # An empty hash, and a user that is there and gets no password, are no matter of the rule.
        access.put_user("new", [], password_hash=b"")
        access.put_user("ann", [])
        for name in ("ann", "new"):
            assert access.user(name).password_hash == b""

    def test_without_a_rule_an_empty_password_is_none(self, store: VolatileMetadataStore) -> None:
        access = AccessControl(store, random_bytes=os.urandom)
        access.put_user("ann", [], password="")
        with pytest.raises(LoginRefused):
            access.authenticate("ann", "", True)

    def test_a_hash_and_a_password_of_before_are_not_looked_at(
        self, store: VolatileMetadataStore
    ) -> None:
        AccessControl(store, random_bytes=os.urandom).add_user("old", "short")
        access = AccessControl(store, random_bytes=os.urandom, passwords=Passwords(length_min=8))
        access.authenticate("old", "short", True)
        access.put_user("copy", [], password_hash=access.user("old").password_hash)
        access.authenticate("copy", "short", True)

    def test_the_hash_may_be_another(self, store: VolatileMetadataStore) -> None:
        algorithm = "rabbit_password_hashing_sha512"
        access = AccessControl(store, random_bytes=os.urandom, passwords=Passwords(algorithm))
        access.add_user("long", "secret")
        assert access.user("long").hashing_algorithm == algorithm
        assert len(access.user("long").password_hash) == 4 + 64
        access.authenticate("long", "secret", True)


class TestResourcePermissions:
    def test_each_permission_has_its_own_pattern(self, access: AccessControl) -> None:
        bob = granted(access, "^c", "^w", "^r")
        access.check_resource(bob, "/", "queue", "c1", "configure")
        access.check_resource(bob, "/", "queue", "w1", "write")
        access.check_resource(bob, "/", "exchange", "r1", "read")
        for name, permission in (("c1", "write"), ("w1", "read"), ("r1", "configure")):
            with pytest.raises(AccessRefused):
                access.check_resource(bob, "/", "queue", name, permission)  # type: ignore[arg-type]

    def test_the_text_names_what_was_refused_to_whom(self, access: AccessControl) -> None:
        bob = granted(access, "", "", "")
        with pytest.raises(AccessRefused) as refused:
            access.check_resource(bob, "/", "queue", "orders", "read")
        assert refused.value.text == "access to queue 'orders' in vhost '/' refused for user 'bob'"
        with pytest.raises(AccessRefused) as refused:
            access.check_resource(bob, "/", "exchange", "", "write")
        assert refused.value.text == (
            "access to exchange 'amq.default' in vhost '/' refused for user 'bob'"
        )

    def test_patterns_are_searched_not_anchored(self, access: AccessControl) -> None:
        bob = granted(access, "rder", "^amq\\.default$", "")
        access.check_resource(bob, "/", "queue", "orders", "configure")
        access.check_resource(bob, "/", "exchange", "", "write")
        with pytest.raises(AccessRefused):
            access.check_resource(bob, "/", "queue", "orders", "read")

    def test_without_permissions_in_the_vhost_nothing_is_allowed(
        self, access: AccessControl
    ) -> None:
        bob = granted(access, ".*", ".*", ".*")
        assert access.vhost_allowed(bob, "/")
        assert not access.vhost_allowed(bob, "other")
        with pytest.raises(AccessRefused):
            access.check_resource(bob, "other", "queue", "q", "read")
        access.clear_permissions("bob", "/")
        assert not access.vhost_allowed(bob, "/")

    def test_permissions_without_any_right_still_open_the_vhost(
        self, access: AccessControl
    ) -> None:
        assert access.vhost_allowed(granted(access, "", "", ""), "/")

    def test_user_and_vhost_must_exist(self, access: AccessControl) -> None:
        with pytest.raises(NoSuchUser):
            access.set_permissions("nobody", "/", "", "", "")
        access.add_user("bob", "secret")
        with pytest.raises(NoSuchVhost):
            access.set_permissions("bob", "nowhere", "", "", "")

    def test_a_pattern_that_is_none_is_refused_when_set(
        self, access: AccessControl, store: VolatileMetadataStore
    ) -> None:
        access.add_user("bob", "secret")
        with pytest.raises(InvalidPattern) as invalid:
            access.set_permissions("bob", "/", ".*", "(", ".*")
        assert invalid.value.reason == '{"missing )",1}'
        assert list(store.records(("permission",))) == []

    def test_a_stored_pattern_that_is_none_matches_nothing(
        self, access: AccessControl, store: VolatileMetadataStore
    ) -> None:
        bob = granted(access, "", "", "")
        store.transact([Write(("permission", "bob", "/"), PermissionRecord("(", ".*", ".*"))])
        access.check_resource(bob, "/", "queue", "q", "write")
        with pytest.raises(AccessRefused):
            access.check_resource(bob, "/", "queue", "q", "configure")


class TestTopicPermissions:
    def test_without_a_row_every_topic_is_allowed(self, access: AccessControl) -> None:
        bob = granted(access, "", "", "")
        access.check_topic(bob, "/", "amq.topic", "a.b", "write")

    def test_the_text_names_the_topic(self, access: AccessControl) -> None:
        bob = granted(access, "", "", "")
        access.set_topic_permissions("bob", "/", "amq.topic", "^a", "^b")
        access.check_topic(bob, "/", "amq.topic", "a.b", "write")
        access.check_topic(bob, "/", "other", "x", "write")
        with pytest.raises(AccessRefused) as refused:
            access.check_topic(bob, "/", "amq.topic", "a.b", "read")
        assert refused.value.text == (
            "access to topic 'a.b' in exchange 'amq.topic' in vhost '/' refused for user 'bob'"
        )

    def test_placeholders_stand_for_the_user_and_the_vhost(self, access: AccessControl) -> None:
        access.add_user("b.*b", "secret")
        bob = User("b.*b", frozenset())
        access.set_topic_permissions("b.*b", "/", "x", "^{username}\\.{vhost}$", "")
        access.check_topic(bob, "/", "x", "b.*b./", "write")
        for key in ("bxxb./", "b.*b.v", "{username}.{vhost}"):
            with pytest.raises(AccessRefused):
                access.check_topic(bob, "/", "x", key, "write")

    def test_rows_are_cleared_one_by_one_or_all(self, access: AccessControl) -> None:
        bob = granted(access, "", "", "")
        for exchange in ("x", "y", "z"):
            access.set_topic_permissions("bob", "/", exchange, "", "")
        access.clear_topic_permissions("bob", "/", "x")
        access.check_topic(bob, "/", "x", "k", "write")
        with pytest.raises(AccessRefused):
            access.check_topic(bob, "/", "y", "k", "write")
        access.clear_topic_permissions("bob", "/")
        access.check_topic(bob, "/", "y", "k", "write")


def test_what_is_in_the_store_counts_from_the_start(access: AccessControl) -> None:
    bob = granted(access, "^a", "", "")
    access.set_topic_permissions("bob", "/", "x", "^k", "")
    again = AccessControl(access._store, random_bytes=os.urandom)
    again.check_resource(bob, "/", "queue", "a", "configure")
    with pytest.raises(AccessRefused):
        again.check_topic(bob, "/", "x", "z", "write")


def test_deleting_a_vhost_can_take_its_permissions_along(
    access: AccessControl, store: VolatileMetadataStore
) -> None:
    bob = granted(access, ".*", ".*", ".*")
    access.set_topic_permissions("bob", "/", "x", "", "")
    store.transact([Write(("vhost", "v"), VirtualHostRecord())])
    access.set_permissions("bob", "v", "", "", "")
    store.transact(access.writes_to_forget_vhost("/"))
    assert not access.vhost_allowed(bob, "/")
    assert access.vhost_allowed(bob, "v")
    access.check_topic(bob, "/", "x", "k", "write")


class TestDefaults:
    def test_an_empty_store_gets_guest(self) -> None:
        store = VolatileMetadataStore()
        assert create_defaults(store, random_bytes=os.urandom) is not None
        access = AccessControl(store, random_bytes=os.urandom)
        guest = access.authenticate("guest", "guest", from_loopback=True)
        assert guest.tags == {"administrator"}
        access.check_resource(guest, "/", "queue", "anything", "configure")
        assert store.get(("vhost", "/")) is not None

    def test_a_store_in_use_is_left_alone(self, store: VolatileMetadataStore) -> None:
        assert create_defaults(store, random_bytes=os.urandom) is None
        assert list(store.records(("user",))) == []
        store = VolatileMetadataStore()
        store.transact([Write(("user", "bob"), UserRecord(b""))])
        assert create_defaults(store, random_bytes=os.urandom) is None
        assert list(store.records(("vhost",))) == []

    def test_other_defaults_can_be_asked_for(self) -> None:
        store = VolatileMetadataStore()
        create_defaults(
            store,
            random_bytes=os.urandom,
            user="admin",
            password="s3cret",
            vhost="prod",
            tags=(),
            permissions=("", ".*", ".*"),
        )
        access = AccessControl(store, random_bytes=os.urandom)
        admin = access.authenticate("admin", "s3cret", from_loopback=False)
        assert admin.tags == frozenset()
        with pytest.raises(AccessRefused):
            access.check_resource(admin, "prod", "queue", "q", "configure")
