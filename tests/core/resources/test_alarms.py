"""The set of alarms."""

from __future__ import annotations

from warren.core.resources.alarms import Alarm, Alarms, Resource


def test_the_reason_names_what_is_short() -> None:
    alarms = Alarms("a@host")
    assert not alarms.raised and alarms.reason() == ""
    alarms.report(Resource.DISK, True)
    assert alarms.raised and alarms.reason() == "low on disk"
    alarms.report(Resource.MEMORY, True)
    assert alarms.reason() == "low on memory & low on disk"
    alarms.report(Resource.DISK, False)
    assert alarms.reason() == "low on memory"
    alarms.report(Resource.MEMORY, False)
    assert not alarms.raised and alarms.reason() == ""


def test_an_alarm_of_any_node_counts_until_the_last_is_cleared() -> None:
    alarms = Alarms("a@host")
    alarms.report(Resource.MEMORY, True, "b@host")
    alarms.report(Resource.MEMORY, True)
    alarms.report(Resource.MEMORY, False)
    assert alarms.raised
    assert alarms.in_effect() == [Alarm(Resource.MEMORY, "b@host")]
    assert alarms.local() == []
    alarms.report(Resource.MEMORY, False, "b@host")
    assert not alarms.raised


def test_a_node_takes_its_alarms_along() -> None:
    alarms = Alarms("a@host")
    for resource in (Resource.DISK, Resource.MEMORY):
        alarms.report(resource, True, "b@host")
    alarms.report(Resource.DISK, True)
    alarms.node_down("b@host")
    assert alarms.in_effect() == alarms.local() == [Alarm(Resource.DISK, "a@host")]
    assert alarms.reason() == "low on disk"


def test_subscribers_hear_of_changes_only() -> None:
    alarms = Alarms("a@host")
    heard: list[str] = []
    stop = alarms.subscribe(lambda: heard.append(alarms.reason()))
    alarms.report(Resource.MEMORY, False)
    alarms.report(Resource.MEMORY, True)
    alarms.report(Resource.MEMORY, True)
    alarms.report(Resource.DISK, True)
    alarms.node_down("unknown@host")
    assert heard == ["low on memory", "low on memory & low on disk"]
    stop()
    alarms.report(Resource.DISK, False)
    assert len(heard) == 2


def test_a_subscriber_may_leave_while_others_are_told() -> None:
    alarms = Alarms("a@host")
    heard: list[str] = []

    def first() -> None:
        heard.append("first")
        stop_second()

    alarms.subscribe(first)
    stop_second = alarms.subscribe(lambda: heard.append("second"))
    alarms.report(Resource.MEMORY, True)
    assert heard == ["first"]
