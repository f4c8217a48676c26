"""What holds for all tests: which of them run together, and that nothing depends on time.

How long an example of hypothesis takes says nothing on a busy machine.
"""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a module stay together, and those that use Spark: starting one takes seconds."""
    for item in items:
        uses_spark = "spark" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("spark" if uses_spark else str(item.path)))
