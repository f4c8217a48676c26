"""Health checks over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from api_client import EVERYTHING, NOT_FOUND, ApiClient, reason

from warren import Broker
from warren.config import Listener, SslOptions
from warren.core.resources.alarms import Resource

NODE = "warren@localhost"
OK = (200, {"status": "ok"})
LOOPBACK = (Listener("127.0.0.1", 0),)


def report(broker: Broker, resource: Resource, short: bool, node: str = NODE) -> None:
    broker.call(lambda of: of.alarms.report(resource, short, node))


# Alarms


def test_without_alarms_all_is_well(api: ApiClient) -> None:
    for check in ("health/checks/alarms", "health/checks/local-alarms", "healthchecks/node"):
        assert api.get(f"/{check}") == OK


def test_alarms(broker: Broker, api: ApiClient) -> None:
    report(broker, Resource.MEMORY, True, "other@host")
    report(broker, Resource.DISK, True)
    own = {"resource": "disk space", "node": NODE}
    other = {"resource": "memory", "node": "other@host"}
    try:
        told = "There are alarms in effect in the cluster"
        failed = {"status": "failed", "reason": told, "alarms": [other, own]}
        assert api.get("/health/checks/alarms") == (503, failed)
        told = "There are alarms in effect on the node"
        failed = {"status": "failed", "reason": told, "alarms": [own]}
        assert api.get("/health/checks/local-alarms") == (503, failed)
        told = f"resource alarm(s) in effect:[{{resource_limit,disk,{NODE}}}]"
        assert api.get("/healthchecks/node") == (503, {"status": "failed", "reason": told})
    finally:
        report(broker, Resource.MEMORY, False, "other@host")
        report(broker, Resource.DISK, False)


def test_the_alarm_of_a_fault(broker: Broker, api: ApiClient) -> None:
    report(broker, Resource.FAULT, True)
    try:
        status, answer = api.get("/health/checks/local-alarms")
        assert (status, answer["alarms"]) == (503, [{"resource": "internal error", "node": NODE}])
    finally:
        report(broker, Resource.FAULT, False)


def test_the_health_of_a_node(api: ApiClient) -> None:
    assert api.get(f"/healthchecks/node/{NODE}") == OK
    assert api.get("/healthchecks/node/other@host") == NOT_FOUND


# Listeners


def test_a_port_that_is_open(broker: Broker, api: ApiClient) -> None:
    for port in (broker.port, broker.http_port):
        assert api.get(f"/health/checks/port-listener/{port}") == (200, {**OK[1], "port": port})
    assert api.get("/health/checks/port-listener/1") == (
        503,
        {
            "status": "failed",
            "reason": "No active listener",
            "missing": 1,
            "ports": [broker.port, broker.http_port],
        },
    )
    assert reason(api.get("/health/checks/port-listener/x")) == (400, "Invalid port")


@pytest.mark.parametrize("name", ["amqp", "AMQP", "amqp091", "amqp0.9.1", "amqp0-9-1", "amqp1.0"])
def test_a_protocol_under_any_of_its_names(api: ApiClient, name: str) -> None:
    answer = api.get(f"/health/checks/protocol-listener/{name}")
    assert answer == (200, {"status": "ok", "protocol": "amqp"})


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("amqps", "amqp/ssl"),
        ("amqp%2Fssl", "amqp/ssl"),
        ("https", "https"),
        ("web-mqtt", "http/web-mqtt"),
        ("stomp1.2", "stomp"),
        ("mqtts", "mqtt/ssl"),
        ("bogus", "bogus"),
    ],
)
def test_a_protocol_that_is_not_served(api: ApiClient, name: str, shown: str) -> None:
    assert api.get(f"/health/checks/protocol-listener/{name}") == (
        503,
        {
            "status": "failed",
            "reason": "No active listener",
            "missing": shown,
            "protocols": ["amqp", "http"],
        },
    )


# Certificates


def certificate(directory: Path, expires: datetime) -> SslOptions:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", not_after=expires)
    files = SslOptions(directory / "ca.pem", directory / "cert.pem", directory / "cert.key")
    authority.cert_pem.write_to_path(files.cacertfile)
    assert files.certfile is not None and files.keyfile is not None
    issued.cert_chain_pems[0].write_to_path(files.certfile)
    issued.private_key_pem.write_to_path(files.keyfile)
    return files


def test_certificates_that_expire_soon(tmp_path: Path) -> None:
    expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=10)
    files = certificate(tmp_path, expires)
    options = {
        "tls_listeners": LOOPBACK,
        "ssl": files,
        "http_tls_listeners": LOOPBACK,
        "http_ssl": files,
    }
    with Broker(http_port=0, **options) as broker:
        api = ApiClient(broker)
        checks = "/health/checks/certificate-expiration"
        for well in ("9/days", "1/weeks", "0/months", "-1/years"):
            assert api.get(f"{checks}/{well}") == OK
        for soon in ("11/days", "2/weeks", "1/months", "1/years"):
            status, body = api.get(f"{checks}/{soon}")
            assert (status, body["reason"]) == (503, "Certificates expiring")
        amqp, https = body["expired"]
        assert (amqp["protocol"], amqp["port"]) == ("amqp/ssl", broker.tls_port)
        assert (amqp["node"], amqp["interface"]) == (NODE, "127.0.0.1")
        assert amqp["certfile"] == str(files.certfile)
        assert amqp["certfile_expires_on"] == [expires.strftime("%Y-%m-%d %H:%M:%S")]
        assert len(amqp["cacertfile_expires_on"]) == 1
        assert https["protocol"] == "https"


def test_a_certificate_that_was_removed(tmp_path: Path) -> None:
    files = certificate(tmp_path, datetime.now(UTC) + timedelta(days=100))
    with Broker(http_port=0, tls_listeners=LOOPBACK, ssl=files) as broker:
        assert files.certfile is not None
        files.certfile.unlink()
        status, body = ApiClient(broker).get("/health/checks/certificate-expiration/1/days")
        assert status == 503 and "Certificates cannot be read" in body["reason"]


def test_periods(api: ApiClient) -> None:
    checks = "/health/checks/certificate-expiration"
    assert api.get(f"{checks}/9999999999999/years") == OK
    assert reason(api.get(f"{checks}/x/days")) == (400, "Invalid expiration value.")
    assert reason(api.get(f"{checks}/{'9' * 400}/months")) == (400, "Invalid expiration value.")
    told = "Time unit not recognised. Supported units: days, weeks, months, years."
    assert reason(api.get(f"{checks}/1/bogus")) == (400, told)


# The node, and a message


def test_nothing_depends_on_a_single_node(api: ApiClient) -> None:
    for check in ("node-is-mirror-sync-critical", "node-is-quorum-critical"):
        answer = api.get(f"/health/checks/{check}")
        assert answer == (200, {"status": "ok", "reason": "single node cluster"})


def test_virtual_hosts(broker: Broker, api: ApiClient) -> None:
    assert api.get("/health/checks/virtual-hosts") == OK
    api.put("/vhosts/v1")
    lost = broker.call(lambda node: node.vhosts.pop("v1"))
    try:
        status, body = api.get("/health/checks/virtual-hosts")
        assert (status, body["virtual-hosts"]) == (503, ["v1"])
    finally:
        broker.call(lambda node: node.vhosts.update(v1=lost))
        api.delete("/vhosts/v1")


def test_a_message_passes(api: ApiClient) -> None:
    for _ in range(2):
        assert api.get("/aliveness-test/%2F") == OK
    row = api.get("/queues/%2F/aliveness-test")[1]
    assert (row["durable"], row["auto_delete"], row["messages"]) == (False, False, 0)
    api.delete("/queues/%2F/aliveness-test")


def test_a_message_that_does_not_pass(api: ApiClient) -> None:
    api.put("/policies/%2F/none", {"pattern": "^aliveness", "definition": {"max-length": 0}})
    status, body = api.get("/aliveness-test/%2F")
    api.delete("/policies/%2F/none")
    api.delete("/queues/%2F/aliveness-test")
    assert (status, body["status"]) == (503, "failed")


def test_a_queue_of_that_name_with_other_properties(api: ApiClient) -> None:
    api.put("/queues/%2F/aliveness-test", {"durable": True})
    status, body = api.get("/aliveness-test/%2F")
    api.delete("/queues/%2F/aliveness-test")
    assert status == 400 and "inequivalent arg 'durable'" in body["reason"]


@pytest.mark.parametrize("missing", ["configure", "write", "read"])
def test_aliveness_needs_the_permissions_of_a_client(
    broker: Broker, api: ApiClient, missing: str
) -> None:
    api.put("/users/ann", {"password": "ann", "tags": "administrator"})
    ann = ApiClient(broker, "ann")
    api.put("/permissions/%2F/ann", {**EVERYTHING, missing: "^$"})
    assert reason(ann.get("/aliveness-test/%2F")) == (401, "Access refused.")
    assert api.get("/queues/%2F") == (200, [])
    assert api.get("/aliveness-test/nope") == NOT_FOUND
    api.delete("/users/ann")
