"""Which user a client's certificate names."""

from __future__ import annotations

import pytest

from warren.amqp.certificate import login_name

CERTIFICATE = {
    "subject": ((("commonName", "ann"),),),
    "subjectAltName": (
        ("DNS", "one.example"),
        ("email", "ann@example.org"),
        ("DNS", "two.example"),
        ("URI", "spiffe://ann"),
    ),
}


@pytest.mark.parametrize(
    ("kind", "index", "name"),
    [
        (None, 0, "one.example"),
        (None, 1, "ann@example.org"),
        ("dns", 1, "two.example"),
        ("email", 0, "ann@example.org"),
        ("uri", 0, "spiffe://ann"),
        ("dns", 2, None),
        ("ip", 0, None),
    ],
)
def test_an_alternative_name_is_chosen_by_type_and_place(
    kind: str | None, index: int, name: str | None
) -> None:
    assert login_name("subject_alternative_name", kind, index)(CERTIFICATE) == name


def test_other_names_know_no_types() -> None:
    assert login_name("common_name", "email", 1)(CERTIFICATE) == "ann"
    assert login_name("distinguished_name")(CERTIFICATE) == "CN=ann"
