"""Python reads this file when it starts; the resident process then becomes a fork of one that has imported hookline."""

import os
import sys

if sys.orig_argv[1:4] == ["-P", "-m", "hookline.hosts"]:
    sys.argv = [os.environ["HOOKLINE_FORKING_PYTHON"], *sys.orig_argv[2:]]
    with open(sys.argv[0]) as _launcher:
        exec(_launcher.read(), {})
