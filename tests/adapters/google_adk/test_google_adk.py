"""What is special about Google ADK: plugins, sub-agents of every kind, streams, and its sync entry point."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

pytest.importorskip("google.adk")

from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.genai import types

from hookline import Ask, Deny, Hooks, ModelCall, ModelResponse, Respond, StepCall, SubAgentCall, ToolCall, interrupt
from hookline.adapters.google_adk import hooked
from hookline.errors import RunStopped, UnsupportedHookError
from hookline.evals.adapter_contract import Scene
from hookline.evals.adapter_contract._scenes import DONE, PLAIN, add, ask_for, tool_call
from hookline.events import EVENTS, AfterCallAgent, AfterToolCall, BeforeToolCall, HookType, OnComplete

from .stage import CONFIRMATION, Scripted, agent_of, play_in, runner_of, user

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:.*Agent is deprecated:DeprecationWarning"),
]


class Heard:
    """Every event of a run."""

    def __init__(self, *, inherit: bool = False) -> None:
        self.events: list[Any] = []
        self.hooks = Hooks("heard", inherit=inherit)
        for event in EVENTS.values():
            self.hooks.on(event)(self.events.append)

    def names(self, operation_id: str = "") -> list[str]:
        return [str(event.hook_type) for event in self.events if operation_id in ("", event.operation_id)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def saying(name: str, *turns: ModelResponse, **agent: Any) -> LlmAgent:
    return LlmAgent(name=name, model=Scripted(scene=Scene(turns=list(turns))), **agent)


async def events_of(runner: Runner, text: str = "go", **invocation: Any) -> list[Any]:
    given = {"user_id": "ann", "session_id": "s", "new_message": user(text), **invocation}
    return [event async for event in runner.run_async(**given)]


async def test_the_given_runner_stays_as_it_is() -> None:
    heard, runner = Heard(), runner_of(PLAIN, [])

    await events_of(hooked(runner, hooks=[heard.hooks]))
    told = len(heard.events)
    await events_of(runner, session_id="other")

    assert told > 0
    assert len(heard.events) == told
    assert runner.plugin_manager.plugins == []


async def test_the_plugins_of_the_app_see_a_call_that_hooks_left_alone_as_ever() -> None:
    seen: list[Any] = []

    class Watching(BasePlugin):
        async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> None:
            seen.append(dict(tool_args))

        async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> None:
            seen.append(result)

    hooks = Hooks("watch")
    hooks.around(ToolCall)(lambda call, call_next: call_next(call))
    await events_of(hooked(runner_of(PLAIN, [], plugins=[Watching("watching")]), hooks=[hooks, Heard().hooks]))

    assert seen == [{"a": 1, "b": 2}, 3]


async def test_whatever_a_tool_returns_the_run_goes_on_as_without_hooks() -> None:
    class Handle:
        def __str__(self) -> str:
            return "a handle"

    async def look() -> Any:
        """Look."""
        return Handle()

    heard, scene = Heard(), Scene(turns=[ask_for(tool_call("look")), DONE], tools={"look": look})
    events = await events_of(hooked(runner_of(scene, []), hooks=[heard.hooks]))

    responses = [response for event in events for response in event.get_function_responses()]
    assert [type(response.response["result"]) for response in responses] == [Handle]
    assert [(event.content, event.success) for event in heard.of(AfterToolCall)] == [("a handle", True)]
    assert [event.reason for event in heard.of(OnComplete)] == ["done"]


async def test_a_hook_sees_a_conversation_with_half_a_character() -> None:
    async def look() -> Any:
        """Look."""
        return ["cut \ud83d"]

    heard, hooks = Heard(), Hooks("models")
    hooks.before(ModelCall)(lambda call: None)
    scene = Scene(turns=[ask_for(tool_call("look")), DONE], tools={"look": look})
    await events_of(hooked(runner_of(scene, []), hooks=[heard.hooks, hooks]))

    assert [event.content for event in heard.of(AfterToolCall)] == ["['cut \\ud83d']"]
    assert [event.reason for event in heard.of(OnComplete)] == ["done"]


async def test_a_hook_that_calls_a_tool_twice_gets_the_result_of_its_one_run_twice() -> None:
    hooks, ran, results = Hooks("twice"), list[int](), list[str]()

    async def count() -> str:
        """Count."""
        ran.append(1)
        return f"run {len(ran)}"

    @hooks.around(ToolCall)
    async def twice(call: ToolCall, call_next: Any) -> Any:
        results.append((await call_next(call)).content)
        result = await call_next(call)
        results.append(result.content)
        return result

    scene = Scene(turns=[ask_for(tool_call("count")), DONE], tools={"count": count})
    events = await events_of(hooked(runner_of(scene, []), hooks=[hooks]))

    assert (len(ran), results) == (1, ["run 1", "run 1"])
    assert events[-1].content.parts[0].text == DONE.content


async def test_a_tool_sees_what_a_hook_around_it_has_set() -> None:
    colour: ContextVar[str] = ContextVar("colour", default="none")
    hooks, seen = Hooks("colours"), list[str]()

    async def look() -> str:
        """Look."""
        seen.append(colour.get())
        return "seen"

    @hooks.around(ToolCall)
    async def paint(call: ToolCall, call_next: Any) -> Any:
        token = colour.set("red")
        result = await call_next(call)
        colour.reset(token)
        return result

    scene = Scene(turns=[ask_for(tool_call("look")), DONE], tools={"look": look})
    await events_of(hooked(runner_of(scene, []), hooks=[hooks]))

    assert seen == ["red"]
    assert colour.get() == "none"


async def test_an_agent_that_is_handed_the_conversation_is_an_operation_of_its_own() -> None:
    heard = Heard(inherit=True)
    child = saying("child", ModelResponse(content="from the child"), description="helps")
    turns = [ask_for(tool_call("transfer_to_agent", agent_name="child"))]
    root = saying("root", *turns, sub_agents=[child])

    given = await events_of(hooked(runner_of(PLAIN, [], root_agent=root), hooks=[heard.hooks], operation_id="op"))

    assert heard.names("op") == [
        "beforeStep", "beforeToolCall", "afterToolCall", "beforeCallAgent", "afterCallAgent", "afterStep", "onComplete",
    ]  # fmt: skip
    (called,) = heard.of(AfterCallAgent)
    assert heard.names(called.sub_operation_id) == ["beforeStep", "afterStep", "onComplete"]
    assert given[-1].content.parts[0].text == "from the child"
    assert heard.of(OnComplete)[-1].last_assistant_content == "from the child"


@pytest.mark.parametrize("kind", [SequentialAgent, ParallelAgent])
async def test_each_agent_of_a_workflow_is_an_operation_of_its_own(kind: Any) -> None:
    heard = Heard(inherit=True)
    agents = [saying(name, ModelResponse(content=f"{name} says")) for name in ("one", "two")]

    await events_of(hooked(runner_of(PLAIN, [], root_agent=kind(name="both", sub_agents=agents)), hooks=[heard.hooks]))

    ended = {event.agent_id: event.last_assistant_content for event in heard.of(OnComplete)}
    assert sorted(event.callee_id for event in heard.of(AfterCallAgent)) == ["one", "two"]
    assert (ended["one"], ended["two"]) == ("one says", "two says")
    assert len({event.operation_id for event in heard.events}) == 3


async def test_an_agent_that_a_hook_answers_for_does_not_run() -> None:
    heard, hooks = Heard(), Hooks("answers")
    hooks.before(SubAgentCall)(lambda call: Respond({"output": "canned"}) if call.callee_id == "one" else None)
    agents = [saying(name, ModelResponse(content=f"{name} says")) for name in ("one", "two")]
    root = SequentialAgent(name="both", sub_agents=agents)

    given = await events_of(hooked(runner_of(PLAIN, [], root_agent=root), hooks=[hooks, heard.hooks]))

    assert [event.content.parts[0].text for event in given] == ["canned", "two says"]
    assert heard.names() == ["beforeCallAgent", "afterCallAgent"] * 2 + ["onComplete"]


async def test_an_agent_whose_own_callback_answers_is_called_and_left() -> None:
    heard = Heard()
    first = saying("one", DONE, before_agent_callback=lambda callback_context: user("not now"))
    root = SequentialAgent(name="both", sub_agents=[first, saying("two", ModelResponse(content="two says"))])

    await events_of(hooked(runner_of(PLAIN, [], root_agent=root), hooks=[heard.hooks]))

    assert [event.callee_id for event in heard.of(AfterCallAgent)] == ["one", "two"]
    assert {event.operation_id for event in heard.of(AfterCallAgent)} == {heard.of(OnComplete)[0].operation_id}


async def test_a_stream_tells_the_same_events() -> None:
    plain, streamed = Heard(), Heard()
    words = Scene(turns=[PLAIN.turns[0], ModelResponse(content="word by word")], tools=PLAIN.tools)

    await events_of(hooked(runner_of(words, []), hooks=[plain.hooks]))
    given = await events_of(
        hooked(runner_of(words, []), hooks=[streamed.hooks]), run_config=RunConfig(streaming_mode=StreamingMode.SSE)
    )

    assert [event.content.parts[0].text for event in given if event.partial][-3:] == ["word", "by", "word"]
    assert streamed.names() == plain.names()
    assert streamed.of(OnComplete)[0].last_assistant_content == "word by word"


async def test_a_stream_that_is_broken_off_ends_the_run() -> None:
    heard = Heard()

    stream = hooked(runner_of(PLAIN, []), hooks=[heard.hooks]).run_async(
        user_id="ann", session_id="s", new_message=user("go")
    )
    async for _ in stream:
        break
    await stream.aclose()

    assert heard.names() == ["beforeStep", "afterStep", "onComplete"]
    assert heard.of(OnComplete)[0].reason == "interrupted"


async def test_nothing_of_a_run_is_seen_where_its_stream_is_read() -> None:
    outer, inner = Heard(), Heard()
    runner = runner_of(PLAIN, [])

    async for _ in hooked(runner, hooks=[outer.hooks]).run_async(user_id="ann", session_id="s", new_message=user("go")):
        await events_of(hooked(runner, hooks=[inner.hooks]), session_id="other")

    assert {event.parent_operation_id for event in inner.events} == {None}


async def test_a_run_inside_of_a_tool_has_the_run_as_its_parent() -> None:
    outer, inner = Heard(), Heard()

    async def nest() -> str:
        """Nest."""
        await events_of(hooked(runner_of(PLAIN, []), hooks=[inner.hooks]))
        return "nested"

    scene = Scene(turns=[ask_for(tool_call("nest")), DONE], tools={"nest": nest})
    await events_of(hooked(runner_of(scene, []), hooks=[outer.hooks], operation_id="op"))

    assert {event.parent_operation_id for event in inner.events} == {"op"}


def test_the_sync_entry_point_tells_the_same_events(anyio_backend: str) -> None:
    heard = Heard()

    given = list(
        hooked(runner_of(PLAIN, []), hooks=[heard.hooks]).run(user_id="ann", session_id="s", new_message=user("go"))
    )

    assert given[-1].content.parts[0].text == "done"
    assert heard.names()[-2:] == ["afterStep", "onComplete"]


async def test_an_interrupt_aborts_the_run() -> None:
    heard, begun = Heard(), asyncio.Event()

    async def hang() -> str:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    scene = Scene(turns=[ask_for(tool_call("hang")), DONE], tools={"hang": hang})
    running = asyncio.create_task(
        events_of(hooked(runner_of(scene, []), hooks=[heard.hooks], operation_id="op-interrupted"))
    )
    await begun.wait()

    assert interrupt("op-interrupted")
    with pytest.raises(RunStopped, match="interrupted"):
        await running
    assert heard.names() == ["beforeStep", "beforeToolCall", "onToolCallError", "afterStep", "onComplete"]
    assert heard.of(OnComplete)[0].reason == "interrupted"


async def test_a_tool_that_nobody_has_registered_can_be_mocked() -> None:
    hooks = Hooks("mocks")
    hooks.on(BeforeToolCall, tool="*/unknown")(lambda event: event.mock("as if"))
    scene = Scene(turns=[ask_for(tool_call("unknown")), DONE])

    ran = await play_in(runner_of(scene, []), user("go"), [], [hooks], "s")

    assert ran.told == ["as if"]


async def test_a_sub_agent_may_ask_a_person_too() -> None:
    heard, hooks = Heard(), Hooks("asks", inherit=True)
    hooks.guard(ToolCall, tool="*/add")(lambda call: Ask("may it?"))
    child = agent_of("child", PLAIN, [])
    root = saying("root", ask_for(tool_call("transfer_to_agent", "t0", agent_name="child")), sub_agents=[child])
    runner = runner_of(PLAIN, [], root_agent=root)

    ran = await play_in(runner, user("go"), [], [hooks, heard.hooks], "s", operation_id="op")
    waited = heard.of(OnComplete)[-1].reason
    heard.events.clear()
    assert ran.resume is not None
    again = await play_in(runner, approval(ran, runner), [], [hooks, heard.hooks], "s")

    assert ran.pending == ["t1"]
    assert waited == "waiting_for_human"
    assert again.told == ["3"]
    assert {event.operation_id for event in heard.events} == {"op"}
    assert "afterHumanIntervention" in heard.names()


def approval(ran: Any, runner: Runner) -> types.Content:
    session = runner.session_service.sessions["stage"]["ann"]["s"]
    ids = [call.id for event in session.events for call in event.get_function_calls() if call.name == CONFIRMATION]
    response = types.FunctionResponse(id=ids[0], name=CONFIRMATION, response={"confirmed": True})
    return types.Content(role="user", parts=[types.Part(function_response=response)])


async def test_the_model_of_a_tool_call_that_was_denied_is_told_why() -> None:
    hooks = Hooks("guard")
    hooks.guard(ToolCall, tool="local/add")(lambda call: Deny("no sums today"))

    ran = await play_in(runner_of(PLAIN, []), user("go"), [], [hooks], "s")

    assert ran.told == ["no sums today"]
    assert ran.output == "done"


async def test_hooks_that_it_would_never_call_are_refused_when_they_are_attached() -> None:
    hooks = Hooks("steps")
    hooks.before(StepCall, id="steps/before")(lambda call: None)

    with pytest.raises(UnsupportedHookError, match=r"'steps/before'.*Google ADK cannot drive before\(StepCall\)"):
        hooked(runner_of(PLAIN, []), hooks=[hooks])
    await events_of(hooked(runner_of(PLAIN, []), hooks=[hooks], best_effort=True))


async def test_a_tool_that_fails_fails_the_run_as_ever() -> None:
    async def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    heard = Heard()
    scene = Scene(
        turns=[ask_for(tool_call("fail"), tool_call("add", "t2", a=1, b=2))], tools={"fail": fail, "add": add}
    )

    with pytest.raises(ValueError, match="broken"):
        await events_of(hooked(runner_of(scene, []), hooks=[heard.hooks]))
    assert heard.names().count("beforeToolCall") == 2
    assert heard.names()[-2:] == ["onComplete", "onError"]
    assert heard.events[-1].hook_type == HookType.ON_ERROR
