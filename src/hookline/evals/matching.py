"""Which tool calls a rule is for: matchers on tool, arguments and place of a call, combined with `& | ~`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hookline.errors import HookUsageError
from hookline.evals._conditions import (
    ArgumentMode,
    ArgumentsAre,
    FieldsAre,
    Fits,
    PlaceIs,
    RunIs,
    ToolIs,
    Where,
)
from hookline.evals._matcher import Matcher, SeenCall

__all__ = ["Anything", "ArgumentMode", "Matcher", "OneOf", "SeenCall", "match"]


@dataclass(frozen=True, eq=False)
class OneOf:
    """Equals each of some values. As an argument's value: any of them will do."""

    values: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return any(value == other for value in self.values)

    def __hash__(self) -> int:
        raise TypeError("one_of() equals several values, so it has no hash")

    def __repr__(self) -> str:
        return f"one_of({', '.join(map(repr, self.values))})"


class Anything:
    """Equals every value."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        raise TypeError("anything equals every value, so it has no hash")

    def __repr__(self) -> str:
        return "anything"


class match:  # noqa: N801  (read as a word: match.tool("bank/*") & match.nth(2))
    """Makes matchers: `match.tool("bank/*") & match.args({"city": "Rome"}) & ~match.step(0)`."""

    anything: ClassVar[Anything] = Anything()
    """As an argument's value: any value will do, but there must be one."""

    @staticmethod
    def tool(pattern: str | re.Pattern[str] | Callable[[str], object]) -> Matcher:
        """Calls of a tool: `identifier/api_name`, a name, a glob, a compiled regex, or a predicate on the path."""
        return ToolIs(pattern)

    @staticmethod
    def args(values: Mapping[str, Any], *, mode: ArgumentMode = "exact", ignore: Iterable[str] = ()) -> Matcher:
        """Calls with these arguments: exactly, at least (`superset`), at most (`subset`), or but for some fields."""
        return ArgumentsAre(values, mode, ignore if isinstance(ignore, str) else tuple(ignore))  # type: ignore[arg-type]

    @staticmethod
    def fields(values: Mapping[str, Any]) -> Matcher:
        """Calls with these values in these fields: `{"filter.tags.0": "urgent"}`."""
        return FieldsAre(values)

    @staticmethod
    def schema(schema: Mapping[str, Any] | bool) -> Matcher:
        """Calls whose arguments this JSON Schema allows.

        Raises:
            HookUsageError: If it is no JSON Schema.
            MissingExtraError: If the extra `evals` is not installed.
        """
        return Fits(schema)

    @staticmethod
    def where(predicate: Callable[[Any], object]) -> Matcher:
        """Calls of which `predicate(call)` is true."""
        return Where(predicate)

    @staticmethod
    def nth(index: int) -> Matcher:
        """The n-th call of the tool in its operation, from 1."""
        return PlaceIs("call_index", index, index)

    @staticmethod
    def after(count: int) -> Matcher:
        """The calls of the tool in its operation after the first `count`."""
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise HookUsageError(f"after() takes how many calls come before, from 0; got {count!r:.100}.")
        return PlaceIs("call_index", count + 1, None)

    @staticmethod
    def step(index: int) -> Matcher:
        """Calls of one step, from 0."""
        return PlaceIs("step_index", index, index)

    @staticmethod
    def run(**fields: str) -> Matcher:
        """Calls of runs with this `agent_id`, `user_id`, `tenant_id` or `operation_id`."""
        unknown = sorted(fields.keys() - {"agent_id", "user_id", "tenant_id", "operation_id"})
        if unknown or not fields:
            raise HookUsageError(
                f"run() takes agent_id, user_id, tenant_id or operation_id; got {', '.join(unknown) or 'nothing'}."
            )
        for name, value in fields.items():
            if not isinstance(value, str):
                raise HookUsageError(f"`{name}` of run() is text; got {value!r:.100}.")
        return RunIs(tuple(sorted(fields.items())))

    @staticmethod
    def one_of(*values: object) -> OneOf:
        """As an argument's value: any of these will do."""
        return OneOf(values)
