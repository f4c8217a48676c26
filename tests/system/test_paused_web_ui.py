"""What the web pages of a node show while it pauses because it has lost etcd, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from paused_node import WHY, state
from running_cluster import RunningCluster, publish, wait_until

pytest.importorskip("playwright", reason="the web pages are tested with Playwright")

from playwright.sync_api import Browser, expect
from web_ui import CHROMIUM, DESKTOP, PHONE, WebUi, chromium

LEASES_END = True
"""Tests wait until the lease of a node ends."""

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")

PAGES = (
    [],
    ["connections"],
    ["channels"],
    ["exchanges"],
    ["exchanges", "/", "amq.topic"],
    ["queues"],
    ["queues", "/", "shown"],
    ["users"],
    ["users", "guest"],
    ["vhosts"],
    ["vhosts", "/"],
    ["policies"],
    ["limits"],
    ["definitions"],
    ["nodes"],
    ["nodes", "a@127.0.0.1"],
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def test_every_page_says_that_the_node_is_paused_while_it_is(
    browser: Browser, running_cluster: RunningCluster
) -> None:
    cluster, a = running_cluster, running_cluster["a"]
    channel = a.connect().channel()
    channel.queue_declare("shown", durable=True)
    publish(channel, "shown", [b"x"] * 3)
    with WebUi(browser, f"http://127.0.0.1:{a.http_port}/", DESKTOP) as ui:
        ui.enter()
        banner = ui.page.get_by_role("status", name="Pause")
        expect(banner).to_be_empty()
        ui.page.evaluate("localStorage.setItem('warren.interval', '0')")
        ui.page.reload()
        ui.until_refreshed()
        cluster.etcd.kill()
        try:
            wait_until(lambda: state(a) == "paused")
            ui.refresh()
            expect(banner).to_contain_text(f"{WHY}: ")
            for kind, (width, height) in (("wide", DESKTOP), ("phone", PHONE)):
                ui.page.set_viewport_size({"width": width, "height": height})
                for names in PAGES:
                    ui.open(*names)
                    expect(ui.page.locator(".page-problem")).to_be_hidden()
                    expect(banner).to_be_visible()
                    ui.check_form()
                ui.picture(f"{kind}-paused")
        finally:
            cluster.etcd.start()
        cluster.wait_until_linked(*cluster.nodes)
        ui.refresh()
        expect(banner).to_be_empty()
