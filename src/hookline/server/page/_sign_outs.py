"""Sessions that somebody has ended by signing out: a copy of their cookie opens nothing any more, in any process."""

from __future__ import annotations

from time import monotonic

from sqlalchemy import delete, literal, select
from sqlalchemy.dialects import postgresql, sqlite

from hookline.server.page._sessions import Session
from hookline.store import SqlStore, ended_sessions

__all__ = ["SignOuts"]

FRESH_SECONDS = 0.5
"""For how long it counts that a session was found not to have ended, so that one that has ends within a second."""
REMEMBERED = 10_000
MARGIN_SECONDS = 86_400.0
"""For how long it is kept that a session was ended, after it would have ended by itself: clocks may differ."""


class SignOuts:
    """The sessions that have been ended early.

    Args:
        store: Where they are kept.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._live: dict[str, float] = {}

    async def end(self, session: Session) -> None:
        """End a session, in all processes within a second.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        async with self._store.writing() as connection:
            insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
            ended = insert(ended_sessions).values(id=session.nonce, until=session.ends + MARGIN_SECONDS)
            await connection.execute(ended.on_conflict_do_nothing())
            await connection.execute(delete(ended_sessions).where(ended_sessions.c.until < self._store.now_sql()))
        self._live.pop(session.nonce, None)

    async def has(self, session: Session) -> bool:
        """Whether a session was ended.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        began = monotonic()
        if began - self._live.get(session.nonce, -FRESH_SECONDS) < FRESH_SECONDS:
            return False
        async with self._store.reading() as connection:
            query = select(literal(1)).where(ended_sessions.c.id == session.nonce)
            if (await connection.execute(query)).first() is not None:
                return True
        if len(self._live) >= REMEMBERED:
            self._live.clear()
        self._live[session.nonce] = began
        return False
