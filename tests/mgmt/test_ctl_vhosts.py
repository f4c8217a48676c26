"""`warren ctl`: virtual hosts, their limits and the firehose."""

from __future__ import annotations

from ctl_node import CtlNode

LONG = ("name", "description", "tags", "default_queue_type", "tracing", "cluster_state")


def row(node: CtlNode, name: str) -> list[str]:
    return next(row for row in node.rows("list_vhosts", *LONG) if row[0] == name)


def test_virtual_host_is_added_once_and_deleted(ctl_node: CtlNode) -> None:
    added = ctl_node("add_vhost", "one", "--description", "first", "--tags", "a,b")
    assert (added.code, added.out) == (0, 'Adding vhost "one" ...\n')
    assert ctl_node("add_vhost", "one").code == 0
    running = f"[{{{ctl_node.name}, running}}]"
    assert row(ctl_node, "one") == ["one", "first", "[a, b]", "undefined", "false", running]
    assert ["one"] in ctl_node.rows("list_vhosts")
    assert ctl_node("delete_vhost", "one").out == 'Deleting vhost "one" ...\n'
    gone = ctl_node("delete_vhost", "one")
    assert (gone.code, gone.err) == (65, "Virtual host 'one' does not exist\n")


def test_default_queue_type_is_kept(ctl_node: CtlNode) -> None:
    ctl_node("add_vhost", "typed", "--default-queue-type", "classic")
    ctl_node("set_vhost_tags", "typed", "x", "y")
    assert row(ctl_node, "typed")[2:4] == ["[x, y]", "classic"]


def test_tags_of_a_virtual_host_without_a_name_are_refused(ctl_node: CtlNode) -> None:
    for tags in ((), ("a",)):
        refused = ctl_node("set_vhost_tags", "", *tags)
        assert refused.code == 64
        assert "virtual host name cannot be empty string." in refused.err


def test_tracing_is_turned_on_and_off_and_the_rest_stays(ctl_node: CtlNode) -> None:
    ctl_node("add_vhost", "traced", "--description", "watched")
    on = ctl_node("trace_on", "-p", "traced")
    assert on.lines == ['Starting tracing for vhost "traced" ...', "Trace enabled for vhost traced"]
    assert row(ctl_node, "traced")[1::3] == ["watched", "true"]
    assert ctl_node("trace_off", "-p", "traced").code == 0
    assert row(ctl_node, "traced")[1::3] == ["watched", "false"]
    assert ctl_node("trace_on", "-p", "nowhere").code == 65


def test_limits_are_replaced_and_cleared(ctl_node: CtlNode) -> None:
    ctl_node("add_vhost", "limited")
    assert ctl_node("set_vhost_limits", "-p", "limited", '{"max-queues":10}').code == 0
    assert ctl_node("set_vhost_limits", "-p", "limited", '{"max-connections":5}').code == 0
    assert ctl_node.rows("list_vhost_limits", "-p", "limited") == [['{"max-connections":5}']]
    assert ["limited", '{"max-connections":5}'] in ctl_node.rows("list_vhost_limits", "--global")
    assert ctl_node("clear_vhost_limits", "-p", "limited").code == 0
    assert ctl_node("-q", "list_vhost_limits", "-p", "limited").out == "\n"
    assert ctl_node("list_vhost_limits", "-p", "limited", "--formatter", "json").json == []
    assert ctl_node("set_vhost_limits", "-p", "nowhere", "{}").code == 65
    wrong = ctl_node("set_vhost_limits", "-p", "limited", '{"max-foo":1}')
    assert wrong.code == 69 and "max-foo" in wrong.err


def test_restarting_a_virtual_host_that_runs_changes_nothing(ctl_node: CtlNode) -> None:
    again = ctl_node("restart_vhost")
    assert (again.code, again.lines[-1]) == (
        0,
        f"Vhost '/' is already running on node '{ctl_node.name}'",
    )


def test_dry_run_says_what_it_would_do_only(ctl_node: CtlNode) -> None:
    ctl_node("add_vhost", "stays")
    dry = ctl_node("delete_vhost", "stays", "--dry-run")
    assert (dry.code, dry.out) == (0, 'Deleting vhost "stays" ...\n')
    assert ["stays"] in ctl_node.rows("list_vhosts")


def test_virtual_host_without_a_name_is_wrong_usage(ctl_node: CtlNode) -> None:
    result = ctl_node("add_vhost", "")
    assert result.code == 64
    assert "virtual host name cannot be empty string." in result.err
