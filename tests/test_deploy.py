"""The files with which Warren is run as a service: they are valid, and name what exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from warren import Broker
from warren.environment import Environment
from warren.mgmt.http.probes import LIVE
from warren.mgmt.metrics import cluster

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
EXPOSURE_MAX = 2.0
"""What `systemd-analyze security` calls OK; 10 is a service without any protection."""

METRIC = re.compile(r"\b(?:rabbitmq|warren|erlang_vm)_\w+")


def analysed(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a command that is there."""
    text = (DEPLOY / "warren.service").read_text()
    assert "ExecStart=/opt/warren/bin/warren " in text
    path = tmp_path / "warren.service"
    path.write_text(text.replace("/opt/warren/bin/warren ", f"{sys.executable} "))
    return path


def test_the_unit_is_valid(unit: Path) -> None:
    verified = analysed("verify", "--man=no", str(unit))
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


def test_the_unit_is_hardened(unit: Path) -> None:
    told = analysed("security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", told.stdout)
    if found is None:
        pytest.skip("this systemd cannot judge a unit that is not installed")
    assert float(found[1]) <= EXPOSURE_MAX, told.stdout


def test_the_unit_says_when_it_is_ready_and_alive() -> None:
    lines = (DEPLOY / "warren.service").read_text().splitlines()
    assert {"Type=notify", "WatchdogSec=60", "TimeoutStartSec=infinity"} <= set(lines)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_debian_package_has_a_broker_that_runs_where_it_will_be(tmp_path: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("this is no Debian")
    # To compress 150 MB takes three times as long as everything else, and says nothing here.
    environ = os.environ | {"DPKG_DEB_COMPRESSOR_TYPE": "none"}
    subprocess.run([DEPLOY / "debian-package", tmp_path], env=environ, check=True, timeout=800)
    (package,) = tmp_path.glob("warren_*.deb")
    root, control = tmp_path / "root", tmp_path / "control"
    subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    subprocess.run(["dpkg-deb", "-e", package, control], check=True)
    for name in ("postinst", "prerm"):
        assert subprocess.run(["sh", "-n", control / name]).returncode == 0
    assert (root / "usr/bin/warren").readlink() == Path("/opt/warren/bin/warren")
    assert (root / "opt/warren/bin/warren").read_text().startswith("#!/opt/warren/bin/python\n")
    named = subprocess.run(["grep", "-rlE", "/tmp/tmp[.]", root], capture_output=True, text=True)
    assert named.stdout == ""
    units = {"usr/lib/systemd/system": "warren.service", "etc/logrotate.d": "warren"}
    assert all((root / folder / name).is_file() for folder, name in units.items())
    python = root / "opt/warren/bin/python"
    said = subprocess.run(
        [python, "-P", "-m", "warren", "ctl", "version"], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    assert package.name.startswith(f"warren_{said.stdout.strip()}_")


def test_logrotate_takes_its_file(tmp_path: Path) -> None:
    if shutil.which("logrotate") is None:
        pytest.skip("logrotate is not installed")
    (tmp_path / "logs").mkdir(mode=0o755)
    (tmp_path / "logs" / "warren.log").write_text("a line\n")
    own = tmp_path / "own"
    own.write_text(
        (DEPLOY / "warren.logrotate").read_text().replace("/var/log/warren", f"{tmp_path}/logs")
    )
    own.chmod(0o644)
    state = tmp_path / "state"
    told = subprocess.run(
        ["logrotate", "--debug", "--state", str(state), str(own)], capture_output=True, text=True
    )
    assert told.returncode == 0 and "error" not in told.stderr, told.stderr
    assert f"considering log {tmp_path}/logs/warren.log" in told.stderr


def test_containers_are_asked_at_an_address_that_answers() -> None:
    assert f"http://localhost:15672{LIVE}'" in (DEPLOY / "Containerfile").read_text()
    compose = (DEPLOY / "compose.yaml").read_text()
    assert "dockerfile: deploy/Containerfile" in compose
    for name in re.findall(r"^ +(RABBITMQ_\w+|WARREN_\w+):", compose, re.MULTILINE):
        before = Environment({})
        assert vars(Environment({name: "x"})) != vars(before)


def expressions() -> Iterator[tuple[str, str]]:
    """What is asked of Prometheus, and where."""
    for path in sorted((DEPLOY / "grafana").glob("*.json")):
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.name}: {panel['title']}", target["expr"]
        for variable in dashboard["templating"]["list"]:
            yield path.name, json.dumps(variable["query"])
    text = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    rules = re.findall(r"alert: (\w+)\n +expr: (.+)\n", text)
    assert len(rules) == text.count("alert:") > 10
    yield from rules


def metrics_of_a_cluster() -> set[str]:
    """What only members of a cluster tell; a test with a cluster sees that they do."""
    prefixes = {
        cluster.ERLANG_PREFIX: cluster.DISTRIBUTION,
        cluster.OWN_PREFIX: (
            *cluster.MEMBERS, *cluster.LOST, *cluster.ROUND_TRIP, *cluster.LED, *cluster.WITHOUT,
            *cluster.MIRRORS, *cluster.COPIES, *cluster.MAJORITY, *cluster.PROMOTIONS,
        ),
    }  # fmt: skip
    return {prefix + metric.name for prefix, metrics in prefixes.items() for metric in metrics}


def test_dashboards_and_alerts_ask_for_metrics_that_exist() -> None:
    with Broker(http_port=0) as broker:
        token = b64encode(b"guest:guest").decode()
        request = Request(f"{broker.http_url}/metrics", headers={"Authorization": f"Basic {token}"})
        with urlopen(request) as answer:
            live = set(re.findall(r"^# TYPE (\S+)", answer.read().decode(), re.MULTILINE))
    known = live | metrics_of_a_cluster()
    asked = list(expressions())
    for where, expression in asked:
        assert expression.count("(") == expression.count(")"), where
        assert set(METRIC.findall(expression)) <= known, where
    assert len(asked) > 40


def test_panels_of_a_dashboard_do_not_overlap() -> None:
    for path in (DEPLOY / "grafana").glob("*.json"):
        dashboard = json.loads(path.read_text())
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
            taken |= cells
        numbers = [panel["id"] for panel in dashboard["panels"]]
        assert len(numbers) == len(set(numbers))


def test_every_alert_is_explained() -> None:
    operating = (DEPLOY.parent / "docs" / "operating.md").read_text()
    text = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    for name in re.findall(r"alert: (\w+)", text):
        assert f"`{name}`" in operating, name


def promtool(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    return subprocess.run(
        ["promtool", "check", *arguments], input=given, capture_output=True, timeout=60
    )


def test_prometheus_takes_the_alert_rules() -> None:
    checked = promtool("rules", str(DEPLOY / "prometheus/alerts.yaml"))
    assert checked.returncode == 0, checked


@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object", "/metrics/detailed"])
def test_prometheus_takes_the_metrics(path: str) -> None:
    with Broker(http_port=0) as broker:
        request = Request(f"{broker.http_url}{path}")
        request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
        checked = promtool("metrics", given=urlopen(request).read())
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
