"""Check that the tools named by checks, expectations and mocks exist: a misspelt check would always pass."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

from hookline._checks import has_wildcard
from hookline.evals.matching import match
from hookline.runtime import Agent

__all__ = ["EXPECTED", "FAULTS", "LIMITS", "MOCKS", "AgentTools", "tool_patterns_of"]

EXPECTED, MOCKS, FAULTS, LIMITS = "the expected calls", "the mocks", "the faults", "the limits"
"""The parts of a task that name tools, besides its checks."""

LISTED = 5
"""How many tools a message lists."""


def tool_patterns_of(thing: object) -> list[str]:
    """Return the tool patterns of a check, an expectation or mocks, from the attribute `tool_patterns`."""
    found = getattr(thing, "tool_patterns", ())
    if isinstance(found, str) or not isinstance(found, Iterable):
        return []
    return [each for each in found if isinstance(each, str)]


class AgentTools:
    """The paths of the tools that an agent has.

    Args:
        agent: The agent.
        opened: Paths of the tools that its sources have given; `None` while they are not open.
    """

    def __init__(self, agent: Agent, opened: Sequence[str] | None = None) -> None:
        self.own = [*_paths(agent), *(opened or ())]
        self.deeper = [path for each in agent.sub_agents for path in AgentTools(each).all]
        self.closed = [] if opened is not None else [source.toolset for source in agent.sources]
        self.closed_deeper = list(_deeper_sources(agent))
        self._known: dict[tuple[str, bool], str | None] = {}

    @property
    def all(self) -> list[str]:
        """The paths of the agent's tools and of those of its sub-agents."""
        return [*self.own, *self.deeper]

    def problem_with(self, pattern: str, *, sub_agents: bool = False) -> str | None:
        """Explain that no tool matches a pattern, and suggest which one is meant.

        Args:
            pattern: A path, a bare name or a glob.
            sub_agents: Whether tools of sub-agents count, as they do for mocks.

        Returns:
            A sentence without its full stop; `None` if there is such a tool, or one may come from a source.
        """
        key = (pattern, sub_agents)
        if key not in self._known:  # thousands of cases name the same few tools
            self._known[key] = self._problem_with(pattern, sub_agents=sub_agents)
        return self._known[key]

    def _problem_with(self, pattern: str, *, sub_agents: bool) -> str | None:
        known = self.all if sub_agents else self.own
        closed = [*self.closed, *self.closed_deeper] if sub_agents else self.closed
        if not pattern.strip("*/") or _matches(pattern, known) or _may_come_from(pattern, closed):
            return None
        if not sub_agents and _matches(pattern, self.deeper):
            return f"no tool {pattern!r}: a sub-agent has it, whose calls are not those of the task"
        return f"no tool {pattern!r}{_hint(pattern, known)}"


def _paths(agent: Agent) -> list[str]:
    return [f"{spec.toolset}/{spec.name}" for spec in agent.specs]


def _deeper_sources(agent: Agent) -> Iterator[str]:
    for each in agent.sub_agents:
        yield from (source.toolset for source in each.sources)
        yield from _deeper_sources(each)


def _matches(pattern: str, paths: Sequence[str]) -> bool:
    matcher = match.tool(pattern)
    return any(matcher.may_match(path) for path in paths)


def _may_come_from(pattern: str, sources: Sequence[str]) -> bool:
    """Whether a source that is not open may have a tool that matches a pattern."""
    toolset, slash, _ = pattern.rpartition("/")
    if not sources or not slash:
        return bool(sources)
    return has_wildcard(toolset) or toolset in sources


def _hint(pattern: str, known: Sequence[str]) -> str:
    if not known:
        return "; the agent has no tools"
    toolset, slash, name = pattern.rpartition("/")
    bare = not slash or has_wildcard(toolset)
    names = list(dict.fromkeys(path.rpartition("/")[2] if bare else path for path in known))
    near = difflib.get_close_matches(name if bare else pattern, names, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"; the tools are {', '.join(names[:LISTED])}{more}"
