"""Write refused requests into the audit log (wrong keys, missing scopes, failed sign-ins), a flood in a few rows."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import StoreUnavailableError
from hookline.store import SqlStore, write_audit

__all__ = ["AUDITED", "Attempt", "Refusals"]

logger = logging.getLogger("hookline")

AUDITED = frozenset(("key", "scope", "foreign_form"))
"""Codes of refusals that may come from an attack."""
FIRST_SECONDS = 1.0
"""Seconds until the first attempt of a kind is written; similar attempts until then share its row."""
NEXT_SECONDS, LONGEST_SECONDS = 60.0, 3600.0
"""Shortest and longest time, in seconds, between two rows of one kind. It doubles as long as attempts go on."""
KINDS = 50
"""Kinds of attempts that are distinguished at a time. All others share one row, so that a flood from many addresses
writes about that many rows an hour."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of refused attempt; attempts that are equal in all attributes share a row of the audit log.

    Attributes:
        tenant_id: The tenant of the key; `""` if there was no valid key.
        actor: The key, or the address if there was no valid key.
        action: `"request.refused"` or `"sign_in.refused"`.
        code: The code of the error.
        status: The status of the response.
        address: The address of the client.
    """

    tenant_id: str
    actor: str
    action: str
    code: str
    status: int
    address: str


OTHERS = Attempt(
    tenant_id="", actor="several addresses", action="request.refused", code="several", status=401, address=""
)


class _PendingRow:
    """Attempts of one kind that wait to be written in one row."""

    def __init__(self, target: str, due: float) -> None:
        self.target, self.due = target, due
        self.count, self.pause = 1, NEXT_SECONDS


class Refusals:
    """Counts refused attempts, and writes them into the audit log in the background.

    Args:
        store: The store of the audit log.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._rows: dict[Attempt, _PendingRow] = {}
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def add(self, attempt: Attempt, target: str) -> None:
        """Count an attempt, to be written later.

        Args:
            attempt: The attempt.
            target: The method and path of the request.
        """
        if attempt not in self._rows and len(self._rows) >= KINDS:
            attempt, target = OTHERS, ""
        row = self._rows.get(attempt)
        if row is None:
            self._rows[attempt] = _PendingRow(target, monotonic() + FIRST_SECONDS)
        else:
            row.count += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_periodically())

    async def aclose(self) -> None:
        """Write all waiting attempts, if the database can be reached."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()

    async def flush(self, *, now: float = float("inf")) -> None:
        """Write the attempts that are due.

        Args:
            now: The present time by `monotonic`; all attempts are due by default.
        """
        async with self._writing:
            due = [(attempt, row, row.count) for attempt, row in self._rows.items() if row.due <= now]
            written = [each for each in due if each[2]]
            if written:
                try:
                    await self._write([(attempt, row.target, count) for attempt, row, count in written])
                except StoreUnavailableError as error:
                    logger.debug("Refused attempts cannot be written to the audit log yet: %s", error)
                    return
                except Exception:
                    logger.exception("Refused attempts cannot be written to the audit log and are dropped")
            for attempt, row, count in due:
                if not count:
                    del self._rows[attempt]
                    continue
                row.count -= count
                row.due = monotonic() + row.pause
                row.pause = min(row.pause * 2, LONGEST_SECONDS)

    async def _write_periodically(self) -> None:
        while self._rows:
            await asyncio.sleep(FIRST_SECONDS / 2)
            await self.flush(now=monotonic())

    async def _write(self, found: list[tuple[Attempt, str, int]]) -> None:
        async def write_attempts(connection: AsyncConnection) -> None:
            for attempt, target, count in found:
                detail = {
                    "address": attempt.address,
                    "status": attempt.status,
                    "code": attempt.code,
                    "count": count,
                }
                await write_audit(
                    connection,
                    attempt.tenant_id,
                    attempt.actor,
                    attempt.action,
                    target,
                    now=self._store.now_sql(),
                    detail=detail,
                )

        await self._store.write(write_attempts)
