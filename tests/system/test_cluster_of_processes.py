"""A cluster of machines, each with several processes: no machine has two copies of a queue."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from broker_processes import Processes, Until
from etcd_server import EtcdServer
from server_process import ServerProcess
from warren_command import run_warren

NODES = {"warren@a", "warren-2@a", "warren@b", "warren-2@b"}


def test_copies_of_a_queue_are_on_different_machines(
    start_server: Callable[..., ServerProcess], tmp_path: Path, until: Until
) -> None:
    with EtcdServer(tmp_path / "etcd") as etcd:
        file = tmp_path / "cluster.conf"
        file.write_text(
            f"cluster_formation.etcd.endpoints.1 = {etcd.url}\n"
            "cluster.secret = a secret of the tests\n"
            "cluster.advertised_host = 127.0.0.1\n"
            "distribution.listener.interface = 127.0.0.1\n"
            "distribution.listener.port_range.min = 0\n"
        )
        machines = {}
        for host in ("a", "b"):
            broker = machines[host] = Processes(start_server, tmp_path / host, until)
            broker.start("--config", str(file), processes=2, name=f"warren@{host}")
        api = machines["a"].api
        until(lambda: set(machines["a"].states().items()) == {(node, "running") for node in NODES})
        policy = {"pattern": "^m", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
        assert api.put("/policies/%2F/mirrored", policy)[0] == 201
        channel = machines["a"].connect().channel()
        for number in range(4):
            channel.queue_declare(f"m{number}", durable=True)
            for kind in ("quorum", "stream"):
                arguments = {"x-queue-type": kind}
                channel.queue_declare(f"{kind[0]}{number}", durable=True, arguments=arguments)

        def copies() -> list[set[str]] | None:
            """Where the queues are, as soon as each is at two nodes."""
            rows = api.get("/queues")[1]
            assert len(rows) == 12
            found = [
                {row["node"], *row.get("slave_nodes", ()), *row.get("members", ())} for row in rows
            ]
            return found if all(len(one) > 1 for one in found) else None

        found = until(copies)
        assert {tuple(sorted(node[-1] for node in one)) for one in found} == {("a", "b")}
        # All processes have some.
        assert set().union(*found) == NODES
        # To add a second process of a machine is refused.
        for queue, command in (("q0", "add_member"), ("s0", "add_replica")):
            row = api.get(f"/queues/%2F/{queue}")[1]
            (more,) = {"warren@b", "warren-2@b"} - set(row["members"])
            where = ("--data-dir", machines["a"].data_dir)
            refused = run_warren("ctl", command, queue, more, *where)
            assert refused.returncode and "node_on_same_machine" in refused.stderr
        # Whichever process is asked: the queues of the others end with the machine, too.
        for broker in machines.values():
            for number in (1, 2):
                path = f"/process/{number}/api/health/checks/node-is-quorum-critical"
                status, said = broker.get(path)
                assert status == 503
                named = [row["name"] for row in json.loads(said)["queues"]]
                assert named == [f"{kind}{number}" for kind in "qs" for number in range(4)]
        for broker in machines.values():
            broker.stop()
