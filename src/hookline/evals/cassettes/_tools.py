"""The tools of a cassette: the schema that each had when it was recorded, and how it has changed since."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hookline.calls import Call, ModelCall, ToolSpec
from hookline.evals._canonical import canonical
from hookline.hooks import Hooks
from hookline.instrumentation import Instrumentation, SegmentInfo

__all__ = ["PresentTools", "RecordedTool", "ToolWatchingHooks", "schema_changes"]

ANNOTATIONS = frozenset(("$comment", "$schema", "description", "examples", "title"))
"""Keywords of a schema that say nothing about which arguments are valid, so that a reworded text changes nothing."""

SUBSCHEMAS = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
"""Keywords whose value has schemas by names that the schema's author chose."""

DATA = frozenset(("const", "default", "enum", "required"))
"""Keywords whose value is data, not a schema."""

OPTIONAL = " (optional)"
"""Behind the type of a parameter that may be left out."""

TYPE_CHARACTERS = 60
"""How much of a parameter's type is kept."""


class RecordedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as it was when its answers were recorded.

    Attributes:
        tool: The tool, as `toolset/tool_name`.
        agent: The sub-agent that called it; empty for the main agent.
        parameters: The type of each parameter, with `(optional)` behind it where it may be left out.
        schema: A digest of its JSON Schema, without titles, descriptions and examples.
        version: The version that the tool declares; empty if it declares none.
        recorded: The date, in UTC, of its latest recordings that differ from those before; empty if it is not known.
    """

    tool: str
    agent: str = ""
    parameters: dict[str, str] = {}
    schema: str
    version: str = ""
    recorded: str = ""

    @classmethod
    def of(cls, spec: ToolSpec, agent: str = "") -> RecordedTool:
        """Describe a tool as it is now.

        Args:
            spec: The tool. A `Tool` may declare a version.
            agent: The sub-agent that has it; empty for the main agent.
        """
        schema = _without_annotations(spec.schema)
        required = _listed(spec.schema.get("required"))
        properties = spec.schema.get("properties")
        return cls(
            tool=f"{spec.toolset}/{spec.name}",
            agent=agent,
            parameters={
                name: f"{_type_of(each, spec.schema)}{'' if name in required else OPTIONAL}"
                for name, each in sorted(properties.items() if isinstance(properties, Mapping) else ())
            },
            schema=f"blake2b:{hashlib.blake2b(canonical(schema).encode(), digest_size=8).hexdigest()}",
            version=str(getattr(spec, "version", "") or ""),
        )

    @property
    def key(self) -> tuple[str, str]:
        """The sub-agent and the tool."""
        return self.agent, self.tool

    def is_same(self, other: RecordedTool) -> bool:
        """Whether another description is of the same schema and version, whatever its date."""
        return (self.schema, self.version) == (other.schema, other.version)


def schema_changes(recorded: RecordedTool, present: RecordedTool) -> list[str]:
    """Describe how a tool's schema has changed, one clause per parameter; an empty list if it has not.

    Args:
        recorded: The tool when it was recorded.
        present: The tool as it is now.
    """
    if recorded.schema == present.schema:
        return []
    before, now = recorded.parameters, present.parameters
    changes = [f"`{name}` is gone" for name in before if name not in now]
    for name, kind in now.items():
        if name not in before:
            changes.append(f"`{name}` is new{'' if kind.endswith(OPTIONAL) else ' and required'}")
        elif kind != before[name]:
            changes.append(f"`{name}` was {before[name]} and is {kind}")
    return changes or ["details of its parameters differ"]


class PresentTools:
    """The tools that agents are offered in a run, described when they are first asked for."""

    def __init__(self) -> None:
        self._offered: dict[str, Sequence[ToolSpec]] = {}
        self._described: dict[tuple[str, str], tuple[ToolSpec, RecordedTool | None]] = {}

    def note(self, tools: Sequence[ToolSpec], agent: str) -> None:
        """Note the tools that an agent is offered from now on.

        Args:
            tools: The tools.
            agent: The sub-agent; empty for the main agent.
        """
        self._offered[agent] = tools

    def find(self, agent: str, tool: str) -> RecordedTool | None:
        """Return a tool as it is now; `None` if it is not known.

        Args:
            agent: The sub-agent; empty for the main agent.
            tool: The tool, as `toolset/tool_name`.
        """
        for spec in self._offered.get(agent, ()):
            if f"{spec.toolset}/{spec.name}" == tool:
                known = self._described.get((agent, tool))
                if known is None or known[0] is not spec:  # a schema takes some 20 µs, so each is described once
                    known = self._described[agent, tool] = spec, _describe_or_none(spec, agent)
                return known[1]
        return None


def _describe_or_none(spec: ToolSpec, agent: str) -> RecordedTool | None:
    """Describe a tool; `None` if its schema is no JSON, since a replay that fails here would run the real tool."""
    try:
        return RecordedTool.of(spec, agent)
    except Exception:
        return None


WatchTools = Callable[[Sequence[ToolSpec], str], None]
"""A function that is called with the tools of an agent, and its id if it is a sub-agent."""


class ToolWatchingHooks(Instrumentation):
    """A bundle that learns which tools each agent of a run is offered, including those that sources list in the run.

    Args:
        id: The name of the bundle.
        watcher: Called with the tools of each agent; `None` if nobody asks.
        **options: As for `Hooks`.
    """

    recorded = True
    encloses = frozenset({ModelCall})

    def __init__(self, id: str = "hooks", *, watcher: WatchTools | None = None, **options: Any) -> None:  # noqa: A002
        super().__init__(id, **options)
        self._watcher = watcher
        self._agents: dict[str, str] = {}
        """The sub-agent of each operation that is running."""

    def begin(self, segment: SegmentInfo) -> tuple[str, Hooks | None]:
        """Note the tools of a segment that are known at its start."""
        if self._watcher is not None:
            agent = self._agents[segment.operation_id] = segment.agent_id if segment.parent_operation_id else ""
            if segment.tools:
                self._watcher(segment.tools, agent)
        return segment.operation_id, self

    def end(self, begun: str) -> None:
        """Forget a segment."""
        self._agents.pop(begun, None)

    def enter(self, call: Call) -> None:
        """Note the tools that the model is offered, with those of sources."""
        if self._watcher is not None and isinstance(call, ModelCall):
            self._watcher(call.tools, self._agents.get(call.operation_id, ""))


def _without_annotations(schema: Any) -> Any:
    """Copy a schema without what does not change which arguments are valid."""
    if isinstance(schema, list | tuple):
        return [_without_annotations(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _essence(key, value) for key, value in schema.items() if key not in ANNOTATIONS}


def _essence(key: str, value: Any) -> Any:
    if key == "required" and isinstance(value, list | tuple):
        return sorted(map(str, value))
    if key in DATA:
        return value
    if key in SUBSCHEMAS and isinstance(value, Mapping):
        return {name: _without_annotations(each) for name, each in value.items()}
    return _without_annotations(value)


def _type_of(schema: Any, root: Mapping[str, Any]) -> str:
    """Name the type of a parameter: `string`, `array of integer`, `number or null`."""
    names = list(dict.fromkeys(_types(schema, root, 0)))
    text = " or ".join(names) or "any"
    return text if len(text) <= TYPE_CHARACTERS else f"{text[: TYPE_CHARACTERS - 1]}…"


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth > 5:  # a schema may refer to itself
        return
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield from _types(_follow(reference, root), root, depth + 1)
    for choice in (*_listed(schema.get("anyOf")), *_listed(schema.get("oneOf")), *_listed(schema.get("allOf"))):
        yield from _types(choice, root, depth + 1)
    kinds = schema.get("type")
    for kind in [kinds] if isinstance(kinds, str) else _listed(kinds):
        if kind == "array":
            inner = " or ".join(dict.fromkeys(_types(schema.get("items"), root, depth + 1)))
            yield f"array of {inner}" if inner else "array"
        else:
            yield str(kind)
    if kinds is None and ("enum" in schema or "const" in schema):
        yield "one of some values"


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _follow(reference: str, root: Mapping[str, Any]) -> Any:
    """Return what a reference such as `#/$defs/Item` names; `None` if it leads out of the schema."""
    found: Any = root if reference.startswith("#") else None
    for part in filter(None, reference.lstrip("#").split("/")):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
