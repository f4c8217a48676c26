"""The `warren` command."""

from __future__ import annotations

from warren.mgmt.command_line import warren


def main() -> None:
    warren(prog_name="warren")


if __name__ == "__main__":
    main()
