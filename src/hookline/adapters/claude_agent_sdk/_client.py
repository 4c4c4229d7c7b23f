"""`HookedClient`: a client of Claude, each of whose turns is an operation."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import anyio
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, CLIConnectionError, ResultMessage

from hookline.adapters.claude_agent_sdk._calls import Task
from hookline.adapters.claude_agent_sdk._options import driven_by, given_to, hooked_options
from hookline.adapters.claude_agent_sdk._tasks import Detached, Mail
from hookline.adapters.claude_agent_sdk._turns import Prompt, operate
from hookline.hooks import AnyHook
from hookline.runtime import AdapterRun

__all__ = ["HookedClient"]

DRAIN_SECONDS = 10.0
"""How long a turn that hooks have ended waits for Claude to say that it has stopped."""


BROKEN_OFF = object()
"""Stands in the stream for the result of a turn that has none."""


class HookedClient(ClaudeSDKClient):  # type: ignore[misc]
    """A `ClaudeSDKClient` with hooks: each `query`, with the response to it, is an operation.

    Args:
        options: As `ClaudeSDKClient` takes them. Hooks and `can_use_tool` that they hold are called as ever.
        transport: Likewise.
        hooks: The hooks of every turn.
        attach: What else a run takes: `agent_id`, `user_id`, `tenant_id`, `conversation_id` (one for the client unless
            given), `dispatcher`, `store`, `drain_timeout`, `best_effort`, `allow_missing_hooks`.
    """

    def __init__(
        self,
        options: ClaudeAgentOptions | None = None,
        transport: Any = None,
        *,
        hooks: Iterable[AnyHook],
        **attach: Any,
    ) -> None:
        given = options or ClaudeAgentOptions()
        hooked, self._own = hooked_options(given, lambda: self._task)
        super().__init__(hooked, transport)
        self._given, self._hooks = given, tuple(hooks)
        self._attach = {"conversation_id": uuid.uuid4().hex, **given_to(given), **attach}
        self._task: Task | None = None
        self._working: Detached | None = None
        self._turns, self._leaving = anyio.Lock(), False
        self._mail: Mail | None = None
        self._messages: AsyncIterator[Any] | None = None
        self._run({})

    def _run(self, attach: dict[str, Any]) -> AdapterRun:
        return AdapterRun(self._hooks, driven_by(self._given), **{**self._attach, **attach})

    async def connect(self, prompt: Prompt | None = None) -> None:
        """Connect, and begin a turn if there is a prompt."""
        self._leaving, self._working = False, None
        await super().connect()
        self._mail = Mail()
        if prompt is not None:
            await self._begin(prompt, "default", {})

    async def query(self, prompt: Prompt, session_id: str = "default", **attach: Any) -> None:
        """Begin a turn; one that is under way ends first.

        Args:
            prompt: As `ClaudeSDKClient.query` takes it.
            session_id: Likewise.
            attach: What this turn's run takes of its own, such as `operation_id`.

        Raises:
            UnsupportedHookError: If a hook would never be called.
            OperationExistsError: If an operation of that id is running.
        """
        sent = await self._begin(prompt, session_id, attach)
        await sent.wait()

    async def receive_messages(self) -> AsyncIterator[Any]:
        """Receive what Claude says, turn by turn.

        Raises:
            HookDenied: If a hook denied a turn.
        """
        async for message in self._connected():
            if isinstance(message, Exception):
                raise message
            if message is not BROKEN_OFF:
                yield message

    async def receive_response(self) -> AsyncIterator[Any]:
        """Receive what Claude says in one turn, up to its result, or to where hooks have broken it off.

        Raises:
            HookDenied: If a hook denied the turn.
        """
        async for message in self._connected():
            if isinstance(message, Exception):
                raise message
            if message is BROKEN_OFF:
                return
            yield message
            if isinstance(message, ResultMessage):
                return

    async def interrupt(self) -> None:
        """Have Claude stop; the turn ends as interrupted."""
        if self._task is not None:
            self._task.people.stopped = True
        await super().interrupt()

    async def disconnect(self) -> None:
        """End the turn that is under way, and disconnect."""
        if self._working is not None:
            self._leaving = True
            self._working.cancel()
            with anyio.CancelScope(shield=True):
                await self._working.wait()
        await super().disconnect()
        with suppress(Exception):
            while await self._hear() is not None:
                ...
        if self._mail is not None:
            self._mail.close()

    def _connected(self) -> Mail:
        if self._mail is None:
            raise CLIConnectionError("Not connected. Call connect() first.")
        return self._mail

    async def _begin(self, prompt: Prompt, session_id: str, attach: dict[str, Any]) -> anyio.Event:
        mail, run, sent = self._connected(), self._run(attach), anyio.Event()
        async with self._turns:
            if self._working is not None:
                await self._working.wait()
            self._working = Detached(self._turn(run, prompt, session_id, sent, mail))
        return sent

    async def _turn(self, run: AdapterRun, prompt: Prompt, session_id: str, sent: anyio.Event, mail: Mail) -> None:
        broken = told = False

        async def speak(final: Prompt) -> AsyncIterator[Any]:
            nonlocal broken
            broken = True
            try:
                await super(HookedClient, self).query(final, session_id)
                sent.set()
                while broken and (message := await self._hear()) is not None:
                    broken = not isinstance(message, ResultMessage)
                    yield message
            except Exception:
                broken = False  # there is nothing to be stopped
                raise
            broken = False

        def give(message: Any) -> None:
            nonlocal told
            told = told or isinstance(message, ResultMessage)
            mail.put(message)

        end: object = BROKEN_OFF
        try:
            async with run:
                self._task = Task(run, self._given, self._own)
                await operate(self._task, prompt, speak, give)
        except Exception as error:
            end, told = error, False
        finally:
            if broken and not self._leaving:
                await self._stop()
            self._task = None
            sent.set()
            if not told:
                mail.put(end)

    async def _hear(self) -> Any:
        """The next message of Claude; `None` if no more will come."""
        if self._messages is None:
            self._messages = super().receive_messages()
        try:
            return await anext(self._messages)
        except StopAsyncIteration:
            return None
        except BaseException:
            self._messages = None  # a generator that has raised is over
            raise

    async def _stop(self) -> None:
        """A turn has been broken off: Claude must not work on, nor what it still says be taken for the next one."""
        with suppress(Exception), anyio.move_on_after(DRAIN_SECONDS, shield=True):
            await super().interrupt()
            while not isinstance(await self._hear(), ResultMessage | None):
                ...
