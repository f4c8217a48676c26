"""LMDB's file is looked at before it is mapped: what is damaged never gets that far."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random

import lmdb
import pytest

from warren.persist.definitions.lmdb_file import DamagedLmdb, LmdbFile, Meta, Walk, check_lmdb

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
MAP_BYTES = 1 << 30


@contextmanager
def opened(path: Path) -> Iterator[lmdb.Environment]:
    with closing(lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=0)) as environment:
        yield environment


def entries(path: Path) -> dict[bytes, bytes]:
    with LmdbFile(path / "data.mdb") as file:
        meta = file.newest()
        return dict(Walk(file, meta).entries(meta.main))


@pytest.mark.parametrize("seed", range(8))
def test_every_state_of_a_file_is_accepted_and_read_as_lmdb_reads_it(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    model: dict[bytes, bytes] = {}
    with opened(tmp_path) as environment:
        check_lmdb(tmp_path / "data.mdb")
        for _ in range(random.choice((1, 2, 40))):
            with environment.begin(write=True) as transaction:
                for _ in range(random.choice((1, 10, 200))):
                    key = (b"%d" % random.randrange(1000) * random.choice((1, 1, 25)))[:511]
                    if random.random() < 0.6:
                        size = random.choice((0, 1, 51, 150, 150, 3000, 20_000))
                        model[key] = random.randbytes(size)
                        transaction.put(key, model[key])
                    else:
                        transaction.delete(key)
                        model.pop(key, None)
            check_lmdb(tmp_path / "data.mdb")
    assert entries(tmp_path) == model


@pytest.mark.parametrize("reader", [False, True])
def test_free_pages_are_listed_in_the_order_of_their_transactions(
    tmp_path: Path, reader: bool
) -> None:
    """Their keys are little-endian numbers: octet by octet, 256 comes before 255.

    A reader that stays keeps all free pages listed, so that the tree of free pages has branches.
    """
    with opened(tmp_path) as environment, ExitStack() as stays:
        for number in range(800):
            with environment.begin(write=True) as transaction:
                transaction.put(b"%d" % number, b"v" * 100)
            if number == 0 and reader:
                stays.enter_context(environment.begin())
            check_lmdb(tmp_path / "data.mdb")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Two levels, large values, free pages."""
    with opened(tmp_path) as environment:
        for size in (100, 100, 6000, 90):
            with environment.begin(write=True) as transaction:
                for number in range(150):
                    transaction.put(b"key %03d" % number, b"%03d" % number * (size // 3))
        with environment.begin(write=True) as transaction:
            transaction.put(b"large", bytes(3 * PAGE_BYTES))
    return tmp_path


def test_a_file_cut_anywhere_is_refused_or_whole(filled: Path) -> None:
    path = filled / "data.mdb"
    whole = path.read_bytes()
    kept = entries(filled)
    refused = 0
    for size in [*range(0, len(whole), PAGE_BYTES), *range(1, len(whole), 7 * PAGE_BYTES)]:
        path.write_bytes(whole[:size])
        try:
            check_lmdb(path)
        except DamagedLmdb:
            refused += 1
        else:
            # Only pages nobody needs were at the end.
            assert entries(filled) == kept
    assert refused > 10


FOLLOW = """
import sys
from contextlib import closing
from pathlib import Path
import lmdb
from warren.persist.definitions.lmdb_file import DamagedLmdb, check_lmdb
path, flips = Path(sys.argv[1]), [int(at) for at in sys.argv[2].split(",")]
whole = (path / "data.mdb").read_bytes()
refused = 0
for bit in flips:
    octets = bytearray(whole)
    octets[bit // 8] ^= 1 << bit % 8
    (path / "data.mdb").write_bytes(octets)
    try:
        check_lmdb(path / "data.mdb")
    except DamagedLmdb:
        refused += 1
        continue
    try:
        opened = lmdb.open(str(path), map_size=1 << 30, max_dbs=0, sync=False)
        with closing(opened) as environment:
            with environment.begin() as transaction:
                list(transaction.cursor())
            for value in (b"x" * 200, b"y" * 9000, None):
                with environment.begin(write=True) as transaction:
                    for number in range(0, 200, 3):
                        key = b"key %03d" % number
                        if value is None:
                            transaction.delete(key)
                        else:
                            transaction.put(key, value)
    except lmdb.Error:
        continue
print(refused)
"""


def test_with_any_bit_flipped_lmdb_is_kept_from_the_file_or_survives_it(filled: Path) -> None:
    random = Random(1)
    size = (filled / "data.mdb").stat().st_size
    heads = [
        8 * (page + offset) + bit
        for page in range(0, size, PAGE_BYTES)
        for offset in random.sample(range(160), 6)
        for bit in random.sample(range(8), 2)
    ]
    metas = [
        8 * (page + offset) + bit
        for page in (0, PAGE_BYTES)
        for offset in range(152)
        for bit in (random.randrange(8),)
    ]
    anywhere = [random.randrange(8 * size) for _ in range(150)]
    flips = ",".join(map(str, [*random.sample(heads, min(len(heads), 400)), *metas, *anywhere]))
    command = [sys.executable, "-P", "-c", FOLLOW, str(filled), flips]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done
    assert int(done.stdout) > 150


def test_the_state_before_is_there_when_the_last_one_is_damaged(filled: Path) -> None:
    path = filled / "data.mdb"
    before = entries(filled)
    with opened(filled) as environment:
        with environment.begin(write=True) as transaction:
            transaction.put(b"key 000", b"changed")
    with LmdbFile(path) as file:
        meta = file.newest()
    octets = bytearray(path.read_bytes())
    # The magic of the later meta page.
    octets[PAGE_BYTES * (meta.transaction % 2) + 16] ^= 1
    path.write_bytes(octets)
    with pytest.raises(DamagedLmdb):
        check_lmdb(path)
    with LmdbFile(path) as file:
        older, damage = file.states()
        assert isinstance(older, Meta) and isinstance(damage, DamagedLmdb)
        assert dict(Walk(file, older).entries(older.main)) == before


def test_what_is_whole_is_found_beside_what_is_damaged(filled: Path) -> None:
    path = filled / "data.mdb"
    before = entries(filled)
    octets = bytearray(path.read_bytes())
    damages: list[DamagedLmdb] = []
    with LmdbFile(path) as file:
        meta = file.newest()
        # All pages with this key: free ones are not looked at.
        for at in range(0, len(octets) - 7):
            if octets[at : at + 7] == b"key 070":
                octets[at // PAGE_BYTES * PAGE_BYTES + 10] ^= 0x40
    path.write_bytes(octets)
    with LmdbFile(path) as file:
        found = dict(Walk(file, meta, damages.append).entries(meta.main))
    assert damages and b"key 070" not in found
    assert found.items() < before.items() and len(found) > 50
