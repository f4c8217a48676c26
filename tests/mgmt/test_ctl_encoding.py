"""`warren ctl encode`, `decode`, `list_ciphers`, `list_hashes`, which need no node."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click.testing
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.mgmt.ctl import encoding
from warren.mgmt.ctl.command import ctl
from warren.mgmt.ctl.erlang_term import Atom, NoTerm, Term, decode, encode, parse, text_of
from warren.mgmt.ctl.sealed_term import CIPHERS, HASHES, CannotUnseal, Lock, seal, unseal

# Made by RabbitMQ 3.10.8: rabbitmqctl encode VALUE PASSPHRASE [OPTIONS].
MADE_BY_RABBITMQ = [
    (
        "7+XKHcCVPYhHcP/Ckk0cqR8DJRMSRmFGqUF72YzWcWQBuzJjegrRrnlKDlQ+RO4C",
        "pass",
        (),
        '<<"hello">>',
    ),
    (
        "vC8N0vNDugekLIpvzsV8lQ3/gkiAfCz93PFJI4THCEDz46RLnWkbfNMLkSlOqY8wB8HPmy3pi9A0Wn1uOW1lWNzY"
        "PWC3iU67/3JryPMMcjw=",
        "p",
        (),
        '{a,1,2.5,[b],"x"}',
    ),
    (
        "abxYseCI06E38QMhXZRDn2hkvvaXDVp3JpK2COH/b1MJAvNY",
        "p",
        ("--cipher", "aes_128_ctr", "--hash", "sha256", "--iterations", "5"),
        "1",
    ),
    (
        "Z1UKh95S3eIqzomKQhVqR2ycLlilv0SZgcjZH7ucIrhmvaR7crk=",
        "p",
        ("--cipher", "chacha20"),
        '"x"',
    ),
    (
        "OE5thijum3SrbX/aXqUGG+V8BzdwN2d7sEo7G6zSFfuyzqV9ESU=",
        "p",
        ("--cipher", "aes_256_ofb"),
        '"x"',
    ),
    ("IM5ZKrDK4gvfQ4XReDhvGAqT19XzLSyEoQbPfGk4rz260WL00p4=", "p", ("--cipher", "aes_ctr"), '"x"'),
    (
        "sfZm/+irF49exqh8aGkMmWxNmy97w5Ijbe+GZJofzmd0emXURXc=",
        "p",
        ("--cipher", "aes_128_cfb8"),
        '"x"',
    ),
    (
        "ohFuyc/amlMkQzTsaFGnbdVR7M7+RLVRayDqdaR4tzIuQZpSzfavsBG1i5/3W9PI",
        "p",
        ("--hash", "blake2b"),
        '"x"',
    ),
    (
        "FUglFyCBn30lHVhOqGfJxon4kMR1k/HzweAoLSG2vUEhq80pR8zhSp+7HBSQnfTQ",
        "p",
        ("--hash", "sha"),
        '"x"',
    ),
]


def run(*arguments: str, lines: Sequence[str] = ()) -> click.testing.Result:
    piped = "".join(f"{line}\n" for line in lines)
    return click.testing.CliRunner().invoke(ctl, list(arguments), input=piped)


@pytest.mark.parametrize(("sealed", "passphrase", "options", "value"), MADE_BY_RABBITMQ)
def test_what_rabbitmq_encoded_is_decoded(
    sealed: str, passphrase: str, options: tuple[str, ...], value: str
) -> None:
    for written in (f'{{encrypted,<<"{sealed}">>}}', f'<<"{sealed}">>', sealed):
        result = run("decode", written, passphrase, *options)
        assert (result.exit_code, result.stdout) == (0, f"Decrypting value...\n{value}\n")


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("hash", ["sha256", "sha3_512"])
def test_what_was_encoded_is_decoded(cipher: str, hash: str) -> None:
    options = ("--cipher", cipher, "--hash", hash, "--iterations", "7")
    encoded = run("-s", "encode", '{"é", <<"b">>}', "pass phrase", *options)
    assert encoded.exit_code == 0, encoded.stderr
    again = run("-s", "encode", '{"é", <<"b">>}', "pass phrase", *options)
    assert encoded.stdout != again.stdout
    decoded = run("-s", "decode", encoded.stdout.strip(), "pass phrase", *options)
    assert decoded.stdout == '{"é",<<"b">>}\n'
    other = run("-s", "decode", encoded.stdout.strip(), "other", *options)
    assert (other.exit_code, other.stderr) == (69, f"Error:\n{encoding.UNREADABLE}\n")


@pytest.mark.parametrize("hash", HASHES)
def test_every_listed_hash_makes_keys(hash: str) -> None:
    lock = Lock("aes_256_cbc", hash, 2)
    assert unseal(seal(Atom("a"), "p", lock), "p", lock) == "a"


@pytest.mark.parametrize("value", ["", "AAAA", "garbage", "{encrypted,<<>>}", "{encrypted,1}", "é"])
def test_what_is_no_encrypted_value_is_an_error(value: str) -> None:
    result = run("decode", value, "p")
    assert (result.exit_code, result.stderr) == (69, f"Error:\n{encoding.UNREADABLE}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--cipher", "nope"), 65, "Bad argument: The requested cipher is not supported."),
        (("--hash", "nope"), 65, "Bad argument: The requested hash is not supported"),
        (("--iterations", "0"), 65, "Bad argument: The requested number of iterations is incorr"),
        (("--iterations", "x"), 64, "not a valid integer"),
        (("more",), 64, "too many arguments."),
    ],
)
def test_wrong_calls(arguments: tuple[str, ...], code: int, text: str) -> None:
    for command in ("encode", "decode"):
        result = run(command, "a", "b", *arguments)
        assert result.exit_code == code
        assert text in result.stderr


@pytest.mark.parametrize("value", ["hello world", "", "{a", "<<1000>>", "<<a>>", "#{}", "[" * 200])
def test_a_value_has_to_be_a_term(value: str) -> None:
    result = run("encode", value, "p")
    assert result.exit_code == 69
    assert (
        result.stderr.startswith(
            "Error:\nmore than 100" if len(value) > 100 else "Error:\nthe value is no Erlang term: "
        )
        or "is no Erlang term" in result.stderr
    )


def test_what_is_not_given_is_read() -> None:
    encoded = run("-s", "encode", lines=["'an atom'", "secret"])
    assert encoded.exit_code == 0, encoded.stderr
    assert run("-s", "decode", encoded.stdout.strip(), lines=["secret"]).stdout == "'an atom'\n"
    for arguments in ((), ("a",)):
        result = run("encode", *arguments)
        assert (result.exit_code, result.stderr) == (69, "Error:\nnot_enough_args\n")


def test_lists_are_shown_as_rabbitmq_shows_them() -> None:
    hashes = run("list_hashes")
    assert hashes.stdout.startswith("Listing supported hash algorithms ...\n[blake2s,blake2b,")
    assert max(map(len, hashes.stdout.splitlines())) <= 80
    assert json.loads(run("list_ciphers", "--formatter", "json").stdout) == {
        "result": "ok",
        "value": list(CIPHERS),
    }
    assert run("-s", "list_ciphers").stdout.replace("\n ", "").count(",") == len(CIPHERS) - 1
    assert run("list_ciphers", "x").exit_code == 64


def test_without_the_package_a_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.decrepit.ciphers", None)
    result = run("encode", "a", "b")
    assert result.exit_code == 78
    assert "this needs the package cryptography: " in result.stderr
    assert "-m pip install '" in result.stderr


# Terms

LEAVES = (
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary()
    | st.text(max_size=20).map(lambda name: Atom(name.encode("utf-8", "ignore").decode()))
)
TERMS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=5) | st.lists(inner, max_size=5).map(tuple)
)


@given(TERMS)
def test_octets_give_the_term_back(term: Term) -> None:
    assert decode(encode(term)) == term


@given(st.binary(max_size=100))
def test_no_octets_do_harm(octets: bytes) -> None:
    for tried in (octets, b"\x83" + octets):
        try:
            text_of(decode(tried))
        except NoTerm:
            continue


@pytest.mark.parametrize(
    ("text", "term", "shown"),
    [
        ("-5", -5, "-5"),
        ("1.0e3", 1000.0, "1000.0"),
        ("1.5e22", 1.5e22, "1.5e22"),
        ("'A b'", Atom("A b"), "'A b'"),
        (' [ a , {1,"x\\n"} ] ', [Atom("a"), (1, [120, 10])], '[a,{1,"x\\n"}]'),
        ('<<"a",98,"c">>', b"abc", '<<"abc">>'),
        ('<<"€"/utf8>>', "€".encode(), "<<226,130,172>>"),
        ('"€"', [8364], "[8364]"),
        ('"a\\"\\\\\\x{41}\\101"', [97, 34, 92, 65, 65], '"a\\"\\\\AA"'),
        ("[]", [], "[]"),
        ("{}", (), "{}"),
        ("<<>>", b"", "<<>>"),
    ],
)
def test_texts_of_terms(text: str, term: Term, shown: str) -> None:
    assert parse(text) == term
    assert text_of(term) == shown


def test_large_numbers_and_depths_are_refused() -> None:
    with pytest.raises(NoTerm, match="2000 octets"):
        decode(b"\x83o" + (2000).to_bytes(4, "big") + bytes(2001))
    deep: Term = []
    for _ in range(102):
        deep = [deep]
    with pytest.raises(NoTerm, match="more than 100"):
        decode(encode(deep))
    with pytest.raises(NoTerm):
        parse("1" * 5000)


def test_a_value_that_was_changed_is_unreadable() -> None:
    lock = Lock("aes_128_cbc", "sha256", 1)
    sealed = seal(1, "p", lock, random_bytes=bytes)
    with pytest.raises(CannotUnseal):
        unseal(sealed[:-4] + b"AAA=", "p", lock)
