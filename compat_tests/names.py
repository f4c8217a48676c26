"""Names no other test and no other run uses, and their removal when the test is over."""

from warren.compat_tests.broker import Broker
from warren.compat_tests.raw_client import RawClient


class Names:
    """Hands out names for one test. They are short, since a reply text has room for 255 bytes."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.given: list[str] = []

    def new(self) -> str:
        name = f"{self.prefix}.{len(self.given) + 1}"
        self.given.append(name)
        return name

    def remove_all(self, broker: Broker) -> None:
        """Deletes every queue and exchange of these names; what is missing does no harm."""
        if not self.given:
            return
        client = RawClient(broker).open()
        try:
            channel = client.channel()
            for name in self.given:
                channel.call("queue.delete", queue=name)
                channel.call("exchange.delete", exchange=name)
            client.close()
        finally:
            client.abandon()
