"""The conformance suite, which passes on RabbitMQ 3.10.8, passes on Warren."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren import Broker


@pytest.fixture
def managed_broker() -> Iterator[Broker]:
    with Broker(http_port=0) as broker:
        yield broker


def run_suite(broker: Broker, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "warren", "conformance", broker.url, *options],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_conformance_suite_passes(managed_broker: Broker, tmp_path: Path) -> None:
    management = managed_broker.http_url.replace("http://", "http://guest:guest@")
    suite = run_suite(managed_broker, tmp_path, "--management", management, "-m", "not slow")
    assert suite.returncode == 0, suite.stdout[-8000:] + suite.stderr[-2000:]
    passed = re.search(r"The broker conforms: (\d+) passed, 0 failed", suite.stdout)
    assert passed is not None, suite.stdout[-3000:]
    assert int(passed[1]) > 700


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_slow_part_of_the_suite_passes(tmp_path: Path) -> None:
    """Heartbeats, statistics and the like, which wait for clocks on both sides; with a disk."""
    with Broker(http_port=0, data_dir=tmp_path / "data") as broker:
        management = broker.http_url.replace("http://", "http://guest:guest@")
        suite = run_suite(broker, tmp_path, "--management", management, "-m", "slow")
    assert suite.returncode == 0, suite.stdout[-8000:] + suite.stderr[-2000:]
