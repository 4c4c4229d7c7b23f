"""Write refused attempts into the audit: wrong keys, missing scopes, failed sign-ins. A flood takes few rows."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

import msgspec

from hookline.errors import StoreUnavailableError
from hookline.server._audit import note
from hookline.store import SqlStore

__all__ = ["AUDITED", "Attempt", "Refusals"]

logger = logging.getLogger("hookline")

AUDITED = frozenset(("key", "scope", "foreign_form"))
"""Codes of refusals that somebody may have brought about on purpose."""
FIRST_SECONDS = 1.0
"""After which an attempt is written that is the first of its kind; what is like it comes into the same row."""
NEXT_SECONDS, LONGEST_SECONDS = 60.0, 3600.0
"""Between two rows of one kind: at first, and at most. It doubles as long as attempts go on."""
KINDS = 50
"""Kinds that are told apart at a time. What comes beyond these shares one row, so that a flood from many addresses
writes about as many rows an hour."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What makes refused attempts alike.

    Attributes:
        tenant_id: Whose key it came with; `""` if that is not known.
        actor: The key, or the address if there was no valid one.
        action: What was refused: `"request.refused"` or `"sign_in.refused"`.
        code: Why.
        status: Of the answer.
        address: Where it came from.
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


class _Row:
    """Attempts of one kind that wait to be written together."""

    def __init__(self, target: str, due: float) -> None:
        self.target, self.due = target, due
        self.count, self.pause = 1, NEXT_SECONDS


class Refusals:
    """Counts refused attempts, and writes them into the audit in the background.

    Args:
        store: Where the audit is.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._rows: dict[Attempt, _Row] = {}
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    def note(self, attempt: Attempt, target: str) -> None:
        """Have an attempt written some time.

        Args:
            attempt: What it was.
            target: The method and the path that were asked for.
        """
        if attempt not in self._rows and len(self._rows) >= KINDS:
            attempt, target = OTHERS, ""
        row = self._rows.get(attempt)
        if row is None:
            self._rows[attempt] = _Row(target, monotonic() + FIRST_SECONDS)
        else:
            row.count += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_writing())

    async def aclose(self) -> None:
        """Write what waits, if the database can be reached."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()

    async def flush(self, *, now: float = float("inf")) -> None:
        """Write all that is due.

        Args:
            now: By `monotonic`; all is due unless given.
        """
        async with self._writing:
            due = [(attempt, row, row.count) for attempt, row in self._rows.items() if row.due <= now]
            written = [each for each in due if each[2]]
            if written:
                try:
                    await self._write([(attempt, row.target, count) for attempt, row, count in written])
                except StoreUnavailableError as error:
                    logger.debug("Refused attempts wait for the database: %s", error)
                    return
                except Exception:
                    logger.exception("Refused attempts cannot be written into the audit, and are dropped")
            for attempt, row, count in due:
                if not count:
                    del self._rows[attempt]
                    continue
                row.count -= count
                row.due = monotonic() + row.pause
                row.pause = min(row.pause * 2, LONGEST_SECONDS)

    async def _keep_writing(self) -> None:
        while self._rows:
            await asyncio.sleep(FIRST_SECONDS / 2)
            await self.flush(now=monotonic())

    async def _write(self, found: list[tuple[Attempt, str, int]]) -> None:
        async with self._store.writing() as connection:
            for attempt, target, count in found:
                detail = {
                    "address": attempt.address,
                    "status": attempt.status,
                    "code": attempt.code,
                    "count": count,
                }
                await note(
                    connection,
                    attempt.tenant_id,
                    attempt.actor,
                    attempt.action,
                    target,
                    now=self._store.now_sql(),
                    detail=detail,
                )
