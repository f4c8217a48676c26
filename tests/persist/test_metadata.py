"""Metadata stores of a single node: the contract, and what the one on disk promises besides."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from definition_stores import Timers, open_store
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from metadata_contract import MetadataContract, Opened, keys, vhost

from warren.core.definitions.records import (
    BindingRecord,
    GlobalParameterRecord,
    PermissionRecord,
    QueueRecord,
    UserRecord,
)
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.field import Field, from_plain, to_plain
from warren.core.ports import Conflict, Key, MetadataStore, Precondition, Write
from warren.persist.definitions.database import DamagedMetadata, open_environment
from warren.persist.definitions.metadata import encode_key
from warren.persist.disk.data_directory import (
    DataDirectory,
    DirectoryInUse,
    NewerFormat,
    NotADataDirectory,
)
from warren.persist.disk.group_commit import SyncThread


class TestContract(MetadataContract):
    @pytest.fixture(params=["volatile", "lmdb"])
    def opened(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
        store: MetadataStore = VolatileMetadataStore()
        if request.param == "lmdb":
            store = open_store(tmp_path / "d")
        yield Opened(store, lambda: None)
        store.close()

    def test_a_key_made_anew_starts_at_version_one(self, opened: Opened) -> None:
        store = opened.store
        opened.put("a", "a")
        opened.transact([Write(("vhost", "a"), None)])
        assert store.get(("vhost", "a")) is None
        opened.put("a")
        stored = store.get(("vhost", "a"))
        assert stored is not None and stored.version == 1


KEY_PARTS = st.text(
    st.sampled_from("\x00\x01\x7f\u00ff\udcff\udc80\uffffab"), max_size=3
) | st.sampled_from(["q" * 255, "\udc80" * 255, "q" * 254 + "r", "n" * 480])


class StoreModel(RuleBasedStateMachine):
    """The store on disk against a dict, with reopening, which what is transient does not survive.

    What a key is when it is first written it stays until it is deleted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.store = open_store(Path(self.scratch.name), map_bytes_first=1 << 15)
        self.model: dict[Key, tuple[object, int]] = {}
        self.transient: set[Key] = set()

    def teardown(self) -> None:
        self.store.close()
        self.scratch.cleanup()

    @rule(
        writes=st.lists(
            st.tuples(KEY_PARTS, KEY_PARTS, st.none() | st.text(max_size=3), st.booleans()),
            max_size=4,
        ),
        expected=st.none() | st.tuples(KEY_PARTS, KEY_PARTS, st.integers(0, 2)),
    )
    def transact(
        self,
        writes: list[tuple[str, str, str | None, bool]],
        expected: tuple[str, str, int] | None,
    ) -> None:
        preconditions = []
        if expected is not None:
            user, name, version = expected
            preconditions.append(Precondition(("permission", user, name), version))
        changes = [
            Write(
                ("permission", user, name),
                None if pattern is None else PermissionRecord(pattern, "", "\udc80"),
                transient,
            )
            for user, name, pattern, transient in writes
        ]
        if any(self.version(key) != version for key, version in preconditions):
            with pytest.raises(Conflict):
                self.store.transact(changes, preconditions)
            return
        assert self.store.transact(changes, preconditions).done
        for key, record, transient in changes:
            if record is None:
                self.model.pop(key, None)
                self.transient.discard(key)
            else:
                if transient and key not in self.model:
                    self.transient.add(key)
                self.model[key] = (record, self.version(key) + 1)

    @rule()
    def reopen(self) -> None:
        for key in self.transient:
            del self.model[key]
        self.transient.clear()
        self.store.close()
        self.store = open_store(Path(self.scratch.name), map_bytes_first=1 << 15)

    @rule(user=KEY_PARTS)
    def look_under_a_prefix(self, user: str) -> None:
        wanted = sorted(key for key in self.model if key[1] == user)
        assert keys(self.store, ("permission", user)) == wanted
        assert self.store.keys(("permission", user)) == wanted

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert list(self.store.records(())) == [
            (key, record, version) for key, (record, version) in sorted(self.model.items())
        ]

    def version(self, key: Key) -> int:
        return self.model[key][1] if key in self.model else 0


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("first_transient", [True, False])
def test_a_definition_stays_what_it_was_first_written_as(
    tmp_path: Path, first_transient: bool
) -> None:
    """In the same transaction too, unless it is deleted in between."""
    written, anew = ("vhost", "written"), ("vhost", "anew")
    record = vhost()
    store = open_store(tmp_path)
    store.transact(
        [
            Write(written, record, first_transient),
            Write(written, record, not first_transient),
            Write(anew, record, first_transient),
            Write(anew, None),
            Write(anew, record, not first_transient),
        ]
    )
    store.close()
    store = open_store(tmp_path)
    assert keys(store, ()) == [anew if first_transient else written]
    store.close()


def test_every_kind_of_value_survives_reopening(tmp_path: Path) -> None:
    arguments = {
        "caf\udce9": Field("S", b"\xff\x00"),
        "nested": Field("F", {"d": Field("D", (2, -314)), "u": Field("L", -(2**63))}),
        "list": Field("A", [Field("V", None), Field("t", True), Field("d", 0.5)]),
    }
    queue: Key = ("queue", "/", "q\udcff")
    long_names = ("x" * 255, "queue", "y" * 255, "z" * 255)
    others: dict[Key, object] = {
        ("binding", "/", *long_names, "f"): BindingRecord({}),
        ("binding", "/", *long_names, "g"): BindingRecord({"a": 1}),
        ("user", "bob"): UserRecord(password_hash=b"\x00\xfe", tags=["management"]),
        ("global_parameter", "g"): GlobalParameterRecord({"a": [1, None, "\ud800 lone"]}),
    }
    store = open_store(tmp_path)
    store.transact([Write(key, record) for key, record in others.items()])
    store.transact([Write(queue, QueueRecord(auto_delete=True, arguments=to_plain(arguments)))])
    store.close()

    store = open_store(tmp_path)
    found = {key: record for key, record, _ in store.records(())}
    record = found.pop(queue)
    assert isinstance(record, QueueRecord) and record.auto_delete
    assert from_plain(record.arguments) == arguments
    assert found == others
    store.close()


def test_a_record_that_cannot_be_stored_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(OverflowError):
        store.transact(
            [
                Write(("vhost", "a"), vhost()),
                Write(("global_parameter", "g"), GlobalParameterRecord(2**64)),
            ]
        )
    assert keys(store) == []
    store.close()


@pytest.mark.parametrize("length", [1, 505, 506, 507, 508, 509, 510, 511, 512, 2000])
def test_no_key_is_longer_than_lmdb_takes(length: int) -> None:
    keys = {encode_key(("q" * length,)), encode_key(("q" * (length - 1) + "r",))}
    assert len(keys) == 2
    assert all(len(key) <= 511 for key in keys)


class TestCommits:
    """With a thread that works, and a loop that looks, when the test says so."""

    def test_a_commit_completes_on_the_loop_after_the_write(self, tmp_path: Path) -> None:
        jobs: list[Callable[[], None]] = []
        posted: list[Callable[[], None]] = []
        store = open_store(tmp_path, call_on_loop=posted.append, sync_thread=_Queued(jobs))
        commit = store.transact([Write(("vhost", "a"), vhost())])
        assert keys(store) == [("vhost", "a")], "visible at once"
        assert not commit.done and store.uncommitted() is commit
        jobs.pop()()
        assert not commit.done, "the thread never completes a commit itself"
        posted.pop()()
        assert commit.done and store.uncommitted() is None
        store.close()

    def test_what_comes_while_a_batch_is_written_shares_the_next(self, tmp_path: Path) -> None:
        jobs: list[Callable[[], None]] = []
        opened = _CountingOpener()
        store = open_store(
            tmp_path, sync_thread=_Queued(jobs), open_environment=opened.open_environment
        )
        order: list[int] = []
        for number in range(10):
            commit = store.transact([Write(("vhost", str(number)), vhost())])
            commit.then(lambda number=number: order.append(number))  # type: ignore[misc]
        assert len(jobs) == 1
        jobs.pop(0)()
        assert order == [0]
        jobs.pop(0)()
        assert order == list(range(10))
        assert jobs == []
        assert opened.write_transactions == 2
        store.close()

    def test_a_callback_that_raises_does_not_silence_the_others(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        jobs: list[Callable[[], None]] = []
        store = open_store(tmp_path, sync_thread=_Queued(jobs))
        called: list[str] = []
        commit = store.transact([Write(("vhost", "a"), vhost())])
        commit.then(lambda: {}["missing"])
        commit.then(lambda: called.append("second"))
        jobs.pop()()
        assert called == ["second"]
        assert "commit_callback_failed" in caplog.text
        store.close()

    def test_close_commits_what_is_pending(self, tmp_path: Path) -> None:
        jobs: list[Callable[[], None]] = []
        posted: list[Callable[[], None]] = []
        store = open_store(tmp_path, call_on_loop=posted.append, sync_thread=_Queued(jobs))
        first = store.transact([Write(("vhost", "a"), vhost())])
        jobs.pop()()
        second = store.transact([Write(("vhost", "b"), vhost())])
        store.close()
        assert first.done and second.done
        for late in posted:
            late()
        store = open_store(tmp_path)
        assert keys(store) == [("vhost", "a"), ("vhost", "b")]
        store.close()

    def test_on_a_real_loop_with_a_real_thread(self, tmp_path: Path) -> None:
        async def scenario() -> list[str]:
            loop = asyncio.get_running_loop()
            store = open_store(
                tmp_path,
                call_on_loop=loop.call_soon_threadsafe,
                sync_thread=SyncThread("metadata", print),
            )
            done: list[str] = []
            last = asyncio.Event()
            for number in range(200):
                name = f"{number:03}"
                commit = store.transact([Write(("vhost", name), vhost())])
                commit.then(lambda name=name: done.append(name))  # type: ignore[misc]
                if number % 10 == 0:
                    await asyncio.sleep(0)
            commit.then(last.set)
            await last.wait()
            store.close()
            return done

        assert asyncio.run(scenario()) == [f"{number:03}" for number in range(200)]
        store = open_store(tmp_path)
        assert len(keys(store)) == 200
        store.close()


class _Queued(SyncThread):
    """A sync thread whose jobs the test runs."""

    def __init__(self, jobs: list[Callable[[], None]]) -> None:
        self.jobs = jobs

    def run(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def close(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


class _CountingOpener:
    """Opens environments that count, and refuse as many write transactions as they are told."""

    def __init__(self) -> None:
        self.write_transactions = 0
        self.opened = 0
        self.refusals: list[Exception] = []

    def open_environment(self, path: Path, map_bytes: int) -> Any:
        self.opened += 1
        return _CountingEnvironment(self, open_environment(path, map_bytes))


class _CountingEnvironment:
    def __init__(self, opener: _CountingOpener, environment: lmdb.Environment) -> None:
        self.opener = opener
        self.environment = environment
        self.close = environment.close

    def begin(self, write: bool = False) -> Any:
        if write and self.opener.refusals:
            raise self.opener.refusals.pop(0)
        self.opener.write_transactions += write
        return self.environment.begin(write=write)


class TestFailingDisk:
    @pytest.mark.parametrize("error", [lmdb.DiskError("full"), OSError(5, "I/O error")])
    def test_a_commit_waits_until_the_disk_works_again(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
    ) -> None:
        caplog.set_level("INFO")
        timers = Timers()
        opener = _CountingOpener()
        store = open_store(tmp_path, timers, open_environment=opener.open_environment)
        opener.refusals = [error] * 9
        first = store.transact([Write(("vhost", "a"), vhost())])
        second = store.transact([Write(("vhost", "b"), vhost())])
        delays = []
        while timers.waiting:
            assert not first.done and not second.done
            assert store.uncommitted() is second
            delays.append(timers.fire())
        assert first.done and second.done
        assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
        assert opener.opened == 10, "LMDB is opened anew after each failure"
        lines = [record.getMessage().split()[0] for record in caplog.records]
        assert lines == ["metadata_write_failed", "metadata_write_recovered"]
        store.close()
        store = open_store(tmp_path)
        assert keys(store) == [("vhost", "a"), ("vhost", "b")]
        store.close()

    def test_close_gives_up_on_a_disk_that_never_works(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        timers = Timers()
        opener = _CountingOpener()
        store = open_store(tmp_path, timers, open_environment=opener.open_environment)
        opener.refusals = [lmdb.DiskError("full")] * 100
        commits = [store.transact([Write(("vhost", name), vhost())]) for name in "ab"]
        store.close()
        assert not any(commit.done for commit in commits)
        assert timers.waiting == []
        assert "metadata_lost transactions=2" in caplog.text

    def test_a_batch_the_file_system_refuses_is_kept(self, tmp_path: Path) -> None:
        """A real refusal: the file may not grow, then it may."""
        program = """
import resource, sys
from pathlib import Path
from warren.core.ports import Write
from warren.core.definitions.records import VirtualHostRecord
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.definitions.metadata import LmdbMetadataStore
retries = []
class Timer:
    def cancel(self): pass
def call_later(delay_s, callback):
    retries.append(callback)
    return Timer()
store = LmdbMetadataStore(
    DataDirectory.open(Path(sys.argv[1])), sync_thread=None,
    call_on_loop=lambda callback: callback(), call_later=call_later,
)
def write(name):
    return store.transact([Write(("vhost", name), VirtualHostRecord("d" * 100_000))])
assert write("before").done
size = (Path(sys.argv[1]) / "metadata" / "data.mdb").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
during = write("during")
for _ in range(3):
    assert not during.done
    retries.pop()()
assert not during.done
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
retries.pop()()
assert during.done
"""
        subprocess.run([sys.executable, "-P", "-c", program, tmp_path], check=True)
        store = open_store(tmp_path)
        assert keys(store) == [("vhost", "before"), ("vhost", "during")]
        store.close()


def test_the_map_grows_when_it_is_full(tmp_path: Path) -> None:
    store = open_store(tmp_path, map_bytes_first=1 << 15)
    written = vhost("d" * 10_000)
    store.transact([Write(("vhost", f"batch{n}"), written) for n in range(50)])
    for number in range(50):
        assert store.transact([Write(("vhost", f"single{number}"), written)]).done
    store.close()
    store = open_store(tmp_path, map_bytes_first=1 << 15)
    assert len(keys(store)) == 100
    store.close()


KILLED = """
import asyncio, sys
from pathlib import Path
from warren.core.ports import Write
from warren.core.definitions.records import VirtualHostRecord
from warren.persist.disk.data_directory import DataDirectory
from warren.persist.disk.group_commit import SyncThread
from warren.persist.definitions.metadata import LmdbMetadataStore

async def main():
    loop = asyncio.get_running_loop()
    store = LmdbMetadataStore(
        DataDirectory.open(Path(sys.argv[1])), sync_thread=SyncThread("metadata", print),
        call_on_loop=loop.call_soon_threadsafe, call_later=loop.call_later,
    )
    number = len(list(store.records(("vhost",))))
    while True:
        name = f"{number:06}"
        record = VirtualHostRecord(name)
        commit = store.transact([Write(("vhost", key), record) for key in (name, name + "b")])
        commit.then(lambda name=name: print(name, flush=True))
        number += 2
        await asyncio.sleep(0 if number % 7 else 0.001)

asyncio.run(main())
"""


def test_what_was_committed_survives_kill_9(tmp_path: Path) -> None:
    printed: set[str] = set()
    for lines in (1, 40, 300):
        with subprocess.Popen(
            [sys.executable, "-P", "-c", KILLED, tmp_path], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            printed |= {process.stdout.readline().strip() for _ in range(lines)}
            os.kill(process.pid, signal.SIGKILL)
            # The last line may be cut short by the kill.
            printed |= set(process.stdout.read().split("\n")[:-1])
        store = open_store(tmp_path)
        found = [name for _, name in keys(store)]
        store.close()
        assert "" not in printed and printed <= set(found)
        assert found == sorted(n for name in found[::2] for n in (name, name + "b")), "whole only"


class TestDataDirectory:
    def test_identity_stays_with_the_directory(self, tmp_path: Path) -> None:
        with DataDirectory.open(tmp_path / "deep" / "data") as directory:
            node_id = directory.node_id
        (tmp_path / "deep" / "data").rename(tmp_path / "moved")
        with DataDirectory.open(tmp_path / "moved") as directory:
            assert directory.node_id == node_id
        with DataDirectory.open(tmp_path / "other") as directory:
            assert directory.node_id != node_id

    def test_a_directory_in_use_is_refused(self, tmp_path: Path) -> None:
        store = open_store(tmp_path)
        with pytest.raises(DirectoryInUse, match="in use by another process"):
            open_store(tmp_path)
        store.close()
        open_store(tmp_path).close()

    def test_a_directory_in_use_by_another_process_is_refused(self, tmp_path: Path) -> None:
        program = (
            "import sys, pathlib; from warren.persist.disk.data_directory import DataDirectory\n"
            "directory = DataDirectory.open(pathlib.Path(sys.argv[1])); print('open', flush=True)\n"
            "sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-P", "-c", program, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            before = contents(tmp_path)
            with pytest.raises(DirectoryInUse):
                open_store(tmp_path)
            assert contents(tmp_path) == before
            process.kill()
        open_store(tmp_path).close()

    def test_a_newer_format_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "identity.json").write_text('{"format": 2, "node_id": "n", "new": 1}')
        before = contents(tmp_path)
        with pytest.raises(NewerFormat, match="has format 2, this version of Warren reads up to 1"):
            open_store(tmp_path)
        assert contents(tmp_path) == before

    def test_a_directory_of_something_else_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("years of work")
        before = contents(tmp_path)
        with pytest.raises(NotADataDirectory, match=r"holds other files \(thesis.tex\)"):
            open_store(tmp_path)
        assert contents(tmp_path) == before

    @pytest.mark.parametrize(
        "text", [b"", b"\x9d\x00", b"[]", b"{}", b'{"format": "1", "node_id": "n"}']
    )
    def test_an_identity_that_cannot_be_read_is_refused(self, tmp_path: Path, text: bytes) -> None:
        (tmp_path / "identity.json").write_bytes(text)
        with pytest.raises(NotADataDirectory):
            open_store(tmp_path)

    def test_a_file_is_not_a_data_directory(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(NotADataDirectory, match="is not a directory"):
            open_store(tmp_path / "file")

    def test_a_first_start_that_did_not_get_far_is_no_obstacle(self, tmp_path: Path) -> None:
        for name in ("lock", "identity.json.new"):
            (tmp_path / name).write_text("")
        open_store(tmp_path).close()


def contents(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in path.rglob("*") if entry.is_file()}


def test_a_full_disk_is_not_taken_for_damage(tmp_path: Path) -> None:
    def full(path: Path, map_bytes: int) -> Any:
        raise lmdb.DiskError(f"{path}: {os.strerror(errno.ENOSPC)}")

    with pytest.raises(OSError) as refused:
        open_store(tmp_path, open_environment=full)
    assert refused.value.errno == errno.ENOSPC
    assert not isinstance(refused.value, DamagedMetadata)
