"""How fast passwords can be guessed, and who has to wait for it."""

from __future__ import annotations

import tracemalloc

import pytest

from warren.core.access.login_throttle import (
    FORGIVEN_S,
    OF_ADDRESS_MAX,
    OF_NAME_MAX,
    REMEMBERED_MAX,
    REMEMBERED_S,
    LoginThrottle,
)

ANN = ("1.2.3.4", "ann")


@pytest.fixture
def throttle() -> LoginThrottle:
    return LoginThrottle()


def guesses(throttle: LoginThrottle, address: str, names: list[str], seconds: float) -> int:
    """How many passwords are looked at while somebody tries these names as fast as possible."""
    looked_at = 0
    now = 0.0
    while now < seconds:
        for name in names:
            if not throttle.waits(address, name, now):
                looked_at += 1
                throttle.failed(address, name, True, now)
        now += 0.5
    return looked_at


def test_a_name_is_guessed_some_twenty_times_a_minute(throttle: LoginThrottle) -> None:
    assert guesses(throttle, *ANN[:1], ["ann"], 600) <= OF_NAME_MAX + 600 / FORGIVEN_S + 1


def test_several_processes_together_let_no_more_guesses_pass_in_the_long_run() -> None:
    passed = sum(guesses(LoginThrottle(processes=3), ANN[0], ["ann"], 600) for _ in range(3))
    assert passed <= 3 * (OF_NAME_MAX + 1) + 600 / FORGIVEN_S


def test_many_names_are_guessed_no_faster(throttle: LoginThrottle) -> None:
    names = [f"user{number}" for number in range(200)]
    allowed = OF_ADDRESS_MAX + len(names) + 600 / FORGIVEN_S + 1
    assert guesses(throttle, "1.2.3.4", names, 600) <= allowed


def test_only_the_name_and_the_address_that_guess_have_to_wait(throttle: LoginThrottle) -> None:
    for _ in range(OF_NAME_MAX):
        assert not throttle.waits(*ANN, 100.0)
        throttle.failed(*ANN, True, 100.0)
    assert throttle.waits(*ANN, 100.0)
    assert not throttle.waits("1.2.3.5", "ann", 100.0)
    assert not throttle.waits("1.2.3.4", "bob", 100.0)
    assert not throttle.waits(*ANN, 100.0 + FORGIVEN_S)


def test_a_name_that_has_not_failed_gets_in_from_an_address_that_guesses(
    throttle: LoginThrottle,
) -> None:
    throttle.failed(*ANN, True, 0.0)
    for number in range(OF_ADDRESS_MAX):
        throttle.failed("1.2.3.4", str(number), False, 100.0)
    assert throttle.guesses("1.2.3.4", 100.0)
    assert throttle.waits(*ANN, 100.0)
    assert not throttle.waits("1.2.3.4", "bob", 100.0)
    assert not throttle.waits("9.9.9.9", "ann", 100.0)


def test_an_address_that_stops_guessing_is_as_free_as_before(throttle: LoginThrottle) -> None:
    for _ in range(5000):
        throttle.failed(*ANN, True, 100.0)
    assert throttle.waits(*ANN, 100.0)
    free_at = 100.0 + OF_ADDRESS_MAX * FORGIVEN_S
    for _ in range(OF_NAME_MAX - 1):
        throttle.failed(*ANN, True, free_at)
    assert not throttle.waits(*ANN, free_at)


def test_names_wait_with_their_address_for_an_hour_at_most(throttle: LoginThrottle) -> None:
    throttle.failed(*ANN, True, 0.0)
    for number in range(OF_ADDRESS_MAX):
        throttle.failed("1.2.3.4", str(number), True, REMEMBERED_S)
    assert not throttle.waits(*ANN, REMEMBERED_S)


def test_the_log_is_told_once(throttle: LoginThrottle) -> None:
    told = [throttle.failed(*ANN, True, number / 10) for number in range(100)]
    assert told.count(True) == 2 and told[OF_NAME_MAX - 1]
    later = 1000 + OF_ADDRESS_MAX * FORGIVEN_S
    assert any(throttle.failed(*ANN, True, later) for _ in range(OF_NAME_MAX))


def test_what_is_remembered_is_bounded(throttle: LoginThrottle) -> None:
    tracemalloc.start()
    for number in range(2 * REMEMBERED_MAX):
        throttle.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "ann", True, 1.0)
    octets, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert octets < 10_000_000


def test_names_that_do_not_exist_cannot_have_a_guess_forgotten(throttle: LoginThrottle) -> None:
    for _ in range(OF_NAME_MAX):
        throttle.failed(*ANN, True, 1.0)
    for number in range(2 * REMEMBERED_MAX):
        throttle.failed("1.2.3.4", f"made up {number}", False, 1.0)
    assert throttle.waits(*ANN, 1.0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:1.2.3.4", "1.2.3.4", True),
        ("::1", "127.0.0.1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("not:an:address", "not:another", False),
    ],
)
def test_addresses_that_one_owner_can_make_up_are_one(
    throttle: LoginThrottle, one: str, other: str, same: bool
) -> None:
    for _ in range(OF_NAME_MAX):
        throttle.failed(one, "ann", True, 1.0)
    assert throttle.waits(other, "ann", 1.0) is same
