"""Serves a database, as a program of its own; a third argument is the signal that it sends itself whenever it says something."""

from __future__ import annotations

import os
import signal
import sys
import warnings

from hookline.server import Server, serve


def say(text: str) -> None:
    print(text, flush=True)
    for name in sys.argv[3:]:
        os.kill(os.getpid(), getattr(signal, name))


if __name__ == "__main__":
    os.dup2(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT), 2)
    warnings.simplefilter("error")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    serve(lambda: Server(sys.argv[1], port=0, page=False), say=say)
