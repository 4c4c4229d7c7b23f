"""Names of receivers, looked up beside everything else that the process does in threads."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult

__all__ = ["Lookups"]

THREADS = 64
"""How many names may be looked up at a time. One whose servers are silent keeps its thread for some ten seconds."""


class Lookups(AbstractResolver):
    """The operating system's lookups, in threads of their own.

    The threads of the event loop are a handful, and belong to the application: names that hang would take them all.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hookline-lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a name.

        Raises:
            OSError: If it has none.
        """
        look_up = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Let go of the threads; one that hangs ends when its lookup does."""
        self._threads.shutdown(wait=False, cancel_futures=True)
