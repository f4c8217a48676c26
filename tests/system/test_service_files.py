"""The files in `deploy/`, used by the programs they are for, on a node that runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from broker_processes import Until
from server_process import ServerProcess

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"

SCRAPES = """
global: {{scrape_interval: 100ms, scrape_timeout: 100ms, evaluation_interval: 100ms}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: warren
    basic_auth: {{username: guest, password: guest}}
    static_configs: [{{targets: ["{target}"]}}]
"""


class Prometheus:
    """A Prometheus of the test's own, which scrapes one node and has Warren's rules."""

    def __init__(self, directory: Path, target: str, until: Until) -> None:
        config = directory / "prometheus.yaml"
        rules = DEPLOY / "prometheus" / "alerts.yaml"
        config.write_text(SCRAPES.format(rules=rules, target=target))
        log = directory / "prometheus.log"
        command = ["prometheus", f"--config.file={config}", "--web.listen-address=127.0.0.1:0"]
        command += [f"--storage.tsdb.path={directory / 'tsdb'}"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        listening = re.compile(r'"Listening on" address=(\S+)')
        until(lambda: "ready to receive web requests" in log.read_text())
        (self._address,) = listening.findall(log.read_text())

    def rules(self) -> dict[str, dict[str, Any]]:
        """By name. There are none before it has loaded them."""
        with urlopen(f"http://{self._address}/api/v1/rules", timeout=30) as answer:
            groups = json.loads(answer.read())["data"]["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def states(self) -> dict[str, str]:
        return {name: rule["state"] for name, rule in self.rules().items()}

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def prometheus(tmp_path: Path, until: Until) -> Iterator[Callable[[str], Prometheus]]:
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed")
    started: list[Prometheus] = []

    def start(target: str) -> Prometheus:
        started.append(Prometheus(tmp_path, target, until))
        return started[-1]

    yield start
    for one in started:
        one.end()


def test_prometheus_evaluates_the_rules_on_what_a_node_tells(
    start_server: Callable[..., ServerProcess],
    prometheus: Callable[[str], Prometheus],
    until: Until,
) -> None:
    config = "disk_free_limit.absolute = 1000TB\n"
    server = start_server("--http", "127.0.0.1:0", config=config)
    found = re.search(r"http (\d+)", server.ready_line)
    assert found is not None
    asked = prometheus(f"127.0.0.1:{found[1]}")
    # The disk of no machine is so large; all the other rules are evaluated as well.
    until(lambda: asked.states().get("WarrenDiskAlarm") == "firing")
    until(lambda: {rule["health"] for rule in asked.rules().values()} == {"ok"})
    assert not [rule for rule in asked.rules().values() if rule.get("lastError")]
    # On a busy machine it may have missed an answer, for which the rule has a minute.
    until(lambda: asked.states()["WarrenNodeDown"] == "inactive")
    server.kill()
    until(lambda: asked.states()["WarrenNodeDown"] == "pending")


def test_logrotate_moves_the_log_away_and_the_node_begins_a_new_one(
    start_server: Callable[..., ServerProcess], tmp_path: Path, until: Until
) -> None:
    if shutil.which("logrotate") is None:
        pytest.skip("logrotate is not installed")
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o755)
    log = logs / "warren.log"
    server = start_server(config=f"log.file = {log}\nlog.console = false\n")
    until(lambda: "node_started" in log.read_text())
    # As it is installed, but for where the logs are, and for systemd, of which there is none here.
    text = (DEPLOY / "warren.logrotate").read_text()
    for said, here in (
        ("/var/log/warren", str(logs)),
        (
            "systemctl kill --signal=HUP --kill-whom=main warren.service",
            f"kill -HUP {server.process.pid}",
        ),
    ):
        assert said in text
        text = text.replace(said, here)
    rules = tmp_path / "warren.logrotate"
    rules.write_text(text)
    rules.chmod(0o644)

    def rotate() -> None:
        command = ["logrotate", "--force", "--state", str(tmp_path / "state"), str(rules)]
        rotated = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (rotated.returncode, rotated.stderr) == (0, "")
        until(log.exists)

    rotate()
    assert "node_started" in (logs / "warren.log.1").read_text()
    log.write_text("what is empty is not rotated\n")
    rotate()
    assert (logs / "warren.log.1").exists() and (logs / "warren.log.2.gz").exists()
    assert server.terminate() == 0
    assert "node_stopped" in log.read_text()
