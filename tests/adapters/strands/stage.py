"""The stage of Strands: agents with a model that plays a script."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import anyio
from strands import Agent, tool
from strands.agent.conversation_manager import SummarizingConversationManager
from strands.models.model import Model
from strands.vended_interventions.hitl import HumanInTheLoop

from hookline.adapters import hooked
from hookline.adapters.strands import DRIVES
from hookline.calls import ModelResponse
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from hookline.runtime import Approve, InMemoryStore, Reject
from tests.adapters.suspending import suspend


class Scripted(Model):
    """Answers turn by turn: how many turns there were, it reads from the conversation."""

    def __init__(self, turns: Sequence[ModelResponse], asked: list[str] | None = None, *, fails: bool = False) -> None:
        self.turns, self.asked, self.fails = turns, asked if asked is not None else [], fails
        self.window: int | None = 1_000_000

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any:
        return {"model_id": "scripted", "context_window_limit": self.window}

    async def structured_output(self, *args: Any, **given: Any) -> Any:
        yield {}

    async def count_tokens(self, *args: Any, **given: Any) -> int:
        return 100

    async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **given: Any) -> Any:
        self.asked.append("\n".join([system_prompt or "", *(texts(message) for message in messages)]))
        await suspend()
        if self.fails:
            raise ValueError("no summary")
        done = sum(message["role"] == "assistant" for message in messages)
        turn = self.turns[done]
        yield {"messageStart": {"role": "assistant"}}
        if turn.content:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": turn.content}}}
            yield {"contentBlockStop": {}}
            await suspend()
        for call in turn.tool_calls:
            args = {"input": call.args["instruction"]} if call.toolset == "agent" else call.args
            yield {
                "contentBlockStart": {"start": {"toolUse": {"name": call.tool_name, "toolUseId": call.tool_call_id}}}
            }
            await suspend()
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(args)}}}}
            yield {"contentBlockStop": {}}
        await suspend()
        yield {"messageStop": {"stopReason": "tool_use" if turn.tool_calls else "end_turn"}}
        usage = {"inputTokens": 10, "outputTokens": 2, "totalTokens": 12}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def texts(message: Any) -> str:
    blocks = message["content"]
    told = [part for block in blocks if "toolResult" in block for part in block["toolResult"]["content"]]
    return "\n".join(part["text"] for part in [*blocks, *told] if "text" in part)


def agent_of(name: str, scene: Scene, asked: list[str], **given: Any) -> Agent:
    tools: list[Any] = [tool(name=name)(work) for name, work in scene.tools.items()]
    tools += [agent_of(child, inner, asked).as_tool(name=child) for child, inner in scene.agents.items()]
    model, manager = Scripted(scene.turns, asked), None
    summary = Scripted([ModelResponse(content="summary")], fails=scene.summary_fails)
    if scene.compact:
        model.window = 150
        manager = SummarizingConversationManager(preserve_recent_messages=2, proactive_compression=True)
    approval = HumanInTheLoop(allowed_tools=["*", *(f"!{name}" for name in scene.approval)])
    return Agent(
        name=name,
        model=model,
        aux_model=summary,
        tools=tools,
        conversation_manager=manager,
        interventions=[approval] if scene.approval else None,
        callback_handler=None,
        **given,
    )


class StrandsStage:
    capabilities = DRIVES

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        asked: list[str] = []
        agent = self.agent_of("tester", scene, asked)
        attach.setdefault("store", InMemoryStore())
        result = await self.run(hooked(agent, hooks=hooks, **attach), scene.prompt)
        return self.ran(agent, asked, result, attach)

    def agent_of(self, name: str, scene: Scene, asked: list[str]) -> Any:
        return agent_of(name, scene, asked)

    async def run(self, agent: Any, prompt: str) -> Any:
        return await agent.invoke_async(prompt)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        """Strands refuses a second run of one agent while the first is under way, so they take turns."""
        asked: list[str] = []
        agent, turn, found = agent_of("tester", scene, asked), anyio.Lock(), dict[int, Ran]()

        async def play(number: int, hooks: Iterable[AnyHook]) -> None:
            async with turn:
                agent.messages.clear()
                result = await hooked(agent, hooks=hooks).invoke_async(scene.prompt)
                found[number] = self.ran(agent, asked, result, {})

        async with anyio.create_task_group() as group:
            for number, hooks in enumerate(bundles):
                group.start_soon(play, number, hooks)
        return [found[number] for number in range(len(bundles))]

    def ran(self, agent: Any, asked: list[str], result: Any, attach: dict[str, Any]) -> Ran:
        async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
            again = await hooked(agent, hooks=hooks, **attach).resume(result, decisions)
            return self.ran(agent, asked, again, attach)

        blocks = [block for message in agent.messages for block in message["content"] if "toolResult" in block]
        return Ran(
            output=texts(result.message),
            told=["".join(part["text"] for part in block["toolResult"]["content"]) for block in blocks],
            asked=list(asked),
            pending=[each.id.split(":")[2] for each in result.interrupts or ()],
            resume=resume,
        )
