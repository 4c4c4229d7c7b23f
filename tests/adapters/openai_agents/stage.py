"""Scenes played in the OpenAI Agents SDK, with a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelResponse,
    RunConfig,
    RunResult,
    RunState,
    ToolCallOutputItem,
    Usage,
    function_tool,
)
from agents.testing import assistant_message, function_call
from anyio.lowlevel import checkpoint
from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent

from hookline.adapters import hooked
from hookline.adapters.openai_agents import DRIVES, HookedAgent
from hookline.calls import ModelResponse as Answer
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject

QUIET = RunConfig(tracing_disabled=True)


class Script(Model):
    """Plays turns: which one follows from the calls that are answered, so that it serves many runs at once."""

    def __init__(self, turns: Sequence[Answer], asked: list[str] | None = None) -> None:
        self.turns, self.asked = list(turns), asked if asked is not None else []

    async def get_response(self, system_instructions: Any, input: Any, *given: Any, **options: Any) -> ModelResponse:  # noqa: A002
        self.asked.append(json.dumps(input))
        await checkpoint()
        return ModelResponse(output=items_of(self.turn(input)), usage=Usage(requests=1), response_id="r1")

    async def stream_response(
        self, system_instructions: Any, given: Any, *rest: Any, **options: Any
    ) -> AsyncIterator[Any]:
        self.asked.append(json.dumps(given))
        await checkpoint()
        turn = self.turn(given)
        for number, word in enumerate(turn.content.split(" ")):
            yield ResponseTextDeltaEvent(
                content_index=0, delta=word, item_id="m", logprobs=[], output_index=0, sequence_number=number,
                type="response.output_text.delta",
            )  # fmt: skip
            await checkpoint()
        response = Response(
            id="r1", created_at=0, model="script", object="response", output=items_of(turn), parallel_tool_calls=True,
            tool_choice="auto", tools=[],
        )  # fmt: skip
        yield ResponseCompletedEvent(response=response, sequence_number=99, type="response.completed")

    def turn(self, given: Any) -> Answer:
        known = {item.get("call_id") for item in given if isinstance(item, dict)} if isinstance(given, list) else set()
        over = [
            turn for turn in self.turns if turn.tool_calls and {call.tool_call_id for call in turn.tool_calls} <= known
        ]
        return self.turns[len(over)]


def items_of(turn: Answer) -> list[Any]:
    items: list[Any] = [assistant_message(turn.content)] if turn.content or not turn.tool_calls else []
    for call in turn.tool_calls:
        args = call.args if isinstance(call.args, str) else dict(call.args)
        if call.toolset == "agent" and isinstance(args, dict):
            args = {"input": args["instruction"]}
        items.append(function_call(call.tool_name, args, call_id=call.tool_call_id))
    return items


class Compacting:
    """A session whose history becomes a summary."""

    session_id, session_settings = "s", None

    def __init__(self, *, fails: bool = False) -> None:
        self.items: list[Any] = []
        self.fails = fails

    async def get_items(self, limit: int | None = None) -> list[Any]:
        await checkpoint()
        return list(self.items)

    async def add_items(self, items: list[Any]) -> None:
        await checkpoint()
        self.items.extend(items)

    async def pop_item(self) -> Any:
        return self.items.pop()

    async def clear_session(self) -> None:
        self.items.clear()

    async def run_compaction(self, args: Any = None) -> None:
        await checkpoint()
        if self.fails:
            raise ValueError("no summary")
        self.items = [{"role": "user", "content": "summary"}]


def agent_of(scene: Scene, asked: list[str] | None = None, name: str = "tester") -> Agent[Any]:
    """The agent of a scene."""
    tools: list[Any] = [tool_of(made, approval=key in scene.approval) for key, made in scene.tools.items()]
    for key, each in scene.agents.items():
        tools.append(agent_of(each, asked, key).as_tool(key, f"Ask {key}."))
    return Agent(name=name, model=Script(scene.turns, asked), tools=tools)


def tool_of(made: Callable[..., Awaitable[Any]], *, approval: bool = False) -> FunctionTool:
    """A tool of the SDK."""
    return function_tool(made, needs_approval=approval)


class OpenAIStage:
    """Plays scenes in the OpenAI Agents SDK."""

    capabilities = DRIVES
    toolset = "local"

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        asked: list[str] = []
        agent = self.agent_of(scene, asked)
        session: Any = Compacting(fails=scene.summary_fails) if scene.compact else None
        attach.setdefault("operation_id", f"openai-{id(agent)}")
        result = await self.run(hooked(agent, hooks, **attach), scene.prompt, session)
        return ran_of(result, agent, attach, asked)

    def agent_of(self, scene: Scene, asked: list[str]) -> Agent[Any]:
        return agent_of(scene, asked)

    async def run(self, agent: HookedAgent, prompt: str, session: Any) -> Any:
        return await agent.run(prompt, run_config=QUIET, session=session)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        agent = agent_of(scene)
        runs = (hooked(agent, hooks).run(scene.prompt, run_config=QUIET) for hooks in bundles)
        return [ran_of(result, agent, {}, []) for result in await asyncio.gather(*runs)]


def ran_of(result: RunResult, agent: Agent[Any], attach: Mapping[str, Any], asked: list[str]) -> Ran:
    """What came of a run, and how it goes on: as on another machine, from text."""

    async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
        state = await RunState.from_string(agent, result.to_state().to_string())
        following = await hooked(agent, hooks, **attach).resume(state, decisions, run_config=QUIET)
        return ran_of(following, agent, attach, asked)

    outputs = {
        item.raw_item["call_id"]: item.output for item in result.new_items if isinstance(item, ToolCallOutputItem)
    }  # type: ignore[index,typeddict-item,union-attr]
    order = [
        call.call_id for response in result.raw_responses for call in response.output if call.type == "function_call"
    ]
    return Ran(
        output=str(result.final_output or ""),
        told=[str(outputs[each]) for each in order if each in outputs],
        asked=asked,
        pending=[str(getattr(item.raw_item, "call_id", "")) for item in result.interruptions],
        resume=resume if result.interruptions else None,
    )
