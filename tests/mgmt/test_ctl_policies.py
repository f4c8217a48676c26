"""`warren ctl`: policies and parameters."""

from __future__ import annotations

from ctl_node import CtlNode


def test_policy_is_set_listed_and_cleared(ctl_node: CtlNode) -> None:
    definition = '{"max-length":10}'
    done = ctl_node(
        "set_policy", "--priority", "2", "--apply-to", "queues", "short", "^s", definition
    )
    assert (done.code, done.out) == (
        0,
        f'Setting policy "short" for pattern "^s" to "{definition}" with priority "2"'
        ' for vhost "/" ...\n',
    )
    listed = ctl_node("list_policies", "--no-table-headers", "-q")
    assert listed.rows == [["/", "short", "^s", "queues", definition, "2"]]
    assert ctl_node("list_policies", "--formatter", "json").json == [
        {
            "vhost": "/",
            "name": "short",
            "pattern": "^s",
            "apply-to": "queues",
            "definition": definition,
            "priority": 2,
        }
    ]
    assert ctl_node("clear_policy", "short").code == 0
    gone = ctl_node("clear_policy", "short")
    assert (gone.code, gone.err) == (69, "Error:\nParameter does not exist\n")


def test_policy_that_is_none_is_refused_with_the_reason(ctl_node: CtlNode) -> None:
    unknown = ctl_node("set_policy", "p", "a", '{"foo":10}')
    assert (unknown.code, unknown.err) == (
        69,
        'Error:\nValidation failed\n\n[{<<"foo">>,10}] are not recognised policy settings\n',
    )
    pattern = ctl_node("set_policy", "p", "*", '{"max-length":10}')
    assert pattern.code == 69 and '{"nothing to repeat",0}' in pattern.err
    assert ctl_node("set_policy", "p", "a", "no json").code == 69
    elsewhere = ctl_node("set_policy", "-p", "nowhere", "p", "a", '{"max-length":10}')
    assert (elsewhere.code, elsewhere.err) == (65, "Virtual host 'nowhere' does not exist\n")
    assert ctl_node("set_policy", "--priority", "x", "p", "a", "{}").code == 64


def test_operator_policies_are_apart(ctl_node: CtlNode) -> None:
    assert ctl_node("set_operator_policy", "cap", ".*", '{"max-length":5}').code == 0
    assert ctl_node.rows("list_operator_policies") == [
        ["/", "cap", ".*", "all", '{"max-length":5}', "0"]
    ]
    assert ctl_node.rows("list_policies") == []
    assert ctl_node.rows("list_parameters") == []
    assert ctl_node("clear_operator_policy", "cap").code == 0
    assert ctl_node("clear_operator_policy", "cap").code == 69


def test_parameters_are_set_listed_and_cleared(ctl_node: CtlNode) -> None:
    assert ctl_node("set_parameter", "vhost-limits", "limits", '{"max-queues":5}').code == 0
    assert ctl_node.rows("list_parameters") == [["vhost-limits", "limits", '{"max-queues":5}']]
    assert ctl_node("clear_parameter", "vhost-limits", "limits").code == 0
    assert ctl_node("clear_parameter", "vhost-limits", "limits").code == 69
    unknown = ctl_node("set_parameter", "foo", "x", "{}")
    assert (unknown.code, unknown.err) == (
        69,
        "Error:\nValidation failed\n\ncomponent foo not found\n",
    )


def test_global_parameters_are_set_listed_and_cleared(ctl_node: CtlNode) -> None:
    assert ctl_node("set_global_parameter", "g", '{"a":[1,null]}').code == 0
    assert ["g", '{"a":[1,null]}'] in ctl_node.rows("list_global_parameters")
    assert ctl_node("clear_global_parameter", "g").code == 0
    assert ctl_node("clear_global_parameter", "g").err == "Error:\nParameter does not exist\n"


def test_cluster_gets_a_name(ctl_node: CtlNode) -> None:
    assert ctl_node("set_cluster_name", "warrens").code == 0
    assert ctl_node("cluster_status", "--formatter", "json").json["cluster_name"] == "warrens"
