"""Programs of the framework run bare and with hooks that change nothing: caller and model must be given the same.

The chat client really waits, and the middleware runs the agent again, as the framework's own for approvals does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentMiddleware,
    AgentResponse,
    Message,
    ResponseStream,
    ToolApprovalMiddleware,
)

from hookline import AgentCall, Hooks, ModelCall, ToolCall
from hookline.adapters.agent_framework import HooklineMiddleware
from hookline.calls import ModelResponse, SubAgentCall, ToolRequest
from hookline.evals.adapter_contract import Scene
from hookline.events import EVENTS, AfterStep, OnComplete
from hookline.runtime import InMemoryStore
from tests.tables import for_each

from .stage import agent_of
from .test_agent_framework import DONE, EVENTS_OF_PLAIN, PLAIN, add, calls, listening, names

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


TWO = ModelResponse(tool_calls=[*calls("add", "t1", a=1, b=2).tool_calls, *calls("add", "t2", a=3, b=4).tool_calls])
ASKED = Scene(turns=[TWO, calls("add", "t3", a=5, b=6), DONE], tools={"add": add}, approval=frozenset({"add"}))
FOUR_TIMES = Scene(
    turns=[each for n in range(4) for each in (calls("add", f"t{n}", a=n, b=2), DONE)], tools={"add": add}
)
TO_HELPER = ToolRequest(toolset="agent", tool_name="helper", args={"instruction": "help"}, tool_call_id="c1")


def passing() -> Hooks:
    """Hooks of every kind, around every call, that change nothing."""
    hooks = Hooks("passing", inherit=True)

    async def around(call: Any, call_next: Any) -> Any:
        return await call_next(call)

    for call in (AgentCall, ModelCall, ToolCall, SubAgentCall):
        hooks.before(call)(lambda call: None)
        hooks.guard(call)(lambda call: None)
        hooks.after(call)(lambda call, result: None)
        hooks.around(call)(around)
    return hooks


def watching() -> Hooks:
    hooks = Hooks("watching", inherit=True)
    for event in EVENTS.values():
        hooks.on(event)(lambda event: None)
    return hooks


ATTACHED: dict[str, Callable[[], list[Hooks]]] = {
    "no hooks": list,
    "observers": lambda: [watching()],
    "a guard of the model": lambda: [guarding()],
    "all that pass": lambda: [watching(), passing()],
}


def guarding() -> Hooks:
    hooks = Hooks("guard")
    hooks.guard(ModelCall)(lambda call: None)
    return hooks


class RunsTwice(AgentMiddleware):
    """Runs the agent a second time, with what it was given, as a middleware that tries again does."""

    async def process(self, context: Any, call_next: Any) -> None:
        given = list(context.messages)
        await call_next()
        if not context.stream:
            assert context.messages == given
            await call_next()
            return
        first, rest = context.result, call_next

        async def updates() -> Any:
            async for update in first:
                yield update
            assert context.messages == given
            await rest()
            async for update in context.result:
                yield update

        context.result = ResponseStream(updates(), finalizer=AgentResponse.from_updates)


Play = Callable[[Any], Awaitable[list[Any]]]
"""Plays a program; takes the middleware that attaches hooks, and gives all that caller and model were given."""


def shown(response: Any, updates: Sequence[Any] = ()) -> Any:
    def parts(contents: Any) -> list[Any]:
        return [(each.type, each.text, str(each.result), each.call_id, each.user_input_request) for each in contents]

    return (
        [(message.role, parts(message.contents)) for message in response.messages],
        [(update.role, parts(update.contents)) for update in updates],
        response.text,
        dict(response.usage_details or {}),
    )


async def run_of(agent: Agent[Any], given: Any, *, stream: bool, **more: Any) -> tuple[Any, list[Any]]:
    if not stream:
        return await agent.run(given, **more), []
    streamed = agent.run(given, stream=True, **more)
    updates = [update async for update in streamed]
    return await streamed.get_final_response(), updates


def program(scene: Scene, *, stream: bool, approve: bool | None = None, **agent: Any) -> Play:
    async def play(attached: Any) -> list[Any]:
        asked: list[str] = []
        made = agent_of("a", scene, asked, **agent)
        session, given, found = made.create_session(), "go", list[Any]()
        for _ in range(5):
            response, updates = await run_of(made, given, stream=stream, session=session, middleware=attached)
            found.append(shown(response, updates))
            requests = response.user_input_requests
            if not requests or approve is None:
                break
            given = Message("user", [each.to_function_approval_response(approve) for each in requests])
        return [*found, list(asked)]

    return play


def by_rule(*calls: str) -> ToolApprovalMiddleware:
    return ToolApprovalMiddleware(auto_approval_rules=[lambda call: call.call_id in calls])


PROGRAMS: dict[str, Callable[[bool], Play]] = {
    "plain": lambda stream: program(PLAIN, stream=stream),
    "sub-agent": lambda stream: program(
        Scene(turns=[ModelResponse(tool_calls=[TO_HELPER]), DONE], agents={"helper": PLAIN}), stream=stream
    ),
    "runs twice": lambda stream: program(FOUR_TIMES, stream=stream, middleware=[RunsTwice()]),
    "runs four times": lambda stream: program(FOUR_TIMES, stream=stream, middleware=[RunsTwice(), RunsTwice()]),
    "approved": lambda stream: program(ASKED, stream=stream, approve=True),
    "refused": lambda stream: program(ASKED, stream=stream, approve=False),
    "approved by a rule": lambda stream: program(ASKED, stream=stream, middleware=[by_rule("t1", "t2", "t3")]),
    "some approved by a rule": lambda stream: program(
        ASKED, stream=stream, approve=True, middleware=[by_rule("t1", "t3")]
    ),
    "some refused": lambda stream: program(ASKED, stream=stream, approve=False, middleware=[by_rule("t1")]),
}


@for_each("stream", [False, True], ids=["whole", "streamed"])
@for_each("name", PROGRAMS)
async def test_hooks_that_change_nothing_leave_a_program_as_it_was(name: str, stream: bool) -> None:
    play = PROGRAMS[name](stream)
    bare = await play([])

    for attached, hooks in ATTACHED.items():
        hooked = await play([HooklineMiddleware(hooks(), store=InMemoryStore())])
        twice = await play([HooklineMiddleware([watching()]), HooklineMiddleware(hooks())])

        assert without_updates(hooked) == without_updates(bare), attached
        assert without_updates(twice) == without_updates(bare), attached
        if attached in ("no hooks", "observers"):
            assert hooked == bare, attached


def without_updates(played: list[Any]) -> list[Any]:
    """What was given, but for the pieces of streams, which some hooks hold back and give as one."""
    return [each if isinstance(each, list) else (each[0], *each[2:]) for each in played]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_each_time_that_middleware_outside_runs_the_agent_is_an_operation(stream: bool) -> None:
    hooks, seen = listening()

    await program(FOUR_TIMES, stream=stream, middleware=[RunsTwice()])([HooklineMiddleware([hooks])])

    by_operation: dict[str, list[str]] = {}
    for event in seen:
        by_operation.setdefault(event.operation_id, []).append(str(event.hook_type))
    assert list(by_operation.values()) == [EVENTS_OF_PLAIN] * 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_what_middleware_inside_runs_again_belongs_to_the_same_operation(stream: bool) -> None:
    hooks, seen = listening()
    attached = [HooklineMiddleware([hooks]), RunsTwice()]

    await program(FOUR_TIMES, stream=stream)(attached)

    assert names(seen) == [*EVENTS_OF_PLAIN[:-1], *EVENTS_OF_PLAIN]
    assert len({event.operation_id for event in seen}) == 1


async def test_calls_that_a_rule_of_the_framework_approves_go_on_in_the_same_operation() -> None:
    hooks, seen = listening()

    await program(ASKED, stream=False, middleware=[by_rule("t1", "t2", "t3")])(
        [HooklineMiddleware([hooks], store=InMemoryStore())]
    )

    assert len({event.operation_id for event in seen}) == 1
    reasons = [event.reason for event in seen if isinstance(event, OnComplete)]
    assert reasons == ["waiting_for_human", "waiting_for_human", "done"]


async def test_a_refusal_in_the_frameworks_words_is_told_in_them_to_the_model_and_to_the_hooks() -> None:
    hooks, seen = listening()
    scene = Scene(turns=[calls("add", a=1, b=2), DONE], tools={"add": add}, approval=frozenset({"add"}))

    played = await program(scene, stream=False, approve=False)([HooklineMiddleware([hooks], store=InMemoryStore())])

    (told,) = [result for event in seen if isinstance(event, AfterStep) for result in event.tools_result]
    assert (told.content, told.success) == ("Error: Tool call invocation was rejected by user.", False)
    assert told.content in played[-1][-1]
