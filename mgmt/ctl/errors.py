"""Failures of commands: a text for the standard error, and an exit code (ctl_commands.md 1)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """The codes of sysexits.h that RabbitMQ's command line uses."""

    OK = 0
    USAGE = 64
    DATA = 65
    NO_USER = 67
    UNAVAILABLE = 69
    SOFTWARE = 70
    TIMEOUT = 75
    CONFIG = 78


class CtlError(Exception):
    """A command failed. `heading` is printed before the text; most commands have `Error:`."""

    def __init__(
        self, text: str, code: Exit = Exit.UNAVAILABLE, *, heading: str = "Error:\n"
    ) -> None:
        super().__init__(text)
        self.text = text
        self.code = code
        self.heading = heading


class WrongUsage(CtlError):
    """The command was called in a wrong way; its usage is printed with the text."""

    def __init__(self, text: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(text, code, heading="Error (argument validation): ")
        self.usage = ""


class BadArgument(WrongUsage):
    """An argument has a value that the command does not accept."""

    def __init__(self, text: str = "") -> None:
        super().__init__(f"Bad argument: {text}" if text else "Bad argument.", Exit.DATA)


class CheckFailed(CtlError):
    """A check has failed. `details` are put beside the message in JSON."""

    def __init__(self, text: str, *, heading: str = "Error:\n", **details: Any) -> None:
        super().__init__(text, heading=heading)
        self.json = {"result": "error", "message": text, **details}


class NodeUnreachable(CtlError):
    """The node does not answer at the control socket or address that was `tried`."""

    def __init__(self, tried: str, reason: str, advice: str) -> None:
        super().__init__(
            f"unable to reach the node.\nTried: {tried}\nReason: {reason}\n{advice}",
            heading="Error: ",
        )


class RequestRefused(CtlError):
    """The node refused the request; `answer` is the JSON it sent, `reason` the reason in it."""

    def __init__(self, status: int, answer: Mapping[str, Any], reason: str) -> None:
        error = str(answer.get("error") or "")
        super().__init__(reason or error or f"the node answered {status}")
        self.status = status
        self.answer = answer
        self.reason = reason


class NeedsLocal(CtlError):
    """The command needs the control socket, and --url was given."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is only possible on the node's own machine, as the user who runs the node:"
            " leave --url away",
        )


def no_such_user(name: str) -> CtlError:
    return CtlError(f'User "{name}" does not exist', Exit.NO_USER)


def no_such_vhost(name: str) -> CtlError:
    return CtlError(f"Virtual host '{name}' does not exist", Exit.DATA, heading="")
