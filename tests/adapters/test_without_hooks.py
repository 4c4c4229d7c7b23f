"""A run without hooks is not an operation, unless somebody could notice it."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

import pytest

from hookline import Approve, HookDispatcher, Hooks, Reject
from hookline.adapters import hooked
from hookline.calls import ModelResponse, ToolRequest
from hookline.errors import HookUsageError, RunStopped
from hookline.evals.adapter_contract import Scene
from hookline.events import AfterHumanIntervention, OnComplete, OnStopByHumanIntervention
from hookline.hooks import AnyHook
from hookline.runtime import InMemoryStore
from hookline.runtime._run import Run, live
from hookline.signals import operation_registered, operation_unregistered
from tests.tables import for_each

from .conftest import MISSING

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


FRAMEWORKS = ("agent_framework", "langchain", "openai_agents", "pydantic_ai")
each_framework = pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.skipif(each in MISSING, reason="")) for each in FRAMEWORKS]
)


class Played:
    """One agent, which calls the tool `look` and answers; the tool notes the operations that are live then."""

    def __init__(self, name: str, *, approval: bool = False, work: Callable[[], Awaitable[str]] | None = None) -> None:
        self.name, self.stage = name, import_module(f"tests.adapters.{name}.stage")
        self.seen: list[list[str]] = []

        async def look() -> str:
            """Look around."""
            self.seen.append(list(live))
            return "looked" if work is None else await work()

        call = ToolRequest(toolset="local", tool_name="look", args={}, tool_call_id="t1")
        turns = [ModelResponse(tool_calls=[call]), ModelResponse(content="done")]
        scene = Scene(turns=turns, tools={"look": look}, approval=frozenset({"look"} if approval else ()))
        named = name in ("agent_framework", "pydantic_ai")
        self.agent = self.stage.agent_of("tester", scene, []) if named else self.stage.agent_of(scene)
        self.common: dict[str, Any] = {}
        self.positional: tuple[Any, ...] = ()
        if name == "openai_agents":
            self.common = {"run_config": self.stage.QUIET}
        elif name == "langchain":
            self.positional = (self.stage.thread(),)
        elif name == "agent_framework":
            self.common = {"session": self.agent.create_session()}

    def attach(self, hooks: Iterable[AnyHook], options: dict[str, Any]) -> Any:
        return hooked(self.agent, hooks, **options)

    @property
    def task(self) -> Any:
        return {"messages": [("user", "go")]} if self.name == "langchain" else "go"

    async def run(self, hooks: Iterable[AnyHook] = (), **options: Any) -> Any:
        agent = self.attach(hooks, options)
        run = agent.ainvoke if self.name == "langchain" else agent.run
        return await run(self.task, *self.positional, **self.common)

    async def stream(self) -> None:
        agent = self.attach((), {})
        if self.name == "langchain":
            async for _ in agent.astream(self.task, *self.positional):
                pass
        elif self.name == "openai_agents":
            async for _ in agent.run_streamed("go", **self.common).stream_events():
                pass
        elif self.name == "pydantic_ai":  # the scripted model does not stream; all its ways to run are one
            async with agent.iter("go") as nodes:
                async for _ in nodes:
                    pass
        else:
            async for _ in agent.run("go", stream=True, **self.common):
                pass

    async def resume(self, paused: Any, decisions: Sequence[Any], hooks: Iterable[AnyHook]) -> Any:
        return await self.attach(hooks, {}).resume(paused, decisions, *self.positional, **self.common)


@each_framework
async def test_a_run_without_hooks_is_not_an_operation(name: str) -> None:
    played, streamed = Played(name), Played(name)

    await played.run()
    await streamed.stream()

    assert (played.seen, streamed.seen) == ([[]], [[]])


@each_framework
async def test_options_that_nobody_can_see_make_no_operation(name: str) -> None:
    played = Played(name)

    await played.run(user_id="ann", tenant_id="acme", drain_timeout=1, best_effort=True, operation_id=None, store=None)

    assert played.seen == [[]]


@each_framework
@for_each("option", ["operation_id", "dispatcher", "store", "bundle"])
async def test_what_others_could_find_is_an_operation(name: str, option: str) -> None:
    played, hooks = Played(name), [Hooks("empty")] if option == "bundle" else []

    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {}
        if option == "operation_id":
            options = {"operation_id": f"mine-{name}"}
        elif option == "dispatcher":
            options = {"dispatcher": await stack.enter_async_context(HookDispatcher())}
        elif option == "store":
            options = {"store": InMemoryStore()}
        await played.run(hooks, **options)

    (seen,) = played.seen
    assert len(seen) == 1
    assert option != "operation_id" or seen == [f"mine-{name}"]


@each_framework
@for_each("signal", [operation_registered, operation_unregistered])
async def test_a_receiver_that_hears_of_operations_hears_of_a_run_without_hooks(name: str, signal: Any) -> None:
    played, streamed, heard = Played(name), Played(name), list[str]()

    def hear(sender: object, operation_id: str) -> None:
        heard.append(operation_id)

    with signal.connected_to(hear):
        await played.run()
        await streamed.stream()

    assert [*played.seen, *streamed.seen] == [[each] for each in heard]
    assert len(set(heard)) == 2


@each_framework
async def test_hooks_that_sub_agents_inherit_see_a_run_without_hooks_inside_of_a_tool(name: str) -> None:
    if name == "agent_framework":
        pytest.skip("there only agents made into tools are sub-agents")
    child, ended = Played(name), list[bool]()
    family = Hooks("family", inherit=True)
    family.on(OnComplete)(lambda event: ended.append(event.parent_operation_id is not None))

    async def nested() -> str:
        await child.run()
        return "over"

    await Played(name, work=nested).run([family])

    assert ended == [True, False]
    assert len(child.seen[0]) == 2


@pytest.mark.skipif("agent_framework" in MISSING, reason="its framework is not installed here")
async def test_middleware_without_hooks_inside_of_an_operation_is_one_too() -> None:
    from hookline.adapters.agent_framework import HooklineMiddleware

    played = Played("agent_framework")

    await hooked(played.agent, [Hooks("outer")]).run("go", middleware=[HooklineMiddleware()])
    await hooked(played.agent).run("go", middleware=[HooklineMiddleware()])

    assert [len(each) for each in played.seen] == [2, 0]


@each_framework
async def test_a_person_can_end_a_run_that_paused_without_hooks(name: str) -> None:
    played, heard = Played(name, approval=True), list[str]()
    watch = Hooks("watch")
    watch.on(AfterHumanIntervention)(lambda event: heard.append("decided"))
    watch.on(OnStopByHumanIntervention)(lambda event: heard.append("stopped"))
    again = Played(name, approval=True)

    paused = await played.run()
    with pytest.raises(RunStopped):
        await played.resume(paused, [Reject("t1", "not today")], [])
    paused = await again.run()
    with pytest.raises(RunStopped):
        await again.resume(paused, [Reject("t1", "not today")], [watch])

    assert (played.seen, again.seen) == ([], [])
    assert "stopped" in heard


@each_framework
async def test_a_run_that_paused_without_hooks_goes_on_as_an_operation(name: str) -> None:
    played = Played(name, approval=True)

    await played.resume(await played.run(), [Approve("t1")], [])

    assert [len(each) for each in played.seen] == [1]


@for_each("wrong", [{"user_id": 3}, {"operation_id": ""}])
@each_framework
async def test_wrong_options_are_refused_as_with_hooks(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(HookUsageError):
        await Played(name).run(**wrong)


@pytest.mark.parametrize("name", ["langchain", "openai_agents"])  # the others' own objects form cycles around it
async def test_an_ended_run_waits_for_no_garbage_collector(name: str) -> None:
    if name in MISSING:
        pytest.skip("its framework is not installed here")
    played, hooks = Played(name), [Hooks("empty")]
    await played.run(hooks)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(each, Run) for each in gc.get_objects())
        for _ in range(3):
            played = Played(name)
            await played.run(hooks)
        after = sum(isinstance(each, Run) for each in gc.get_objects())
    finally:
        gc.enable()

    assert (before, after) == (0, 0)
