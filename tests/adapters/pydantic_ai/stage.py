"""The stage of Pydantic AI: its `FunctionModel` says the turns of a scene."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    CompactionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, RunContext

from hookline import calls
from hookline.adapters import hooked
from hookline.adapters.pydantic_ai import DRIVES, agent_tool
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject


class PydanticAIStage:
    capabilities = DRIVES

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        asked: list[str] = []
        agent = self.agent_of("tester", scene, asked)
        result = await self.run(hooked(agent, hooks, **attach), scene.prompt)
        return ran(agent, result, asked)

    def agent_of(self, name: str, scene: Scene, asked: list[str]) -> Agent:
        return agent_of(name, scene, asked)

    async def run(self, agent: Any, prompt: str) -> Any:
        return await agent.run(prompt)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        asked: list[str] = []
        agent = agent_of("tester", scene, asked)
        results = await asyncio.gather(*(hooked(agent, hooks).run(scene.prompt) for hooks in bundles))
        return [ran(agent, result, asked) for result in results]


def ran(agent: Agent, result: AgentRunResult, asked: list[str]) -> Ran:
    waits = isinstance(result.output, DeferredToolRequests)

    async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
        again = await hooked(agent, hooks).resume(result, decisions)
        return ran(agent, again, asked)

    return Ran(
        output="" if waits else result.output,
        told=[
            part.model_response_str() if isinstance(part, ToolReturnPart) else part.model_response()
            for message in result.all_messages()
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, ToolReturnPart | RetryPromptPart)
        ],
        asked=asked,
        pending=[part.tool_call_id for part in result.output.approvals] if waits else [],
        resume=resume if waits else None,
    )


def agent_of(name: str, scene: Scene, asked: list[str]) -> Agent:
    return Agent(
        Scripted(scene, asked),
        name=name,
        output_type=[str, DeferredToolRequests],
        tools=[
            *(Tool(work, name=tool, requires_approval=tool in scene.approval) for tool, work in scene.tools.items()),
            *(agent_tool(agent_of(child, inner, asked)) for child, inner in scene.agents.items()),
        ],
        capabilities=[Compact(len(scene.turns) - 1)] if scene.compact else [],
    )


class Scripted(FunctionModel):
    """Says the turns of a scene: which one is its turn, the history tells."""

    def __init__(self, scene: Scene, asked: list[str]) -> None:
        super().__init__(self.answer, stream_function=self.stream, model_name="scripted")
        self.scene, self.asked = scene, asked

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(0)  # as whoever asks a server waits
        self.asked.append("\n".join(texts(messages)))
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        return response_of(self.scene.turns[turn])

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        response = await self.answer(messages, info)
        for at, part in enumerate(response.parts):
            await asyncio.sleep(0)
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                call = DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)
                yield {at: call}

    async def compact_messages(
        self, request_context: ModelRequestContext, *, instructions: str | None = None
    ) -> ModelResponse:
        await asyncio.sleep(0)
        if self.scene.summary_fails:
            raise ValueError("no summary")
        return ModelResponse(parts=[CompactionPart("summary")])


def texts(messages: list[ModelMessage]) -> list[str]:
    return [str(part.content) for message in messages for part in message.parts if hasattr(part, "content")]


def response_of(turn: calls.ModelResponse) -> ModelResponse:
    said = [TextPart(turn.content)] if turn.content else []
    callings = [
        ToolCallPart(each.tool_name, dict(each.args), tool_call_id=each.tool_call_id) for each in turn.tool_calls
    ]
    return ModelResponse(parts=[*said, *callings])


@dataclass
class Compact(AbstractCapability[Any]):
    """Compacts through the model, as the capabilities of the framework for single providers do."""

    before_turn: int = 1

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        *old, last = request_context.messages
        if sum(isinstance(message, ModelResponse) for message in old) != self.before_turn:
            return request_context
        compacting = ModelRequestContext(
            model=request_context.model,
            messages=old,
            model_settings=request_context.model_settings,
            model_request_parameters=request_context.model_request_parameters,
        )
        request_context.messages = [await request_context.model.compact_messages(compacting), last]
        return request_context
