"""Samples behind the charts: of every object, from its first moment on, and over a restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from api_client import ApiClient

from warren import Broker
from warren.mgmt.statistics import sampler
from warren.mgmt.statistics.sampler import Statistics
from warren.mgmt.statistics.track import Track

PATIENCE_S = 60.0
RANGES = "lengths_age=120&lengths_incr=1&msg_rates_age=120&msg_rates_incr=1&data_rates_age=120"
RANGES += "&data_rates_incr=1&node_stats_age=120&node_stats_incr=1"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, stats_interval_ms=100) as started:
        yield started


@pytest.fixture
def channel(broker: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    connection.close()


def until(condition: Callable[[], Any]) -> Any:
    """What it answers once that is true."""
    ends = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        assert time.monotonic() < ends
        time.sleep(0.05)
    return answer


def publish(channel: Any, queue: str, count: int, exchange: str = "") -> None:
    channel.confirm_delivery()
    for _ in range(count):
        channel.basic_publish(exchange, queue, b"x", pika.BasicProperties(delivery_mode=2))


def sampled(broker: Broker, path: str, *names: str, value: int, count: int = 1) -> Any:
    """The details under these names, once so many of the newest samples have the value."""

    def look() -> Any:
        status, found = ApiClient(broker).get(f"{path}?{RANGES}")
        assert status == 200
        for name in names:
            found = found.get(name, {})
        samples = found.get("samples", [])
        newest = [sample["sample"] for sample in samples[:count]]
        return found if newest == [value] * count else None

    return until(look)


def check(details: Any) -> None:
    """Averages are those of the samples, which are at whole seconds."""
    samples = details["samples"]
    newest, oldest = samples[0], samples[-1]
    assert [one["timestamp"] for one in samples] == sorted(
        [one["timestamp"] for one in samples], reverse=True
    )
    assert all(one["timestamp"] % 1000 == 0 for one in samples)
    elapsed = (newest["timestamp"] - oldest["timestamp"]) / 1000
    grown = newest["sample"] - oldest["sample"]
    assert details["avg_rate"] == pytest.approx(grown / elapsed if elapsed else 0)
    assert details["avg"] == pytest.approx(sum([one["sample"] for one in samples]) / len(samples))


def test_queues_exchanges_and_channels_have_samples_of_what_passed(
    broker: Broker, channel: Any
) -> None:
    channel.queue_declare("charted")
    channel.exchange_declare("charted", "fanout")
    channel.queue_bind("charted", "charted")
    publish(channel, "", 10, exchange="charted")
    check(sampled(broker, "/queues/%2F/charted", "messages_details", value=10))
    check(sampled(broker, "/queues/%2F/charted", "message_stats", "publish_details", value=10))
    for name in ("publish_in_details", "publish_out_details"):
        check(sampled(broker, "/exchanges/%2F/charted", "message_stats", name, value=10))
    ((_, channels),) = [ApiClient(broker).get("/channels")]
    where = f"/channels/{quote(channels[0]['name'], safe='')}"
    check(sampled(broker, where, "message_stats", "confirm_details", value=10))


def test_connections_have_samples_of_what_they_sent(broker: Broker, channel: Any) -> None:
    publish(channel, "nowhere", 5)
    status, rows = ApiClient(broker).get("/connections")
    assert status == 200
    where = f"/connections/{quote(rows[0]['name'], safe='')}"
    octets = until(lambda: ApiClient(broker).get(where)[1]["recv_oct"])
    details = sampled(broker, where, "recv_oct_details", value=octets)
    assert details["samples"][0]["sample"] == octets


def test_each_kind_of_figures_has_its_own_range(broker: Broker, channel: Any) -> None:
    channel.queue_declare("ranges")
    publish(channel, "ranges", 3)
    sampled(broker, "/queues/%2F/ranges", "messages_details", value=3)
    ask = "/queues/%2F/ranges?lengths_age=4&lengths_incr=1&msg_rates_age=30&msg_rates_incr=3"

    def moments() -> Any:
        row = ApiClient(broker).get(ask)[1]
        details = row["messages_details"], row["message_stats"]["publish_details"]
        found = [[one["timestamp"] for one in each.get("samples", [])] for each in details]
        return found if all(found) else None

    lengths, rates = until(moments)
    assert len(lengths) <= 5 and all(moment % 1000 == 0 for moment in lengths)
    assert all(moment % 3000 == 0 for moment in rates)
    row = ApiClient(broker).get("/queues/%2F/ranges?msg_rates_age=30&msg_rates_incr=3")[1]
    assert "samples" not in row["messages_details"]
    assert "samples" in row["message_stats"]["publish_details"]


def test_lists_have_samples_too(broker: Broker, channel: Any) -> None:
    channel.queue_declare("listed")
    publish(channel, "listed", 2)
    sampled(broker, "/queues/%2F/listed", "messages_details", value=2)
    rows = ApiClient(broker).get(f"/queues?{RANGES}")[1]
    (row,) = [row for row in rows if row["name"] == "listed"]
    assert row["messages_details"]["samples"][0]["sample"] == 2


def test_samples_are_made_for_the_rows_that_are_shown_alone(
    broker: Broker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        channel.queue_declare(f"page-{number:02}")
    made = []
    samples = Track.samples

    def counted(track: Track, thing: Any, times: Any) -> Any:
        made.append(thing)
        return samples(track, thing, times)

    monkeypatch.setattr(Track, "samples", counted)
    ask = f"page=2&page_size=7&name=page-&sort=message_stats.publish_details.rate&{RANGES}"
    status, page = ApiClient(broker).get(f"/queues?{ask}")
    assert (status, page["item_count"], page["filtered_count"], page["page"]) == (200, 7, 30, 2)
    assert len(page["items"]) == len(made) == 7
    for list_of_all in ("/connections", "/channels", "/exchanges", "/vhosts"):
        assert ApiClient(broker).get(f"{list_of_all}?page=1&{RANGES}&sort=name")[0] == 200


def test_all_charts_of_an_answer_are_of_one_moment(
    broker: Broker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.queue_declare("q")
    asked: list[float] = []
    times = Statistics.times

    def noted(statistics: Statistics, window: Any, now: float) -> list[float]:
        asked.append(now)
        return times(statistics, window, now)

    monkeypatch.setattr(Statistics, "times", noted)
    for path, kinds in (("/queues", 2), ("/vhosts", 3), ("/overview", 3)):
        asked.clear()
        assert ApiClient(broker).get(f"{path}?{RANGES}")[0] == 200
        assert (len(asked), len(set(asked))) == (kinds, 1)


def test_users_see_charts_of_their_own_virtual_hosts(broker: Broker, channel: Any) -> None:
    broker.add_vhost("own")
    broker.add_user("own", "own", ("management",))
    broker.set_permissions("own", "own")
    connection = pika.BlockingConnection(pika.URLParameters(broker.url_for("own")))
    inner = connection.channel()
    inner.queue_declare("q")
    publish(inner, "q", 4)

    def newest() -> Any:
        totals = ApiClient(broker, "own").get(f"/overview?{RANGES}")[1]["queue_totals"]
        samples = totals["messages_details"].get("samples", [])
        return samples and samples[0]["sample"] == 4

    until(newest)
    connection.close()


def test_charts_of_queues_nodes_and_the_overview_outlive_the_node(tmp_path: Path) -> None:
    def start() -> Broker:
        return Broker(data_dir=tmp_path, http_port=0, stats_interval_ms=100).start()

    broker = start()
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare("kept", durable=True)
    publish(channel, "kept", 10)
    asked = [
        ("/queues/%2F/kept", "messages_details"),
        ("/queues/%2F/kept", "message_stats", "publish_details"),
        ("/overview", "message_stats", "publish_details"),
        ("/overview", "queue_totals", "messages_details"),
        ("/vhosts/%2F", "messages_details"),
    ]
    for path, *names in asked:
        # The newest sample may be of the second that is not over yet.
        sampled(broker, path, *names, value=10, count=2)
    connection.close()
    broker.stop()
    stopped_ms = time.time() * 1000
    broker = start()
    try:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        publish(connection.channel(), "kept", 3)
        for path, *names in asked:
            # Counters begin at 0 again, and go on in the samples.
            details = sampled(broker, path, *names, value=13)
            before = [one for one in details["samples"] if one["timestamp"] < stopped_ms]
            assert [one["sample"] for one in before][:1] == [10], (path, names)
        node = ApiClient(broker).get(f"/nodes?{RANGES}")[1][0]
        assert node["mem_used_details"]["samples"][-1]["timestamp"] < stopped_ms
        connection.close()
    finally:
        broker.stop()


def test_a_node_with_a_damaged_file_of_histories_starts_without_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(data_dir=tmp_path, http_port=0):
        pass
    (file,) = tmp_path.glob("statistics.history")
    file.write_bytes(b"something else")
    caplog.clear()
    with Broker(data_dir=tmp_path, http_port=0, stats_interval_ms=100) as broker:
        # The file is read in the background.
        lines = until(lambda: [one.message for one in caplog.records if "history" in one.message])
        until(lambda: ApiClient(broker).get(f"/nodes?{RANGES}")[1][0]["mem_used_details"])
        assert len(lines) == 1 and lines[0].startswith("history_not_loaded"), lines


def test_another_queue_of_the_same_name_has_no_past(broker: Broker, channel: Any) -> None:
    channel.queue_declare("again")
    publish(channel, "again", 7)
    sampled(broker, "/queues/%2F/again", "messages_details", value=7)
    channel.queue_delete("again")
    channel.queue_declare("again")
    publish(channel, "again", 1)
    details = sampled(broker, "/queues/%2F/again", "messages_details", value=1)
    assert {one["sample"] for one in details["samples"]} <= {0, 1}


def test_the_overview_has_rates_of_the_disk_and_of_what_is_unroutable(tmp_path: Path) -> None:
    where = ("/overview", "message_stats")

    def start() -> Broker:
        return Broker(data_dir=tmp_path, http_port=0, stats_interval_ms=100).start()

    broker = start()
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare("disk", durable=True)
    publish(channel, "disk", 12)
    for _ in range(5):
        channel.basic_publish("", "nowhere", b"x")
    sampled(broker, *where, "disk_writes_details", value=12)
    sampled(broker, *where, "drop_unroutable_details", value=5)
    connection.close()
    broker.stop()
    # After a restart the messages are on the disk alone.
    broker = start()
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    for _ in range(12):
        assert channel.basic_get("disk", auto_ack=True)[0] is not None
    sampled(broker, *where, "disk_reads_details", value=12)
    # What a queue did is counted when the queue is gone, too.
    channel.queue_delete("disk")
    assert ApiClient(broker).get("/overview")[1]["message_stats"]["disk_reads"] == 12
    connection.close()
    broker.stop()


def test_histories_are_written_while_the_node_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is killed forgets the last minutes only."""
    monkeypatch.setattr(sampler, "SAVE_EVERY_S", 0.0)
    file = tmp_path / "statistics.history"
    with Broker(data_dir=tmp_path, http_port=0, stats_interval_ms=50):
        until(file.exists)
        written = file.stat().st_mtime_ns
        until(lambda: file.stat().st_mtime_ns > written)
    assert not list(tmp_path.glob("*.new"))
