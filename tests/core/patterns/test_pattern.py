"""PCRE patterns on Python's engine."""

from __future__ import annotations

import warnings

import pytest

from warren.core.patterns.pattern import InvalidPattern, compile_pattern, compile_permission


@pytest.mark.parametrize(
    ("pattern", "found", "not_found"),
    [
        ("^ha\\.", ["ha.x"], ["a.ha.", "hax"]),
        ("ue", ["queue"], ["QUEUE"]),
        ("", ["", "anything"], []),
        ("(?i)^Q", ["q1", "Q1"], ["aq"]),
        ("a(?i)b|c$", ["ab", "aB", "C", "xc"], ["AB"]),
        ("(a(?i)b|c)d", ["aBd", "Cd"], ["aBD"]),
        ("(?i:a)b", ["Ab"], ["AB"]),
        ("^(?<word>x)(?P=word)$", ["xx"], ["x"]),
        ("(?<=a)b", ["ab"], ["bb"]),
        ("(?<!a)b", ["bb"], ["ab"]),
        ("^[[:alpha:]_]+$", ["ab_"], ["a1", ":"]),
        ("^[^[:digit:]]$", ["a"], ["1"]),
        ("^[[:punct:]]+$", ["-!]^[\\"], ["a"]),
        ("^[]a]+$", ["]a"], ["b"]),
        ("^[^]a]+$", ["b"], ["]", "a"]),
        ("^[[&&~~||]+$", ["[&~|"], ["a"]),
        ("^[+--]+$", ["+,-"], ["."]),
        ("a\\z", ["a"], ["a\n"]),
        ("a\\Z", ["a", "a\n"], ["ab"]),
        ("^\\Qa.b|\\E+$", ["a.b|||"], ["axb|"]),
        ("\\x{2e}$", ["a."], ["a"]),
        ("^[\\x{61}\\h]+$", ["a \t"], ["b"]),
        ("^a\\hb$", ["a b"], ["ab"]),
        ("^a(?#comment)b$", ["ab"], ["a"]),
        ("^\\w+$", ["abc_1"], ["caf\u00e9"]),
        ("(?i)\u00e9", ["\u00e9"], ["\u00c9"]),
        ("^caf\udce9$", ["caf\udce9"], ["cafe"]),
        ("^(?!amq\\.).*", ["queue"], ["amq.gen-1"]),
        ("^a{2}$", ["aa"], ["a"]),
        ("^(?>a+)b", ["aab"], ["b"]),
    ],
)
def test_a_pattern_means_what_it_means_in_pcre(
    pattern: str, found: list[str], not_found: list[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = compile_pattern(pattern)
    assert [name for name in found if not compiled.search(name)] == []
    assert [name for name in not_found if compiled.search(name)] == []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", '{"missing )",1}'),
        ("(a", '{"missing )",2}'),
        (")", '{"unmatched parentheses",0}'),
        ("a)", '{"unmatched parentheses",1}'),
        ("*", '{"nothing to repeat",0}'),
        ("[a", '{"missing terminating ] for character class",2}'),
        ("a\\", '{"\\\\ at end of pattern",2}'),
        ("[[:nope:]]", '{"unknown POSIX class name",1}'),
    ],
)
def test_a_pattern_that_is_none_is_refused_in_the_words_of_pcre(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidPattern) as invalid:
        compile_pattern(pattern)
    assert invalid.value.reason == reason
    assert pattern in invalid.value.text


@pytest.mark.parametrize("pattern", ["(?R)", "\\K", "\\p{L}", "a\\Rb", "\\Ga", "(*UTF8)a"])
def test_what_python_has_no_word_for_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        compile_pattern(pattern)


def test_an_empty_permission_matches_the_empty_name_only() -> None:
    assert compile_permission("").search("")
    assert not compile_permission("").search("q")


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"^(a*)*$", r"(.*a){20}$"])
def test_a_pattern_that_would_take_for_ever_does_not_match(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    for _ in range(30):
        assert not compiled.search("a" * 60 + "!")


def test_patterns_with_repetitions_mean_what_they_did() -> None:
    compiled = compile_pattern(r"^(?!amq\.)[a-z]+\.\d{2,}(-x)*$")
    assert compiled.search("orders.123-x-x")
    assert not compiled.search("amq.123")
    assert not compiled.search("orders.1")
