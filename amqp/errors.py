"""Reply codes: the broker's errors on the wire (amqp_semantics.md section 0.1).

Errors that only the wire can cause are defined here too: broken frames, methods out of order.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pamqp import commands

from warren.amqp.frames import HEADER, METHOD, described
from warren.amqp.methods import MalformedMethod, MalformedText, UnknownMethod, decode_method
from warren.core.erlang_text import binary_text, octets_text
from warren.core.errors import (
    AccessRefused,
    BrokerError,
    CommandInvalid,
    ConnectionFault,
    HomeNodeDown,
    InternalFault,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    Unsupported,
)
from warren.core.field import printable
from warren.core.messages.message import MESSAGE_SIZE_CAP

REPLY_TEXT_MAX = 255
"""The longest short string, in octets; a longer text is cut and ends in three dots."""


MALFORMED_TEXT = "Malformed UTF-8 in shortstr"

NO_IDS = (0, 0)
PUBLISH_IDS = (60, 40)

HEADER_HEAD = 12
"""The octets of a content header before the flags of its properties."""

CLASS_AND_WEIGHT = b"\x00\x3c\x00\x00"
"""The start of every content header; the weight is to be zero (4.2.6.1)."""


class ConnectionForced(ConnectionFault):
    """The broker or an operator ends the connection."""


class FrameError(ConnectionFault):
    """A frame cannot be read."""


class MalformedArguments(FrameError):
    """The octets behind class and method id are not the arguments of that method."""


class FatalFrameError(FrameError):
    """A frame after which the stream cannot be read on: the socket is cut soon."""


class ChannelError(ConnectionFault):
    """A method came in a state in which it is not allowed."""


class TooManyChannels(NotAllowed):
    """A limit on channels is reached."""


class UnexpectedFrame(ConnectionFault):
    """A frame of another type was expected; `ids` are those of the method that owns the content."""

    def __init__(self, text: str, ids: tuple[int, int] = NO_IDS) -> None:
        super().__init__(text)
        self.ids = ids


class ReplyCode(NamedTuple):
    code: int
    name: str


REPLIES: dict[type[BrokerError], ReplyCode] = {
    ConnectionForced: ReplyCode(320, "CONNECTION_FORCED"),
    AccessRefused: ReplyCode(403, "ACCESS_REFUSED"),
    NotFound: ReplyCode(404, "NOT_FOUND"),
    HomeNodeDown: ReplyCode(404, "NOT_FOUND"),
    ResourceLocked: ReplyCode(405, "RESOURCE_LOCKED"),
    PreconditionFailed: ReplyCode(406, "PRECONDITION_FAILED"),
    FrameError: ReplyCode(501, "FRAME_ERROR"),
    MalformedArguments: ReplyCode(501, "FRAME_ERROR"),
    FatalFrameError: ReplyCode(501, "FRAME_ERROR"),
    CommandInvalid: ReplyCode(503, "COMMAND_INVALID"),
    ChannelError: ReplyCode(504, "CHANNEL_ERROR"),
    UnexpectedFrame: ReplyCode(505, "UNEXPECTED_FRAME"),
    NotAllowed: ReplyCode(530, "NOT_ALLOWED"),
    TooManyChannels: ReplyCode(530, "NOT_ALLOWED"),
    Unsupported: ReplyCode(540, "NOT_IMPLEMENTED"),
    InternalFault: ReplyCode(541, "INTERNAL_ERROR"),
}


def unreadable(payload: bytes, error: Exception, channel: int) -> BrokerError:
    """The error to report for a method frame whose payload `decode_method` refused with `error`."""
    if len(payload) < 4:
        return FrameError(f"{described(METHOD, payload)}: unknown_frame")
    if isinstance(error, MalformedText):
        return FrameError(MALFORMED_TEXT) if channel else MalformedArguments(MALFORMED_TEXT)
    if not channel:
        return InternalFault("")
    if isinstance(error, UnknownMethod):
        return CommandInvalid("unimplemented method")
    return MalformedArguments(f"cannot decode {octets_text(payload[4:])}")


def check_open(kind: int, payload: bytes) -> None:
    """Raise the error for a frame on a channel that is not open, if it is not channel.open."""
    if kind == HEADER and len(payload) < HEADER_HEAD:
        raise refused_header(payload)
    if kind != METHOD:
        raise UnexpectedFrame("expected method frame, got non method frame instead")
    try:
        method = decode_method(payload)
    except (UnknownMethod, MalformedMethod) as error:
        raise unreadable(payload, error, 1) from error
    if not isinstance(method, commands.Channel.Open):
        raise ChannelError("expected 'channel.open'")


def no_content_header() -> UnexpectedFrame:
    """The error for a frame that comes where the content header of a publish must come."""
    return UnexpectedFrame(
        "expected content header for class 60, got non content header frame instead", PUBLISH_IDS
    )


def refused_header(header: bytes) -> FrameError | UnexpectedFrame:
    """The error for a content header that is too short, or begins otherwise than
    `CLASS_AND_WEIGHT`."""
    if len(header) < HEADER_HEAD:
        return FrameError(f"{described(HEADER, header)}: unknown_frame")
    class_id = header[0] << 8 | header[1]
    if class_id != 60:
        return UnexpectedFrame(
            f"expected content header for class 60, got one for class {class_id} instead",
            PUBLISH_IDS,
        )
    if len(header) < 14:
        return FrameError(f"cannot decode {binary_text(header)}")
    return no_content_header()


def too_large(size: int, size_max: int) -> PreconditionFailed:
    configured = "configured " if size_max < MESSAGE_SIZE_CAP else ""
    return PreconditionFailed(f"message size {size} is larger than {configured}max size {size_max}")


def reply_to(error: BrokerError) -> tuple[int, str]:
    """Reply code and reply text of a close method."""
    code, name = REPLIES[type(error)]
    return code, f"{name} - {error.text}" if error.text else name


def offender(error: BrokerError, method: tuple[int, int]) -> tuple[int, int]:
    """The class and method id in a close: the offending method's, or 0/0 if there is none."""
    if isinstance(error, UnexpectedFrame):
        return error.ids
    if isinstance(error, MalformedArguments):
        return method
    if isinstance(error, FrameError | InternalFault | TooManyChannels | ConnectionForced):
        return NO_IDS
    return method


def method_ids(kind: int, data: bytes, pos: int) -> tuple[int, int]:
    """Class and method id of the frame at `pos`; those of basic.publish for a content frame."""
    if kind == METHOD and len(data) >= pos + 11:
        ids: tuple[int, int] = struct.unpack_from(">HH", data, pos + 7)
        return ids
    return PUBLISH_IDS


def short_text(text: str) -> str:
    """The text, cut to the length of a short string; octets that are not UTF-8 are replaced."""
    text = printable(text)
    raw = text.encode()
    if len(raw) <= REPLY_TEXT_MAX:
        return text
    return raw[: REPLY_TEXT_MAX - 3].decode("utf-8", "ignore") + "..."
