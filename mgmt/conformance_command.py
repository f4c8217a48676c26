"""`warren conformance`: runs the conformance suite against any broker."""

from __future__ import annotations

import sys

import click

from warren.compat_tests.broker import parse_url
from warren.extras import install_command


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("url")
@click.option(
    "--management",
    metavar="URL",
    help="RabbitMQ's HTTP API of the same broker; without it, tests that need an "
    "administrator are skipped.",
)
@click.argument("pytest_args", nargs=-1, type=click.UNPROCESSED)
def conformance(url: str, management: str | None, pytest_args: tuple[str, ...]) -> None:
    """Run the conformance suite against the broker at URL and print a verdict per area.

    PYTEST_ARGS are passed on, such as -k NAME or -m "not slow".
    """
    try:
        parse_url(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        from warren.compat_tests.runner import run
    except ImportError as error:
        raise click.ClickException(
            f"{error.name} is missing; install it with: {install_command('conformance')}"
        ) from error
    sys.exit(run(url, management, list(pytest_args)))
