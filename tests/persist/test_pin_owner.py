"""Whether the process for which a snapshot stands has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from warren.persist.snapshots.pin_owner import Owner, decode_owner, has_ended, owner_of


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    yield process
    process.kill()
    process.communicate()


def test_a_process_has_ended_when_it_is_gone(child: subprocess.Popen[bytes]) -> None:
    owner = owner_of(child.pid)
    assert owner is not None and owner.pid == child.pid
    assert not has_ended(owner)
    child.communicate(b"\n")
    assert has_ended(owner)
    assert owner_of(child.pid) is None


def test_another_process_under_the_same_number_is_not_the_owner() -> None:
    own = owner_of(os.getpid())
    assert own is not None and not has_ended(own)
    assert has_ended(own._replace(started=own.started - 1))


def test_of_another_boot_or_container_nothing_is_known(child: subprocess.Popen[bytes]) -> None:
    owner = owner_of(child.pid)
    assert owner is not None
    child.communicate(b"\n")
    assert not has_ended(owner._replace(where="elsewhere"))


def test_what_was_written_is_read_and_nothing_else_is_an_owner() -> None:
    owner = Owner(17, 4711, "here")
    assert decode_owner([*owner]) == owner
    for other in (None, [], [1, 2], ["1", 2, "x"], {"pid": 1}, [0, 1, "x"], [-1, 1, "x"], "abc"):
        assert decode_owner(other) is None
