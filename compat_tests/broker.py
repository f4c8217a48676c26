"""The address of the broker under test, as given by `--broker`."""

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/%2F"


@dataclass(frozen=True)
class Broker:
    host: str
    port: int
    user: str
    password: str
    vhost: str

    def __str__(self) -> str:
        """The address without the password, for messages to people."""
        return f"amqp://{self.user}@{self.host}:{self.port} (vhost {self.vhost!r})"


def parse_url(url: str) -> Broker:
    """Reads `amqp://user:pw@host:port/vhost`; a missing path means the vhost `/`."""
    parts = urlsplit(url)
    if parts.scheme != "amqp" or not parts.hostname:
        raise ValueError(f"wanted amqp://user:password@host:port/vhost, got {url!r}")
    return Broker(
        host=parts.hostname,
        port=parts.port or 5672,
        user=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        vhost=unquote(parts.path[1:]) or "/",
    )
