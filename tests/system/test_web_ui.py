"""The web pages in a real browser."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import lmdb
import pika
import pytest

from warren import Broker

pytest.importorskip("playwright", reason="the web pages are tested with Playwright")

from playwright.sync_api import Browser, expect
from web_ui import CHROMIUM, PHONE, WebUi, chromium

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")

STRANGE = "a/b 100% <script>alert(1)</script> Grüße 🐇"


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
    with WebUi(browser, broker.http_url) as entered:
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


def declare(channel: Any, name: str, messages: int = 0) -> None:
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for number in range(messages):
        channel.basic_publish("", name, b"message %d" % number)


# Who may come in


def test_a_wrong_password_is_refused_and_a_right_one_is_not(
    browser: Browser, broker: Broker
) -> None:
    with WebUi(browser, broker.http_url) as ui:
        ui.log_in("guest", "wrong")
        expect(ui.page.get_by_role("alert")).to_have_text("User or password is wrong.")
        ui.forget_refusal("/api/login")
        ui.check_form()
        ui.picture("login")
        ui.enter()
        ui.page.reload()
        expect(ui.heading("Overview")).to_be_visible()
        ui.page.get_by_role("button", name="Log out").click()
        expect(ui.page.get_by_label("Password")).to_be_visible()
        ui.page.reload()
        expect(ui.page.get_by_label("Password")).to_be_visible()


def test_scripts_cannot_read_the_login(ui: WebUi) -> None:
    assert ui.page.evaluate("document.cookie") == ""


def test_a_lost_login_leads_back_to_the_form(browser: Browser, broker: Broker) -> None:
    with WebUi(browser, broker.http_url) as ui:
        ui.enter()
        ui.page.context.clear_cookies()
        ui.page.get_by_role("link", name="Queues", exact=True).click()
        expect(ui.page.get_by_label("Password")).to_be_visible()
        ui.expect_notice("You have been logged out.")
        ui.forget_refusal("/api/queues")


@pytest.mark.parametrize(
    ("tag", "seen", "hidden"),
    [
        ("management", ["Queues"], ["Administration", "Nodes", "Users", "Policies", "Listeners"]),
        (
            "policymaker",
            ["Policies"],
            ["Operator policies", "Nodes", "Users", "Limits", "Shovels"],
        ),
        ("monitoring", ["Nodes", "Listeners", "Shovels"], ["Users", "Policies", "Definitions"]),
    ],
)
def test_a_user_sees_what_he_may_use_and_no_errors(
    browser: Browser, broker: Broker, channel: Any, tag: str, seen: list[str], hidden: list[str]
) -> None:
    declare(channel, "for-all", 3)
    if not api_has(broker, f"users/{tag}"):
        api(broker, "PUT", f"users/{tag}", {"password": "secret", "tags": tag})
        every = {"configure": ".*", "write": ".*", "read": ".*"}
        api(broker, "PUT", f"permissions/%2F/{tag}", every)
    with WebUi(browser, broker.http_url) as ui:
        ui.enter(tag, "secret")
        for text in seen:
            expect(ui.page.get_by_text(text, exact=True).first).to_be_visible()
        for text in hidden:
            expect(ui.page.get_by_text(text, exact=True)).to_have_count(0)
        ui.picture(f"overview-{tag}")
        for names in (
            ["connections"],
            ["channels"],
            ["exchanges"],
            ["exchanges", "/", "amq.topic"],
            ["queues"],
            ["queues", "/", "for-all"],
        ):
            ui.open(*names)
            ui.check_form()
            expect(ui.page.locator(".page-problem")).to_be_hidden()


# What is done with queues and messages


def test_a_quorum_queue_is_declared_and_shown(ui: WebUi, channel: Any) -> None:
    ui.open("queues")
    form = ui.unfold("Declare a queue")
    form.get_by_label("Name", exact=True).fill("sure")
    form.get_by_label("Type", exact=True).select_option("quorum")
    form.get_by_role("button", name="x-delivery-limit", exact=True).click()
    form.get_by_role("button", name="Declare queue").click()
    ui.expect_notice("The queue sure is declared.")
    row = ui.page.get_by_role("row").filter(has_text="sure")
    expect(row.get_by_text("Quorum", exact=True)).to_be_visible()
    ui.page.get_by_role("link", name="sure", exact=True).click()
    expect(ui.value("Type")).to_have_text("quorum")
    expect(ui.entry("Arguments", "x-delivery-limit")).to_have_text("20")
    expect(ui.value("Members")).to_have_text("warren@localhost")
    expect(ui.value("Dead letters kept")).to_have_text("0")
    expect(ui.heading("Where the messages are")).to_be_hidden()


def test_a_stream_is_declared_shown_and_replayed(ui: WebUi, broker: Broker, channel: Any) -> None:
    ui.open("queues")
    form = ui.unfold("Declare a queue")
    form.get_by_label("Name", exact=True).fill("events")
    form.get_by_label("Type", exact=True).select_option("stream")
    form.get_by_role("button", name="x-max-age", exact=True).click()
    form.get_by_role("button", name="Declare queue").click()
    ui.expect_notice("The queue events is declared.")
    row = ui.page.get_by_role("row").filter(has_text="events")
    expect(row.get_by_text("Stream", exact=True)).to_be_visible()
    expect(row.get_by_text("Age", exact=True)).to_be_visible()
    channel.confirm_delivery()
    for number in range(3):
        channel.basic_publish("", "events", b"event %d" % number)
    channel.queue_declare("again")
    ui.open("queues", "/", "events")
    expect(ui.value("Type")).to_have_text("stream")
    expect(ui.value("Next offset")).to_have_text("3")
    ui.open("queues", "/", "events", "messages")
    expect(ui.page.get_by_text("event 2")).to_be_visible()
    form = ui.page.locator("form").filter(has=ui.page.get_by_role("button", name="Begin"))
    form.get_by_label("Action").select_option("replay")
    form.get_by_label("To queue").fill("again")
    form.get_by_label("Replay since").fill("2020-01-01T00:00:00Z")
    form.get_by_label("At most", exact=True).fill("2")
    form.get_by_label("Only count them").uncheck()
    form.get_by_role("button", name="Begin").click()
    broker.wait_until(queue="again", ready=2)
    _, properties, body = channel.basic_get("again", auto_ack=True)
    assert (body, properties.headers["x-replayed"]["offset"]) == (b"event 0", 0)
    for queue in ("events", "again"):
        channel.queue_delete(queue)


def test_what_a_queue_retains_is_shown_and_replayed(
    ui: WebUi, broker: Broker, channel: Any
) -> None:
    definition = {"retention": {"max-age": "1h", "max-bytes": 1000000}}
    broker.call(lambda node: node.policies.set("/", "keep", "^orders$", definition))
    channel.queue_declare("orders", durable=True)
    channel.queue_declare("again")
    channel.confirm_delivery()
    channel.basic_publish("", "orders", b"order", pika.BasicProperties(delivery_mode=2))
    channel.basic_get("orders", auto_ack=True)
    ui.open("queues", "/", "orders")
    expect(ui.value("Retained")).to_contain_text("1 acknowledged message, ")
    expect(ui.value("Features")).to_contain_text("Keep")
    ui.open("queues", "/", "orders", "messages")
    form = ui.page.locator("form").filter(has=ui.page.get_by_role("button", name="Begin"))
    form.get_by_label("Action").select_option("replay")
    form.get_by_label("To queue").fill("again")
    form.get_by_label("Only count them").uncheck()
    form.get_by_role("button", name="Begin").click()
    broker.wait_until(queue="again", ready=1)
    _, properties, _ = channel.basic_get("again", auto_ack=True)
    assert properties.headers["x-replayed"]["queue"] == "orders"
    broker.call(lambda node: node.policies.clear("/", "keep"))
    for queue in ("orders", "again"):
        channel.queue_delete(queue)


def test_a_virtual_host_has_a_default_type_of_queues(ui: WebUi) -> None:
    ui.open("vhosts")
    form = ui.unfold("Add a virtual host")
    form.get_by_label("Name", exact=True).fill("typed")
    form.get_by_label("Default type of queues").select_option("quorum")
    form.get_by_role("button", name="Add virtual host").click()
    ui.expect_notice("The virtual host typed is there. Users need permissions in it.")
    ui.open("vhosts", "typed")
    expect(ui.value("Default type of queues")).to_have_text("quorum")


def test_a_queue_is_declared_bound_filled_read_and_deleted(ui: WebUi, channel: Any) -> None:
    channel.exchange_declare("shop", "topic", durable=True)
    page = ui.page
    ui.open("queues")
    form = ui.unfold("Declare a queue")
    form.get_by_label("Name", exact=True).fill("orders")
    form.get_by_role("button", name="x-max-length", exact=True).click()
    form.get_by_label("Arguments: value", exact=True).fill("50")
    form.get_by_role("button", name="Declare queue").click()
    ui.expect_notice("The queue orders is declared.")
    page.get_by_role("link", name="orders", exact=True).click()
    expect(ui.heading("Queue orders in virtual host /")).to_be_visible()
    expect(ui.entry("Arguments", "x-max-length")).to_have_text("50")

    form = ui.unfold("Add a binding")
    form.get_by_label("From exchange").fill("shop")
    form.get_by_label("Routing key").fill("order.#")
    form.get_by_role("button", name="Bind", exact=True).click()
    expect(page.get_by_role("button", name="Unbind order.# from shop")).to_be_visible()

    ui.open("exchanges", "/", "shop")
    form = ui.unfold("Publish a message")
    form.get_by_label("Routing key").fill("order.new")
    form.get_by_label("Payload", exact=True).fill("<b>ten</b> carrots")
    form.get_by_role("button", name="Add entry").first.click()
    form.get_by_label("Headers: name").fill("colour")
    form.get_by_label("Headers: value").fill("orange")
    form.get_by_role("button", name="Publish message").click()
    ui.expect_notice("The message is published.")

    ui.open("queues", "/", "orders")
    expect(ui.value("Ready")).to_have_text("1")
    form = ui.unfold("Get messages")
    form.get_by_role("button", name="Get messages").click()
    message = form.get_by_role("article")
    expect(message.locator("pre")).to_have_text("<b>ten</b> carrots")
    expect(ui.entry("Headers", "colour")).to_have_text("orange")
    expect(ui.value("Ready")).to_have_text("1")
    ui.picture("queue-got")
    form.get_by_label("What becomes of them").select_option("ack_requeue_false")
    form.get_by_role("button", name="Get messages").click()
    expect(ui.value("Ready")).to_have_text("0")

    page.get_by_role("button", name="Unbind order.# from shop").click()
    ui.confirm("Unbind")
    expect(page.get_by_role("button", name="Unbind order.# from shop")).to_have_count(0)
    page.get_by_role("button", name="Delete queue").click()
    ui.picture("dialog")
    ui.confirm("Cancel")
    expect(ui.heading("Queue orders in virtual host /")).to_be_visible()
    page.get_by_role("button", name="Delete queue").click()
    ui.confirm("Delete queue")
    expect(ui.heading("Queues")).to_be_visible()
    ui.until_refreshed()
    expect(page.get_by_role("link", name="orders", exact=True)).to_have_count(0)


def test_a_purged_queue_is_empty(ui: WebUi, channel: Any) -> None:
    declare(channel, "full", 7)
    ui.open("queues", "/", "full")
    expect(ui.value("Ready")).to_have_text("7")
    expect(ui.page.locator('[data-code="no-consumers"]')).to_contain_text("7 messages wait")
    ui.page.get_by_role("button", name="Purge messages").click()
    ui.confirm("Purge")
    ui.expect_notice("The queue full is purged.")
    expect(ui.value("Ready")).to_have_text("0")
    expect(ui.page.locator('[data-code="empty"]')).to_be_visible()


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


def test_consumers_at_their_prefetch_are_told_of(ui: WebUi, channel: Any) -> None:
    declare(channel, "slow", 30)
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("slow", lambda *message: None)
    channel.connection.process_data_events(0.1)
    ui.open("queues", "/", "slow")
    expect(ui.value("Unacknowledged")).to_have_text("5")
    expect(ui.page.locator('[data-code="prefetch"]')).to_contain_text("the prefetches allow 5")
    ui.picture("queue-prefetch")
    ui.page.get_by_role("link", name="-> 127.0.0.1").click()
    expect(ui.value("Prefetch")).to_have_text("5")
    ui.check_form()


def test_names_of_any_letters_work_everywhere(ui: WebUi, channel: Any) -> None:
    channel.queue_declare(STRANGE, durable=True)
    channel.queue_bind(STRANGE, "amq.topic", STRANGE[:40])
    ui.open("queues")
    ui.page.get_by_role("link", name=STRANGE, exact=True).click()
    expect(ui.heading(f"Queue {STRANGE} in virtual host /")).to_be_visible()
    form = ui.unfold("Publish a message")
    form.get_by_label("Payload", exact=True).fill("hop")
    form.get_by_role("button", name="Publish message").click()
    expect(ui.value("Ready")).to_have_text("1")
    unbind = ui.page.get_by_role("button", name=f"Unbind {STRANGE[:40]} from amq.topic")
    expect(unbind).to_be_visible()
    ui.picture("queue-strange")
    ui.page.get_by_role("button", name="Delete queue").click()
    ui.confirm("Delete queue")
    ui.expect_notice("is deleted")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.queue_declare(STRANGE, passive=True)


def test_lists_are_filtered_sorted_and_paged_by_the_node(ui: WebUi, channel: Any) -> None:
    for number in range(25):
        declare(channel, f"many-{number:02}", number % 3)
    ui.open("queues")
    page = ui.page
    page.get_by_label("Filter", exact=True).fill("MANY-")
    page.get_by_label("Rows").select_option("20")
    expect(page.locator(".list-count")).to_contain_text("20 of 25 matching of")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("tbody tr")).to_have_count(5)
    page.get_by_role("button", name="Ready").click()
    expect(page.locator("tbody tr").first).to_contain_text("many-02")
    expect(page.get_by_role("columnheader", name="Ready")).to_have_attribute(
        "aria-sort", "descending"
    )
    page.get_by_label("Regular expression").check()
    page.get_by_label("Filter", exact=True).fill("^many-0[12]$")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_text("Columns").click()
    page.get_by_label("Memory").check()
    expect(page.get_by_role("columnheader", name="Memory")).to_be_visible()
    page.reload()
    expect(page.get_by_role("columnheader", name="Memory")).to_be_visible()


def test_lists_keep_to_the_virtual_host_chosen_under_any_prefix(browser: Browser) -> None:
    with Broker(http_port=0, path_prefix="/some/broker") as broker:
        broker.add_vhost("Füchse 🦊")
        for vhost, name in (("/", "here"), ("Füchse 🦊", "there")):
            connection = pika.BlockingConnection(pika.URLParameters(broker.url_for(vhost)))
            connection.channel().queue_declare(name)
            connection.close()
        with WebUi(browser, f"{broker.http_url}/some/broker/") as ui:
            ui.enter()
            ui.open("queues")
            expect(ui.page.locator("tbody tr")).to_have_count(2)
            ui.page.get_by_label("Virtual host", exact=True).first.select_option("Füchse 🦊")
            expect(ui.page.locator("tbody tr")).to_have_count(1)
            ui.page.get_by_role("link", name="there", exact=True).click()
            expect(ui.value("Virtual host")).to_have_text("Füchse 🦊")


def test_refused_things_are_told_in_the_form(ui: WebUi, channel: Any) -> None:
    declare(channel, "durable")
    ui.open("queues")
    form = ui.unfold("Declare a queue")
    form.get_by_label("Name", exact=True).fill("durable")
    form.get_by_label("Durable").uncheck()
    form.get_by_role("button", name="Declare queue").click()
    expect(form.get_by_role("alert")).to_contain_text("inequivalent arg 'durable'")
    expect(form.get_by_label("Name", exact=True)).to_have_value("durable")
    ui.forget_refusal("/api/queues")


# Administration


def test_a_policy_is_set_seen_applied_edited_and_deleted(ui: WebUi, channel: Any) -> None:
    declare(channel, "limited")
    page = ui.page
    ui.open("queues", "/", "limited")
    page.get_by_role("link", name="Set a policy for this queue").click()
    expect(ui.heading("Policies")).to_be_visible()
    # The page opens it by itself, which is not to cross a click of ours.
    form = ui.folded("Set a policy")
    expect(form).to_have_attribute("open", "")
    expect(form.get_by_label("Pattern")).to_have_value("^limited$")
    expect(form.get_by_label("Name", exact=True)).to_be_focused()
    form.get_by_label("Name", exact=True).fill("short")
    form.get_by_role("button", name="max-length", exact=True).click()
    form.get_by_label("Definition: value").fill("9")
    form.get_by_role("button", name="Set policy").click()
    ui.expect_notice("The policy short is set.")
    ui.picture("policies")
    ui.open("queues", "/", "limited")
    expect(ui.entry("Effective policy", "max-length")).to_have_text("9")
    ui.open("policies")
    page.get_by_role("button", name="Edit policy short").click()
    form = ui.folded("Set a policy")
    expect(form).to_have_attribute("open", "")
    form.get_by_label("Definition: value").fill("11")
    form.get_by_role("button", name="Set policy").click()
    expect(page.locator("tbody").first).to_contain_text("max-length: 11")
    page.get_by_role("button", name="Delete policy short").click()
    ui.confirm("Delete")
    expect(page.get_by_text("No policies.")).to_be_visible()


def test_the_life_of_a_message_is_recorded_found_and_shown(
    ui: WebUi, broker: Broker, channel: Any
) -> None:
    declare(channel, "lives")
    page = ui.page
    ui.open("trace")
    expect(page.get_by_text("No rules: nothing is recorded.")).to_be_visible()
    form = ui.unfold("Set a rule")
    form.get_by_label("Name", exact=True).fill("orders")
    form.get_by_label("Queue").fill("^lives$")
    form.get_by_label("Filter").fill("nonsense =")
    ui.check_form()
    form.get_by_role("button", name="Set rule").click()
    expect(form.get_by_role("alert")).to_contain_text("filter should be a filter")
    ui.forget_refusal("/api/parameters")
    form.get_by_label("Filter").fill("size > 1")
    form.get_by_role("button", name="Set rule").click()
    ui.expect_notice("The rule orders is set.")
    properties = pika.BasicProperties(message_id="order 7/8")
    channel.basic_publish("", "lives", b"body", properties)
    method, _, _ = channel.basic_get("lives")
    channel.basic_ack(method.delivery_tag)
    channel.basic_qos()
    ui.refresh()
    expect(page.get_by_role("link", name="order 7/8")).to_be_visible()
    ui.picture("trace")
    page.get_by_label("Message id").fill("order 7/8")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(ui.heading("Message order 7/8 in virtual host /")).to_be_visible()
    happened = page.get_by_role("region", name="Records of the message").locator("tbody tr")
    expect(happened).to_have_count(3)
    for row, text in enumerate(("published", "delivered", "acknowledged")):
        expect(happened.nth(row)).to_contain_text(text)
    expect(happened.nth(0)).to_contain_text("user: guest")
    expect(page.get_by_role("region", name="Queues of the message")).to_contain_text("acknowledged")
    ui.picture("life")
    ui.open("trace")
    page.get_by_role("button", name="Delete rule orders").click()
    ui.confirm("Delete")
    ui.expect_notice("The rule orders is deleted.")
    expect(page.get_by_text("No rules: nothing is recorded.")).to_be_visible()
    channel.queue_delete("lives")


def test_a_shovel_is_set_seen_running_restarted_and_deleted(
    ui: WebUi, broker: Broker, channel: Any
) -> None:
    declare(channel, "shovel-from", 2)
    page = ui.page
    ui.open("shovels")
    expect(page.get_by_text("No shovels.")).to_be_visible()
    form = ui.unfold("Set a shovel")
    form.get_by_label("Name", exact=True).fill("mover")
    form.get_by_label("Source URI").fill("amqp://")
    form.get_by_label("Name of the source").fill("shovel-from")
    form.get_by_label("Destination URI").fill("amqp://")
    form.get_by_label("Name of the destination").fill("shovel-to")
    form.get_by_label("Delete after").fill("soon")
    ui.check_form()
    form.get_by_role("button", name="Set shovel").click()
    expect(form.get_by_role("alert")).to_contain_text("src-delete-after should be")
    ui.forget_refusal("/api/parameters")
    form.get_by_label("Delete after").fill("never")
    form.get_by_role("button", name="Set shovel").click()
    ui.expect_notice("The shovel mover is set.")
    row = page.locator("tbody").first
    expect(row).to_contain_text("running", timeout=30_000)
    expect(row).to_contain_text("shovel-from · amqp://")
    expect(row).to_contain_text("shovel-to · amqp://")
    ui.picture("shovels")
    page.get_by_role("button", name="Restart shovel mover").click()
    ui.expect_notice("The shovel mover is restarted.")
    page.get_by_role("button", name="Delete shovel mover").click()
    ui.confirm("Delete")
    ui.expect_notice("The shovel mover is deleted.")
    expect(page.get_by_text("No shovels.")).to_be_visible()
    assert api(broker, "GET", "parameters/shovel") == []
    for queue in ("shovel-from", "shovel-to"):
        channel.queue_delete(queue)


def test_an_upstream_is_set_and_its_link_seen_restarted_and_ended(
    ui: WebUi, broker: Broker, channel: Any
) -> None:
    channel.exchange_declare("federated", "fanout", durable=True)
    page = ui.page
    ui.open("federation")
    expect(page.get_by_text("No federation links.")).to_be_visible()
    form = ui.unfold("Set an upstream")
    form.get_by_label("Name", exact=True).fill("nearby")
    form.get_by_label("URI").fill("http://nearby")
    form.get_by_label("Exchange there").fill("there")
    form.get_by_label("Expires").fill("3600000")
    ui.check_form()
    form.get_by_role("button", name="Set upstream").click()
    expect(form.get_by_role("alert")).to_contain_text("not a valid URI")
    ui.forget_refusal("/api/parameters")
    form.get_by_label("URI").fill(broker.url)
    form.get_by_role("button", name="Set upstream").click()
    ui.expect_notice("The upstream nearby is set.")
    value = api(broker, "GET", "parameters/federation-upstream/%2F/nearby")["value"]
    assert (value["max-hops"], value["expires"], value["exchange"]) == (1, 3_600_000, "there")
    assert "message-ttl" not in value and "queue" not in value
    policy = {"pattern": "^federated$", "definition": {"federation-upstream": "nearby"}}
    api(broker, "PUT", "policies/%2F/fed", policy)
    links, upstreams = page.locator("tbody").nth(0), page.locator("tbody").nth(1)
    expect(links).to_contain_text("running", timeout=30_000)
    expect(links).to_contain_text("exchange federated")
    expect(links).to_contain_text("there · amqp://")
    expect(upstreams).to_contain_text("nearby")
    expect(page.get_by_text("guest:guest")).to_have_count(0)
    ui.picture("federation")
    page.get_by_role("button", name="Restart link of federated").click()
    ui.expect_notice("The link of federated is restarted.")
    ui.open("exchanges")
    expect(page.get_by_role("row").filter(has_text="federated").first).to_contain_text("fed")
    expect(page.locator("option", has_text="x-federation-upstream")).to_have_count(0)
    ui.open("federation")
    page.get_by_role("button", name="Delete upstream nearby").click()
    ui.confirm("Delete")
    ui.expect_notice("The upstream nearby is deleted.")
    expect(page.get_by_text("No federation links.")).to_be_visible(timeout=30_000)
    api(broker, "DELETE", "policies/%2F/fed")
    for exchange in ("federated", "there"):
        channel.exchange_delete(exchange)


def test_dead_letters_are_sent_back_to_where_they_came_from(
    ui: WebUi, broker: Broker, channel: Any
) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("alive", arguments=arguments)
    channel.queue_declare("dead")
    channel.basic_publish("", "alive", b"x")
    broker.wait_until(queue="alive", ready=1)
    channel.basic_reject(channel.basic_get("alive")[0].delivery_tag, requeue=False)
    broker.wait_until(queue="dead", ready=1)
    ui.open("queues", "/", "dead", "messages")
    form = ui.page.locator("form").filter(has=ui.page.get_by_role("button", name="Begin"))
    form.get_by_label("Action").select_option("redrive-queue")
    form.get_by_label("Only count them").uncheck()
    form.get_by_role("button", name="Begin").click()
    broker.wait_until(queue="alive", ready=1)
    broker.wait_until(queue="dead", ready=0)
    for queue in ("alive", "dead"):
        channel.queue_delete(queue)


def test_messages_of_a_queue_are_moved_to_another(ui: WebUi, broker: Broker, channel: Any) -> None:
    declare(channel, "wrong place", 3)
    ui.open("queues", "/", "wrong place")
    form = ui.unfold("Move messages")
    form.get_by_label("To queue").fill("right place")
    form.get_by_role("button", name="Move messages").click()
    ui.expect_notice("What is in wrong place is being moved to right place.")
    channel.queue_declare("right place", durable=True)
    moved = channel.consume("right place", inactivity_timeout=30)
    assert all(next(moved)[0] is not None for _ in range(3))
    channel.cancel()
    ui.open("shovels")
    expect(ui.page.get_by_text("No shovels.")).to_be_visible(timeout=30_000)
    for queue in ("wrong place", "right place"):
        channel.queue_delete(queue)


def test_delayed_messages_are_seen_cancelled_and_sent(ui: WebUi, channel: Any) -> None:
    arguments = {"x-delayed-type": "fanout"}
    channel.exchange_declare("reminders", "x-delayed-message", arguments=arguments)
    channel.queue_declare("reminded", durable=True)
    channel.queue_bind("reminded", "reminders")
    channel.confirm_delivery()
    for number in range(3):
        headers = {"x-delay": 3_600_000 + 60_000 * number}
        properties = pika.BasicProperties(headers=headers)
        channel.basic_publish("reminders", f"key {number}", b"m", properties)
    page = ui.page
    ui.open("exchanges", "/", "reminders")
    expect(ui.value("Delayed")).to_have_text("3")
    rows = page.get_by_role("table", name="Delayed messages").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("key 0")
    rows.nth(1).get_by_role("button", name="Cancel").click()
    ui.confirm("Cancel message")
    ui.expect_notice("The message is cancelled.")
    expect(ui.value("Delayed")).to_have_text("2")
    # The table may follow the count a moment later: a row is named by its key.
    rows.filter(has_text="key 2").get_by_role("button", name="Send").click()
    ui.expect_notice("The message is on its way.")
    expect(ui.value("Delayed")).to_have_text("1")
    expect(rows.nth(1)).to_contain_text("key 1")
    method, properties, _ = channel.basic_get("reminded", auto_ack=True)
    assert method.routing_key == "key 2"
    ui.open("exchanges", "/", "amq.fanout")
    expect(page.get_by_role("heading", name="Delayed messages")).to_be_hidden()
    ui.open("queues", "/", "amq.delayed.reminders")
    expect(page.get_by_text("Delayed messages of the exchange reminders wait here")).to_be_visible()
    channel.exchange_delete("reminders")
    channel.queue_delete("reminded")


def test_keys_of_mirroring_are_offered_for_policies_alone(ui: WebUi, broker: Broker) -> None:
    ui.open("policies")
    form = ui.unfold("Set a policy")
    values: dict[str, Any] = {
        "ha-mode": "exactly",
        "ha-params": 3,
        "ha-sync-mode": "automatic",
        "ha-sync-batch-size": 50,
        "ha-promote-on-shutdown": "always",
        "ha-promote-on-failure": "when-synced",
        "queue-master-locator": "random",
    }
    form.get_by_label("Name", exact=True).fill("mirrored")
    form.get_by_label("Pattern").fill("^ha")
    form.get_by_label("Applies to").select_option("queues")
    for at, (key, value) in enumerate(values.items()):
        form.get_by_role("button", name=key, exact=True).click()
        form.get_by_label("Definition: value").nth(at).fill(str(value))
    ui.check_form()
    form.get_by_role("button", name="Set policy").click()
    ui.expect_notice("The policy mirrored is set.")
    assert api(broker, "GET", "policies/%2F/mirrored")["definition"] == values
    # The nodes of a queue are named in a list.
    ui.page.get_by_role("button", name="Edit policy mirrored").click()
    form.get_by_label("Definition: value").nth(0).fill("nodes")
    form.get_by_label("Definition: value").nth(1).fill('["warren@localhost"]')
    form.get_by_label("Definition: kind of value").nth(1).select_option("JSON")
    form.get_by_role("button", name="Set policy").click()
    expect(ui.page.locator("tbody").first).to_contain_text('ha-params: ["warren@localhost"]')
    api(broker, "DELETE", "policies/%2F/mirrored")
    operators = ui.unfold("Set an operator policy")
    expect(operators.get_by_role("button", name="max-length", exact=True)).to_be_visible()
    expect(operators.get_by_role("button", name="ha-mode", exact=True)).to_have_count(0)


def test_users_get_permissions_and_vhosts_limits(ui: WebUi) -> None:
    page = ui.page
    ui.open("vhosts")
    form = ui.unfold("Add a virtual host")
    form.get_by_label("Name", exact=True).fill("shop/one")
    form.get_by_role("button", name="Add virtual host").click()
    ui.expect_notice("The virtual host shop/one is there.")
    ui.open("users")
    form = ui.unfold("Add a user")
    form.get_by_label("Name", exact=True).fill("anna")
    form.get_by_label("Password").fill("secret")
    form.get_by_label("management").check()
    form.get_by_label("policymaker").check()
    form.get_by_role("button", name="Add user").click()
    page.get_by_role("link", name="anna", exact=True).click()
    form = ui.unfold("Set permissions")
    form.get_by_label("Virtual host").select_option("shop/one")
    form.get_by_label("Write").fill("^orders$")
    form.get_by_role("button", name="Set permissions").click()
    expect(page.locator("tbody").first).to_contain_text("^orders$")
    ui.check_form()
    ui.picture("user")
    form = ui.unfold("Change tags")
    expect(form.get_by_label("policymaker")).to_be_checked()
    form.get_by_label("management").uncheck()
    form.get_by_label("policymaker").uncheck()
    form.get_by_label("monitoring").check()
    form.get_by_role("button", name="Set tags").click()
    expect(ui.value("Tags")).to_have_text("monitoring")
    form = ui.unfold("Change password")
    form.get_by_label("New password").fill("other")
    form.get_by_role("button", name="Set password").click()
    ui.expect_notice("The password of anna is set.")

    ui.open("limits")
    form = ui.unfold("Set a limit of a virtual host")
    form.get_by_label("Virtual host").select_option("shop/one")
    form.get_by_label("Limit", exact=True).select_option("max-queues")
    form.get_by_label("Value").fill("12")
    form.get_by_role("button", name="Set limit").click()
    expect(page.locator("tbody").first).to_contain_text("max-queues")
    page.get_by_role("button", name="Clear max-queues of shop/one").click()
    ui.confirm("Clear")
    expect(page.get_by_text("No limits.").first).to_be_visible()

    ui.open("users", "anna")
    page.get_by_role("button", name="Delete user").click()
    ui.confirm("Delete user")
    expect(ui.heading("Users")).to_be_visible()
    ui.open("vhosts", "shop/one")
    page.get_by_role("button", name="Delete virtual host").click()
    ui.confirm("Delete virtual host")
    expect(ui.heading("Virtual hosts")).to_be_visible()


def test_definitions_go_out_and_come_in(ui: WebUi, channel: Any, tmp_path: Path) -> None:
    declare(channel, "exported")
    ui.open("definitions")
    with ui.page.expect_download() as download:
        ui.page.get_by_role("button", name="Download definitions").click()
    file = tmp_path / "definitions.json"
    download.value.save_as(file)
    definitions = json.loads(file.read_text())
    assert "exported" in [queue["name"] for queue in definitions["queues"]]
    channel.queue_delete("exported")
    ui.page.get_by_label("File", exact=True).set_input_files(file)
    ui.page.get_by_role("button", name="Upload definitions").click()
    ui.confirm("Import")
    ui.expect_notice("are imported")
    channel.queue_declare("exported", passive=True)


def test_a_connection_is_closed(ui: WebUi, broker: Broker) -> None:
    properties = {"connection_name": "to be closed"}
    parameters = pika.URLParameters(broker.url)
    parameters.client_properties = properties
    connection = pika.BlockingConnection(parameters)
    ui.open("connections")
    row = ui.page.get_by_role("row").filter(has_text="to be closed")
    row.get_by_role("link").click()
    ui.picture("connection")
    ui.page.get_by_role("button", name="Close connection").click()
    ui.confirm("Close connection")
    ui.expect_notice("The connection is closed.")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        connection.process_data_events(5)


# How it looks and reads


PAGES = (
    [],
    ["connections"],
    ["channels"],
    ["exchanges"],
    ["exchanges", "/", "amq.topic"],
    ["exchanges", "/", "amq.default"],
    ["queues"],
    ["queues", "/", "shown"],
    ["users"],
    ["users", "guest"],
    ["vhosts"],
    ["vhosts", "/"],
    ["policies"],
    ["shovels"],
    ["federation"],
    ["trace"],
    ["trace", "/", "m"],
    ["limits"],
    ["definitions"],
    ["nodes"],
    ["nodes", "warren@localhost"],
    ["nowhere"],
)


@pytest.mark.parametrize("size", [PHONE, (1280, 900)], ids=["phone", "desktop"])
def test_every_page_fits_and_every_control_has_a_name(
    browser: Browser, broker: Broker, channel: Any, size: tuple[int, int]
) -> None:
    declare(channel, "shown", 40)
    with WebUi(browser, broker.http_url, size) as ui:
        ui.enter()
        for names in PAGES:
            ui.open(*names)
            expect(ui.page.locator(".page-problem")).to_be_hidden()
            ui.page.evaluate(
                "document.querySelectorAll('details').forEach((one) => (one.open = true))"
            )
            for more in ui.page.get_by_role("button", name="Add entry").all():
                more.click()
            ui.check_form()
            kind = "phone" if size == PHONE else "wide"
            ui.picture(f"{kind}-{'-'.join(names).replace('/', '_')}")


def test_a_node_that_is_gone_is_told_of(browser: Browser) -> None:
    with Broker(http_port=0) as broker:
        with WebUi(browser, broker.http_url) as ui:
            ui.enter()
            broker.stop()
            # Until all that is asked of the node has failed.
            ui.refresh()
            expect(ui.page.get_by_role("alert")).to_contain_text("The node cannot be reached.")
            ui.forget_refusal("/api/overview")
            ui.forget_refusal("/api/nodes")


def test_colours_are_remembered(ui: WebUi) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = ui.page.evaluate(ground)
    ui.page.get_by_label("Colours").select_option("dark")
    dark = ui.page.evaluate(ground)
    assert dark != light
    ui.page.reload()
    expect(ui.heading("Overview")).to_be_visible()
    assert ui.page.evaluate(ground) == dark


def test_nothing_is_asked_while_the_tab_is_hidden(ui: WebUi) -> None:
    asked = ui.page.evaluate(
        """async () => {
          const { Refresher } = await import("./refresh.js");
          let hidden = false;
          let calls = 0;
          Object.defineProperty(document, "hidden", { get: () => hidden });
          const refresher = new Refresher();
          refresher.work = async () => { calls += 1; };
          const told = () => document.dispatchEvent(new Event("visibilitychange"));
          refresher.intervalS = 0.02;
          const wait = () => new Promise((resolve) => setTimeout(resolve, 150));
          await wait();
          hidden = true;
          told();
          const before = calls;
          await wait();
          const during = calls - before;
          hidden = false;
          told();
          await wait();
          refresher.stop();
          refresher.intervalS = 5;
          return [before, during, calls - before];
        }"""
    )
    assert asked[0] > 0
    assert asked[1] == 0
    assert asked[2] > 0


# Why a queue holds messages: the pure function behind the box on its page


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


# What the tests do beside the pages


def api(broker: Broker, method: str, path: str, body: Any = None) -> Any:
    manager = urllib.request.HTTPPasswordMgrWithPriorAuth()
    manager.add_password(None, broker.http_url, "guest", "guest", is_authenticated=True)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(manager))
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{broker.http_url}/api/{path}", data, method=method)
    with opener.open(request) as response:
        text = response.read()
    return json.loads(text) if text else None


def api_has(broker: Broker, path: str) -> bool:
    try:
        api(broker, "GET", path)
    except HTTPError as error:
        assert error.code == 404
        error.close()
        return False
    return True


def test_the_overview_names_messages_without_a_queue_and_unreadable_definitions(
    browser: Browser, tmp_path: Path
) -> None:
    with Broker(data_dir=tmp_path) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.queue_declare("gone", durable=True)
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("", "gone", b"body", pika.BasicProperties(delivery_mode=2))
        connection.close()
    with lmdb.open(str(tmp_path / "metadata"), map_size=1 << 26) as environment:
        with environment.begin(write=True) as transaction:
            transaction.put(b"queue\0\1/\0\1gone\0\1", b"damaged")
    with Broker(http_port=0, data_dir=tmp_path) as broker:
        with WebUi(browser, broker.http_url) as ui:
            ui.enter()
            warnings = ui.page.locator(".alarm")
            expect(warnings.nth(0)).to_contain_text("keeps 3 messages of queues that no definition")
            expect(warnings.nth(1)).to_contain_text("passes over 1 definitions")
            ui.check_form()
