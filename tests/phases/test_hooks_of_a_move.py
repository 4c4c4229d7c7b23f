"""Which hooks a move has, in which order they run, and that nothing that they do reaches the agent."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio.testing
from dispatcher.samples import connected, for_ever, keep_busy, recorded, soon, turns
from hypothesis import given
from hypothesis import strategies as st

from hookline import Ask, BeforeStep, Deny, Hook, Hooks, Respond, ToolCall, ToolResult
from hookline.errors import HookDefinitionError, PhaseTransitionError
from hookline.phases import TRANSITIONS, Phase, PhaseHook, PhaseMachine, PhaseTransition
from hookline.signals import hook_executed
from tests.tables import for_each

from .samples import PhaseHookOf, announced, machine_in, noting, pair, path_to

pytestmark = pytest.mark.anyio

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])


class Fatal(BaseException):
    """Something that nobody may swallow."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def bundle(*handlers: Any, timeout: float | None = None, **options: Any) -> Hooks:
    """Handlers for every move."""
    hooks = Hooks("bundle", **options)
    for handler in handlers:
        hooks.on_phase(None, None, timeout=timeout)(handler)
    return hooks


# --- which, and in which order


@for_each(
    ("source", "target", "called"),
    [
        (Phase.BOOTSTRAPPING, Phase.IDLE, 1),
        (Phase.UNINITIALIZED, Phase.IDLE, 0),
        (Phase.IDLE, Phase.BOOTSTRAPPING, 0),
        (None, Phase.IDLE, 2),
        (Phase.BOOTSTRAPPING, None, 1),
        (None, None, 4),
        (None, Phase.ERROR, 0),
    ],
)
@BOTH
async def test_a_hook_is_called_for_its_pair_of_phases(
    source: Phase | None, target: Phase | None, called: int, *, is_async: bool
) -> None:
    log: list[PhaseTransition] = []
    hooks = Hooks("h")
    handler = hooks.on_phase(source, target)(noting(log, is_async=is_async))
    machine = PhaseMachine("agent", [hooks])

    for phase in (*path_to(Phase.PROCESSING_USER_INPUT), Phase.IDLE):
        await machine.move(phase)

    assert len(log) == called
    for transition in log:
        assert source in (None, transition.source)
        assert target in (None, transition.target)
    assert callable(handler)


async def test_any_to_error_needs_one_hook() -> None:
    log: list[PhaseTransition] = []
    hooks = Hooks("alarm")
    hooks.on_phase(None, Phase.ERROR)(noting(log))
    living = [phase for phase in Phase if not phase.is_terminal]

    for phase in living:
        machine = await machine_in(phase)
        with machine.hooked([hooks]):
            await machine.move(Phase.ERROR)
            await machine.move(Phase.UNINITIALIZED)

    assert [pair(transition) for transition in log] == [(phase, Phase.ERROR) for phase in living]
    assert len(living) == 11


async def test_hooks_run_in_the_order_in_which_they_were_given() -> None:
    log: list[str] = []
    late = bundle(noting(log, "first"), noting(log, "second", is_async=True), priority=1000)
    early = bundle(noting(log, "fourth"), priority=0)
    middle = PhaseHookOf(None, Phase.BOOTSTRAPPING, noting(log, "third", is_async=True))
    machine = PhaseMachine("agent", [late, middle, early])

    await machine.move(Phase.BOOTSTRAPPING)

    assert log == ["first", "second", "third", "fourth"]


async def test_a_bundle_that_is_given_twice_runs_twice() -> None:
    log: list[str] = []
    hooks = bundle(noting(log, "again"))
    machine = PhaseMachine("agent", [hooks, hooks])

    with machine.hooked([hooks]):
        await machine.move(Phase.BOOTSTRAPPING)
    await machine.move(Phase.IDLE)

    assert log == ["again"] * 5


async def test_a_handler_is_told_everything_about_the_move() -> None:
    log: list[PhaseTransition] = []
    machine = PhaseMachine("agent", [bundle(noting(log))])
    before = time.time_ns()

    await machine.move(Phase.BOOTSTRAPPING)
    machine.operation_id = "op"
    await machine.move(Phase.IDLE, reason="ready")

    assert log == [
        PhaseTransition(
            agent_id="agent",
            source=Phase.UNINITIALIZED,
            target=Phase.BOOTSTRAPPING,
            time_unix_nano=log[0].time_unix_nano,
        ),
        PhaseTransition(
            agent_id="agent",
            operation_id="op",
            source=Phase.BOOTSTRAPPING,
            target=Phase.IDLE,
            time_unix_nano=log[1].time_unix_nano,
            reason="ready",
        ),
    ]
    assert before <= log[0].time_unix_nano <= log[1].time_unix_nano <= time.time_ns()
    with pytest.raises(AttributeError):
        log[0].target = Phase.IDLE  # type: ignore[misc]


@BOTH
async def test_a_hook_sees_the_new_phase(*, is_async: bool) -> None:
    seen: list[Phase] = []

    def look(transition: PhaseTransition) -> None:
        seen.append(machine.phase)

    async def look_later(transition: PhaseTransition) -> None:
        look(transition)

    machine = PhaseMachine("agent", [bundle(look_later if is_async else look)])

    await machine.move(Phase.BOOTSTRAPPING)

    assert seen == [Phase.BOOTSTRAPPING]


async def test_a_hook_on_becoming_ready_runs_once_per_start_however_many_tasks_follow() -> None:
    log: list[PhaseTransition] = []
    hooks = Hooks("ready")
    hooks.on_phase(Phase.BOOTSTRAPPING, Phase.IDLE)(noting(log))
    machine = PhaseMachine("agent", [hooks])
    start = [Phase.BOOTSTRAPPING, Phase.IDLE]
    task = [Phase.PROCESSING_USER_INPUT, Phase.AWAITING_LLM_RESPONSE, Phase.ANALYZING_LLM_RESPONSE, Phase.IDLE]

    for phase in (*start, *task, *task, *task):
        await machine.move(phase)
    assert len(log) == 1

    for phase in (Phase.SHUTTING_DOWN, Phase.SHUTDOWN_COMPLETE, Phase.UNINITIALIZED, *start, *task):
        await machine.move(phase)
    assert len(log) == 2


HOOKS = st.lists(
    st.tuples(
        st.none() | st.sampled_from(Phase),
        st.none() | st.sampled_from(Phase),
        st.sampled_from(["plain", "async", "at once", "object"]),
        st.booleans(),
    ),
    max_size=12,
)


@given(
    shapes=HOOKS,
    places=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    choices=st.lists(st.integers(0, 5), max_size=12),
    backend=st.sampled_from(["asyncio", "trio"]),
)
def test_every_matching_hook_runs_exactly_once_in_order(
    shapes: list[Any], places: list[int], choices: list[int], backend: str
) -> None:
    async def main() -> None:
        log: list[Any] = []

        def made(number: int, shape: Any) -> Any:
            source, target, kind, fails = shape

            def plain(transition: PhaseTransition) -> None:
                log.append((number, *pair(transition)))
                if fails:
                    raise ValueError(number)

            async def at_once(transition: PhaseTransition) -> None:
                plain(transition)

            async def later(transition: PhaseTransition) -> None:
                await turns(number % 3)
                plain(transition)

            if kind == "object":
                return PhaseHookOf(source, target, later)
            hooks = Hooks(f"hooks{number}")
            hooks.on_phase(source, target)({"plain": plain, "async": later, "at once": at_once}[kind])
            return hooks

        # In the machine, in the `with` around all moves, or around every second one.
        batches: list[list[Any]] = [[], [], []]
        order: list[list[int]] = [[], [], []]
        for number, shape in enumerate(shapes):
            batches[places[number]].append(made(number, shape))
            order[places[number]].append(number)
        expected: list[Any] = []
        machine = PhaseMachine("agent", batches[0])
        with machine.hooked(batches[1]):
            for index, choice in enumerate(choices):
                source = machine.phase
                target = sorted(TRANSITIONS[source])[choice % len(TRANSITIONS[source])]
                with machine.hooked(batches[2] if index % 2 else []):
                    await machine.move(target)
                hooked = order[0] + order[1] + (order[2] if index % 2 else [])
                expected += [
                    (number, source, target)
                    for number in hooked
                    if shapes[number][0] in (None, source) and shapes[number][1] in (None, target)
                ]

        assert log == expected

    logging.disable(logging.CRITICAL)
    try:
        anyio.run(main, backend=backend)
    finally:
        logging.disable(logging.NOTSET)


# --- what is accepted


class Raising(PhaseHook):
    target_phase = None

    @property
    def source_phase(self) -> Phase | None:  # type: ignore[override]
        raise RuntimeError("no database")

    async def execute(self, context: PhaseTransition) -> None:
        raise AssertionError


class Misspelt(PhaseHook):
    source_phase = "idel"  # type: ignore[assignment]
    target_phase = None

    async def execute(self, context: PhaseTransition) -> None:
        raise AssertionError


PARTS: dict[str, Any] = {"source_phase": None, "target_phase": Phase.IDLE, "execute": Misspelt.execute}


@pytest.mark.parametrize("missing", PARTS)
def test_a_phase_hook_that_lacks_a_part_cannot_be_instantiated(missing: str) -> None:
    parts = {name: part for name, part in PARTS.items() if name != missing}
    incomplete: Any = type("Incomplete", (PhaseHook,), parts)

    with pytest.raises(TypeError, match=missing):
        incomplete()
    type("Complete", (incomplete,), {missing: PARTS[missing]})()


@pytest.mark.parametrize("hook", [Raising(), Misspelt()], ids=lambda hook: type(hook).__name__)
async def test_a_phase_hook_whose_phases_cannot_be_read_is_refused_at_registration(hook: PhaseHook) -> None:
    log: list[str] = []
    machine = PhaseMachine("agent", [bundle(noting(log, "present"))])

    with pytest.raises(HookDefinitionError, match=rf"hooks\[1\].*{type(hook).__name__}"):
        PhaseMachine("agent", [Hooks("fine"), hook])
    with pytest.raises(HookDefinitionError), machine.hooked([bundle(noting(log, "added")), hook]):
        pass

    await machine.move(Phase.BOOTSTRAPPING)
    assert log == ["present"]


async def test_the_phases_of_a_hook_are_those_at_its_registration() -> None:
    log: list[PhaseTransition] = []
    hook = PhaseHookOf(None, Phase.BOOTSTRAPPING, noting(log, is_async=True))
    machine = PhaseMachine("agent", [hook])
    hook.target_phase = Phase.IDLE

    await machine.move(Phase.BOOTSTRAPPING)
    await machine.move(Phase.IDLE)

    assert [transition.target for transition in log] == [Phase.BOOTSTRAPPING]


async def test_what_is_added_to_a_bundle_later_counts_from_its_next_registration_on() -> None:
    log: list[str] = []
    hooks = bundle(noting(log, "before"))
    machine = PhaseMachine("agent", [hooks])
    hooks.on_phase(None, None)(noting(log, "after"))

    await machine.move(Phase.BOOTSTRAPPING)
    assert log == ["before"]

    with machine.hooked([hooks]):
        await machine.move(Phase.IDLE)
    assert log == ["before", "before", "before", "after"]


async def test_hooks_of_other_kinds_are_accepted_and_idle() -> None:
    log: list[Any] = []
    hooks = bundle(noting(log, "phase"))
    hooks.on(BeforeStep)(log.append)
    hooks.guard(ToolCall)(log.append)
    plain = Hook(id="h", type=BeforeStep, handler=log.append)
    machine = PhaseMachine("agent", [plain, *hooks.interceptors, hooks])

    await machine.move(Phase.BOOTSTRAPPING)

    assert log == ["phase"]


@for_each("hooks", [[lambda transition: None], Hooks("not in a list"), [None], None, ["h"]])
async def test_a_wrong_batch_is_refused(hooks: Any) -> None:
    with pytest.raises(HookDefinitionError):
        PhaseMachine("agent", hooks)
    with pytest.raises(HookDefinitionError), PhaseMachine("agent").hooked(hooks):
        pass


async def test_hooks_may_come_from_a_generator() -> None:
    log: list[str] = []
    machine = PhaseMachine("agent", (bundle(noting(log, name)) for name in "ab"))

    await machine.move(Phase.BOOTSTRAPPING)

    assert log == ["a", "b"]


class Callable_:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def __call__(self, transition: PhaseTransition) -> None:
        await turns(1)
        self.log.append("object")


async def test_partials_and_callable_objects_are_awaited_where_they_are_async() -> None:
    log: list[str] = []

    async def two(word: str, transition: PhaseTransition) -> None:
        await turns(1)
        log.append(word)

    machine = PhaseMachine("agent", [bundle(functools.partial(two, "partial"), Callable_(log))])

    await machine.move(Phase.BOOTSTRAPPING)

    assert log == ["partial", "object"]


@for_each(("tenant_id", "expected"), [("", ["all"]), ("acme", ["all", "acme"]), ("other", ["all", "other"])])
async def test_bundles_of_another_tenant_are_ignored(tenant_id: str, expected: list[str]) -> None:
    log: list[str] = []
    hooks = [
        bundle(noting(log, "all")),
        bundle(noting(log, "acme"), tenant_id="acme"),
        bundle(noting(log, "other"), tenant_id="other"),
    ]
    machine = PhaseMachine("agent", hooks, tenant_id=tenant_id)

    await machine.move(Phase.BOOTSTRAPPING)
    assert log == expected

    machine = PhaseMachine("agent", tenant_id=tenant_id)
    with machine.hooked(hooks):
        await machine.move(Phase.BOOTSTRAPPING)
    assert log == expected * 2


# --- hooks for a while


async def test_hooked_adds_hooks_after_the_present_ones_for_as_long_as_it_lasts() -> None:
    log: list[str] = []
    machine = await machine_in(Phase.IDLE)
    there, back = Phase.PROCESSING_USER_INPUT, Phase.IDLE

    with machine.hooked([bundle(noting(log, "outer"))]):
        await machine.move(there)
        with machine.hooked([bundle(noting(log, "inner"))]):
            await machine.move(back)
        await machine.move(there)
    await machine.move(back)

    assert log == ["outer", "outer", "inner", "outer"]


async def test_hooked_takes_back_its_own_hooks_whatever_happens_meanwhile() -> None:
    log: list[str] = []
    machine = PhaseMachine("agent", [bundle(noting(log, "present"))])
    first, second = machine.hooked([bundle(noting(log, "first"))]), machine.hooked([bundle(noting(log, "second"))])

    with pytest.raises(KeyError), machine.hooked([bundle(noting(log, "failed"))]):
        raise KeyError
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    await machine.move(Phase.BOOTSTRAPPING)
    second.__exit__(None, None, None)
    await machine.move(Phase.IDLE)

    assert log == ["present", "second", "present"]


async def test_the_hooks_of_a_move_are_those_at_its_beginning() -> None:
    log: list[str] = []

    async def change(transition: PhaseTransition) -> None:
        log.append("change")
        machine.hooked([bundle(noting(log, "added"))]).__enter__()
        task_hooks.__exit__(None, None, None)

    machine = PhaseMachine("agent", [bundle(change)])
    task_hooks = machine.hooked([bundle(noting(log, "taken back"))])
    task_hooks.__enter__()

    await machine.move(Phase.BOOTSTRAPPING)

    assert log == ["change", "taken back"]


# --- what goes wrong in a hook

FAILURES = [ValueError("bad"), Unprintable(), ExceptionGroup("both", [ValueError(), KeyError()]), StopIteration(), StopAsyncIteration(), TimeoutError(), RecursionError()]  # fmt: skip


@for_each("error", FAILURES, ids=lambda error: type(error).__name__)
@BOTH
async def test_an_exception_is_logged_with_hook_move_and_agent_and_the_next_hook_runs(
    error: Exception, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    log: list[str] = []

    def fail(transition: PhaseTransition) -> None:
        raise error

    async def fail_later(transition: PhaseTransition) -> None:
        await turns(1)
        raise error

    hooks = Hooks("h")
    hooks.on_phase(None, None, id="the hook")(fail_later if is_async else fail)
    hooks.on_phase(None, None)(noting(log, "next"))
    machine = PhaseMachine("the agent", [hooks], operation_id="op 1")

    with announced() as moves:
        await machine.move(Phase.BOOTSTRAPPING)

    assert log == ["next"]
    assert len(moves) == 1
    assert machine.phase is Phase.BOOTSTRAPPING
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("hookline", logging.ERROR)
    raised = "RuntimeError" if is_async and isinstance(error, StopIteration) else type(error).__name__
    for word in ("the hook", "uninitialized -> bootstrapping", "the agent", "op 1", raised):
        assert word in record.getMessage()


@pytest.mark.parametrize("suspends", [0, 1])
async def test_a_hung_hook_does_not_stop_the_agent(suspends: int, caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []

    async def hang(transition: PhaseTransition) -> None:
        await turns(suspends)
        try:
            await for_ever()
        finally:
            log.append("cleaned up")

    hooks = Hooks("h")
    hooks.on_phase(None, None, timeout=0.02)(hang)
    hooks.on_phase(None, None)(noting(log, "next"))
    machine = PhaseMachine("the agent", [hooks])

    async with soon():
        with recorded(machine) as records, announced() as moves:
            await machine.move(Phase.BOOTSTRAPPING)
            await turns(2)

    assert log == ["cleaned up", "next"]
    assert len(moves) == 1
    assert [(record.hook_id, record.status) for record in records] == [("h.hang", "timeout"), ("h.handler", "ok")]
    (entry,) = caplog.records
    for word in ("h.hang", "uninitialized -> bootstrapping", "the agent", "0.02 s"):
        assert word in entry.getMessage()


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})])
async def test_an_async_hook_has_thirty_seconds_or_as_many_as_it_says() -> None:
    took: list[float] = []

    async def hang(transition: PhaseTransition) -> None:
        began = trio.current_time()
        try:
            await trio.sleep(86_400)
        finally:
            took.append(trio.current_time() - began)

    hooks = [
        bundle(hang),
        bundle(hang, timeout=2.5),
        bundle(hang, timeout=math.inf),
        PhaseHookOf(None, None, hang),
    ]
    machine = PhaseMachine("agent", hooks)

    await machine.move(Phase.BOOTSTRAPPING)

    assert took == pytest.approx([30, 2.5, 86_400, 30])


async def test_a_hooks_own_timeout_error_is_an_error_and_no_timeout(caplog: pytest.LogCaptureFixture) -> None:
    async def impatient(transition: PhaseTransition) -> None:
        with anyio.fail_after(0.001):
            await for_ever()

    machine = PhaseMachine("agent", [bundle(impatient)])

    async with soon():
        with recorded(machine) as records:
            await machine.move(Phase.BOOTSTRAPPING)

    assert [record.status for record in records] == ["error"]
    assert "TimeoutError" in caplog.text


async def test_a_plain_hook_cannot_be_interrupted_and_its_overrun_is_recorded() -> None:
    log: list[str] = []

    def slow(transition: PhaseTransition) -> None:
        keep_busy(0.02)
        log.append("finished")

    machine = PhaseMachine("agent", [bundle(slow, timeout=0.01)])

    with recorded(machine) as records:
        await machine.move(Phase.BOOTSTRAPPING)

    assert log == ["finished"]
    assert [record.status for record in records] == ["timeout"]


@ASYNCIO
@for_each("timeout", [None, math.inf])
@for_each("how", ["plain", "async", "async, later"])
async def test_a_cancelled_future_is_the_hooks_failure(
    how: str, timeout: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []

    def cancelled() -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        return future

    def careless(transition: PhaseTransition) -> None:
        cancelled().result()

    async def careless_later(transition: PhaseTransition) -> None:
        await turns(1 if "later" in how else 0)
        await cancelled()

    handler = careless if how == "plain" else careless_later
    machine = PhaseMachine("agent", [bundle(handler, noting(log, "next"), timeout=timeout)])

    async with soon():
        with recorded(machine) as records:
            await machine.move(Phase.BOOTSTRAPPING)

    assert log == ["next"]
    assert [record.status for record in records] == ["error", "ok"]
    assert "without having been cancelled" in caplog.text


async def test_a_plain_hook_that_returns_a_coroutine_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    async def later() -> None:
        raise AssertionError

    machine = PhaseMachine("agent", [bundle(lambda transition: later())])

    await machine.move(Phase.BOOTSTRAPPING)

    assert "async def" in caplog.text


@BOTH
@for_each("value", [42, "nobody asked", {"content": "x"}, ValueError("returned")], ids=repr)
async def test_a_value_that_a_hook_returns_means_nothing(
    value: object, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    async def answer(transition: PhaseTransition) -> Any:
        return value

    machine = PhaseMachine("agent", [bundle(answer if is_async else lambda transition: value)])

    assert await machine.move(Phase.BOOTSTRAPPING) is None  # type: ignore[func-returns-value]

    assert caplog.records == []


@BOTH
@for_each("decision", [Deny("no"), Ask("may I?"), Respond("x"), ToolResult(content="x")], ids=repr)
async def test_a_decision_that_a_hook_returns_is_an_error_of_that_hook(
    decision: object, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    log: list[str] = []

    async def decide(transition: PhaseTransition) -> Any:
        return decision

    machine = PhaseMachine("agent", [bundle(decide if is_async else lambda transition: decision, noting(log, "next"))])

    with recorded(machine) as records:
        await machine.move(Phase.BOOTSTRAPPING)

    assert machine.phase is Phase.BOOTSTRAPPING
    assert [record.status for record in records] == ["error", "ok"]
    assert log == ["next"]
    assert "hooks.guard(ToolCall)" in caplog.text


async def decide_moves(transition: PhaseTransition) -> Deny | None:
    return None


def test_a_phase_hook_that_is_annotated_to_decide_is_refused() -> None:
    class Deciding(PhaseHook):
        source_phase = target_phase = None

        async def execute(self, context: PhaseTransition) -> Deny | None:  # type: ignore[override]
            return None

    with pytest.raises(HookDefinitionError, match=r"Deny.*hooks\.guard\(ToolCall\)"):
        Hooks("deciding").on_phase(None, None)(decide_moves)  # type: ignore[arg-type, type-var]
    with pytest.raises(HookDefinitionError, match=r"Deny.*hooks\.guard\(ToolCall\)"):
        PhaseMachine("agent", [Deciding()])


@BOTH
async def test_a_base_exception_goes_through_and_no_further_hook_runs(*, is_async: bool) -> None:
    log: list[str] = []

    def fail(transition: PhaseTransition) -> None:
        raise Fatal

    async def fail_later(transition: PhaseTransition) -> None:
        await turns(1)
        raise Fatal

    machine = PhaseMachine("agent", [bundle(fail_later if is_async else fail, noting(log, "next"))])

    with announced() as moves, pytest.raises(Fatal):
        await machine.move(Phase.BOOTSTRAPPING)

    assert log == []
    assert machine.phase is Phase.BOOTSTRAPPING
    assert len(moves) == 1


async def test_a_quiet_move_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    machine = PhaseMachine("agent", [bundle(noting([]), noting([], is_async=True))])

    await machine.move(Phase.BOOTSTRAPPING)

    assert [record for record in caplog.records if record.name.startswith("hookline")] == []


async def test_a_move_that_a_hook_may_not_make_is_that_hooks_failure(caplog: pytest.LogCaptureFixture) -> None:
    raised: list[Exception] = []

    async def leap(transition: PhaseTransition) -> None:
        try:
            await machine.move(Phase.TOOL_DENIED)
        except PhaseTransitionError as error:
            raised.append(error)
            raise

    log: list[str] = []
    machine = PhaseMachine("agent", [bundle(leap, noting(log, "next"))])

    await machine.move(Phase.BOOTSTRAPPING)

    assert len(raised) == 1
    assert machine.phase is Phase.BOOTSTRAPPING
    assert log == ["next"]
    assert "PhaseTransitionError" in caplog.text


# --- records


async def test_every_run_of_a_hook_is_recorded_once_with_the_machine_as_sender() -> None:
    def fail(transition: PhaseTransition) -> None:
        raise ValueError("bad")

    hooks = Hooks("h")
    hooks.on_phase(None, Phase.BOOTSTRAPPING, id="plain")(noting([]))
    hooks.on_phase(None, None, id="async")(noting([], is_async=True))
    hooks.on_phase(Phase.UNINITIALIZED, None, id="failing")(fail)
    hooks.on_phase(None, Phase.IDLE, id="another move's")(fail)
    machine, other = PhaseMachine("agent", [hooks], operation_id="op"), PhaseMachine("other", [hooks])

    with recorded(machine) as records:
        await machine.move(Phase.BOOTSTRAPPING)
        await other.move(Phase.BOOTSTRAPPING)
    await machine.move(Phase.IDLE)

    assert [(record.hook_id, record.status) for record in records] == [
        ("plain", "ok"),
        ("async", "ok"),
        ("failing", "error"),
    ]
    for record in records:
        assert (record.hook_type, record.operation_id) == ("phase", "op")
        assert record.duration_ms >= 0
        assert (record.error is None) is (record.status == "ok")
    assert "bad" in (records[2].error or "")


async def test_a_phase_hook_is_recorded_under_the_name_of_its_class() -> None:
    machine = PhaseMachine("agent", [PhaseHookOf(None, None, noting([], is_async=True))])

    with recorded(machine) as records:
        await machine.move(Phase.BOOTSTRAPPING)

    assert [record.hook_id for record in records] == ["PhaseHookOf"]


async def test_a_receiver_of_records_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(sender: object, execution: object) -> None:
        raise ValueError("broken receiver")

    log: list[str] = []
    machine = PhaseMachine("agent", [bundle(noting(log, "a"), noting(log, "b"))])

    with connected(hook_executed, broken):
        await machine.move(Phase.BOOTSTRAPPING)

    assert log == ["a", "b"]
    assert len(caplog.records) == 2


# --- many agents


def test_the_same_hooks_serve_two_agents_on_different_loops() -> None:
    log: list[tuple[str, Phase, Phase]] = []
    meeting = threading.Barrier(2, timeout=5)

    def meet(transition: PhaseTransition) -> None:
        meeting.wait()  # both agents are in the middle of the same hooks

    async def note(transition: PhaseTransition) -> None:
        await turns(3)
        log.append((transition.agent_id, *pair(transition)))

    async def hang(transition: PhaseTransition) -> None:
        await for_ever()

    hooks = bundle(meet, note)
    hooks.on_phase(Phase.BOOTSTRAPPING, None, timeout=0.02)(hang)
    shared = [hooks, PhaseHookOf(None, Phase.IDLE, note)]
    failures: list[BaseException] = []

    def live(agent_id: str, backend: str) -> None:
        async def main() -> None:
            async with soon():
                for phase in (Phase.BOOTSTRAPPING, Phase.IDLE):
                    await machine.move(phase)

        machine = PhaseMachine(agent_id, shared)  # made outside of any loop
        try:
            anyio.run(main, backend=backend)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=live, args=each) for each in (("one", "asyncio"), ("two", "trio"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    moves = [(Phase.UNINITIALIZED, Phase.BOOTSTRAPPING), (Phase.BOOTSTRAPPING, Phase.IDLE)]
    for agent_id in ("one", "two"):
        assert [entry[1:] for entry in log if entry[0] == agent_id] == [moves[0], moves[1], moves[1]]


async def test_a_machine_is_gone_when_nobody_holds_it(caplog: pytest.LogCaptureFixture) -> None:
    def fail(transition: PhaseTransition) -> None:
        raise ValueError

    caplog.set_level(logging.CRITICAL, logger="hookline")  # what is logged holds tracebacks
    hooks = [bundle(noting([]), noting([], is_async=True), fail)]
    machine = PhaseMachine("agent", hooks)
    with machine.hooked(hooks), recorded(machine), announced(machine):
        await machine.move(Phase.BOOTSTRAPPING)
    ref: Callable[[], Any] = weakref.ref(machine)
    gc.disable()
    try:
        del machine

        assert ref() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_record_is_sent_when_the_failure_of_the_hook_is_over(is_async: bool) -> None:
    """What a receiver raises is logged, and would carry what the hook has raised with it."""
    handled: list[object] = []

    def fail(transition: PhaseTransition) -> None:
        raise ValueError("secret")

    async def fail_async(transition: PhaseTransition) -> None:
        raise ValueError("secret")

    def hear(sender: object, execution: object) -> None:
        handled.append(sys.exc_info()[1])

    hooks = Hooks("h")
    hooks.on_phase(Phase.UNINITIALIZED, Phase.BOOTSTRAPPING)(fail_async if is_async else fail)
    with connected(hook_executed, hear):
        await PhaseMachine("agent", [hooks]).move(Phase.BOOTSTRAPPING)

    assert handled == [None]
