"""The release of RabbitMQ that Warren behaves like; clients choose features by it."""

from typing import Final

RABBITMQ_VERSION: Final = "3.10.8"
