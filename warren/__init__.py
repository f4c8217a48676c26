"""Warren: an AMQP 0-9-1 broker that RabbitMQ clients use unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Broker", "BrokerFaults", "__version__"]

if TYPE_CHECKING:
    from warren.embedded import Broker, BrokerFaults


def __getattr__(name: str) -> Any:
    """`from warren import Broker` loads the broker; importing a subpackage does not."""
    if name in ("Broker", "BrokerFaults"):
        from warren import embedded

        return getattr(embedded, name)
    raise AttributeError(f"module 'warren' has no attribute {name!r}")
