"""Decisions of a broker with several processes: the role of each, and which is started again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from warren.addresses import AddressRefused
from warren.amqp.accepting import bind
from warren.config import ClusterConfig, Config, Listener
from warren.core.resources.memory_monitor import Absolute, Fraction
from warren.mgmt.metrics.merging import merged
from warren.mgmt.processes.child import Child
from warren.mgmt.processes.deaths import DEATHS_MAX, WITHIN_S, Deaths
from warren.mgmt.processes.plan import ProcessPlan, Shared, name_of, too_few
from warren.mgmt.processes.reserved_ports import ReservedPorts
from warren.mgmt.processes.supervisor import usable

PORTS = Shared((Listener("::", 5672),), (), (Listener("::", 15672),), (), (), ())


def plan(config: Config, size: int = 4) -> ProcessPlan:
    return ProcessPlan(config, "warren@h", size, PORTS, b"a secret of links")


class TestChild:
    def test_its_lines_are_passed_on_but_for_the_one_that_says_it_is_ready(self) -> None:
        # Longer than what is read at once, and than a line of a StreamReader may be.
        long = b"x" * 200_000 + b"\n"
        printed: list[bytes] = []

        async def read() -> str | None:
            process = SimpleNamespace(stdout=asyncio.StreamReader())
            child = Child(cast(asyncio.subprocess.Process, process), printed.append)
            ready = b"warren a@b ready: amqp 5672\n"
            process.stdout.feed_data(b"first\n" + long + ready + b"without end")
            process.stdout.feed_eof()
            await child._reading
            return child.ready_line

        assert asyncio.run(read()) == "warren a@b ready: amqp 5672"
        assert printed == [b"first\n", long, b"without end"]


class TestDeaths:
    def test_the_first_one_costs_no_time_and_the_next_ones_more_and_more(self) -> None:
        deaths = Deaths()
        pauses = [deaths.note(now) for now in (0.0, 1.0, 2.0, 3.0)]
        assert pauses == [0.0, 0.25, 0.5, 1.0]

    def test_after_too_many_in_a_minute_it_is_left(self) -> None:
        deaths = Deaths()
        assert [deaths.note(0.0) for _ in range(DEATHS_MAX)][-1] is None

    def test_those_of_long_ago_are_forgotten(self) -> None:
        deaths = Deaths()
        for number in range(100):
            assert deaths.note(number * WITHIN_S / (DEATHS_MAX - 1)) is not None
        assert deaths.count == 100
        assert deaths.note(1e6) == 0.0


class TestPlan:
    def test_the_first_process_has_the_data_directory_and_the_name(self) -> None:
        config = plan(Config(data_dir=Path("d"))).configuration(1)
        assert (config.data_dir, config.node_name) == (Path("d"), "warren@h")

    def test_the_others_have_names_and_directories_of_their_own(self) -> None:
        config = plan(Config(data_dir=Path("d"))).configuration(3)
        assert (config.data_dir, config.node_name) == (Path("d/processes/3"), "warren-3@h")
        assert name_of("rabbit", 2) == "rabbit-2"

    def test_together_they_take_what_one_would_be_allowed(self) -> None:
        shared = plan(Config(data_dir=Path("d"), memory_watermark=Fraction(0.4)))
        assert shared.configuration(2).memory_watermark == Fraction(0.1)
        shared = plan(Config(data_dir=Path("d"), memory_watermark=Absolute(1000)))
        assert shared.configuration(2).memory_watermark == Absolute(250)

    def test_they_are_called_one_cluster(self) -> None:
        shared = plan(Config(data_dir=Path("d")))
        first, second = shared.configuration(1), shared.configuration(2)
        assert first.cluster_name == second.cluster_name == "warren@h"

    def test_without_etcd_definitions_and_links_stay_on_the_machine(self) -> None:
        told = ClusterConfig((), b"", lease_ttl_s=3, queue_master_locator="random")
        config = plan(Config(data_dir=Path("d"), process_cluster=told)).configuration(2)
        cluster = config.cluster
        assert cluster is not None and cluster.etcd_socket is not None
        assert cluster.etcd_socket.is_absolute()
        assert cluster.listener == Listener("127.0.0.1", 0)
        assert (cluster.secret, cluster.machine) == (b"a secret of links", "warren@h")
        assert (cluster.lease_ttl_s, cluster.queue_master_locator) == (3, "random")

    def test_in_a_cluster_each_listens_for_links_at_a_port_of_its_own(self) -> None:
        told = ClusterConfig(("http://e:2379",), b"s", listener=Listener("::", 25672))
        shared = plan(Config(data_dir=Path("d"), cluster=told))
        listeners = [shared.configuration(number).cluster for number in (1, 3)]
        assert [one.listener.port for one in listeners if one is not None] == [25672, 25674]

    def test_fewer_are_refused_while_one_that_would_be_missing_has_queues(self) -> None:
        queues = {"warren@h": 5, "warren-3@h": 2, "warren-2@h": 1}
        reason = too_few("warren@h", 1, queues, largest=4)
        assert reason is not None
        assert "1 in process 2, 2 in process 3" in reason and "--processes 3" in reason
        assert too_few("warren@h", 3, queues, largest=4) is None

    def test_auto_is_one_for_each_core_that_may_be_used(self) -> None:
        assert usable("auto") == len(os.sched_getaffinity(0))
        assert usable(3) == 3


class TestPorts:
    def test_any_port_becomes_one_that_all_processes_can_share(self) -> None:
        async def whole() -> None:
            loopback = (Listener("127.0.0.1", 0),)
            config = Config(amqp_listeners=loopback, http_listeners=loopback)
            ports = await ReservedPorts.reserve(config)
            (amqp,), (http,) = ports.addresses.amqp, ports.addresses.http
            assert 0 not in (amqp.port, http.port) and amqp.port != http.port
            assert ports.addresses.metrics == ()
            processes = [await bind(*amqp, shared=True) for _ in range(2)]
            for listener in (one for sockets in processes for one in sockets):
                listener.listen()
            # Another broker hears that they are taken, one of several processes too.
            with pytest.raises(AddressRefused, match="already in use"):
                await ReservedPorts.reserve(Config(amqp_listeners=(amqp,)))
            for listener in (one for sockets in processes for one in sockets):
                listener.close()
            ports.release()

        asyncio.run(whole())


class TestMetrics:
    def test_lines_of_one_metric_stand_together_and_say_whose_they_are(self) -> None:
        head = b"# TYPE a counter\n# HELP a Some help {x}\n"
        one = head + b'a 1\n# TYPE b gauge\n# HELP b b\nb{queue="q 1"} 2\n'
        two = head + b"a 3\n"
        assert merged({1: one, 2: two, 3: None}).decode() == (
            head.decode() + 'a{process="1"} 1\na{process="2"} 3\n'
            '# TYPE b gauge\n# HELP b b\nb{process="1",queue="q 1"} 2\n'
            "# TYPE warren_process_up gauge\n"
            "# HELP warren_process_up Whether a process of the broker runs and answers\n"
            'warren_process_up{process="1"} 1\n'
            'warren_process_up{process="2"} 1\n'
            'warren_process_up{process="3"} 0\n'
        )

    @pytest.mark.parametrize("texts", [{}, {1: None}, {1: b""}])
    def test_without_any_there_is_still_who_runs(self, texts: dict[int, bytes | None]) -> None:
        assert merged(texts).startswith(b"# TYPE warren_process_up gauge\n")
