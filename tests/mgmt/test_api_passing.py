"""Lists are answered without errors when listed objects are deleted meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import pika
import pytest
from api_client import ApiClient

from warren import Broker
from warren.core.node import Node
from warren.mgmt.http import listing, slices

LISTS = "vhosts queues exchanges bindings consumers connections channels users".split()


@pytest.mark.parametrize("sort", ["", "&sort=message_stats.publish"])
@pytest.mark.parametrize("name", LISTS)
def test_what_goes_while_it_is_listed_breaks_nothing(
    name: str, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(http_port=0) as broker:
        broker.add_vhost("going")
        broker.add_user("going", "going")
        connection = pika.BlockingConnection(pika.URLParameters(broker.url_for("going")))
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_consume("q", lambda *delivery: None)
        node = broker.call(lambda node: node)
        before = asked(broker, name, sort)

        async def chunks(items: Iterable[Any], size: int = 1) -> AsyncIterator[list[Any]]:
            for item in items:
                remove_all(node)
                yield [item]

        for module in (listing, slices):
            monkeypatch.setattr(module, "chunks", chunks)
        assert len(asked(broker, name, sort)) == len(before) > 0
        monkeypatch.undo()
        assert "going" not in str(asked(broker, "vhosts", ""))
        with suppress(pika.exceptions.AMQPError):
            connection.close()


def asked(broker: Broker, name: str, sort: str) -> list[Any]:
    status, rows = ApiClient(broker).get(f"/{name}?lengths_age=60&lengths_incr=5{sort}")
    assert status == 200
    assert isinstance(rows, list)
    return rows


def remove_all(node: Node) -> None:
    if "going" in node.vhosts:
        node.delete_vhost("going")
        node.access.delete_user("going")
