"""The TLS contexts of listeners, made from the configuration.

TLS 1.2 is the oldest version offered, even if the configuration names older ones.
"""

from __future__ import annotations

import ssl

from warren.config import SslOptions

VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


def server_context(options: SslOptions) -> ssl.SSLContext:
    """A context with these options. Raises OSError and `ssl.SSLError` for files and ciphers that
    cannot be used."""
    assert options.certfile is not None and options.keyfile is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    offered = [version for name, version in VERSIONS.items() if name in options.versions]
    if offered:
        context.minimum_version, context.maximum_version = min(offered), max(offered)
    # OpenSSL always offers the suites of TLS 1.3, whose names begin like this.
    ciphers = [name for name in options.ciphers if not name.startswith("TLS_")]
    if ciphers:
        context.set_ciphers(":".join(ciphers))
    if options.honor_cipher_order:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    if options.dhfile is not None:
        context.load_dh_params(str(options.dhfile))
    # Without a password, OpenSSL would ask on the terminal for that of an encrypted key.
    context.load_cert_chain(options.certfile, options.keyfile, password=options.password)
    if options.cacertfile is not None:
        context.load_verify_locations(options.cacertfile)
    if options.verify_peer:
        context.verify_mode = (
            ssl.CERT_REQUIRED if options.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
        )
    return context
