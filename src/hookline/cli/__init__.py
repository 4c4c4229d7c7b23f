"""The `hookline` command."""

import io
import sys

from hookline.cli._exit_codes import FAILED, INTERRUPTED, handle_sigterm, interrupted_code
from hookline.errors import MissingExtraError

__all__ = ["main"]

PACKAGES = ("typer", "rich", "jinja2")
"""What the extra `cli` installs."""


def main() -> None:
    """Run the command line; the console script `hookline`."""
    handle_sigterm()
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
            sys.stderr.write(f"hookline: {MissingExtraError('cli', 'The command line')}\n")
            sys.exit(FAILED)
        app(prog_name="hookline")
    except KeyboardInterrupt:
        sys.exit(interrupted_code())
    except SystemExit as ended:
        # The parser of arguments makes 130 of every interrupt that nobody has caught.
        sys.exit(interrupted_code() if ended.code == INTERRUPTED else ended.code)
