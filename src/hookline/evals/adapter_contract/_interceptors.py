"""The clauses about interceptors: what each kind does to each class of calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from hookline.calls import (
    AgentCall,
    AgentResult,
    CompactCall,
    CompactResult,
    Deny,
    Guide,
    Message,
    ModelCall,
    ModelResponse,
    Respond,
    SubAgentCall,
    ToolCall,
    ToolResult,
)
from hookline.evals.adapter_contract._scenes import (
    COMPACTING,
    DELEGATING,
    DONE,
    PLAIN,
    compaction_events,
    delegation_events,
    end_event,
    plain_events,
    step_events,
    tool_events,
)
from hookline.evals.adapter_contract._stage import Ran, Scene, Stage
from hookline.evals.adapter_contract._witness import (
    ContractError,
    Witness,
    check_equal,
    check_tool_results,
    check_true,
    expect,
    play_stopped,
    toolset_of,
)
from hookline.events import AfterStep, BeforeStep, OnError
from hookline.hooks import Hooks

__all__ = [
    "context_of_denied_tool",
    "context_of_run",
    "context_of_tool",
    "denied_and_stopped",
    "denied_run",
    "guided_answer",
    "interceptions",
]

Next = Callable[[Any], Awaitable[Any]]
Check = Callable[[Stage, Witness, Ran], None]


def _users_words(messages: list[Message]) -> list[Message]:
    return [replace(each, content="other words") if each.role == "user" else each for each in messages]


# For each class of calls: how a hook changes the call, how it changes the result, and a scene in which one is made.
CHANGES: dict[type[Any], tuple[Callable[[Any], Any], Callable[[Any], Any], Scene]] = {
    ToolCall: (lambda call: call.with_args(a=40), lambda result: replace(result, content=result.content + "!"), PLAIN),
    ModelCall: (
        lambda call: replace(call, messages=_users_words(call.messages)),
        lambda answer: replace(answer, content="changed") if answer.content == "done" else answer,
        PLAIN,
    ),
    AgentCall: (
        lambda call: replace(call, input=_users_words(call.input)),
        lambda result: replace(result, output="changed"),
        PLAIN,
    ),
    SubAgentCall: (
        lambda call: replace(call, instruction="other words"),
        lambda result: replace(result, output="changed"),
        DELEGATING,
    ),
    CompactCall: (
        lambda call: replace(call, metadata={**call.metadata, "seen": True}),
        lambda result: replace(result, summary="changed"),
        COMPACTING,
    ),
}

ENDING = (ModelCall, AgentCall, CompactCall)
"""Calls whose denial may end a run."""

RESPONSES: dict[type[Any], Any] = {
    ToolCall: ToolResult(content="canned"),
    ModelCall: ModelResponse(content="canned"),
    AgentCall: AgentResult(output="canned"),
    SubAgentCall: AgentResult(output="canned"),
    CompactCall: CompactResult(summary="canned"),
}


def interceptions() -> dict[tuple[type[Any], str, str], tuple[Scene, Callable[[Stage], Awaitable[Witness]]]]:
    """Return the scene and the check for each class of calls, kind of interceptor and thing that it does."""
    found = {}
    for call, (_, _, scene) in CHANGES.items():
        for kind, deed in (
            ("before", "rewrites"),
            ("before", "responds"),
            ("guard", "denies"),
            ("after", "rewrites"),
            ("around", "rewrites"),
            ("guard", "raises"),
        ):
            found[call, kind, deed] = scene, _clause(call, kind, deed, scene)
    return found


def _clause(call: type[Any], kind: str, deed: str, scene: Scene) -> Callable[[Stage], Awaitable[Witness]]:
    async def play(stage: Stage) -> Witness:
        witness, hooks, log = Witness(stage), Hooks("interceptor"), list[str]()
        getattr(hooks, kind)(call, id="hook")(_handler(call, kind, deed, log))
        ran = await _play_scene(stage, scene, [hooks, witness.hooks], may_fail=kind == "guard" and call in ENDING)
        if kind == "around":
            check_equal("The order in which the hook ran.", log[:2], ["in", "out"])
        CHECKS[call](stage, witness, ran or Ran(), kind, "fails" if ran is None else deed)
        return witness

    return play


def _handler(call: type[Any], kind: str, deed: str, log: list[str]) -> Callable[..., Any]:
    change, rewrite, _ = CHANGES[call]

    async def around(given: Any, call_next: Next) -> Any:
        log.append("in")
        result = await call_next(change(given))
        log.append("out")
        return rewrite(result)

    def raising(given: Any) -> None:
        raise RuntimeError("hook broke")

    deeds: dict[tuple[str, str], Callable[..., Any]] = {
        ("before", "rewrites"): change,
        ("before", "responds"): lambda given: Respond(RESPONSES[call]),
        ("guard", "denies"): lambda given: Deny("not that"),
        ("guard", "raises"): raising,
        ("after", "rewrites"): lambda given, result: rewrite(result),
        ("around", "rewrites"): around,
    }
    return deeds[kind, deed]


async def _play_scene(stage: Stage, scene: Scene, hooks: list[Hooks], *, may_fail: bool) -> Ran | None:
    """Play a scene; return `None` if the run raises and is allowed to.

    A denied run raises in some frameworks and returns in others.
    """
    try:
        return await stage.play(scene, hooks)
    except Exception:
        if not may_fail:
            raise
        return None


def _refusal(deed: str) -> str:
    return "not that" if deed == "denies" else "hook broke"


def _tool(stage: Stage, witness: Witness, ran: Ran, kind: str, deed: str) -> None:
    args = {"a": 40, "b": 2} if deed == "rewrites" and kind != "after" else {"a": 1, "b": 2}
    own = "42" if args["a"] == 40 else "3"
    content = {"before": own, "after": own + "!", "around": own + "!"}.get(kind, "")
    after: dict[str, Any] = {"content": own}
    if deed == "responds":
        content, after = "canned", {"content": "canned", "mocked": True, "answered_by": "hook"}
    elif kind == "guard":
        content, after = _refusal(deed), {"success": False, "answered_by": "hook"}
    witness.heard(plain_events(tool_events(toolset_of(stage), args=args, **after)))
    check_tool_results(ran, content)


def _model(stage: Stage, witness: Witness, ran: Ran, kind: str, deed: str) -> None:
    if kind == "guard":
        check_equal("The model calls.", list(ran.asked), [])
        ended = expect(AfterStep, step_index=0, step_type="call_llm", should_continue=False)
        witness.heard([expect(BeforeStep), ended, end_event("interrupted", steps=1, llm_calls=0)])
    elif deed == "responds":
        check_equal("The output of the run.", ran.output, "canned")
        check_equal("The model calls.", list(ran.asked), [])
        witness.heard(
            [*step_events(0, last=True, content="canned"), end_event(steps=1, last_assistant_content="canned")]
        )
    else:
        output = "done" if kind == "before" else "changed"
        _check_prompt(ran, changed=kind != "after")
        check_equal("The output of the run.", ran.output, output)
        witness.heard(
            [
                *step_events(0, *tool_events(toolset_of(stage), content="3")),
                *step_events(1, last=True, content=output),
                end_event(steps=2, last_assistant_content=output),
            ]
        )


def _agent(stage: Stage, witness: Witness, ran: Ran, kind: str, deed: str) -> None:
    if kind == "guard" or deed == "responds":
        check_equal("The model calls.", list(ran.asked), [])
        output, reason = ("", "interrupted") if kind == "guard" else ("canned", "done")
        check_equal("The output of the run.", ran.output, output)
        witness.heard([end_event(reason, steps=0, llm_calls=0)])
        return
    output = "done" if kind == "before" else "changed"
    _check_prompt(ran, changed=kind != "after")
    check_equal("The output of the run.", ran.output, output)
    witness.heard(plain_events(tool_events(toolset_of(stage), content="3"), output=output))


def _sub_agent(stage: Stage, witness: Witness, ran: Ran, kind: str, deed: str) -> None:
    if kind == "guard":
        events, content = delegation_events(error=_refusal_told(witness, deed)), _refusal(deed)
    elif deed == "responds":
        events, content = delegation_events(), "canned"
    else:
        changed = kind != "after"
        if changed and not any("other words" in text for text in ran.asked):
            raise ContractError("The instruction of the sub-agent.", "other words", repr(ran.asked))
        events = delegation_events(instruction="other words" if changed else "do it")
        content = "answer" if kind == "before" else "changed"
    witness.heard(plain_events(events, calls=0, content=""))
    check_tool_results(ran, content)


def _refusal_told(witness: Witness, deed: str) -> str:
    """Return the error of a sub-agent's call as the core words it, if it contains the refusal."""
    found = [event.error for event in witness.events if event.hook_type == "onCallAgentError"]
    return found[0] if found and _refusal(deed) in found[0] else _refusal(deed)


def _compact(stage: Stage, witness: Witness, ran: Ran, kind: str, deed: str) -> None:
    summary = {"guard": None, "before": "summary", "after": "changed", "around": "changed"}[kind]
    if deed == "responds":
        summary = "canned"
    first = step_events(0, *tool_events(toolset_of(stage), content="3"))
    second = step_events(1, *compaction_events(summary=summary), last=True)
    witness.heard(
        [*first, *second, end_event("error", steps=2), expect(OnError)]
        if deed == "fails"
        else [*first, *second, end_event(steps=2)]
    )


def _check_prompt(ran: Ran, *, changed: bool) -> None:
    """Raise an error unless the model read the prompt as a hook changed it, or left it."""
    word = "other words" if changed else PLAIN.prompt
    if not ran.asked or word not in ran.asked[0]:
        raise ContractError("The first model call.", word, repr(ran.asked))


CHECKS: dict[type[Any], Callable[[Stage, Witness, Ran, str, str], None]] = {
    ToolCall: _tool,
    ModelCall: _model,
    AgentCall: _agent,
    SubAgentCall: _sub_agent,
    CompactCall: _compact,
}


async def denied_run(stage: Stage) -> Witness:
    """A run that a hook denies raises `RunStopped` with the hook's reason and id."""
    witness, hooks = Witness(stage), Hooks("guard")
    hooks.guard(AgentCall, id="hook")(lambda call: Deny("not today"))
    await play_stopped(stage, PLAIN, [hooks, witness.hooks], "not today", "hook")

    witness.heard([end_event("interrupted", steps=0, llm_calls=0)])
    return witness


async def denied_and_stopped(stage: Stage) -> Witness:
    """`Deny(stop=True)` on a tool call ends the run."""
    witness, hooks = Witness(stage), Hooks("guard")
    hooks.guard(ToolCall, id="hook")(lambda call: Deny("enough", stop=True))
    ran = await play_stopped(stage, PLAIN, [hooks, witness.hooks], "enough", "hook")

    pair = tool_events(toolset_of(stage), content="enough", success=False, answered_by="hook")
    stopped = step_events(0, *pair, should_continue=False, total_tool_calls=1)
    witness.heard([*stopped, end_event("interrupted", steps=1, llm_calls=1, tool_calls=1)])
    check_true("A denial that stops ends the run.", ran is None or ran.output != DONE.content)
    return witness


ADDED = "remember the sum"
"""A text that hooks add for the model."""


async def context_of_tool(stage: Stage) -> Witness:
    """The model reads what hooks add to a tool call with the tool's result, which events show as it is."""
    witness, hooks = Witness(stage), Hooks("adding")
    hooks.before(ToolCall, id="first")(lambda call: call.add_context(ADDED))
    hooks.after(ToolCall, id="second")(lambda call, result: call.add_context("and forget it"))
    ran = await stage.play(PLAIN, [hooks, witness.hooks])

    witness.heard(plain_events(tool_events(toolset_of(stage), content="3")))
    for text in ("3", f"Context from hook 'first': {ADDED}", "Context from hook 'second': and forget it"):
        check_tool_results(ran, text)
    return witness


async def context_of_denied_tool(stage: Stage) -> Witness:
    """The model reads what hooks add to a tool call also if a hook denies the call."""
    witness, hooks = Witness(stage), Hooks("adding")
    hooks.before(ToolCall, id="first")(lambda call: call.add_context(ADDED))
    hooks.guard(ToolCall, id="hook")(lambda call: Deny("not that"))
    ran = await stage.play(PLAIN, [hooks, witness.hooks])

    pair = tool_events(toolset_of(stage), content="not that", success=False, answered_by="hook")
    witness.heard(plain_events(pair))
    for text in ("not that", f"Context from hook 'first': {ADDED}"):
        check_tool_results(ran, text)
    return witness


async def context_of_run(stage: Stage) -> Witness:
    """The model reads what hooks add to a run after the prompt, from its first call on."""
    witness, hooks = Witness(stage), Hooks("adding")
    hooks.before(AgentCall, id="first")(lambda call: call.add_context(ADDED))
    ran = await stage.play(PLAIN, [hooks, witness.hooks])

    witness.heard(plain_events(tool_events(toolset_of(stage), content="3")))
    wanted = f"Context from hook 'first': {ADDED}"
    for asked in ran.asked:
        if PLAIN.prompt not in asked or wanted not in asked or asked.index(PLAIN.prompt) > asked.index(wanted):
            raise ContractError("A model call.", f"{PLAIN.prompt}, then {wanted}", asked)
    return witness


async def guided_answer(stage: Stage) -> Witness:
    """A `Guide` discards an answer with its tool calls, and the model answers again in the same step."""
    witness, hooks, feedback = Witness(stage), Hooks("guiding"), "think again"
    left = [feedback]

    def judge(call: ModelCall, answer: ModelResponse) -> Guide | None:
        return Guide(left.pop()) if left else None

    hooks.after(ModelCall, id="hook")(judge)
    ran = await stage.play(PLAIN, [hooks, witness.hooks])

    pair = tool_events(toolset_of(stage), content="3")
    witness.heard(
        [
            *step_events(0, *pair, content="let me see", total_tool_calls=1),
            *step_events(1, last=True, content="done", total_tool_calls=1),
            end_event(steps=2, llm_calls=3, tool_calls=1, last_assistant_content="done"),
        ]
    )
    check_tool_results(ran, "3")
    check_equal("The number of model calls.", len(ran.asked), 3)
    check_true(f"The second model call reads {feedback!r}.", feedback in ran.asked[1])
    check_true("The second model call does not read the discarded answer.", "let me see" not in ran.asked[1])
    return witness
