"""What every matcher can do, and how matchers are combined."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["ANY", "AllOf", "AnyOf", "Matcher", "Not", "SeenCall", "Specificity"]

Specificity = tuple[int, int, int]
"""Rank of the tool pattern, letters of a glob that are fixed, and weight of all other conditions."""

ANY = 0
"""Rank of what does not ask for a tool."""


class SeenCall(Protocol):
    """A tool call as matchers see it: a `BeforeToolCall`, a `ToolCall`, or anything else with these fields."""

    @property
    def identifier(self) -> str:
        """Where the tool comes from."""

    @property
    def api_name(self) -> str:
        """The tool's name there."""

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments."""

    @property
    def call_index(self) -> int:
        """From 1, per tool and operation."""

    @property
    def step_index(self) -> int:
        """The step, from 0."""


class Matcher(ABC):
    """A test on a tool call, which can say why a call does not pass it.

    Combine matchers with `&`, `|` and `~`. Two matchers that want the same are equal.
    """

    @abstractmethod
    def explain(self, call: SeenCall) -> str | None:
        """Why a call does not match; `None` if it does."""

    @property
    @abstractmethod
    def specificity(self) -> Specificity:
        """How narrow the matcher is; the larger one wins."""

    def matches(self, call: SeenCall) -> bool:
        """Whether a call matches."""
        return self.explain(call) is None

    def may_match(self, path: str) -> bool:
        """Whether any call of a tool can match.

        Args:
            path: The tool, as `identifier/api_name`.
        """
        return True

    @property
    def tool_only(self) -> bool:
        """Whether `may_match` tells all: nothing but the tool counts."""
        return False

    def paths(self) -> frozenset[str] | None:
        """The only tools whose calls can match, by path; `None` where that is not known beforehand."""
        return None

    def __and__(self, other: object) -> Matcher:
        return AllOf((*_parts(AllOf, self), *_parts(AllOf, other))) if isinstance(other, Matcher) else NotImplemented

    def __or__(self, other: object) -> Matcher:
        return AnyOf((*_parts(AnyOf, self), *_parts(AnyOf, other))) if isinstance(other, Matcher) else NotImplemented

    def __invert__(self) -> Matcher:
        return self.inner if isinstance(self, Not) else Not(self)


@dataclass(frozen=True)
class AllOf(Matcher):
    """Calls that match every part.

    Attributes:
        parts: The parts.
    """

    parts: tuple[Matcher, ...]

    def __repr__(self) -> str:
        return " & ".join(f"({part!r})" if isinstance(part, AnyOf) else repr(part) for part in self.parts)

    @property
    def specificity(self) -> Specificity:
        """See `Matcher`."""
        each = [part.specificity for part in self.parts]
        rank, fixed, _ = max(each)
        return rank, fixed, sum(weight for _, _, weight in each)

    def explain(self, call: SeenCall) -> str | None:
        """See `Matcher`."""
        reasons: list[str] = []
        for part in self.parts:
            try:
                reason = part.explain(call)
            except Exception:
                if not reasons:
                    raise  # as `matches` would; later parts are asked here alone, of calls that they may not be for
            else:
                reasons += [reason] if reason is not None else []
        return "; ".join(reasons) if reasons else None

    def matches(self, call: SeenCall) -> bool:
        """See `Matcher`."""
        return all(part.matches(call) for part in self.parts)

    def may_match(self, path: str) -> bool:
        """See `Matcher`."""
        return all(part.may_match(path) for part in self.parts)

    @property
    def tool_only(self) -> bool:
        """See `Matcher`."""
        return all(part.tool_only for part in self.parts)

    def paths(self) -> frozenset[str] | None:
        """See `Matcher`."""
        known = [paths for part in self.parts if (paths := part.paths()) is not None]
        return frozenset.intersection(*known) if known else None


@dataclass(frozen=True)
class AnyOf(Matcher):
    """Calls that match at least one part.

    Attributes:
        parts: The parts.
    """

    parts: tuple[Matcher, ...]

    def __repr__(self) -> str:
        return " | ".join(repr(part) for part in self.parts)

    @property
    def specificity(self) -> Specificity:
        """See `Matcher`."""
        return min(part.specificity for part in self.parts)

    def explain(self, call: SeenCall) -> str | None:
        """See `Matcher`."""
        reasons: list[str] = []
        for part in self.parts:
            reason = part.explain(call)
            if reason is None:
                return None
            reasons.append(reason)
        return "; and ".join(reasons)

    def matches(self, call: SeenCall) -> bool:
        """See `Matcher`."""
        return any(part.matches(call) for part in self.parts)

    def may_match(self, path: str) -> bool:
        """See `Matcher`."""
        return any(part.may_match(path) for part in self.parts)

    @property
    def tool_only(self) -> bool:
        """See `Matcher`."""
        return all(part.tool_only for part in self.parts)

    def paths(self) -> frozenset[str] | None:
        """See `Matcher`."""
        known = [part.paths() for part in self.parts]
        return None if None in known else frozenset().union(*filter(None, known))


@dataclass(frozen=True)
class Not(Matcher):
    """Calls that do not match.

    Attributes:
        inner: What they must not match.
    """

    inner: Matcher

    def __repr__(self) -> str:
        return f"~({self.inner!r})" if isinstance(self.inner, AllOf | AnyOf) else f"~{self.inner!r}"

    @property
    def specificity(self) -> Specificity:
        """See `Matcher`."""
        return ANY, 0, 1

    def explain(self, call: SeenCall) -> str | None:
        """See `Matcher`."""
        return f"it does match {self.inner!r}" if self.inner.matches(call) else None

    def may_match(self, path: str) -> bool:
        """See `Matcher`."""
        return not (self.inner.tool_only and self.inner.may_match(path))

    @property
    def tool_only(self) -> bool:
        """See `Matcher`."""
        return self.inner.tool_only


def _parts(kind: type[AllOf] | type[AnyOf], matcher: Matcher) -> tuple[Matcher, ...]:
    return matcher.parts if isinstance(matcher, kind) else (matcher,)
