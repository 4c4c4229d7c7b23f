"""Process-wide blinker signals: executions of hooks, operations that are registered and unregistered, phase changes.

Nothing is built while nobody is connected. The sender is the dispatcher (for phases the machine), never an operation:
blinker keeps a bucket per sender for ever. A receiver is called as `receiver(sender, **keywords)`; one that raises is
logged and harms nobody.
"""

import inspect
import logging
from typing import Literal

import blinker
import msgspec

__all__ = [
    "ChainRun",
    "HookExecution",
    "chain_ran",
    "hook_executed",
    "operation_registered",
    "operation_unregistered",
    "phase_changed",
]

logger = logging.getLogger("hookline")

ExecutionStatus = Literal["ok", "error", "timeout", "denied", "mocked", "dropped"]


class HookExecution(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The record of one handler run.

    Attributes:
        hook_id: The hook.
        hook_type: Wire name of the event, or name of the call, that it was run for; `phase` for a phase hook.
        operation_id: The run.
        status: How it ended. `dropped`: it never ran, or was cancelled with its lane.
        duration_ms: Time spent in the handler itself.
        error: What it raised, where it did; the reason of a denial.
        time_unix_nano: When it began, in nanoseconds since 1970.
        step_index: The step that its event or call is of, where that says so.
        tool_call_id: The tool call that it is about, if it is about one.
        tenant_id: The tenant for whom it ran.
        in_chain: Whether it is among the executions of a `ChainRun`; not so for observers, nor for an interceptor of a
            run that nobody waits for.
    """

    hook_id: str
    hook_type: str
    operation_id: str
    status: ExecutionStatus
    duration_ms: float
    error: str | None = None
    time_unix_nano: int = 0
    step_index: int | None = None
    tool_call_id: str | None = None
    tenant_id: str = ""
    in_chain: bool = False


class ChainRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The record of one call that went through interceptors.

    Attributes:
        point: Name of the call's class.
        operation_id: The run, or the request.
        tenant_id: The tenant for whom it ran.
        executions: What each hook did, in the order in which they started.
        denied_by: The hook that denied the call.
        reason: Why.
        duration_ms: Time from the first hook's start to the last one's end, with what the chain surrounds.
        time_unix_nano: When it began, in nanoseconds since 1970.
        step_index: The step that the call is of, where it says so.
        tool_call_id: The tool call that it is, if it is one.
    """

    point: str
    operation_id: str
    tenant_id: str
    executions: list[HookExecution]
    denied_by: str | None = None
    reason: str | None = None
    duration_ms: float
    time_unix_nano: int
    step_index: int | None = None
    tool_call_id: str | None = None


_signals = blinker.Namespace()

hook_executed = _signals.signal("hook-executed", doc="A handler has run; keyword `execution`: a `HookExecution`.")
chain_ran = _signals.signal("chain-ran", doc="A call was led through interceptors; keyword `ran`: a `ChainRun`.")
operation_registered = _signals.signal("operation-registered", doc="An operation is live; keyword `operation_id`.")
operation_unregistered = _signals.signal("operation-unregistered", doc="An operation is gone; keyword `operation_id`.")
phase_changed = _signals.signal("phase-changed", doc="An agent has moved; keyword `transition`: a `PhaseTransition`.")


def announce(signal: blinker.Signal, sender: object, **keywords: object) -> None:
    """Call every receiver of a signal; callers check `signal.receivers` first, so that silence is free.

    `Signal.send` is not used because it stops at the first receiver that raises.
    """
    if signal.is_muted:
        return
    for receiver in signal.receivers_for(sender):
        try:
            outcome = receiver(sender, **keywords)
            if inspect.iscoroutine(outcome):
                outcome.close()
                raise TypeError("a receiver is a plain function; an async one would never be awaited")
        except Exception:
            logger.exception("A receiver of the signal %r raised: %r", getattr(signal, "name", signal), receiver)
