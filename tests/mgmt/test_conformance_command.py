"""`warren conformance`: which addresses it refuses."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from warren.compat_tests import runner
from warren.mgmt.conformance_command import conformance


def test_an_address_that_is_no_url_of_a_broker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(url: str, management: str | None, pytest_args: list[str]) -> int:
        asked.append(url)
        return 0

    monkeypatch.setattr(runner, "run", run)
    for url in ("nonsense", "", "http://there:15672", "amqp://", "amqp://there:port"):
        refused = CliRunner().invoke(conformance, [url])
        assert refused.exit_code == 2 and "Usage:" in refused.output, url
    assert CliRunner().invoke(conformance, ["amqp://there/%2F", "-k", "one"]).exit_code == 0
    assert asked == ["amqp://there/%2F"]
