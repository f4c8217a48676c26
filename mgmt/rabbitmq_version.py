"""The release of RabbitMQ whose behaviour Warren has; clients choose features by it."""

from typing import Final

RABBITMQ_VERSION: Final = "3.10.8"
