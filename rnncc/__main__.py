"""`python -m rnncc` and the `rnncc` script."""

from __future__ import annotations


def main() -> None:
    """Run the command line; exits the process with one of the codes of `rnncc.cli.output`."""
    from rnncc.cli import cli

    cli(prog_name="rnncc")


if __name__ == "__main__":
    main()
