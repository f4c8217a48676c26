"""`warren process`: one process of a broker. Its supervisor starts it; it is nothing for people."""

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
"""Of prctl(2): which signal a process gets when the thread that made it ends."""


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
    """Be killed when the parent has ended, however that was: what it had is gone with it, and a
    start that comes next must find the directory and the ports free."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It was faster.
        sys.exit(1)
