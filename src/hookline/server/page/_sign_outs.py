"""Sessions that were ended by signing out, so that copies of their cookies are refused in all processes."""

from __future__ import annotations

from time import monotonic

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.server.page._sessions import PageSession
from hookline.server.page._shared_work import SharedWork
from hookline.store import SqlStore, ended_sessions, insert_into

__all__ = ["SignOuts"]

FRESH_SECONDS = 0.5
"""Seconds for which a session that was found valid is cached, so that an ended one is refused within one second."""
REMEMBERED = 10_000
MARGIN_SECONDS = 86_400.0
"""Seconds for which an ended session is stored beyond its own end, since clocks may differ."""


class SignOuts:
    """The sessions that were ended early.

    Args:
        store: The store in which they are recorded.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._checked: dict[str, float] = {}
        self._asked: set[str] = set()
        self._work = SharedWork()

    async def end(self, session: PageSession) -> None:
        """End a session; within one second, it is refused in all processes.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """

        async def end_session(connection: AsyncConnection) -> None:
            ended = insert_into(connection, ended_sessions).values(
                id=session.nonce, until=session.ends + MARGIN_SECONDS
            )
            await connection.execute(ended.on_conflict_do_nothing())
            await connection.execute(delete(ended_sessions).where(ended_sessions.c.until < self._store.now_sql()))

        await self._store.write(end_session)
        self._checked.pop(session.nonce, None)

    async def contains(self, session: PageSession) -> bool:
        """Return whether a session was ended.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        if monotonic() - self._checked.get(session.nonce, -FRESH_SECONDS) < FRESH_SECONDS:
            return False
        self._asked.add(session.nonce)
        return session.nonce in await self._work.get("ended", self._read_ended)

    async def _read_ended(self) -> set[str]:
        """Read which of the sessions that were asked for were ended, with one query for all live views."""
        began, asked, self._asked = monotonic(), self._asked, set()
        query = select(ended_sessions.c.id).where(ended_sessions.c.id.in_(asked))
        ended = {row.id for row in await self._store.read_rows(query)}
        if len(self._checked) >= REMEMBERED:
            self._checked.clear()
        self._checked |= dict.fromkeys(asked - ended, began)
        return ended
