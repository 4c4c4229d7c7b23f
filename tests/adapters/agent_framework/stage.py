"""The stage of Microsoft Agent Framework: agents with a chat client that plays a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    SummarizationStrategy,
    tool,
)

from hookline.adapters import hooked
from hookline.adapters.agent_framework import DRIVES
from hookline.calls import ModelResponse
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from hookline.runtime import Approve, InMemoryStore, Reject
from tests.adapters.suspending import suspend


class Scripted(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """Answers turn by turn: how many turns there were, it reads from the conversation."""

    def __init__(self, turns: Sequence[ModelResponse], asked: list[str] | None = None, *, fails: bool = False) -> None:
        super().__init__()
        self.turns, self.asked, self.fails = turns, asked if asked is not None else [], fails
        self.model = "scripted"

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **given: Any) -> Any:
        said = [message.contents for message in messages]
        texts = [str(each.text or each.result or "") for contents in said for each in contents]
        self.asked.append("\n".join([str(options.get("instructions") or ""), *texts]))

        def reply() -> Message:
            if self.fails:
                raise ValueError("no summary")
            done = sum(
                message.role == "assistant" and not (message.message_id or "").startswith("summary")
                for message in messages
            )
            turn = self.turns[done]
            contents = [Content.from_text(turn.content)] if turn.content else []
            return Message("assistant", [*contents, *(asking(call) for call in turn.tool_calls)])

        usage: Any = {"input_token_count": 10, "output_token_count": 2}

        async def whole() -> ChatResponse[Any]:
            await suspend()
            return ChatResponse(messages=[reply()], usage_details=usage)

        async def parts() -> Any:
            await suspend()
            for content in reply().contents:
                yield ChatResponseUpdate(role="assistant", contents=[content])
                await suspend()

        return ResponseStream(parts(), finalizer=ChatResponse.from_updates) if stream else whole()


def asking(call: Any) -> Content:
    args = {"task": call.args["instruction"]} if call.toolset == "agent" else call.args
    return Content.from_function_call(call_id=call.tool_call_id, name=call.tool_name, arguments=json.dumps(args))


def agent_of(name: str, scene: Scene, asked: list[str], **given: Any) -> Agent[Any]:
    tools: list[Any] = [
        tool(work, name=each, approval_mode="always_require" if each in scene.approval else "never_require")
        for each, work in scene.tools.items()
    ]
    tools += [agent_of(child, inner, asked).as_tool(name=child) for child, inner in scene.agents.items()]
    summary = Scripted([ModelResponse(content="summary")], fails=scene.summary_fails)
    strategy = SummarizationStrategy(client=summary, target_count=1, threshold=1) if scene.compact else None
    return Agent(client=Scripted(scene.turns, asked), name=name, tools=tools, compaction_strategy=strategy, **given)


class AgentFrameworkStage:
    capabilities = DRIVES

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        asked: list[str] = []
        agent = self.agent_of(scene, asked)
        attach.setdefault("store", InMemoryStore())
        session = agent.create_session()
        response = await self.run(hooked(agent, hooks, **attach), scene.prompt, session)
        return self.ran(agent, session, asked, response, attach)

    def agent_of(self, scene: Scene, asked: list[str]) -> Any:
        return agent_of("tester", scene, asked)

    async def run(self, agent: Any, prompt: str, session: Any) -> Any:
        return await agent.run(prompt, session=session)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        asked: list[str] = []
        agent = agent_of("tester", scene, asked)
        runs = [hooked(agent, hooks).run(scene.prompt) for hooks in bundles]
        return [self.ran(agent, None, asked, response, {}) for response in await asyncio.gather(*runs)]

    def ran(self, agent: Agent[Any], session: Any, asked: list[str], response: Any, attach: dict[str, Any]) -> Ran:
        async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
            again = await hooked(agent, hooks, **attach).resume(response, decisions, session=session)
            return self.ran(agent, session, asked, again, attach)

        contents = [each for message in response.messages for each in message.contents]
        return Ran(
            output=response.messages[-1].text if response.messages else "",
            told=[str(each.result) for each in contents if each.type == "function_result"],
            asked=list(asked),
            pending=[each.function_call.call_id for each in response.user_input_requests],
            resume=resume,
        )
