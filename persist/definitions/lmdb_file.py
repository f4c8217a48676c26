"""Reads LMDB's file without mapping it, and says whether LMDB may.

LMDB trusts its file: a page number that leads out of it ends the process with SIGBUS, a damaged
page with an abort or worse. So the file is walked once, page by page, before LMDB opens it. The
walk takes for granted nothing that stands in the file; what it accepts, LMDB can follow.

Theory (LMDB 0.9, 64 bits, little-endian). A file is pages; each begins with its number, flags and
either two offsets (branches and leaves) or a count of pages (a large value). Pages 0 and 1 are
meta pages: transaction N writes page N mod 2, so they differ by one transaction, and the later one
counts. A meta page leads to the roots of two trees: the free pages, by transaction, and the
entries. Pages of the last two transactions are never changed.

    page:  number u64, pad u16, flags u16, lower u16, upper u16 | pages u32
    meta:  magic u32, version u32, address u64, size of the map u64, free tree, entries, last
           page u64, transaction u64; the pad of the free tree is the size of a page
    tree:  pad u32, flags u16, depth u16, branches u64, leaves u64, large u64, entries u64, root u64
    node:  low u16, high u16, flags u16, size of the key u16, key, value or page number
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = struct.Struct("<QHHHH")
PAGES = struct.Struct("<I")
PAGES_OFFSET = 12
META = struct.Struct("<IIQQ")
TREE = struct.Struct("<IHHQQQQQ")
LAST = struct.Struct("<QQ")
NODE = struct.Struct("<HHHH")
NUMBER = struct.Struct("<Q")

META_BYTES = META.size + 2 * TREE.size + LAST.size
MAGIC = 0xBEEFC0DE
VERSION = 1

BRANCH, LEAF, LARGE, META_PAGE = 1, 2, 4, 8
BIG_VALUE = 1
INTEGER_KEY = 8
NO_DIRECTORY = 0x4000
"""How the file was opened when it was made; LMDB keeps it beside the flags of the free tree."""
NO_PAGE = (1 << 64) - 1
KEY_BYTES_MAX = 511
PAGE_BYTES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
DEPTH_MAX = 32
"""LMDB's own limit."""


class DamagedLmdb(Exception):
    """The file is not what LMDB writes; the text says where and how."""


class Tree(NamedTuple):
    pad: int
    flags: int
    depth: int
    branches: int
    leaves: int
    large: int
    entries: int
    root: int


class Meta(NamedTuple):
    """A state of the file."""

    page_bytes: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int


def check_lmdb(path: Path) -> None:
    """Raises `DamagedLmdb` unless LMDB can open the file and follow it. OSError."""
    with LmdbFile(path) as file:
        meta = file.newest()
        walk = Walk(file, meta)
        for _ in walk.entries(meta.main):
            pass
        walk.check_totals(meta.main)
        for key, value in walk.entries(meta.free):
            walk.check_free(key, value)
        walk.check_totals(meta.free)


class LmdbFile:
    """An open file; nothing is kept of it in memory."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size

    def __enter__(self) -> LmdbFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def newest(self) -> Meta:
        """The state that LMDB would take. Raises `DamagedLmdb`."""
        newest, older = self.states()
        if isinstance(newest, DamagedLmdb):
            raise newest
        if isinstance(older, DamagedLmdb):
            raise older
        if newest.transaction - older.transaction != bool(newest.transaction):
            raise DamagedLmdb(
                f"the meta pages are of transactions {newest.transaction} and {older.transaction}"
            )
        return newest

    def states(self) -> tuple[Meta | DamagedLmdb, Meta | DamagedLmdb]:
        """The last two, the later one first; damaged ones last."""
        first = self._meta(0, 0)
        page_bytes = first.page_bytes if isinstance(first, Meta) else os.sysconf("SC_PAGESIZE")
        second = self._meta(1, page_bytes)
        if isinstance(second, DamagedLmdb):
            return first, second
        if isinstance(first, DamagedLmdb) or second.transaction > first.transaction:
            return second, first
        return first, second

    def _meta(self, number: int, page_bytes: int) -> Meta | DamagedLmdb:
        try:
            return self._read_meta(number, page_bytes)
        except DamagedLmdb as damage:
            return damage

    def _read_meta(self, number: int, page_bytes: int) -> Meta:
        data = self.read(number * page_bytes, PAGE.size + META_BYTES)
        if len(data) < PAGE.size + META_BYTES:
            raise DamagedLmdb(f"it ends in meta page {number}, after {self.size} octets")
        its_number, _, flags, _, _ = PAGE.unpack_from(data)
        magic, version, _, _ = META.unpack_from(data, PAGE.size)
        if (its_number, flags, magic, version) != (number, META_PAGE, MAGIC, VERSION):
            raise DamagedLmdb(f"page {number} is no meta page")
        offset = PAGE.size + META.size
        free = Tree(*TREE.unpack_from(data, offset))
        main = Tree(*TREE.unpack_from(data, offset + TREE.size))
        last_page, transaction = LAST.unpack_from(data, offset + 2 * TREE.size)
        if free.pad not in PAGE_BYTES or (number and free.pad != page_bytes):
            raise DamagedLmdb(f"meta page {number} says that a page has {free.pad} octets")
        if free.flags & ~NO_DIRECTORY != INTEGER_KEY or main.flags:
            raise DamagedLmdb(f"meta page {number} has unknown flags")
        if transaction and transaction % 2 != number:
            raise DamagedLmdb(f"meta page {number} is of transaction {transaction}")
        return Meta(free.pad, free, main, last_page, transaction)


class Walk:
    """One walk over the trees of a state.

    Without `damaged` the first damage is raised. With it, it is called with each damage, and what
    the damaged page leads to is passed over.
    """

    def __init__(
        self, file: LmdbFile, meta: Meta, damaged: Callable[[DamagedLmdb], None] | None = None
    ) -> None:
        self._file = file
        self._meta = meta
        self._damaged = damaged
        self._seen: set[int] = set()
        self._counts = [0, 0, 0, 0]
        self._last_key: bytes | None = None
        self._integer_keys = False

    def entries(self, tree: Tree) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, in order. May raise `DamagedLmdb`."""
        self._counts = [0, 0, 0, 0]
        self._last_key = None
        self._integer_keys = bool(tree.flags & INTEGER_KEY)
        if tree.root == NO_PAGE:
            return
        if not 0 < tree.depth <= DEPTH_MAX:
            self._report(DamagedLmdb(f"a tree has {tree.depth} levels"))
            return
        yield from self._below(tree.root, tree.depth)

    def check_totals(self, tree: Tree) -> None:
        """To be called after `entries`. Raises `DamagedLmdb`."""
        found = tuple(self._counts)
        wanted = (tree.branches, tree.leaves, tree.large, tree.entries)
        if found != wanted:
            raise DamagedLmdb(f"the meta page counts {wanted} pages and entries, there are {found}")
        if tree.root == NO_PAGE and tree.depth:
            raise DamagedLmdb("a tree without a root has levels")

    def check_free(self, key: bytes, value: bytes) -> None:
        """Check an entry of the free tree, after the entries were walked. Raises `DamagedLmdb`."""
        count = NUMBER.unpack_from(value)[0] if len(value) >= NUMBER.size else -1
        if len(key) != NUMBER.size or not 0 <= count <= len(value) // NUMBER.size - 1:
            raise DamagedLmdb("the list of free pages is damaged")
        before = self._meta.last_page + 1
        for at in range(1, count + 1):
            (number,) = NUMBER.unpack_from(value, at * NUMBER.size)
            if not 1 < number < before or number in self._seen:
                raise DamagedLmdb(f"page {number} is in the list of free pages where it cannot be")
            before = number

    def _report(self, damage: DamagedLmdb) -> None:
        if self._damaged is None:
            raise damage
        self._damaged(damage)

    def _below(self, number: int, depth: int) -> Iterator[tuple[bytes, bytes]]:
        try:
            page, pointers = self._page(number, LEAF if depth == 1 else BRANCH)
            if depth > 1:
                children = self._children(number, page, pointers)
        except DamagedLmdb as damage:
            self._report(damage)
            return
        if depth > 1:
            self._counts[0] += 1
            for child in children:
                yield from self._below(child, depth - 1)
            return
        self._counts[1] += 1
        for pointer in pointers:
            try:
                yield self._entry(number, page, pointer)
            except DamagedLmdb as damage:
                self._report(damage)

    def _take(self, number: int, count: int = 1) -> int:
        """The offset of pages that nothing else leads to. Raises `DamagedLmdb`."""
        page_bytes = self._meta.page_bytes
        last = number + count - 1
        if number < 2 or last > self._meta.last_page or (last + 1) * page_bytes > self._file.size:
            raise DamagedLmdb(
                f"page {last} is wanted, and the file has {self._file.size // page_bytes} pages"
            )
        pages = range(number, last + 1)
        if not self._seen.isdisjoint(pages):
            raise DamagedLmdb(f"two ways lead to page {number}")
        self._seen.update(pages)
        return number * page_bytes

    def _page(self, number: int, kind: int) -> tuple[bytes, tuple[int, ...]]:
        """A page, and the offsets of its nodes, which are in it. Raises `DamagedLmdb`."""
        page_bytes = self._meta.page_bytes
        page = self._file.read(self._take(number), page_bytes)
        if len(page) < page_bytes:
            raise DamagedLmdb(f"page {number} cannot be read")
        its_number, _, flags, lower, upper = PAGE.unpack_from(page)
        if its_number != number or flags != kind:
            raise DamagedLmdb(f"page {number} says it is page {its_number}, flags {flags:x}")
        if not PAGE.size <= lower <= upper <= page_bytes or lower % 2:
            raise DamagedLmdb(f"page {number} has its nodes at {lower} to {upper}")
        pointers = struct.unpack_from(f"<{(lower - PAGE.size) // 2}H", page, PAGE.size)
        occupied = 0
        for pointer in pointers:
            if not upper <= pointer <= page_bytes - NODE.size:
                raise DamagedLmdb(f"page {number} has a node at {pointer}")
            low, high, node_flags, key_bytes = NODE.unpack_from(page, pointer)
            size = NODE.size + key_bytes
            if kind == LEAF:
                if node_flags & ~BIG_VALUE or not 0 < key_bytes <= KEY_BYTES_MAX:
                    raise DamagedLmdb(f"page {number} has a node with a wrong key or flags")
                size += NUMBER.size if node_flags else low | high << 16
            if pointer + size > page_bytes:
                raise DamagedLmdb(f"a node of page {number} ends behind it")
            occupied += size + size % 2
        if not pointers or occupied != page_bytes - upper:
            raise DamagedLmdb(f"the nodes of page {number} do not fill it")
        return page, pointers

    def _comes_before(self, key: bytes, other: bytes) -> bool:
        """Whether the tree has `key` before `other`; transaction 256 comes behind 255."""
        if self._integer_keys:
            return int.from_bytes(key, "little") < int.from_bytes(other, "little")
        return key < other

    def _children(self, number: int, page: bytes, pointers: tuple[int, ...]) -> list[int]:
        if len(pointers) < 2:
            raise DamagedLmdb(f"page {number} is a branch with one way")
        children = []
        before = b""
        for place, pointer in enumerate(pointers):
            low, high, flags, key_bytes = NODE.unpack_from(page, pointer)
            start = pointer + NODE.size
            key = page[start : start + key_bytes]
            # The first key of a branch stands for everything below the second.
            if place > 1 and not self._comes_before(before, key):
                raise DamagedLmdb(f"the keys of page {number} are out of order")
            before = key
            children.append(low | high << 16 | flags << 32)
        return children

    def _entry(self, number: int, page: bytes, pointer: int) -> tuple[bytes, bytes]:
        low, high, flags, key_bytes = NODE.unpack_from(page, pointer)
        start = pointer + NODE.size
        key = page[start : start + key_bytes]
        if self._last_key is not None and not self._comes_before(self._last_key, key):
            raise DamagedLmdb(f"the keys of page {number} are out of order")
        size = low | high << 16
        start += key_bytes
        if flags:
            value = self._large(NUMBER.unpack_from(page, start)[0], size)
        else:
            value = page[start : start + size]
        self._last_key = key
        self._counts[3] += 1
        return key, value

    def _large(self, number: int, size: int) -> bytes:
        """A value on pages of its own. Raises `DamagedLmdb`."""
        page_bytes = self._meta.page_bytes
        wanted = -(-(PAGE.size + size) // page_bytes)
        if number > self._meta.last_page or number * page_bytes > self._file.size - PAGE.size:
            raise DamagedLmdb(f"page {number} is wanted, and the file does not have it")
        head = self._file.read(number * page_bytes, PAGE.size)
        its_number, _, flags, _, _ = PAGE.unpack_from(head)
        (count,) = PAGES.unpack_from(head, PAGES_OFFSET)
        # A value written over a longer one keeps its pages.
        if its_number != number or flags != LARGE or count < wanted:
            raise DamagedLmdb(f"page {number} is not the large value it should be")
        offset = self._take(number, count)
        value = self._file.read(offset + PAGE.size, size)
        if len(value) < size:
            raise DamagedLmdb(f"page {number} cannot be read")
        self._counts[2] += count
        return value
