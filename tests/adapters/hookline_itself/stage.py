"""The stage of hookline's own runtime: what the contract expects of others holds for it first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import msgspec

from hookline import Agent, Compaction, Message, ModelCall, ModelResponse, ScriptedModel, Usage, exec_agent, tool
from hookline.calls import CALLS, AgentCall, ToolCall
from hookline.errors import HookDenied
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from hookline.runtime import KINDS, Approve, Capabilities, InMemoryStore, OperationResult, Reject, resume_agent
from tests.adapters.suspending import suspend


class HooklineStage:
    capabilities = Capabilities(
        framework="hookline",
        calls=dict.fromkeys(CALLS, KINDS),
        asks=True,
        raises_stopped=False,
        adds_context=frozenset({ToolCall, AgentCall}),
        guides=True,
    )

    @asynccontextmanager
    async def options(self) -> AsyncIterator[dict[str, Any]]:
        """Further options of a segment."""
        yield {}

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        attach.pop("best_effort", None)
        asked: list[str] = []
        agent, store = agent_of("tester", scene, asked), InMemoryStore()
        async with self.options() as options:
            result = await exec_agent(agent, scene.prompt, hooks=list(hooks), store=store, **options, **attach)
        return await self.ran(agent, store, asked, result)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        asked: list[str] = []
        agent, found = agent_of("tester", scene, asked), dict[int, Ran]()

        async def play(number: int, hooks: list[AnyHook]) -> None:
            store = InMemoryStore()
            result = await exec_agent(agent, scene.prompt, hooks=hooks, store=store)
            found[number] = await self.ran(agent, store, asked, result)

        async with anyio.create_task_group() as group:
            for number, hooks in enumerate(bundles):
                group.start_soon(play, number, list(hooks))
        return [found[number] for number in range(len(bundles))]

    async def ran(self, agent: Agent, store: InMemoryStore, asked: list[str], result: OperationResult) -> Ran:
        if result.denied is not None:
            raise HookDenied(result.denied.hook_id, result.denied.reason)
        if result.error is not None:
            raise result.error

        async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
            async with self.options() as options:
                again = await resume_agent(
                    agent, result.operation_id, list(decisions), hooks=list(hooks), store=store, **options
                )
            return await self.ran(agent, store, asked, again)

        return Ran(
            output=result.output,
            told=[message.content for message in result.messages if message.role == "tool"],
            asked=asked,
            pending=[each.tool_call_id for each in result.pending],
            resume=resume,
        )


def agent_of(name: str, scene: Scene, asked: list[str]) -> Agent:
    async def summarize(messages: Sequence[Message]) -> str:
        await suspend()
        if scene.summary_fails:
            raise ValueError("no summary")
        return "summary"

    return Agent(
        id=name,
        model=ScriptedModel(partial(answer, scene, asked), name="scripted"),
        tools=[tool(work, name=name, needs_approval=name in scene.approval) for name, work in scene.tools.items()],
        sub_agents=[agent_of(child, inner, asked) for child, inner in scene.agents.items()],
        compaction=Compaction(max_tokens=1000, summarize=summarize, keep_last=0) if scene.compact else None,
    )


async def answer(scene: Scene, asked: list[str], call: ModelCall) -> ModelResponse:
    asked.append("\n".join(message.content for message in call.messages))
    await suspend()
    turn = sum(message.role == "assistant" for message in call.messages)
    turn = len(scene.turns) - 1 if scene.compact and call.step_index else turn
    full = scene.compact and turn == len(scene.turns) - 2
    return msgspec.structs.replace(scene.turns[turn], usage=Usage(input_tokens=2000 if full else 10))
