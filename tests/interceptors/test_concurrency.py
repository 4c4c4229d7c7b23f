"""Many calls through one chain, one call in many tasks, deep chains; and that nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import math
import threading
import weakref
from typing import Any

import anyio
import pytest

from hookline.calls import Denial, Deny, ToolCall, ToolResult
from hookline.errors import HookDefinitionError, HookDenied
from hookline.hooks import Hooks
from hookline.interceptors import Chain
from tests.tables import for_each

from .calls import (
    Tool,
    after,
    around,
    before,
    guard,
    hook,
    lead,
    recorded,
    replace,
    run,
    statuses,
    tool_call,
    turns,
    with_args,
)

pytestmark = pytest.mark.anyio

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
KINDS = ["before", "guard", "around", "after"]


async def through(call: Any, call_next: Any) -> Any:
    return await call_next(call)


# --- one chain, many calls


async def test_one_chain_leads_200_calls_at_once_and_keeps_them_apart() -> None:
    async def label(call: Any) -> Any:
        await turns(call.args["n"] % 3)
        call.metadata["n"] = call.args["n"]
        return with_args(call, label=f"call {call.args['n']}")

    async def wrap(call: Any, call_next: Any) -> Any:
        result = await call_next(call)
        await turns(call.args["n"] % 2)
        return replace(result, content=result.content + "!")

    async def judge(call: Any) -> Deny | None:
        if call.args["n"] % 10 == 1:
            return Deny(f"no {call.args['n']}")
        return None

    async def hang(call: Any) -> None:
        await anyio.sleep_forever()

    async def terminal(call: Any) -> ToolResult:
        await turns(2)
        return ToolResult(content=call.args["label"])

    hung = guard(hang, id="hung", tool="*/stuck", timeout=0.05)
    chain = Chain([before(label), around(wrap), guard(judge), hung, before(lambda call: None, wait=False)])
    outcomes: dict[int, Any] = {}

    async def one(n: int) -> None:
        call = tool_call(args={"n": n}, operation_id=f"op{n}", tool_name="stuck" if n % 10 == 2 else "work")
        outcomes[n] = await chain.run(call, terminal)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for n in range(200):
                group.start_soon(one, n)

    for n, outcome in outcomes.items():
        assert outcome.call.metadata == {"n": n}
        assert {each.operation_id for each in outcome.executions} == {f"op{n}"}
        if n % 10 == 1:
            assert outcome.denied == Denial(hook_id="guard", reason=f"no {n}")
        elif n % 10 == 2:
            assert ("hung", "timeout") in statuses(outcome)
        else:
            assert outcome.result.content == f"call {n}!"


async def test_hooks_of_parallel_calls_are_not_serialised() -> None:
    both = 0

    async def meet(call: Any) -> None:
        nonlocal both
        both += 1
        while both < 2:
            await anyio.sleep(0)

    chain = Chain([before(meet)])
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(chain.run, tool_call(), Tool())


async def test_one_chain_serves_several_event_loops(anyio_backend: str) -> None:
    chain = Chain([around(through), before(lambda call: None, wait=False), guard(lambda call: None)])
    results: list[str] = []

    def work() -> None:
        for _ in range(5):
            outcome = anyio.run(chain.run, tool_call(), Tool(), backend=anyio_backend)
            results.append(outcome.unwrap().content)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)

    assert results == ["result"] * 15


# --- one call, many tasks


async def test_two_call_nexts_at_once_get_the_first_outcome() -> None:
    tool = Tool(seconds=0.01)
    results: list[Any] = []

    async def twice(call: Any, call_next: Any) -> Any:
        async def one(n: int) -> None:
            results.append(await call_next(with_args(call, n=n)))

        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(one, n)
        return results[0]

    seen: list[Any] = []
    outcome = await run([around(twice), guard(lambda call: seen.append(call))], terminal=tool)

    assert results == [tool.answer] * 3
    assert len(tool.calls) == len(seen) == 1
    assert outcome.call is tool.calls[0]
    assert outcome.result is tool.answer


@pytest.mark.parametrize("end", ["denied", "raises"])
async def test_two_call_nexts_at_once_get_the_first_failure(end: str) -> None:
    broken = ValueError("tool")
    tool = Tool(error=broken, seconds=0.01)
    caught: list[Exception] = []

    async def deny(call: Any) -> Deny | None:
        await turns(3)
        return Deny("no") if end == "denied" else None

    async def twice(call: Any, call_next: Any) -> Any:
        async def one() -> None:
            try:
                await call_next(call)
            except Exception as error:
                caught.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
        raise caught[0]

    if end == "denied":
        outcome = await run([around(twice), guard(deny)], terminal=tool)
        assert outcome.denied == Denial(hook_id="guard", reason="no")
        assert [type(error) for error in caught] == [HookDenied] * 2
    else:
        with pytest.raises(ValueError, match="tool") as raised:
            await run([around(twice), guard(deny)], terminal=tool)
        assert raised.value is broken
        assert caught == [broken] * 2
    assert len(tool.calls) == (end == "raises")


async def test_the_terminals_exception_passes_a_task_group_with_two_call_nexts() -> None:
    broken = ValueError("tool")

    async def twice(call: Any, call_next: Any) -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(call_next, call)
            group.start_soon(call_next, call)

    with pytest.raises(ValueError, match="tool") as caught:
        await run([around(twice)], terminal=Tool(error=broken, seconds=0.005))

    assert caught.value is broken


@ASYNCIO
async def test_gathering_two_call_nexts_gives_the_first_outcome_twice() -> None:
    tool = Tool(seconds=0.01)

    async def twice(call: Any, call_next: Any) -> Any:
        first, second = await asyncio.gather(call_next(call), call_next(call))
        assert first is second
        return first

    outcome = await run([around(twice, priority=1), around(twice, priority=2)], terminal=tool)

    assert outcome.result is tool.answer
    assert len(tool.calls) == 1


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_waiting_for_the_first_call_next_does_not_burn_the_processor() -> None:
    import trio

    class Steps(trio.abc.Instrument):
        count = 0

        def before_task_step(self, task: Any) -> None:
            self.count += 1

    async def twice(call: Any, call_next: Any) -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(call_next, call)
            group.start_soon(call_next, call)
        return await call_next(call)

    async def slow_end(call: Any, result: Any) -> None:
        await anyio.sleep(0.03)

    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        await run([around(twice, priority=1), after(slow_end, priority=2), around(twice, priority=3)])
    finally:
        trio.lowlevel.remove_instrument(steps)

    assert steps.count < 200


@for_each("says", ["a result", "none", "deny", "raises"])
@for_each("on_error", ["open", "closed"])
@for_each("claim", ["gives an outcome", "has ended what it started"])
async def test_a_run_whose_hook_leaves_call_next_running(says: str, on_error: str, claim: str) -> None:
    """The hook starts `call_next` in a task that outlives it."""
    log: list[str] = []
    outcomes: list[Any] = []

    async def terminal(call: Any) -> ToolResult:
        log.append("terminal started")
        await anyio.sleep(0.02)
        log.append("terminal ended")
        return ToolResult(content="result")

    async with anyio.create_task_group() as group:

        async def impatient(call: Any, call_next: Any) -> Any:
            async def work() -> None:
                with contextlib.suppress(Exception):
                    await call_next(call)

            group.start_soon(work)
            while "terminal started" not in log:
                await anyio.sleep(0)
            if says == "raises":
                raise ValueError
            return {"a result": ToolResult(content="early"), "deny": Deny("no")}.get(says)

        outcome = await run([around(impatient, on_error=on_error, id="impatient"), around(through)], terminal=terminal)
        log.append("run ended")
        outcomes.append(outcome)

    assert log.count("terminal started") == 1
    if claim == "gives an outcome":
        assert outcomes[0].executions[0].hook_id == "impatient"
        if says == "a result":
            assert outcomes[0].result.content == "early"
        if says == "deny":
            assert outcomes[0].denied == Denial(hook_id="impatient", reason="no")
    else:
        assert log.index("terminal ended") < log.index("run ended")


async def test_a_call_next_that_is_started_too_late_runs_nothing() -> None:
    tool = Tool()
    errors: list[Exception] = []

    async with anyio.create_task_group() as group:

        async def leave(call: Any, call_next: Any) -> ToolResult:
            async def work() -> None:
                try:
                    await call_next(call)
                except Exception as error:
                    errors.append(error)

            group.start_soon(work)
            return ToolResult(content="already answered")

        outcome = await run([around(leave)], terminal=tool)

    assert outcome.result.content == "already answered"
    assert tool.calls == []
    assert len(errors) == 1


# --- depth


@for_each("kind", ["before", "guard", "after", "mixed"])
async def test_300_hooks_stand_in_one_chain(kind: str) -> None:
    count = 0

    async def step(*args: Any) -> None:
        nonlocal count
        count += 1

    kinds = ["before", "guard", "after"] if kind == "mixed" else [kind]
    tool = Tool()
    hooks = [hook(kinds[n % len(kinds)], step, priority=n) for n in range(300)]
    outcome = await run(hooks, terminal=tool)

    assert count == len(outcome.executions) == 300
    assert outcome.result is tool.answer


@for_each("suspends", [False, True])
@for_each("options", [{}, {"record": False, "hook_timeout": math.inf}], ids=["timed", "bare"])
@for_each("between", ["nothing", "before", "after", "everything"])
async def test_100_arounds_stand_in_one_chain(between: str, options: Any, *, suspends: bool) -> None:
    tool = Tool(seconds=0.001 if suspends else 0)
    hooks = [around(through, priority=n) for n in range(100)]
    if between in ("before", "everything"):
        hooks += [before(lambda call: None, priority=n) for n in range(100)]
    if between in ("after", "everything"):
        hooks += [after(lambda call, result: None, priority=n) for n in range(100)]

    outcome = await run(hooks, terminal=tool, **options)

    assert outcome.denied is None
    assert outcome.result is tool.answer
    assert {status for _, status in statuses(outcome)} <= {"ok"}


@pytest.mark.parametrize("of_the_tenant", [0, 1, 101])
def test_more_arounds_than_the_stack_holds_are_refused_when_the_chain_is_made(of_the_tenant: int) -> None:
    tenants = ["acme"] * of_the_tenant + [""] * (101 - of_the_tenant)

    with pytest.raises(HookDefinitionError, match="more than 100 `around` hooks"):
        Chain([around(through, tenant_id=tenant) for tenant in tenants])


def test_as_many_arounds_as_the_stack_holds_are_taken_of_each_tenant() -> None:
    tenants = ["acme"] * 60 + ["globex"] * 60 + [""] * 40

    chain = Chain([around(through, tenant_id=tenant) for tenant in tenants])

    assert len(chain.order(ToolCall, tenant_id="acme")) == 100


# --- context variables


async def test_context_variables_that_a_hook_sets_are_seen_further_in_and_by_the_caller() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    async def set_it(call: Any) -> None:
        await turns(1)
        variable.set("by before")

    async def set_around(call: Any, call_next: Any) -> Any:
        seen.append(variable.get())
        token = variable.set("by around")
        try:
            return await call_next(call)
        finally:
            variable.reset(token)

    async def terminal(call: Any) -> ToolResult:
        seen.append(variable.get())
        return ToolResult(content="x")

    hooks = [before(set_it), around(set_around), guard(lambda call: seen.append(variable.get())), after(lambda call, result: seen.append(variable.get()), priority=0)]  # fmt: skip
    await Chain(hooks).run(tool_call(), terminal)

    assert seen == ["by before", "by around", "by around", "by before"]
    assert variable.get() == "by before"


async def test_a_hook_runs_in_the_task_of_its_caller() -> None:
    tasks: set[int] = set()

    async def note(*args: Any) -> Any:
        await turns(1)
        tasks.add(anyio.get_current_task().id)
        return await args[1](args[0]) if len(args) == 2 and callable(args[1]) else None

    await Chain([hook(kind, note, timeout=1) for kind in KINDS]).run(tool_call(), Tool())

    assert tasks == {anyio.get_current_task().id}


# --- nothing is left


def closure(alive: weakref.WeakSet[Any], kind: str, fate: str) -> Any:
    payload = [object()] * 20

    async def handler(*args: Any) -> Any:
        assert payload
        await turns(1)
        if fate == "raises":
            raise ValueError(payload)
        if fate == "hangs":
            await anyio.sleep_forever()
        if fate == "denies":
            return Deny("no")
        return await args[1](args[0]) if kind == "around" else None

    alive.add(handler)
    return handler


@for_each("fate", ["passes", "raises", "hangs", "denies"])
@for_each("kind", [*KINDS, "background"])
async def test_a_closure_dies_with_its_chain(kind: str, fate: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "hookline")  # a kept log record would keep the traceback
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    options = {"wait": False} if kind == "background" else {}
    kind = "before" if kind == "background" else kind

    async def use() -> None:
        bundle = Hooks("bundle")
        timeout = 0.005 if fate == "hangs" else None
        getattr(bundle, kind)(ToolCall, timeout=timeout, **options)(closure(alive, kind, fate))
        chain = Chain([bundle])
        for _ in range(3):
            await lead(chain)
        assert len(alive) == 1

    with recorded():
        await use()
    await turns()
    gc.collect()

    assert len(alive) == 0


async def test_nothing_of_a_call_is_kept_by_the_chain() -> None:
    class Payload:
        pass

    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    chain = Chain([before(lambda call: None), around(through), before(lambda call: None, wait=False)], budget=5)

    async def use() -> None:
        payload = Payload()
        alive.add(payload)
        await lead(chain, tool_call(args={"held": payload}))

    await use()
    await turns()
    gc.collect()

    assert len(alive) == 0


@ASYNCIO
async def test_the_task_of_a_chain_that_has_suspended_does_not_wait_for_the_collector() -> None:
    async def suspend(call: Any, call_next: Any) -> Any:
        await turns(1)
        return await call_next(call)

    chain = Chain([around(suspend)])
    gc.collect()
    gc.disable()
    try:
        task = asyncio.create_task(lead(chain))
        await task
        gone = weakref.ref(task)
        del task
        await turns(2)

        assert gone() is None
    finally:
        gc.enable()


async def test_a_chain_with_a_receiver_of_its_records_is_collected() -> None:
    with recorded():
        chain = Chain([before(lambda call: None)])
        await lead(chain)
        gone = weakref.ref(chain)
        del chain
        await turns()
        gc.collect()

        assert gone() is None


@ASYNCIO
@for_each("fate", ["passes", "raises", "hangs", "denies"])
@for_each("kind", [*KINDS, "background"])
async def test_no_task_is_left_after_a_run(kind: str, fate: str) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    options: dict[str, Any] = {"wait": False} if kind == "background" else {}
    kind = "before" if kind == "background" else kind

    async def elsewhere(call: Any, call_next: Any) -> Any:
        return await asyncio.wait_for(call_next(call), 5)

    before_tasks = asyncio.all_tasks()
    await run([around(elsewhere), hook(kind, closure(alive, kind, fate), timeout=0.005 if fate == "hangs" else 5, **options)])  # fmt: skip

    assert asyncio.all_tasks() == before_tasks
