"""`python -m hookline.hosts INSTALLATION`: the resident process, which the client starts."""

import sys
from pathlib import Path

from hookline.hosts._resident import run_resident

if __name__ == "__main__":
    sys.exit(run_resident(Path(sys.argv[1])))
