"""Process-wide blinker signals: hook executions, operations, phase changes, changes of budgets, alerts of policies.

Signals cost nothing while nobody is connected. A receiver is called as `receiver(sender, **keywords)`; if it raises,
the exception is logged. The sender is the dispatcher (for phases the machine, for alerts the watch of a registry) and
never an operation, since blinker keeps a bucket per sender for ever.
"""

import inspect
import logging
from typing import Literal

import blinker
import msgspec

__all__ = [
    "ChainRun",
    "DenialRateAlert",
    "FallbackAlert",
    "HookExecution",
    "budget_changed",
    "chain_ran",
    "dead_letter_stored",
    "denial_rate_changed",
    "fell_back_to_shadow",
    "hook_executed",
    "operation_registered",
    "operation_unregistered",
    "phase_changed",
]

logger = logging.getLogger("hookline")

ExecutionStatus = Literal["ok", "error", "timeout", "denied", "mocked", "dropped", "shadow"]

HookDecision = Literal["", "denied", "asked", "mocked", "changed", "continued"]


class HookExecution(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The record of one execution of a hook.

    Attributes:
        hook_id: The hook.
        hook_type: Wire name of the event, or name of the call; `phase` for a phase hook.
        operation_id: The run.
        status: How the hook ended. `dropped`: it never ran, or was cancelled with its lane. `shadow`: its decision has
            no effect, as it is a shadow hook.
        duration_ms: Own time of the handler.
        error: The exception that it raised, or the reason of its denial.
        decision: What the hook decided about the call: it denied it (also by a failure that fails closed), had a person
            asked, answered in its place, changed the call or its result, or had the run or the model go on. Empty if it
            let the call be.
        reason: The reason of a denial, the question to a person, or the input to go on with.
        time_unix_nano: Start time, in nanoseconds since 1970.
        step_index: The step of the event or call, if it has one.
        tool_call_id: The tool call, if the event or call is about one.
        tenant_id: The tenant for whom it ran.
        agent_id: The agent that ran; empty if there is none.
        tool: Toolset and name of the tool, or `agent/` and the sub-agent; empty if the event or call is about neither.
        in_chain: Whether it is also in the `executions` of a `ChainRun`; false for observers and `wait=False` hooks of
            a run.
        revision: The revision of the stored definition that made the hook; 0 for any other hook.
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
    agent_id: str = ""
    tool: str = ""
    in_chain: bool = False
    decision: HookDecision = ""
    reason: str = ""
    revision: int = 0


class ChainRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The record of one call with interceptors.

    Attributes:
        point: Name of the call's class.
        operation_id: The run, or the request.
        tenant_id: The tenant for whom it ran.
        executions: The executions of the hooks, in the order of their start.
        denied_by: The hook that denied the call.
        reason: The reason of the denial.
        duration_ms: Time from the start of the first hook to the end of the last one, including the call.
        time_unix_nano: Start time, in nanoseconds since 1970.
        step_index: The step of the call, if it has one.
        tool_call_id: The id of the call, if it is a tool call.
        agent_id: The agent that ran; empty if there is none.
        tool: Toolset and name of the tool, or `agent/` and the sub-agent; empty for other calls.
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
    agent_id: str = ""
    tool: str = ""


class DenialRateAlert(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", tag="denialRateChanged"
):
    """The share of calls that a stored shadow hook would deny has changed from one window to the next.

    Attributes:
        definition_id: The definition.
        name: Its name.
        tenant_id: The tenant that owns it; `""` is the system.
        revision: The revision whose calls were counted.
        window: Length of each of the two windows, in seconds.
        until: The end of the second window, in unix seconds.
        denied_before: Calls in the first window that it would have denied.
        count_before: Calls in the first window that it judged.
        denied: Calls in the second window that it would have denied.
        count: Calls in the second window that it judged.
        p_value: The probability of such a difference by chance.
    """

    definition_id: str
    name: str
    tenant_id: str
    revision: int
    window: int
    until: int
    denied_before: int
    count_before: int
    denied: int
    count: int
    p_value: float

    @property
    def share_before(self) -> float:
        """The share of calls in the first window that it would have denied, 0 to 1."""
        return self.denied_before / self.count_before

    @property
    def share(self) -> float:
        """The share of calls in the second window that it would have denied, 0 to 1."""
        return self.denied / self.count

    def describe(self) -> str:
        """Return the figures as a sentence, for people."""
        return (
            f"It would have denied {self.share:.2%} of calls ({self.denied:,} of {self.count:,}) within "
            f"{self.window:,} s, after {self.share_before:.2%} ({self.denied_before:,} of {self.count_before:,}) "
            f"within the {self.window:,} s before."
        )


class FallbackAlert(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", tag="fellBackToShadow"
):
    """A stored hook has passed a limit of its `shadow_above`, and was put into shadow mode.

    Attributes:
        definition_id: The definition.
        name: Its name.
        tenant_id: The tenant that owns it; `""` is the system.
        revision: The revision that the change has made.
        cause: The limit that it has passed: that of its failures or that of its denials.
        limit: The limit, 0 to 1.
        window: The window in which calls were counted, in seconds.
        failed: Calls in the window in which it failed.
        denied: Calls in the window that it denied.
        count: Calls in the window that it judged.
        time: When it was put into shadow mode, in unix seconds.
    """

    definition_id: str
    name: str
    tenant_id: str
    revision: int
    cause: Literal["failures", "denials"]
    limit: float
    window: float
    failed: int
    denied: int
    count: int
    time: float

    @property
    def share(self) -> float:
        """The share of calls that passed the limit, 0 to 1."""
        return (self.failed if self.cause == "failures" else self.denied) / self.count

    def describe(self) -> str:
        """Return the figures as a sentence, for people."""
        did, number = ("failed in", self.failed) if self.cause == "failures" else ("denied", self.denied)
        return (
            f"It {did} {self.share:.2%} of calls ({number:,} of {self.count:,}) within {self.window:,.0f} s; the limit "
            f"is {self.limit:.2%}."
        )


_signals = blinker.Namespace()

hook_executed = _signals.signal("hook-executed", doc="A handler has run; keyword `execution`: a `HookExecution`.")
chain_ran = _signals.signal("chain-ran", doc="A call was led through interceptors; keyword `ran`: a `ChainRun`.")
operation_registered = _signals.signal("operation-registered", doc="An operation is live; keyword `operation_id`.")
operation_unregistered = _signals.signal("operation-unregistered", doc="An operation is gone; keyword `operation_id`.")
denial_rate_changed = _signals.signal(
    "denial-rate-changed", doc="A shadow hook would deny more or fewer calls; keyword `alert`: a `DenialRateAlert`."
)
fell_back_to_shadow = _signals.signal(
    "fell-back-to-shadow", doc="A stored hook was put into shadow mode; keyword `alert`: a `FallbackAlert`."
)
budget_changed = _signals.signal(
    "budget-changed", doc="A budget warned or changed; keyword `change`: a `BudgetChange`."
)
dead_letter_stored = _signals.signal(
    "dead-letter-stored", doc="A remote observer could not handle an event; keyword `failed`: a `FailedEvent`."
)
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
            if outcome is not None and inspect.iscoroutine(outcome):
                outcome.close()
                raise TypeError("a receiver is a plain function; an async one would never be awaited")
        except Exception:
            logger.exception("A receiver of the signal %r raised: %r", getattr(signal, "name", signal), receiver)
