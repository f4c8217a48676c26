"""Pages that look at messages, and move them: streams, lives, dead letters, delays."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pika
import pytest

from warren import Broker

pytest.importorskip("playwright", reason="the web pages are tested with Playwright")

from playwright.sync_api import expect
from web_pages import declare
from web_ui import CHROMIUM, WebUi

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")


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
    look = ui.page.locator("form").filter(has=ui.page.get_by_role("button", name="Look"))
    look.get_by_label("Of", exact=True).select_option("true")
    look.get_by_role("button", name="Look").click()
    expect(ui.page.get_by_text("1 message found among 1.")).to_be_visible()
    expect(ui.value("Acknowledged")).to_contain_text(str(datetime.now().year))
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


def test_all_dead_letters_are_sent_back_by_one_button(
    ui: WebUi, broker: Broker, channel: Any
) -> None:
    arguments = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
        "x-redelivery-delay": [600_000],
    }
    channel.queue_declare("alive", arguments=arguments)
    channel.queue_declare("dead")
    for body in (b"x", b"y"):
        channel.basic_publish("", "alive", body)
    broker.wait_until(queue="alive", ready=2)
    for _ in range(2):
        channel.basic_reject(channel.basic_get("alive")[0].delivery_tag, requeue=False)
    broker.wait_until(queue="dead", ready=2)
    ui.open("queues", "/", "dead", "messages")
    ui.page.get_by_role("button", name="Send dead letters back").click()
    ui.confirm("Send back")
    ui.expect_notice("The dead letters are being sent back.")
    broker.wait_until(queue="alive", ready=2)
    broker.wait_until(queue="dead", ready=0)
    channel.basic_nack(channel.basic_get("alive")[0].delivery_tag)
    ui.open("queues", "/", "alive", "messages")
    expect(ui.value("Ready again")).to_contain_text("seconds")
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


def test_messages_of_a_stream_are_copied_from_its_first_on(
    ui: WebUi, broker: Broker, channel: Any
) -> None:
    declare(channel, "written down", 3, **{"x-queue-type": "stream"})
    ui.open("queues", "/", "written down")
    form = ui.unfold("Copy messages")
    form.get_by_label("To queue").fill("copies")
    form.get_by_role("button", name="Copy messages").click()
    ui.expect_notice("What is in written down is being copied to copies.")
    broker.wait_until(queue="copies", ready=3)
    ui.open("shovels")
    expect(ui.page.get_by_text("No shovels.")).to_be_visible(timeout=30_000)
    for queue in ("written down", "copies"):
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
    page.get_by_label("Message filter").fill('routing_key = "key 2"')
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_text("Found 1 among 3 of 3 messages.")).to_be_visible()
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("key 2")
    page.get_by_label("Message filter").fill("size >")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("alert")).to_contain_text("character 7")
    ui.forget_refusal("/delayed")
    page.get_by_label("Message filter").fill("")
    page.get_by_role("button", name="Find").click()
    expect(rows).to_have_count(4)
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
