"""Hooks in runs of Pydantic AI: `agent.run(prompt, capabilities=[Hookline([hooks])])`.

Needs the extra `pydantic-ai`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from hookline.calls import AgentCall, CompactCall, ModelCall, SubAgentCall, ToolCall
from hookline.dispatcher import HookDispatcher
from hookline.errors import MissingExtraError
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import KINDS, Capabilities, OperationStore

try:
    from pydantic_ai import Agent, Tool
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.capabilities.abstract import WrapModelRequestHandler, WrapRunHandler, WrapToolExecuteHandler
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.models import Model, ModelRequestContext
    from pydantic_ai.tools import RunContext, ToolDefinition
except ImportError as error:
    raise MissingExtraError("pydantic-ai", "hookline.adapters.pydantic_ai") from error

from hookline.adapters.pydantic_ai._calls import CALLEE, holding
from hookline.adapters.pydantic_ai._people import RunRejected, deferred_results
from hookline.adapters.pydantic_ai._run import Led

__all__ = ["DRIVES", "Hookline", "RunRejected", "agent_tool", "deferred_results"]

DRIVES = Capabilities(
    framework="Pydantic AI",
    calls=dict.fromkeys((AgentCall, ModelCall, ToolCall, SubAgentCall, CompactCall), KINDS),
    asks=True,
)
"""What Pydantic AI can drive."""

_OPTIONS = (
    "operation_id",
    "user_id",
    "tenant_id",
    "dispatcher",
    "store",
    "drain_timeout",
    "best_effort",
    "allow_missing_hooks",
)


@dataclass(slots=True)
class _Present:
    """The run that is under way, and the capability that leads it."""

    leader: Hookline
    led: Led
    capabilities: object


_present: ContextVar[_Present | None] = ContextVar("hookline_pydantic_ai_run", default=None)


@dataclass
class Hookline(AbstractCapability[Any]):
    """Hooks for a run of an agent; for every run of it if the agent itself is given them.

    Hooks of the agent and of the run belong to the same operation; what the run says of the operation counts.

    Attributes:
        hooks: The hooks.
        operation_id: Id of the operation; a fresh one unless given. One that waits for a person goes on.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        dispatcher: An open dispatcher to share; one of its own unless given.
        store: Where it is kept while it waits for a person.
        drain_timeout: Seconds that queued observers may take at the end.
        best_effort: Whether hooks that the framework cannot drive are only told of in the log.
        allow_missing_hooks: Whether an operation that waits for a person may go on without interceptors that it was
            given before, with a warning in the log.
    """

    hooks: Iterable[AnyHook] = ()
    operation_id: str | None = field(default=None, kw_only=True)
    user_id: str = field(default="", kw_only=True)
    tenant_id: str = field(default="", kw_only=True)
    dispatcher: HookDispatcher | None = field(default=None, kw_only=True)
    store: OperationStore | None = field(default=None, kw_only=True)
    drain_timeout: float = field(default=5.0, kw_only=True)
    best_effort: bool = field(default=False, kw_only=True)
    allow_missing_hooks: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.hooks = hook_batch(self.hooks)

    def get_ordering(self) -> CapabilityOrdering:
        """Outermost: a call that another capability answers or refuses is still told."""
        return CapabilityOrdering(position="outermost")

    # It is the same object in every run, since the framework would set up its agent anew for another one; what belongs
    # to a run is in a context variable, which the framework passes on from here to all that the run does.
    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> Any:
        """Lead a run; where several are given to it, the first one leads with the hooks of all."""
        present = _present.get()
        if present is not None and present.capabilities is ctx.capabilities:
            return await handler()
        hooks: list[AnyHook] = []
        options: dict[str, Any] = {}
        for each in {id(each): each for each in ctx.capabilities.values() if isinstance(each, Hookline)}.values():
            hooks.extend(each.hooks)
            options.update(each._given())
        led = Led(hooks, DRIVES, options)
        token = _present.set(_Present(self, led, ctx.capabilities))
        try:
            return await led.run(ctx, handler)
        finally:
            _present.reset(token)

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        """A node of the framework's graph is about to run."""
        led = self._led()
        return node if led is None else await led.node(ctx, node)

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        """Lead a model request."""
        led = self._led()
        if led is None:
            return await handler(request_context)
        return await led.model_request(ctx, request_context, handler)

    def get_wrapper_model(self, model: Model) -> Model | None:
        """Hold back the stream of a model that answers instead of another one, where hooks are to judge it."""
        return holding(model)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Lead a tool call."""
        led = self._led()
        return await (handler(args) if led is None else led.tool_call(ctx, call, tool_def, args, handler))

    async def on_tool_validate_error(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, error: Exception
    ) -> dict[str, Any]:
        """Tell of a call with wrong arguments."""
        led = self._led()
        if led is None:
            raise error
        return await led.wrong_arguments(ctx, call, tool_def, error)

    def _led(self) -> Led | None:
        """The run that is under way, if it is this capability that leads it."""
        present = _present.get()
        return present.led if present is not None and present.leader is self else None

    def _given(self) -> dict[str, Any]:
        """What was said of the operation."""
        mine = vars(self)
        return {name: mine[name] for name, usual in _USUAL if mine[name] is not usual and mine[name] != usual}


_USUAL = [(name, getattr(Hookline, name)) for name in _OPTIONS]


def agent_tool(agent: Agent[Any, Any], *, name: str | None = None, description: str | None = None) -> Tool[Any]:
    """A tool that calls an agent: its run is an operation of its own, called by that of the run with the tool.

    Args:
        agent: The agent. It gets the dependencies of the run with the tool, and counts into its usage.
        name: The tool's name; the agent's unless given.
        description: What it is good for, for the model.
    """
    callee = name or agent.name or "agent"

    async def call_agent(ctx: RunContext[Any], instruction: str) -> Any:
        result = await agent.run(instruction, deps=ctx.deps, usage=ctx.usage, capabilities=[Hookline()])
        return result.output

    return Tool(
        call_agent, name=callee, description=description or f"Ask the agent {callee}.", metadata={CALLEE: callee}
    )
