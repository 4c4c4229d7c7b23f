"""Where tests keep their files: in memory, where there is room for them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["keep_temporary_files_in_memory", "short_folder"]

MEMORY = Path("/dev/shm")
"""The file system in memory of a Linux."""
NEEDED = 4 * 2**30


def keep_temporary_files_in_memory() -> None:
    """Make it the folder of temporary files of this process and those that it starts, unless `TMPDIR` names one.

    A store that is opened on a disk waits for it three times as long as it works.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return
    found = os.statvfs(MEMORY)
    if found.f_bavail * found.f_frsize >= NEEDED and not found.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # it may have been looked up before


def short_folder() -> Path:
    """Return a folder that every user may read and whose path is short, as that of a socket in it must be."""
    return MEMORY if Path(tempfile.gettempdir()) == MEMORY else Path("/tmp")
