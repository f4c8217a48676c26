"""What the pages tell an operator at first sight: lists, addresses, tables, what is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from warren import Broker
from warren.core.resources.alarms import Resource

pytest.importorskip("playwright", reason="the web pages are tested with Playwright")

from playwright.sync_api import Browser, expect
from web_pages import api
from web_ui import CHROMIUM, WebUi, chromium

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")

SMALL_PHONE = (390, 844)
DESK = (1440, 900)
NODE = "warren@localhost"

CALLS = {
    (): "overview",
    ("connections",): "connections",
    ("channels",): "channels",
    ("exchanges",): "exchanges",
    ("exchanges", "/", "amq.topic"): "exchanges/%2F/amq.topic",
    ("exchanges", "/", "amq.default"): "exchanges/%2F/amq.default",
    ("queues",): "queues",
    ("queues", "/", "shown"): "queues/%2F/shown",
    ("queues", "/", "shown", "messages"): "queues/%2F/shown/messages",
    ("users",): "users",
    ("users", "guest"): "users/guest",
    ("vhosts",): "vhosts",
    ("vhosts", "/"): "vhosts/%2F",
    ("policies",): "policies",
    ("shovels",): "shovels",
    ("limits",): "vhost-limits",
    ("federation",): "federation-links",
    ("trace",): "trace/%2F",
    ("trace", "/", "m"): "trace/%2F/m",
    ("definitions",): "definitions",
    ("nodes",): "nodes",
    ("nodes", NODE): "nodes/warren%40localhost",
}
"""The address of each page, and the call of the API that it shows."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, stats_interval_ms=1000) as started:
        yield started


@pytest.fixture(scope="module")
def window(browser: Browser, broker: Broker) -> Iterator[WebUi]:
    with WebUi(browser, broker.http_url, DESK) as entered:
        entered.enter()
        yield entered


@pytest.fixture
def ui(window: WebUi) -> Iterator[WebUi]:
    """A window of an administrator, on the overview."""
    window.start_anew()
    yield window
    window.check_complaints()


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    connection.close()


def declare(channel: Any, name: str, messages: int = 0, **arguments: Any) -> None:
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.confirm_delivery()
    for number in range(messages):
        channel.basic_publish("", name, b"message %d" % number)


# Lists


def test_badges_say_how_a_queue_was_declared_and_the_list_fits(
    ui: WebUi, broker: Broker, channel: Any
) -> None:
    arguments = {
        "x-message-ttl": 60_000,
        "x-max-length": 7,
        "x-dead-letter-exchange": "amq.fanout",
        "x-dead-letter-routing-key": "dead",
        "x-max-priority": 5,
        "x-single-active-consumer": True,
        "x-queue-mode": "lazy",
    }
    declare(channel, "orders.of.a.shop.with.a.long.name", 0, **arguments)
    declare(channel, "by-policy")
    declare(channel, "plain", 0, **{"x-queue-mode": "default", "x-of-somebody": 1})
    broker.set_policy("ttl", "^by-policy$", {"message-ttl": 5000})
    broker.add_vhost("badges")
    ui.page.reload()
    ui.until_refreshed()
    ui.open("queues")

    def badges(name: str) -> list[str]:
        row = ui.page.get_by_role("row").filter(has_text=name)
        expect(row).to_have_count(1)
        return [badge for badge in row.locator(".badge").all_inner_texts() if badge != "idle"]

    expected = ["D", "TTL", "Lim", "DLX", "DLK", "Pri", "SAC", "Lazy"]
    assert badges("long.name")[: len(expected)] == expected
    assert badges("by-policy")[:2] == ["D", "TTL"]
    title = (
        ui.page.get_by_role("row").filter(has_text="by-policy").locator(".badge", has_text="TTL")
    )
    expect(title).to_have_attribute("title", "messages live 5000 ms, by a policy")
    assert badges("plain")[:2] == ["D", "Args"]
    scroll = ui.page.locator(".scroll").first
    assert scroll.evaluate("one => one.scrollWidth <= one.clientWidth")
    broker.clear_policy("ttl")
    broker.delete_vhost("badges")


def test_what_shovels_and_links_failed_at_fits_beside_their_buttons(
    ui: WebUi, broker: Broker, channel: Any
) -> None:
    """They are shown with both ends, whatever state they are in."""
    declare(channel, "invoices.to.be.printed")
    nowhere = "amqp://nobody:wrong@127.0.0.1:1/printers"
    shovel = {
        "src-uri": "amqp://",
        "src-queue": "invoices.to.be.printed",
        "dest-uri": nowhere,
        "dest-queue": "printer",
    }
    policy = {"pattern": "^invoices", "definition": {"federation-upstream": "rabbit-in-oslo"}}
    api(broker, "PUT", "parameters/shovel/%2F/invoices-to-oslo", {"value": shovel})
    upstream = {"value": {"uri": nowhere}}
    api(broker, "PUT", "parameters/federation-upstream/%2F/rabbit-in-oslo", upstream)
    api(broker, "PUT", "policies/%2F/federate-invoices-and-orders-of-the-shop", policy)
    broker.add_vhost("narrow")
    ui.page.reload()
    ui.until_refreshed()
    for page, text in (
        ("shovels", "Connection refused"),
        ("federation", "Connection refused"),
        ("queues", "federate-invoices-and-orders-of-the-shop"),
    ):
        ui.open(page)
        row = ui.page.get_by_role("row").filter(has_text=text).first
        expect(row).to_contain_text("invoices", timeout=30_000)
        scroll = ui.page.locator(".scroll").filter(has=row)
        assert scroll.evaluate("one => one.scrollWidth <= one.clientWidth"), page
        if page == "shovels":
            expect(row.get_by_role("cell", name="printer", exact=True)).to_be_visible()
    api(broker, "DELETE", "policies/%2F/federate-invoices-and-orders-of-the-shop")
    api(broker, "DELETE", "parameters/federation-upstream/%2F/rabbit-in-oslo")
    api(broker, "DELETE", "parameters/shovel/%2F/invoices-to-oslo")
    broker.delete_vhost("narrow")
    channel.queue_delete("invoices.to.be.printed")


def test_a_phone_shows_how_much_is_in_a_queue(
    browser: Browser, broker: Broker, channel: Any
) -> None:
    declare(channel, "orders.of.a.shop.with.a.long.name.for.a.phone", 12_345 % 77)
    with WebUi(browser, broker.http_url, SMALL_PHONE) as ui:
        ui.enter()
        ui.open("queues")
        row = ui.page.get_by_role("row").filter(has_text="for.a.phone")
        for cell in row.get_by_role("cell", name="25", exact=True).all():
            box = cell.bounding_box()
            assert box is not None and box["x"] + box["width"] <= SMALL_PHONE[0]
        assert row.get_by_role("cell", name="25", exact=True).count() == 2
        ui.check_form()


def test_filter_order_and_page_survive_a_reload_and_the_way_back(ui: WebUi, channel: Any) -> None:
    page = ui.page
    for number in range(45):
        declare(channel, f"kept-{number:02}", number % 3)
    ui.open("queues")
    page.get_by_label("Rows").select_option("20")
    page.get_by_label("Filter", exact=True).fill("kept-")
    expect(page.locator(".list-count")).to_contain_text("20 of 45 matching of")
    page.get_by_role("button", name="Ready").click()
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".list-count")).to_contain_text("21\u201340 of 45 matching of")
    first = page.locator("tbody tr a").first.inner_text()
    assert "name=kept-" in page.url and "sort=messages_ready" in page.url and "page=2" in page.url

    def check() -> None:
        expect(page.locator(".list-count")).to_contain_text("21\u201340 of 45 matching of")
        expect(page.get_by_label("Filter", exact=True)).to_have_value("kept-")
        expect(page.get_by_role("columnheader", name="Ready")).to_have_attribute(
            "aria-sort", "descending"
        )
        expect(page.locator("tbody tr a").first).to_have_text(first)

    page.reload()
    check()
    page.locator("tbody tr a").first.click()
    expect(ui.heading("Queue kept-")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Queue kept-")
    page.go_back()
    check()
    # From the menu, the list is whole again.
    page.get_by_role("link", name="Queues", exact=True).click()
    expect(page.get_by_label("Filter", exact=True)).to_have_value("")
    expect(page.locator(".list-count")).to_contain_text("1\u201320 of")


def test_a_filter_of_a_plain_list_is_in_the_address(ui: WebUi) -> None:
    ui.open("users")
    ui.page.get_by_label("Filter", exact=True).fill("gue")
    ui.page.get_by_label("Regular expression").check()
    expect(ui.page.locator(".list-count")).to_contain_text("1\u20131 of 1 matching of 1")
    assert ui.page.url.endswith("#/users?name=gue&regex=true")
    ui.page.reload()
    expect(ui.page.get_by_label("Filter", exact=True)).to_have_value("gue")
    expect(ui.page.get_by_label("Regular expression")).to_be_checked()


# Tables and texts


def test_headers_and_properties_are_tables_and_json_is_set_out(ui: WebUi, channel: Any) -> None:
    declare(channel, "json")
    text = '{"id":12345678901234567890,"a":[1,{"b":"x, {y}"}],"none":{},"id":2}'
    properties = pika.BasicProperties(
        content_type="application/json",
        message_id="m-1",
        headers={"colour": "orange", "inner": {"deep": 1}, "list": ["a", "b"]},
    )
    channel.basic_publish("", "json", text.encode(), properties)
    ui.open("queues", "/", "json")
    form = ui.unfold("Get messages")
    form.get_by_role("button", name="Get messages").click()
    message = form.get_by_role("article")
    expect(ui.entry("Properties", "message_id")).to_have_text("m-1")
    expect(ui.entry("Headers", "colour")).to_have_text("orange")
    expect(ui.entry("Headers", "list")).to_have_text("a, b")
    expect(ui.entry("Headers", "inner").get_by_role("row", name="deep 1")).to_be_visible()
    lines = [
        "{",
        '  "id": 12345678901234567890,',
        '  "a": [',
        "    1,",
        "    {",
        '      "b": "x, {y}"',
        "    }",
        "  ],",
        '  "none": {},',
        '  "id": 2',
        "}",
    ]
    body = message.get_by_label("Payload")
    assert body.inner_text() == "\n".join(lines)
    message.get_by_role("button", name="Show as sent").click()
    assert body.inner_text() == text
    ui.check_form()


def test_messages_are_looked_at_page_by_page_and_moved(ui: WebUi, channel: Any) -> None:
    declare(channel, "hand")
    declare(channel, "other")
    for number in range(5):
        body = f'{{"number": {number}}}'.encode()
        channel.basic_publish("", "hand", body, pika.BasicProperties(headers={"n": number}))
    ui.open("queues", "/", "hand", "messages")
    page = ui.page
    look = page.locator("form").filter(has=page.get_by_role("button", name="Look", exact=True))
    look.get_by_label("Filter").fill("headers.n > 0")
    look.get_by_label("On a page").fill("3")
    look.get_by_role("button", name="Look", exact=True).click()
    summary = page.locator(".got-summary")
    expect(summary).to_have_text("3 messages found among 4. There is more.")
    payloads = page.get_by_label("Payload")
    expect(payloads).to_have_text([f'{{\n  "number": {number}\n}}' for number in (1, 2, 3)])
    expect(ui.entry("Headers", "n").first).to_have_text("1")
    page.get_by_role("button", name="Next page").click()
    expect(summary).to_have_text("1 message found among 1. That is the end of the queue.")
    expect(page.get_by_role("link", name="Export all")).to_have_attribute(
        "href", re.compile(r"messages/export\?filter=headers\.n\+%3E\+0")
    )

    act = page.locator("form").filter(has=page.get_by_role("button", name="Begin"))
    act.get_by_label("To queue").fill("other")
    act.get_by_role("button", name="Begin").click()
    job = page.get_by_role("article", name="Job move hand").first
    ui.refresh()
    expect(job).to_contain_text("would move: 4 messages, completed")
    expect(job.get_by_label("Sample")).to_have_count(4)
    page.get_by_label("Select message").check()
    act.get_by_label("Which messages").select_option("selected")
    act.get_by_label("Only count them").uncheck()
    act.get_by_role("button", name="Begin").click()
    moved = page.get_by_text("move: 1 message, completed", exact=True)
    ui.refresh()
    expect(moved).to_be_visible()
    assert channel.basic_get("other", auto_ack=True)[2] == b'{"number": 4}'
    act.get_by_label("Action").select_option("delete")
    act.get_by_label("To queue").fill("")
    act.get_by_label("Which messages").select_option("filter")
    act.get_by_role("button", name="Begin").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    ui.refresh()
    expect(page.get_by_text("delete: 3 messages, completed")).to_be_visible()
    assert channel.queue_declare("hand", passive=True, durable=True).method.message_count == 1
    ui.check_form()


def test_messages_are_looked_at_from_a_position_and_back_again(ui: WebUi, channel: Any) -> None:
    declare(channel, "pages")
    for number in range(5):
        channel.basic_publish("", "pages", b"%d" % number)
    ui.open("queues", "/", "pages", "messages")
    page = ui.page
    look = page.locator("form").filter(has=page.get_by_role("button", name="Look", exact=True))
    payloads = page.get_by_label("Payload")
    expect(payloads).to_have_count(5)
    label = page.get_by_label("Select message").nth(1).get_attribute("id")
    third = page.locator(f'label[for="{label}"]').inner_text().rpartition(" ")[2]
    look.get_by_label("From position").fill(third)
    look.get_by_label("On a page").fill("2")
    look.get_by_role("button", name="Look", exact=True).click()
    back = page.get_by_role("button", name="Previous page")
    expect(payloads).to_have_text(["1", "2"])
    expect(back).to_be_hidden()
    page.get_by_role("button", name="Next page").click()
    expect(payloads).to_have_text(["3", "4"])
    back.click()
    expect(payloads).to_have_text(["1", "2"])
    expect(back).to_be_hidden()
    ui.check_form()


def test_dead_letters_go_back_where_they_came_from_first_or_last(ui: WebUi, channel: Any) -> None:
    """The page sends which death counts."""
    declare(channel, "buried")
    ui.open("queues", "/", "buried", "messages")
    page = ui.page
    act = page.locator("form").filter(has=page.get_by_role("button", name="Begin"))
    act.get_by_label("Action").select_option("redrive-queue")
    act.get_by_label("Sent back to where they came from").select_option("first")
    with page.expect_request("**/messages/jobs") as asked:
        act.get_by_role("button", name="Begin").click()
    plan = asked.value.post_data_json
    assert plan == {"action": "redrive", "dry_run": True, "back_to": "queue", "death": "first"}


def test_what_is_no_json_is_shown_as_it_came(ui: WebUi) -> None:
    shown = ui.page.evaluate(
        """async () => {
          const { setOut } = await import("./json_text.js");
          const strange = '["a\\\\\\\\", "\\\\"[", -1.5e3, true , null,[[]]]';
          const texts = ["text", "{not json}", "12", '"a"', "[1", "", "[]", strange];
          return texts.map(setOut);
        }"""
    )
    assert shown[:7] == [None, None, None, None, None, None, "[]"]
    lines = ["[", '  "a\\\\",', '  "\\"[",', "  -1.5e3,", "  true,", "  null,", "  [", "    []"]
    assert shown[7] == "\n".join([*lines, "  ]", "]"])


def test_client_properties_are_a_table_and_a_connection_leads_to_its_node(
    ui: WebUi, broker: Broker
) -> None:
    parameters = pika.URLParameters(broker.url)
    parameters.client_properties = {"connection_name": "of the table"}
    connection = pika.BlockingConnection(parameters)
    ui.open("connections")
    row = ui.page.get_by_role("row").filter(has_text="of the table")
    row.get_by_role("link").first.click()
    expect(ui.entry("Client properties", "connection_name")).to_have_text("of the table")
    expect(ui.entry("Client properties", "product")).to_contain_text("Pika")
    ui.value("Node").get_by_role("link", name=NODE).click()
    expect(ui.heading(f"Node {NODE}")).to_be_visible()
    connection.close()


def test_the_overview_draws_what_is_unroutable_and_what_the_disk_does(
    ui: WebUi, channel: Any
) -> None:
    unroutable = ui.page.get_by_role("img", name="Unroutable messages.")
    expect(unroutable).to_have_accessible_name(re.compile("Dropped: now 0/s"))
    disk = ui.page.get_by_role("img", name="Disk.")
    expect(disk).to_have_accessible_name(re.compile("Messages written: now 0/s"))
    for _ in range(60):
        channel.basic_publish("", "nowhere", b"x")
        ui.refresh()
        if "Dropped: now 0/s" not in (unroutable.get_attribute("aria-label") or ""):
            break
        ui.page.wait_for_timeout(100)
    expect(unroutable).not_to_have_accessible_name(re.compile("Dropped: now 0/s"))


# Where one is


def test_headings_have_the_virtual_host(ui: WebUi, channel: Any) -> None:
    declare(channel, "where")
    ui.open("queues", "/", "where")
    expect(ui.heading("Queue where in virtual host /")).to_be_visible()
    expect(ui.page).to_have_title("Queue where in / · Warren")
    ui.open("exchanges", "/", "amq.default")
    expect(ui.heading("Exchange (default) in virtual host /")).to_be_visible()


def test_every_page_leads_to_its_call(ui: WebUi, channel: Any) -> None:
    declare(channel, "shown", 1)
    for address, call in CALLS.items():
        ui.open(*address)
        link = ui.page.locator(".call a")
        expect(link).to_have_text(f"GET /api/{call}")
        href = link.get_attribute("href")
        assert href is not None
        # A browser that is logged in may follow it.
        assert ui.page.evaluate("async (href) => (await fetch(href)).status", href) == 200


def test_notices_go_when_their_page_is_left(ui: WebUi, channel: Any) -> None:
    declare(channel, "noticed", 1)
    ui.open("queues", "/", "noticed")
    form = ui.unfold("Publish a message")
    form.get_by_role("button", name="Publish message").click()
    ui.expect_notice("The message is published.")
    ui.page.get_by_role("link", name="Exchanges", exact=True).click()
    expect(ui.page.locator(".notice")).to_have_count(0)
    # What was done with a thing that has no page any more is said on the page that comes next.
    ui.open("queues", "/", "noticed")
    ui.page.get_by_role("button", name="Delete queue").click()
    ui.confirm("Delete queue")
    expect(ui.heading("Queues")).to_be_visible()
    ui.expect_notice("The queue noticed is deleted.")
    ui.page.get_by_role("link", name="Exchanges", exact=True).click()
    expect(ui.page.locator(".notice")).to_have_count(0)


def test_a_deleted_queue_says_so(ui: WebUi, channel: Any) -> None:
    declare(channel, "short-lived", 3)
    ui.open("queues", "/", "short-lived")
    expect(ui.value("Ready")).to_have_text("3")
    channel.queue_delete("short-lived")
    ui.refresh()
    problem = ui.page.locator(".page-problem")
    expect(problem).to_have_text(re.compile("^This queue is gone: it has been deleted or closed."))
    # What is shown is the past, and cannot be acted on.
    assert ui.page.locator(".page").evaluate("one => one.inert")
    ui.open("queues", "/", "never-there")
    expect(problem).to_have_text(re.compile("^There is no such queue:"))
    ui.forget_refusal("/api/queues/%2F/short-lived")
    ui.forget_refusal("/api/queues/%2F/never-there")
    # It is declared again: the page works again.
    declare(channel, "never-there", 2)
    ui.refresh()
    expect(problem).to_be_hidden()
    assert not ui.page.locator(".page").evaluate("one => one.inert")


def test_alarms_are_on_every_page(ui: WebUi, broker: Broker, channel: Any) -> None:
    declare(channel, "shown", 1)
    broker.call(lambda node: node.alarms.report(Resource.DISK, True))
    try:
        for address in CALLS:
            ui.open(*address)
            expect(ui.page.locator(".alarms")).to_contain_text(f"Disk alarm on {NODE}")
    finally:
        broker.call(lambda node: node.alarms.report(Resource.DISK, False))
    ui.refresh()
    expect(ui.page.locator(".alarms")).to_be_empty()


def test_who_may_not_look_at_nodes_is_told_of_alarms_too(browser: Browser, broker: Broker) -> None:
    broker.add_user("seller", "seller", ("management",))
    broker.set_permissions("seller")
    with WebUi(browser, broker.http_url) as ui:
        ui.enter("seller", "seller")
        ui.open("queues")
        expect(ui.page.locator(".alarms")).to_be_empty()
        broker.call(lambda node: node.alarms.report(Resource.DISK, True))
        try:
            for name in ("queues", "exchanges"):
                ui.open(name)
                expect(ui.page.locator(".alarms")).to_have_text(
                    "There are alarms in effect in the cluster: publishers may be blocked."
                )
            ui.forget_refusal("/api/health/checks/alarms")
        finally:
            broker.call(lambda node: node.alarms.report(Resource.DISK, False))
        ui.refresh()
        expect(ui.page.locator(".alarms")).to_be_empty()
    broker.delete_user("seller")
