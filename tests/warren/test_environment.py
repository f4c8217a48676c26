"""The environment: which variables count, and what comes before what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warren.config import Config, Listener
from warren.config_check import problems_beyond_text
from warren.environment import WITHOUT_EFFECT, Environment
from warren.mgmt.node_configuration import examine_configuration, read_configuration
from warren.rabbitmq_conf import ConfigError
from warren.unused_keys import TO_STANDARD_ERROR


def applied(flag_node_name: str | None = None, **variables: str) -> Config:
    return Environment(variables).apply(Config(), host="here", node_name=flag_node_name)


@pytest.mark.parametrize(
    ("variables", "attribute", "value"),
    [
        ({"WARREN_DATA_DIR": "/a"}, "data_dir", Path("/a")),
        ({"RABBITMQ_MNESIA_DIR": "/b"}, "data_dir", Path("/b")),
        ({"RABBITMQ_MNESIA_BASE": "/c"}, "data_dir", Path("/c/warren@here")),
        ({"RABBITMQ_MNESIA_BASE": "/c", "RABBITMQ_MNESIA_DIR": "/b"}, "data_dir", Path("/b")),
        ({"WARREN_DATA_DIR": "/a", "RABBITMQ_MNESIA_DIR": "/b"}, "data_dir", Path("/a")),
        ({"WARREN_NODE_NAME": "n"}, "node_name", "n"),
        ({"RABBITMQ_NODENAME": "rabbit@one"}, "node_name", "rabbit@one"),
        ({"RABBITMQ_NODENAME": "rabbit"}, "node_name", "rabbit@here"),
        ({"RABBITMQ_NODENAME": "rabbit", "WARREN_NODE_NAME": "n"}, "node_name", "n"),
        ({"WARREN_AMQP": "127.0.0.1:1"}, "amqp_listeners", (("127.0.0.1", 1),)),
        ({"RABBITMQ_NODE_PORT": "2"}, "amqp_listeners", (("::", 2),)),
        ({"RABBITMQ_NODE_IP_ADDRESS": "::1"}, "amqp_listeners", (("::1", 5672),)),
        (
            {"RABBITMQ_NODE_IP_ADDRESS": "::1", "RABBITMQ_NODE_PORT": "2"},
            "amqp_listeners",
            (("::1", 2),),
        ),
        (
            {"WARREN_AMQP": "127.0.0.1:1", "RABBITMQ_NODE_PORT": "2"},
            "amqp_listeners",
            (("127.0.0.1", 1),),
        ),
        ({"WARREN_HTTP": "127.0.0.1:3"}, "http_listeners", (("127.0.0.1", 3),)),
        ({"WARREN_HTTP": "none"}, "http_listeners", ()),
        ({"WARREN_PROCESSES": "3"}, "processes", 3),
        ({"RABBITMQ_DEFAULT_USER": "u"}, "default_user", "u"),
        ({"RABBITMQ_DEFAULT_PASS": "p"}, "default_pass", "p"),
        ({"RABBITMQ_DEFAULT_VHOST": "v"}, "default_vhost", "v"),
        ({"WARREN_AMQP": "", "RABBITMQ_DEFAULT_PASS": ""}, "default_pass", "guest"),
    ],
)
def test_every_variable_has_its_effect(
    variables: dict[str, str], attribute: str, value: Any
) -> None:
    config = applied(**variables)
    assert getattr(config, attribute) == value
    unset = Config()
    changed = {name for name in config.__slots__ if getattr(config, name) != getattr(unset, name)}
    assert changed <= {attribute}


def test_a_flag_that_names_the_node_names_its_directory() -> None:
    assert applied("n@flag", RABBITMQ_MNESIA_BASE="/c").data_dir == Path("/c/n@flag")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WARREN_AMQP", "nowhere"),
        ("WARREN_HTTP", "nowhere"),
        ("WARREN_PROCESSES", "0"),
        ("RABBITMQ_NODE_PORT", "tcp://10.0.0.1:5672"),
        ("RABBITMQ_NODE_PORT", "x"),
    ],
)
def test_a_value_that_is_none_is_named_with_its_variable(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="^" + name + "=" + value.replace(".", "[.]") + ": "):
        applied(**{name: value})


def test_the_file_may_be_named_without_its_ending() -> None:
    there = {Path("/etc/rabbit.conf"), Path("/etc/own")}.__contains__
    assert Environment({}).config_file(there) is None
    named = Environment({"RABBITMQ_CONFIG_FILE": "/etc/rabbit"})
    assert named.config_file(there) == "/etc/rabbit.conf"
    assert Environment({"RABBITMQ_CONFIG_FILE": "/etc/own"}).config_file(there) == "/etc/own"
    assert Environment({"RABBITMQ_CONFIG_FILE": "/none"}).config_file(there) == "/none"
    both = {"RABBITMQ_CONFIG_FILE": "/etc/own", "WARREN_CONFIG": "/etc/ours"}
    assert Environment(both).config_file(there) == "/etc/ours"


def test_variables_without_effect_are_warnings() -> None:
    warnings = Environment(dict.fromkeys(WITHOUT_EFFECT, "x")).warnings()
    log_base = "RABBITMQ_LOG_BASE has no effect in Warren: log.dir is the directory of log.file"
    assert log_base in warnings
    assert len(warnings) == len(WITHOUT_EFFECT)
    assert Environment({"RABBITMQ_LOG_BASE": "", "PATH": "/bin"}).warnings() == []


def test_flags_come_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "own.conf"
    file.write_text("listeners.tcp.1 = 1\nnode_name = file\nheartbeat = 7\nlog.journald = true\n")
    variables = {
        "WARREN_CONFIG": str(file),
        "WARREN_AMQP": "2",
        "WARREN_NODE_NAME": "variable",
        "RABBITMQ_LOG_BASE": "/var/log",
    }
    config, warnings = read_configuration(None, variables, {"amqp": "3", "node_name": None})
    assert config.amqp_listeners == (Listener("::", 3),)
    assert (config.node_name, config.heartbeat_s) == ("variable", 7)
    assert warnings == [
        f"{file}, line 4: log.journald has no effect in Warren: {TO_STANDARD_ERROR}",
        "RABBITMQ_LOG_BASE has no effect in Warren: log.dir is the directory of log.file",
    ]
    other = tmp_path / "other.conf"
    other.write_text("heartbeat = 8")
    assert read_configuration(str(other), variables, {}).config.heartbeat_s == 8


@pytest.mark.parametrize("variable", ["WARREN_NODE_NAME", "RABBITMQ_NODENAME"])
@pytest.mark.parametrize("name", ["a/b", "a b", "a\tb", "a\nb", "..", "a\x1bb"])
def test_a_node_name_that_names_no_directory_is_refused(variable: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{variable}=") as refused:
        applied(**{variable: name, "RABBITMQ_MNESIA_BASE": "/c"})
    assert "a node name without slashes" in str(refused.value)
    with pytest.raises(ValueError, match="a node name without slashes"):
        read_configuration(None, {}, {"node_name": name})


def test_all_that_is_wrong_is_found_at_once(tmp_path: Path) -> None:
    file = tmp_path / "own.conf"
    file.write_text("hearbeat = 7\nload_definitions = gone.json\nlog.file = gone/w.log\n")
    flags = {"amqp": "nowhere", "http": "nowhere", "node_name": None}
    found = examine_configuration(str(file), {"WARREN_HTTP": "nowhere"}, flags)
    said = [*found.problems, *problems_beyond_text(found.config)]
    assert [problem.partition(": ")[0] for problem in said] == [
        f"{file}, line 1",
        "WARREN_HTTP=nowhere",
        "--amqp nowhere",
        "--http nowhere",
        "load_definitions",
        "log.file",
    ]


def test_a_file_that_is_not_there_is_one_problem(tmp_path: Path) -> None:
    missing = tmp_path / "missing.conf"
    found = examine_configuration(str(missing), {}, {})
    assert found.problems == [f"{missing} cannot be read: No such file or directory"]


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "advanced.config"),
        ({"RABBITMQ_ADVANCED_CONFIG_FILE": "{}/more.config"}, "more.config"),
        ({"RABBITMQ_ADVANCED_CONFIG_FILE": "{}/more"}, "more.config"),
    ],
)
def test_an_advanced_config_is_said_not_to_be_read(
    tmp_path: Path, variables: dict[str, str], name: str
) -> None:
    (tmp_path / "rabbitmq.conf").write_text("heartbeat = 7\n")
    named = {variable: value.format(tmp_path) for variable, value in variables.items()}
    terms = tmp_path / name

    def warnings() -> list[str]:
        return examine_configuration(str(tmp_path / "rabbitmq.conf"), named, {}).warnings

    assert warnings() == []
    terms.write_text("%% nothing\n[\n].\n")
    assert warnings() == []
    terms.write_text("[{rabbit, [{channel_max, 5}]}].\n")
    (warning,) = warnings()
    assert warning.startswith(f"{terms} is not read: it has Erlang terms")


def test_a_file_that_is_not_utf_8_is_named_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "own.conf"
    file.write_bytes(b"heartbeat = 7\n# caf\xe9\nheartbeat = 8\n")
    with pytest.raises(ConfigError) as refused:
        read_configuration(str(file), {}, {})
    (problem,) = refused.value.problems
    assert problem.startswith(f"{file}, line 2: ") and problem.endswith("not UTF-8")
