"""Headers bindings: the four ways to match, how values compare, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.core.errors import PreconditionFailed
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.headers import HeadersRule, HeadersRules, check_x_match
from warren.core.field import Field, Table, longstr

VOID = Field("V", None)
ONE = Field("l", 1)


def matches(arguments: Table, headers: Table) -> bool:
    check_x_match(arguments)
    return HeadersRule(arguments).matches(headers)


def mode(word: str) -> Table:
    return {"x-match": longstr(word)}


@pytest.mark.parametrize("arguments", [{}, mode("all")])
def test_all_is_the_default_and_wants_every_header(arguments: Table) -> None:
    arguments = {**arguments, "a": ONE, "b": longstr("x")}
    assert matches(arguments, {"a": ONE, "b": longstr("x"), "c": ONE})
    assert not matches(arguments, {"a": ONE})
    assert not matches(arguments, {"a": ONE, "b": longstr("y")})
    assert not matches(arguments, {})


def test_any_wants_one_header() -> None:
    arguments = {**mode("any"), "a": ONE, "b": longstr("x")}
    assert matches(arguments, {"a": ONE})
    assert matches(arguments, {"a": longstr("z"), "b": longstr("x")})
    assert not matches(arguments, {"a": longstr("x")})
    assert not matches(arguments, {})


def test_without_conditions_all_matches_everything_and_any_nothing() -> None:
    assert matches({}, {})
    assert matches(mode("all"), {"a": ONE})
    assert not matches(mode("any"), {})
    assert not matches(mode("any"), {"a": ONE})


def test_names_with_x_are_conditions_only_with_x() -> None:
    assert matches({**mode("all"), "x-a": ONE}, {})
    assert not matches({**mode("any"), "x-a": ONE}, {"x-a": ONE})
    assert not matches({**mode("all-with-x"), "x-a": ONE}, {})
    assert matches({**mode("all-with-x"), "x-a": ONE}, {"x-a": ONE})
    assert matches({**mode("any-with-x"), "x-a": ONE}, {"x-a": ONE})


def test_x_match_itself_is_never_a_condition() -> None:
    assert matches(mode("all-with-x"), {})
    assert not matches(mode("any-with-x"), mode("any-with-x"))


@pytest.mark.parametrize("value", [ONE, longstr(""), VOID, Field("t", False)])
def test_a_void_argument_asks_only_that_the_header_exist(value: Field) -> None:
    assert matches({"a": VOID}, {"a": value})
    assert not matches({"a": VOID}, {"b": value})


def test_a_void_header_equals_no_other_value() -> None:
    assert not matches({"a": ONE}, {"a": VOID})


@given(
    st.sampled_from("bBsuIilLfd"),
    st.sampled_from("bBsuIilLfd"),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_numbers_are_equal_by_value_whatever_their_types(
    kind: str, other_kind: str, value: int, other: int
) -> None:
    wanted = Field(kind, float(value) if kind in "fd" else value)
    header = Field(other_kind, float(other) if other_kind in "fd" else other)
    assert matches({"a": wanted}, {"a": header}) is (value == other)


@pytest.mark.parametrize(
    ("wanted", "header"),
    [
        (Field("t", True), ONE),
        (ONE, Field("t", True)),
        (Field("t", False), Field("d", 0.0)),
        (ONE, longstr("1")),
        (longstr("1"), ONE),
        (Field("D", (0, 1)), ONE),
        (Field("A", [longstr("a")]), Field("A", [Field("x", b"a")])),
        (Field("A", [ONE]), Field("A", [Field("t", True)])),
    ],
)
def test_values_of_other_types_are_never_equal(wanted: Field, header: Field) -> None:
    assert not matches({"a": wanted}, {"a": header})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Field("T", 1), ONE),
        (Field("T", 1), Field("d", 1.0)),
        (longstr("a"), Field("x", b"a")),
        (Field("A", []), Field("F", {})),
    ],
)
def test_some_values_are_equal_whatever_their_types(one: Field, other: Field) -> None:
    assert matches({"a": one}, {"a": other})
    assert matches({"a": other}, {"a": one})


@pytest.mark.parametrize(
    "value",
    [
        Field("T", 5),
        Field("x", b"a"),
        Field("D", (1, 25)),
        Field("A", [ONE, longstr("a")]),
        Field("F", {"inner": ONE}),
        Field("t", True),
    ],
)
def test_values_of_one_type_are_equal_by_value(value: Field) -> None:
    assert matches({"a": value}, {"a": Field(value.kind, value.value)})


def test_an_unknown_word_for_x_match_is_refused() -> None:
    with pytest.raises(PreconditionFailed) as error:
        check_x_match(mode("some"))
    assert error.value.text == (
        'Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x'
    )


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        (Field("b", 5), "byte (value 5)"),
        (Field("t", True), "bool (value true)"),
        (VOID, "void (value undefined)"),
        (Field("x", b"all"), 'binary (value <<"all">>)'),
        (Field("x", b"\xff\x00"), "binary (value <<255,0>>)"),
        (Field("D", (1, 25)), "decimal (value {1,25})"),
        (Field("F", {"a": ONE}), 'table (value [{<<"a">>,long,1}])'),
        (Field("A", [ONE, longstr("")]), "array (value [{long,1},{longstr,<<>>}])"),
    ],
)
def test_an_x_match_that_is_no_string_is_refused(field: Field, shown: str) -> None:
    with pytest.raises(PreconditionFailed) as error:
        check_x_match({"x-match": field})
    assert error.value.text == f"Invalid x-match field type {shown}; expected longstr"


def test_rules_give_the_bindings_that_match_in_the_order_they_were_added() -> None:
    rules = HeadersRules()
    bindings = [
        Binding("h", "queue", queue, "", arguments)
        for queue, arguments in (("c", {}), ("a", {"k": ONE}), ("b", {"k": longstr("1")}))
    ]
    for binding in bindings:
        rules.add(binding)
    assert rules.match({"k": ONE}) == bindings[:2]
    rules.remove(bindings[0])
    rules.remove(bindings[0])
    assert rules.match({"k": ONE}) == [bindings[1]]


_fields = st.sampled_from(
    [
        ONE,
        VOID,
        Field("d", 1.0),
        Field("t", True),
        longstr("1"),
        Field("x", b"1"),
        Field("D", (1, 1)),
        Field("A", [ONE]),
        Field("A", []),
        Field("F", {"k": ONE}),
    ]
)
_tables = st.dictionaries(st.sampled_from(["a", "b", "x-c"]), _fields)
_arguments = st.builds(
    lambda word, table: {**mode(word), **table},
    st.sampled_from(["all", "any", "all-with-x", "any-with-x"]),
    _tables,
)


@given(
    st.lists(_arguments, max_size=12), st.sets(st.integers(0, 11)), st.lists(_tables, min_size=1)
)
def test_what_is_filed_matches_as_if_every_binding_were_tried(
    bound: list[Table], removed: set[int], published: list[Table]
) -> None:
    rules = HeadersRules()
    bindings = [Binding("h", "queue", f"{number}", "", table) for number, table in enumerate(bound)]
    for binding in bindings:
        rules.add(binding)
    left = [binding for number, binding in enumerate(bindings) if number not in removed]
    for binding in bindings:
        if binding not in left:
            rules.remove(binding)
    for headers in published:
        expected = [one for one in left if HeadersRule(one.arguments).matches(headers)]
        assert rules.match(headers) == expected
        asked_for = {name: value for name, value in headers.items() if name.encode() in rules.names}
        assert rules.match(asked_for) == expected
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warren.core.exchanges.headers.FEW", 0)
            assert rules.match(headers) == expected
    for binding in left:
        rules.remove(binding)
    assert not rules._by_sign and not rules._filed and not rules._unconditional
    assert not rules.names


def test_of_many_bindings_only_those_are_tried_that_a_header_speaks_for() -> None:
    rules = HeadersRules()
    for number in range(1000):
        arguments = {"common": longstr("c"), f"h{number}": longstr("v")}
        rules.add(Binding("h", "queue", f"{number}", "", arguments))
    headers = {"common": longstr("c"), "h7": longstr("v")}
    assert [binding.destination for binding in rules.match(headers)] == ["7"]
    assert rules.tried <= 2
