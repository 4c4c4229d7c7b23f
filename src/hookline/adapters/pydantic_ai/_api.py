"""Hooks in runs of Pydantic AI: `agent.run(prompt, capabilities=[Hookline([hooks])])`.

Needs the extra `pydantic-ai`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from hookline.adapters._attaching import needs_operation, operations_are_watched
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

from hookline.adapters.pydantic_ai._approvals import answers, may_resume
from hookline.adapters.pydantic_ai._calls import CALLEE_KEY, current_caller
from hookline.adapters.pydantic_ai._models import hold_model
from hookline.adapters.pydantic_ai._run import PydanticAIBinding

__all__ = ["DRIVES", "Hookline", "agent_tool", "answers"]

DRIVES = Capabilities(
    framework="Pydantic AI",
    calls=dict.fromkeys((AgentCall, ModelCall, ToolCall, SubAgentCall, CompactCall), KINDS),
    asks=True,
    adds_context=frozenset({ToolCall, AgentCall}),
    guides=True,
)
"""The hooks that Pydantic AI supports."""

_OPTIONS = (
    "operation_id",
    "user_id",
    "tenant_id",
    "tags",
    "dispatcher",
    "store",
    "drain_timeout",
    "best_effort",
    "allow_missing_hooks",
)


class _PresentRun(msgspec.Struct, eq=False):
    """The run in progress, and the capability that runs its hooks."""

    owner: Hookline
    binding: PydanticAIBinding
    capabilities: object


_current_run: ContextVar[_PresentRun | None] = ContextVar("hookline_pydantic_ai_run", default=None)


@dataclass
class Hookline(AbstractCapability[Any]):
    """A capability that runs hooks in one run of an agent, or in every run of an agent created with it.

    Hooks of the agent and of the run belong to the same operation; options of the run take precedence.

    Attributes:
        hooks: The hooks.
        operation_id: Id of the operation; a new one unless given. An operation that waits for a person is resumed.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        tags: The tags of the operation, in addition to those of the run that calls it; see `exec_agent`.
        dispatcher: An open dispatcher to share; a new one unless given.
        store: Where an operation is kept while it waits for a person.
        drain_timeout: Seconds that queued observers may take at the end.
        best_effort: Whether hooks that the framework does not support are only logged, instead of refused.
        allow_missing_hooks: Whether a paused operation may be resumed without interceptors that it had before; a
            warning is logged.
    """

    hooks: Iterable[AnyHook] = ()
    operation_id: str | None = field(default=None, kw_only=True)
    user_id: str = field(default="", kw_only=True)
    tenant_id: str = field(default="", kw_only=True)
    tags: Collection[str] = field(default=(), kw_only=True)
    dispatcher: HookDispatcher | None = field(default=None, kw_only=True)
    store: OperationStore | None = field(default=None, kw_only=True)
    drain_timeout: float = field(default=5.0, kw_only=True)
    best_effort: bool = field(default=False, kw_only=True)
    allow_missing_hooks: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.hooks = hook_batch(self.hooks)
        _wrap_agent_iter()

    def _begin_run(self, binding: PydanticAIBinding) -> None:
        """Take part in a run that begins; for a capability that belongs to one run alone."""

    def get_ordering(self) -> CapabilityOrdering:
        """Return the outermost position, so that hooks also see calls that other capabilities answer or refuse."""
        return CapabilityOrdering(position="outermost")

    # The capability is the same object in every run; for another one the framework would rebuild its agent. What
    # belongs to one run is in a context variable, which the framework passes on to everything that the run does.
    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> Any:
        """Run the agent as an operation; of several capabilities the first one runs the hooks of all.

        A run without hooks is not an operation, unless others could notice it.
        """
        present = _current_run.get()
        if present is not None and present.capabilities is ctx.capabilities:
            return await handler()
        hooks: list[AnyHook] = []
        options: dict[str, Any] = {}
        found: dict[int, Hookline] = {}
        for each in ctx.capabilities.values():
            if isinstance(each, Hookline) and id(each) not in found:
                found[id(each)] = each
                hooks.extend(each.hooks)
                options.update(each._set_options())
        is_called = present is not None or current_caller.get() is not None
        if not (needs_operation(hooks, options) or is_called or may_resume(ctx.messages) or operations_are_watched()):
            return await handler()
        binding = PydanticAIBinding(hooks, DRIVES, options)
        for each in found.values():
            each._begin_run(binding)
        token = _current_run.set(_PresentRun(self, binding, ctx.capabilities))
        try:
            return await binding.run(ctx, handler)
        finally:
            _current_run.reset(token)

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        """Prepare a node of the framework's graph that is about to run."""
        present = _current_run.get()
        if present is None or present.owner is not self:
            return node
        entered = present.binding.enter_node(ctx, node)
        if present.binding.unknown_calls:
            await present.binding.report_unknown_calls()
        return entered

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        """Make a model request through the hooks."""
        present = _current_run.get()
        if present is None or present.owner is not self:
            return await handler(request_context)
        return await present.binding.model_request(ctx, request_context, handler)

    def get_wrapper_model(self, model: Model) -> Model | None:
        """Hold back the stream of a model that answers in place of another, if hooks may change the answer."""
        return hold_model(model)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Call a tool through the hooks."""
        present = _current_run.get()
        if present is None or present.owner is not self:
            return await handler(args)
        return await present.binding.tool_call(ctx, call, tool_def, args, handler)

    async def on_tool_validate_error(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, error: Exception
    ) -> dict[str, Any]:
        """Report a call with invalid arguments to the hooks."""
        present = _current_run.get()
        if present is None or present.owner is not self:
            raise error
        return await present.binding.invalid_arguments(ctx, call, tool_def, error)

    def _set_options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        given = _read_options(self)
        if given == _DEFAULTS:
            return {}
        return {name: value for name, value, usual in zip(_OPTIONS, given, _DEFAULTS, strict=True) if value != usual}


@functools.cache
def _wrap_agent_iter() -> None:
    """Wrap `Agent.iter`, which every run method uses, so that a run that a tool starts is a sub-agent's.

    It happens once per process. The framework has no capability of all agents, and a policy that sub-agents inherit
    would not judge an agent that a tool simply runs. Outside of the tools of hooked runs it only calls the method.
    """
    own_iter = Agent.iter

    @functools.wraps(own_iter)
    def iter_with_hooks(self: Agent[Any, Any], *given: Any, **options: Any) -> Any:
        caller, capabilities = current_caller.get(), options.get("capabilities") or ()
        if (
            caller is not None
            and not caller.scope.ended
            and not any(isinstance(each, Hookline) for each in capabilities)
        ):
            options["capabilities"] = [*capabilities, Hookline()]
        return own_iter(self, *given, **options)

    cast(Any, Agent).iter = iter_with_hooks


_read_options = operator.attrgetter(*_OPTIONS)
_DEFAULTS = _read_options(Hookline)


def agent_tool(agent: Agent[Any, Any], *, name: str | None = None, description: str | None = None) -> Tool[Any]:
    """Create a tool that calls an agent; the agent's run is an operation of its own under the caller's.

    Args:
        agent: The agent. It gets the dependencies of the calling run, and its usage counts towards that run's.
        name: The tool's name; the agent's name unless given.
        description: The tool's description for the model.
    """
    callee = name or agent.name or "agent"

    async def call_agent(ctx: RunContext[Any], instruction: str) -> Any:
        result = await agent.run(instruction, deps=ctx.deps, usage=ctx.usage, capabilities=[Hookline()])
        return result.output

    return Tool(
        call_agent, name=callee, description=description or f"Ask the agent {callee}.", metadata={CALLEE_KEY: callee}
    )
