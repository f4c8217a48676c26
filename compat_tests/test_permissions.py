"""Permissions on queues, exchanges and topics: reference 2.3. Needs an administrator."""

from collections.abc import Callable

import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.broker import Broker
from warren.compat_tests.factory import Raw
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Permissions"

# The permissions of `own_user`, as patterns; `restricted` opens a channel for that user.
Restricted = Callable[..., RawChannel]


@pytest.fixture
def restricted(raw: Raw, admin: Admin, own_user: str, vhost: str) -> Restricted:
    """A channel of a user who has the permissions of the given patterns only."""

    def channel(configure: str = "^$", write: str = "^$", read: str = "^$") -> RawChannel:
        admin.permit(vhost, own_user, configure, write, read)
        return raw(user=own_user, password="secret").channel()

    return channel


class Denied:
    """The reply texts of refusals, for one user in one vhost."""

    def __init__(self, user: str, vhost: str) -> None:
        self.tail = f"in vhost '{vhost}' refused for user '{user}'"

    def queue(self, name: str) -> str:
        return f"access to queue '{name}' {self.tail}"

    def exchange(self, name: str) -> str:
        return f"access to exchange '{name}' {self.tail}"

    def topic(self, key: str, exchange: str) -> str:
        return f"access to topic '{key}' in exchange '{exchange}' {self.tail}"


@pytest.fixture
def denied(own_user: str, vhost: str) -> Denied:
    return Denied(own_user, vhost)


@pytest.fixture
def things(ch: RawChannel, names: Names) -> tuple[str, str]:
    """A queue and a direct exchange that exist, made by the user of the URL."""
    queue, exchange = names.new(), names.new()
    ch.declare(queue)
    ch.declare_exchange(exchange)
    return queue, exchange


def test_vhost_without_permissions_is_not_allowed(
    raw: Raw, admin: Admin, own_user: str, own_vhost: str
) -> None:
    client = raw.connected()
    client.start()
    client.send_start_ok(user=own_user, password="secret")
    client.tune()
    client.send_method(0, "connection.open", virtual_host=own_vhost)
    client.expect_close(
        530, f"access to vhost '{own_vhost}' refused for user '{own_user}'", offender=(10, 40)
    )


def test_permissions_of_nothing_still_let_a_user_in(restricted: Restricted) -> None:
    restricted().ping()


def test_declaring_wants_configure(
    restricted: Restricted, denied: Denied, things: tuple[str, str], names: Names
) -> None:
    queue, exchange = things
    ch = restricted(write=".*", read=".*")
    fresh = names.new()
    ch.refused(403, denied.queue(fresh), "queue.declare", queue=fresh)
    ch.refused(403, denied.queue(queue), "queue.declare", queue=queue)
    ch.refused(403, denied.exchange(fresh), "exchange.declare", exchange=fresh, type="direct")
    ch.refused(403, denied.exchange(exchange), "exchange.declare", exchange=exchange, type="direct")


def test_passive_declare_wants_nothing(restricted: Restricted, things: tuple[str, str]) -> None:
    queue, exchange = things
    ch = restricted()
    ch.declare(queue, passive=True)
    ch.declare_exchange(exchange, passive=True)


def test_server_named_queue_wants_configure_for_its_name(restricted: Restricted) -> None:
    assert restricted(configure="^amq\\.gen.*$").own_queue().startswith("amq.gen-")
    ch = restricted(configure="^mine$")
    ch.send("queue.declare", exclusive=True)
    close = ch.expect("channel.close")
    assert close["reply_code"] == 403
    assert close["reply_text"].startswith("ACCESS_REFUSED - access to queue 'amq.gen-")


def test_deleting_wants_configure_even_for_what_is_missing(
    restricted: Restricted, denied: Denied, things: tuple[str, str], names: Names
) -> None:
    queue, exchange = things
    ch = restricted(write=".*", read=".*")
    ch.refused(403, denied.queue(queue), "queue.delete", queue=queue)
    ch.refused(403, denied.exchange(exchange), "exchange.delete", exchange=exchange)
    missing = names.new()
    ch.refused(403, denied.queue(missing), "queue.delete", queue=missing)
    ch.refused(403, denied.exchange(missing), "exchange.delete", exchange=missing)


@pytest.mark.parametrize("method", ["queue.bind", "queue.unbind"])
def test_binding_a_queue_wants_write_on_it_and_read_on_the_exchange(
    restricted: Restricted, denied: Denied, things: tuple[str, str], method: str
) -> None:
    queue, exchange = things
    pair = {"queue": queue, "exchange": exchange}
    restricted(write=queue, read=exchange).call(method, **pair)
    restricted(write="^$", read=exchange).refused(403, denied.queue(queue), method, **pair)
    restricted(write=queue, read="^$").refused(403, denied.exchange(exchange), method, **pair)
    restricted().refused(403, denied.queue(queue), method, **pair)


@pytest.mark.parametrize("method", ["exchange.bind", "exchange.unbind"])
def test_binding_an_exchange_wants_write_on_the_destination_and_read_on_the_source(
    restricted: Restricted, denied: Denied, things: tuple[str, str], method: str
) -> None:
    _, exchange = things
    pair = {"destination": exchange, "source": "amq.direct"}
    restricted(write=exchange, read="amq.direct").call(method, **pair)
    restricted(read=".*").refused(403, denied.exchange(exchange), method, **pair)
    restricted(write=".*").refused(403, denied.exchange("amq.direct"), method, **pair)
    restricted().refused(403, denied.exchange(exchange), method, **pair)


@pytest.mark.parametrize("method", ["basic.get", "basic.consume", "queue.purge"])
def test_reading_a_queue_wants_read(
    restricted: Restricted, denied: Denied, things: tuple[str, str], names: Names, method: str
) -> None:
    queue, _ = things
    ch = restricted(configure=".*", write=".*")
    ch.refused(403, denied.queue(queue), method, queue=queue)
    ch.send(method, queue=names.new())
    assert ch.expect("channel.close")["reply_code"] == 403
    ch = restricted(read=queue)
    ch.send(method, queue=queue)
    assert ch.next_method().name in ("basic.get-empty", "basic.consume-ok", "queue.purge-ok")


def test_publishing_wants_write_on_the_exchange(
    restricted: Restricted, denied: Denied, things: tuple[str, str], names: Names
) -> None:
    _, exchange = things
    ch = restricted(configure=".*", read=".*")
    for name, shown in ((exchange, exchange), ("", "amq.default")):
        ch.publish(b"m", "key", name)
        ch.expect_close(403, denied.exchange(shown), (60, 40))
        ch.call("channel.open")
    missing = names.new()
    ch.publish(b"m", "key", missing)
    ch.expect_close(403, denied.exchange(missing))
    ch = restricted(write=exchange)
    ch.publish(b"m", "key", exchange)
    ch.ping()


def test_default_exchange_is_tested_by_the_name_amq_default(restricted: Restricted) -> None:
    ch = restricted(write="^amq\\.default$")
    ch.publish(b"m", "key")
    ch.ping()


def test_patterns_are_searched_not_anchored(restricted: Restricted, names: Names) -> None:
    queue = names.new() + "-middle-end"
    ch = restricted(configure="middle")
    ch.declare(queue)
    ch.call("queue.delete", queue=queue)


def test_empty_pattern_matches_nothing(
    restricted: Restricted, denied: Denied, names: Names
) -> None:
    queue = names.new()
    restricted(configure="").refused(403, denied.queue(queue), "queue.declare", queue=queue)


def test_dead_letter_exchange_of_a_new_queue_wants_write_on_it_and_read_on_the_queue(
    restricted: Restricted, denied: Denied, names: Names
) -> None:
    queue, exchange = names.new(), names.new()
    fields = {"queue": queue, "arguments": {"x-dead-letter-exchange": exchange}}
    ch = restricted(configure=".*", read=".*")
    ch.refused(403, denied.exchange(exchange), "queue.declare", **fields)
    ch = restricted(configure=".*", write=".*")
    ch.refused(403, denied.queue(queue), "queue.declare", **fields)
    ch = restricted(configure=".*", write=exchange, read=queue)
    ch.call("queue.declare", **fields)


def test_alternate_exchange_of_a_new_exchange_wants_write_on_it_and_read_on_the_exchange(
    restricted: Restricted, denied: Denied, names: Names
) -> None:
    exchange, alternate = names.new(), names.new()
    arguments = {"alternate-exchange": alternate}
    fields = {"exchange": exchange, "type": "direct", "arguments": arguments}
    ch = restricted(configure=".*", read=".*")
    ch.refused(403, denied.exchange(alternate), "exchange.declare", **fields)
    ch = restricted(configure=".*", write=".*")
    ch.refused(403, denied.exchange(exchange), "exchange.declare", **fields)
    ch = restricted(configure=".*", write=alternate, read=exchange)
    ch.call("exchange.declare", **fields)


def test_topic_permissions_limit_publishing_and_binding(
    raw: Raw, admin: Admin, own_user: str, vhost: str, denied: Denied, names: Names
) -> None:
    exchange = names.new()
    ch = raw(user=own_user, password="secret").channel()
    ch.declare_exchange(exchange, "topic")
    queue = ch.own_queue()
    admin.permit_topic(vhost, own_user, exchange, write="^a\\.", read="^b\\.")
    ch.publish(b"m", "a.x", exchange)
    ch.bind(queue, exchange, "b.#")
    ch.refused(
        403,
        denied.topic("c.#", exchange),
        "queue.bind",
        queue=queue,
        exchange=exchange,
        routing_key="c.#",
    )
    ch.publish(b"m", "c.x", exchange)
    ch.expect_close(403, denied.topic("c.x", exchange), (60, 40))


def test_topic_permissions_know_the_name_of_the_user(
    raw: Raw, admin: Admin, own_user: str, vhost: str, denied: Denied, names: Names
) -> None:
    exchange = names.new()
    ch = raw(user=own_user, password="secret").channel()
    ch.declare_exchange(exchange, "topic")
    admin.permit_topic(vhost, own_user, exchange, write="^{username}\\.")
    ch.publish(b"m", f"{own_user}.x", exchange)
    ch.ping()
    ch.publish(b"m", "other.x", exchange)
    ch.expect_close(403, denied.topic("other.x", exchange))


def test_topic_permissions_are_of_topic_exchanges_only(
    raw: Raw, admin: Admin, own_user: str, vhost: str, names: Names
) -> None:
    exchange = names.new()
    ch = raw(user=own_user, password="secret").channel()
    ch.declare_exchange(exchange, "direct")
    admin.permit_topic(vhost, own_user, exchange, write="^$", read="^$")
    ch.publish(b"m", "any", exchange)
    ch.ping()


def test_user_with_the_tag_impersonator_may_use_any_user_id(
    raw: Raw, admin: Admin, own_user: str
) -> None:
    admin.put_user(own_user, "secret", tags="impersonator")
    ch = raw(user=own_user, password="secret").channel()
    queue = ch.own_queue()
    ch.publish(b"m", queue, user_id="somebody")
    assert ch.got(queue).properties == {"user_id": "somebody"}


def test_connection_stays_when_its_permissions_go(
    raw: Raw, admin: Admin, own_user: str, broker: Broker, denied: Denied, names: Names
) -> None:
    ch = raw(user=own_user, password="secret").channel()
    admin.call("DELETE", "permissions", broker.vhost, own_user)
    queue = names.new()
    ch.refused(403, denied.queue(queue), "queue.declare", queue=queue)


def test_user_without_a_password_cannot_log_in(raw: Raw, admin: Admin, own_user: str) -> None:
    admin.call("PUT", "users", own_user, body={"password_hash": "", "tags": ""})
    for password in ("", "secret"):
        client = raw.connected()
        client.start()
        client.send_start_ok(user=own_user, password=password)
        assert client.expect("connection.close", timeout_s=2.0)["reply_code"] == 403
