"""The outputs of the log: the console, a file, or both, each with its levels.

The console is the standard error output or the standard output. Answerable for the outputs, and for
one event being one line. Control characters in messages are escaped, and the lines of a traceback
begin with a space and a bar, as no event does. A file is opened anew on SIGHUP, after logrotate has
moved it away. If a file cannot be written, its lines are lost, and nothing else.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TextIO

from warren.config import LOG_CATEGORIES, Config, LogLevel, ProcessConfig
from warren.core.log_line import log_event, visible
from warren.log_console import Console

log = logging.getLogger("warren.node")

CONTINUATION = " | "
"""Begins each line of a traceback."""

NEVER = logging.CRITICAL + 1


class LogOutput:
    """The outputs of a node's log; `start` replaces those of the root logger."""

    def __init__(self, file: ReopenedFile | None, handlers: list[logging.Handler]) -> None:
        self._file = file
        self._handlers = handlers

    @classmethod
    def start(cls, config: Config) -> LogOutput:
        """Install the configured outputs. Raises OSError for a file that cannot be opened."""
        handlers: list[logging.Handler] = []
        file: ReopenedFile | None = None
        if config.log_file is not None:
            file = ReopenedFile(config.log_file)
            file.addFilter(Levels(config, config.log_file_level))
            handlers.append(file)
        if config.log_console:
            stream = sys.stdout if config.log_console_stream == "stdout" else sys.stderr
            console = _console(stream)
            console.addFilter(Levels(config, config.log_console_level))
            handlers.append(console)
        for handler in handlers:
            handler.setFormatter(OneLineFormatter(config.process))
        root = logging.getLogger()
        root.handlers[:] = handlers
        _set_levels(handlers)
        return cls(file, handlers)

    def reopen(self) -> None:
        """Write to the file that now has the configured name."""
        if self._file is not None:
            self._file.reopen()

    def stop(self) -> None:
        """Remove the outputs and close the file; only tests need it, not a process that ends."""
        root = logging.getLogger()
        for handler in self._handlers:
            root.removeHandler(handler)
            if handler is self._file:
                handler.close()


def reopen_files() -> None:
    """`LogOutput.reopen`, for callers without the `LogOutput`."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, ReopenedFile):
            handler.reopen()


def change_level(level: LogLevel) -> None:
    """Let all outputs take lines of this level and above, in every category, until the next
    start."""
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if any(isinstance(one, Levels) for one in handler.filters)
    ]
    for handler in handlers:
        for one in handler.filters:
            if isinstance(one, Levels):
                one.become(level)
    if handlers:
        _set_levels(handlers)


class Levels(logging.Filter):
    """The level of one output for each category.

    A category has its own level, otherwise that of the output, otherwise the level for all. If a
    category and the output both have one, the stricter counts.
    """

    def __init__(self, config: Config, output: LogLevel | None) -> None:
        super().__init__()
        own = _number(output) if output is not None else None
        self.others = _number(config.log_level) if own is None else own
        self.of_category = {
            f"warren.{category}": max(_number(level), own or 0)
            for category, level in config.log_levels
        }

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= self.of_category.get(record.name, self.others)

    def become(self, level: LogLevel) -> None:
        """Take one level for all categories."""
        self.others = _number(level)
        self.of_category = {}

    def lowest(self, logger: str) -> int:
        return self.of_category.get(logger, self.others)


class OneLineFormatter(logging.Formatter):
    """Time, level, logger, event; no text of a client can begin a line. With several processes,
    which write to the same outputs, each line ends with the number of its process."""

    def __init__(self, process: ProcessConfig | None = None) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._process = "" if process is None else f" process={process.number}"

    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record)) + self._process

    def formatException(self, ei: object) -> str:
        text = super().formatException(ei)  # type: ignore[arg-type]
        # Not splitlines: other characters that break lines are escaped, like all invisible ones.
        return "\n".join(f"{CONTINUATION}{visible(line)}" for line in text.split("\n"))


class ReopenedFile(logging.FileHandler):
    """A log file that can be rotated by renaming it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def reopen(self) -> None:
        """Open the file that now has the name; if that fails, keep the old one."""
        try:
            stream = self._open()
        except OSError as error:
            log_event(
                log, logging.ERROR, "log_file_not_reopened", file=self.baseFilename, error=error
            )
            return
        self.acquire()
        try:
            old, self.stream = self.stream, stream
        finally:
            self.release()
        if old is not None:
            old.close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Does nothing: on a full disk, every event would become a traceback on the other
        output."""


def _console(stream: TextIO | None) -> logging.Handler:
    """The output for a standard stream, which may have been replaced by one without a file."""
    try:
        return logging.StreamHandler(stream) if stream is None else Console(stream)
    except OSError:
        return logging.StreamHandler(stream)


def _set_levels(handlers: list[logging.Handler]) -> None:
    """Let loggers drop at once the lines that no output takes."""
    levels = [one for handler in handlers for one in handler.filters if isinstance(one, Levels)]
    logging.getLogger().setLevel(min((one.others for one in levels), default=NEVER))
    for category in LOG_CATEGORIES:
        name = f"warren.{category}"
        lowest = min((one.lowest(name) for one in levels), default=NEVER)
        logging.getLogger(name).setLevel(lowest)


def _number(level: LogLevel) -> int:
    return NEVER if level == "none" else logging.getLevelNamesMapping()[level.upper()]
