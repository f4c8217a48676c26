"""`from warren import Broker`: a real broker in the process of whoever needs one."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from warren import Broker
from warren.compat_tests.raw_client import RawClient
from warren.persist.disk.data_directory import DataDirectoryRefused

pytest_plugins = ["pytester"]


def test_the_lines_of_the_documentation_run() -> None:
    with Broker() as broker, pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("hello")
        channel.basic_publish("", "hello", b"world")
        assert channel.basic_get("hello", auto_ack=True)[2] == b"world"


def test_nothing_is_left_when_it_ends(connect: Callable[..., RawClient], tmp_path: Path) -> None:
    threads = threading.active_count()
    with Broker(data_dir=tmp_path / "data") as broker:
        client = connect(broker)
        port = broker.port
        assert threading.active_count() > threads
        client.close()
    assert threading.active_count() == threads
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    # Sockets and files that were not closed would be reported as warnings, which are errors here.
    gc.collect()


def test_two_brokers_know_nothing_of_each_other(connect: Callable[..., RawClient]) -> None:
    with Broker() as one, Broker() as other:
        assert one.port != other.port
        clients = [connect(broker) for broker in (one, other)]
        clients[0].channel().declare("only in one")
        assert not clients[1].channel().queue_exists("only in one")
        for client in clients:
            client.close()


def test_a_broker_can_be_stopped_and_started_again(connect: Callable[..., RawClient]) -> None:
    broker = Broker()
    broker.stop()  # Nothing to stop yet.
    for _ in range(2):
        broker.start()
        channel = connect(broker).channel()
        assert not channel.queue_exists("q"), "without a data directory each start is the first"
        channel.declare("q", durable=True)
        channel.client.close()
        broker.stop()
        broker.stop()


def test_starting_a_running_broker_is_refused(connect: Callable[..., RawClient]) -> None:
    with Broker() as broker:
        port = broker.port
        with pytest.raises(RuntimeError, match="running"):
            broker.start()
        assert broker.port == port
        connect(broker).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_data_directory_keeps_definitions(
    connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    broker = Broker(data_dir=tmp_path / "data")
    with broker:
        broker.add_vhost("v")
        broker.add_user("ann", "secret")
        broker.set_permissions("ann", "v")
        broker.set_policy("p", "^q$", {"max-length": 1}, vhost="v")
        channel = connect(broker.url_for("v", "ann", "secret")).channel()
        channel.declare("q", durable=True)
        channel.declare("transient")
        channel.client.close()
    with broker:
        channel = connect(broker.url_for("v", "ann", "secret")).channel()
        assert not channel.queue_exists("transient")
        channel.publish(b"one", "q")
        channel.publish(b"two", "q")
        assert channel.bodies("q") == [b"two"]
        channel.client.close()


def test_a_port_in_use_is_raised_by_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = Broker(port=taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            broker.start()
    # It is not broken: with the port free it starts.
    with broker:
        assert broker.port


def test_a_locked_data_directory_is_raised_by_start(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data"):
        with pytest.raises(DataDirectoryRefused, match="in use by another process"):
            Broker(data_dir=tmp_path / "data").start()
    with Broker(data_dir=tmp_path / "data"):
        pass


def test_a_failed_start_lets_go_of_the_data_directory(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError):
            Broker(data_dir=tmp_path / "data", port=taken.getsockname()[1]).start()
    with Broker(data_dir=tmp_path / "data"):
        pass


def test_an_unknown_option_is_raised_at_once() -> None:
    with pytest.raises(TypeError, match="heart_beat"):
        Broker(heart_beat=10)


def test_options_are_those_of_the_configuration(connect: Callable[..., RawClient]) -> None:
    with Broker(heartbeat_s=7, channel_max=5, default_user="me", default_pass="p/w") as broker:
        assert broker.url.startswith("amqp://me:p%2Fw@127.0.0.1:")
        client = connect(broker, handshake=False)
        client.start()
        client.send_start_ok()
        offer = client.tune()
        assert (offer["heartbeat"], offer["channel_max"]) == (7, 5)
        client.abandon()


def test_what_a_called_function_raises_is_raised(warren_broker: Broker) -> None:
    assert warren_broker.call(lambda node: node.name) == "warren@localhost"
    with pytest.raises(ZeroDivisionError):
        warren_broker.call(lambda node: 1 // 0)
    assert warren_broker.call(lambda node: threading.current_thread().name) == "warren-broker"


def test_changes_that_are_refused_are_raised(warren_broker: Broker) -> None:
    with pytest.raises(Exception, match="nobody"):
        warren_broker.set_permissions("nobody", "/")
    with pytest.raises(Exception, match="max-lenght"):
        warren_broker.set_policy("p", ".*", {"max-lenght": 1})


def test_deleting_a_user_or_virtual_host_closes_its_connections(
    warren_broker: Broker, connect: Callable[..., RawClient]
) -> None:
    warren_broker.add_vhost("v")
    warren_broker.add_user("ann", "secret")
    warren_broker.set_permissions("ann", "/")
    ann = connect(warren_broker.url_for(user="ann", password="secret"))
    guest = connect(warren_broker.url_for("v"))
    warren_broker.delete_user("ann")
    ann.expect_close(320, "user 'ann' is deleted")
    warren_broker.delete_vhost("v")
    guest.expect_close(320, "vhost 'v' is deleted")
    connect(warren_broker).close()


def test_the_fixture_gives_every_test_a_broker_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pika, pytest

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(warren_broker, number):
            with pika.BlockingConnection(pika.URLParameters(warren_broker.url)) as connection:
                channel = connection.channel()
                queue = channel.queue_declare("q", durable=True)
                assert queue.method.message_count == 0
                channel.basic_publish("", "q", b"x")
        """
    )
    pytester.runpytest_subprocess("-W", "error").assert_outcomes(passed=2)


def test_the_plugin_costs_nothing_to_those_who_do_not_use_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert "warren.pytest_plugin" in sys.modules
            assert not {"uvloop", "lmdb", "warren.node", "warren.embedded"} & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
