"""`warren process`: one process of a broker. Only its supervisor runs this command."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys

import click

from warren.config import Config
from warren.log_output import LogOutput
from warren.mgmt.server_command import run, serve

PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that sets the signal a process gets when the thread that made it ends."""


@click.command(hidden=True)
@click.argument("supervisor", type=int)
@click.argument("node")
def process(supervisor: int, node: str) -> None:
    """Run one process of a broker, for `warren server`."""
    end_with(supervisor)
    config = pickle.load(sys.stdin.buffer)
    assert isinstance(config, Config) and config.node_name == node, (config, node)
    try:
        output = LogOutput.start(config)
    except OSError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(run(config, output, serve))


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent has ended.

    The supervisor's store ends with it, and the next start must find the directory and the ports
    free.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent has ended before the call.
        sys.exit(1)
