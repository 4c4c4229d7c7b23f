"""Wait for the decisions of people about calls: one look at the store for everybody who waits."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from hookline.runtime import Approve, Reject

if TYPE_CHECKING:
    from hookline.store import SqlStore, StoredDecision

__all__ = ["DecisionWatch"]

LOOK_SECONDS = 0.2
MOST_DECISIONS = 1000
CLOCK_SECONDS = 60.0
"""How far the clock of the database may be behind."""
WITHDRAWN = "The question was withdrawn."


class DecisionWatch:
    """Waits for decisions about operations of one agent that wait for a person.

    Args:
        store: The store.
        agent_id: The agent.
        tenant_id: The tenant of the operations.
        reading: Held while the store is read for one of those who wait.
    """

    def __init__(self, store: SqlStore, agent_id: str, tenant_id: str, reading: asyncio.Semaphore) -> None:
        self._store, self._agent_id, self._tenant_id = store, agent_id, tenant_id
        self._waiting: dict[str, asyncio.Future[Approve | Reject]] = {}
        self._numbers: Counter[str] = Counter()
        """How many wait for each operation: a host may make one call several times at once."""
        self._since = time.time()
        self._looking: asyncio.Task[None] | None = None
        self._reading = reading

    async def read(self, operation_id: str, tool_call_id: str) -> Approve | Reject | None:
        """Return the decision about a call, if there is one. An operation that was ended otherwise refuses its call.

        Args:
            operation_id: The operation.
            tool_call_id: The call.
        """
        async with self._reading:
            for stored in await self._store.decisions_of(operation_id):
                if stored.tool_call_id == tool_call_id:
                    return _to_decision(stored)
            operation = await self._store.operation(operation_id)
        if operation is None or operation.status != "waiting_for_human":
            return Reject(tool_call_id, reason=WITHDRAWN, and_continue=True)
        return None

    async def wait(self, operation_id: str, seconds: float, stops: Callable[[], bool]) -> Approve | Reject | None:
        """Wait for the decision about the call of an operation that waits.

        Args:
            operation_id: The operation.
            seconds: How long at most.
            stops: Says when to wait no longer.

        Returns:
            The decision; `None` if there is none. An operation that is ended in another way refuses its call.

        Raises:
            StoreUnavailableError: If the store cannot be reached.
        """
        end = monotonic() + seconds
        if not self._waiting:
            self._since = time.time() - CLOCK_SECONDS
        found = self._waiting.setdefault(operation_id, asyncio.get_running_loop().create_future())
        self._numbers[operation_id] += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            while not stops() and not found.done() and (left := end - monotonic()) > 0:
                await asyncio.wait([found], timeout=min(left, LOOK_SECONDS))
            return found.result() if found.done() else None
        finally:
            self._numbers[operation_id] -= 1
            if not self._numbers[operation_id]:
                del self._numbers[operation_id], self._waiting[operation_id]

    async def _look(self) -> None:
        """Look for decisions, and for operations that no longer wait, as long as anybody waits."""
        while self._waiting:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look_once()
            except Exception as error:  # those who wait deny their calls
                for future in self._waiting.values():
                    if not future.done():
                        future.set_exception(error)
                return

    async def _look_once(self) -> None:
        from hookline.store import DecisionFilter

        store, agent_id, tenant_id = self._store, self._agent_id, self._tenant_id
        which = DecisionFilter(agent_id=agent_id, tenant_id=tenant_id, since=self._since)
        for stored in (await store.decisions(which, limit=MOST_DECISIONS)).items:
            self._give(stored.operation_id, _to_decision(stored))
        page = await store.operations(tenant_id, "waiting_for_human", agent_id=agent_id, limit=MOST_DECISIONS)
        listed = {each.operation_id for each in page.items}
        for operation_id in [each for each in self._waiting if each not in listed]:
            decision = await self.read(operation_id, "")
            if decision is not None:
                self._give(operation_id, decision)

    def _give(self, operation_id: str, decision: Approve | Reject) -> None:
        future = self._waiting.get(operation_id)
        if future is not None and not future.done():
            future.set_result(decision)


def _to_decision(stored: StoredDecision) -> Approve | Reject:
    if stored.decision == "approve":
        return Approve(stored.tool_call_id)
    return Reject(stored.tool_call_id, reason=stored.reason, and_continue=stored.decision == "rejectAndContinue")
