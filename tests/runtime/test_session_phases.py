"""The phases of a session: which moves each kind of task makes, that all are legal, and that it always comes to rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline import (
    Agent,
    AgentCall,
    AgentSession,
    Approve,
    Ask,
    Continue,
    Deny,
    Hooks,
    InMemoryStore,
    ModelCall,
    Reject,
    Respond,
    StepCall,
    StepResult,
    ToolCall,
    exec_agent,
    tool,
)
from hookline.errors import DecisionError, HookUsageError
from hookline.phases import TRANSITIONS, Phase, PhaseHook, PhaseTransition
from tests.tables import for_each

from .interception import Answering, World, after, around, before, guard, noting_phases, pay, paying, session_of, turns
from .scenes import HangingModel, agent_of, ask, assert_consistent, call, calls, says

pytestmark = pytest.mark.anyio

SHORT = {
    "uninitialized": "none",
    "bootstrapping": "boot",
    "idle": "idle",
    "processing_user_input": "input",
    "awaiting_llm_response": "model",
    "analyzing_llm_response": "analysis",
    "awaiting_tool_approval": "person",
    "tool_denied": "denied",
    "executing_tool": "tool",
    "processing_tool_result": "result",
    "shutting_down": "closing",
    "shutdown_complete": "closed",
    "error": "error",
}


def path(moves: list[str]) -> str:
    """The phases that were gone through, in short words; each move starts where the one before ended."""
    if not moves:
        return ""
    pairs = [tuple(move.split(">")) for move in moves]
    for (_, ended), (begun, _) in itertools.pairwise(pairs):
        assert ended == begun
    for source, target in pairs:
        assert Phase(target) in TRANSITIONS[Phase(source)]
    return " ".join([SHORT[pairs[0][0]], *(SHORT[target] for _, target in pairs)])


class Stage:
    """A session whose moves are written down, task by task."""

    def __init__(self, agent: Agent, *hooks: Any) -> None:
        self.moves: list[str] = []
        self.agent = agent
        self.hooks = hooks

    async def play(self, prompt: str = "go", *decisions: list[Approve | Reject]) -> tuple[str, Any]:
        async with session_of(self.agent, hooks=[noting_phases(self.moves)]) as session:
            assert path(self.moves) == "none boot idle"
            self.moves.clear()
            result = await session.run(prompt, hooks=self.hooks)
            for decided in decisions:
                assert session.phase is Phase.IDLE
                result = await session.resume(decided, hooks=self.hooks)
            assert session.phase is Phase.IDLE
            seen = path(self.moves)
            self.moves.clear()
        assert path(self.moves) == "idle closing closed"
        return seen, result


NO = Deny("no")
STOP = Deny("no", stop=True)


def two_steps() -> Agent:
    return paying([], calls(pay()), calls(pay(6, "p2")), says())


@pytest.mark.parametrize(
    ("agent", "hooks", "expected"),
    [
        pytest.param(lambda: agent_of(says()), [], "idle input model analysis idle", id="an answer"),
        pytest.param(
            lambda: paying([], calls(pay()), says()),
            [],
            "idle input model analysis tool result model analysis idle",
            id="a tool",
        ),
        pytest.param(
            lambda: paying([], calls(pay(), call("look", "l"), pay(2, "p2")), says()),
            [],
            "idle input model analysis tool result model analysis idle",
            id="parallel tools",
        ),
        pytest.param(
            two_steps,
            [],
            "idle input model analysis tool result model analysis tool result model analysis idle",
            id="several steps",
        ),
        pytest.param(
            lambda: paying([], calls(call("unknown")), says()),
            [],
            "idle input model analysis tool result model analysis idle",
            id="an unknown tool",
        ),
        pytest.param(
            lambda: agent_of(calls(ask("helper")), says(), sub_agents=[agent_of(says(), id="helper")]),
            [],
            "idle input model analysis tool result model analysis idle",
            id="a sub-agent",
        ),
        pytest.param(
            lambda: World().agent, [], "idle input model analysis tool result model analysis idle", id="a compaction"
        ),
        pytest.param(
            lambda: paying([], calls(pay()), max_steps=1),
            [],
            "idle input model analysis tool result idle",
            id="last step",
        ),
        pytest.param(lambda: agent_of(ValueError("broke")), [], "idle input model idle", id="a model error"),
        pytest.param(lambda: agent_of(None), [], "idle input model idle", id="no answer at all"),
        pytest.param(lambda: agent_of(says()), [guard(AgentCall, lambda c: NO)], "idle input idle", id="a denied run"),
        pytest.param(lambda: agent_of(says()), [guard(StepCall, lambda c: NO)], "idle input idle", id="a denied step"),
        pytest.param(
            lambda: agent_of(says()),
            [guard(ModelCall, lambda c: NO)],
            "idle input model idle",
            id="a denied model call",
        ),
        pytest.param(
            lambda: paying([], calls(pay()), says()),
            [guard(ToolCall, lambda c: NO)],
            "idle input model analysis tool result model analysis idle",
            id="a denied tool",
        ),
        pytest.param(
            lambda: paying([], calls(pay()), says()),
            [guard(ToolCall, lambda c: STOP)],
            "idle input model analysis tool result idle",
            id="a denied tool that stops",
        ),
        pytest.param(
            lambda: agent_of(), [before(AgentCall, lambda c: Respond("x"))], "idle input idle", id="an answered run"
        ),
        pytest.param(
            lambda: agent_of(),
            [before(ModelCall, lambda c: Respond("x"))],
            "idle input model analysis idle",
            id="an answered model call",
        ),
        pytest.param(
            lambda: agent_of(says()),
            [
                before(
                    StepCall,
                    lambda c: Respond(StepResult(should_continue=True, content="x")) if c.step_index == 0 else None,
                )
            ],
            "idle input model analysis idle",
            id="an answered step",
        ),
        pytest.param(
            lambda: agent_of(says("one"), says("two")),
            [after(AgentCall, lambda c, r: Continue("more") if r.output == "one" else None)],
            "idle input model analysis input model analysis idle",
            id="a continuation",
        ),
        pytest.param(
            lambda: agent_of(says("one"), says("two")),
            [after(StepCall, lambda c, r: StepResult(should_continue=c.step_index == 0, content=r.content))],
            "idle input model analysis input model analysis idle",
            id="one more step",
        ),
    ],
)
async def test_a_task_makes_exactly_these_moves(agent: Callable[[], Agent], hooks: list[Any], expected: str) -> None:
    seen, _ = await Stage(agent(), *hooks).play()

    assert seen == expected


PAUSED = "idle input model analysis person idle"


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        pytest.param([[Approve("a"), Approve("b")]], f"{PAUSED} person tool result model analysis idle", id="approve"),
        pytest.param(
            [[Approve("a")], [Approve("b")]],
            f"{PAUSED} person idle person tool result model analysis idle",
            id="one by one",
        ),
        pytest.param([[Reject("a"), Approve("b")]], f"{PAUSED} person denied idle", id="reject"),
        pytest.param([[Approve("a")], [Reject("b")]], f"{PAUSED} person idle person denied idle", id="reject later"),
        pytest.param(
            [[Reject("a", and_continue=True), Reject("b", and_continue=True)]],
            f"{PAUSED} person denied input model analysis idle",
            id="all refused, goes on",
        ),
        pytest.param(
            [[Reject("a", and_continue=True), Approve("b")]],
            f"{PAUSED} person tool result model analysis idle",
            id="one refused, goes on",
        ),
    ],
)
@pytest.mark.parametrize("who", ["tool", "guard"])
async def test_a_task_that_waits_for_a_person_makes_exactly_these_moves(
    who: str, decisions: list[Any], expected: str
) -> None:
    agent = paying([], calls(pay(1, "a"), pay(2, "b")), says(), needs_approval=who == "tool")
    hooks = [guard(ToolCall, lambda c: Ask("ok?"))] if who == "guard" else []

    seen, _ = await Stage(agent, *hooks).play("go", *decisions)

    assert seen == expected


async def test_calls_that_ran_before_the_pause_are_moves_of_their_own() -> None:
    agent = paying([], calls(pay(1, "a"), call("look", "b")), says(), needs_approval=True)

    seen, result = await Stage(agent).play("go", [Approve("a")])

    assert result.reason == "done"
    assert seen == "idle input model analysis tool result idle person tool result model analysis idle"


async def test_a_call_that_is_denied_on_resume_is_a_step_with_tools() -> None:
    agent = paying([], calls(pay()), says(), needs_approval=True)
    judged: list[int] = []

    def second_thoughts(made: ToolCall) -> Deny | None:
        judged.append(1)
        return NO if len(judged) > 1 else None

    seen, result = await Stage(agent, guard(ToolCall, second_thoughts)).play("go", [Approve("p1")])

    assert result.reason == "done"
    assert seen == f"{PAUSED} person tool result model analysis idle"


@for_each("point", ["AgentCall", "StepCall"])
@for_each("how", ["denied", "answered", "answered and goes on"])
async def test_hooks_that_refuse_or_answer_a_resume_leave_legal_moves_and_no_error(point: str, how: str) -> None:
    segment = [0]

    async def standing_in(made: Any, call_next: Any) -> Any:
        if segment[0] == 0:
            return await call_next(made)
        if how == "denied":
            return NO
        segment[0] = 0
        return (
            Respond("x")
            if point == "AgentCall"
            else Respond(StepResult(should_continue=how != "answered", content="x"))
        )

    kind = AgentCall if point == "AgentCall" else StepCall
    more = [True]

    def go_on(made: AgentCall, result: Any) -> Any:
        return Continue("more") if how == "answered and goes on" and point == "AgentCall" and more.pop() else None

    moves: list[str] = []
    agent = paying([], calls(pay()), says("end"), says("end"), needs_approval=True)
    hooks = [around(kind, standing_in), *([after(AgentCall, go_on)] if point == "AgentCall" else [])]
    async with session_of(agent, hooks=[noting_phases(moves), *hooks]) as session:
        await session.run("go")
        segment[0] = 1
        result = await session.resume([Approve("p1")])
        assert session.phase is Phase.IDLE
        path(moves)

    assert result.error is None
    assert result.reason == ("interrupted" if how == "denied" else "done")
    assert_consistent(result.messages)


@for_each(
    ("place", "expected"),
    [
        ("model", "idle input model idle"),
        ("tool", "idle input model analysis tool idle"),
        ("child", "idle input model analysis tool idle"),
        ("summary", "idle input model analysis tool result idle"),
    ],
)
@for_each("how", ["interrupt", "cancel"])
async def test_a_task_that_is_stopped_goes_straight_to_idle(place: str, expected: str, how: str) -> None:
    world = World()
    world.hang = place
    moves: list[str] = []

    async with session_of(world.agent, hooks=[noting_phases(moves)]) as session:
        moves.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, "go")
            await world.begun.wait()
            if how == "cancel":
                group.cancel_scope.cancel()
            else:
                assert session.interrupt()
        assert path(moves) == expected
        assert session.phase is Phase.IDLE


async def test_the_moves_of_a_sub_agent_are_not_those_of_the_session() -> None:
    moves: list[str] = []
    phases = noting_phases(moves)
    inheriting = Hooks("inheriting", inherit=True)
    inheriting.on_phase(None, None)(lambda m: moves.append(f"{m.source}>{m.target}"))
    child = agent_of(says(), id="helper", hooks=[phases])
    agent = agent_of(calls(ask("helper")), says(), sub_agents=[child])

    async with session_of(agent, hooks=[inheriting]) as session:
        moves.clear()
        await session.run("go")

        assert path(moves) == "idle input model analysis tool result model analysis idle"


async def test_a_plain_run_accepts_phase_hooks_and_makes_no_moves() -> None:
    moves: list[str] = []

    result = await exec_agent(agent_of(says()), "go", hooks=[noting_phases(moves), Ready(moves)])

    assert result.reason == "done"
    assert moves == []


# Once per start.


class Ready(PhaseHook):
    """A phase hook as a class."""

    source_phase = Phase.BOOTSTRAPPING
    target_phase = Phase.IDLE

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def execute(self, context: PhaseTransition) -> None:
        self.log.append("ready")


@for_each("tasks", [0, 1, 3])
async def test_a_hook_of_readiness_runs_exactly_once_per_start_however_many_tasks_follow(tasks: int) -> None:
    """AutoByteUs: once per bootstrap, not on later entries to idle, again after a restart."""
    log: list[str] = []
    hooks = Hooks("ready")
    hooks.on_phase(Phase.BOOTSTRAPPING, Phase.IDLE)(lambda m: log.append("also ready"))
    agent = paying([], *(says() for _ in range(10)), hooks=[hooks])
    session = AgentSession(agent, hooks=[Ready(log)])

    async with session:
        for _ in range(tasks):
            await session.run("go")
        assert log == ["also ready", "ready"]
    async with session:
        for _ in range(tasks):
            await session.run("go")

    assert log == ["also ready", "ready"] * 2


async def test_the_hooks_of_the_sessions_own_bundle_hear_of_its_start_its_end_and_its_error() -> None:
    log: list[str] = []

    class Broken:
        async def load(self, key: str) -> Any:
            raise OSError("no disk")

        async def save(self, key: str, messages: Any) -> None: ...

    session = AgentSession(agent_of(says()), memory=Broken())
    session.hooks.on_phase(None, None)(lambda m: log.append(SHORT[m.target]))

    with pytest.raises(OSError, match="no disk"):
        await session.__aenter__()

    assert log == ["boot", "error"]


async def test_a_move_says_which_agent_and_which_operation_it_belongs_to() -> None:
    moves: list[PhaseTransition] = []
    hooks = Hooks("phases")
    hooks.on_phase(None, None)(moves.append)

    async with session_of(agent_of(says(), id="a"), hooks=[hooks]) as session:
        await session.run("go", operation_id="op")

    assert {move.agent_id for move in moves} == {"a"}
    inside = [move for move in moves if move.source.is_processing or move.target.is_processing]
    outside = [move for move in moves if move not in inside]
    assert {move.operation_id for move in inside} == {"op"}
    assert {move.operation_id for move in outside} == {""}


# What phase hooks may do, and may not break.


async def test_phase_hooks_that_fail_or_hang_harm_no_task() -> None:
    hooks = Hooks("bad")

    @hooks.on_phase(None, None)
    def broken(move: PhaseTransition) -> None:
        raise KeyError("broken")

    @hooks.on_phase(None, Phase.AWAITING_LLM_RESPONSE, timeout=0.01)
    async def hanging(move: PhaseTransition) -> None:
        await anyio.sleep_forever()

    seen, result = await Stage(paying([], calls(pay()), says()), hooks).play()

    assert result.reason == "done"
    assert seen == "idle input model analysis tool result model analysis idle"


@for_each("phase", [phase for phase in Phase if phase.is_processing and phase != "awaiting_tool_approval"])
async def test_a_phase_hook_may_interrupt_its_task_at_any_move(phase: Phase) -> None:
    accepted: list[bool] = []
    hooks = Hooks("stopping")

    @hooks.on_phase(None, phase)
    def stop(move: PhaseTransition) -> None:
        accepted.append(session.interrupt())

    moves: list[str] = []
    agent = paying([], calls(pay()), says(), says(), needs_approval=phase is Phase.TOOL_DENIED)
    async with session_of(agent, hooks=[noting_phases(moves), hooks]) as session:
        result = await session.run("go")
        if result.reason == "waiting_for_human":
            result = await session.resume([Reject("p1", and_continue=True)])
        assert session.phase is Phase.IDLE
        path(moves)

    assert accepted
    if any(accepted):
        assert result.reason == "interrupted"


async def test_a_phase_hook_that_starts_a_task_while_one_runs_is_refused() -> None:
    refused: list[str] = []
    hooks = Hooks("greedy")

    @hooks.on_phase(Phase.ANALYZING_LLM_RESPONSE, Phase.IDLE)
    async def greedy(move: PhaseTransition) -> None:
        try:
            await session.run("more")
        except HookUsageError as error:
            refused.append(str(error))

    async with session_of(agent_of(says(), says()), hooks=[hooks]) as session:
        await session.run("go")

        assert len(refused) == 1
        assert session.phase is Phase.IDLE


async def test_a_hook_of_readiness_may_run_the_first_task() -> None:
    results: list[Any] = []
    moves: list[str] = []
    hooks = Hooks("eager")

    @hooks.on_phase(Phase.BOOTSTRAPPING, Phase.IDLE)
    async def eager(move: PhaseTransition) -> None:
        results.append(await session.run("warm up"))

    session = AgentSession(agent_of(says("warm"), says("hot")), hooks=[noting_phases(moves), hooks])
    with anyio.fail_after(5):
        async with session:
            result = await session.run("go")

    assert [results[0].output, result.output] == ["warm", "hot"]
    assert path(moves) == "none boot idle input model analysis idle input model analysis idle closing closed"


async def test_a_task_that_is_cancelled_inside_of_a_phase_hook_ends_idle() -> None:
    begun = anyio.Event()
    hooks = Hooks("slow")

    @hooks.on_phase(None, Phase.PROCESSING_USER_INPUT)
    async def slow(move: PhaseTransition) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with session_of(agent_of(says())) as session:
        async with anyio.create_task_group() as group:

            async def run() -> None:
                await session.run("go", hooks=[hooks])

            group.start_soon(run)
            await begun.wait()
            group.cancel_scope.cancel()
        assert session.phase is Phase.IDLE
        assert (await session.run("go")).reason == "done"


# Any life at all.

ACTS = ["answer", "tool", "parallel", "broken tool", "unknown", "child", "error", "junk", "person"]
lives = st.lists(
    st.fixed_dictionaries(
        {
            "turns": st.lists(st.sampled_from(ACTS), max_size=3),
            "deny": st.sampled_from([None, None, None, "AgentCall", "StepCall", "ModelCall", "ToolCall", "stop"]),
            "continues": st.booleans(),
            "decisions": st.lists(st.sampled_from(["approve", "reject", "continue"]), min_size=1, max_size=3),
            "stop_at": st.one_of(st.none(), st.none(), st.integers(0, 12)),
            "stop_by": st.sampled_from(["interrupt", "cancel"]),
        }
    ),
    min_size=1,
    max_size=4,
)
CALM: dict[str, Any] = {
    "turns": [],
    "deny": None,
    "continues": False,
    "decisions": ["approve"],
    "stop_at": None,
    "stop_by": "cancel",
}


class Life:
    """A session with random tasks; every move is checked, and it must come to rest after each."""

    def __init__(self, tasks: list[dict[str, Any]]) -> None:
        self.tasks = tasks
        self.plan: dict[str, Any] = CALM
        self.asked = 0
        self.in_task = 0
        self.ready = 0
        self.moves: list[str] = []
        self.scope: anyio.CancelScope | None = None

    def moved(self, move: PhaseTransition) -> None:
        self.moves.append(f"{move.source}>{move.target}")
        self.ready += (move.source, move.target) == (Phase.BOOTSTRAPPING, Phase.IDLE)
        self.in_task += 1
        if self.scope is not None and self.in_task - 1 == self.plan["stop_at"]:
            if self.plan["stop_by"] == "cancel":
                self.scope.cancel()
            else:
                self.session.interrupt()

    async def answer(self, made: ModelCall) -> Any:
        assert_consistent(made.messages)
        turns_left = self.plan["turns"]
        at, self.asked = self.asked, self.asked + 1
        if at >= len(turns_left):
            return says("the end")
        act = turns_left[at]
        if act == "error":
            raise ValueError("model broke")
        if act == "junk":
            return None
        callings = {
            "answer": [],
            "tool": [call("good", f"g{at}")],
            "parallel": [call("good", f"g{at}"), call("held", f"h{at}"), call("good", f"k{at}")],
            "broken tool": [call("bad", f"b{at}")],
            "unknown": [call("nobody", f"u{at}")],
            "child": [ask("helper", f"c{at}"), call("good", f"g{at}")],
            "person": [call("held", f"h{at}"), call("held", f"i{at}")],
        }[act]
        return calls(*callings, content="hm")

    def hooks(self) -> list[Any]:
        plan = self.plan
        left = [plan["continues"]]
        hooks: list[Any] = [after(AgentCall, lambda c, r: Continue("and then?") if left and left.pop() else None)]
        kinds = {
            "AgentCall": AgentCall,
            "StepCall": StepCall,
            "ModelCall": ModelCall,
            "ToolCall": ToolCall,
            "stop": ToolCall,
        }
        if plan["deny"]:
            hooks.append(guard(kinds[plan["deny"]], lambda c: STOP if plan["deny"] == "stop" else NO))
        return hooks

    async def play(self) -> None:
        @tool
        async def good() -> str:
            await turns(1)
            return "fine"

        @tool
        async def bad() -> str:
            raise RuntimeError("boom")

        @tool(needs_approval=True)
        async def held() -> str:
            return "held"

        watch = Hooks("watch")
        watch.on_phase(None, None)(self.moved)
        agent = Agent(
            id="a",
            model=Answering(self.answer),
            tools=[good, bad, held],
            sub_agents=[Agent(id="helper", model=Answering(_helped))],
        )
        with anyio.fail_after(10):
            async with AgentSession(agent, hooks=[watch], store=InMemoryStore()) as self.session:
                for task in self.tasks:
                    await self.one(task)
        assert self.session.phase is Phase.SHUTDOWN_COMPLETE
        assert self.ready == 1
        path(self.moves)

    async def one(self, task: dict[str, Any]) -> None:
        session = self.session
        self.plan, self.asked, self.in_task = task, 0, 0
        result = None
        with anyio.CancelScope() as self.scope:
            result = await session.run("go", hooks=self.hooks())
        rounds, pending = 0, []
        while session.pending is not None:
            rounds += 1
            assert rounds < 20, "a session that nobody can get out of its pause"
            assert session.phase is Phase.IDLE
            if result is None and rounds == 1:
                await self.drop()
                break
            pending = result.pending if result is not None else pending  # cancelled before it had begun to go on
            kind = task["decisions"][rounds % len(task["decisions"])]
            call_id = pending[0].tool_call_id
            decision = Approve(call_id) if kind == "approve" else Reject(call_id, and_continue=kind == "continue")
            result = None
            with anyio.CancelScope() as self.scope:
                result = await session.resume([decision], hooks=self.hooks())
        self.scope = None
        assert session.phase is Phase.IDLE
        assert session.pending is None
        assert not session.interrupt()
        if result is not None:
            assert "PhaseTransitionError" not in repr(result.error)
        assert_consistent(session.history)

    async def drop(self) -> None:
        """The task was cancelled when it had paused already: nobody was told which calls wait."""
        with pytest.raises(DecisionError) as refused:
            await self.session.resume([Approve("nobody")])
        self.scope = None
        result = await self.session.resume([Reject(refused.value.pending[0])], hooks=self.hooks())
        assert self.session.pending is None
        assert result.reason == "interrupted"


async def _helped(made: ModelCall) -> Any:
    return says("helped")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(tasks=lives)
@example(tasks=[{**CALM, "turns": ["person"], "decisions": ["approve"], "stop_at": 7}])
@example(tasks=[{**CALM, "turns": ["person"], "decisions": ["continue"], "continues": True}])
@example(tasks=[{**CALM, "turns": ["parallel", "child"], "deny": "ToolCall"}, CALM])
@settings(max_examples=100, deadline=None, database=None)
def test_every_random_life_of_a_session_keeps_its_phases_legal_and_comes_to_rest(
    backend: str, tasks: list[dict[str, Any]]
) -> None:
    anyio.run(Life(tasks).play, backend=backend)


async def test_the_end_of_a_session_is_announced_while_its_task_is_stopped() -> None:
    model = HangingModel()
    moves: list[str] = []
    with anyio.fail_after(5):
        async with (
            anyio.create_task_group() as group,
            AgentSession(Agent(id="a", model=model), hooks=[noting_phases(moves)]) as session,
        ):
            group.start_soon(session.run, "go")
            await model.hanging.begun.wait()

    assert path(moves) == "none boot idle input model idle closing closed"
