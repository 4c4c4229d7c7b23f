"""`StoreCheck`: whether the database can be used, for those who ask whether the server can work."""

from __future__ import annotations

import asyncio

from hookline.errors import StoreUnavailableError
from hookline.store import SqlStore, waiting_at_most

__all__ = ["StoreCheck"]

LONGEST_LOOK, LONGEST_WAIT = 2.0, 0.5
"""Seconds for all of a look, and for each of what others may hold."""


class StoreCheck:
    """Looks whether the database can be read and, on SQLite, written.

    Anybody may ask, and the write lock is there once: those who ask at the same time share one look.

    Args:
        store: The database.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._looking: asyncio.Task[dict[str, list[str]] | None] | None = None

    async def look(self) -> dict[str, list[str]] | None:
        """Find out whether the database can be used.

        Returns:
            `None` if it cannot; else the hooks that operations wait for, by operation.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> dict[str, list[str]] | None:
        try:
            with waiting_at_most(LONGEST_WAIT):
                async with asyncio.timeout(LONGEST_LOOK):
                    await self._store.check()
                    return await self._store.missing_hooks()
        except (StoreUnavailableError, TimeoutError):
            return None
