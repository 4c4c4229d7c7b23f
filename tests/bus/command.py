"""The command line of hookline in a folder, as a process of its own: `python -m tests.bus.command <folder> <arguments>`."""

from __future__ import annotations

import os
import sys

from hookline.cli import main

os.chdir(sys.argv.pop(1))
main()
