"""People who are asked about tool calls of Claude: by `can_use_tool`, by `PermissionRequest`, and by an `Ask`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

import msgspec
from claude_agent_sdk import (
    ClaudeAgentOptions,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    ToolPermissionContext,
)

from hookline import Ask, Deny, Hooks, ToolCall
from hookline.errors import RunStopped
from hookline.evals.adapter_contract import Scene
from hookline.evals.adapter_contract._scenes import DELEGATING, PLAIN
from hookline.events import (
    AfterHumanIntervention,
    AfterToolCall,
    BeforeHumanIntervention,
    OnComplete,
    OnStopByHumanIntervention,
)

from .cli import FakeCli
from .played import BASH, OWN, Heard, play
from .stage import options_of

pytestmark = pytest.mark.anyio

Answer = PermissionResultAllow | PermissionResultDeny


class Person:
    """Answers whatever it is asked in the same way."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []

    async def __call__(self, name: str, args: dict[str, Any], context: ToolPermissionContext) -> Answer:
        self.asked.append((name, args, context.decision_reason))
        return self.answer


def with_person(scene: Scene, answer: Answer) -> tuple[Person, ClaudeAgentOptions]:
    person = Person(answer)
    return person, dataclasses.replace(options_of(scene), can_use_tool=person)


def asking(scene: Scene, **given: Any) -> FakeCli:
    """A CLI whose rules want a person asked."""
    return FakeCli(scene, own=OWN, permissions=frozenset({"Bash", "mcp__stage__add"}), **given)


HUMAN = ("beforeHumanIntervention", "afterHumanIntervention", "onStopByHumanIntervention")


@pytest.mark.parametrize("scene", [PLAIN, BASH], ids=["own", "cli"])
async def test_a_permission_that_claude_asks_for_is_told_with_its_answer(scene: Scene) -> None:
    heard = Heard()
    person, options = with_person(scene, PermissionResultAllow())

    cli, _ = await play(scene, heard.hooks, options=options, cli=asking(scene))

    (before,), (after,) = heard.of(BeforeHumanIntervention), heard.of(AfterHumanIntervention)
    (called,) = heard.of(AfterToolCall)
    (pending,) = before.pending_tools
    assert (pending.toolset, pending.tool_name, pending.args) == (called.toolset, called.tool_name, called.args)
    assert (after.action, after.tool_call_id, pending.tool_call_id) == ("approve", "t1", "t1")
    assert called.success
    assert len(person.asked) == len(cli.told) == 1
    assert [name for name in heard.names() if name in HUMAN] == list(HUMAN[:2])


@pytest.mark.parametrize("scene", [PLAIN, BASH], ids=["own", "cli"])
async def test_a_permission_that_is_denied_is_told_and_the_run_goes_on(scene: Scene) -> None:
    heard = Heard()
    _, options = with_person(scene, PermissionResultDeny(message="not today"))

    cli, _ = await play(scene, heard.hooks, options=options, cli=asking(scene))

    (after,) = heard.of(AfterHumanIntervention)
    assert (after.action, after.rejection_reason) == ("rejectAndContinue", "not today")
    assert cli.told == ["not today"]
    assert not any(event.success for event in heard.of(AfterToolCall))
    assert [event.reason for event in heard.of(OnComplete)] == ["done"]
    assert heard.of(OnStopByHumanIntervention) == []


@pytest.mark.parametrize("scene", [PLAIN, BASH], ids=["own", "cli"])
async def test_a_denial_with_an_interrupt_stops_the_run(scene: Scene) -> None:
    heard = Heard()
    _, options = with_person(scene, PermissionResultDeny(message="enough", interrupt=True))

    cli = asking(scene)
    with pytest.raises(RunStopped, match="enough"):
        await play(scene, heard.hooks, options=options, cli=cli)

    assert [name for name in heard.names() if name in HUMAN] == list(HUMAN)
    assert heard.of(OnStopByHumanIntervention)[0].rejection_reason == "enough"
    assert [event.reason for event in heard.of(OnComplete)] == ["interrupted"]
    assert len(cli.asked) == 1


@pytest.mark.parametrize(("behavior", "action"), [("allow", "approve"), ("deny", "rejectAndContinue")])
async def test_a_hook_of_the_options_may_answer_a_permission_request(behavior: str, action: str) -> None:
    heard = Heard()
    person, options = with_person(BASH, PermissionResultAllow())

    async def decide(given: Any, call_id: str | None, context: Any) -> Any:
        decision = {"behavior": behavior, "message": "by rule"}
        return {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}}

    options = dataclasses.replace(options, hooks={"PermissionRequest": [HookMatcher(hooks=[decide])]})
    await play(BASH, heard.hooks, options=options, cli=asking(BASH, requests=True))

    (before,), (after,) = heard.of(BeforeHumanIntervention), heard.of(AfterHumanIntervention)
    assert (before.pending_tools[0].tool_call_id, after.tool_call_id, after.action) == ("t1", "t1", action)
    assert person.asked == []


async def test_a_hook_that_leaves_a_permission_request_open_has_it_told_once() -> None:
    heard = Heard()
    person, options = with_person(BASH, PermissionResultAllow())

    async def look(given: Any, call_id: str | None, context: Any) -> Any:
        return {}

    options = dataclasses.replace(options, hooks={"PermissionRequest": [HookMatcher(hooks=[look])]})
    await play(BASH, heard.hooks, options=options, cli=asking(BASH, requests=True))

    assert [name for name in heard.names() if name in HUMAN] == list(HUMAN[:2])
    assert len(person.asked) == 1


async def test_a_hook_of_the_options_that_says_ask_has_the_person_asked() -> None:
    heard = Heard()
    person, options = with_person(BASH, PermissionResultAllow())

    async def ask(given: Any, call_id: str | None, context: Any) -> Any:
        own = {"permissionDecision": "ask", "permissionDecisionReason": "sure?"}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **own}}

    options = dataclasses.replace(options, hooks={"PreToolUse": [HookMatcher(hooks=[ask])]})
    await play(BASH, heard.hooks, options=options)

    assert person.asked == [("Bash", {"command": "ls"}, "sure?")]
    assert [event.pending_tools[0].prompt for event in heard.of(BeforeHumanIntervention)] == ["sure?"]


@pytest.mark.parametrize(("scene", "name"), [(PLAIN, "mcp__stage__add"), (BASH, "Bash")], ids=["own", "cli"])
async def test_an_ask_becomes_a_permission_request(scene: Scene, name: str) -> None:
    heard, hooks = Heard(), Hooks("asks")
    hooks.guard(ToolCall)(lambda call: Ask("may I?"))
    person, options = with_person(scene, PermissionResultAllow())

    await play(scene, hooks, heard.hooks, options=options)

    assert [(each[0], each[2]) for each in person.asked] == [(name, "may I?")]
    assert heard.names()[1:5] == [*HUMAN[:2], "beforeToolCall", "afterToolCall"]
    assert [event.pending_tools[0].prompt for event in heard.of(BeforeHumanIntervention)] == ["may I?"]
    assert [(event.success, event.call_index) for event in heard.of(AfterToolCall)] == [(True, 1)]


@pytest.mark.parametrize("scene", [PLAIN, BASH], ids=["own", "cli"])
async def test_an_ask_that_is_denied_keeps_the_tool_from_running(scene: Scene) -> None:
    heard, hooks = Heard(), Hooks("asks")
    hooks.guard(ToolCall)(lambda call: Ask("may I?"))
    _, options = with_person(scene, PermissionResultDeny(message="no"))

    cli, _ = await play(scene, hooks, heard.hooks, options=options)

    assert cli.told == ["no"]
    assert [event.action for event in heard.of(AfterHumanIntervention)] == ["rejectAndContinue"]
    assert not any(name.endswith("ToolCall") for name in heard.names())


@pytest.mark.parametrize("scene", [PLAIN, BASH], ids=["own", "cli"])
async def test_an_ask_that_is_denied_with_an_interrupt_stops_the_run(scene: Scene) -> None:
    heard, hooks = Heard(), Hooks("asks")
    hooks.guard(ToolCall)(lambda call: Ask("may I?"))
    _, options = with_person(scene, PermissionResultDeny(message="no", interrupt=True))

    cli = FakeCli(scene, own=OWN)
    with pytest.raises(RunStopped, match="no"):
        await play(scene, hooks, heard.hooks, options=options, cli=cli)

    assert [event.reason for event in heard.of(OnComplete)] == ["interrupted"]
    assert len(cli.asked) == 1


@pytest.mark.parametrize(("scene", "key"), [(PLAIN, "a"), (BASH, "command")], ids=["own", "cli"])
async def test_a_person_sees_the_arguments_that_will_run_and_may_change_them(scene: Scene, key: str) -> None:
    heard, hooks = Heard(), Hooks("asks")
    hooks.before(ToolCall)(lambda call: call.with_args(**{key: 40}))
    hooks.guard(ToolCall)(lambda call: Ask("may I?"))
    given = scene.turns[0].tool_calls[0].args
    person, options = with_person(scene, PermissionResultAllow())
    stricter, changing = with_person(scene, PermissionResultAllow(updated_input={**given, key: 7}))

    await play(scene, hooks, options=options)
    await play(scene, hooks, heard.hooks, options=changing)

    assert person.asked[0][1] == stricter.asked[0][1] == {**given, key: 40}
    assert heard.of(AfterToolCall)[0].args[key] == 7


async def test_what_hooks_further_inside_refuse_is_refused_although_a_person_approved() -> None:
    hooks = Hooks("asks")
    hooks.before(ToolCall)(lambda call: Ask("may I?"))

    hooks.guard(ToolCall)(lambda call: Deny("never"))

    for scene in (PLAIN, BASH):
        _, options = with_person(scene, PermissionResultAllow())
        cli, _ = await play(scene, hooks, options=options)
        assert cli.told == ["never"]


async def test_a_permission_for_a_sub_agent_is_told_on_its_operation() -> None:
    heard = Heard(inherit=True)
    scene = msgspec.structs.replace(DELEGATING, agents={"child": BASH})
    _, options = with_person(scene, PermissionResultAllow())

    await play(scene, heard.hooks, options=options, cli=asking(scene))

    (called,) = heard.of(AfterToolCall)
    assert called.parent_operation_id is not None
    for event in (*heard.of(BeforeHumanIntervention), *heard.of(AfterHumanIntervention)):
        assert event.operation_id == called.operation_id


async def test_a_call_that_is_deferred_waits_and_is_not_led() -> None:
    heard = Heard()

    async def defer(given: Any, call_id: str | None, context: Any) -> Any:
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "defer"}}

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[defer])]})
    _, messages = await play(BASH, heard.hooks, options=options)

    assert messages[-1].deferred_tool_use.name == "Bash"
    assert heard.names() == ["beforeStep", "beforeHumanIntervention", "afterStep", "onComplete"]
    assert [event.reason for event in heard.of(OnComplete)] == ["waiting_for_human"]
