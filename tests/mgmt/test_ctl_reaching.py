"""How `warren ctl` connects to a node, its errors when it cannot, and wrong usage."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from ctl_node import CtlNode, ctl

COMMAND = [sys.executable, "-P", "-m", "warren", "ctl"]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CtlNode]:
    """A node that listens for HTTP, below a prefix, and for HTTPS."""
    directory = tmp_path_factory.mktemp("remote")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(directory / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    config = directory / "warren.conf"
    config.write_text(
        "management.path_prefix = /broker\n"
        "management.ssl.ip = 127.0.0.1\n"
        "management.ssl.port = 0\n"
        f"management.ssl.certfile = {directory / 'cert.pem'}\n"
        f"management.ssl.keyfile = {directory / 'key.pem'}\n",
        encoding="utf-8",
    )
    node = CtlNode(directory, "--config", str(config), "--http", "127.0.0.1:0")
    node("add_user", "watcher", "w")
    node("set_user_tags", "watcher", "monitoring")
    yield node
    node.end()


def url(node: CtlNode, protocol: str = "http") -> str:
    listeners = node("listeners", "--formatter", "json").json["listeners"]
    port = next(one["port"] for one in listeners if one["protocol"] == protocol)
    return f"{protocol}://127.0.0.1:{port}/broker"


# Over the network


def test_administrator_does_over_http_what_is_not_local(remote: CtlNode) -> None:
    where = ["--url", url(remote), "--username", "guest", "--password", "guest"]
    assert ctl(*where, "add_vhost", "far").code == 0
    assert ["far"] in remote.rows("list_vhosts")
    assert ctl(*where, "status").code == 0
    assert ctl(*where, "check_alarms").code == 0
    assert ctl(*where, "check_port_connectivity").code == 0
    assert ctl(*where, "export_definitions", "-").code == 0
    assert "left out" in ctl(*where, "report").out


def test_password_may_stand_in_the_environment(remote: CtlNode) -> None:
    asked = ctl("--url", url(remote), "list_users", variables={"WARREN_CTL_PASSWORD": "guest"})
    assert asked.code == 0


def test_missing_and_wrong_passwords_are_told_apart(remote: CtlNode) -> None:
    none = ctl("--url", url(remote), "list_users")
    assert none.code == 64 and "WARREN_CTL_PASSWORD" in none.err
    wrong = ctl("--url", url(remote), "--password", "wrong", "list_users")
    assert wrong.code == 69
    assert wrong.err == f"Error:\n{url(remote)} as user guest: Login failed\n"


def test_user_may_do_what_its_tags_allow(remote: CtlNode) -> None:
    where = ["--url", url(remote), "--username", "watcher", "--password", "w"]
    assert ctl(*where, "status").code == 0
    refused = ctl(*where, "list_users")
    assert refused.code == 69 and "Not administrator user" in refused.err


@pytest.mark.parametrize(
    "command",
    [
        ["stop"],
        ["shutdown"],
        ["shutdown", "--no-wait"],
        ["environment"],
        ["log_tail"],
        ["suspend_listeners"],
        ["set_vm_memory_high_watermark", "0.3"],
        ["authenticate_user", "guest", "guest"],
    ],
)
def test_what_needs_the_control_socket_says_so(remote: CtlNode, command: list[str]) -> None:
    refused = ctl("--url", url(remote), "--password", "guest", *command)
    assert refused.code == 69 and "leave --url away" in refused.err


def test_certificate_must_be_trusted(remote: CtlNode) -> None:
    where = ["--url", url(remote, "https"), "--password", "guest"]
    refused = ctl(*where, "list_users")
    assert refused.code == 69 and "certificate verify failed" in refused.err
    trusted = ["--cacert", str(remote.directory / "ca.pem")]
    assert ctl(*where, *trusted, "list_users").code == 0
    assert ctl(*where, "--insecure", "list_users").code == 0
    assert ctl(*where, "--cacert", "/nowhere/ca.pem", "list_users").code == 64


def test_url_that_is_none_is_wrong_usage() -> None:
    for address in ("ftp://host", "http://", "host:15672", "http://host:port"):
        assert ctl("--url", address, "--password", "x", "ping").code == 64


# On the same machine


def test_node_that_does_not_run_is_named(tmp_path: Path) -> None:
    unreachable = ctl("--data-dir", str(tmp_path), "list_users")
    assert (unreachable.code, unreachable.out) == (69, "Listing users ...\n")
    assert unreachable.err.splitlines()[:3] == [
        "Error: unable to reach the node.",
        f"Tried: the control socket {tmp_path / 'control.sock'}",
        "Reason: No such file or directory",
    ]
    remote = ctl("--url", "http://127.0.0.1:1", "--password", "x", "ping")
    assert remote.code == 69
    assert "Tried: http://127.0.0.1:1 as user guest\nReason: Connection refused" in remote.err


def test_node_is_found_by_the_environment_and_the_file(ctl_node: CtlNode, tmp_path: Path) -> None:
    directory = str(ctl_node.data_directory)
    assert ctl("ping", variables={"WARREN_DATA_DIR": directory}).code == 0
    assert ctl("ping", variables={"RABBITMQ_MNESIA_DIR": directory}).code == 0
    config = tmp_path / "warren.conf"
    config.write_text(f"data_dir = {directory}\n", encoding="utf-8")
    assert ctl("ping", variables={"WARREN_CONFIG": str(config)}).code == 0
    config.write_text("nonsense = 1\n", encoding="utf-8")
    broken = ctl("ping", variables={"WARREN_CONFIG": str(config)})
    assert broken.code == 78 and "unknown key nonsense" in broken.err


def test_node_of_another_name_is_not_touched(ctl_node: CtlNode) -> None:
    refused = ctl_node("-n", "other@elsewhere", "add_vhost", "wrong")
    assert refused.code == 69
    assert f"the node there is {ctl_node.name}, not other@elsewhere" in refused.err
    assert ctl_node("-n", ctl_node.name, "ping").code == 0
    assert ctl_node("ping", "--node", ctl_node.name.partition("@")[0]).code == 0


def test_data_directory_may_have_a_long_path(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    node = CtlNode(deep)
    try:
        assert node("ping").code == 0
    finally:
        node.end()


def test_only_the_owner_may_open_the_socket(ctl_node: CtlNode) -> None:
    assert (ctl_node.data_directory / "control.sock").stat().st_mode & 0o777 == 0o600


# Use


def test_options_stand_before_or_after_the_command(ctl_node: CtlNode) -> None:
    ctl_node("add_vhost", "chosen")
    for arguments in (
        ["-p", "chosen", "list_queues"],
        ["list_queues", "-p", "chosen"],
        ["--vhost=chosen", "list_queues"],
        ["-p", "/", "list_queues", "-p", "chosen"],
    ):
        assert "vhost chosen" in ctl_node(*arguments).out


def test_options_of_rabbitmqs_tools_are_accepted(ctl_node: CtlNode) -> None:
    assert ctl_node("--longnames", "list_users", "--erlang-cookie", "secret").code == 0
    assert ctl_node("list_users", "-l", "--print-stacktrace").code == 0


def test_quiet_and_silent_leave_banner_and_header_away(ctl_node: CtlNode) -> None:
    assert ctl_node("list_vhosts", "-q").lines[0] == "name"
    assert ctl_node("list_vhosts", "-s").lines[0] == "/"
    assert ctl_node("list_vhosts", "--no-table-headers").lines[:2] == ["Listing vhosts ...", "/"]


def test_unknown_command_is_wrong_usage(ctl_node: CtlNode) -> None:
    unknown = ctl_node("lst_queues")
    assert unknown.code == 64
    assert "Command 'lst_queues' not found." in unknown.err
    assert "Did you mean list_queues" in unknown.err
    assert ctl_node().code == 64
    bare = ctl()
    assert (bare.code, bare.out) == (64, "")
    assert bare.err.startswith("Usage: warren ctl") and "list_queues" in bare.err


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["add_user"], "not enough arguments."),
        (["add_user", "a", "b", "c"], "too many arguments."),
        (["list_users", "--bad"], "Invalid options for this command:\n\n--bad : "),
        (["list_users", "--formatter", "erlang"], "'erlang' is not one of"),
    ],
)
def test_wrong_arguments_are_shown_with_the_usage(
    ctl_node: CtlNode, arguments: list[str], wrong: str
) -> None:
    refused = ctl_node(*arguments)
    assert refused.code == 64
    assert "Error (argument validation): " in refused.err and wrong in refused.err
    assert f"Arguments given:\n\t--data-dir {ctl_node.data_directory} {arguments[0]}" in refused.err
    assert f"Usage: warren ctl {arguments[0]}" in refused.err


def test_password_that_logs_in_is_not_shown_with_wrong_arguments() -> None:
    refused = ctl("--url", "http://h", "--password", "s3cret", "list_users", "--bad")
    assert refused.code == 64 and "s3cret" not in refused.err
    refused = ctl("--url", "http://h", "--password=s3cret", "list_users", "--bad")
    assert refused.code == 64 and "s3cret" not in refused.err


def test_argument_that_is_no_text_is_refused(ctl_node: CtlNode) -> None:
    assert ctl_node("set_policy", "p", "\udcff", '{"max-length":1}').code == 65


@pytest.mark.parametrize(
    "command",
    [
        ["delete_vhost", ""],
        ["delete_queue", ""],
        ["clear_policy", ""],
        ["clear_parameter", "shovel", ""],
        ["-p", "", "purge_queue", "q"],
        ["-p", "", "list_permissions"],
        ["-p", "", "set_policy", "name", ".*", '{"max-length": 1}'],
    ],
)
def test_empty_name_is_refused_before_the_node_is_asked(
    ctl_node: CtlNode, command: list[str]
) -> None:
    result = ctl_node(*command)
    assert result.code in (64, 65, 69)
    assert "the node answered" not in result.err


@pytest.mark.parametrize("host", ["x" * 300, "a..b"])
def test_host_that_can_have_no_address_is_not_reached(ctl_node: CtlNode, host: str) -> None:
    unreachable = ctl("--url", f"http://{host}:1", "--password", "x", "status")
    assert (unreachable.code, "unable to reach the node" in unreachable.err) == (69, True)
    assert ctl_node("check_port_connectivity", "--address", host).code == 69


@pytest.mark.parametrize(
    "command",
    [["import_definitions", "x" * 300], ["export_definitions", f"{'x' * 300}/file"]],
)
def test_path_that_no_file_can_have_is_bad_data(ctl_node: CtlNode, command: list[str]) -> None:
    result = ctl_node(*command)
    assert (result.code, "File name too long" in result.err) == (65, True)


def test_data_directory_is_not_empty() -> None:
    result = ctl("--data-dir", "", "status")
    assert (result.code, "--data-dir is empty" in result.err) == (64, True)


@pytest.mark.parametrize("timeout", ["nan", "inf", "1e300", "-1"])
def test_timeout_that_no_socket_has_is_wrong_usage(ctl_node: CtlNode, timeout: str) -> None:
    assert ctl_node("--timeout", timeout, "status").code == 64


def test_data_directory_that_none_can_be_is_bad_data() -> None:
    result = ctl("--data-dir", "x" * 300, "status")
    assert (result.code, "File name too long" in result.err) == (65, True)


def test_help_lists_every_command_and_explains_each(ctl_node: CtlNode) -> None:
    listed = ctl("help")
    assert listed.code == 0
    names = re.findall(r"^  (\w+)  ", listed.out, re.MULTILINE)
    assert {"add_user", "list_queues", "status", "check_alarms"} <= set(names)
    for name in names:
        explained = ctl("help", name)
        assert explained.code == 0 and f"Usage: warren ctl {name}" in explained.out
    assert ctl("help", "foo").code == 64
    assert ctl("add_user", "--help").out == ctl("help", "add_user").out


def test_version_needs_no_node() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", ctl("version").out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_learn_to_complete(shell: str) -> None:
    script = ctl("autocomplete", shell)
    assert script.code == 0 and "_WARREN_COMPLETE" in script.out
    assert ctl("autocomplete", variables={"SHELL": "/bin/unknown"}).code == 64


def test_commands_are_completed() -> None:
    variables = {"_WARREN_COMPLETE": "bash_complete", "COMP_WORDS": "warren ctl list_q"}
    completed = subprocess.run(
        [sys.executable, "-P", "-m", "warren"],
        env={**os.environ, **variables, "COMP_CWORD": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.stdout == "plain,list_queues\n"


def test_command_line_is_light() -> None:
    code = (
        "import sys; from warren.mgmt.ctl.command import ctl; ctl.list_commands(None);"
        "assert not {'aiohttp', 'asyncio', 'uvloop', 'lmdb'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_reader_that_goes_away_ends_the_command(ctl_node: CtlNode) -> None:
    command = [*COMMAND, "--data-dir", str(ctl_node.data_directory), "report"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None and running.stderr is not None
    running.stdout.close()
    errors = running.stderr.read()
    running.stderr.close()
    assert (running.wait(), errors) == (70, b"")
