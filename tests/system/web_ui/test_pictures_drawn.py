"""What the pages draw: charts, causes of a backlog, states of queues and members."""

from __future__ import annotations

import re
from typing import Any

import pytest

from warren import Broker

pytest.importorskip("playwright", reason="the web pages are tested with Playwright")

from playwright.sync_api import Browser, expect
from web_pages import declare
from web_ui import CHROMIUM, WebUi

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")


def test_charts_move_when_messages_flow(ui: WebUi, channel: Any) -> None:
    declare(channel, "busy")
    ui.open("queues", "/", "busy")
    depth = ui.page.get_by_role("img", name="Messages in the queue.")
    rates = ui.page.get_by_role("img", name="Message rates.")
    states = ui.page.get_by_role("img", name="Messages from tail to head")
    expect(depth).to_have_accessible_name(containing("Total: now 0"))
    declare(channel, "busy", 300)
    ui.refresh()
    ui.refresh()
    expect(depth).to_have_accessible_name(containing("Total: now 300"))
    assert depth.locator("polyline.line-0").count() == 1
    expect(states).to_have_accessible_name(containing("300"))
    # A rate needs two samples of the node.
    for _ in range(20):
        if "Published: now 0/s" not in (rates.get_attribute("aria-label") or ""):
            break
        declare(channel, "busy", 20)
        ui.page.wait_for_timeout(200)
        ui.refresh()
    assert "Published: now 0/s" not in (rates.get_attribute("aria-label") or "")
    ui.picture("queue-busy")
    ui.open()
    overview = ui.page.get_by_role("img", name="Queued messages.")
    assert "Total: now 0;" not in (overview.get_attribute("aria-label") or "")
    # The legend follows the cursor, which keys move as well.
    stage = ui.page.get_by_role("group", name="Queued messages")
    stage.focus()
    stage.press("ArrowLeft")
    expect(ui.page.locator(".legend-time").first).not_to_be_empty()


def test_every_chart_asks_the_node_for_its_past(ui: WebUi, channel: Any) -> None:
    declare(channel, "past", 1)
    wanted = {
        ("exchanges", "/", "amq.topic"): ("exchanges/%2F/amq.topic?", "msg_rates_age=600"),
        ("queues", "/", "past"): ("queues/%2F/past?", "lengths_age=600"),
        ("nodes", "warren@localhost"): ("nodes/warren", "node_stats_age=600"),
    }
    for address, parts in wanted.items():
        with ui.page.expect_request(lambda one, parts=parts: all(p in one.url for p in parts)):
            ui.open(*address)


def containing(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))


def consumer(prefetch: int = 0, **more: Any) -> dict[str, Any]:
    details = {"name": "c (1)", "connection_name": "c"}
    return {
        "consumer_tag": "tag",
        "ack_required": True,
        "active": True,
        "activity_status": "up",
        "prefetch_count": prefetch,
        "channel_details": details,
        **more,
    }


def queue(ready: int, unacked: int = 0, consumers: Any = (), **more: Any) -> dict[str, Any]:
    return {
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
        "consumers": len(consumers),
        "consumer_details": list(consumers),
        **more,
    }


def rates(**rate: float) -> dict[str, Any]:
    return {f"{name}_details": {"rate": value} for name, value in rate.items()}


FULL_MEMORY = {"name": "n", "mem_alarm": True, "mem_used": 5, "mem_limit": 4}

FULL_DISK = {"name": "n", "disk_free_alarm": True, "disk_free": 1, "disk_free_limit": 4}

CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "empty": ({"queue": queue(0)}, ["empty"]),
    "no consumers": ({"queue": queue(5)}, ["no-consumers"]),
    "prefetch": ({"queue": queue(5, 3, [consumer(1), consumer(2)])}, ["prefetch"]),
    "at the prefetch, but catching up": (
        {"queue": queue(5, 3, [consumer(3)], message_stats=rates(publish=1, ack=9))},
        ["prefetch plain", "shrinking"],
    ),
    "below the prefetch": ({"queue": queue(5, 2, [consumer(3)])}, ["stuck"]),
    "global prefetch": (
        {
            "queue": queue(5, 2, [consumer()]),
            "channels": [
                {"name": "c (1)", "global_prefetch_count": 2, "messages_unacknowledged": 2}
            ],
        },
        ["prefetch"],
    ),
    "growing": (
        {"queue": queue(5, 0, [consumer()], message_stats=rates(publish=9, ack=4))},
        ["growing"],
    ),
    "shrinking": (
        {"queue": queue(5, 0, [consumer()], message_stats=rates(publish=1, ack=4))},
        ["shrinking"],
    ),
    "steady": (
        {"queue": queue(5, 0, [consumer()], message_stats=rates(publish=4, deliver_no_ack=4))},
        ["steady"],
    ),
    "held by its time to live": (
        {
            "queue": queue(
                24,
                0,
                [consumer()],
                message_stats=rates(publish=11.7),
                messages_expired_details={"rate": 11.7},
            )
        },
        ["losing"],
    ),
    "slow socket": (
        {
            "queue": queue(5, 0, [consumer()]),
            "connections": [{"name": "c", "send_pend": 1 << 20, "state": "running"}],
        },
        ["slow-socket", "stuck"],
    ),
    "memory alarm": ({"queue": queue(0), "nodes": [FULL_MEMORY]}, ["memory-alarm", "empty"]),
    "disk alarm": ({"queue": queue(5), "nodes": [FULL_DISK]}, ["disk-alarm", "no-consumers"]),
    "single active": (
        {
            "queue": queue(
                5,
                0,
                [
                    consumer(activity_status="single_active"),
                    consumer(activity_status="waiting", active=False),
                ],
                single_active_consumer_tag="tag",
            )
        },
        ["single-active", "stuck"],
    ),
    "waiting consumers have no prefetch": (
        {
            "queue": queue(
                5,
                1,
                [
                    consumer(1, activity_status="single_active"),
                    consumer(1, activity_status="waiting", active=False),
                ],
            )
        },
        ["single-active", "prefetch"],
    ),
    "unacknowledged": ({"queue": queue(0, 4, [consumer(9)])}, ["unacked"]),
    "lazy": (
        {"queue": queue(5, backing_queue_status={"mode": "lazy"}, messages_paged_out=5)},
        ["no-consumers", "lazy"],
    ),
    "paged out": ({"queue": queue(5, messages_paged_out=3)}, ["no-consumers", "paged-out"]),
    "returned": (
        {
            "queue": queue(
                5, 1, [consumer(9)], message_stats=rates(deliver=50, redeliver=48, publish=1, ack=1)
            )
        },
        ["returned", "steady"],
    ),
    "at its maximum": (
        {"queue": queue(5, arguments={"x-max-length": 5})},
        ["no-consumers", "max-length"],
    ),
    "exclusive": (
        {"queue": queue(5, 0, [consumer()], exclusive_consumer_tag="tag")},
        ["exclusive-consumer", "stuck"],
    ),
    "its node is down": ({"queue": queue(0, state="down", node="n")}, ["down"]),
    "publishers held back": (
        {"queue": queue(5), "connections": [{"name": "x", "send_pend": 0, "state": "flow"}]},
        ["no-consumers", "held-back"],
    ),
}


def test_the_reason_for_a_backlog_is_found(browser: Browser, broker: Broker) -> None:
    with WebUi(browser, broker.http_url) as ui:
        ui.page.goto(broker.http_url)
        found = ui.page.evaluate(
            """async (cases) => {
              const { explainQueue } = await import("./diagnosis.js");
              const told = ({ code, tone }) =>
                code === "prefetch" && tone !== "bad" ? `${code} ${tone}` : code;
              return cases.map((one) => explainQueue(one).map(told));
            }""",
            [given for given, _ in CASES.values()],
        )
        assert dict(zip(CASES, found, strict=True)) == {
            name: codes for name, (_, codes) in CASES.items()
        }


def test_the_states_of_a_queue_are_drawn_in_proportion(browser: Browser, broker: Broker) -> None:
    status = {"mode": "default", "q1": 1, "q2": 0, "delta": ["delta", 5, 97, 0, 102], "q4": 2}
    with WebUi(browser, broker.http_url) as ui:
        ui.page.goto(broker.http_url)
        drawn = ui.page.evaluate(
            """async (status) => {
              const { BackingBar } = await import("./backing.js");
              const bar = new BackingBar();
              document.body.replaceChildren(bar.element);
              bar.update(status, 3);
              const image = bar.element.querySelector("[role=img]");
              const widths = [...image.children].map((one) => one.getBoundingClientRect().width);
              return [image.getAttribute("aria-label"), widths, image.clientWidth];
            }""",
            {**status, "q3": 0, "target_ram_count": 3},
        )
    label, (q1, q2, delta, q3, q4), whole = drawn
    assert label == "Messages from tail to head: q1 1, q2 0, delta 97, q3 0, q4 2"
    assert (q2, q3) == (0, 0)
    assert q1 >= 6 and q4 >= 6 and delta > 0.9 * whole


RING = (
    ("rabbit@one.example", "leader"),
    ("rabbit@two.example", "in_sync"),
    ("rabbit@three.example", "syncing"),
    ("rabbit@four.example", "out_of_sync"),
    ("rabbit@five.example", "dead"),
    ("rabbit@six.example", "joining"),
)


def test_members_of_a_ring_are_told_apart_without_colours(browser: Browser, broker: Broker) -> None:
    with WebUi(browser, broker.http_url) as ui:
        ui.page.goto(broker.http_url)
        marks, names, ways, told, clipped = ui.page.evaluate(
            """async (members) => {
              const { Ring } = await import("./ring.js");
              const ring = new Ring();
              document.body.replaceChildren(ring.element);
              ring.update(members.map(([node, state]) => ({ node, state })));
              const texts = (kind) =>
                [...ring.element.querySelectorAll(kind)].map((one) => one.textContent);
              const svg = ring.element.querySelector("svg");
              const frame = svg.getBoundingClientRect();
              const place = (one) => one.getBoundingClientRect();
              const parts = [...svg.querySelectorAll("*")].map(place);
              return [
                texts(".ring-mark"),
                texts(".ring-name"),
                [...svg.querySelectorAll(".ring-way")].map((one) => one.matches(".gone")),
                svg.getAttribute("aria-label"),
                parts.filter((one) => one.left < frame.left || one.right > frame.right).length,
              ];
            }""",
            RING,
        )
        assert len(set(marks)) == len(RING)
        assert names == ["one", "two", "three", "four", "five", "six"]
        assert ways == [False, False, False, True, True, True]
        for node, _ in RING:
            assert node in told
        for state in ("leader", "in sync", "syncing", "not in sync", "dead", "joining"):
            assert f", {state}" in told
        assert clipped == 0


def test_names_in_a_ring_are_short_and_differ(browser: Browser, broker: Broker) -> None:
    cases = [
        ["a@host", "b@host"],
        ["rabbit@one.example", "rabbit@two.example"],
        ["rabbit@one.east.example", "rabbit@one.west.example"],
        ["a@one", "b@two"],
        ["alone@host"],
        ["no-host", "a@b"],
    ]
    with WebUi(browser, broker.http_url) as ui:
        ui.page.goto(broker.http_url)
        short = ui.page.evaluate(
            """async (cases) => {
              const { shortNames } = await import("./ring.js");
              return cases.map(shortNames);
            }""",
            cases,
        )
    assert short == [
        ["a", "b"],
        ["one", "two"],
        ["one.east.example", "one.west.example"],
        ["a@one", "b@two"],
        ["alone@host"],
        ["no-host", "a@b"],
    ]


MEMBERS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "alone and well": ({"running": True, "state": "running"}, ["running"], []),
    "down": ({"running": False, "state": "down"}, ["down"], ["Node n is down."]),
    "paused": (
        {"running": False, "state": "paused"},
        ["paused"],
        ["Node n has paused: it has lost etcd, and waits until that is back."],
    ),
    "partitioned": (
        {"running": False, "state": "unreachable"},
        ["unreachable"],
        ["Node n runs and cannot be reached from m."],
    ),
    "silent": ({"running": False, "state": "silent"}, ["silent"], ["Node n does not answer."]),
    "partitioned from others": (
        {"running": True, "state": "running", "partitions": ["x"]},
        ["running", "cannot reach x"],
        ["Node n cannot reach x."],
    ),
    "in maintenance": (
        {"running": True, "state": "running", "being_drained": True},
        ["running", "maintenance"],
        [],
    ),
}


def test_every_state_of_a_member_is_told(browser: Browser, broker: Broker) -> None:
    with WebUi(browser, broker.http_url) as ui:
        ui.page.goto(broker.http_url)
        found = ui.page.evaluate(
            """async (members) => {
              const { memberWarnings, stateBadges } = await import("./node_state.js");
              return members.map((one) => [
                stateBadges(one).map(({ text }) => text),
                memberWarnings([one], "m"),
              ]);
            }""",
            [{"name": "n", **member} for member, _, _ in MEMBERS.values()],
        )
    expected = {name: [badges, warnings] for name, (_, badges, warnings) in MEMBERS.items()}
    assert dict(zip(MEMBERS, found, strict=True)) == expected
