"""Scenes played by LangChain agents, with a scripted model."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from hookline.adapters import hooked
from hookline.adapters.langchain import DRIVES, HooklineMiddleware, HooklineSummarization
from hookline.calls import ModelResponse
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject

threads = itertools.count()


class Script(BaseChatModel):
    """Plays turns: which one follows from the calls that are answered, so that it serves many runs at once."""

    turns: list[Any]
    asked: Any = None
    fails: bool = False

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, **options: Any) -> Script:
        return self

    def turn(self, messages: Sequence[Any]) -> AIMessage:
        if self.asked is not None:
            self.asked.append("\n".join(message.text for message in messages))
        if self.fails:
            raise ValueError("no summary")
        known = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
        over = [
            turn for turn in self.turns if turn.tool_calls and {call.tool_call_id for call in turn.tool_calls} <= known
        ]
        turn = self.turns[len(over)]
        calls = [{"name": call.tool_name, "args": dict(call.args), "id": call.tool_call_id} for call in turn.tool_calls]
        return AIMessage(turn.content, tool_calls=calls)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.turn(messages))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        await asyncio.sleep(0)
        result = self._generate(messages)
        await asyncio.sleep(0)
        return result

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        turn = self.turn(messages)
        words = turn.text.split(" ")
        for number, word in enumerate(words):
            text = word if number == len(words) - 1 else f"{word} "
            yield ChatGenerationChunk(message=AIMessageChunk(text))
        if turn.tool_calls:
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_calls=turn.tool_calls))

    async def _astream(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        """Wait before it says anything, and between its words, as whoever asks a server does."""
        await asyncio.sleep(0)
        for chunk in self._stream(messages, run_manager=run_manager and run_manager.get_sync()):
            yield chunk
            await asyncio.sleep(0)


def agent_of(scene: Scene, asked: list[str] | None = None, name: str = "tester") -> Any:
    """The agent of a scene."""
    asked = [] if asked is None else asked
    tools = [StructuredTool.from_function(in_thread(made), made, name=key) for key, made in scene.tools.items()]
    tools += [calling(agent_of(each, asked, key), key) for key, each in scene.agents.items()]
    middleware: list[Any] = [HooklineMiddleware(sub_agents={key: key for key in scene.agents})]
    if scene.compact:
        summary = Script(turns=[ModelResponse(content="summary")], fails=scene.summary_fails)
        middleware.append(HooklineSummarization(summary, trigger=("messages", 3), keep=("messages", 2)))
    if scene.approval:
        middleware.append(HumanInTheLoopMiddleware(interrupt_on=dict.fromkeys(scene.approval, True)))
    saver = InMemorySaver() if name == "tester" else None
    return create_agent(
        Script(turns=list(scene.turns), asked=asked), tools, middleware=middleware, checkpointer=saver, name=name
    )


def in_thread(made: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """A tool for sync runs, which call it in a thread without an event loop."""

    @functools.wraps(made)
    def call(*args: Any, **given: Any) -> Any:
        return anyio.run(functools.partial(made, *args, **given))

    return call


def calling(agent: Any, name: str) -> StructuredTool:
    """A tool that calls an agent."""

    async def call(instruction: str) -> str:
        return str((await agent.ainvoke({"messages": [("user", instruction)]}))["messages"][-1].text)

    return StructuredTool.from_function(coroutine=call, name=name, description="Ask an agent.")


def thread() -> Any:
    """A conversation of its own."""
    return {"configurable": {"thread_id": str(next(threads))}}


class LangChainStage:
    """Plays scenes in LangChain agents."""

    capabilities = DRIVES
    toolset = "local"

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        asked: list[str] = []
        agent, config = self.agent_of(scene, asked), thread()
        given = {"messages": [("user", scene.prompt)]}
        result = await self.run(hooked(agent, hooks=hooks, **attach), given, config)
        return ran_of(result, agent, attach, config, asked)

    def agent_of(self, scene: Scene, asked: list[str]) -> Any:
        return agent_of(scene, asked)

    async def run(self, agent: Any, given: Any, config: Any) -> Any:
        return await agent.ainvoke(given, config)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        agent = agent_of(scene)
        given = {"messages": [("user", scene.prompt)]}
        runs = (hooked(agent, hooks=hooks).ainvoke(given, thread()) for hooks in bundles)
        return [ran_of(result, agent, {}, {}, []) for result in await asyncio.gather(*runs)]


def ran_of(result: Any, agent: Any, attach: Mapping[str, Any], config: Any, asked: list[str]) -> Ran:
    """What came of a run, and how it goes on."""

    async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
        following = await hooked(agent, hooks=hooks, **attach).resume(result, decisions, config)
        return ran_of(following, agent, attach, config, asked)

    messages = result["messages"]
    last = messages[-1].text if isinstance(messages[-1], AIMessage) else ""
    told = {message.tool_call_id: message.text for message in messages if isinstance(message, ToolMessage)}
    order = [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    interrupts = result.get("__interrupt__", ())
    requests = [request for each in interrupts for request in each.value["action_requests"]]
    asked_about = [request["tool_call_id"] for request in requests if "tool_call_id" in request]
    return Ran(
        output=last,
        told=[told[each] for each in order if each in told],
        asked=asked,
        pending=asked_about or ([each for each in order if each not in told] if interrupts else []),
        resume=resume if interrupts else None,
    )
