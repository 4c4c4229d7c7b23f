"""A resident process of a coding agent without the process: the same hooks, sessions and store, in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from hookline import Approve, Reject, decode
from hookline.errors import HooklineError
from hookline.hooks import AnyHook
from hookline.hosts import HOSTS, Moment, make_installation
from hookline.hosts._policy import InstalledPolicy
from hookline.hosts._resident import Resident
from hookline.runtime import OperationState
from hookline.store import SqlStore
from tests.hosts.installed import frames

T = TypeVar("T")


class LocalHost:
    """Answers events of a coding agent under the policy of `tests.hosts.policy`.

    Args:
        folder: The folder of the store, which several of them can share.
        name: The coding agent.
        hooks: Import paths of hooks.
        more: Hooks besides those.
        stored: Whether it has a store.
        sockets: The folder of its socket, for those that listen.
        periods: Periods of the resident process.
        options: Options of the installation.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        hooks: str = "tests.hosts.policy:hooks",
        more: Sequence[AnyHook] = (),
        stored: bool = True,
        sockets: str = "",
        periods: Mapping[str, float] = {},
        **options: Any,
    ) -> None:
        self.host, self._stack = HOSTS[name], AsyncExitStack()
        store = f"sqlite:///{folder}/hookline.db" if stored else ""
        made = make_installation(name, project=folder, hooks=[hooks], store=store, **options)
        self.installation = msgspec.structs.replace(made, sockets=sockets or made.sockets)
        self.policy = InstalledPolicy(self.installation)
        self.policy.own_hooks.extend(more)
        self.resident = Resident(self.installation, folder / "installation.json", self.policy, **periods)

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.policy)
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in list(self.resident._sessions.values()):
            with contextlib.suppress(HooklineError):
                await session.leave()
        await self._stack.aclose()

    @property
    def store(self) -> SqlStore:
        assert self.policy.sql is not None
        return self.policy.sql

    async def ask(self, event: str, frame: dict[str, Any], *, seconds: float = 20.0) -> dict[str, Any]:
        """Return the JSON of the answer; `{}` if there is none. A session has ended when this returns."""
        answer = await self.resident.answer(event, json.dumps(frame).encode(), seconds, time.perf_counter())
        if self.host.events.get(event) is Moment.SESSION_END:
            await self.policy.settle()
        assert (answer.code, answer.err) == (0, b"")
        return json.loads(answer.out) if answer.out else {}

    def frame(self, event: str, **changes: Any) -> tuple[str, dict[str, Any]]:
        """Return the first recorded frame of an event, with changes."""
        return event, next(frame for name, frame in frames(self.host.name) if name == event) | changes

    def shell(self, command: str, *, session: str = "s-1", **changes: Any) -> tuple[str, dict[str, Any]]:
        """Return the frame before a call of the shell."""
        event, frame = next(each for each in frames(self.host.name) if self.host.judges(each[0]))
        args = "toolArgs" if "toolArgs" in frame else "tool_input"
        key = next(each for each in ("session_id", "sessionId", "conversation_id") if each in frame)
        ids = {"tool_use_id": f"call {command}"} if "tool_use_id" in frame else {}
        return event, {**frame, args: {**frame[args], "command": command}, key: session, **ids, **changes}

    # What is stored.

    async def operations(self, session: str = "") -> list[OperationState]:
        """Return the states of all operations, or of those of a session, oldest first."""
        listed = (await self.store.operations(limit=1000)).items
        states = [await self.store.load(each.operation_id) for each in reversed(listed)]
        return [each for each in states if each is not None and session in ("", each.conversation_id)]

    async def waiting(self) -> OperationState:
        """Return the one operation that waits for a person, once there is one."""

        async def find() -> OperationState | None:
            found = [each for each in await self.operations() if each.status == "waiting_for_human"]
            assert len(found) < 2
            return found[0] if found else None

        return await until(find)

    async def decide(self, state: OperationState, decision: type[Approve] | Callable[[str], Reject]) -> None:
        await self.store.decide(state.operation_id, decision(state.pending[0].tool_call_id), by="key:ada")

    async def events(self, state: OperationState) -> list[Any]:
        return [decode(each.wire) for each in await self.store.events_of(state.operation_id)]


async def until(find: Callable[[], Awaitable[T | None]]) -> T:
    """Wait for something that another task does, and return it."""
    pause = 0.01
    async with asyncio.timeout(20):
        while not (found := await find()):
            await asyncio.sleep(pause)  # longer each time: to look takes a fifth of the shortest pause
            pause = min(2 * pause, 0.1)
        return found


def recorded(host: str, session: str, folder: Path | None = None) -> list[tuple[str, dict[str, Any]]]:
    """Return the recorded frames of a host as those of another session.

    Args:
        host: The coding agent.
        session: The id of the other session.
        folder: Where the transcripts are that the frames name.
    """
    found = frames(host)
    own = next(found[0][1][key] for key in ("session_id", "sessionId", "conversation_id") if key in found[0][1])
    text = json.dumps(found).replace(own, session)
    if folder is not None:
        text = text.replace("/home/ada", str(folder))
    return [(event, frame) for event, frame in json.loads(text)]
