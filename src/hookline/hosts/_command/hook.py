"""The file that coding agents run: `python -I -S hook.py …`. See `client`, which Python keeps compiled.

To compile the client at every start would take a third of the time that the interpreter itself needs to start.
"""

import sys

sys.path.insert(0, __file__.rpartition("/")[0])

import client  # type: ignore[import-not-found]

if __name__ == "__main__":
    client.main(sys.argv[1:])
