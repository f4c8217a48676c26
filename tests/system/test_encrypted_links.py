"""Links between the nodes of a real cluster over TLS, with certificates on both sides."""

from __future__ import annotations

import re
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from failover import put_policy
from reserved_port import reserve_port
from running_cluster import ClusterProcess, RunningCluster, publish, take, wait_until
from warren_command import run_warren

KEYS = ("cacertfile", "certfile", "keyfile")


class Certificates:
    """The files of one node, issued by an authority for an address."""

    def __init__(self, directory: Path, name: str) -> None:
        self.files = {key: directory / f"{name}-{key}.pem" for key in KEYS}

    def issue(self, authority: trustme.CA, host: str = "127.0.0.1") -> None:
        issued = authority.issue_cert(host)
        issued.private_key_pem.write_to_path(self.files["keyfile"])
        first, *others = issued.cert_chain_pems
        first.write_to_path(self.files["certfile"])
        for other in others:
            other.write_to_path(self.files["certfile"], append=True)
        authority.cert_pem.write_to_path(self.files["cacertfile"])

    @property
    def config(self) -> str:
        return "".join(f"cluster.links.ssl.{key} = {path}\n" for key, path in self.files.items())

    def serial_shown_at(self, port: int) -> str:
        """The serial number of the certificate that the node shows who has one, too."""
        context = ssl.create_default_context(cafile=str(self.files["cacertfile"]))
        context.load_cert_chain(self.files["certfile"], self.files["keyfile"])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            shown = secured.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


StartCluster = Callable[..., RunningCluster]


def start(
    start_cluster: StartCluster, tmp_path: Path, authority: trustme.CA, *names: str
) -> tuple[RunningCluster, Certificates]:
    certificates = Certificates(tmp_path, "all")
    certificates.issue(authority)
    return start_cluster(*names, more=certificates.config), certificates


def link_port(node: ClusterProcess) -> int:
    """Start it anew at a port that is known."""
    port = reserve_port(node)
    node.stop()
    node.config = node.config.replace("port_range.min = 0", f"port_range.min = {port}")
    node.start()
    return port


def lines(node: ClusterProcess, event: str, *parts: str) -> list[str]:
    """The lines of its log about something."""
    return [
        line
        for line in node.log.splitlines()
        if f" {event} " in line and all(part in line for part in parts)
    ]


def test_a_mirrored_queue_fails_over_in_a_cluster_with_encrypted_links(
    start_cluster: StartCluster, tmp_path: Path, authority: trustme.CA
) -> None:
    cluster, certificates = start(start_cluster, tmp_path, authority, "a", "b", "c")
    a, b = cluster["a"], cluster["b"]
    put_policy(a, "ha", "^ha", {"ha-mode": "all"})
    a.connect().channel().queue_declare("ha", durable=True)
    wait_until(lambda: len(b.in_sync("ha")) == 2)
    theirs = b.connect().channel()
    theirs.confirm_delivery()
    publish(theirs, "ha", [b"%d" % number for number in range(100)])
    a.close_connections()
    a.kill()
    b.until_queue("ha", lambda row: row.get("node") != a.name)
    publish(theirs, "ha", [b"after"])
    assert take(theirs, "ha", 101) == [*(b"%d" % number for number in range(100)), b"after"]
    # What is on the wire is TLS, and nothing but.
    port = link_port(cluster["c"])
    assert certificates.serial_shown_at(port)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        plain.sendall(b"\x00WARREN\n" + bytes(33))
        heard = b""
        while piece := plain.recv(4096):
            heard += piece
    # An alert, or nothing at all.
    assert b"WARREN" not in heard and heard[:1] in (b"", b"\x15")


def test_who_has_a_wrong_certificate_or_none_gets_no_link_and_one_line_says_why(
    start_cluster: StartCluster, tmp_path: Path, authority: trustme.CA
) -> None:
    cluster, _ = start(start_cluster, tmp_path, authority, "a", "b")
    a = cluster["a"]

    def stranger(name: str, config: str) -> ClusterProcess:
        node = cluster.new_node(name, config)
        node.start()
        return node

    without = re.sub("cluster.links.ssl.*\n", "", cluster.config)
    other = Certificates(tmp_path, "other")
    other.issue(trustme.CA())
    for name, config, said in (
        ("plain", without, "the peer speaks TLS, and this node does not"),
        ("other", without + other.config, "certificate verify failed"),
    ):
        node = stranger(name, config)
        wait_until(
            lambda: any(said in line for each in (a, node) for line in each.log.splitlines())  # noqa: B023
        )
        assert a.name not in node.linked() and node.name not in a.linked()
        assert "Traceback" not in node.log + a.log
        for line in lines(node, "link_tls_failed") + lines(a, "link_tls_failed"):
            assert " detail=" in line and "_ssl.c" not in line
        node.stop()
        # The cluster goes on.
        cluster.wait_until_linked("a", "b")


def test_certificates_of_links_are_among_those_that_expire(
    start_cluster: StartCluster, tmp_path: Path, authority: trustme.CA
) -> None:
    cluster, certificates = start(start_cluster, tmp_path, authority, "a")
    listed = cluster["a"].ctl("certificates")
    shown = [line for line in listed.splitlines() if "(clustering)" in line]
    assert len(shown) == 2
    assert str(certificates.files["certfile"]) in shown[0]


def test_certificates_are_read_anew_on_sighup(
    start_cluster: StartCluster, tmp_path: Path, authority: trustme.CA
) -> None:
    cluster, certificates = start(start_cluster, tmp_path, authority, "a", "b")
    a, b = cluster["a"], cluster["b"]
    port = link_port(a)
    cluster.wait_until_linked("a", "b")
    before = certificates.serial_shown_at(port)
    ups = len(lines(b, "link_up"))
    # Another authority altogether, and files that are no good in between.
    certificates.files["keyfile"].write_text("no key")
    a.signal(signal.SIGHUP)
    wait_until(lambda: lines(a, "certificate_not_reloaded", "all-certfile.pem"))
    certificates.issue(trustme.CA())
    for node in (a, b):
        node.signal(signal.SIGHUP)
    # Its own certificates are those of the files, and they are taken.
    wait_until(lambda: shown(certificates, port) not in ("", before))
    # Who was linked stays so, and a node that comes back links with the new ones.
    assert len(lines(b, "link_up")) == ups
    b.stop()
    b.start()
    cluster.wait_until_linked("a", "b")
    for one, other in ((a, b), (b, a)):
        assert not lines(one, "link_tls_failed", other.name, "certificate")


def shown(certificates: Certificates, port: int) -> str:
    """Nothing while the node still goes by the authority before."""
    try:
        return certificates.serial_shown_at(port)
    except ssl.SSLError:
        return ""


@pytest.mark.parametrize(
    "damage", ["a key of another certificate", "a missing file", "no authority"]
)
def test_files_that_are_no_good_keep_a_node_from_its_cluster_in_one_line(
    start_cluster: StartCluster, tmp_path: Path, authority: trustme.CA, damage: str
) -> None:
    cluster, _ = start(start_cluster, tmp_path, authority, "a")
    bad = Certificates(tmp_path, "bad")
    bad.issue(authority)
    if damage == "a key of another certificate":
        authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(bad.files["keyfile"])
    elif damage == "a missing file":
        bad.files["certfile"].unlink()
    else:
        bad.files["cacertfile"].write_text("nothing")
    config = re.sub("cluster.links.ssl.*\n", "", cluster.config) + bad.config
    node = cluster.new_node("bad", config)
    said = node.fails()
    assert said.startswith("warren: the links of this node cannot be encrypted: cluster.links.ssl")
    assert "bad-certfile.pem" in said
    # It has not become a member either.
    assert cluster["a"].asks("control", "members")["members"] == [cluster["a"].name]
    # And a look at the configuration alone says it as well.
    file = tmp_path / "bad.conf"
    file.write_text(config)
    done = run_warren("server", "--check-config", "--config", file)
    assert done.returncode == 2
    assert "error: cluster.links.ssl" in done.stdout and done.stdout.count("\n") == 1
