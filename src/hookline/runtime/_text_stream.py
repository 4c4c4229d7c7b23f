"""`stream_agent`: the text of a run as an async iterator."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import anyio

from hookline.calls import Message
from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError
from hookline.hooks import AnyHook
from hookline.runtime._agent import Agent
from hookline.runtime._exec import exec_agent, interrupt
from hookline.runtime._given import checked_id
from hookline.runtime._result import OperationResult
from hookline.runtime._state import OperationStore
from hookline.runtime._streaming import Release

__all__ = ["TextStream", "stream_agent"]


def stream_agent(
    agent: Agent,
    prompt: str | Sequence[Message],
    *,
    hooks: Iterable[AnyHook] = (),
    operation_id: str | None = None,
    user_id: str = "",
    tenant_id: str = "",
    parent_operation_id: str | None = None,
    dispatcher: HookDispatcher | None = None,
    store: OperationStore | None = None,
    drain_timeout: float = 5.0,
    release: Release = "checked",
) -> TextStream:
    """Run an agent, and read its text while it is written.

    The arguments are those of `exec_agent`.

    Returns:
        The stream, to be entered once. Leaving it before its end interrupts the run.
    """
    return TextStream(
        agent,
        prompt,
        hooks=hooks,
        operation_id=checked_id(operation_id),
        user_id=user_id,
        tenant_id=tenant_id,
        parent_operation_id=parent_operation_id,
        dispatcher=dispatcher,
        store=store,
        drain_timeout=drain_timeout,
        release=release,
    )


class TextStream:
    """The text of one run: an async context manager, and inside of it an async iterator of pieces of text.

    The run is not held up by a slow reader; what is not read yet is kept.

    Attributes:
        operation_id: The run.
    """

    def __init__(self, agent: Agent, prompt: str | Sequence[Message], *, operation_id: str, **given: Any) -> None:
        self.operation_id = operation_id
        self._agent, self._prompt, self._given = agent, prompt, given
        self._group: Any = None
        self._pieces: deque[str] = deque()
        self._news: anyio.Event | None = None
        self._over = False
        self._result: OperationResult | None = None
        self._error: Exception | None = None

    @property
    def result(self) -> OperationResult:
        """What the run came to.

        Raises:
            HookUsageError: As long as the run goes on, and if it could not begin or was cancelled.
        """
        if self._result is None:
            raise HookUsageError(
                f"Operation {self.operation_id!r} has no result {'because it was cancelled' if self._over else 'yet'}: "
                "read the stream to its end, or leave its `async with`."
            )
        return self._result

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise HookUsageError(f"The stream of operation {self.operation_id!r} has been entered already.")
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._over and not interrupt(self.operation_id):
            self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        if self._error is not None and error is None:
            raise self._error

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if self._group is None:
            raise HookUsageError("A stream is read inside of its `async with`.")
        while not self._pieces:
            if self._over:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            if self._news is None:  # else another task waits for the same piece, and must hear of it too
                self._news = anyio.Event()
            await self._news.wait()
        return self._pieces.popleft()

    def _take(self, piece: str) -> None:
        self._pieces.append(piece)
        self._tell()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def _run(self) -> None:
        try:
            self._result = await exec_agent(
                self._agent, self._prompt, operation_id=self.operation_id, on_token=self._take, **self._given
            )
        except Exception as error:
            self._error = error
        finally:
            self._over = True
            self._tell()
