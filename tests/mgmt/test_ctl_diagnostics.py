"""`warren ctl`: health checks and diagnostics of a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from ctl_node import CtlNode, ctl

from warren.core.resources.alarms import Resource
from warren.mgmt.ctl.node import alarm_lines


def test_running_node_says_so(ctl_node: CtlNode) -> None:
    text = f"RabbitMQ on node {ctl_node.name} is fully booted and running"
    for command in ("check_running", "is_running"):
        said = ctl_node(command)
        assert (said.code, said.lines[-1]) == (0, text)
    assert ctl_node("is_running", "--formatter", "json").json["result"] is True
    assert ctl_node("is_booting").code == 0


def test_node_that_does_not_run_is_a_failed_check_only(tmp_path: Path) -> None:
    where = ("--data-dir", str(tmp_path))
    assert ctl(*where, "check_running").code == 69
    asked = ctl(*where, "is_running")
    assert asked.code == 0 and "not running" in asked.out and "control.sock" in asked.out
    assert ctl(*where, "is_running", "--formatter", "json").json["result"] is False
    assert ctl(*where, "is_booting").code == 0


def test_well_node_has_no_alarms(ctl_node: CtlNode) -> None:
    nothing = f"Node {ctl_node.name} reported no alarms, local or clusterwide"
    assert ctl_node("check_alarms").lines[-1] == nothing
    assert ctl_node("alarms").lines[-1] == nothing
    assert ctl_node("alarms", "--formatter", "json").json == {
        "result": "ok",
        "node": ctl_node.name,
        "alarms": [],
    }
    assert ctl_node("check_local_alarms").lines[-1] == (
        f"Node {ctl_node.name} reported no local alarms"
    )
    assert ctl_node("node_health_check").lines[-1] == "Health check passed"


def test_alarms_have_names_for_people() -> None:
    alarms = [{"resource": resource.value, "node": "n@h"} for resource in Resource]
    assert alarm_lines(alarms) == [
        "Memory alarm on node n@h",
        "Free disk space alarm on node n@h",
        "Internal error alarm on node n@h",
    ]


def test_ports_are_open(ctl_node: CtlNode) -> None:
    port = ctl_node.server.port
    assert ctl_node("check_port_connectivity").lines[-1] == (
        f"Successfully connected to ports {port} on node {ctl_node.name}."
    )
    assert ctl_node("check_port_connectivity", "--address", "127.0.0.77").code == 69
    assert ctl_node("check_port_listener", str(port)).lines[-1] == (
        f"A listener for port {port} is running on node {ctl_node.name}."
    )
    closed = ctl_node("check_port_listener", "1")
    assert (closed.code, closed.err) == (
        69,
        f"No listener for port 1 is active on node {ctl_node.name}."
        f" Found listeners that use the following ports: {port}\n",
    )
    assert ctl_node("check_port_listener", "amqp").code == 64


def test_protocols_are_served(ctl_node: CtlNode) -> None:
    assert ctl_node("check_protocol_listener", "amqp091").lines[-1] == (
        f"A listener for protocol amqp091 is running on node {ctl_node.name}."
    )
    missing = ctl_node("check_protocol_listener", "mqtt")
    assert (missing.code, missing.err.splitlines()[-1]) == (
        69,
        f"No listener for protocol mqtt is active on node {ctl_node.name}."
        " Found listeners for the following protocols: amqp",
    )
    listed = ctl_node("listeners")
    assert listed.lines[-1] == (
        f"Interface: 127.0.0.1, port: {ctl_node.server.port}, protocol: amqp, purpose: AMQP 0-9-1"
    )


def test_virtual_hosts_run_and_nothing_is_critical(ctl_node: CtlNode) -> None:
    assert ctl_node("check_virtual_hosts").lines[-1] == (
        f"Node {ctl_node.name} reported all vhosts as running"
    )
    for check in ("mirror_sync", "quorum"):
        said = ctl_node(f"check_if_node_is_{check}_critical")
        assert said.code == 0 and said.out.endswith("the check does not apply\n")


def test_memory_is_broken_down(ctl_node: CtlNode) -> None:
    shares = ctl_node("memory_breakdown", "--formatter", "json").json
    assert 99 < sum(share["percentage"] for share in shares.values()) < 101
    first = ctl_node("memory_breakdown", "--unit", "mb").lines[1]
    assert first.endswith("%)") and " mb (" in first


def test_what_the_node_was_started_with_is_shown(ctl_node: CtlNode) -> None:
    assert "server" in ctl_node("command_line_arguments").lines
    assert ctl_node("os_env").code == 0
    assert ctl_node("server_version", "-q").out == "3.10.8\n"
    assert ctl_node("list_network_interfaces", "--formatter", "json").json["lo"]
    assert "Interface lo\n" in ctl_node("list_network_interfaces").out


def test_log_without_a_file_has_no_tail(ctl_node: CtlNode) -> None:
    assert ctl_node("log_location").lines[-1] == "<stderr>"
    assert ctl_node("log_tail").code == 69


def test_logins_are_counted_by_protocol(ctl_node: CtlNode) -> None:
    with ctl_node.connected():
        pass
    (row,) = ctl_node.rows("list_node_auth_attempt_stats")
    assert row == ["amqp091", row[1], "0", row[1]]
    assert ctl_node.rows("list_node_auth_attempt_stats", "--by-source")[0][0].endswith("stats")


def test_plugins_that_are_built_in_are_enabled(ctl_node: CtlNode) -> None:
    assert "rabbitmq_management" in ctl_node("list", "-m", "-q").lines
    assert "[E*] rabbitmq_prometheus" in ctl_node("list").out
    assert ctl_node("is_enabled", "rabbitmq_management").code == 0
    assert ctl_node("is_enabled", "rabbitmq_shovel").code == 0
    assert ctl_node("is_enabled", "rabbitmq_federation").code == 0
    assert ctl_node("is_enabled", "rabbitmq_stream").code == 69


# Certificates


@pytest.fixture(scope="module")
def tls_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CtlNode]:
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(str(directory / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    config = directory / "warren.conf"
    config.write_text(
        "listeners.ssl.1 = 127.0.0.1:0\n"
        f"ssl_options.cacertfile = {directory / 'ca.pem'}\n"
        f"ssl_options.certfile = {directory / 'cert.pem'}\n"
        f"ssl_options.keyfile = {directory / 'key.pem'}\n",
        encoding="utf-8",
    )
    node = CtlNode(directory, "--config", str(config))
    yield node
    node.end()


def test_certificates_that_expire_soon_fail_the_check(tls_node: CtlNode) -> None:
    well = tls_node("check_certificate_expiration", "--within", "1", "--unit", "weeks")
    assert (well.code, well.lines[-1]) == (0, "No certificates are expiring within 1 week.")
    soon = tls_node("check_certificate_expiration", "--within", "1000", "--unit", "years")
    assert soon.code == 69 and "cert.pem expires on" in soon.err
    assert tls_node("check_certificate_expiration", "--unit", "hours").code == 64
    assert "cert.pem expires on" in tls_node("certificates").out


def test_node_without_tls_has_no_certificates(ctl_node: CtlNode) -> None:
    assert ctl_node("certificates").lines[-1] == "(none)"
    assert ctl_node("check_certificate_expiration").code == 0
