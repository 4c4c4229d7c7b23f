"""Limits of a run: tool calls, steps, tokens, cost, and repeated calls."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import msgspec

from hookline.errors import HookUsageError
from hookline.evals._canonical import canonical
from hookline.evals.matching import format_value, path_of
from hookline.evals.mocking import calls_of, table
from hookline.evals.trajectories._recorder import RecordedOperation
from hookline.events import AfterStep, BeforeStep, BeforeToolCall, OnComplete

__all__ = ["Limits"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of what an operation, or a whole conversation, may do. Reaching a limit exactly is allowed.

    `None` means no limit. A sub-agent has its own operation: check its calls, steps, tokens and costs there.

    Attributes:
        max_calls: Tool calls, mocked and failed ones included.
        max_steps: Steps.
        max_cost_usd: Price in US dollars.
        max_tokens: Tokens, read and written.
        max_calls_per_tool: Tool calls by tool: `toolset/tool_name`, a bare name, or a glob, whose calls are added up.
        no_repeated_call: Whether the same tool may not be called twice with the same arguments.

    Raises:
        HookUsageError: If a limit is negative, or not a whole number where things are counted.
    """

    max_calls: int | None = None
    max_steps: int | None = None
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_calls_per_tool: Mapping[str, int] = {}
    no_repeated_call: bool = False

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_steps", "max_tokens"):
            _check_count(name, getattr(self, name))
        cost = self.max_cost_usd
        if cost is not None and not (_is_number(cost) and 0 <= cost < math.inf):
            raise HookUsageError(f"`max_cost_usd` is a number from 0, or None for no limit; got {cost!r}.")
        if not isinstance(self.max_calls_per_tool, Mapping):
            raise HookUsageError(
                f"`max_calls_per_tool` is a mapping, as {{'bank/*': 3}}; got {format_value(self.max_calls_per_tool)}."
            )
        for tool, limit in self.max_calls_per_tool.items():
            if not isinstance(tool, str) or not tool or limit is None:
                raise HookUsageError(f"`max_calls_per_tool` has a number for each tool; got {tool!r}: {limit!r}.")
            _check_count(f"max_calls_per_tool[{tool!r}]", limit)
        if not isinstance(self.no_repeated_call, bool):
            raise HookUsageError(f"`no_repeated_call` is True or False; got {self.no_repeated_call!r}.")

    def check(self, recorded: RecordedOperation) -> list[str]:
        """Describe every limit that an operation exceeded, one sentence each; an empty list if there is none.

        Args:
            recorded: The operation, or all turns of a conversation, whose figures are added up.
        """
        calls = recorded.calls
        told = [
            _too_many("tool call", len(calls), self.max_calls),
            _too_many("step", len(recorded.select(BeforeStep)), self.max_steps),
            _too_many("token", _tokens(recorded), self.max_tokens),
            self._cost(recorded),
        ]
        for tool, limit in self.max_calls_per_tool.items():
            told.append(_too_many(f"call of {tool}", len(calls_of(calls, tool)), limit, plural=f"calls of {tool}"))
        told += self._repeated(calls)
        return [sentence for sentence in told if sentence]

    def assert_met(self, recorded: RecordedOperation) -> None:
        """Fail if an operation exceeded a limit.

        Raises:
            AssertionError: If it did. The message lists every exceeded limit and all calls.
        """
        __tracebackhide__ = True
        broken = self.check(recorded)
        if broken:
            calls = f"\nCalls:\n{table(recorded.calls)}" if recorded.calls else ""
            raise AssertionError("\n".join(broken) + calls)

    def _cost(self, recorded: RecordedOperation) -> str:
        cost = _cost(recorded)
        if self.max_cost_usd is None or cost <= self.max_cost_usd:
            return ""
        return f"It cost {cost:.6g} USD; at most {self.max_cost_usd:.6g} USD are allowed."

    def _repeated(self, calls: list[BeforeToolCall]) -> list[str]:
        if not self.no_repeated_call:
            return []
        counts = Counter((path_of(call), canonical(call.args)) for call in calls)
        return [
            f"{path} was called {count} times with {args if len(args) <= 80 else f'{args[:79]}…'}; "
            "no call may be repeated."
            for (path, args), count in counts.items()
            if count > 1
        ]


def _too_many(what: str, count: int, limit: int | None, *, plural: str = "") -> str:
    if limit is None or count <= limit:
        return ""
    there = f"{count:,} {plural or f'{what}s'}" if count != 1 else f"1 {what}"
    return f"There {'was' if count == 1 else 'were'} {there}; at most {limit:,} {_are(limit)} allowed."


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


# Totals stand on every `AfterStep` and `OnComplete`, and only grow: also in an operation that was paused and resumed.
def _tokens(recorded: RecordedOperation) -> int:
    most: dict[str, int] = {}
    for step in recorded.select(AfterStep):
        tokens = step.total_input_tokens + step.total_output_tokens
        most[step.operation_id] = max(tokens, most.get(step.operation_id, 0))
    for end in recorded.select(OnComplete):
        most[end.operation_id] = max(end.total_tokens, most.get(end.operation_id, 0))
    return sum(most.values())


def _cost(recorded: RecordedOperation) -> float:
    most: dict[str, float] = {}
    for step in recorded.select(AfterStep):
        most[step.operation_id] = max(step.total_cost_usd, most.get(step.operation_id, 0.0))
    for end in recorded.select(OnComplete):
        most[end.operation_id] = max(end.cost_usd, most.get(end.operation_id, 0.0))
    return sum(most.values())


def _check_count(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise HookUsageError(f"`{name}` is a whole number from 0, or None for no limit; got {value!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
