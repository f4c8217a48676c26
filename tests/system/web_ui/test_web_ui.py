"""The web pages in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import pika
import pytest

from warren import Broker

pytest.importorskip("playwright", reason="the web pages are tested with Playwright")

from playwright.sync_api import Browser, expect
from web_pages import STRANGE, api, api_has, declare
from web_ui import CHROMIUM, PHONE, WebUi

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")


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
