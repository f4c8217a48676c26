"""A pattern that is in the store neither stops a start nor slows it."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from api_client import ApiClient

from warren import Broker
from warren.core.definitions.records import PermissionRecord, PolicyRecord
from warren.core.node import Node
from warren.core.ports import Write

QUEUES = 300
FOR_EVER = "^" + "(?:a|a|aa)?" * 60 + "[!.]$"
TOO_LONG = "(?:aa|a)?" * 100_000


def set_up(node: Node) -> None:
    """Policies in the way of an older version, which took any pattern."""
    limits = {"max-length": 5}
    patterns = {"slow": FOR_EVER, "long": TOO_LONG, "none": "(", "good": "^a.*7$"}
    node.metadata.transact(
        [
            Write(("policy", "/", name), PolicyRecord(pattern, "queues", limits, 0, age))
            for age, (name, pattern) in enumerate(patterns.items())
        ]
        + [Write(("permission", "guest", "/"), PermissionRecord(".*", FOR_EVER, TOO_LONG))]
    )
    for number in range(QUEUES):
        node.vhosts["/"].declare_queue(
            "a" * 100 + str(number),
            durable=True,
            exclusive_owner=None,
            auto_delete=False,
            arguments={},
        )


def test_a_node_starts_whatever_patterns_it_has_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(data_dir=tmp_path) as broker:
        broker.call(set_up)
    caplog.clear()
    began = time.monotonic()
    with (
        caplog.at_level(logging.ERROR, "warren.policy"),
        Broker(http_port=0, data_dir=tmp_path) as broker,
    ):
        # Without a bound, one search takes longer than the universe is old.
        assert time.monotonic() - began < 60
        api = ApiClient(broker)
        queue = f"/queues/%2F/{'a' * 100}"
        assert api.get(f"{queue}7")[1]["policy"] == "good"
        assert api.get(f"{queue}8")[1]["policy"] is None
        get = {"ackmode": "ack_requeue_true", "encoding": "auto", "count": 1}
        assert api.post(f"{queue}8/get", get)[0] == 401
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "policy 'slow'" in line]) == 1
    for name in ("policy 'long'", "policy 'none'", "read permission of user 'guest'"):
        assert len([line for line in lines if line.startswith("pattern_invalid") and name in line])
