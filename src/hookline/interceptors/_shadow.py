"""Let shadow hooks judge the calls of a chain: their decisions are recorded, and change nothing.

At its place in the chain a shadow hook only gets what it judges: a `before` or a `guard` the call as it is there, an
`after` also the result, an `around` the outcome of all that is inside, which its `call_next` gives. It then runs beside
the call, through a chain of its own, in which its decision has its usual effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import msgspec

from hookline._deadlines import runs_on_asyncio
from hookline.calls import shadow_of
from hookline.interceptors._clock import INF, Clock, ScopedClock, drive_through
from hookline.interceptors._traversal import (
    NO_RESULT,
    CompiledInterceptor,
    NextStep,
    Raised,
    Traversal,
    executions_of,
)
from hookline.signals import HookExecution

__all__ = ["judge_in_shadow", "run_shadows"]


def run_shadows(hooks: Sequence[CompiledInterceptor], inner: NextStep) -> NextStep:
    """Make the step of shadow hooks that stand next to each other: start each when it has what it judges.

    Args:
        hooks: The hooks, from the outside to the inside.
        inner: What is inside of them.
    """
    before = [hook for hook in hooks if hook.kind in ("before", "guard")]
    around = [hook for hook in hooks if hook.kind == "around"]
    outwards = [hook for hook in reversed(hooks) if hook.kind in ("around", "after")]

    async def enter(traversal: Traversal, call: Any) -> Any:
        call = traversal.call
        for hook in before:
            if judges(traversal, hook):
                traversal.start(hook, _copy_for(traversal, hook), NO_RESULT)
        if not outwards:
            return await inner(traversal, call)
        calls = {hook.index: _copy_for(traversal, hook) for hook in around if judges(traversal, hook)}
        try:
            result = await inner(traversal, call)
        except Exception as error:
            for hook in outwards:
                if hook.index in calls:
                    traversal.start(hook, calls[hook.index], Raised(error))
            raise
        if traversal.superseded or (traversal.policy is not None and traversal.policy.suspended):
            return result
        for hook in outwards:
            if hook.kind == "around":
                if hook.index in calls:
                    traversal.start(hook, calls[hook.index], result)
            elif hook.matches is None or hook.matches(traversal.call):
                traversal.start(hook, _copy_for(traversal, hook), result)
        return result

    return enter


def judges(traversal: Traversal, hook: CompiledInterceptor) -> bool:
    """Return whether a call is for a shadow hook that has not judged it in an earlier segment of the run."""
    if hook.matches is not None and not hook.matches(traversal.call):
        return False
    policy = traversal.policy
    return policy is None or not policy.pinned or (policy.decided and hook.index >= traversal.unheard_from)


def _copy_for(traversal: Traversal, hook: CompiledInterceptor) -> Any:
    """Return the call as the shadow hooks of a bundle see it, with `metadata` that only they share."""
    if traversal.shadow_metadata is None:
        traversal.shadow_metadata = {}
    given = traversal.call.metadata
    own = traversal.shadow_metadata.setdefault(id(hook.lane), {})
    for key in given:
        own.setdefault(key, given[key])
    return msgspec.structs.replace(traversal.call, metadata=own)


async def judge_in_shadow(hook: CompiledInterceptor, call: Any, outcome: Any) -> HookExecution:
    """Run a shadow hook on a copy of a call.

    Args:
        hook: The hook.
        call: The copy.
        outcome: The result of the real call, or `Raised`; `NO_RESULT` for a hook that judges before it.

    Returns:
        The record, with the decision.

    Raises:
        BaseException: A cancellation, or an error that is no `Exception`.
    """
    compiled = hook.alone

    async def terminal(call: Any) -> Any:
        if isinstance(outcome, Raised):
            raise outcome.error
        return None if outcome is NO_RESULT else outcome

    clock = (Clock if runs_on_asyncio() else ScopedClock)(compiled.hooks, compiled.marks.copy(), INF, limited=False)
    traversal = Traversal(call, terminal, compiled.idle.copy(), clock, started=[], executions={})
    shadow_of.set(call.metadata)
    trace = outcome.error.__traceback__ if isinstance(outcome, Raised) else None
    try:
        await drive_through(clock, compiled.enter(traversal, call))
    except anyio.get_cancelled_exc_class():
        raise
    except Exception as error:
        if error is not traversal.refusal and error is not traversal.raised:
            raise
    finally:
        if isinstance(outcome, Raised):
            outcome.error.__traceback__ = trace  # it belongs to the run
    [execution] = executions_of(traversal)
    return msgspec.structs.replace(execution, status="shadow")
