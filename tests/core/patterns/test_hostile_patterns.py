"""What a pattern may cost, whoever set it: compiling it, searching it once, and searching often.

Costs are seconds of the processor, so that a busy machine makes no difference.
"""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Iterator
from threading import Event, Thread
from time import thread_time

import pytest

from warren.core.access.access_control import AccessControl, User
from warren.core.definitions.records import PermissionRecord, PolicyRecord, VirtualHostRecord
from warren.core.definitions.validation import ValidationFailed
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.errors import AccessRefused
from warren.core.patterns.matcher import BoundedMatcher
from warren.core.patterns.pattern import InvalidPattern, compile_pattern, compile_permission
from warren.core.patterns.stored_patterns import StoredPatterns
from warren.core.policies.policy import Policies
from warren.core.ports import Write

ONCE_S = 0.1
"""Far above what compiling and one search cost here, far below what they cost without a bound."""

OFTEN = 2000
OFTEN_S = 0.5
NAMES = ["a" * 255, "ab" * 127 + "!", "a" * 60 + "!", "".join("ab c."[i % 5] for i in range(255))]
SLOW = [
    "^" + "(?:a|a|aa)?" * 60 + "[!.]$",
    "^" + "(?:aa|a)?" * 30 + "$",
    "^" + "(?:aa|a)?" * 100 + "!",
    "(?:a|a)" * 100 + "[b!]$",
    "(?:a|a)" * 100 + "\\z.",
    "(?i)" + "(aa|A)?" * 40 + "[^a]$",
    "(a?){200}a{200}[b!]",
    "a?" * 250 + "a" * 250 + "[b!]",
    "(a+)+$",
    "((a|aa|aaa)(a|aa|aaa))+[b!]{2}",
    "^(.*?,){40}x",
    "(.*)(.*)(.*)(.*)(.*)[!]\\1\\2\\3!",
    "(?=((a|aa)+)$)[a!]",
    "(?:(?:[ab]+)*[ab]+)*[!c]$",
    "(?=((?<=a)|a|b)*[!]{2})" * 20 + "[b!]$",
    "((a{0,255}){0,255}){0,255}[!]{3}",
    "^((a|a)(a|a)(a|a)(a|a)(a|a))*$",
    "|".join(["a?" * 60 + "a" * 60 + "[!]"] * 5),
    "(?:(?:(?:(?:a*)*)*)*)*[^a]{3}",
    "([\x00-\uffff]?[\x00-\uffff]?){100}\x01",
]
PLAIN = [
    "a" * 4096,
    "|".join("a" * i for i in range(1, 85)) + "|b",
    "a|" * 2000 + "b",
    "^(" + "|".join(f"orders-{number}" for number in range(370)) + ")$",
    "|".join(f"[ab][a{number}]b" for number in range(10, 26)) + "|a" * 1000,
    "." * 2000 + ".*!",
    "." * 100 + "[a-b]*c",
]
TOO_LARGE = {
    "longer than all": "a" * 4097,
    "900 KB": "(?:aa|a)?" * 100_000,
    "many parts": "(?:aa|a)?" * 200,
    "repeated often": "(?:(?:(?:a{1000}){1000}){1000})",
    "repeated in steps": "(?:" * 12 + "ab" + "{9})" * 12,
    "nested": "(" * 60 + "a" + ")" * 60,
    "nested by options": "a(?i)" * 60,
    "options that are opened again": "(?i)" * 40 + "|" * 900,
    "a number of its own kind": "a{70000}",
    "many classes": "[ -\uffff]" * 300,
}


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """A full collection walks what all tests of this process left: 0.17 s after loading them."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("pattern", [*SLOW, *PLAIN], ids=lambda pattern: str(pattern)[:30])
def test_a_pattern_costs_little_however_often_it_is_searched(pattern: str) -> None:
    began = thread_time()
    compiled = compile_pattern(pattern)
    compiled.search(NAMES[0])
    assert thread_time() - began < ONCE_S
    for _ in range(OFTEN // len(NAMES)):
        for name in NAMES:
            compiled.search(name)
    assert thread_time() - began < OFTEN_S * (8 if pattern in PLAIN else 1)


@pytest.mark.parametrize("pattern", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_pattern_that_would_be_large_is_refused_at_once(pattern: str) -> None:
    began = thread_time()
    with pytest.raises(InvalidPattern) as invalid:
        compile_pattern(pattern)
    assert thread_time() - began < ONCE_S
    assert len(invalid.value.text) < 1000
    assert re.search("longer|large|deeply|too big", invalid.value.reason)


def test_ranges_of_rare_characters_compile_as_fast_as_others() -> None:
    began = thread_time()
    assert compile_pattern("^" + "[\x00-\uffff]?" * 100 + "$").search("queue \u4e2d")
    assert thread_time() - began < ONCE_S


@pytest.mark.parametrize("repeated", ["(a|b)?{e}", "^(q)+{i<=9}$", "(a){s}", "(a){,3}"])
def test_braces_that_are_no_number_are_themselves(repeated: str) -> None:
    try:
        compiled = compile_pattern(repeated)
    except InvalidPattern:
        return
    assert not compiled.search("xyz")
    assert compile_pattern("^(a){,3}$").search("a{,3}")


def test_the_engine_for_slow_patterns_knows_the_same_classes() -> None:
    both = compile_pattern(r"^(\w+)?(\w+)$")
    assert both.search("cafe")
    assert not both.search("caf\u00e9")
    assert not compile_pattern("(?i)^(\u00e9)?\u00e9$").search("\u00c9")
    assert compile_pattern("^([[a])?([&&b])?$").search("[&")


def test_a_pattern_that_used_up_its_time_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    compiled = compile_pattern("(a|a)+$", owner="policy 'p' of virtual host '/'")
    with caplog.at_level(logging.ERROR, "warren.policy"):
        for _ in range(100):
            assert not compiled.search("a" * 60 + "!")
    [line] = [record.getMessage() for record in caplog.records]
    assert "pattern_too_slow" in line and "policy 'p' of virtual host '/'" in line
    assert not compiled.search("a")


def test_time_that_searches_do_not_need_does_not_add_up() -> None:
    clock = [0.0]

    def find(text: str, left_s: float) -> object | None:
        took = float(text)
        clock[0] += took
        if took > left_s:
            raise TimeoutError
        return text

    bounded = BoundedMatcher(find, "x", None, cpu_s=lambda: clock[0])
    for _ in range(1000):
        assert bounded.search("0.00001")
    assert bounded.search("0.0029")
    assert not bounded.search("0.0029")
    assert not bounded.search("0.00001")


def test_a_pause_of_python_is_not_held_against_a_pattern() -> None:
    clock = [0.0]

    def find(text: str, left_s: float) -> object | None:
        clock[0] += float(text)
        return text

    bounded = BoundedMatcher(find, "x", None, cpu_s=lambda: clock[0])
    for _ in range(20):
        assert bounded.search("0.5")
        for _ in range(10):
            assert bounded.search("0.00001")
    assert not [one for one in range(10) if bounded.search("0.5")][5:]


def test_the_time_of_other_threads_is_not_held_against_a_pattern() -> None:
    stopped = Event()

    def work() -> None:
        while not stopped.is_set():
            sum(range(2000))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        pattern = compile_pattern(r"^(amq\.)?orders\.", owner="policy 'p' of virtual host '/'")
        assert all(pattern.search("orders.new") for _ in range(20_000))
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def test_a_search_that_ran_out_of_the_time_of_others_is_tried_again() -> None:
    clock = [0.0]
    timeouts = [None] * 20

    def find(text: str, left_s: float) -> object | None:
        clock[0] += 0.0001
        if timeouts:
            raise TimeoutError(timeouts.pop())
        return text

    assert BoundedMatcher(find, "x", None, cpu_s=lambda: clock[0]).search("q")
    timeouts[:] = [None] * 50
    assert not BoundedMatcher(find, "x", None, cpu_s=lambda: clock[0]).search("q")
    assert timeouts


def test_a_pattern_that_is_always_slower_than_it_may_be_runs_out_of_time() -> None:
    clock = [0.0]

    def find(text: str, left_s: float) -> object | None:
        clock[0] += 0.001
        return text

    bounded = BoundedMatcher(find, "x", None, cpu_s=lambda: clock[0])
    found = [bounded.search("q") for _ in range(20_000)]
    assert 0 < len([one for one in found if one is not None]) < 10


def test_patterns_of_the_store_are_compiled_when_they_are_needed() -> None:
    store = VolatileMetadataStore()
    store.transact([Write(("vhost", "/"), VirtualHostRecord())])
    pattern = "(?:aa|a)?" * 100
    store.transact(
        [Write(("permission", f"u{i}", "/"), PermissionRecord(pattern + str(i), "", ""))
         for i in range(1000)]
        + [Write(("policy", "/", f"p{i}"), PolicyRecord(pattern + str(i), "all", {}, 0))
           for i in range(1000)]
    )  # fmt: skip
    began = thread_time()
    AccessControl(store, random_bytes=bytes)
    policies = Policies(store)
    assert len(policies.of_vhost("/")) == len(list(policies.all())) == 1000
    assert thread_time() - began < 10 * ONCE_S


@pytest.mark.parametrize("pattern", ["a" * 900_000, "(?:aa|a)?" * 100_000, "("])
def test_a_stored_pattern_that_is_too_large_matches_nothing_and_is_named(
    pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = VolatileMetadataStore()
    store.transact(
        [
            Write(("vhost", "/"), VirtualHostRecord()),
            Write(("policy", "/", "long"), PolicyRecord(pattern, "all", {"max-length": 1}, 0)),
            Write(("permission", "bob", "/"), PermissionRecord("", pattern, ".*")),
        ]
    )
    access, policies = AccessControl(store, random_bytes=bytes), Policies(store)
    bob = User("bob", frozenset())
    began = thread_time()
    with caplog.at_level(logging.ERROR, "warren.policy"):
        for _ in range(100):
            assert policies.applied("/", "aaa", "queue").policy is None
            with pytest.raises(AccessRefused):
                access.check_resource(bob, "/", "queue", "aaa", "write")
    access.check_resource(bob, "/", "queue", "aaa", "read")
    assert thread_time() - began < ONCE_S
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "policy 'long' of virtual host '/'" in lines[0]
    assert "write permission of user 'bob' in virtual host '/'" in lines[1]
    assert all(len(line) < 1000 for line in lines)


def test_compiled_patterns_of_the_store_have_bounded_room() -> None:
    patterns = StoredPatterns(compile_permission)
    for number in range(600):
        assert patterns.matcher(f"^{'a' * 500}$|^{number}$", "x").search(str(number))
    assert 0 < patterns.characters <= StoredPatterns.CHARACTERS_MAX
    assert patterns.matcher("^q$", "x") is patterns.matcher("^q$", "x")


def test_policies_of_a_virtual_host_have_patterns_of_bounded_size() -> None:
    store = VolatileMetadataStore()
    store.transact([Write(("vhost", "/"), VirtualHostRecord())])
    policies = Policies(store)
    for number in range(16):
        policies.set("/", f"p{number}", "a" * 4096, {"max-length": 1})
    with pytest.raises(ValidationFailed) as refused:
        policies.set("/", "more", "a", {"max-length": 1})
    assert "65536 characters" in refused.value.text
    # One that is replaced does not count twice.
    policies.set("/", "p3", "a" * 4095, {"max-length": 2})
    policies.set("/", "more", "a", {"max-length": 1})
    policies.set("/", "more", "a" * 10, {"max-length": 1}, operator=True)
