"""The stage of Google's Agent Development Kit: scenes are played by its own runner, with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.function_tool import FunctionTool
from google.genai import types

from hookline.adapters import hooked
from hookline.adapters.google_adk import DRIVES
from hookline.calls import ModelResponse
from hookline.evals.adapter_contract import Ran, Scene
from hookline.hooks import AnyHook
from hookline.runtime import Approve, Reject
from tests.adapters.suspending import suspend

CONFIRMATION = "adk_request_confirmation"


class Scripted(BaseLlm):
    """Plays the turns of a scene, by how often the conversation shows that it has answered."""

    model: str = "scripted"
    scene: Any = None
    asked: list[str] = []

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        parts = [part for content in llm_request.contents for part in content.parts or ()]
        results = [str(part.function_response.response) for part in parts if part.function_response]
        self.asked.append("\n".join([*(part.text for part in parts if part.text), *results]))
        await suspend()
        answered = {part.function_response.id for part in parts if part.function_response}
        turns, turn = self.scene.turns, 0
        if self.scene.compact:  # the conversation does not show any more what was asked
            turn = min(len(self.asked), len(turns)) - 1
        while turn < len(turns) and turns[turn].tool_calls and ids_of(turns[turn]) <= answered:
            turn += 1
        if turn == len(turns):
            raise RuntimeError("The script has no turn left.")
        said = turns[turn]
        if stream:
            for word in said.content.split():
                yield LlmResponse(partial=True, content=types.Content(role="model", parts=[types.Part(text=word)]))
                await suspend()
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=2000 if self.scene.compact and turn == len(turns) - 2 else 10, candidates_token_count=5
        )
        yield LlmResponse(content=content_of(said), usage_metadata=usage)


def ids_of(said: ModelResponse) -> set[str]:
    return {each.tool_call_id for each in said.tool_calls}


def content_of(said: ModelResponse) -> types.Content:
    parts = [types.Part(text=said.content)] if said.content else []
    for call in said.tool_calls:
        args = dict(call.args)
        if call.toolset == "agent":
            args = {"request": args["instruction"]}
        parts.append(types.Part(function_call=types.FunctionCall(id=call.tool_call_id, name=call.tool_name, args=args)))
    return types.Content(role="model", parts=parts)


class Summarizer(BaseEventsSummarizer):
    def __init__(self, *, fails: bool) -> None:
        self.fails = fails

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        await suspend()
        if self.fails:
            raise ValueError("no summary")
        compaction = EventCompaction(
            start_timestamp=events[0].timestamp,
            end_timestamp=events[-1].timestamp,
            compacted_content=types.Content(role="model", parts=[types.Part(text="summary")]),
        )
        return Event(author="user", actions=EventActions(compaction=compaction), invocation_id=Event.new_id())


def agent_of(name: str, scene: Scene, asked: list[str]) -> LlmAgent:
    tools: list[Any] = [
        FunctionTool(work, require_confirmation=name in scene.approval) for name, work in scene.tools.items()
    ]
    tools += [AgentTool(agent_of(child, inner, asked)) for child, inner in scene.agents.items()]
    model = Scripted(scene=scene)
    model.asked = asked
    return LlmAgent(name=name, model=model, tools=tools)


def runner_of(scene: Scene, asked: list[str], **app: Any) -> Runner:
    if scene.compact:
        summarizer = Summarizer(fails=scene.summary_fails)
        app["events_compaction_config"] = EventsCompactionConfig(
            summarizer=summarizer, token_threshold=1000, event_retention_size=0
        )
    app = {"name": "stage", "root_agent": agent_of("tester", scene, asked), **app}
    return Runner(app=App(**app), session_service=InMemorySessionService(), auto_create_session=True)


def user(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


class GoogleAdkStage:
    capabilities = DRIVES
    toolset = "local"

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        asked: list[str] = []
        runner = self.runner_of(scene, asked)
        return await play_in(runner, user(scene.prompt), asked, hooks, "session", self.events, **attach)

    def runner_of(self, scene: Scene, asked: list[str]) -> Runner:
        return runner_of(scene, asked)

    async def events(self, runner: Any, invocation: dict[str, Any]) -> list[Event]:
        return await events_of(runner, invocation)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        asked: list[str] = []
        runner = runner_of(scene, asked)
        runs = [
            play_in(runner, user(scene.prompt), asked, hooks, f"session-{number}")
            for number, hooks in enumerate(bundles)
        ]
        return await asyncio.gather(*runs)


async def events_of(runner: Any, invocation: dict[str, Any]) -> list[Event]:
    return [event async for event in runner.run_async(**invocation)]


async def play_in(
    runner: Runner,
    message: types.Content,
    asked: list[str],
    hooks: Iterable[AnyHook],
    session: str,
    run: Callable[[Any, dict[str, Any]], Awaitable[list[Event]]] = events_of,
    **attach: Any,
) -> Ran:
    ids = {"user_id": attach.get("user_id", "ann"), "session_id": session}
    found = await run(hooked(runner, hooks, **attach), {"new_message": message, **ids})
    return ran_of(runner, found, asked, ids)


def ran_of(runner: Runner, found: list[Event], asked: list[str], ids: dict[str, str]) -> Ran:
    waits = {
        call.id: call.args["originalFunctionCall"]["id"]
        for event in found
        for call in event.get_function_calls()
        if call.name == CONFIRMATION
    }
    answers = [response for event in found for response in event.get_function_responses()]

    async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
        again = [event async for event in hooked(runner, hooks).resume(found, decisions, **ids)]
        return ran_of(runner, again, asked, ids)

    return Ran(
        output=next((text for event in reversed(found) if event.is_final_response() and (text := text_of(event))), ""),
        told=[str(each.response.get("result", each.response.get("error"))) for each in answers],
        asked=asked,
        pending=list(waits.values()),
        resume=resume,
    )


def text_of(event: Event) -> str:
    return "".join(part.text or "" for part in (event.content.parts or ())) if event.content else ""
