"""The `hookline` command."""

import errno
import importlib.util
import io
import os
import sys
import threading

from hookline.cli._exit_codes import FAILED, INTERRUPTED, TERMINATED, handle_sigterm, interrupted_code
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
    code: str | int | None = None
    failure: OSError | None = None
    try:
        if None in map(importlib.util.find_spec, PACKAGES):
            sys.stderr.write(f"hookline: {MissingExtraError('cli', 'The command line')}\n")
            sys.exit(FAILED)
        from hookline.cli._app import app

        app(prog_name="hookline")
    except KeyboardInterrupt:
        code = interrupted_code()
    except SystemExit as ended:
        # The parser of arguments makes 130 of every interrupt that nobody has caught.
        code = interrupted_code() if ended.code == INTERRUPTED else ended.code
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        failure = error
    failure = _flush_stdout() or failure
    if failure is not None:
        sys.stderr.write(f"hookline: the output cannot be written: {failure.strerror}\n")
        code = code or FAILED
    if code in (INTERRUPTED, TERMINATED) and _has_busy_threads():
        os._exit(code)  # Python would wait for a tool in a thread, which nothing can interrupt
    sys.exit(code)


def _has_busy_threads() -> bool:
    return any(not each.daemon and each is not threading.main_thread() for each in threading.enumerate())


def _flush_stdout() -> OSError | None:
    """Write what stdout still holds; return the error, unless nobody reads it any more."""
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # Python flushes once more at its end, and would exit with 120
        os.close(nowhere)
        return None if error.errno == errno.EPIPE else error
    return None
