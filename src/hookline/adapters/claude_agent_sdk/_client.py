"""`HookedClient`: a client of Claude whose every turn is an operation."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import anyio
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, CLIConnectionError, ResultMessage

from hookline.adapters.claude_agent_sdk._background import BackgroundTask, MessageQueue
from hookline.adapters.claude_agent_sdk._options import add_callbacks, capabilities_for, default_run_options
from hookline.adapters.claude_agent_sdk._task import ClaudeTask
from hookline.adapters.claude_agent_sdk._task_run import Prompt, run_task
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import AdapterRun

__all__ = ["HookedClient"]

DRAIN_SECONDS = 10.0
"""How long a turn that hooks ended waits for Claude to confirm that it has stopped."""


TURN_CUT_SHORT = object()
"""Marks the end of a turn that has no result message."""


class HookedClient(ClaudeSDKClient):  # type: ignore[misc]
    """A `ClaudeSDKClient` with hooks: each `query`, with the response to it, is an operation.

    Args:
        options: As `ClaudeSDKClient` takes them. Hooks and `can_use_tool` in them are still called.
        transport: As `ClaudeSDKClient` takes it.
        hooks: The hooks of every turn.
        attach: Other options of the runs: `agent_id`, `user_id`, `tenant_id`, `tags`, `conversation_id` (by default
            one for the client), `dispatcher`, `store`, `drain_timeout`, `best_effort`, `allow_missing_hooks`.
    """

    def __init__(
        self,
        options: ClaudeAgentOptions | None = None,
        transport: Any = None,
        *,
        hooks: Iterable[AnyHook] = (),
        **attach: Any,
    ) -> None:
        caller_options = options or ClaudeAgentOptions()
        hooked, self._own_servers = add_callbacks(caller_options, lambda: self._task)
        super().__init__(hooked, transport)
        self._caller_options, self._hooks = caller_options, hook_batch(hooks)
        self._attach = {"conversation_id": uuid.uuid4().hex, **default_run_options(caller_options), **attach}
        self._task: ClaudeTask | None = None
        self._background: BackgroundTask | None = None
        self._turns, self._disconnecting = anyio.Lock(), False
        self._queue: MessageQueue | None = None
        self._messages: AsyncIterator[Any] | None = None
        self._new_run({})

    def _new_run(self, attach: dict[str, Any]) -> AdapterRun:
        return AdapterRun(self._hooks, capabilities_for(self._caller_options), **{**self._attach, **attach})

    async def connect(self, prompt: Prompt | None = None) -> None:
        """Connect, and begin a turn if a prompt is given."""
        self._disconnecting, self._background = False, None
        await super().connect()
        self._queue = MessageQueue()
        if prompt is not None:
            await self._begin_turn(prompt, "default", {})

    async def query(self, prompt: Prompt, session_id: str = "default", **attach: Any) -> None:
        """Begin a turn, after the one in progress has ended.

        Args:
            prompt: As `ClaudeSDKClient.query` takes it.
            session_id: As `ClaudeSDKClient.query` takes it.
            attach: Options for the run of this turn, such as `operation_id`.

        Raises:
            UnsupportedHookError: If a hook would never be called.
            OperationExistsError: If an operation with this id is running.
        """
        sent = await self._begin_turn(prompt, session_id, attach)
        await sent.wait()

    async def receive_messages(self) -> AsyncIterator[Any]:
        """Yield Claude's messages, turn by turn.

        Raises:
            RunStopped: If a hook, a person or `interrupt` ended a turn.
        """
        async for message in self._queue_or_raise():
            if isinstance(message, Exception):
                raise message
            if message is not TURN_CUT_SHORT:
                yield message

    async def receive_response(self) -> AsyncIterator[Any]:
        """Yield Claude's messages of one turn, up to its result or until hooks end it.

        Raises:
            RunStopped: If a hook, a person or `interrupt` ended the turn.
        """
        async for message in self._queue_or_raise():
            if isinstance(message, Exception):
                raise message
            if message is TURN_CUT_SHORT:
                return
            yield message
            if isinstance(message, ResultMessage):
                return

    async def interrupt(self) -> None:
        """Interrupt the turn in progress; its operation ends as interrupted."""
        if self._task is not None:
            self._task.approvals.stopped = True
        await super().interrupt()

    async def disconnect(self) -> None:
        """Disconnect from Claude Code, and end the turn in progress."""
        if self._background is not None:
            self._disconnecting = True
            self._background.cancel()
            with anyio.CancelScope(shield=True):
                await self._background.wait()
        await super().disconnect()
        with suppress(Exception):
            while await self._next_message() is not None:
                ...
        if self._queue is not None:
            self._queue.close()

    def _queue_or_raise(self) -> MessageQueue:
        if self._queue is None:
            raise CLIConnectionError("Not connected. Call connect() first.")
        return self._queue

    async def _begin_turn(self, prompt: Prompt, session_id: str, attach: dict[str, Any]) -> anyio.Event:
        queue, run, sent = self._queue_or_raise(), self._new_run(attach), anyio.Event()
        async with self._turns:
            if self._background is not None:
                await self._background.wait()
            self._background = BackgroundTask(self._run_turn(run, prompt, session_id, sent, queue))
        return sent

    async def _run_turn(
        self, run: AdapterRun, prompt: Prompt, session_id: str, sent: anyio.Event, queue: MessageQueue
    ) -> None:
        running = has_result = False

        async def send(final: Prompt) -> AsyncIterator[Any]:
            nonlocal running
            running = True
            try:
                await super(HookedClient, self).query(final, session_id)
                sent.set()
                while running and (message := await self._next_message()) is not None:
                    running = not isinstance(message, ResultMessage)
                    yield message
            except Exception:
                running = False  # Claude is not working, so there is nothing to stop
                raise
            running = False

        def deliver(message: Any) -> None:
            nonlocal has_result
            has_result = has_result or isinstance(message, ResultMessage)
            queue.put(message)

        end: object = TURN_CUT_SHORT
        try:
            async with run:
                self._task = ClaudeTask(run, self._caller_options, self._own_servers)
                await run_task(self._task, prompt, send, deliver)
            run.raise_if_stopped()
        except Exception as error:
            end, has_result = error, False
        finally:
            if running and not self._disconnecting:
                await self._stop_claude()
            self._task = None
            sent.set()
            if not has_result:
                queue.put(end)

    async def _next_message(self) -> Any:
        """Return the next message of Claude; `None` if the stream is over."""
        if self._messages is None:
            self._messages = super().receive_messages()
        try:
            return await anext(self._messages)
        except StopAsyncIteration:
            return None
        except BaseException:
            self._messages = None  # a generator that has raised cannot be resumed
            raise

    async def _stop_claude(self) -> None:
        """Interrupt Claude after a turn was cut short, and discard the rest of its messages.

        Otherwise Claude would go on working, and the next turn would receive those messages.
        """
        with suppress(Exception), anyio.move_on_after(DRAIN_SECONDS, shield=True):
            await super().interrupt()
            while not isinstance(await self._next_message(), ResultMessage | None):
                ...
