"""Lists: filtered, sorted, cut into pages and columns (management_api.md section 1.1).

A list may have 100,000 queues. So its items are objects of the broker at first, and only those in
the answer are turned into JSON. To sort by a column, only that column is computed if there is a
function for it (`Listing.keys`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Generic, TypeVar

from warren.core.patterns.matcher import TooSlow
from warren.core.patterns.pattern import InvalidPattern, PatternTooLarge, compile_pattern
from warren.mgmt.http.errors import ApiError, BadRequest
from warren.mgmt.http.request import ApiRequest, boolean
from warren.mgmt.http.slices import CHUNK, chunks, first_sorted

T = TypeVar("T")

PAGE_SIZE_MAX = 500
DEFAULT_PAGE_SIZE = 100
ASKED_AT_ONCE = 500
"""Rows for which other nodes are asked in one call: as many as the longest page has."""

PAGINATION_INVALID = "Pagination parameters are invalid"

Row = dict[str, Any]


@dataclass(frozen=True)
class Listing(Generic[T]):
    """How objects of one kind are listed.

    `row` makes the JSON of one object, `name` gives the text that filters match. `keys` compute
    single columns without the rest of the row; `paged` says whether pages are offered. `plain`
    makes rows without samples, for sorting.
    """

    row: Callable[[T], Row]
    name: Callable[[T], str]
    keys: Mapping[str, Callable[[T], Any]] = field(default_factory=dict)
    paged: bool = True
    plain: Callable[[T], Row] | None = None
    order: Callable[[T], Any] | None = None
    """The sort key of the default order; None if the items come in that order."""
    rows: Callable[[list[T]], Awaitable[list[Row]]] | None = None
    """Makes several rows at once, where other nodes have to be asked."""
    values: Callable[[Sequence[T], str], Awaitable[Callable[[T], Any]]] | None = None
    """Finds a column of all items, to sort by it, where other nodes have to be asked."""


@dataclass(frozen=True)
class ListPage:
    """The part of a list that is wanted. `number` counts from 1; None is the whole list."""

    number: int | None
    size: int
    pattern: Callable[[str], object] | None = None

    @classmethod
    def of(cls, request: ApiRequest) -> ListPage:
        """Read the page from the query; its other parameters only count with `page`.

        Raises `BadRequest`.
        """
        query = request.http.query
        if "page" not in query:
            return EVERYTHING
        try:
            number = int(query["page"])
            size = int(query.get("page_size", DEFAULT_PAGE_SIZE))
        except ValueError as error:
            raise BadRequest(PAGINATION_INVALID) from error
        if number < 1 or not 1 <= size <= PAGE_SIZE_MAX:
            shown = query.get("page_size", "undefined")
            raise BadRequest(
                f"Invalid pagination parameters: page number {number}, page size {shown}",
                "invalid_pagination_parameters",
            )
        return cls(number, size, _pattern(query.get("name", ""), query.get("use_regex", "")))


EVERYTHING = ListPage(None, 0)


def _pattern(name: str, use_regex: str) -> Callable[[str], object] | None:
    if not name:
        return None
    if use_regex == "true":
        try:
            return compile_pattern(name, ignore_case=True, strict=True).search
        except PatternTooLarge as error:
            raise BadRequest(f"{PAGINATION_INVALID}: {error.text}") from error
        except InvalidPattern as error:
            raise BadRequest(PAGINATION_INVALID) from error
    wanted = name.lower()
    return lambda text: wanted in text.lower()


async def answer(
    request: ApiRequest, items: Iterable[T], listing: Listing[T]
) -> Row | AsyncIterator[list[Row]]:
    """A page, or the whole list in chunks. The items come in the default order."""
    page = ListPage.of(request) if listing.paged else EVERYTHING
    candidates = items if isinstance(items, Sequence) else list(items)
    if page.number is None:
        return _all(request, await _sorted(request, candidates, listing, len(candidates)), listing)
    chosen = candidates
    if page.pattern is not None:
        try:
            chosen = [
                item
                async for chunk in chunks(candidates)
                for item in chunk
                if page.pattern(listing.name(item))
            ]
        except TooSlow as error:
            raise BadRequest("the regular expression takes too long to match") from error
    pages = -(-len(chosen) // page.size)
    start = (page.number - 1) * page.size
    # As in RabbitMQ, the page after a full last page is empty, and no error.
    if start > len(chosen):
        raise BadRequest(
            f"Page out of range, page: {page.number} page size: {page.size}, len: {len(chosen)}",
            "page_out_of_range",
        )
    ordered = await _sorted(request, chosen, listing, start + page.size)
    shown = ordered[start : start + page.size]
    rows: AsyncIterator[list[Row]] | list[Row] = _all(request, shown, listing)
    if not asks_for_samples(request):
        rows = [row async for chunk in _all(request, shown, listing) for row in chunk]
    return {
        "total_count": len(candidates),
        "item_count": len(shown),
        "filtered_count": len(chosen),
        "page": page.number,
        "page_size": page.size,
        "page_count": pages,
        "items": rows,
    }


async def answer_rows(request: ApiRequest, rows: Iterable[Row]) -> Row | AsyncIterator[list[Row]]:
    """The answer of a list that is never paged, from rows made before."""
    return await answer(request, rows, _ROWS)


def answer_row(request: ApiRequest, row: Row) -> Row:
    """The answer for a single object."""
    return chosen_columns(row, columns_of(request))


_ROWS: Listing[Row] = Listing(row=lambda row: row, name=lambda row: "", paged=False)

NAMED_ROWS: Listing[Row] = Listing(row=lambda row: row, name=lambda row: str(row["name"]))
"""A paged list of rows that several nodes have made."""


async def _all(
    request: ApiRequest, items: Iterable[T], listing: Listing[T]
) -> AsyncIterator[list[Row]]:
    columns = columns_of(request)
    if listing.rows is not None:
        async for chunk in chunks(items, ASKED_AT_ONCE):
            rows = [chosen_columns(row, columns) for row in await listing.rows(chunk)]
            async for part in chunks(rows, rows_at_once(request)):
                yield part
        return
    async for chunk in chunks(items, rows_at_once(request)):
        yield [chosen_columns(listing.row(item), columns) for item in chunk]


def asks_for_samples(request: ApiRequest) -> bool:
    """Whether rows are to have samples: such a row takes some milliseconds, and 50 KB."""
    return any(name.endswith("_age") for name in request.http.query)


def rows_at_once(request: ApiRequest) -> int:
    """How many rows are made before the time is checked again."""
    return 1 if asks_for_samples(request) else CHUNK


async def _sorted(
    request: ApiRequest, items: Sequence[T], listing: Listing[T], count: int
) -> Sequence[T]:
    column = request.query("sort")
    try:
        reverse = boolean(request.http.query.get("sort_reverse", False))
    except BadRequest as error:
        raise ApiError(400, "bad_request", "sort_reverse should be true or false") from error
    if not column:
        if listing.order is not None:
            return await first_sorted(items, listing.order, reverse=reverse, count=count)
        return items[::-1] if reverse else items
    if listing.values is not None:
        value = await listing.values(items, column)
    elif column in listing.keys:
        value = listing.keys[column]
    else:
        return await _sorted_by_row(items, column_of(listing, column), reverse, count)
    return await first_sorted(
        items, lambda item: sort_key(value(item)), reverse=reverse, count=count
    )


async def _sorted_by_row(
    items: Sequence[T], value: Callable[[T], Any], reverse: bool, count: int
) -> Sequence[T]:
    """The first `count` items, ordered by a value of their rows. Each row is made once."""
    keyed = [(sort_key(value(item)), item) async for chunk in chunks(items) for item in chunk]
    ordered = await first_sorted(keyed, itemgetter(0), reverse=reverse, count=count)
    return [item for _, item in ordered]


def column_of(listing: Listing[T], column: str) -> Callable[[T], Any]:
    """A function that finds one column of an item; its path may lead into the row."""
    return listing.keys.get(column) or _from_row(listing.plain or listing.row, column)


def _from_row(row: Callable[[T], Row], column: str) -> Callable[[T], Any]:
    path = column.split(".")
    return lambda item: _at(row(item), path)


def sort_key(value: Any) -> tuple[int, Any]:
    """Sorts missing values first, then by type, so that any two can be compared."""
    if value is None:
        return (0, 0)
    if isinstance(value, bool | int | float):
        return (1, value)
    return (2, value if isinstance(value, str) else str(value))


ALL_COLUMNS = {"columns": ""}
"""Added to the query for another node: it answers with all columns, and this node chooses."""


def columns_of(request: ApiRequest) -> list[list[str]]:
    """The columns asked for, each as a path; an empty list means all."""
    wanted = request.query("columns")
    return [column.split(".") for column in wanted.split(",")] if wanted else []


def chosen_columns(row: Row, columns: list[list[str]]) -> Row:
    """The row with these columns only, nested as in the whole row."""
    if not columns:
        return row
    chosen: Row = {}
    for path in columns:
        value = _at(row, path)
        if value is None and not _has(row, path):
            continue
        inner = chosen
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
    return chosen


def _at(row: Any, path: list[str]) -> Any:
    for part in path:
        if not isinstance(row, dict):
            return None
        row = row.get(part)
    return row


def _has(row: Any, path: list[str]) -> bool:
    for part in path:
        if not isinstance(row, dict) or part not in row:
            return False
        row = row[part]
    return True
