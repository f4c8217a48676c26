"""Methods: every class of pamqp goes out and comes back, also with what pamqp itself refuses."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from warren.amqp.methods import (
    METHODS,
    AccessRequest,
    AccessRequestOk,
    MalformedMethod,
    MalformedText,
    Method,
    UnknownMethod,
    decode_method,
    encode_method,
    make,
)
from warren.core.field import Field, longstr

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 2**8 - 1),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "shortstr": st.text(max_size=60),
    "longstr": st.binary(max_size=300),
    "table": st.dictionaries(
        st.text(max_size=5),
        st.one_of(st.text(max_size=5).map(longstr), st.booleans().map(lambda b: Field("t", b))),
        max_size=3,
    ),
}


def arguments_of(method: Method) -> dict[str, Any]:
    return {name: getattr(method, name) for name in type(method).__slots__}


@st.composite
def methods(draw: st.DrawFn) -> Method:
    kind = draw(st.sampled_from(sorted(METHODS.values(), key=lambda kind: kind.name)))
    return make(kind, **{name: draw(VALUES[kind.amqp_type(name)]) for name in kind.__slots__})


@given(methods())
def test_a_method_survives_the_round_trip(method: Method) -> None:
    payload = encode_method(method)
    decoded = decode_method(payload)
    assert type(decoded) is type(method)
    assert arguments_of(decoded) == arguments_of(method)
    assert struct.unpack_from(">HH", payload) == divmod(method.index, 1 << 16)


@given(methods(), st.data())
def test_a_cut_method_is_malformed(method: Method, data: st.DataObject) -> None:
    payload = encode_method(method)
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    with pytest.raises(MalformedMethod) as error:
        decode_method(cut)
    assert error.value.payload == cut


@given(methods(), st.binary(min_size=1, max_size=3))
def test_bytes_after_the_last_argument_are_malformed(method: Method, extra: bytes) -> None:
    with pytest.raises(MalformedMethod):
        decode_method(encode_method(method) + extra)


@given(st.sampled_from(sorted(METHODS)), st.binary(max_size=60))
def test_arbitrary_arguments_are_a_method_or_malformed(index: int, arguments: bytes) -> None:
    try:
        method = decode_method(struct.pack(">I", index) + arguments)
    except MalformedMethod:
        return
    assert method.index == index


@given(st.binary(max_size=40))
def test_arbitrary_bytes_give_only_the_declared_errors(payload: bytes) -> None:
    try:
        decode_method(payload)
    except (MalformedMethod, UnknownMethod):
        pass


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.name)
def test_the_defaults_are_written_as_pamqp_writes_them(
    kind: type[Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make(kind)
    payload = encode_method(method)
    theirs = kind.__new__(kind)
    for name, value in arguments_of(method).items():
        setattr(theirs, name, value.decode() if isinstance(value, bytes) else value)
    # pamqp refuses some of its own defaults.
    monkeypatch.setattr(kind, "validate", lambda self: None)
    assert payload[4:] == theirs.marshal()
    assert arguments_of(decode_method(payload)) == arguments_of(method)


def test_a_name_that_is_no_utf_8_is_refused() -> None:
    payload = encode_method(make(commands.Queue.Declare, queue=b"\xff\xfe"))
    with pytest.raises(MalformedText):
        decode_method(payload)


@pytest.mark.parametrize("name", ["a" * 255, "two words", "gr\u00fcn", "a/b$c"])
def test_every_name_of_255_bytes_is_legal(name: str) -> None:
    declared = decode_method(encode_method(make(commands.Queue.Declare, queue=name, ticket=7)))
    assert isinstance(declared, commands.Queue.Declare)
    assert (declared.queue, declared.ticket) == (name, 7)


def test_a_name_of_256_bytes_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="256 bytes"):
        encode_method(make(commands.Queue.DeclareOk, queue="a" * 256))


def test_table_arguments_keep_their_types() -> None:
    arguments = {"x-expires": Field("s", 5), "x-max-length": Field("l", 5)}
    declare = make(commands.Queue.Declare, queue="q", arguments=arguments)
    decoded = decode_method(encode_method(declare))
    assert arguments_of(decoded)["arguments"] == arguments


def test_bits_share_an_octet_and_spare_bits_are_ignored() -> None:
    payload = bytes.fromhex("003c0050 0000000000000009 ff")
    ack = decode_method(payload)
    assert isinstance(ack, commands.Basic.Ack)
    assert (ack.delivery_tag, ack.multiple) == (9, True)
    assert encode_method(ack)[-1] == 1


def test_long_strings_are_bytes_and_may_be_given_as_text() -> None:
    start = make(commands.Connection.Start, mechanisms="PLAIN AMQPLAIN")
    assert arguments_of(start)["locales"] == b"en_US"
    decoded = decode_method(encode_method(start))
    assert arguments_of(decoded)["mechanisms"] == b"PLAIN AMQPLAIN"
    start_ok = make(commands.Connection.StartOk, response=b"\0guest\0\xff")
    decoded = decode_method(encode_method(start_ok))
    assert arguments_of(decoded)["response"] == b"\0guest\0\xff"


def test_access_request_is_known() -> None:
    payload = bytes.fromhex("001e000a 05 2f64617461 1e")
    request = decode_method(payload)
    assert isinstance(request, AccessRequest)
    assert (request.realm, request.exclusive, request.read) == ("/data", False, True)
    assert encode_method(make(AccessRequest)) == payload
    assert encode_method(make(AccessRequestOk)) == bytes.fromhex("001e000b 0001")


def test_an_unknown_method_is_named_by_its_numbers() -> None:
    with pytest.raises(UnknownMethod) as error:
        decode_method(bytes.fromhex("003c00c8 00"))
    assert (error.value.class_id, error.value.method_id) == (60, 200)


def test_every_default_table_is_its_own() -> None:
    first, second = make(commands.Queue.Declare), make(commands.Queue.Declare)
    assert first.arguments is not second.arguments


def test_an_argument_the_method_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Queue\.DeclareOk has no argument name"):
        make(commands.Queue.DeclareOk, name="q")
