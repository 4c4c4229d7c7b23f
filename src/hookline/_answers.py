"""What a hook's return value means: for the way in, for the way out, and for `call_next`."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from hookline._checks import shown
from hookline._deadlines import own_cancellation, runs_on_asyncio
from hookline._passages import ABSENT, CLOSED, FAILED, IDLE, RUNNING, Enter, HookInChain, Passage, Raised
from hookline._turns import after_error, fail_closed, failed, stopped, too_long
from hookline._verdicts import check_changed, check_result, result_of
from hookline.calls import Ask, Continue, Denial, Deny, Respond
from hookline.errors import HookDenied, HookReturnError, HookUsageError
from hookline.execution import report_failure
from hookline.signals import ExecutionStatus

__all__ = [
    "again",
    "ask_person",
    "ended",
    "final",
    "heed",
    "judged",
    "keep_approved",
    "next_call",
    "object_to",
    "returned",
]


def heed(passage: Passage, hook: HookInChain, value: object, call: Any) -> Any:
    """What a `before` said: the call to go on with, or the result that answers it."""
    if value is None or value is FAILED:
        if value is None:
            passage.note(hook, "ok")
        return call
    if isinstance(value, hook.call):
        problem = check_changed(value, call)
        if problem is None:
            passage.note(hook, "ok")
            passage.call = value
            return value
        failed(passage, hook, wrong(hook, problem), "error")
        return call
    if isinstance(value, Respond):
        answer = respond(passage, hook, value)
        return call if answer is FAILED else answer
    judge(passage, hook, value, "None, a changed call, Respond, Deny or Ask")
    return call


async def notice_cancellation(error: BaseException) -> None:
    """A hook swallowed the cancellation of what it surrounds, which may have been its own doing.

    Raises:
        BaseException: The cancellation, if the caller is cancelled.
    """
    if runs_on_asyncio():
        if not own_cancellation():
            raise error
    else:
        await anyio.lowlevel.checkpoint_if_cancelled()


def object_to(passage: Passage, hook: HookInChain, value: object) -> None:
    """What a `before` said of a call that a person has let through already: only a refusal counts."""
    if isinstance(value, Deny):
        judge(passage, hook, value, "Deny")
    elif value is not FAILED:
        passage.note(hook, "ok")


def keep_approved(passage: Passage, hook: HookInChain, approved: Any, said: Any) -> Any:
    """Keep the call that a person approved, unless a control has changed its arguments: then the person is asked again.

    Values are compared as JSON shows them, where `1`, `1.0` and `true` are three.
    """
    if said is not approved and _shown(said) == _shown(approved):
        passage.call = approved
        return approved
    if said is not approved and passage.control is not None:
        passage.control.change(hook.id)
    return said


def _shown(call: Any) -> bytes:
    return msgspec.json.encode(call.args, enc_hook=repr, order="deterministic")


def judge(passage: Passage, hook: HookInChain, value: object, allowed: str) -> None:
    """What a hook said that is neither a call nor a result: a refusal, or a mistake."""
    if isinstance(value, Deny) and isinstance(value.reason, str):
        passage.note(hook, "denied", value.reason)
        raise passage.deny(hook, value.reason, stop=bool(value.stop))
    if isinstance(value, Ask) and isinstance(value.prompt, str):
        if passage.control is not None and passage.control.approved:
            passage.note(hook, "ok")
            return  # a person has lifted it
        passage.note(hook, "denied", value.prompt)
        if passage.refusal is None and not passage.reached and passage.answered_by is None:
            passage.asked, passage.asked_by = value, hook
        raise passage.deny(hook, value.prompt)
    failed(passage, hook, wrong(hook, f"returned {shown(value)}; it may return {allowed}"), "error")


def judged(passage: Passage, guard: HookInChain, value: object) -> None:
    """What a guard said."""
    if value is None:
        passage.note(guard, "ok")
    elif value is not FAILED:
        judge(passage, guard, value, "None, Deny or Ask")


def respond(passage: Passage, hook: HookInChain, value: Respond) -> Any:
    """What a hook answers in the call's place.

    Raises:
        Exception: The answer itself, if it is one and the call has no result for that.
    """
    try:
        answer = result_of(hook.result, value.answer)
    except Exception as error:
        return failed(passage, hook, error, "error")
    passage.note(hook, "mocked")
    answered(passage, hook, answer)
    if isinstance(answer, Exception):
        passage.raised = answer
        raise answer
    return answer


def answered(passage: Passage, hook: HookInChain, answer: Any) -> None:
    """A hook answers the call; whoever answers first did it in the terminal's place."""
    if not passage.reached and passage.answered_by is None:
        passage.answered_by, passage.answer = hook.id, answer


async def returned(passage: Passage, hook: HookInChain, slot: int, value: Any, call_next: Enter) -> Any:
    """What an `around` came to, whatever it returned. What it left running in another task is waited for."""
    outcome = passage.outcomes[slot]
    left_running = outcome is RUNNING
    if left_running:
        outcome = await outcome_of(passage, slot)
    if passage.refusal is not None:
        fine = value is None or value is FAILED or isinstance(value, hook.result | Respond | Deny | Ask)
        status: ExecutionStatus = "denied" if isinstance(value, Deny | Ask) else "ok" if fine else "error"
        passage.note(hook, status, None if fine else f"returned {shown(value)} after a denial")
        raise passage.refusal
    if isinstance(outcome, Raised) and isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        await notice_cancellation(outcome.error)
    called = outcome is not IDLE
    if not called:
        passage.outcomes[slot] = CLOSED
    if called and value is outcome:
        passage.note(hook, "ok")
        return value
    if isinstance(value, hook.result):
        problem = check_result(value)
        if problem is None:
            passage.note(hook, "ok" if called else "mocked")
            if not called:
                answered(passage, hook, value)
            return value
        failed(passage, hook, wrong(hook, problem), "error")
        value = FAILED
    if isinstance(value, Respond):
        answer = respond(passage, hook, value)
        if answer is not FAILED:
            return answer
    elif value is None and called and not left_running:
        passage.note(hook, "ok")
    elif value is None:
        failed(passage, hook, wrong(hook, "returned None without an outcome of `call_next`"), "error")
    elif value is not FAILED:
        judge(passage, hook, value, "a result, None after call_next, Respond, Deny or Ask")
    return await downstream(passage, hook, slot, call_next)


async def ended(passage: Passage, hook: HookInChain, error: BaseException | None, value: Any, slot: int) -> Any:
    """The end of an `around` that needs a closer look: it raised, or may have taken too long.

    Returns:
        What it returned; `FAILED` if it failed and fails open.
    """
    late = passage.clock is not None and stopped(passage, hook, error)
    if passage.outcomes[slot] is RUNNING and (late or isinstance(error, Exception)):
        await outcome_of(passage, slot)
    if late:
        return failed(passage, hook, too_long(passage, hook), "timeout")
    return value if error is None else after_error(passage, hook, error)


async def downstream(passage: Passage, hook: HookInChain, slot: int, call_next: Enter) -> Any:
    """What an `around` that failed or changed nothing surrounds: run now if it was not yet, else its outcome."""
    if passage.outcomes[slot] is CLOSED:
        passage.outcomes[slot] = ABSENT
        return await call_next(passage, passage.call)
    outcome = await outcome_of(passage, slot)
    if not isinstance(outcome, Raised):
        return outcome
    if isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        # The hook did that, or it would have been cancelled too. Nothing is left to go on with, open or closed.
        error = wrong(hook, "stopped what is inside of `call_next`, and gave no result in its place")
        report_failure(hook.id, f"{hook.kind} {hook.point}", passage.call.operation_id, error)
        raise fail_closed(passage, hook, error, str(error))
    raise outcome.error


async def outcome_of(passage: Passage, slot: int) -> Any:
    """The outcome of a `call_next` that was called; waits for it."""
    while passage.outcomes[slot] is RUNNING:
        if passage.finished is None or passage.finished.is_set():
            passage.finished = anyio.Event()
        await passage.finished.wait()
    return passage.outcomes[slot]


async def again(passage: Passage, hook: HookInChain | None, slot: int) -> Any:
    """`call_next` once more: its first outcome.

    Raises:
        HookUsageError: If there is none, and will be none.
    """
    name = hook.id if hook is not None else ""
    if passage.outcomes[slot] is CLOSED:
        raise HookUsageError(f"`call_next` of hook {name!r} was called after the hook had returned.")
    outcome = await outcome_of(passage, slot)
    if not isinstance(outcome, Raised):
        return outcome
    if isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        raise HookUsageError(f"`call_next` of hook {name!r} was cancelled; it cannot be called once more.")
    raise outcome.error


def next_call(passage: Passage, hook: HookInChain | None, call: Any) -> Any:
    """The call that an `around` gives to `call_next`, checked."""
    if hook is None:
        return call
    if not isinstance(call, hook.call):
        raise HookUsageError(
            f"`call_next` takes the {hook.point}, changed or not; hook {hook.id!r} gave {shown(call)}."
        )
    problem = check_changed(call, passage.call)
    if problem is not None:
        raise HookUsageError(f"Hook {hook.id!r} {problem}.")
    if passage.control is not None and passage.control.pinned:
        return passage.call
    passage.call = call
    return call


def final(passage: Passage, hook: HookInChain, value: object, result: Any) -> Any:
    """What an `after` said: the result to go on with."""
    if value is None or value is FAILED:
        if value is None:
            passage.note(hook, "ok")
        return result
    if isinstance(value, hook.result):
        problem = None if value is result else check_result(value)
        if problem is None:
            passage.note(hook, "ok")
            return value
        failed(passage, hook, wrong(hook, problem), "error")
        return result
    if isinstance(value, Continue) and hook.point == "AgentCall" and isinstance(value.input, str):
        passage.note(hook, "ok")
        if value.input:
            passage.continues = (*passage.continues, value.input)
        return result
    allowed = "None, a changed result or Deny" + (", or Continue" if hook.point == "AgentCall" else "")
    if isinstance(value, Ask):
        failed(passage, hook, wrong(hook, f"returned an Ask, but the call has happened; {allowed}"), "error")
    else:
        judge(passage, hook, value, allowed)
    return result


async def ask_person(passage: Passage, call: Any) -> None:
    """After the guards: whether a person must decide, although no hook said so."""
    control = passage.control
    if control is None:
        return
    if control.interrupted:
        await control.stop()
    if control.approved:
        return
    asked = await control.asks(call)
    if asked is not None:
        passage.asked = asked
        passage.denied = Denial(hook_id="", reason=asked.prompt)
        passage.refusal = HookDenied("", asked.prompt)
        raise passage.refusal


def wrong(hook: HookInChain, problem: str) -> HookReturnError:
    """The failure of a hook that returned what it may not."""
    return HookReturnError(hook.id, hook.point, problem)
