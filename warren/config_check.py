"""What `warren server --check-config` finds out beyond the words of a configuration: its files."""

from __future__ import annotations

import ssl

from warren.config import Config, SslOptions


def file_problems(config: Config) -> list[str]:
    """Files the configuration names that a node could not use."""
    problems = []
    for key, listeners, options in (
        ("ssl_options", config.tls_listeners, config.ssl),
        ("management.ssl", config.http_tls_listeners, config.http_ssl),
    ):
        if listeners:
            problems += _certificate_problems(key, options)
    if config.cluster is not None and config.cluster.link_ssl is not None:
        problems += _certificate_problems("cluster.links.ssl", config.cluster.link_ssl)
    if config.load_definitions is not None and not config.load_definitions.exists():
        problems.append(f"load_definitions: {config.load_definitions} does not exist")
    if config.log_file is not None and not config.log_file.parent.is_dir():
        problems.append(f"log.file: the directory {config.log_file.parent} does not exist")
    return problems


def _certificate_problems(key: str, options: SslOptions) -> list[str]:
    assert options.certfile is not None and options.keyfile is not None
    problems = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(options.certfile, options.keyfile, password="")
    except (OSError, ValueError) as error:
        problems.append(
            f"{key}: {options.certfile} with the key {options.keyfile} cannot be used: {error}"
        )
    if options.cacertfile is not None:
        try:
            context.load_verify_locations(options.cacertfile)
        except OSError as error:
            problems.append(f"{key}.cacertfile: {options.cacertfile} cannot be used: {error}")
    return problems
