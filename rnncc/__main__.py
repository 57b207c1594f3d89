"""`python -m rnncc` and the `rnncc` script."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exits the process with one of the codes of `rnncc.cli.output`."""
    try:
        from rnncc.cli import cli

        cli(prog_name="rnncc")
    except KeyboardInterrupt:  # before a command began, or after it ended
        sys.exit(130)


if __name__ == "__main__":
    main()
