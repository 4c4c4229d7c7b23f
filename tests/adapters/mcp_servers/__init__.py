"""Real MCP servers to test against, and the ways to start them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from hookline.adapters.mcp import McpServer, mcp_server
from tests.forks import forking_python

HERE = Path(__file__).parent

__all__ = ["HERE", "alive", "everything_read", "raw", "shop", "started"]


def shop(**options: Any) -> McpServer:
    """A proper server, made with the installed package: a fork, since to import that takes longer than all that it does."""
    return mcp_server("shop", command=forking_python("hookline"), args=[str(HERE / "shop.py")], **options)


def raw(mode: str = "good", notes: Path | None = None, **options: Any) -> McpServer:
    """A server that starts fast and behaves as the mode says. What happens to it stands in the file `notes`."""
    args = ["-S", "-E", str(HERE / "raw.py"), mode, *([str(notes)] if notes else [])]
    return mcp_server("raw", command=sys.executable, args=args, **options)


def started(notes: Path) -> list[int]:
    """The processes that a server has noted."""
    return [int(line.split()[1]) for line in notes.read_text().splitlines() if line.startswith("start")]


def alive(pid: int) -> bool:
    """Whether a process exists, and is more than an entry that nobody has asked for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def everything_read() -> None:
    """Wait until the event loop has read what lies in its pipes, the end of a process that is gone among it."""
    reading, writing = os.pipe()
    os.close(writing)
    try:
        # The loop asks for all its pipes at once, so that it hears of those that were ready before this one too.
        await anyio.wait_readable(reading)
    finally:
        os.close(reading)
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()
