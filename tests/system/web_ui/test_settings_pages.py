"""Pages where an administrator sets things: policies, shovels, upstreams, users, definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest

from warren import Broker

pytest.importorskip("playwright", reason="the web pages are tested with Playwright")

from playwright.sync_api import expect
from web_pages import api, declare
from web_ui import CHROMIUM, WebUi

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")


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
