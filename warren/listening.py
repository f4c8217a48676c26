"""The settings of a node's listeners, made from its configuration."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from warren.amqp.accepting import SocketOptions
from warren.amqp.peer import ConnectionSettings
from warren.amqp.proxy_preface import ProxyReader
from warren.amqp.server import TlsFiles
from warren.config import Config
from warren.core.messages.message import MESSAGE_SIZE_CAP
from warren.tls import server_context


def connection_settings(config: Config) -> ConnectionSettings:
    return ConnectionSettings(
        channel_max=config.channel_max,
        frame_max=config.frame_max,
        heartbeat_s=config.heartbeat_s,
        handshake_timeout_s=config.handshake_timeout_ms / 1000,
        max_message_size=min(config.max_message_size, MESSAGE_SIZE_CAP),
        consumer_timeout_s=(
            None if config.consumer_timeout_ms is None else config.consumer_timeout_ms / 1000
        ),
        default_prefetch=config.default_consumer_prefetch,
        mechanisms=tuple(config.auth_mechanisms),
    )


def socket_options(config: Config) -> SocketOptions:
    tcp = config.tcp
    return SocketOptions(
        nodelay=tcp.nodelay,
        keepalive=tcp.keepalive,
        send_buffer_bytes=tcp.send_buffer_bytes,
        receive_buffer_bytes=tcp.receive_buffer_bytes,
        linger_s=tcp.linger_s,
        shared_ports=config.process is not None,
    )


def tls_files(config: Config) -> TlsFiles:
    options = config.ssl
    assert options.certfile is not None and options.keyfile is not None
    context = server_context(options)
    return TlsFiles(context, Path(options.certfile), Path(options.keyfile), options.password)


def proxy_reader(config: Config) -> ProxyReader | None:
    """The reader of PROXY headers. It is loaded only if configured: its library costs start
    time."""
    if not config.proxy_protocol:
        return None
    reader: ProxyReader = import_module("warren.amqp.proxy_header").read_proxy_header
    return reader
