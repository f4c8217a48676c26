"""How a declaration that contradicts what there is reads, in RabbitMQ's words."""

from __future__ import annotations

from warren.core.errors import PreconditionFailed
from warren.core.field import KIND_NAMES, Field, to_text


def inequivalent(name: str, described: str, received: str, current: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"inequivalent arg '{name}' for {described}: received {received} but current is {current}"
    )


def shown(value: str | bool) -> str:
    if isinstance(value, bool):
        return f"'{str(value).lower()}'"
    return f"'{value}'"


def type_shown(kind: str) -> str:
    """The type of an exchange as RabbitMQ quotes it in this text."""
    return f"'{kind}'" if "-" in kind else kind


def shown_argument(argument: Field | None, both: bool) -> str:
    if argument is None:
        return "none"
    text = to_text(argument.value) if argument.kind == "S" else str(argument.value)
    return f"'{text}'" if both else f"the value '{text}' of type '{KIND_NAMES[argument.kind]}'"
