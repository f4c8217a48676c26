"""The texts of refused policies, parameters and limits in answers.

RabbitMQ's page shows the refusal of a policy or a parameter as HTML, so RabbitMQ escapes angle
brackets in it; it does not in the refusal of an operator policy or a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from warren.core.definitions.validation import ValidationFailed
from warren.mgmt.http.errors import BadRequest

PREFIX = "Validation failed"


def escaped(reason: str) -> str:
    return reason.replace("<", "&lt;").replace(">", "&gt;")


@contextmanager
def told_of_validation(*, escape: bool) -> Iterator[None]:
    """Raises `BadRequest` with RabbitMQ's wording for `ValidationFailed`."""
    try:
        yield
    except ValidationFailed as error:
        reason = f"{PREFIX}\n\n{error.text}\n"
        raise BadRequest(escaped(reason) if escape else reason) from error
