"""The certificates with which the nodes of a cluster know each other on their links.

Each side shows one, and takes only those of the authority in `cacertfile`; who dials also expects
the host it dials in the certificate. Loaded only where links are encrypted.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from warren.config import SslOptions
from warren.core.log_line import log_event

log = logging.getLogger("warren.cluster")


class LinkCertificates:
    """The TLS contexts of this node's links, from files that may be renewed.

    Raises OSError, `ssl.SSLError` and ValueError for files that are no good.
    """

    def __init__(self, options: SslOptions) -> None:
        assert options.cacertfile is not None
        assert options.certfile is not None and options.keyfile is not None
        self._authority = Path(options.cacertfile)
        self._certificate = Path(options.certfile)
        self._key = Path(options.keyfile)
        self._seen = self._changed_at()
        self.server = self._context(ssl.PROTOCOL_TLS_SERVER)
        self.client = self._context(ssl.PROTOCOL_TLS_CLIENT)

    def reload(self) -> bool:
        """Read the files anew, for links that are made from now on; False if they are no good."""
        try:
            self._seen = self._changed_at()
            server = self._context(ssl.PROTOCOL_TLS_SERVER)
            client = self._context(ssl.PROTOCOL_TLS_CLIENT)
        except (OSError, ValueError) as error:
            log_event(
                log,
                logging.ERROR,
                "certificate_not_reloaded",
                file=self._certificate,
                key=self._key,
                authority=self._authority,
                error=error,
            )
            return False
        self.server, self.client = server, client
        return True

    @property
    def renewed(self) -> bool:
        """Whether the files have changed since they were read."""
        try:
            return self._changed_at() != self._seen
        except OSError:
            # In the middle of a renewal, perhaps; who reloads by hand is told.
            return False

    def _changed_at(self) -> tuple[int, ...]:
        files = (self._authority, self._certificate, self._key)
        return tuple(file.stat().st_mtime_ns for file in files)

    def _context(self, protocol: ssl._SSLMethod) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        # There is no older software among nodes.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self._authority)
        # Without a password OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(self._certificate, self._key, password="")
        return context
