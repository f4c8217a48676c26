"""`warren ctl`: the node itself: status, settings, start and stop."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from ctl_node import CtlNode, ctl
from running_cluster import wait_until
from warren_command import run_warren

STATUS_KEYS = {
    "rabbitmq_version", "erlang_version", "os", "pid", "uptime", "run_queue", "processes",
    "is_under_maintenance", "active_plugins", "enabled_plugin_file", "data_directory",
    "raft_data_directory", "config_files", "log_files", "alarms", "memory",
    "vm_memory_high_watermark_setting", "vm_memory_high_watermark_limit",
    "vm_memory_calculation_strategy", "file_descriptors", "disk_free", "disk_free_limit", "totals",
    "listeners", "net_ticktime", "release_series_support_status", "product_name",
    "product_version", "crypto_lib_version",
}  # fmt: skip


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[CtlNode]:
    """A node to be stopped or set otherwise."""
    node = CtlNode(tmp_path)
    yield node
    node.end()


def test_status_has_rabbitmqs_keys(ctl_node: CtlNode) -> None:
    said = ctl_node("status", "--formatter", "json").json
    assert said.keys() >= STATUS_KEYS
    assert said["pid"] == ctl_node.server.process.pid
    assert said["data_directory"] == str(ctl_node.data_directory)
    assert said["storage"] == {
        "lost_messages": 0,
        "damaged_records": 0,
        "unclaimed_messages": 0,
        "unreadable_definitions": 0,
    }
    assert said["totals"]["virtual_host_count"] == 1


def test_status_has_rabbitmqs_sections(ctl_node: CtlNode) -> None:
    text = ctl_node("status", "--unit", "mb").out
    assert text.startswith(f"Status of node {ctl_node.name} ...\nRuntime\n\nOS PID: ")
    for title in (
        "Plugins",
        "Data directory",
        "Config files",
        "Log file(s)",
        "Alarms",
        "Memory",
        "File Descriptors",
        "Free Disk Space",
        "Storage",
        "Totals",
        "Listeners",
    ):
        assert f"\n\n{title}\n\n" in text
    assert "\nLow free disk space watermark: 50.0 mb\n" in text
    assert f", port: {ctl_node.server.port}, protocol: amqp, purpose: AMQP 0-9-1\n" in text


def test_one_node_is_a_cluster(ctl_node: CtlNode) -> None:
    said = ctl_node("cluster_status", "--formatter", "json").json
    assert said["disk_nodes"] == said["running_nodes"] == [ctl_node.name]
    assert said["maintenance_status"] == {ctl_node.name: "not under maintenance"}
    text = ctl_node("cluster_status").out
    assert f"\n\nRunning Nodes\n\n{ctl_node.name}\n" in text
    assert "\n\nNetwork Partitions\n\n(none)\n" in text


def test_environment_hides_passwords(ctl_node: CtlNode) -> None:
    said = ctl_node("environment", "--formatter", "json").json
    assert (said["default_user"], said["default_pass"]) == ("guest", "********")
    assert "heartbeat_s = 60\n" in ctl_node("environment").out


def test_report_has_what_is_in_every_virtual_host(ctl_node: CtlNode) -> None:
    ctl_node("add_vhost", "reported")
    report = ctl_node("report")
    assert (report.code, report.err) == (0, "")
    for banner in ("Status of node", "Listing users ...", "Listing queues for vhost reported ..."):
        assert banner in report.out


def test_watermark_raises_an_alarm_and_lowers_it(own_node: CtlNode) -> None:
    assert own_node("check_local_alarms").code == 0
    done = own_node("set_vm_memory_high_watermark", "0.0001")
    assert done.out == f"Setting memory threshold on {own_node.name} to 0.0001 ...\n"
    alarm = f"Memory alarm on node {own_node.name}"
    for command, heading in (("check_alarms", ""), ("check_local_alarms", "Error:\n")):
        failed = own_node(command)
        assert (failed.code, failed.err) == (69, f"{heading}{alarm}\n")
    listed = own_node("alarms")
    assert (listed.code, listed.lines[-1]) == (0, alarm)
    failed = own_node("check_alarms", "--formatter", "json")
    assert '"result":"error"' in failed.err and (failed.code, failed.out) == (69, "")
    assert own_node("node_health_check").code == 69
    assert f"\nAlarms\n\n{alarm}\n" in own_node("status").out
    assert own_node("set_vm_memory_high_watermark", "absolute", "1GB").code == 0
    assert own_node("check_alarms").code == 0
    assert own_node("status", "--formatter", "json").json["vm_memory_high_watermark_limit"] == 10**9


def test_disk_limit_is_an_amount_or_a_share_of_memory(own_node: CtlNode) -> None:
    assert own_node("set_disk_free_limit", "1GiB").code == 0
    assert own_node("status", "--formatter", "json").json["disk_free_limit"] == 1 << 30
    done = own_node("set_disk_free_limit", "mem_relative", "0.5")
    assert done.out == (
        f"Setting disk free limit on {own_node.name} to 0.5 times the total RAM ...\n"
    )
    assert own_node("set_disk_free_limit", "1000TB").code == 0
    assert own_node("alarms").lines[-1] == f"Free disk space alarm on node {own_node.name}"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["set_vm_memory_high_watermark"], 64),
        (["set_vm_memory_high_watermark", "absolute"], 64),
        (["set_vm_memory_high_watermark", "0.1", "0.2"], 64),
        (["set_vm_memory_high_watermark", "1.5"], 65),
        (["set_vm_memory_high_watermark", "much"], 65),
        (["set_vm_memory_high_watermark", "nan"], 65),
        (["set_disk_free_limit", "much"], 65),
        (["set_disk_free_limit", "mem_relative", "-1"], 64),
        (["set_log_level", "loud"], 69),
        (["eval", "node()."], 64),
        (["exec", "1"], 64),
        (["wait"], 64),
        (["join_cluster", "other@host"], 70),
        (["reset"], 70),
        (["force_reset"], 70),
        (["forget_cluster_node", "other@host"], 69),
        (["forget_cluster_node", "--offline", "other@host"], 64),
        (["change_cluster_node_type", "ram"], 69),
        (["rename_cluster_node", "one@host", "other@host"], 69),
        (["update_cluster_nodes", "other@host"], 69),
    ],
)
def test_what_cannot_be_done_is_refused(ctl_node: CtlNode, arguments: list[str], code: int) -> None:
    refused = ctl_node(*arguments)
    assert refused.code == code and refused.err


def test_log_level_and_log_file_change_while_the_node_runs(tmp_path: Path) -> None:
    config = tmp_path / "warren.conf"
    log = tmp_path / "warren.log"
    config.write_text(f"log.file = {log}\nlog.default.level = error\n", encoding="utf-8")
    node = CtlNode(tmp_path, "--config", str(config))
    try:
        assert node("status", "--formatter", "json").json["config_files"] == [str(config)]
        assert node("log_location").lines[-1] == str(log)
        node("add_vhost", "before")
        assert node("set_log_level", "debug").code == 0
        node("add_vhost", "after")
        assert "vhost=after" in node("log_tail").out
        assert "vhost=before" not in log.read_text(encoding="utf-8")
        moved = log.rename(tmp_path / "moved.log")
        assert node("rotate_logs").code == 0
        node("add_vhost", "rotated")
        assert "vhost=rotated" in log.read_text(encoding="utf-8")
        assert "vhost=rotated" not in moved.read_text(encoding="utf-8")
        tail = node("log_tail", "-N", "1")
        assert len(tail.lines) == 2
    finally:
        node.end()


def test_garbage_is_collected_without_being_asked(ctl_node: CtlNode) -> None:
    assert ctl_node("force_gc").code == 0


def test_node_answers_a_ping(ctl_node: CtlNode) -> None:
    assert ctl_node("ping").lines[-1] == "Ping succeeded"
    assert ctl_node("ping", "--formatter", "json").json == {"message": "Ping succeeded"}
    assert ctl_node("await_startup").code == 0


@pytest.mark.parametrize("command", [["stop"], ["shutdown"]])
def test_node_that_is_told_to_stop_has_stopped_on_return(
    own_node: CtlNode, command: list[str]
) -> None:
    own_node("add_vhost", "kept")
    stopped = own_node(*command)
    assert (stopped.code, stopped.err) == (0, "")
    assert own_node.server.wait() == 0
    assert "node_stopped" in own_node.server.log
    again = own_node(*command)
    assert again.code == 69


def test_stop_waits_for_the_process_in_a_pid_file(own_node: CtlNode, tmp_path: Path) -> None:
    missing = own_node("stop", str(tmp_path / "none.pid"))
    assert missing.code == 69
    file = tmp_path / "warren.pid"
    file.write_text(f"{own_node.server.process.pid}\n", encoding="ascii")
    assert own_node("stop", str(file)).code == 0
    assert own_node.server.process.poll() == 0


def test_shutdown_need_not_be_waited_for(own_node: CtlNode) -> None:
    assert own_node("shutdown", "--no-wait").code == 0
    assert own_node.server.wait() == 0


def test_wait_ends_when_the_node_has_started(tmp_path: Path) -> None:
    node: list[CtlNode] = []
    file = tmp_path / "warren.pid"

    def start() -> None:
        node.append(CtlNode(tmp_path))
        file.write_text(str(node[0].server.process.pid), encoding="ascii")

    starting = threading.Thread(target=start)
    starting.start()
    waited = run_warren("ctl", "--data-dir", tmp_path / "data", "-t", "60", "wait", file)
    starting.join()
    try:
        assert (waited.returncode, waited.stderr) == (0, "")
        assert waited.stdout.splitlines()[-1] == f"Node '{node[0].name}' is running"
    finally:
        node[0].end()


def test_waiting_has_an_end(tmp_path: Path) -> None:
    where = ["--data-dir", str(tmp_path), "-t", "0"]
    assert ctl(*where, "await_startup").code == 70
    assert ctl(*where, "wait", str(tmp_path / "none.pid")).code == 75
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ended = ctl(*where, "wait", "--pid", str(gone.pid))
    assert (ended.code, ended.err) == (69, "Error:\nprocess_not_running\n")
    assert ctl(*where, "wait", "--pid", str(os.getpid())).code == 75


def test_node_that_is_waited_for_has_the_name_wanted(ctl_node: CtlNode) -> None:
    assert ctl_node("-n", "other@elsewhere", "-t", "5", "await_startup").code == 69
    assert ctl_node("-n", ctl_node.name, "await_startup").code == 0


def test_node_whose_app_is_stopped_can_be_emptied_and_started_again(own_node: CtlNode) -> None:
    own_node("add_vhost", "gone")
    with own_node.connected() as connection:
        connection.channel().queue_declare("gone", durable=True)
    assert own_node("stop_app").code == 0
    assert own_node("status", "--formatter", "json").json["node"] == own_node.name
    joined = own_node("join_cluster", "other@host")
    assert joined.code == 70 and "cluster_formation.etcd.endpoints" in joined.err
    assert own_node("reset").code == 0
    assert own_node("start_app").code == 0
    assert own_node("list_vhosts", "-s").lines == ["/"]
    assert own_node("list_queues", "-s").lines == []
    with own_node.connected() as connection:
        connection.channel().queue_declare("new", durable=True)


def test_what_a_stopped_node_was_to_do_later_is_done_by_the_next_one(own_node: CtlNode) -> None:
    """Its timers would act on files that are closed, which is a fault: the process would end."""
    with own_node.connected() as connection:
        channel = connection.channel()
        channel.queue_declare("unused", durable=True, arguments={"x-expires": 4000})
        channel.queue_declare("short", durable=True, arguments={"x-message-ttl": 4000})
        channel.confirm_delivery()
        channel.basic_publish("", "short", b"x", pika.BasicProperties(delivery_mode=2))
    assert own_node("stop_app").code == own_node("start_app").code == 0
    wait_until(lambda: own_node("list_queues", "-s", "name", "messages").lines == ["short\t0"])
    assert own_node("status").code == 0


def test_status_tells_what_damage_cost(tmp_path: Path) -> None:
    node = CtlNode(tmp_path)
    with node.connected() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for number in range(3):
            persistent = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", "q", b"body %d" % number, persistent)
    assert node("stop").code == 0
    node.end()
    for path in (node.data_directory / "store" / "log").iterdir():
        path.write_bytes(path.read_bytes().replace(b"body 1", b"bodY 1"))
    again = CtlNode(tmp_path)
    try:
        with again.connected() as connection:
            connection.channel().queue_purge("q")
        storage = again("status", "--formatter", "json").json["storage"]
        assert storage["lost_messages"] + storage["damaged_records"] > 0
        assert "`warren store check`" in again("status").out
    finally:
        again.end()
