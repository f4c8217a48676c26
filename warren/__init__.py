"""Warren: an AMQP 0-9-1 broker that RabbitMQ clients use unchanged.

This is the import package: the other houses are subpackages of it. Its own modules configure a node
and build it.

| where to look | for |
|---|---|
| `node`, `node_parts` | builds, runs and stops a node; begin here |
| `message_storage`, `message_traces`, `second_copy_thread` | what a node keeps on disk |
| `management`, `http_server` | statistics, HTTP and the control socket |
| `cluster`, `cluster_news`, `cluster_secret`, `etcd_access`, `link_certificates` | the cluster |
| `first_definitions`, `leaving` | joining a cluster with definitions; leaving it for good |
| `config`, `config_check` | the configuration, and checks of its files and ports |
| `rabbitmq_conf`, `conf_keys`, `conf_values`, `unused_keys`, `environment` | where it comes from |
| `listening`, `addresses`, `tls`, `open_files` | listeners, error texts for them, descriptors |
| `log_output`, `log_console` | the log |
| `faults`, `node_refused`, `expected_directory` | why a node ends or does not start |
| `clock`, `allocator`, `service_manager`, `extras` | clocks; memory; systemd; missing packages |
| `embedded`, `pytest_plugin` | a broker inside a Python process, for tests |
| `__main__` | the command `warren` |
"""

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
