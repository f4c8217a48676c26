"""What holds for all tests: which of them run together, and that nothing depends on time.

How long an example of hypothesis takes says nothing on a busy machine.
"""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


class SparkTogether(LoadFileScheduling):
    """Tests of a module run in one process; those of all modules that use Spark do, since starting
    one takes seconds, and half a gigabyte."""

    def _split_scope(self, nodeid: str) -> str:
        module: str = super()._split_scope(nodeid)
        return "spark" if _uses_spark(self.config.rootpath / module) else module


@cache
def _uses_spark(module: Path) -> bool:
    return "SparkSession" in module.read_text(encoding="utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkTogether | None:
    # Groups of xdist (loadgroup) are lost with pytest 9.2.
    return SparkTogether(config, log) if config.getvalue("dist") == "loadfile" else None
