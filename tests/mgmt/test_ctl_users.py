"""`warren ctl`: users, permissions and their limits."""

from __future__ import annotations

from ctl_node import CtlNode


def test_added_user_is_listed_with_its_tags(ctl_node: CtlNode) -> None:
    added = ctl_node("add_user", "ann", "secret")
    assert (added.code, added.lines[0]) == (0, 'Adding user "ann" ...')
    assert "set_permissions" in added.lines[1]
    assert ctl_node("set_user_tags", "ann", "monitoring", "other").out == (
        'Setting tags for user "ann" to [monitoring, other] ...\n'
    )
    assert ["ann", "[monitoring, other]"] in ctl_node.rows("list_users")
    listed = ctl_node("list_users")
    assert listed.lines[:2] == ["Listing users ...", "user\ttags"]
    assert {"user": "ann", "tags": ["monitoring", "other"]} in ctl_node(
        "list_users", "--formatter", "json"
    ).json


def test_user_that_exists_is_not_overwritten(ctl_node: CtlNode) -> None:
    ctl_node("add_user", "bob", "first")
    again = ctl_node("add_user", "bob", "second")
    assert (again.code, again.err) == (70, 'Error:\nUser "bob" already exists\n')
    assert ctl_node("authenticate_user", "bob", "first").code == 0


def test_password_may_be_piped_in(ctl_node: CtlNode) -> None:
    assert ctl_node("add_user", "pip", stdin="from stdin\n").code == 0
    authenticated = ctl_node("authenticate_user", "pip", stdin="from stdin\n")
    assert authenticated.out == 'Authenticating user "pip" ...\nSuccess\n'


def test_changed_password_counts_and_tags_stay(ctl_node: CtlNode) -> None:
    ctl_node("add_user", "cid", "old")
    ctl_node("set_user_tags", "cid", "management")
    assert ctl_node("change_password", "cid", "new").code == 0
    refused = ctl_node("authenticate_user", "cid", "old")
    assert (refused.code, refused.err.splitlines()[-1]) == (
        65,
        "user 'cid' - invalid credentials",
    )
    assert ctl_node("authenticate_user", "cid", "new").code == 0
    ctl_node("set_user_tags", "cid", "monitoring")
    assert ctl_node("authenticate_user", "cid", "new").code == 0
    assert ctl_node("clear_password", "cid").code == 0
    assert ctl_node("authenticate_user", "cid", "new").code == 65
    assert ["cid", "[monitoring]"] in ctl_node.rows("list_users")


def test_empty_name_is_no_user(ctl_node: CtlNode) -> None:
    for command in (
        ["delete_user", ""],
        ["change_password", "", "x"],
        ["set_user_tags", ""],
        ["clear_password", ""],
        ["clear_permissions", ""],
        ["clear_topic_permissions", ""],
        ["clear_user_limits", "", "all"],
        ["list_user_limits", "--user", ""],
    ):
        result = ctl_node(*command)
        assert result.code in (65, 67), command
        assert "Traceback" not in result.err
        assert "does not exist" in result.err, command


def test_commands_about_nobody_exit_with_67(ctl_node: CtlNode) -> None:
    for command in (
        ["delete_user", "nobody"],
        ["change_password", "nobody", "x"],
        ["set_user_tags", "nobody"],
        ["clear_password", "nobody"],
    ):
        result = ctl_node(*command)
        assert (result.code, result.err) == (67, 'Error:\nUser "nobody" does not exist\n')
    assert ctl_node("set_permissions", "nobody", "a", "b", "c").code == 67
    assert ctl_node("clear_permissions", "nobody").code == 67
    assert ctl_node("list_user_permissions", "nobody").code == 69


def test_permissions_are_set_listed_and_cleared(ctl_node: CtlNode) -> None:
    ctl_node("add_user", "dan", "x")
    assert ctl_node("set_permissions", "dan", "^d", ".*", "").out == (
        'Setting permissions for user "dan" in vhost "/" ...\n'
    )
    assert ["dan", "^d", ".*", ""] in ctl_node.rows("list_permissions")
    assert ctl_node.rows("list_user_permissions", "dan") == [["/", "^d", ".*", ""]]
    assert ctl_node("clear_permissions", "dan").code == 0
    assert ctl_node("clear_permissions", "dan").code == 0
    assert ctl_node.rows("list_user_permissions", "dan") == []


def test_permissions_that_cannot_be_set_are_refused(ctl_node: CtlNode) -> None:
    ctl_node("add_user", "eve", "x")
    wrong = ctl_node("set_permissions", "eve", "*", "", "")
    assert wrong.code == 69 and "'*' is no regular expression" in wrong.err
    elsewhere = ctl_node("set_permissions", "-p", "nowhere", "eve", "", "", "")
    assert (elsewhere.code, elsewhere.err) == (69, "Error:\nVirtual host nowhere does not exist\n")
    assert ctl_node("list_permissions", "-p", "nowhere").code == 65


def test_topic_permissions_are_set_listed_and_cleared(ctl_node: CtlNode) -> None:
    ctl_node("add_user", "fay", "x")
    assert ctl_node("set_topic_permissions", "fay", "amq.topic", "^a", "^b").code == 0
    assert ctl_node("set_topic_permissions", "fay", "other", "", "").code == 0
    assert ["fay", "amq.topic", "^a", "^b"] in ctl_node.rows("list_topic_permissions")
    assert ctl_node("clear_topic_permissions", "fay", "other").code == 0
    assert ctl_node.rows("list_user_topic_permissions", "fay") == [["/", "amq.topic", "^a", "^b"]]
    assert ctl_node("clear_topic_permissions", "fay").code == 0
    assert ctl_node.rows("list_user_topic_permissions", "fay") == []


def test_limits_of_users_add_up(ctl_node: CtlNode) -> None:
    ctl_node("add_user", "gus", "x")
    assert ctl_node("set_user_limits", "gus", '{"max-connections": 2}').code == 0
    assert ctl_node("set_user_limits", "gus", '{"max-channels": 3}').code == 0
    assert ctl_node("list_user_limits", "--user", "gus", "--formatter", "json").json == [
        {"limits": '{"max-connections":2,"max-channels":3}'}
    ]
    assert ["gus", '{"max-connections":2,"max-channels":3}'] in ctl_node.rows("list_user_limits")
    assert ctl_node("clear_user_limits", "gus", "max-channels").code == 0
    assert ctl_node.rows("list_user_limits", "--user", "gus") == [['{"max-connections":2}']]
    assert ctl_node("clear_user_limits", "gus", "all").code == 0
    assert ctl_node("-q", "list_user_limits", "--user", "gus").out == "\n"


def test_limits_that_are_none_are_refused(ctl_node: CtlNode) -> None:
    ctl_node("add_user", "hal", "x")
    unknown = ctl_node("set_user_limits", "hal", '{"max-foo": 2}')
    assert (unknown.code, unknown.err) == (
        69,
        'Error:\nUnrecognised terms [{<<"max-foo">>,2}] in user-limits\n',
    )
    garbage = ctl_node("set_user_limits", "hal", "garbage")
    assert garbage.code == 69 and garbage.err.startswith("Error:\nJSON decoding error.")


def test_no_password_at_all_is_wrong_usage(ctl_node: CtlNode) -> None:
    ctl_node("add_user", "nia", "kept")
    for command in ("add_user", "change_password", "authenticate_user"):
        result = ctl_node(command, "nia")
        assert result.code == 64
        assert "Password is not provided via argument or stdin" in result.err
    assert ctl_node("authenticate_user", "nia", "kept").code == 0
