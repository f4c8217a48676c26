"""The certificates by which the nodes of a cluster identify each other on their links.

Each side presents one, and accepts only certificates of the authority in `cacertfile`; the dialling
side also requires the host that it dials in the certificate. Loaded only if links are encrypted.
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

    Raises OSError, `ssl.SSLError` and ValueError for files that cannot be used.
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
        """Read the files again, for links made from now on; False if they cannot be used."""
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
            # Perhaps a renewal is going on. A reload by hand reports the error.
            return False

    def _changed_at(self) -> tuple[int, ...]:
        files = (self._authority, self._certificate, self._key)
        return tuple(file.stat().st_mtime_ns for file in files)

    def _context(self, protocol: ssl._SSLMethod) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        # All nodes are recent enough for TLS 1.3.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self._authority)
        # Without a password, OpenSSL would ask on the terminal for that of an encrypted key.
        context.load_cert_chain(self._certificate, self._key, password="")
        return context
