"""The stage of loops of one's own: it plays scenes with a client and a scripted provider."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread

from hookline import ToolRequest, tool
from hookline.errors import RunPaused
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from hookline.loop import DRIVES, SyncLoopRun, wrap
from hookline.runtime import Approve, InMemoryStore, Reject
from tests.adapters.provider import Exchange, Provider

from .dialects import Dialect, refuse

__all__ = ["LoopStage"]

numbers = itertools.count()


def drive(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing, as the loop does with a sync client."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a sync loop waits for nothing")


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def entered(run: Any) -> AsyncIterator[Any]:
    if isinstance(run, SyncLoopRun):
        with run:
            yield run
    else:
        async with run:
            yield run


class LoopStage:
    """Plays scenes in a hand-written loop.

    Args:
        dialect: The protocol.
        provider: The provider, whose answers depend on the model that is asked.
        sync: Whether the loop has a sync client, and runs in a thread of its own.
    """

    capabilities = DRIVES
    toolset = "local"

    def __init__(self, dialect: Dialect, provider: Provider, *, sync: bool = False) -> None:
        self.dialect, self.provider, self.sync = dialect, provider, sync
        self.client = dialect.client(provider.url, sync=sync)
        self.models: dict[str, Callable[[Exchange], None]] = {}
        provider.script(lambda exchange: self.models[exchange.body["model"]](exchange))

    @staticmethod
    def request(name: str, args: dict[str, Any], call_id: str) -> ToolRequest:
        return ToolRequest(name, args, tool_call_id=call_id)

    def model(self, scene: Scene, asked: list[str]) -> str:
        """Script a model for a scene, and return its name."""
        name = f"model-{next(numbers)}"

        def answer(exchange: Exchange) -> None:
            shown = self.dialect.shown(exchange.body)
            asked.append("\n".join(text for _, text in shown))
            turn = sum(role == "assistant" for role, _ in shown)
            turn = len(scene.turns) - 1 if scene.compact and any("So far" in text for _, text in shown) else turn
            (self.dialect.says(scene.turns[turn]) if turn < len(scene.turns) else refuse)(exchange)

        self.models[name] = answer
        return name

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        asked: list[str] = []
        store = attach.pop("store", None) or InMemoryStore()
        names = {name: self.model(child, asked) for name, child in scene.agents.items()}
        play = Loop(self, scene, self.model(scene, asked), names, asked, store)
        return await self.wait(play.run(list(hooks), attach, [{"role": "user", "content": scene.prompt}]))

    async def ask(self, run: Any, request: dict[str, Any]) -> Any:
        """Ask the model, and return its whole answer."""
        return await settled(self.dialect.method(run.client)(**request))

    async def wait(self, work: Coroutine[Any, Any, Ran]) -> Ran:
        return await (anyio.to_thread.run_sync(drive, work) if self.sync else work)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        found: dict[int, Ran] = {}

        async def play(number: int, hooks: Iterable[AnyHook]) -> None:
            found[number] = await self.play(scene, hooks)

        async with anyio.create_task_group() as group:
            for number, hooks in enumerate(bundles):
                group.start_soon(play, number, hooks)
        return [found[number] for number in range(len(bundles))]


class Loop:
    def __init__(
        self, stage: LoopStage, scene: Scene, model: str, agents: dict[str, str], asked: list[str], store: InMemoryStore
    ) -> None:
        self.stage, self.scene, self.model, self.agents, self.asked, self.store = (
            stage,
            scene,
            model,
            agents,
            asked,
            store,
        )
        self.tools = [
            tool(work, name=name, needs_approval=name in scene.approval) for name, work in scene.tools.items()
        ]

    async def run(
        self,
        hooks: list[AnyHook],
        attach: dict[str, Any],
        messages: list[Any],
        decisions: Sequence[Approve | Reject] = (),
    ) -> Ran:
        dialect = self.stage.dialect
        run = wrap(self.stage.client, hooks=hooks, tools=self.tools, store=self.store, **attach)
        try:
            async with entered(run):
                if decisions:
                    messages = run.messages
                    messages += await settled(run.resume(decisions))
                output = await self.loop(run, messages)
        except RunPaused as paused:
            return self.paused(paused)
        return Ran(output=output, told=dialect.results(messages), asked=self.asked)

    def paused(self, paused: RunPaused) -> Ran:
        async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
            again = self.run(list(hooks), {"operation_id": paused.operation_id}, [], decisions)
            return await self.stage.wait(again)

        return Ran(pending=[each.tool_call_id for each in paused.pending], asked=self.asked, resume=resume)

    async def loop(self, run: Any, messages: list[Any]) -> str:
        dialect, tools = self.stage.dialect, self.stage.dialect.tools(run)
        for _ in range(10):
            if self.scene.compact and len(messages) > 1:
                await self.compact(run, messages)
            response = await self.stage.ask(run, dialect.request(self.model, messages, tools))
            messages += dialect.entries(response)
            calls = dialect.calls(response)
            if not calls:
                return dialect.text(response)
            for call in [each for each in calls if dialect.call_name(each) in self.agents]:
                done = await self.call_agent(run, dialect.call_name(call), dialect.call_args(call)["instruction"])
                messages.append(dialect.result(call, done))
                calls = [each for each in calls if each is not call]
            if calls:
                messages += await settled(run.call_tools(response))

        raise AssertionError("the loop does not end")

    async def call_agent(self, parent: Any, name: str, instruction: str) -> str:
        async def work(final: str, operation_id: str) -> str:
            scene = self.scene.agents[name]
            names = {key: self.stage.model(each, self.asked) for key, each in scene.agents.items()}
            inner = Loop(self.stage, scene, self.agents[name], names, self.asked, self.store)
            child = wrap(
                self.stage.client,
                tools=inner.tools,
                agent_id=name,
                parent=parent,
                operation_id=operation_id,
                store=self.store,
            )
            try:
                async with entered(child):
                    return await inner.loop(child, [{"role": "user", "content": final}])
            except RunPaused:
                return "The agent waits for a person."

        given: Any = (lambda *args: drive(work(*args))) if self.stage.sync else work
        done = await settled(parent.call_agent(name, instruction, given))
        return done.output

    async def compact(self, run: Any, messages: list[Any]) -> None:
        async def summarize(entries: list[Any]) -> str:
            if self.scene.summary_fails:
                raise ValueError("no summary")
            return "summary"

        given: Any = (lambda entries: drive(summarize(entries))) if self.stage.sync else summarize
        summary = await settled(run.compact(messages, 2000, given))
        if summary is not None:
            messages[:] = [{"role": "user", "content": f"So far: {summary}. {self.scene.prompt}"}]
