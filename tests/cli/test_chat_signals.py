"""A signal that the main thread of a chat does not notice by itself."""

from __future__ import annotations

import subprocess

import pytest

from tests.forks import forking_python

pytest.importorskip("readline")

PROGRAM = """
import ctypes, os, signal, threading
from pathlib import Path
import readline  # its handler of SIGWINCH is what ends the wait
from hookline.cli._exit_codes import handle_sigterm
from hookline.cli.chat._foreground import Foreground

handle_sigterm()
main = threading.get_native_id()

def signal_this_thread():
    # As for a signal just before the wait: its handler is due, and nothing ends the wait of the main thread.
    while Path(f"/proc/self/task/{main}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        os.sched_yield()
    signal.pthread_kill(threading.get_ident(), signal.SIGNAL)

with Foreground() as foreground, foreground.reading():
    threading.Thread(target=signal_this_thread).start()
    try:
        ctypes.CDLL(None).poll(None, 0, -1)
        print("the wait has ended by itself")
    except KeyboardInterrupt:
        print("handled")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_just_before_a_prompt_waits_is_handled(name: str) -> None:
    done = subprocess.run(
        [forking_python("hookline"), "-c", PROGRAM.replace("signal.SIGNAL", f"signal.{name}")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("handled\n", "", 0)
