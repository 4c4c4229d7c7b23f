"""What `ToolMocks` tells of a run: every call with what became of it, and every fault that struck."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hookline.errors import HookUsageError
from hookline.evals._matcher import Matcher
from hookline.evals._mock_errors import checked_name
from hookline.evals.faults import Fault

__all__ = ["FaultRule", "FaultStrike", "MockedCall", "Outcome"]

Outcome = Literal["mocked", "real", "refused", "elsewhere"]
"""What became of a call: a rule, a fault or a cassette answered it; the real tool ran; nothing could answer it; another
hook had answered or denied it."""


class MockedCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool call, and what became of it.

    Attributes:
        operation_id: The run.
        identifier: Where the tool comes from.
        api_name: The tool's name there.
        args: The arguments.
        call_index: From 1, per tool and operation.
        step_index: The step, from 0.
        tool_call_id: The model's id of the call.
        outcome: What became of it.
        rule: Name of the rule that it got.
        fault: Names of the faults that struck it, joined with commas.
        cassette: Name of the cassette that answered.
        latency_ms: How long the faults made it take, on their clock.
    """

    operation_id: str
    identifier: str
    api_name: str
    args: dict[str, Any]
    call_index: int
    step_index: int
    tool_call_id: str
    outcome: Outcome
    rule: str | None = None
    fault: str | None = None
    cassette: str | None = None
    latency_ms: float = 0.0

    @property
    def path(self) -> str:
        """The tool, as `identifier/api_name`."""
        return f"{self.identifier}/{self.api_name}"


class FaultStrike(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A fault that struck a call.

    Attributes:
        fault: The fault's name.
        tool: The tool, as `identifier/api_name`.
        call_index: Its call, from 1, per tool and operation.
        step_index: The step, from 0.
        operation_id: The run.
    """

    fault: str
    tool: str
    call_index: int
    step_index: int
    operation_id: str


class FaultRule:
    """Which calls a fault strikes, and how many of them. `ToolMocks.fault` makes one.

    Attributes:
        matcher: Which calls.
        fault: The fault.
        probability: How many of them, 0 to 1.
        name: Stands in the provenance of every call that it strikes.
        index: Its place among the faults of the run, from 0; part of what it is drawn by.
        hits: How many calls it struck, in all operations.
    """

    def __init__(self, matcher: Matcher, fault: Fault, *, probability: float, name: str | None, index: int) -> None:
        # Not `float(probability)` before it is known to be small: a whole number may be too large for that.
        if not isinstance(probability, int | float) or isinstance(probability, bool) or not 0 <= probability <= 1:
            raise HookUsageError(f"`probability` is a number from 0 to 1; got {probability!r:.100}.")
        missing = [word for word in ("name", "replaces", "strike", "change", "delay_s") if not hasattr(fault, word)]
        if missing or isinstance(fault, type):
            raise HookUsageError(
                f"{fault!r:.100} is no fault; give one of hookline.evals.faults, as Timeout(seconds=5), or an object "
                "with its five words: name, replaces, strike, change, delay_s."
            )
        self.matcher = matcher
        self.fault = fault
        self.probability = float(probability)
        self.name = checked_name(name if name is not None else fault.name)
        self.index = index
        self.hits = 0

    def __repr__(self) -> str:
        return f"FaultRule({self.name!r}, {self.matcher!r}, probability={self.probability:g}, hits={self.hits})"
