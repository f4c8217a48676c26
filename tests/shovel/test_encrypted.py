"""Shovels over TLS: who is trusted, and logins by certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import trustme
from moving import End, until

from warren import Broker
from warren.config import Listener, SslOptions


class Files:
    """An authority, another one, and what it issued, as files."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.authority, self.other = directory / "ca.pem", directory / "other.pem"
        authority.cert_pem.write_to_path(self.authority)
        trustme.CA().cert_pem.write_to_path(self.other)
        self.server = self._write(directory / "server", authority.issue_cert("127.0.0.1"))
        issued = authority.issue_cert("shovel.example", common_name="shovel")
        self.client = self._write(directory / "client", issued)

    @staticmethod
    def _write(path: Path, issued: trustme.LeafCert) -> tuple[Path, Path]:
        certificate, key = path.with_suffix(".pem"), path.with_suffix(".key")
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        return certificate, key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def broker(files: Files) -> Iterator[Broker]:
    certificate, key = files.server
    ssl = SslOptions(
        cacertfile=files.authority, certfile=certificate, keyfile=key, verify_peer=True
    )
    with Broker(
        http_port=0,
        tls_listeners=(Listener("127.0.0.1", 0),),
        ssl=ssl,
        ssl_cert_login_from="common_name",
        auth_mechanisms=("PLAIN", "EXTERNAL"),
    ) as running:
        running.add_user("shovel", "unused")
        running.set_permissions("shovel")
        yield running


@pytest.fixture
def end(broker: Broker) -> Iterator[End]:
    with End(broker) as one:
        yield one


def set_shovel(end: End, login: str = "", **query: object) -> None:
    """From this broker within to itself over TLS."""
    asked = urlencode({name: str(value) for name, value in query.items()})
    end.shovel(
        "s",
        {
            "src-uri": "amqp://",
            "src-queue": "a",
            "dest-uri": f"amqps://{login}127.0.0.1:{end.broker.tls_port}?{asked}",
            "dest-queue": "b",
            "reconnect-delay": 0.05,
        },
    )


def test_broker_that_is_trusted_gets_the_messages(end: End, files: Files) -> None:
    end.declare("a")
    end.publish("a", "x")
    set_shovel(end, cacertfile=files.authority, verify="verify_peer")
    assert end.bodies("b", 1) == ["x"]
    assert end.row("s")["dest_uri"] == f"amqps://127.0.0.1:{end.broker.tls_port}"


def test_broker_that_is_not_trusted_gets_nothing(end: End, files: Files) -> None:
    set_shovel(end, cacertfile=files.other, verify="verify_peer")
    row = until(lambda: (row := end.row("s")).get("reason") and row)
    assert row["state"] == "starting"
    assert "CERTIFICATE_VERIFY_FAILED" in row["reason"]


def test_name_in_the_certificate_counts_unless_it_is_disabled(end: End, files: Files) -> None:
    query = {"cacertfile": files.authority, "verify": "verify_peer"}
    set_shovel(end, **query, server_name_indication="another.example")
    row = until(lambda: (row := end.row("s")).get("reason") and row)
    assert "CERTIFICATE_VERIFY_FAILED" in row["reason"]
    set_shovel(end, **query, server_name_indication="disable")
    end.until_state("s", "running")


def test_certificate_of_the_shovel_logs_in(end: End, files: Files) -> None:
    certificate, key = files.client
    set_shovel(end, certfile=certificate, keyfile=key, auth_mechanism="external")
    end.until_state("s", "running")
    users = {row["user"] for row in end.api.get("/connections")[1]}
    assert "shovel" in users


def test_file_that_is_missing_is_told(end: End, files: Files) -> None:
    set_shovel(end, cacertfile="/nowhere/ca.pem", verify="verify_peer")
    row = until(lambda: (row := end.row("s")).get("reason") and row)
    assert "No such file" in row["reason"]
