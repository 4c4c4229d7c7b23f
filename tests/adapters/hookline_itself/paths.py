"""The ways to run an agent of hookline's own runtime, and the forms in which it takes a policy."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from hookline import HookDispatcher
from hookline.delivery import InProcess, KeyRing, generate_key
from hookline.evals import verdicts
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from hookline.runtime import AgentSession, Approve, InMemoryStore, Reject, exec_agent, resume_agent, stream_agent
from hookline.store import SqlStore

from ..differences import DENIED, named
from .forms import LOOPBACK, agent_hooks_form, control_form, dialect_form, http_hook_form, script_form
from .stage import HooklineStage, agent_of

__all__ = ["PATHS"]

numbers = count()


class StreamedStage(HooklineStage):
    """Reads the text of each run as it comes."""

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        asked: list[str] = []
        agent, store = agent_of("tester", scene, asked), InMemoryStore()
        async with stream_agent(agent, scene.prompt, hooks=list(hooks), store=store, **attach) as text:
            async for _ in text:
                pass
        return await self.ran(agent, store, asked, text.result)


class SessionStage(HooklineStage):
    """Gives the policy to a session, whose task plays the scene."""

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        asked: list[str] = []
        agent, store = agent_of("tester", scene, asked), InMemoryStore()
        session = AgentSession(agent, hooks=list(hooks), store=store, **attach)
        async with session:
            ran = await self.ran(agent, store, asked, await session.run(scene.prompt))

        async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
            async with session:
                return await self.ran(agent, store, asked, await session.resume(list(decisions)))

        return msgspec.structs.replace(ran, resume=resume)


class DurableStage(HooklineStage):
    """Keeps each operation in a database, and resumes it as another process does: from there, with another agent."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        asked: list[str] = []
        url = await self.new_database()
        async with SqlStore(url) as store:
            result = await exec_agent(
                agent_of("tester", scene, asked), scene.prompt, hooks=list(hooks), store=store, **attach
            )

        async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
            async with SqlStore(url) as store:
                agent = agent_of("tester", scene, asked)
                again = await resume_agent(agent, result.operation_id, list(decisions), hooks=list(hooks), store=store)
                return await self.ran(agent, InMemoryStore(), asked, again)

        ran = await self.ran(agent_of("tester", scene, asked), InMemoryStore(), asked, result)
        return msgspec.structs.replace(ran, resume=resume)

    async def new_database(self) -> str:
        """Return the URL of a database that is a copy of an empty one, since migrating takes longer."""
        empty = Path(self.folder.name) / "empty.db"
        if not empty.exists():
            async with SqlStore(f"sqlite:///{empty}"):
                pass
        copy = empty.with_name(f"{next(numbers)}.db")
        shutil.copyfile(empty, copy)
        return f"sqlite:///{copy}"


class ControlStage(HooklineStage):
    """Delivers questions to receivers on loopback."""

    @asynccontextmanager
    async def options(self) -> AsyncIterator[dict[str, Any]]:
        delivery = InProcess(keys=KeyRing({"": [generate_key()]}), allow_private=LOOPBACK)
        try:
            async with HookDispatcher(delivery=delivery) as dispatcher:
                yield {"dispatcher": dispatcher}
        finally:
            await delivery.aclose()


BOTH: tuple[Any, ...] = ("asyncio", "trio")

CONTROL = named("A control is asked before a call, and never sees its result.", "replace the result")

DIALECT = {
    **named("No hook of a coding agent can answer in a tool's place.", "answer"),
    **named("A coding agent does not tell its hooks for whom it works.", "by user", "by user, another one"),
}
COPILOT = {
    **DIALECT,
    **named("Copilot CLI has no word that ends the run.", "deny and stop"),
    **named(
        "Copilot CLI denies a call whose hook exits with any code but 0.",
        "failing, closed",
        "failing, open",
        verdict=DENIED,
    ),
}

CONTRACT = {
    **named("The contract has no verdict that ends the run at a tool call.", "deny and stop"),
    **named("The contract has no verdict that answers in the tool's place.", "answer"),
    **named(
        "The model reads the contract's own words: `host_error`.", "failing, closed", "slow, closed", verdict=DENIED
    ),
    **named("A host of the contract always fails closed.", "failing, open", "slow, open", verdict=DENIED),
}

PATHS = [
    verdicts.Path("run", HooklineStage(), backends=BOTH),
    verdicts.Path("streamed run", StreamedStage(), backends=BOTH),
    verdicts.Path("session", SessionStage(), backends=BOTH),
    verdicts.Path("durable run, resumed elsewhere", DurableStage()),
    verdicts.Path("sub-agent", HooklineStage(), depth=1, backends=BOTH),
    verdicts.Path("sub-agent of a sub-agent", HooklineStage(), depth=2, backends=BOTH),
    verdicts.Path("script", HooklineStage(), form=script_form),
    verdicts.Path("script, sub-agent", HooklineStage(), depth=1, form=script_form),
    *(
        verdicts.Path(f"script, dialect {dialect}{name}", HooklineStage(), depth=depth, form=form, differs=differs)
        for dialect, differs in (("claude", DIALECT), ("gemini", DIALECT), ("copilot", COPILOT))
        for form in (dialect_form(dialect),)
        for name, depth in (("", 0), (", sub-agent", 1))
    ),
    verdicts.Path("control webhook", ControlStage(), form=control_form, differs=CONTROL),
    verdicts.Path("control webhook, sub-agent", ControlStage(), depth=1, form=control_form, differs=CONTROL),
    verdicts.Path("HTTP hook, dialect claude", ControlStage(), form=http_hook_form, differs={**CONTROL, **DIALECT}),
    verdicts.Path(
        "HTTP hook, dialect claude, sub-agent",
        ControlStage(),
        depth=1,
        form=http_hook_form,
        differs={**CONTROL, **DIALECT},
    ),
    verdicts.Path("AGENT-HOOKS", HooklineStage(), form=agent_hooks_form, differs=CONTRACT, backends=BOTH),
    verdicts.Path("AGENT-HOOKS, sub-agent", HooklineStage(), depth=1, form=agent_hooks_form, differs=CONTRACT),
]
