"""Faults that answer or delay a tool call, and the random draw that decides which calls a fault strikes.

`ToolMocks` injects them.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import deque
from typing import Any, ClassVar, Protocol

import msgspec

from hookline._checks import quote
from hookline.calls import ToolResult
from hookline.evals.errors import MAX_SECONDS, FaultDefinitionError, check_count, check_probability, check_seconds
from hookline.evals.faults._clocks import OperationClock
from hookline.evals.faults._times import LogNormal, Normal, Uniform
from hookline.evals.matching import SeenCall

__all__ = [
    "FailedResult",
    "Fault",
    "FaultSpec",
    "Latency",
    "RaiseError",
    "RateLimit",
    "Timeout",
    "draw_for",
    "strikes",
]


class Fault(Protocol):
    """Something that goes wrong with a tool call.

    Parallel operations share a fault, so it keeps no state of its own.
    """

    @property
    def name(self) -> str:
        """The name of the fault in reports."""

    @property
    def replaces(self) -> bool:
        """Whether the fault answers instead of the tool. Otherwise it changes or delays the tool's answer."""

    def strike(self, call: SeenCall, draw: random.Random, clock: OperationClock) -> ToolResult | Exception | None:
        """Return the answer that replaces the tool's. Called only if the fault replaces.

        Args:
            call: The call.
            draw: The random generator of this fault and this call.
            clock: The operation's time, whose `state` keeps what the fault must remember of earlier calls.

        Returns:
            The answer, or the exception that the tool counts as having raised; `None` to leave the call alone.
        """

    def change(self, result: ToolResult, draw: random.Random) -> ToolResult:
        """Change the answer of a tool. Called only if the fault does not replace.

        Args:
            result: The answer of the tool, or of a rule in its place.
            draw: The random generator of this fault and this call.
        """

    def delay_s(self, draw: random.Random) -> float:
        """Return how many seconds the fault delays the call, before anything else happens to it.

        Args:
            draw: The random generator of this fault and this call.
        """


class CallFault(msgspec.Struct, frozen=True):
    """A fault that answers instead of the tool, without delay."""

    replaces: ClassVar[bool] = True

    def change(self, result: ToolResult, draw: random.Random) -> ToolResult:
        """Return the result unchanged."""
        return result

    def delay_s(self, draw: random.Random) -> float:
        """Return 0.0: the call is not delayed."""
        return 0.0


class RaiseError(CallFault, frozen=True):
    """Makes a call fail as if the tool had raised an exception.

    Attributes:
        error: The exception, or a class of exceptions that can be made without arguments.
    """

    name: ClassVar[str] = "raise_error"

    error: Exception | type[Exception]

    def __post_init__(self) -> None:
        error: object = self.error
        if isinstance(error, Exception):
            return
        if not isinstance(error, type) or not issubclass(error, Exception):
            problem = f"is an exception or a class of exceptions; got {quote(error)}"
            raise FaultDefinitionError("RaiseError", "error", problem)
        try:
            error()
        except Exception as failure:
            problem = f"is {error.__name__}, which cannot be made without arguments ({failure}); give an instance"
            raise FaultDefinitionError("RaiseError", "error", problem) from None

    def strike(self, call: SeenCall, draw: random.Random, clock: OperationClock) -> Exception:
        """Return the exception."""
        return self.error if isinstance(self.error, Exception) else self.error()


class FailedResult(CallFault, frozen=True):
    """Makes the tool answer with a failed result; nothing is raised.

    Attributes:
        content: The text that the model reads.
    """

    name: ClassVar[str] = "failed_result"

    content: str = "The tool could not do this."

    def __post_init__(self) -> None:
        content: object = self.content
        if not isinstance(content, str):
            raise FaultDefinitionError("FailedResult", "content", f"is text; got {quote(content)}")

    def strike(self, call: SeenCall, draw: random.Random, clock: OperationClock) -> ToolResult:
        """Return the failed result."""
        return ToolResult(content=self.content, success=False)


class Timeout(CallFault, frozen=True):
    """Makes a call take a while and then fail as if the tool had raised a `TimeoutError`.

    Attributes:
        seconds: The seconds until the timeout.
    """

    name: ClassVar[str] = "timeout"

    seconds: float

    def __post_init__(self) -> None:
        check_seconds("Timeout", "seconds", self.seconds)

    def strike(self, call: SeenCall, draw: random.Random, clock: OperationClock) -> Exception:
        """Return the `TimeoutError`."""
        return TimeoutError(f"{call.toolset}/{call.tool_name} did not answer within {self.seconds:g} s.")

    def delay_s(self, draw: random.Random) -> float:
        """Return the seconds until the timeout."""
        return float(self.seconds)


class RateLimit(CallFault, frozen=True, kw_only=True):
    """Lets only so many calls of a tool through per window of time, and refuses the others with a time to wait.

    Each operation has its own budget for each tool. Refused calls do not count. Calls that a model makes at once are
    counted in the order in which they arrive.

    Attributes:
        calls: The number of calls per window, from 1.
        per_seconds: The length of the window in seconds.
        raises: Whether a refused call raises. By default it gives a failed result.
    """

    name: ClassVar[str] = "rate_limit"

    calls: int
    per_seconds: float
    raises: bool = True

    def __post_init__(self) -> None:
        check_count("RateLimit", "calls", self.calls, most=1_000_000)
        check_seconds("RateLimit", "per_seconds", self.per_seconds, positive=True)
        raises: object = self.raises
        if not isinstance(raises, bool):
            raise FaultDefinitionError("RateLimit", "raises", f"is True or False; got {quote(raises)}")

    def strike(self, call: SeenCall, draw: random.Random, clock: OperationClock) -> ToolResult | None:
        """Refuse the call if the budget is used up.

        The seconds to wait are in the text, and in the metadata as `retry_after_s`.
        """
        tool = f"{call.toolset}/{call.tool_name}"
        # Keyed by identity: two equal limits have two budgets. Holding the fault keeps its id from being reused.
        _, passed = clock.state.setdefault((id(self), tool), (self, deque()))
        now = clock.arrival
        while passed and passed[0] + self.per_seconds - now < 1e-6:
            passed.popleft()
        if len(passed) < self.calls:
            passed.append(now)
            return None
        wait = math.ceil((passed[0] + self.per_seconds - now) * 1000) / 1000
        allowed = f"{self.calls} {'call' if self.calls == 1 else 'calls'} in {self.per_seconds:g} s"
        return ToolResult(
            content=f"{tool} takes at most {allowed}. Retry after {wait} s.",
            success=False,
            error_type="RateLimitError" if self.raises else None,
            metadata={"retry_after_s": wait},
        )


class Latency(msgspec.Struct, frozen=True):
    """Delays the tool's answer without changing it.

    Attributes:
        seconds: The delay in seconds: a number, or a `Uniform`, `Normal` or `LogNormal` distribution.
    """

    name: ClassVar[str] = "latency"
    replaces: ClassVar[bool] = False

    seconds: float | Uniform | Normal | LogNormal

    def __post_init__(self) -> None:
        if not isinstance(self.seconds, Uniform | Normal | LogNormal):
            check_seconds("Latency", "seconds", self.seconds)

    def strike(self, call: SeenCall, draw: random.Random, clock: OperationClock) -> None:
        """Return `None`: the tool answers itself."""

    def change(self, result: ToolResult, draw: random.Random) -> ToolResult:
        """Return the result unchanged."""
        return result

    def delay_s(self, draw: random.Random) -> float:
        """Draw the delay."""
        if isinstance(self.seconds, Uniform | Normal | LogNormal):
            return min(self.seconds.seconds(draw), MAX_SECONDS)
        return float(self.seconds)


class FaultSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A fault with the calls that it may strike.

    Attributes:
        tool: The pattern of the tools, as `ToolMocks.fault` takes it.
        fault: The fault.
        args: The arguments of the calls, as `ToolMocks.fault` takes them; `None` for any.
        probability: How likely each of these calls is struck, from 0 to 1.
        name: The name in reports; `None` for the fault's own name.
    """

    tool: str
    fault: Fault
    args: dict[str, Any] | None = None
    probability: float = 1.0
    name: str | None = None

    def __post_init__(self) -> None:
        check_probability("FaultSpec", self.probability)


def strikes(probability: float, *, seed: int, operation: str, tool: str, call_index: int, fault_index: int) -> bool:
    """Whether a fault strikes a call. The answer is the same in every process, whatever was asked before.

    Args:
        probability: The probability that it strikes, from 0 (never) to 1 (always).
        seed: The seed of the run.
        operation: The operation, or the name of the case that it runs.
        tool: The tool, as `toolset/tool_name`.
        call_index: The number of the call, from 1, per tool and operation.
        fault_index: The place of the fault among those that may strike the call.
    """
    if probability >= 1:
        return True
    digest = _digest("strike", seed, operation, tool, call_index, fault_index)
    return (digest >> 11) * 2.0**-53 < probability


def draw_for(*, seed: int, operation: str, tool: str, call_index: int, fault_index: int) -> random.Random:
    """Return the random generator of one fault for one call. Nothing else draws from it.

    Args:
        seed: The seed of the run.
        operation: The operation, or the name of the case that it runs.
        tool: The tool, as `toolset/tool_name`.
        call_index: The number of the call, from 1, per tool and operation.
        fault_index: The place of the fault among those that may strike the call.
    """
    return random.Random(_digest("draw", seed, operation, tool, call_index, fault_index))


def _digest(purpose: str, seed: int, operation: str, tool: str, call_index: int, fault_index: int) -> int:
    # With its length before the operation, no two lists of parts give the same text.
    text = f"{purpose} {seed} {call_index} {fault_index} {len(operation)} {operation}{tool}"
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big")
