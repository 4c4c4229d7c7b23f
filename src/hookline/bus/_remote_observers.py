"""Run the observers of a bundle for the commits that a process hears."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar

import msgspec

from hookline.bus._hearing import is_for
from hookline.bus._messages import CommittedEvents
from hookline.errors import EventDecodeError, HookUsageError, message_of
from hookline.events import EVENTS, BeforeToolCall, Event, copy_for_committed, decode
from hookline.execution import Observer, compile_observer
from hookline.hooks import AnyHook, Hook, Hooks

__all__ = ["DEAD_LETTERS", "FailedEvent", "RemoteObservers", "heard_event_id"]

logger = logging.getLogger("hookline")

DEAD_LETTERS = "hookline-dead-letters"
"""The name under which relays take the events that observers could not handle."""
HOOK_TIMEOUT = 30.0
"""Seconds that an async handler may take if it has no `timeout` of its own."""
MOST_DELIVERIES = 10
"""How often a commit is handed over before its events are dead letters, although no observer has failed."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a handler that failed is called again: the first time, and at most."""

_event_id: ContextVar[str] = ContextVar("hookline_heard_event")


def heard_event_id() -> str:
    """Return the id of the event that a remote observer is handling: `<operation>:<number>`.

    It is the same whenever the event is heard again, so that a handler can leave out what it has done already.

    Raises:
        HookUsageError: Outside of a remote observer.
    """
    try:
        return _event_id.get()
    except LookupError:
        raise HookUsageError("heard_event_id() is for remote observers: call it while one handles an event.") from None


class FailedEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An event that an observer could not handle, as JSON.

    Attributes:
        hearer: The name under which it was heard.
        hook_id: The observer; `""` if the event could not be read.
        operation_id: The operation.
        number: The number of the event.
        tenant_id: The tenant.
        tries: How often it was tried.
        error: Why it failed the last time.
    """

    hearer: str
    hook_id: str
    operation_id: str
    number: int
    tenant_id: str
    tries: int
    error: str


class RemoteObservers:
    """Calls observers with the events of commits, in order, and waits for each.

    Args:
        name: The name under which the commits are heard.
        batch: The bundles and hooks.
        tries: How often an observer is called with an event before it is given up.
        give_up: Stores an event that an observer could not handle; if it raises, it is called again.

    Attributes:
        is_empty: Whether there is no observer.
    """

    def __init__(
        self,
        name: str,
        batch: Sequence[AnyHook],
        *,
        tries: int,
        give_up: Callable[[FailedEvent], Awaitable[object]],
    ) -> None:
        self._name, self._tries, self._give_up = name, tries, give_up
        self._observers: dict[type[Event], list[Observer]] = {event: [] for event in EVENTS.values()}
        for entry in batch:
            if isinstance(entry, Hooks):
                for hook in entry.observers:
                    self._observers[hook.event].append(compile_observer(hook, entry.tenant_id))
            elif isinstance(entry, Hook):
                self._observers[entry.event].append(compile_observer(entry, entry.tenant_id))
        self.is_empty = not any(self._observers.values())

    async def hear(self, commit: CommittedEvents) -> None:
        """Handle the events of a commit.

        One that was handed over too often kills those who hear it, or never ends, and would hold up all that follow it.
        """
        if commit.delivered > MOST_DELIVERIES:
            problem = RuntimeError("no process that heard it has finished; each was killed, or had too little time")
            for number, _ in self._select_events(commit):
                await self._give_up_event(commit, number, "", commit.delivered - 1, problem)
            return
        for number, wire in self._select_events(commit):
            try:
                event = decode(bytes(wire))
            except EventDecodeError as error:
                await self._give_up_event(commit, number, "", 1, error)
                continue
            if isinstance(event, BeforeToolCall):
                event = copy_for_committed(event)
            for observer in self._observers[type(event)]:
                if observer.matches is None or observer.matches(event):
                    await self._handle(commit, number, observer, event)

    def _select_events(self, commit: CommittedEvents) -> Iterator[tuple[int, msgspec.Raw]]:
        """Yield the events of a commit that are for this name, with their numbers."""
        for number, wire in enumerate(commit.events, commit.first):
            if is_for(self._name, commit, wire):
                yield number, wire

    async def _handle(self, commit: CommittedEvents, number: int, observer: Observer, event: Event) -> None:
        pause = FIRST_PAUSE
        for nth in range(1, self._tries + 1):
            token = _event_id.set(f"{commit.operation_id}:{number}")
            try:
                await call_observer(observer, event)
                return
            except Exception as error:
                if nth == self._tries:
                    await self._give_up_event(commit, number, observer.id, nth, error)
                    return
                logger.warning(
                    "Observer %r failed with event %s:%d, and gets it again in %g s: %s",
                    observer.id,
                    commit.operation_id,
                    number,
                    pause,
                    message_of(error),
                )
            finally:
                _event_id.reset(token)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _give_up_event(
        self, commit: CommittedEvents, number: int, hook_id: str, tries: int, error: Exception
    ) -> None:
        """Have an event stored that could not be handled; the next event waits until it is."""
        failed = FailedEvent(
            hearer=self._name,
            hook_id=hook_id,
            operation_id=commit.operation_id,
            number=number,
            tenant_id=commit.tenant_id,
            tries=tries,
            error=f"{type(error).__name__}: {message_of(error)}"[:2000],
        )
        pause = FIRST_PAUSE
        while True:
            try:
                await self._give_up(failed)
            except Exception as problem:
                logger.warning(
                    "The dead letter of event %s:%d cannot be stored yet, and later events wait: %s",
                    commit.operation_id,
                    number,
                    message_of(problem),
                )
            else:
                break
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        logger.error(
            "%r gave up event %s:%d after %d tries; it is a dead letter: %s",
            hook_id or self._name,
            commit.operation_id,
            number,
            tries,
            failed.error,
        )


async def call_observer(observer: Observer, event: Event) -> None:
    """Call an observer, and wait until it has handled the event.

    Raises:
        TimeoutError: If it took too long.
        Exception: What it raised.
    """
    handler = observer.handler
    if not observer.is_async:
        handler(event)
        return
    limit = HOOK_TIMEOUT if observer.timeout is None else observer.timeout
    async with asyncio.timeout(None if limit == math.inf else limit):
        await handler(event)
