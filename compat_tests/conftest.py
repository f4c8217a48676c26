"""Options and fixtures of the conformance suite."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from warren.compat_tests.admin import Admin
from warren.compat_tests.api import Api, Colleague
from warren.compat_tests.broker import DEFAULT_URL, Broker, parse_url
from warren.compat_tests.factory import Raw
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import Silence, SocketClosed, Surprise

RUN = uuid.uuid4().hex[:6]
TESTS = itertools.count(1)

NO_MANAGEMENT = (
    "needs --management http://user:password@host:port, an administrator's management API"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "AMQP 0-9-1 conformance")
    group.addoption("--broker", default=DEFAULT_URL, help=f"broker under test ({DEFAULT_URL})")
    group.addoption("--management", default=None, help="its HTTP management API, if any")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: waits for a timer of the broker, seconds long")


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> Broker:
    """The broker under test; the run ends here when it does not answer."""
    address = parse_url(pytestconfig.getoption("--broker"))
    try:
        RawClient(address).open().close()
    except (OSError, SocketClosed, Silence, Surprise) as error:
        pytest.exit(f"No AMQP broker to test at {address}: {error}", returncode=3)
    return address


@pytest.fixture(scope="session")
def vhost(broker: Broker) -> str:
    """The vhost of the broker's URL, as reply texts name it."""
    return broker.vhost


@pytest.fixture
def raw(broker: Broker, names: Names) -> Iterator[Raw]:
    """A factory of raw-frame clients. It asks for `names` so that they are closed first."""
    factory = Raw(broker)
    yield factory
    factory.close_all()


@pytest.fixture
def client(raw: Raw) -> RawClient:
    """An open raw connection."""
    return raw()


@pytest.fixture
def ch(client: RawClient) -> RawChannel:
    """An open channel of `client`."""
    return client.channel()


@pytest.fixture
def names(broker: Broker) -> Iterator[Names]:
    """Unique names for queues and exchanges, which are deleted after the test."""
    given = Names(f"cf-{RUN}-{next(TESTS)}")
    yield given
    given.remove_all(broker)


@pytest.fixture
def queue(ch: RawChannel, names: Names) -> str:
    """A transient queue that any connection may use."""
    name = names.new()
    ch.declare(name)
    return name


@pytest.fixture
def connection(broker: Broker, names: Names) -> Iterator[pika.BlockingConnection]:
    """A connection of an ordinary client library."""
    credentials = pika.PlainCredentials(broker.user, broker.password)
    opened = pika.BlockingConnection(
        pika.ConnectionParameters(broker.host, broker.port, broker.vhost, credentials, heartbeat=0)
    )
    yield opened
    if opened.is_open:
        opened.close()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> Any:
    """A channel of an ordinary client library."""
    return connection.channel()


@pytest.fixture(scope="session")
def admin(pytestconfig: pytest.Config) -> Admin:
    """The administrator; tests that need one are skipped when there is none."""
    url = pytestconfig.getoption("--management")
    if not url:
        pytest.skip(NO_MANAGEMENT)
    return Admin(url)


@pytest.fixture
def own_vhost(admin: Admin, broker: Broker, names: Names) -> Iterator[str]:
    """A vhost of the test's own, in which the user of the URL may do everything."""
    name = names.new()
    admin.put_vhost(name)
    admin.permit(name, broker.user)
    yield name
    admin.forget("vhosts", name)


@pytest.fixture
def own_user(admin: Admin, broker: Broker, names: Names) -> Iterator[str]:
    """A user with the password `secret` and all permissions in the vhost of the URL."""
    name = names.new()
    admin.put_user(name, "secret")
    admin.permit(broker.vhost, name)
    yield name
    admin.forget("users", name)


@pytest.fixture
def api(admin: Admin, pytestconfig: pytest.Config) -> Api:
    """The management API as the administrator sees it."""
    return Api.of_url(pytestconfig.getoption("--management"))


@pytest.fixture
def colleague(api: Api, admin: Admin, names: Names) -> Iterator[Callable[[str], Colleague]]:
    """Makes users of the management API, from their tags; they have no permissions yet."""
    made: list[str] = []

    def make(tags: str) -> Colleague:
        name = names.new()
        made.append(name)
        admin.put_user(name, "secret", tags)
        return Colleague(name, api.asked_by(name, "secret"))

    yield make
    for name in made:
        admin.forget("users", name)
