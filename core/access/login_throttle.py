"""Who has to wait before the next login: one rule for AMQP and HTTP.

Failed logins are counted by address and name, and by address. Each count falls by one every
`FORGIVEN_S`.

- An address that has failed `OF_NAME_MAX` times with a name has to wait before it may try that name
  again; other addresses need not, and neither does this one with other names.
- An address that has failed `OF_ADDRESS_MAX` times tries many names. It has to wait with every name
  that it has failed with in the last `REMEMBERED_S`. A name that has not failed from there may be
  tried once: so those who share a proxy with a guesser get in with the right password.

So an address has some 20 guesses a minute in the long run, and one more for each name an hour. One
name that many addresses guess is not protected by this: to lock it would lock its user out.

Each process of a broker counts what fails there. So with N processes a count falls N times slower,
and all of them together let as many guesses pass in the long run as one process would.

A client that has to wait is refused before the password is looked at, and that does not count. What
is remembered is bounded: the names that failed longest ago are forgotten first, and an address that
has to wait adds no names that do not exist.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from warren.core.access.access_control import LoginRefused

OF_NAME_MAX = 20
"""Failed logins of a name from an address that are free."""

OF_ADDRESS_MAX = 60
"""The same for all names together: more than clients with a forgotten password need that start
together behind one proxy."""

FORGIVEN_S = 3.0
"""A count falls by one every so many seconds: 20 guesses a minute. For a broker of one process."""

REMEMBERED_S = 3600.0
"""How long a name that failed waits with the others, while its address guesses."""

REMEMBERED_MAX = 20_000
"""Addresses, and names of addresses, that are remembered: some 6 MB."""

NETWORK_BITS = 64
"""Bits of an address of IPv6 that count: its owner can make up the others."""


class LoginThrottled(LoginRefused):
    """The address has to wait, for `wait_s` at most; whether the password is right is not said."""

    def __init__(self, user: str, wait_s: float) -> None:
        super().__init__(user, "too many failed logins")
        self.wait_s = wait_s


@dataclass(slots=True)
class _Failures:
    """The count of failures was `count` at the moment `at`. `told`: the log has said that there is
    a wait."""

    count: float
    at: float
    told: bool = False


class LoginThrottle:
    """The failed logins. Times are seconds on the node's clock. A name that is None stands for all
    names of an address.

    `processes` is the number of processes of the broker; `forgiven_s` the seconds in which a count
    falls by one.
    """

    def __init__(self, processes: int = 1) -> None:
        self.forgiven_s = FORGIVEN_S * processes
        self._failures: OrderedDict[tuple[str, str | None], _Failures] = OrderedDict()

    def waits(self, address: str, name: str, now: float) -> bool:
        """Whether the address has to wait before it may try this name again: up to `forgiven_s`."""
        if not self._failures:
            return False
        network = _network(address)
        if self._count((network, name), now) > OF_NAME_MAX - 1:
            return True
        failed = self._failures.get((network, name))
        return failed is not None and now - failed.at < REMEMBERED_S and self.guesses(address, now)

    def guesses(self, address: str, now: float) -> bool:
        """Whether the address has to wait with each name it has failed with."""
        return self._count((_network(address), None), now) > OF_ADDRESS_MAX - 1

    def failed(self, address: str, name: str, known: bool, now: float) -> bool:
        """A password was wrong; `known` says whether there is a user of that name. True when this
        is what makes the address wait, for the first time since its count was 0."""
        network = _network(address)
        if not known and self.guesses(address, now):
            return False
        begins = [
            self._add((network, name), OF_NAME_MAX, now),
            self._add((network, None), OF_ADDRESS_MAX, now),
        ]
        while len(self._failures) > REMEMBERED_MAX:
            self._failures.popitem(last=False)
        return any(begins)

    def _add(self, who: tuple[str, str | None], limit: int, now: float) -> bool:
        """Count a failure, up to the limit: no wait gets longer than for one to be forgiven."""
        before = self._count(who, now)
        told = before > 0 and self._failures[who].told
        failures = _Failures(min(before + 1, limit), now, told)
        self._failures[who] = failures
        self._failures.move_to_end(who)
        begins = failures.count > limit - 1 and not told
        failures.told = told or begins
        return begins

    def _count(self, who: tuple[str, str | None], now: float) -> float:
        failures = self._failures.get(who)
        if failures is None:
            return 0.0
        return max(0.0, failures.count - (now - failures.at) / self.forgiven_s)


def _network(address: str) -> str:
    """The part of an address that its owner cannot choose freely."""
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{int(parsed) >> (128 - NETWORK_BITS):x}::"
