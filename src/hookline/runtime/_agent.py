"""`Agent`: the definition of an agent, and the tools that hooks let it offer to its model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from hookline._checks import quote
from hookline._readonly import ReadOnlyList
from hookline.calls import Message, ToolCall, ToolRequest, ToolSpec
from hookline.errors import AgentDefinitionError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime._model_retry import ModelRetry
from hookline.runtime._models import Model, model_by_name
from hookline.runtime._state import OfferedTool
from hookline.runtime._tools import Tool, ToolSource, is_source, tool

__all__ = [
    "AGENT_IDENTIFIER",
    "Agent",
    "Compaction",
    "find_offered",
    "remember_tools",
    "restore_tools",
    "storable_tools",
]

AGENT_IDENTIFIER = "agent"
"""The `toolset` under which sub-agents are called: a model calls `agent/<id>`."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """When and how to replace a long conversation by a summary.

    Attributes:
        max_tokens: Compact before a model call if the last reported input was longer than this.
        summarize: `async (messages) -> str`, which returns the summary.
        keep_last: Number of newest exchanges (an assistant message with its tool results) to keep.
    """

    max_tokens: int
    summarize: Callable[[list[Message]], Awaitable[str]]
    keep_last: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Agent:
    """A model with tools, instructions and limits. It is immutable, and any number of runs can share it.

    Attributes:
        id: The agent's name in events, and in `agent/<id>` as a sub-agent.
        model: A `Model`, or the name of one that an installed adapter knows, such as `"openai:gpt-5"` with the extra
            `models`.
        tools: `Tool`s, functions (which become tools), and sources of tools, which each run opens.
        instructions: The system message; `""` for none.
        sub_agents: Agents that the model can call as tools `agent/<id>`.
        compaction: When and how to shorten the conversation; `None` for never.
        max_steps: Number of steps after which a run ends with reason `"max_steps"`.
        max_continues: How often hooks can continue a finished run with more input.
        max_guides: How often hooks can have the model asked again in one step.
        cost_limit_usd: Cost in US dollars at which a run ends with reason `"cost_limit"`; `None` for no limit.
        hooks: Hooks of every run of this agent.
        retry: Retries of model calls after a `TransientModelError`.
        sources: The sources among the tools.
        specs: The tools and sub-agents as the model sees them, without those of sources.

    Raises:
        AgentDefinitionError: If an argument is invalid.
        HookDefinitionError: If a hook is invalid.
    """

    id: str
    model: Model | str
    tools: Sequence[Tool | ToolSource | Callable[..., Any]] = ()
    instructions: str = ""
    sub_agents: Sequence[Agent] = ()
    compaction: Compaction | None = None
    max_steps: int = 50
    max_continues: int = 3
    max_guides: int = 3
    cost_limit_usd: float | None = None
    hooks: Sequence[AnyHook] = ()
    retry: ModelRetry = field(default_factory=ModelRetry)
    sources: tuple[ToolSource, ...] = field(init=False, repr=False)
    specs: list[ToolSpec] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        where = f"Agent {self.id!r}"
        if not isinstance(self.id, str) or not self.id:
            raise AgentDefinitionError("Agent", f"`id` must be a non-empty string; got {self.id!r}")
        if isinstance(self.model, str):
            object.__setattr__(self, "model", model_by_name(self.model, where))
        if not callable(getattr(self.model, "respond", None)):
            raise AgentDefinitionError(
                where, f"`model` needs `name`, `provider` and `async respond(call)`; got {quote(self.model)}"
            )
        if not isinstance(self.instructions, str):
            raise AgentDefinitionError(
                where, f"`instructions` must be a string; got {type(self.instructions).__name__}"
            )
        _check_count(self.max_steps, 1, "`max_steps`", where)
        _check_count(self.max_continues, 0, "`max_continues`", where)
        _check_count(self.max_guides, 0, "`max_guides`", where)
        limit: object = self.cost_limit_usd
        if limit is not None and (not isinstance(limit, int | float) or isinstance(limit, bool) or not limit > 0):
            raise AgentDefinitionError(
                where, f"`cost_limit_usd` must be a positive number or None; got {quote(self.cost_limit_usd)}"
            )
        if not isinstance(self.retry, ModelRetry):
            raise AgentDefinitionError(where, f"`retry` must be a ModelRetry; got {quote(self.retry)}")
        _check_compaction(self.compaction, where)
        tools, sources = _split_tools(self.tools, where)
        _check_sub_agents(self.sub_agents, where)
        specs = [*tools, *(_as_spec(agent) for agent in self.sub_agents)]
        paths = [f"{spec.toolset}/{spec.name}" for spec in specs]
        for path in paths:
            if paths.count(path) > 1:
                raise AgentDefinitionError(where, f"two tools have the name {path!r}; rename one")
        object.__setattr__(self, "tools", (*tools, *sources))
        object.__setattr__(self, "sources", sources)
        object.__setattr__(self, "sub_agents", tuple(self.sub_agents))
        object.__setattr__(self, "hooks", tuple(hook_batch(self.hooks)))
        object.__setattr__(self, "specs", ReadOnlyList(specs))
        by_path: dict[str, Tool | Agent] = dict(zip(paths, [*tools, *self.sub_agents], strict=True))
        object.__setattr__(self, "_by_path", by_path)

    def equipped(self, tools: Sequence[Tool]) -> Agent:
        """Return this agent with the tools that its sources gave, in place of the sources.

        Raises:
            AgentDefinitionError: If two of its tools have the same name then.
        """
        own = [entry for entry in self.tools if isinstance(entry, Tool)]
        return replace(self, tools=[*own, *tools])

    def find(self, calling: ToolRequest | ToolCall) -> Tool | Agent | None:
        """Return the tool or sub-agent that a model asked for.

        A model often knows names only: a call with the default toolset finds the one tool of that name.
        """
        by_path: dict[str, Tool | Agent] = self.__dict__["_by_path"]
        found = by_path.get(f"{calling.toolset}/{calling.tool_name}")
        if found is None and calling.toolset == "local":
            found = by_path.get(calling.tool_name)  # "agent/<id>" as one name
            if found is None:
                named = [entry for entry in self.tools if isinstance(entry, Tool) and entry.name == calling.tool_name]
                found = named[0] if len(named) == 1 else None
        return found


def _check_compaction(compaction: object, where: str) -> None:
    if compaction is None:
        return
    if not isinstance(compaction, Compaction) or not callable(compaction.summarize):
        raise AgentDefinitionError(where, "`compaction` is a Compaction with a callable `summarize`, or None")
    _check_count(compaction.max_tokens, 1, "`max_tokens` of its Compaction", where)
    _check_count(compaction.keep_last, 0, "`keep_last` of its Compaction", where)


def _check_count(value: object, least: int, name: str, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AgentDefinitionError(where, f"{name} is a whole number from {least}; got {quote(value)}")


def _split_tools(tools: object, where: str) -> tuple[tuple[Tool, ...], tuple[ToolSource, ...]]:
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise AgentDefinitionError(where, f"`tools` is a list of tools and functions; got {quote(tools)}")
    sources = tuple(entry for entry in tools if not isinstance(entry, Tool) and is_source(entry))
    own = [entry for entry in tools if entry not in sources]
    for entry in own:
        if not callable(entry):
            raise AgentDefinitionError(
                where, f"`tools` must be tools, functions and sources of tools; got {quote(entry)}"
            )
    return tuple(entry if isinstance(entry, Tool) else tool(entry) for entry in own), sources


def _check_sub_agents(agents: object, where: str) -> None:
    if not isinstance(agents, Sequence) or not all(isinstance(agent, Agent) for agent in agents):
        raise AgentDefinitionError(where, f"`sub_agents` is a list of Agents; got {quote(agents)}")


def _as_spec(agent: Agent) -> ToolSpec:
    return ToolSpec(
        toolset=AGENT_IDENTIFIER,
        name=agent.id,
        description=f"Ask the agent {agent.id!r} to do something, and get its answer.",
        schema={
            "type": "object",
            "properties": {"instruction": {"type": "string", "description": "What it should do."}},
            "required": ["instruction"],
            "additionalProperties": False,
        },
    )


def storable_tools(agent: Agent, offered: Sequence[ToolSpec]) -> list[OfferedTool]:
    """Return tools as a store keeps them: without their functions.

    Args:
        agent: The agent of the run.
        offered: The tools that hooks offer to its model.
    """
    return [
        OfferedTool(
            toolset=tool.toolset,
            name=tool.name,
            description=tool.description,
            schema=tool.schema,
            needs_approval=isinstance(tool, Tool) and tool.needs_approval is not False,
            own=not isinstance(tool, Tool) or _runs(agent.find(request_for(tool))) == tool.run,
        )
        for tool in offered
    ]


_here: OrderedDict[str, list[ToolSpec]] = OrderedDict()
"""The tools that hooks gave to operations which wait for a person, by the name that the state has for them, as long as
this process lives: functions do not travel with the state."""

REMEMBERED = 1000
"""Of how many operations that is kept."""


def remember_tools(offer: str, offered: list[ToolSpec], *, waiting: bool) -> None:
    """Remember the tools of an operation in this process while it waits for a person."""
    if not waiting:
        _here.pop(offer, None)
    else:
        _here[offer] = offered
        while len(_here) > REMEMBERED:
            _here.popitem(last=False)


def restore_tools(agent: Agent, offer: str, offered: Sequence[OfferedTool] | None) -> list[ToolSpec] | None:
    """Return the tools that hooks offered to the model of an operation that continues.

    In another process than the one that paused it, one whose function is not the agent's is only a name: the model is
    told that it is unknown, rather than that another function is run in its place. One that needed approval needs it
    again.
    """
    if offered is None:
        return None
    here = _here.get(offer)
    if here is not None:
        return here
    tools: list[ToolSpec] = []
    for spec in offered:
        found = agent.find(request_for(spec))
        if not spec.own or not isinstance(found, Tool):
            tools.append(spec)
            continue
        approval = found.needs_approval if found.needs_approval is not False else spec.needs_approval
        tools.append(
            msgspec.structs.replace(found, description=spec.description, schema=spec.schema, needs_approval=approval)
        )
    return tools


def find_offered(agent: Agent, offered: Sequence[ToolSpec], calling: ToolRequest | ToolCall) -> Tool | Agent | None:
    """Return the tool or sub-agent that a call names, if hooks offered it to the model."""
    for spec in offered:
        if spec.name == calling.tool_name and calling.toolset in (spec.toolset, "local"):
            if isinstance(spec, Tool):
                return spec
            return agent.find(request_for(spec)) if not isinstance(spec, OfferedTool) or spec.own else None
        if calling.tool_name == f"{AGENT_IDENTIFIER}/{spec.name}" and spec.toolset == AGENT_IDENTIFIER:
            return agent.find(calling)
    return None


def request_for(spec: ToolSpec) -> ToolRequest:
    """Return a request for a tool, to look the tool up by."""
    return ToolRequest(toolset=spec.toolset, tool_name=spec.name, tool_call_id="")


def _runs(found: object) -> object:
    return found.run if isinstance(found, Tool) else None
