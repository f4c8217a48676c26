"""The network interfaces of the machine, as the system describes them."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

SYSTEM = Path("/sys/class/net")
IPV6_ADDRESSES = Path("/proc/net/if_inet6")

GET_ADDRESS = 0x8915
GET_NETMASK = 0x891B
REQUEST = struct.Struct("16s16s8x")
"""The request of the ioctl: the name of an interface, and room for an address."""

FLAGS = {0x1: "up", 0x2: "broadcast", 0x8: "loopback", 0x40: "running", 0x1000: "multicast"}


def network_interfaces() -> dict[str, list[dict[str, str]]]:
    """Hardware address, flags and IP addresses by interface.

    A fact that the system does not tell is empty or left out.
    """
    ipv6 = _ipv6_addresses()
    found: dict[str, list[dict[str, str]]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in sorted(socket.if_nameindex(), key=lambda pair: pair[1]):
            flags = int(_read(SYSTEM / name / "flags") or "0", 16)
            facts = [
                {"hwaddr": _read(SYSTEM / name / "address")},
                {"flags": ", ".join(word for bit, word in FLAGS.items() if flags & bit)},
            ]
            address = _ask(asking, GET_ADDRESS, name)
            if address is not None:
                facts.append({"addr": address, "netmask": _ask(asking, GET_NETMASK, name) or ""})
            facts += [{"addr": one} for one in ipv6.get(name, [])]
            found[name] = facts
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _ask(asking: socket.socket, what: int, name: str) -> str | None:
    request = REQUEST.pack(name.encode(), b"")
    try:
        answer = fcntl.ioctl(asking.fileno(), what, request)
    except OSError:
        return None
    # The address comes after a family and a port of two octets each.
    return socket.inet_ntoa(answer[20:24])


def _ipv6_addresses() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in _read(IPV6_ADDRESSES).splitlines():
        digits, *_, name = line.split()
        found.setdefault(name, []).append(str(ipaddress.IPv6Address(bytes.fromhex(digits))))
    return found
