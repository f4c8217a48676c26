"""/vhosts: made, changed, listed, deleted over HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pika
import pytest
from api_client import EVERYTHING, NOT_FOUND, ApiClient, reason

from warren import Broker

PATIENCE_S = 10.0


@pytest.fixture
def api(broker: Broker) -> Iterator[ApiClient]:
    """Virtual hosts but the first are gone after each test."""
    client = ApiClient(broker)
    yield client
    for vhost in client.get("/vhosts?columns=name")[1]:
        if vhost["name"] != "/":
            client.delete(f"/vhosts/{vhost['name']}")


def test_whoever_makes_a_vhost_may_do_everything_in_it(api: ApiClient) -> None:
    assert api.put("/vhosts/v1") == (201, None)
    assert api.put("/vhosts/v1", {}) == (204, None)
    shown = {"user": "guest", "vhost": "v1", **EVERYTHING}
    assert api.get("/permissions/v1/guest") == (200, shown)
    assert api.get("/vhosts/v1/permissions") == (200, [shown])


def test_changing_a_vhost_gives_no_permissions(api: ApiClient) -> None:
    api.put("/vhosts/v1")
    api.delete("/permissions/v1/guest")
    api.put("/vhosts/v1", {"description": "again"})
    assert api.get("/vhosts/v1/permissions") == (200, [])


def test_what_is_said_about_a_vhost(api: ApiClient) -> None:
    said = {"description": "d", "tags": "a, b", "defaultqueuetype": "classic", "tracing": True}
    api.put("/vhosts/v1", said)
    status, row = api.get("/vhosts/v1")
    assert status == 200
    assert (row["description"], row["tags"], row["tracing"]) == ("d", ["a", "b"], True)
    assert row["default_queue_type"] == "classic"
    assert row["metadata"] == {
        "description": "d",
        "tags": ["a", "b"],
        "default_queue_type": "classic",
    }
    assert row["cluster_state"] == {"warren@localhost": "running"}


def test_what_is_not_said_again_is_forgotten_but_queue_type_and_tracing(api: ApiClient) -> None:
    api.put("/vhosts/v1", {"description": "d", "defaultqueuetype": "classic", "tracing": "true"})
    api.put("/vhosts/v1", {"tags": ["x"], "defaultqueuetype": "stream"})
    row = api.get("/vhosts/v1")[1]
    assert (row["description"], row["tags"], row["tracing"]) == ("", ["x"], True)
    assert row["default_queue_type"] == "classic"
    api.put("/vhosts/v1", {"tracing": "false"})
    assert api.get("/vhosts/v1?columns=tracing") == (200, {"tracing": False})


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({"tracing": "x"}, ["not_boolean", "x"]),
        ({"tracing": None}, ["not_boolean", None]),
        ({"description": 5}, "description should be a string"),
        ({"defaultqueuetype": "bogus"}, "invalid_queue_type"),
        (b"{bad", "not_json"),
        (b"[]", "not_json"),
    ],
)
def test_a_vhost_that_is_refused_is_not_made(api: ApiClient, body: object, wrong: object) -> None:
    assert reason(api.put("/vhosts/v1", body)) == (400, wrong)
    assert api.get("/vhosts/v1") == NOT_FOUND


def test_a_name_that_no_client_could_send(api: ApiClient) -> None:
    assert api.put(f"/vhosts/{'n' * 256}")[0] == 400
    assert api.put(f"/vhosts/{'n' * 255}")[0] == 201


def test_a_vhost_is_deleted_with_what_is_in_it(api: ApiClient) -> None:
    api.put("/vhosts/v1")
    api.put("/queues/v1/q", {})
    assert api.delete("/vhosts/v1") == (204, None)
    assert api.delete("/vhosts/v1") == NOT_FOUND
    assert api.get("/vhosts/v1") == NOT_FOUND
    assert [row["vhost"] for row in api.get("/permissions")[1]] == ["/"]


def test_messages_of_a_vhost_are_counted(broker: Broker, api: ApiClient) -> None:
    api.put("/vhosts/v1")
    api.put("/queues/v1/q", {})
    connection = pika.BlockingConnection(pika.URLParameters(broker.url_for("v1")))
    channel = connection.channel()
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "q", b"x")
    channel.basic_get("q")
    row = api.get("/vhosts/v1")[1]
    counts = (row["messages"], row["messages_ready"], row["messages_unacknowledged"])
    assert counts == (3, 2, 1)
    assert row["message_stats"]["publish"] == 3 and row["message_stats"]["get"] == 1
    assert row["recv_oct"] > 0 and row["send_oct"] > 0
    assert "rate" in row["messages_details"] and "samples" not in row["messages_details"]
    connection.close()


def test_samples_are_shown_on_request(api: ApiClient) -> None:
    row = api.get("/vhosts/%2F")[1]
    deadline = time.monotonic() + PATIENCE_S
    # The first sample is shown from the next full second on.
    while "samples" not in row["messages_details"] and time.monotonic() < deadline:
        row = api.get("/vhosts/%2F?lengths_age=60&lengths_incr=1")[1]
    assert {"sample", "timestamp"} == row["messages_details"]["samples"][0].keys()
    assert "samples" not in row["recv_oct_details"]


def test_pages(api: ApiClient) -> None:
    for name in ("v1", "v2", "w1"):
        api.put(f"/vhosts/{name}")
    page = api.get("/vhosts?page=1&page_size=1&name=V&columns=name")[1]
    assert page["items"] == [{"name": "v1"}]
    assert (page["total_count"], page["filtered_count"], page["page_count"]) == (4, 2, 2)
    assert reason(api.get("/vhosts?page=9"))[0] == 400


def test_users_see_their_own_vhosts_and_monitors_all(broker: Broker, api: ApiClient) -> None:
    for user, tags in (("ann", "management"), ("mon", "monitoring")):
        api.put(f"/users/{user}", {"password": user, "tags": tags})
    for name in ("v1", "v2"):
        api.put(f"/vhosts/{name}")
    api.put("/permissions/v1/ann", EVERYTHING)
    own = [{"name": "v1"}]
    assert ApiClient(broker, "ann").get("/vhosts?columns=name") == (200, own)
    everything = [{"name": "/"}, *own, {"name": "v2"}]
    monitor = ApiClient(broker, "mon")
    assert monitor.get("/vhosts?columns=name") == (200, everything)
    # The page that offers virtual hosts to choose from names the one that is chosen.
    assert monitor.get("/vhosts?columns=name", X_Vhost="v1") == (200, everything)


def test_topic_permissions_in_a_vhost(api: ApiClient) -> None:
    api.put("/vhosts/v1")
    given = {"exchange": "amq.topic", "write": "^a", "read": ""}
    api.put("/topic-permissions/v1/guest", given)
    rows = [{"user": "guest", "vhost": "v1", **given}]
    assert api.get("/vhosts/v1/topic-permissions") == (200, rows)
    assert api.get("/vhosts/%2F/topic-permissions") == (200, [])
    assert api.get("/vhosts/nope/topic-permissions") == NOT_FOUND
    assert api.get("/vhosts/nope/permissions") == NOT_FOUND


def test_starting_a_vhost(api: ApiClient) -> None:
    assert api.post("/vhosts/%2F/start/warren@localhost") == (204, None)
    told = "Request to node other@x failed with nodedown"
    assert reason(api.post("/vhosts/%2F/start/other@x")) == (400, told)
    told = 'Request to node warren@localhost failed with {no_such_vhost,<<"nope">>}'
    assert reason(api.post("/vhosts/nope/start/warren@localhost")) == (400, told)


def test_changes_are_on_record(api: ApiClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "warren.audit")
    api.put("/vhosts/v1")
    api.put("/vhosts/v1")
    api.delete("/vhosts/v1")
    noted = [record.getMessage() for record in caplog.records if record.name == "warren.audit"]
    assert [line.split()[0] for line in noted] == [
        "vhost_created",
        "vhost_changed",
        "vhost_deleted",
    ]
    assert all("vhost=v1" in line and 'who="guest http' in line for line in noted)
