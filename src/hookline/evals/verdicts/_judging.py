"""Play a decision on a path, observe the verdict, and compare it with the expected one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio.lowlevel
import msgspec

from hookline.errors import HookDenied, HooklineError, HookUsageError, RunStopped, UnsupportedHookError, define_error
from hookline.evals.adapter_contract import Ran, Stage
from hookline.evals.verdicts._decisions import CONTEXTS, TEXTS, Decision
from hookline.evals.verdicts._paths import ForcedDifference, Path
from hookline.evals.verdicts._verdict import Record, Verdict
from hookline.events import (
    EVENTS,
    AfterToolCall,
    BeforeHumanIntervention,
    BeforeToolCall,
    Event,
    HookType,
    OnComplete,
    OnToolCallError,
)
from hookline.hooks import Hooks

__all__ = ["VerdictError", "check_verdict", "observe_verdict"]

STOPPED = (RunStopped, HookDenied)
"""The errors of a run that a hook ended."""


@define_error("The verdict of {decision!r} on the path {path!r}.\n  expected: {expected}\n  got:      {got}{reason}")
class VerdictError(HooklineError, AssertionError):
    """A decision led to another verdict than the expected one.

    Attributes:
        decision: The name of the decision.
        path: The name of the path.
        expected: The verdict that it must lead to.
        got: The verdict that it led to.
        reason: Why the path was expected to differ, or a hint; may be empty.
    """

    decision: str
    path: str
    expected: str
    got: str
    reason: str = ""


TOOLS = ("pay", "look")
"""The tools that a policy judges; an agent that is called by a tool is none of them."""


class Register:
    """Records what became of the tool calls of one run: the tools that ran, and the events."""

    def __init__(self, stage: Stage) -> None:
        self.ran: list[tuple[str, Mapping[str, Any]]] = []
        self.events: list[Any] = []
        self.resumed_at: int | None = None
        """How many events there were when the run was resumed; `None` if it was not."""
        self.hooks = Hooks("register", inherit=True)
        for kind in (AfterToolCall, OnToolCallError, BeforeToolCall, BeforeHumanIntervention, OnComplete):
            if kind.hook_type in stage.capabilities.events:
                self.hooks.on(EVENTS[kind.hook_type])(self.events.append)

    def tools(self) -> dict[str, Any]:
        """Return the tools of a scene; each notes that it ran."""

        async def pay(to: str, amount: int) -> str:
            """Pay somebody."""
            await anyio.lowlevel.checkpoint()
            self.ran.append(("pay", {"to": to, "amount": amount}))
            return f"paid {amount} to {to}"

        async def look(name: str) -> str:
            """Look somebody up."""
            await anyio.lowlevel.checkpoint()
            self.ran.append(("look", {"name": name}))
            return f"{name} is known"

        return {"pay": pay, "look": look}

    def verdict(self, ran: Ran) -> Verdict:
        """Return the verdict that the events, the tools and the model's conversation show."""
        judged = [event for event in self.events if getattr(event, "tool_name", None) in TOOLS]
        ended = [event for event in judged if isinstance(event, AfterToolCall | OnToolCallError)]
        paused = [event for event in self.events if isinstance(event, BeforeHumanIntervention) and event.pending_tools]
        # A run that waits with a sub-agent pauses after it, with the same question.
        acting = {event.operation_id for event in [*ended, *paused[:1]]}
        paused = [event for event in paused if event.operation_id in acting]
        completed = [event for event in self.events if isinstance(event, OnComplete)]
        resumed = [
            event for event in self.events[self.resumed_at or len(self.events) :] if isinstance(event, OnComplete)
        ]
        # A sub-agent may be resumed as another operation, which ends before that of its caller.
        last = [event for event in resumed if event.operation_id in acting][-1:] or resumed[:1]
        last = last or [event for event in completed if event.operation_id in acting][-1:]
        return Verdict(
            ran=tuple(self.ran),
            read=_texts_read(ran, TEXTS),
            context=_texts_read(ran, CONTEXTS),
            asked=tuple(pending.prompt for event in paused for pending in event.pending_tools),
            ended=str(last[0].reason) if last else "",
            records=tuple(_record(event) for event in ended),
        )


def _texts_read(ran: Ran, texts: Sequence[str]) -> tuple[str, ...]:
    conversation = "\n".join(ran.asked or ran.told)
    found = [text for text in texts if text in conversation]
    return tuple(sorted(found, key=conversation.index))


def _record(event: Event) -> Record:
    if isinstance(event, AfterToolCall):
        return Record(
            tool=event.tool_name,
            success=event.success,
            mocked=event.mocked,
            answered_by=event.answered_by and event.answered_by.partition(".")[0],
        )
    assert isinstance(event, OnToolCallError)
    return Record(tool=event.tool_name, success=False)


async def observe_verdict(decision: Decision, path: Path) -> Verdict:
    """Play a decision on a path, and return the verdict that it led to.

    Args:
        decision: The decision.
        path: The path.
    """
    register = Register(path.stage)
    scene = path.scene(decision, register.tools())
    async with path.form(decision.policy) as hooks:
        given = [*hooks, register.hooks]
        try:
            ran = await path.stage.play(scene, given, user_id=decision.user_id, tenant_id=decision.tenant_id)
            if decision.person is not None and ran.pending and ran.resume is not None:
                register.resumed_at = len(register.events)
                # A host may let the call of a sub-agent wait under the id of the call that runs the sub-agent.
                decided = msgspec.structs.replace(decision.person, tool_call_id=ran.pending[0])
                ran = await ran.resume([decided], given)
        except STOPPED:
            ran = Ran()
    return register.verdict(ran)


async def check_verdict(decision: Decision, path: Path) -> ForcedDifference | None:
    """Check that a decision leads to the expected verdict on a path.

    Args:
        decision: The decision.
        path: The path.

    Returns:
        The difference that the path declares, or `None` if the verdict is equal.

    Raises:
        VerdictError: If the verdict is another one than that of the decision, or of the declared difference; or if
            the path should refuse hooks and does not.
    """
    difference = path.differs.get(decision.name)
    if path.refused:
        return await _check_refusal(decision, path)
    if difference is not None and difference.verdict is None:
        return difference
    expected = decision.expected(path.depth) if difference is None else difference.verdict
    assert expected is not None
    if HookType.ON_COMPLETE not in path.stage.capabilities.events:
        expected = msgspec.structs.replace(expected, ended="")
    got = await observe_verdict(decision, path)
    if got != expected:
        reason = f"\n  reason:   {difference.reason}" if difference is not None else ""
        raise VerdictError(decision.name, path.name, repr(expected), repr(got), reason)
    return difference


async def _check_refusal(decision: Decision, path: Path) -> ForcedDifference:
    try:
        got = await observe_verdict(decision, path)
    except (HookUsageError, UnsupportedHookError):
        return ForcedDifference(reason=path.refused)
    raise VerdictError(decision.name, path.name, "the hooks are refused", repr(got))
