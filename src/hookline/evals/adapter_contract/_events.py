"""The clauses about events: which events each scene gives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from hookline.calls import ModelCall
from hookline.evals.adapter_contract._scenes import (
    COMPACTING,
    DELEGATING,
    FAILING,
    PARALLEL,
    PLAIN,
    SPEECHLESS,
    compaction_events,
    delegation_events,
    end_event,
    plain_events,
    step_events,
    tool_events,
)
from hookline.evals.adapter_contract._stage import Stage
from hookline.evals.adapter_contract._witness import (
    Witness,
    check_equal,
    check_tool_results,
    check_true,
    drives_call,
    expect,
    toolset_of,
)
from hookline.events import (
    AfterCallAgent,
    AfterStep,
    BeforeCompact,
    BeforeStep,
    BeforeToolCall,
    HookType,
    OnError,
)
from hookline.hooks import Hooks

__all__ = [
    "compaction",
    "failing_compaction",
    "inheriting_sub_agent",
    "mock",
    "mocked_error",
    "model_error",
    "parallel",
    "plain",
    "sub_agent",
    "tool_error",
    "who_runs",
]


async def plain(stage: Stage) -> Witness:
    """A run with a tool call emits both steps, the two events of the call, and its end."""
    witness = Witness(stage)
    ran = await stage.play(PLAIN, [witness.hooks])

    witness.heard(plain_events(tool_events(toolset_of(stage), content="3")))
    check_tool_results(ran, "3")
    if HookType.BEFORE_STEP in stage.capabilities.events:
        check_equal("The output of the run.", ran.output, "done")
    return witness


async def who_runs(stage: Stage) -> Witness:
    """Every event has the operation, the user, the tenant and the tags of its run."""
    witness = Witness(stage)
    given: dict[str, Any] = {"user_id": "ann", "tenant_id": "acme", "tags": ["vip"]}
    await stage.play(PLAIN, [witness.hooks], operation_id="contract-who", **given)

    expected = ("contract-who", "ann", "acme", ("vip",), None)
    for event in witness.events:
        who = (event.operation_id, event.user_id, event.tenant_id, event.tags, event.parent_operation_id)
        check_equal(f"The run, user, tenant and tags of {event.hook_type}.", who, expected)
    return witness


async def tool_error(stage: Stage) -> Witness:
    """A tool that raises emits an error event; the framework decides whether the run continues."""
    witness, failure = Witness(stage), None
    try:
        await stage.play(FAILING, [witness.hooks])
    except Exception as error:
        failure = error

    pair = tool_events(toolset_of(stage), name="fail", args={}, error="broken", error_type="ValueError")
    if failure is None:
        witness.heard(plain_events(pair, content=""))
    else:
        first = step_events(0, *pair, should_continue=False, total_tool_calls=1)
        ends = [end_event("error", steps=1, llm_calls=1, tool_calls=1), expect(OnError)]
        witness.heard([*first, *ends])
    return witness


async def model_error(stage: Stage) -> Witness:
    """A model that raises ends the run with an error event and counts as a call, with interceptors or without."""
    looked_at = await _model_error(stage, [])
    if not drives_call(stage.capabilities, ModelCall, "guard"):
        return looked_at
    passing = Hooks("passes")
    passing.guard(ModelCall, id="guard")(lambda call: None)
    return await _model_error(stage, [passing])


async def _model_error(stage: Stage, hooks: list[Hooks]) -> Witness:
    witness = Witness(stage)
    with suppress(Exception):
        await stage.play(SPEECHLESS, [*hooks, witness.hooks])

    failed = [expect(BeforeStep, step_index=1), expect(AfterStep, step_index=1, should_continue=False)]
    ends = [end_event("error", steps=2, llm_calls=2, tool_calls=1), expect(OnError)]
    witness.heard([*step_events(0, *tool_events(toolset_of(stage), content="3")), *failed, *ends])
    return witness


async def mock(stage: Stage) -> Witness:
    """An observer that mocks replaces the tool call, and the model reads its answer."""
    witness, hooks = Witness(stage), Hooks("mocks")
    hooks.on(BeforeToolCall, id="canned")(_mock_with("42"))
    ran = await stage.play(PLAIN, [hooks, witness.hooks])

    witness.heard(plain_events(tool_events(toolset_of(stage), content="42", mocked=True, answered_by="canned")))
    check_tool_results(ran, "42")
    return witness


async def mocked_error(stage: Stage) -> Witness:
    """A mock that raises counts as a tool that raised, and the model reads the error."""
    witness, hooks = Witness(stage), Hooks("mocks")
    hooks.on(BeforeToolCall)(_mock_with(OSError("no disk")))
    ran = await stage.play(PLAIN, [hooks, witness.hooks])

    pair = tool_events(toolset_of(stage), error="no disk", error_type="OSError", mocked=True)
    witness.heard(plain_events(pair))
    check_tool_results(ran, "no disk")
    return witness


async def parallel(stage: Stage) -> Witness:
    """Parallel calls of one step have separate pairs of events; the model reads the results in its own order."""
    witness, name = Witness(stage), toolset_of(stage)
    ran = await stage.play(PARALLEL, [witness.hooks])

    pairs = [
        *tool_events(name, content="3"),
        *tool_events(name, tool_call_id="t2", call_index=2, args={"a": 3, "b": 4}, content="7"),
        *tool_events(name, tool_call_id="t3", call_index=3, args={"a": 5, "b": 6}, content="11"),
    ]
    witness.heard(plain_events(pairs, calls=3, content=""), ordered=False)
    check_tool_results(ran, "3", "7", "11")
    for after in witness.of(AfterStep)[:1]:
        check_equal("The results of a step.", [each.content for each in after.tools_result], ["3", "7", "11"])
        check_equal("The calls of a step.", [each.tool_call_id for each in after.tools_calling], ["t1", "t2", "t3"])
    return witness


async def sub_agent(stage: Stage) -> Witness:
    """The events of a sub-agent's call belong to the calling operation, whose hooks do not see into the sub-agent."""
    witness = Witness(stage)
    ran = await stage.play(DELEGATING, [witness.hooks])

    witness.heard(plain_events(delegation_events(), calls=0, content=""))
    check_tool_results(ran, "answer")
    return witness


async def inheriting_sub_agent(stage: Stage) -> Witness:
    """A bundle with `inherit=True` also sees the sub-agent's operation, which names its parent."""
    witness = Witness(stage, inherit=True)
    given: dict[str, Any] = {"user_id": "ann", "tenant_id": "acme", "tags": ["vip"]}
    await stage.play(DELEGATING, [witness.hooks], operation_id="contract-parent", **given)

    witness.heard(plain_events(delegation_events(), calls=0, content=""), of="contract-parent")
    child = witness.of(AfterCallAgent)[0].sub_operation_id
    said = [
        *step_events(0, last=True, content="answer"),
        end_event(steps=1, llm_calls=1, last_assistant_content="answer"),
    ]
    witness.heard(said, of=child)
    check_equal("The operations.", {event.operation_id for event in witness.events}, {"contract-parent", child})
    for event in witness.events:
        parent = "contract-parent" if event.operation_id == child else None
        who = (event.parent_operation_id, event.user_id, event.tenant_id, event.tags)
        expected = (parent, "ann", "acme", ("vip",))
        check_equal(f"The parent run, user, tenant and tags of {event.hook_type}.", who, expected)
    return witness


async def compaction(stage: Stage) -> Witness:
    """A compaction emits its summary, in the step whose model call it makes room for."""
    witness = Witness(stage)
    await stage.play(COMPACTING, [witness.hooks])

    witness.heard(_compacting(stage, summary="summary"))
    for before in witness.of(BeforeCompact):
        check_true("The messages before a compaction are counted.", before.message_count > 0)
    return witness


async def failing_compaction(stage: Stage) -> Witness:
    """A compaction that fails emits an error event; the framework decides whether the run continues."""
    witness, failure = Witness(stage), None
    try:
        await stage.play(msgspec.structs.replace(COMPACTING, summary_fails=True), [witness.hooks])
    except Exception as error:
        failure = error

    expected = _compacting(stage, summary=None)
    if failure is not None:
        expected = [
            *expected[:-2],
            expect(AfterStep, step_index=1, should_continue=False),
            end_event("error", steps=2, tool_calls=1),
            expect(OnError),
        ]
    witness.heard(expected)
    return witness


def _compacting(stage: Stage, *, summary: str | None) -> list[Any]:
    return [
        *step_events(0, *tool_events(toolset_of(stage), content="3"), content="let me see"),
        *step_events(1, *compaction_events(summary=summary), last=True, content="done"),
        end_event(steps=2, llm_calls=2, tool_calls=1, last_assistant_content="done"),
    ]


def _mock_with(answer: object) -> Callable[[BeforeToolCall], None]:
    def mock(event: BeforeToolCall) -> None:
        event.mock(answer)

    return mock
