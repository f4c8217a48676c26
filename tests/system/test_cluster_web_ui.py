"""The web pages of a cluster: its nodes, its mirrored queues, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from running_cluster import ClusterProcess, RunningCluster, publish, wait_until

pytest.importorskip("playwright", reason="the web pages are tested with Playwright")

from playwright.sync_api import Browser, expect
from web_ui import CHROMIUM, PHONE, WebUi, chromium

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")

A, B, C = (f"{name}@127.0.0.1" for name in "abc")
MESSAGES = 3_000
SLOW = "mirroring_sync_max_throughput = 10000\n"
"""A synchronisation of that many takes a minute, however fast the machine is."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def cluster_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    cluster = RunningCluster(tmp_path_factory.mktemp("cluster"), "a", "b", "c", more=SLOW)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def cluster(running_cluster: RunningCluster) -> RunningCluster:
    for name, more in (("ha", {"ha-sync-mode": "automatic"}), ("later", {})):
        body = {"pattern": f"^{name}", "definition": {"ha-mode": "all", **more}}
        running_cluster["a"].changes("policies", "/", name, body=body)
    return running_cluster


def url(node: ClusterProcess) -> str:
    return f"http://127.0.0.1:{node.http_port}/"


def declare(node: ClusterProcess, queue: str, messages: int = 0) -> None:
    channel = node.connect().channel()
    channel.queue_declare(queue, durable=True)
    publish(channel, queue, [b"x" * 100] * messages)
    node.until_queue(queue, lambda row: row.get("messages") == messages)


def out_of_sync(cluster: RunningCluster, queue: str, messages: int) -> None:
    """Declare a queue at a whose mirrors lack all messages."""
    body = {"pattern": "^none", "definition": {"ha-mode": "all"}}
    cluster["a"].changes("policies", "/", "later", body=body)
    declare(cluster["a"], queue)
    # A mirror that is still there would get the messages when they are published.
    wait_until(lambda: not cluster["a"].queue(queue).get("slave_nodes"))
    publish(cluster["a"].connect().channel(), queue, [b"x" * 100] * messages)
    cluster["a"].until_queue(queue, lambda row: row.get("messages") == messages)
    cluster["a"].changes("policies", "/", "later", body={**body, "pattern": "^later"})
    wait_until(lambda: len(cluster["a"].queue(queue).get("slave_nodes", ())) == 2)


def states(ui: WebUi) -> dict[str, str]:
    """The copies of the queue on show, and how they are."""
    heads = ui.page.locator(".copies .copy-head").all()
    return {head.locator("b").inner_text(): head.locator(".badge").inner_text() for head in heads}


def test_queues_show_where_they_are_and_who_is_not_in_sync(
    browser: Browser, cluster: RunningCluster
) -> None:
    declare(cluster["b"], "ha.q", 3)
    out_of_sync(cluster, "later.q", 10)
    declare(cluster["c"], "plain")
    channel = cluster["b"].connect().channel()
    channel.queue_declare("sure", durable=True, arguments={"x-queue-type": "quorum"})
    wait_until(lambda: len(cluster["c"].in_sync("ha.q")) == 2)
    wait_until(lambda: len(cluster["c"].queue("sure").get("online", ())) == 3)
    with WebUi(browser, url(cluster["c"]), (1440, 900)) as ui:
        ui.enter()
        ui.open("queues")
        scroll = ui.page.get_by_role("region", name="Queues", exact=True)
        widths = scroll.evaluate("one => [one.scrollWidth, one.clientWidth]")
        assert widths[0] <= widths[1]
        line = ui.page.get_by_role("row").filter
        expect(line(has_text="ha.q")).to_contain_text(f"{B} +2")
        expect(line(has_text="later.q")).to_contain_text(f"{A} +2 2 not in sync")
        expect(line(has_text="sure")).to_contain_text(f"{B} +2")
        expect(line(has_text="plain")).to_contain_text(C)
        expect(line(has_text="plain")).not_to_contain_text("+")
        ui.check_form()
        ui.picture("cluster-queues")
        ui.open("queues", "/", "plain")
        expect(ui.page.get_by_role("heading", name="Mirrors", exact=True)).to_be_hidden()


def test_a_stream_shows_its_members(browser: Browser, cluster: RunningCluster) -> None:
    channel = cluster["b"].connect().channel()
    channel.queue_declare("records", durable=True, arguments={"x-queue-type": "stream"})
    wait_until(lambda: len(cluster["c"].queue("records").get("online", ())) == 3)
    with WebUi(browser, url(cluster["c"]), (1440, 900)) as ui:
        ui.enter()
        ui.open("queues")
        row = ui.page.get_by_role("row").filter(has_text="records")
        expect(row).to_contain_text(f"{B} +2")
        ui.open("queues", "/", "records")
        expect(ui.page.get_by_title("the leader")).to_have_text(B)
        followers = ui.page.get_by_title("a follower")
        expect(followers).to_have_count(2)
        assert sorted(followers.all_inner_texts()) == [A, C]
        expect(ui.page.get_by_role("heading", name="Mirrors", exact=True)).to_be_hidden()


@pytest.mark.parametrize("size", [PHONE, (1280, 900)], ids=["phone", "desktop"])
def test_a_synchronisation_is_begun_watched_and_cancelled(
    browser: Browser, cluster: RunningCluster, size: tuple[int, int]
) -> None:
    out_of_sync(cluster, "later.q", MESSAGES)
    kind = "phone" if size == PHONE else "wide"
    with WebUi(browser, url(cluster["c"]), size) as ui:
        ui.enter()
        ui.open("queues", "/", "later.q")
        part = ui.page.get_by_role("region", name="Mirrors", exact=True)
        assert states(ui) == {A: "leader", B: "not in sync", C: "not in sync"}
        expect(part).to_contain_text("No mirror is in sync")
        ring = part.get_by_role("img")
        told = ring.get_attribute("aria-label") or ""
        assert all(f"{node}, not in sync" in told for node in (B, C)) and f"{A}, leader" in told
        expect(ring.locator(".ring-member")).to_have_count(3)
        expect(ring.locator(".ring-way")).to_have_count(3)
        expect(part.get_by_role("progressbar")).to_have_count(0)
        expect(part.get_by_role("button", name="Cancel synchronisation")).to_be_hidden()
        ui.check_form()
        ui.picture(f"{kind}-mirrors-out-of-sync")
        part.get_by_role("button", name="Synchronise mirrors").click()
        ui.expect_notice("The mirrors are being synchronised.")
        progress = part.get_by_role("progressbar", name=f"Synchronisation of {B}")
        expect(progress).to_be_visible()
        assert progress.get_attribute("aria-valuemax") == str(MESSAGES)
        expect(part.locator(".ring-member.syncing")).to_have_count(2)
        ui.refresh()
        expect(part).to_contain_text("of 3,000 messages, about")
        ui.check_form()
        ui.picture(f"{kind}-mirrors-syncing")
        part.get_by_role("button", name="Cancel synchronisation").click()
        ui.expect_notice("The synchronisation is cancelled.")
        expect(progress).to_be_hidden()
        assert states(ui) == {A: "leader", B: "not in sync", C: "not in sync"}


def test_who_leads_now_is_told_with_the_reason(browser: Browser, cluster: RunningCluster) -> None:
    declare(cluster["a"], "ha.q", 3)
    declare(cluster["a"], "plain", 3)
    c = cluster["c"]
    wait_until(lambda: len(c.in_sync("ha.q")) == 2)
    with WebUi(browser, url(c)) as ui:
        ui.enter()
        ui.open("queues", "/", "ha.q")
        part = ui.page.get_by_role("region", name="Mirrors", exact=True)
        assert states(ui) == {A: "leader", B: "in sync", C: "in sync"}
        expect(part).to_contain_text("All mirrors are in sync.")
        expect(part.get_by_role("button")).to_have_count(0)
        expect(ui.value("Last change of the leader")).to_have_text("none")
        ui.picture("mirrors-in-sync")
        cluster["a"].kill()
        wait_until(lambda: c.queue("ha.q").get("promoted") == f"{A} is down")
        wait_until(lambda: len(c.in_sync("ha.q")) == 1)
        ui.refresh()
        expect(ui.value("Last change of the leader")).to_contain_text(f"{A} is down, ")
        assert sorted(states(ui).values()) == ["in sync", "leader"]
        expect(part.locator(".ring-way")).to_have_count(2)
        ui.picture("mirrors-after-failover")
        # Of the other queue nothing is known but that its node is gone.
        ui.open("queues", "/", "plain")
        expect(ui.page.locator("[data-code=down]")).to_contain_text(f"Node {A}")
        expect(ui.page.get_by_role("heading", name="Where the messages are")).to_be_hidden()
        ui.check_form()
        ui.picture("queue-down")
        ui.open("queues")
        expect(ui.page.get_by_role("row").filter(has_text="plain")).to_contain_text("down")


@pytest.mark.parametrize("size", [PHONE, (1280, 900)], ids=["phone", "desktop"])
def test_every_node_of_the_cluster_is_shown(
    browser: Browser, cluster: RunningCluster, size: tuple[int, int]
) -> None:
    kind = "phone" if size == PHONE else "wide"
    with WebUi(browser, url(cluster["a"]), size) as ui:
        ui.enter()
        expect(ui.page.locator(".node-rows > div")).to_have_count(3)
        expect(ui.page.locator(".node-rows .badge", has_text="running")).to_have_count(3)
        expect(ui.page.locator(".alarms")).to_be_empty()
        ui.check_form()
        ui.picture(f"{kind}-cluster-overview")
        ui.open("nodes", B)
        links = ui.page.get_by_role("region", name="Links to other nodes").last
        expect(links.get_by_role("row")).to_have_count(3)
        expect(links).to_contain_text(A)
        expect(links).to_contain_text(" ms")
        ui.check_form()
        ui.picture(f"{kind}-cluster-node")
        cluster["b"].kill()
        a = cluster["a"]
        wait_until(lambda: [one["state"] for one in a.asks("nodes")][1] == "down")
        ui.refresh()
        expect(ui.value("State")).to_have_text("down")
        expect(ui.page.get_by_role("heading", name="Memory by part")).to_be_hidden()
        ui.open("nodes")
        line = ui.page.get_by_role("row").filter(has_text=B)
        expect(line).to_contain_text("down")
        # Every page says so, not the overview alone.
        for page in (
            "nodes",
            "queues",
            "users",
            "connections",
            "channels",
            "exchanges",
            "policies",
        ):
            ui.open(page)
            expect(ui.page.locator(".alarms")).to_have_text(f"Node {B} is down.")
        ui.open("nodes")
        ui.check_form()
        ui.picture(f"{kind}-cluster-nodes")
        ui.open()
        expect(ui.page.locator(".alarms")).to_have_text(f"Node {B} is down.")
        ui.check_form()
        ui.picture(f"{kind}-cluster-overview-down")


def test_a_mirror_whose_node_is_dead_is_missing_and_not_in_sync(
    browser: Browser, cluster: RunningCluster
) -> None:
    a, c = cluster["a"], cluster["c"]
    declare(a, "ha.q", 3)
    wait_until(lambda: len(c.in_sync("ha.q")) == 2)
    with WebUi(browser, url(c)) as ui:
        ui.enter()
        ui.open("queues", "/", "ha.q")
        part = ui.page.get_by_role("region", name="Mirrors", exact=True)
        expect(part.locator(".finding.good")).to_have_text("All mirrors are in sync.")
        cluster["b"].kill()
        wait_until(lambda: [one["state"] for one in c.asks("nodes")][1] == "down")
        ui.refresh()
        expect(part.locator(".finding.warn")).to_contain_text("1 mirror is missing")
        expect(part.locator(".finding.good")).to_have_count(0)
        expect(ui.page.locator(".alarms")).to_have_text(f"Node {B} is down.")
        for page in ("", "nodes", "queues"):
            ui.open(*([page] if page else []))
            expect(ui.page.locator(".alarms")).to_have_text(f"Node {B} is down.")
            expect(ui.page.get_by_text("All mirrors are in sync")).to_have_count(0)


def test_only_who_sets_policies_is_offered_to_synchronise(
    browser: Browser, cluster: RunningCluster
) -> None:
    out_of_sync(cluster, "later.q", 10)
    a = cluster["a"]
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    for tag in ("management", "policymaker"):
        a.changes("users", tag, body={"password": "secret", "tags": tag})
        a.changes("permissions", "/", tag, body=every)
        with WebUi(browser, url(a)) as ui:
            ui.enter(tag, "secret")
            ui.open("queues", "/", "later.q")
            assert states(ui)[B] == "not in sync"
            offered = ui.page.get_by_role("button", name="Synchronise mirrors")
            if tag == "management":
                expect(offered).to_have_count(0)
            else:
                offered.click()
                wait_until(lambda: len(a.in_sync("later.q")) == 2)
                ui.refresh()
                expect(ui.page.get_by_text("All mirrors are in sync.")).to_be_visible()
        a.does("DELETE", "users", tag)
