"""Hear commits: which of them a name hears, and how a process that hears them stops."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

import msgspec

from hookline._checks import quote
from hookline.bus._messages import CommittedEvents, EventFilter, Hearer
from hookline.errors import HookUsageError

__all__ = ["Draining", "check_filter", "is_for", "select_commits"]

DRAINING = 30.0
"""Seconds that the handlers under way may still take when a process stops hearing."""


class _EventHead(msgspec.Struct, rename="camel"):
    """What a filter asks of an event."""

    type: str
    agent_id: str = ""


_decode_head = msgspec.json.Decoder(_EventHead).decode


def check_filter(where: object) -> EventFilter | None:
    """Return a filter, checked.

    Raises:
        HookUsageError: If it is none.
    """
    if where is not None and not isinstance(where, EventFilter):
        raise HookUsageError(f"`where` must be an EventFilter; got {quote(where)}.")
    return where


def select_commits(name: str, handler: Hearer, where: EventFilter | None) -> Hearer:
    """Return a handler that is called with the commits for a name that a filter lets through, and passes over others.

    Args:
        name: The name.
        handler: The handler.
        where: The filter; `None` for all.
    """

    async def hear(commit: CommittedEvents) -> None:
        if (not commit.hearers or name in commit.hearers) and (where is None or is_wanted(commit, where)):
            await handler(commit)

    return hear


def is_for(name: str, commit: CommittedEvents, wire: msgspec.Raw) -> bool:
    """Return whether an event of a commit is for a name that hears the commit; one that cannot be read is."""
    wanted = commit.wanted.get(name)
    if wanted is None:
        return True
    try:
        return _decode_head(wire).type in wanted
    except msgspec.MsgspecError:
        return True


def is_wanted(commit: CommittedEvents, where: EventFilter) -> bool:
    """Return whether a filter lets a commit through."""
    if where.tenant_ids and commit.tenant_id not in where.tenant_ids:
        return False
    if not where.types and not where.agent_ids:
        return True
    heads = [_decode_head(event) for event in commit.events]
    return any(
        (not where.types or head.type in where.types)
        and (not where.agent_ids or any(fnmatchcase(head.agent_id, glob) for glob in where.agent_ids))
        for head in heads
    )


class Draining:
    """Ends tasks that hear commits: each may first hear the commit that it has begun to the end, and confirm it."""

    def __init__(self) -> None:
        self._closing = False
        self._busy: set[asyncio.Task[None] | None] = set()

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Mark the current task as one that hears a commit. If the process stops meanwhile, the task ends after it."""
        task = asyncio.current_task()
        self._busy.add(task)
        try:
            yield
        finally:
            self._busy.discard(task)
            if self._closing and task is not None:
                task.cancel()

    def guard(self, handler: Hearer) -> Hearer:
        """Return a handler that marks its task while it runs, and does not begin once the process stops."""

        async def hear(commit: CommittedEvents) -> None:
            if self._closing:
                await asyncio.Event().wait()  # until the task is cancelled
            with self.hearing():
                await handler(commit)

        return hear

    async def finish(self, tasks: Collection[asyncio.Task[None]], *, seconds: float = DRAINING) -> None:
        """End tasks.

        Args:
            tasks: The tasks.
            seconds: How long those that hear a commit may still take.
        """
        self._closing = True
        try:
            for task in tasks:
                if task not in self._busy:
                    task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=seconds)
        finally:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
