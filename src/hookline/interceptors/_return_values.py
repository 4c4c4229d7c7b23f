"""Apply what hooks return: changed calls, answers, refusals, results and `call_next` outcomes."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from hookline._checks import quote
from hookline._deadlines import own_cancellation, runs_on_asyncio
from hookline.calls import Ask, Continue, Deny, Guide, Respond
from hookline.errors import (
    HookUsageError,
)
from hookline.execution import (
    logger,
    report_failure,
)
from hookline.interceptors._failures import fail, fail_closed, return_error
from hookline.interceptors._traversal import (
    ABSENT,
    CLOSED,
    FAILED,
    IDLE,
    RUNNING,
    CompiledInterceptor,
    NextStep,
    Raised,
    Traversal,
)
from hookline.interceptors._validate import check_changed, check_result, result_of
from hookline.signals import ExecutionStatus

__all__ = [
    "apply_after",
    "apply_around",
    "apply_before",
    "apply_guard",
    "apply_to_approved",
    "judges_approved",
    "next_call",
    "outcome_of",
    "repeat_call_next",
]


ASKED_ENOUGH = (
    "It returned Guide, but the model was already asked again as often as the agent's `max_guides` allows in a step, "
    "so its last answer stands."
)
"""The remark in the record of a hook whose `Guide` has no effect."""

ALSO_AFTER = {"AgentCall": ", or Continue", "ModelCall": ", or Guide"}
"""What else an `after` hook can return, by the class of the calls."""


def apply_before(traversal: Traversal, hook: CompiledInterceptor, value: object) -> Any:
    """Apply the return value of a `before`: the traversal continues with the returned call.

    Returns:
        The result, if the hook answered the call.
    """
    if value is None or value is FAILED:
        if value is None:
            traversal.note(hook, "ok")
        return None
    if isinstance(value, hook.call):
        problem = check_changed(value, traversal.call)
        if problem is None:
            traversal.note(hook, "ok", decision="changed" if differs(value, traversal.call) else "")
            traversal.call = value
        else:
            fail(traversal, hook, return_error(hook, problem), "error")
        return None
    if isinstance(value, Respond):
        answer = respond(traversal, hook, value)
        return None if answer is FAILED else answer
    apply_refusal(traversal, hook, value, "None, a changed call, Respond, Deny or Ask")
    return None


def judges_approved(traversal: Traversal, hook: CompiledInterceptor) -> bool:
    """Return whether a `before` judges a call that started earlier: a control, or a hook that did not run then."""
    policy = traversal.policy
    return policy is not None and policy.decided and (hook.control or hook.index >= traversal.unheard_from)


def apply_to_approved(traversal: Traversal, hook: CompiledInterceptor, value: object) -> Any:
    """Apply the return value of a `before` to a call that a person has approved.

    Of a control everything counts; if it changed the call, the person is asked again. Of others only a refusal counts.
    """
    if not hook.control:
        if isinstance(value, Deny):
            apply_refusal(traversal, hook, value, "Deny")
        elif value is not FAILED:
            traversal.note(hook, "ok")
        return None
    approved = traversal.call
    answer = apply_before(traversal, hook, value)
    if answer is None and traversal.call is not approved:
        # Values are compared as JSON shows them, where `1`, `1.0` and `true` are three.
        if _args_as_json(traversal.call) == _args_as_json(approved):
            traversal.call = approved
        elif traversal.policy is not None:
            traversal.policy.change(hook.id)
    return answer


def _args_as_json(call: Any) -> bytes:
    return msgspec.json.encode(call.args, enc_hook=repr, order="deterministic")


def apply_refusal(traversal: Traversal, hook: CompiledInterceptor, value: object, allowed: str) -> None:
    """Apply a return value that is neither a call nor a result: a denial, or an invalid value.

    Args:
        traversal: The call.
        hook: The hook.
        value: The return value.
        allowed: The allowed return values, for the error.
    """
    if isinstance(value, Deny) and isinstance(value.reason, str):
        traversal.note(hook, "denied", value.reason, decision="denied", reason=value.reason)
        raise traversal.deny(hook, value.reason, stop=bool(value.stop))
    if isinstance(value, Ask) and isinstance(value.prompt, str):
        if traversal.policy is not None and traversal.policy.approved:
            traversal.note(hook, "ok")
            return  # a person has lifted it
        traversal.note(hook, "denied", value.prompt, decision="asked", reason=value.prompt)
        if traversal.refusal is None and not traversal.reached and traversal.answered_by is None:
            traversal.asked, traversal.asked_by = value, hook
        raise traversal.deny(hook, value.prompt)
    fail(traversal, hook, return_error(hook, f"returned {quote(value)}; it can return {allowed}"), "error")


def differs(value: object, given: object) -> bool:
    """Return whether a hook returned something else than it was given. What cannot be compared is something else."""
    if value is given:
        return False
    try:
        return bool(value != given)
    except Exception:
        return True


def apply_guard(traversal: Traversal, guard: CompiledInterceptor, value: object) -> None:
    """Apply the return value of a guard."""
    if value is None:
        traversal.note(guard, "ok")
    elif value is not FAILED:
        apply_refusal(traversal, guard, value, "None, Deny or Ask")


def apply_after(traversal: Traversal, hook: CompiledInterceptor, value: object, result: Any) -> Any:
    """Apply the return value of an `after`.

    Returns:
        The result to continue with.
    """
    if value is None or value is FAILED:
        if value is None:
            traversal.note(hook, "ok")
        return result
    if isinstance(value, hook.result):
        problem = None if value is result else check_result(value)
        if problem is None:
            traversal.note(hook, "ok", decision="changed" if differs(value, result) else "")
            return value
        fail(traversal, hook, return_error(hook, problem), "error")
        return result
    if isinstance(value, Continue) and hook.point == "AgentCall" and isinstance(value.input, str):
        traversal.note(hook, "ok", decision="continued" if value.input else "", reason=value.input)
        if value.input:
            traversal.continues = (*traversal.continues, value.input)
        return result
    if isinstance(value, Guide) and hook.point == "ModelCall" and isinstance(value.feedback, str):
        if traversal.policy is not None and not traversal.policy.guides:
            problem = "returned Guide, which the framework of this run does not support; see `Capabilities.guides`"
            fail(traversal, hook, return_error(hook, problem), "error")
        elif traversal.policy is None or traversal.policy.asks_again:
            traversal.note(hook, "ok", decision="continued", reason=value.feedback)
            traversal.guides = (*traversal.guides, (hook.id, value.feedback))
        else:
            traversal.note(hook, "ok", ASKED_ENOUGH)
            logger.warning("Operation %s: hook %r: %s", traversal.call.operation_id, hook.id, ASKED_ENOUGH)
        return result
    allowed = "None, a changed result or Deny" + ALSO_AFTER.get(hook.point, "")
    if isinstance(value, Ask):
        problem = f"returned an Ask, but the call has already run; it can return {allowed}"
        fail(traversal, hook, return_error(hook, problem), "error")
    else:
        apply_refusal(traversal, hook, value, allowed)
    return result


def respond(traversal: Traversal, hook: CompiledInterceptor, value: Respond) -> Any:
    """Answer the call in its place.

    Raises:
        Exception: The answer itself, if it is one and the call has no result for that.
    """
    try:
        answer = result_of(hook.result, value.answer)
    except Exception as error:
        return fail(traversal, hook, error, "error")
    traversal.note(hook, "mocked", decision="mocked")
    record_answer(traversal, hook, answer)
    if isinstance(answer, Exception):
        traversal.raised = answer
        raise answer
    return answer


def record_answer(traversal: Traversal, hook: CompiledInterceptor, answer: Any) -> None:
    """Record that a hook answered the call; the first to answer did it in the terminal's place."""
    if not traversal.reached and traversal.answered_by is None:
        traversal.answered_by, traversal.answer = hook.id, answer


async def apply_around(
    traversal: Traversal, hook: CompiledInterceptor, slot: int, value: Any, call_next: NextStep
) -> Any:
    """Apply the return value of an `around`. Wait for a `call_next` that it left running in another task."""
    outcome = traversal.outcomes[slot]
    left_running = outcome is RUNNING
    if left_running:
        outcome = await outcome_of(traversal, slot)
    if traversal.refusal is not None:
        fine = value is None or value is FAILED or isinstance(value, hook.result | Respond | Deny | Ask)
        status: ExecutionStatus = "denied" if isinstance(value, Deny | Ask) else "ok" if fine else "error"
        traversal.note(hook, status, None if fine else f"returned {quote(value)} after a denial")
        raise traversal.refusal
    if isinstance(outcome, Raised) and isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        await notice_cancellation(outcome.error)
    called = outcome is not IDLE
    if not called:
        traversal.outcomes[slot] = CLOSED
    if called and value is outcome:
        traversal.note(hook, "ok")
        return value
    if isinstance(value, hook.result):
        problem = check_result(value)
        if problem is None and called:
            traversal.note(hook, "ok", decision="changed" if differs(value, outcome) else "")
            return value
        if problem is None:
            traversal.note(hook, "mocked", decision="mocked")
            record_answer(traversal, hook, value)
            return value
        fail(traversal, hook, return_error(hook, problem), "error")
        value = FAILED
    if isinstance(value, Respond):
        answer = respond(traversal, hook, value)
        if answer is not FAILED:
            return answer
    elif value is None and called and not left_running:
        traversal.note(hook, "ok")
    elif value is None:
        fail(traversal, hook, return_error(hook, "returned None without awaiting `call_next`"), "error")
    elif value is not FAILED:
        apply_refusal(traversal, hook, value, "a result, None after call_next, Respond, Deny or Ask")
    return await resume_downstream(traversal, hook, slot, call_next)


async def notice_cancellation(error: BaseException) -> None:
    """Notice that a hook swallowed the cancellation of what it wraps, which may have been its own doing.

    Raises:
        BaseException: The cancellation, if the caller is cancelled.
    """
    if runs_on_asyncio():
        if not own_cancellation():
            raise error
    else:
        await anyio.lowlevel.checkpoint_if_cancelled()


async def resume_downstream(traversal: Traversal, hook: CompiledInterceptor, slot: int, call_next: NextStep) -> Any:
    """Go on with what an `around` wraps that failed or changed nothing: run it if it has not run, else its outcome."""
    if traversal.outcomes[slot] is CLOSED:
        traversal.outcomes[slot] = ABSENT
        return await call_next(traversal, traversal.call)
    outcome = await outcome_of(traversal, slot)
    if not isinstance(outcome, Raised):
        return outcome
    if isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        # The hook did that, or it would have been cancelled too. Nothing is left to go on with, open or closed.
        error = return_error(hook, "cancelled what runs inside `call_next`, and returned no result instead")
        report_failure(hook.id, f"{hook.kind} {hook.point}", traversal.call.operation_id, error)
        raise fail_closed(traversal, hook, error, str(error))
    raise outcome.error


async def outcome_of(traversal: Traversal, slot: int) -> Any:
    """Wait for the outcome of a `call_next` that was called."""
    while traversal.outcomes[slot] is RUNNING:
        if traversal.finished is None or traversal.finished.is_set():
            traversal.finished = anyio.Event()
        await traversal.finished.wait()
    return traversal.outcomes[slot]


async def repeat_call_next(traversal: Traversal, hook: CompiledInterceptor | None, slot: int) -> Any:
    """Return the first outcome of a `call_next` that is called once more.

    Raises:
        HookUsageError: If there is none, and will be none.
    """
    name = hook.id if hook is not None else ""
    if traversal.outcomes[slot] is CLOSED:
        raise HookUsageError(
            f"`call_next` of hook {name!r} was called after the hook had returned. Await it inside the hook."
        )
    outcome = await outcome_of(traversal, slot)
    if not isinstance(outcome, Raised):
        return outcome
    if isinstance(outcome.error, anyio.get_cancelled_exc_class()):
        raise HookUsageError(f"`call_next` of hook {name!r} was cancelled and cannot be called again.")
    raise outcome.error


def next_call(traversal: Traversal, hook: CompiledInterceptor | None, call: Any) -> Any:
    """Check the call that an `around` passes to `call_next`, and continue with it.

    Raises:
        HookUsageError: If it is not a valid call.
    """
    if hook is None:
        return call
    if not isinstance(call, hook.call):
        raise HookUsageError(
            f"`call_next` takes the {hook.point} or a changed copy; hook {hook.id!r} passed {quote(call)}."
        )
    problem = check_changed(call, traversal.call)
    if problem is not None:
        raise HookUsageError(f"Hook {hook.id!r} {problem}.")
    if traversal.pinned:
        return traversal.call
    if differs(call, traversal.call):
        traversal.rewrote = (*traversal.rewrote, hook.index)
    traversal.call = call
    return call
