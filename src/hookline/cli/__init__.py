"""The `hookline` command."""

import io
import sys

from hookline.errors import MissingExtraError

__all__ = ["main"]

PACKAGES = ("typer", "rich", "jinja2")
"""What the extra `cli` installs."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main() -> None:
    """Run the command line; the console script `hookline`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a mark that a terminal does not know is no reason to fail
            stream.reconfigure(errors="replace")
    try:
        try:
            import jinja2  # noqa: F401  (a missing one is better found before a run than after it)

            from hookline.cli._app import app
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in PACKAGES:
                raise
            sys.exit(f"hookline: {MissingExtraError('cli', 'The command line')}")
        app(prog_name="hookline")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
