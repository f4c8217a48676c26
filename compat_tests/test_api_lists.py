"""Lists of the management API: sorted, cut into columns and pages, filtered (section 1.1)."""

from typing import Any

import pytest

from warren.compat_tests.api import CLOSED_VHOST, Api, names_of

AREA = "API: lists"


@pytest.fixture
def listed(api: Api, own_vhost: str) -> str:
    """A vhost with the queues a1, A2, b3, b4 and c5, of which b3 and c5 are durable."""
    for name in ("c5", "b3", "a1", "A2", "b4"):
        api.put("queues", own_vhost, name, body={"durable": name in ("b3", "c5")})
    return own_vhost


def page(api: Api, vhost: str, **query: str) -> dict[str, Any]:
    answer: dict[str, Any] = api.get("queues", vhost, columns="name", **query)
    return answer


def test_lists_are_in_order_of_names(api: Api, listed: str) -> None:
    assert names_of(api.get("queues", listed)) == ["A2", "a1", "b3", "b4", "c5"]


def test_sorted_by_a_column(api: Api, listed: str) -> None:
    rows = api.get("queues", listed, sort="durable")
    assert [row["durable"] for row in rows] == [False, False, False, True, True]


def test_reversed(api: Api, listed: str) -> None:
    rows = api.get("queues", listed, sort="name", sort_reverse="true")
    assert names_of(rows) == ["c5", "b4", "b3", "a1", "A2"]
    rows = api.get("queues", listed, sort="name", sort_reverse="false")
    assert names_of(rows) == ["A2", "a1", "b3", "b4", "c5"]


def test_sorted_by_a_column_that_is_not_shown(api: Api, listed: str) -> None:
    rows = api.get("queues", listed, sort="durable", sort_reverse="true", columns="name")
    assert set(names_of(rows[:2])) == {"b3", "c5"}
    assert rows[0].keys() == {"name"}


def test_sorted_by_an_inner_column(api: Api, listed: str) -> None:
    api.put("queues", listed, "d6", body={"arguments": {"x-max-length": 7}})
    api.put("queues", listed, "a0", body={"arguments": {"x-max-length": 9}})
    rows = api.get("queues", listed, sort="arguments.x-max-length")
    # Rows without a value come first.
    assert names_of(rows)[-2:] == ["d6", "a0"]


def test_columns(api: Api, listed: str) -> None:
    rows = api.get("queues", listed, columns="name,durable,no_such_column")
    assert rows[2] == {"name": "b3", "durable": True}


@pytest.mark.parametrize(
    "path",
    [("vhosts",), ("exchanges",), ("users",), ("nodes",), ("bindings",), ("feature-flags",)],
    ids="/".join,
)
def test_every_list_has_columns(api: Api, path: tuple[str, ...], own_queue: str) -> None:
    key = "destination" if path == ("bindings",) else "name"
    rows = api.get(*path, columns=key)
    assert rows and all(row.keys() == {key} for row in rows)


@pytest.fixture
def own_queue(api: Api, own_vhost: str) -> str:
    api.put("queues", own_vhost, "q")
    return "q"


def test_columns_of_the_overview(api: Api) -> None:
    shown = api.get("overview", columns="rabbitmq_version,object_totals.exchanges")
    assert shown.keys() == {"rabbitmq_version", "object_totals"}
    assert "exchanges" in shown["object_totals"]


# Pages


def test_pages(api: Api, listed: str) -> None:
    assert page(api, listed, page="1", page_size="2") == {
        "total_count": 5,
        "item_count": 2,
        "filtered_count": 5,
        "page": 1,
        "page_size": 2,
        "page_count": 3,
        "items": [{"name": "A2"}, {"name": "a1"}],
    }
    assert names_of(page(api, listed, page="2", page_size="2")["items"]) == ["b3", "b4"]
    last = page(api, listed, page="3", page_size="2")
    assert (last["item_count"], names_of(last["items"])) == (1, ["c5"])


def test_a_page_is_of_a_hundred(api: Api, listed: str) -> None:
    answer = page(api, listed, page="1")
    assert (answer["page_size"], answer["page_count"], answer["item_count"]) == (100, 1, 5)


def test_without_a_page_there_are_no_pages(api: Api, listed: str) -> None:
    rows = api.get("queues", listed, page_size="2", name="b", columns="name")
    assert names_of(rows) == ["A2", "a1", "b3", "b4", "c5"]


def test_an_empty_list_has_one_page_to_ask_for(api: Api, own_vhost: str) -> None:
    answer = page(api, own_vhost, page="1")
    assert (answer["items"], answer["page_count"], answer["total_count"]) == ([], 0, 0)


def test_pages_are_cut_after_sorting(api: Api, listed: str) -> None:
    query = {"page": "1", "page_size": "2", "sort": "name", "sort_reverse": "true"}
    assert names_of(page(api, listed, **query)["items"]) == ["c5", "b4"]


@pytest.mark.parametrize(
    ("number", "size"), [("0", "1"), ("-1", "1"), ("1", "0"), ("1", "501"), ("1", "-1")]
)
def test_pages_that_cannot_be(api: Api, vhost: str, number: str, size: str) -> None:
    answer = api.ask("GET", "queues", vhost, query={"page": number, "page_size": size})
    assert (answer.status, answer.json) == (
        400,
        {
            "error": "invalid_pagination_parameters",
            "reason": f"Invalid pagination parameters: page number {number}, page size {size}",
        },
    )


def test_page_zero_of_no_size(api: Api, vhost: str) -> None:
    answer = api.ask("GET", "queues", vhost, query={"page": "0"})
    told = "Invalid pagination parameters: page number 0, page size undefined"
    assert answer.refusal == (400, told)


@pytest.mark.parametrize(
    "query",
    [
        {"page": "x"},
        {"page": "1.5"},
        {"page": "1", "page_size": "x"},
        {"page": "1", "name": "(", "use_regex": "true"},
    ],
    ids=str,
)
def test_pages_that_make_no_sense(api: Api, listed: str, query: dict[str, str]) -> None:
    """RabbitMQ checks a pattern only if there is something to match with it."""
    answer = api.ask("GET", "queues", listed, query=query)
    assert answer.status == 400
    assert answer.json == {"error": "bad_request", "reason": "Pagination parameters are invalid"}


def test_page_out_of_range(api: Api, listed: str) -> None:
    answer = api.ask("GET", "queues", listed, query={"page": "4", "page_size": "2"})
    told = "Page out of range, page: 4 page size: 2, len: 5"
    assert (answer.status, answer.json) == (400, {"error": "page_out_of_range", "reason": told})


@pytest.mark.parametrize("kind", ["queues", "exchanges", "vhosts", "connections", "channels"])
def test_lists_that_have_pages(api: Api, kind: str) -> None:
    answer = api.get(kind, page="1", page_size="1")
    assert answer.keys() == {
        "total_count",
        "item_count",
        "filtered_count",
        "page",
        "page_size",
        "page_count",
        "items",
    }


@pytest.mark.parametrize(
    "kind", ["users", "permissions", "policies", "bindings", "consumers", "nodes", "parameters"]
)
def test_lists_that_have_no_pages(api: Api, kind: str) -> None:
    assert isinstance(api.get(kind, page="7", page_size="1"), list)


# Filters


@pytest.mark.parametrize(
    ("name", "use_regex", "found"),
    [
        ("a", "false", ["A2", "a1"]),
        ("A", "false", ["A2", "a1"]),
        ("3", "false", ["b3"]),
        ("", "false", ["A2", "a1", "b3", "b4", "c5"]),
        ("", "true", ["A2", "a1", "b3", "b4", "c5"]),
        ("^a", "true", ["A2", "a1"]),
        ("[34]$", "true", ["b3", "b4"]),
        ("b.|c", "true", ["b3", "b4", "c5"]),
        ("^a", "false", []),
        ("(", "false", []),
        ("nope", "true", []),
    ],
)
def test_filters(api: Api, listed: str, name: str, use_regex: str, found: list[str]) -> None:
    answer = page(api, listed, page="1", name=name, use_regex=use_regex)
    assert names_of(answer["items"]) == found
    counts = (answer["total_count"], answer["filtered_count"], answer["item_count"])
    assert counts == (5, len(found), len(found))


def test_pages_are_counted_after_the_filter(api: Api, listed: str) -> None:
    query = {"page": "2", "page_size": "1", "name": "b", "pagination": "true"}
    answer = page(api, listed, **query)
    assert (names_of(answer["items"]), answer["page_count"]) == (["b4"], 2)
    # A page that follows a full last page is empty.
    answer = page(api, listed, **{**query, "page": "3"})
    assert (answer["items"], answer["page_count"]) == ([], 2)
    refused = api.ask("GET", "queues", listed, query={**query, "page": "4"})
    assert refused.refusal == (400, "Page out of range, page: 4 page size: 1, len: 2")


# The header that says which vhost is meant


def test_a_header_names_the_vhost(api: Api, listed: str) -> None:
    rows = api.ask("GET", "queues", headers={"X-Vhost": listed}).json
    assert names_of(rows) == ["A2", "a1", "b3", "b4", "c5"]
    rows = api.ask("GET", "exchanges", headers={"X-Vhost": listed}).json
    assert {row["vhost"] for row in rows} == {listed}


def test_an_empty_header_names_none(api: Api, listed: str) -> None:
    rows = api.ask("GET", "exchanges", headers={"X-Vhost": ""}).json
    assert len({row["vhost"] for row in rows}) > 1


def test_a_list_over_all_vhosts_is_ordered_by_them(api: Api, own_vhost: str) -> None:
    rows = api.get("exchanges", columns="vhost,name")
    keys = [(row["vhost"], row["name"]) for row in rows]
    mine = [key for key in keys if key[0] == own_vhost]
    assert mine == sorted(mine)
    start = keys.index(mine[0])
    assert keys[start : start + len(mine)] == mine


def test_a_header_does_not_open_a_vhost(api: Api, colleague: Any, own_vhost: str) -> None:
    someone = colleague("management")
    answer = someone.api.ask("GET", "queues", headers={"X-Vhost": own_vhost})
    assert answer.refusal == (401, CLOSED_VHOST)
