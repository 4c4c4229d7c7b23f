"""`Bus`: carry questions, committed events, small values and wake-ups between processes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol, runtime_checkable

import msgspec

from hookline.bus._messages import Answerer, CommittedEvents, EventFilter, Hearer, Watcher
from hookline.bus._remote_observers import DEAD_LETTERS, FailedEvent
from hookline.bus._serving import ServedHooks
from hookline.bus._signing import Secret
from hookline.hooks import AnyHook, Hooks
from hookline.wakeups import Wakeups

__all__ = ["Bus"]

DEAD_LETTER_SECONDS = 10.0
"""Seconds within which a relay must have stored a dead letter."""


@runtime_checkable
class Bus(Wakeups, Protocol):
    """Carries questions, committed events, small values and wake-ups between processes, on asyncio.

    Losing a bus delays; it never loses what was committed, since that is in the database. A bus of your own is a
    subclass, which gets `serve` from here; `hookline.evals.bus_contract` checks it.
    """

    @abstractmethod
    async def ask(self, name: str, question: bytes, *, deadline: float) -> bytes:
        """Ask one of the processes that serve a name, and return its answer.

        If that process dies, another one is asked within the deadline. So a question may be answered twice; the first
        answer counts.

        Args:
            name: The name: up to 63 letters, digits, `_` and `-`.
            question: The question.
            deadline: Seconds until the answer must be there.

        Raises:
            NobodyServesError: At once, if no process serves the name.
            TimeoutError: If no answer came before the deadline, or the server of the bus was away.
            BusAnswerError: If a process answered with a failure, or the question or the answer is too large.
            HookUsageError: If an argument is invalid, or the bus is not open.
        """
        ...

    @abstractmethod
    def answer(self, name: str, handler: Answerer) -> AbstractAsyncContextManager[None]:
        """Answer questions of a name while the context is open, concurrently.

        Each question goes to one of the processes that serve the name. A handler is cancelled at the deadline of its
        question. When the context ends, no further questions come, and those under way are answered first.

        Args:
            name: The name.
            handler: `async (question) -> answer`.

        Raises:
            HookUsageError: If an argument is invalid, or the bus is not open.
        """
        ...

    @abstractmethod
    async def depths(self) -> dict[str, int]:
        """Return the number of commits that are kept and not heard yet, by name of those who hear.

        Raises:
            BusUnavailableError: If the server cannot be reached.
            HookUsageError: If the bus is not open.
        """
        ...

    async def stream_id(self) -> str:
        """Return the id of what keeps the commits, which is another one once the bus has lost them.

        It is `""` for a bus that does not know. A relay then cannot notice a loss.

        Raises:
            BusUnavailableError: If the server cannot be reached.
            HookUsageError: If the bus is not open.
        """
        return ""

    @abstractmethod
    async def tell(self, commit: CommittedEvents) -> None:
        """Hand over a commit to all who hear. It returns once the bus has kept it.

        The same commit told twice is kept once, as long as the bus remembers it. Tell the commits of an operation in
        order, one at a time.

        Args:
            commit: The commit, which must be in the database.

        Raises:
            BusUnavailableError: If the bus did not keep it, or did not say so. Tell it again.
            CommitTooLargeError: If it has more bytes than a message can have.
            HookUsageError: If it is invalid, or the bus is not open.
        """
        ...

    @abstractmethod
    def hear(
        self, name: str, handler: Hearer, *, where: EventFilter | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Hear every commit that was told for a name, while the context is open.

        The bus remembers by the name what was heard, so that a later process goes on where an earlier one ended.
        Several processes that hear under one name share the work. Commits of one operation are heard in order and one
        at a time; each at least once: after a process was killed, or a handler raised, its commit is heard again.
        When the context ends, no further commits come, and those under way are heard first, for 30 seconds at most.

        Args:
            name: The name.
            handler: `async (commit) -> None`.
            where: Only commits that match; others count as heard.

        Raises:
            HookUsageError: If an argument is invalid, or the bus is not open.
            BusUnavailableError: If the server cannot be reached.
        """
        ...

    @abstractmethod
    async def put(self, key: str, value: bytes, *, seconds: float | None = None) -> None:
        """Give a key a value, for all processes. It returns once the bus has kept the value.

        Args:
            key: Parts of letters, digits, `_` and `-`, joined by dots; up to 200 characters.
            value: The value, up to 64 KiB.
            seconds: Seconds after which the key has no value any more, unless it is put again; never earlier, and a few
                seconds later at most. `NatsBus` rounds up to whole seconds. `None` keeps the value.

        Raises:
            BusUnavailableError: If the bus did not keep the value, or did not say so. The others may see it or not.
            HookUsageError: If an argument is invalid, or the bus is not open.
        """
        ...

    @abstractmethod
    async def get(self, key: str) -> bytes | None:
        """Return the present value of a key; `None` if it has none.

        Raises:
            BusUnavailableError: If the server cannot be reached.
            HookUsageError: If this is no key, or the bus is not open.
        """
        ...

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Take the value of a key away. It may have none.

        Raises:
            BusUnavailableError: If the server cannot be reached.
            HookUsageError: If this is no key, or the bus is not open.
        """
        ...

    @abstractmethod
    def watch(self, prefix: str, call: Watcher) -> AbstractAsyncContextManager[None]:
        """Call a function with the values of keys, and with each change, while the context is open.

        When the context has been entered, the function has been called with all present values. It sees changes in the
        order in which they were made. It may miss a value that was soon followed by another one, but never the last.
        After the server was away, it is called with what has changed in the meantime, also with what expired.

        Args:
            prefix: First parts of the keys: `"members"` is for `members.a` and `members.b.c`, and for no other.
            call: The function. What it raises is logged.

        Raises:
            BusUnavailableError: If the server cannot be reached.
            HookUsageError: If an argument is invalid, or the bus is not open.
        """
        ...

    @asynccontextmanager
    async def serve(
        self,
        hooks: Hooks | Iterable[AnyHook],
        *,
        name: str | None = None,
        revision: str = "",
        secret: Secret | None = None,
        where: EventFilter | None = None,
        tries: int = 5,
    ) -> AsyncIterator[str]:
        """Serve hooks for runs in other processes, while the context is open; see `hookline.bus.serve`."""

        async def store_dead_letter(failed: FailedEvent) -> None:
            await self.ask(DEAD_LETTERS, msgspec.json.encode(failed), deadline=DEAD_LETTER_SECONDS)

        served = ServedHooks(
            hooks, name=name, revision=revision, secret=secret, tries=tries, store_dead_letter=store_dead_letter
        )
        async with AsyncExitStack() as stack:
            if served.answer is not None:
                await stack.enter_async_context(self.answer(served.name, served.answer))
            if served.hear is not None:
                await stack.enter_async_context(self.hear(served.name, served.hear, where=where))
            yield served.name
