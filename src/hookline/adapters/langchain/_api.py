"""Hooks in runs of LangChain agents: build the agent with `HooklineMiddleware`, and wrap it with `hooked`.

The middleware finds the present run in a context variable, so that one agent may have concurrent runs with different
hooks; in a run without hooks it does nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

from hookline.errors import HookUsageError, MissingExtraError

try:
    from typing import NotRequired

    from langchain.agents.middleware import AgentMiddleware, AgentState, SummarizationMiddleware
    from langchain.agents.middleware.types import ModelRequest, ModelResponse, PrivateStateAttr
    from langchain_core.runnables import Runnable, RunnableLambda
    from langgraph.prebuilt import ToolNode

    from hookline.adapters.langchain._agent import HookedAgent, HookedToolNode, answers, hooked
    from hookline.adapters.langchain._conversion import apply_edit, messages_in
    from hookline.adapters.langchain._run_binding import DRIVES, InThread, LangChainBinding, current_binding
except ImportError as error:
    raise MissingExtraError("langchain", "The adapter of LangChain") from error

__all__ = ["DRIVES", "HookedAgent", "HooklineMiddleware", "HooklineSummarization", "answers", "hooked"]


class _State(AgentState[Any]):
    # Always empty; the key tells `hooked` that an agent has the middleware.
    hookline_middleware: NotRequired[Annotated[None, PrivateStateAttr]]


class _StateWithoutTools(_State):
    # Always empty; `hooked` refuses an agent that has this key and tools.
    hookline_without_tools: NotRequired[Annotated[None, PrivateStateAttr]]


class HooklineMiddleware(AgentMiddleware[Any, Any, Any]):
    """Middleware that lets `hooked` run an agent with hooks; pass it to `create_agent`, before other middleware.

    In a graph of your own, use its `model` and its `tool_node`.

    Args:
        sub_agents: The tools that call an agent, and the ids of the agents that they call.
        toolsets: The toolset of each tool that is not a local function: for a tool of an MCP server, its name.
        tools: Whether to wrap tool calls. LangChain adds a tool node to an agent whose middleware does so, even if the
            agent has no tools; with `False` the graph of an agent without tools stays as it is.
    """

    state_schema = _State

    def __new__(cls, *, tools: bool = True, **options: Any) -> HooklineMiddleware:
        """Create the class that wraps the right calls, because LangChain inspects the class."""
        return super().__new__(cls if tools or cls is not HooklineMiddleware else _MiddlewareWithoutTools)

    def __init__(
        self,
        *,
        sub_agents: Mapping[str, str] | None = None,
        toolsets: Mapping[str, str] | None = None,
        tools: bool = True,
    ) -> None:
        super().__init__()
        self._sub_agents, self._toolsets = dict(sub_agents or {}), dict(toolsets or {})
        self.awrap_model_call = _with_signature(self.awrap_model_call)  # type: ignore[method-assign]
        if type(self).awrap_tool_call is not AgentMiddleware.awrap_tool_call:
            self.awrap_tool_call = _with_signature(self.awrap_tool_call)  # type: ignore[method-assign]

    def named(self, tool: str) -> tuple[str, str]:
        """Return the toolset and name of a tool.

        Args:
            tool: The name by which the model calls the tool.
        """
        if tool in self._sub_agents:
            return "agent", self._sub_agents[tool]
        return self._toolsets.get(tool, "local"), tool

    # These return a coroutine but are not `async def`: LangSmith runs every call of an async wrapper through threads.

    def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Make a model call through the hooks of the run."""
        binding = self._find_binding()
        return handler(request) if binding is None else binding.ask_model(request, handler)

    def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Call a tool through the hooks of the run."""
        binding = self._find_binding()
        if binding is None:
            return handler(request)
        request = apply_edit(request)
        toolset, name = self.named(request.tool_call["name"])
        if toolset == "agent":
            return binding.call_agent(request, handler, name)
        return binding.call_tool(request, handler, toolset, name)

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Make a model call of a sync run through the hooks of the run."""
        binding = self._find_binding()
        return (
            handler(request)
            if binding is None
            else binding.run_in_loop(self.awrap_model_call(request, InThread(handler)))
        )

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Call a tool of a sync run through the hooks of the run."""
        binding = self._find_binding()
        return (
            handler(request)
            if binding is None
            else binding.run_in_loop(self.awrap_tool_call(request, InThread(handler)))
        )

    # For graphs that were not made with `create_agent`.

    def model(self, model: Any, tools: Sequence[Any] = ()) -> Runnable[Any, Any]:
        """Wrap a chat model for a graph of your own, so that its calls pass through the hooks of the run.

        Args:
            model: The chat model.
            tools: The tools that the model may call.
        """
        bound = model.bind_tools(tools) if tools else model

        def given(messages: Any) -> ModelRequest[Any]:
            asked: list[Any] = [*messages_in({"messages": messages})]
            return ModelRequest(model=model, messages=asked, tools=list(tools))

        def put(request: ModelRequest[Any]) -> list[Any]:
            return [*([request.system_message] if request.system_message else []), *request.messages]

        def ask(messages: Any) -> Any:
            def then(request: ModelRequest[Any]) -> Any:
                return ModelResponse(result=[bound.invoke(put(request))])

            return self.wrap_model_call(given(messages), then).result[0]

        async def aask(messages: Any) -> Any:
            async def then(request: ModelRequest[Any]) -> Any:
                return ModelResponse(result=[await bound.ainvoke(put(request))])

            return (await self.awrap_model_call(given(messages), then)).result[0]

        return RunnableLambda(ask, aask)

    def tool_node(self, tools: Sequence[Any], **options: Any) -> ToolNode:
        """Create the tool node for a graph of your own.

        Args:
            tools: The tools.
            options: Other options of `ToolNode`.

        Raises:
            HookUsageError: If the middleware was made with `tools=False`.
        """
        if isinstance(self, _MiddlewareWithoutTools):
            raise HookUsageError(
                "A HooklineMiddleware(tools=False) does not wrap tool calls, so its node could not call hooks. "
                "Create the node with HooklineMiddleware()."
            )
        return HookedToolNode(
            tools, wrap_tool_call=self.wrap_tool_call, awrap_tool_call=self.awrap_tool_call, **options
        )

    def _find_binding(self) -> LangChainBinding | None:
        binding = current_binding.get()
        return binding if binding is not None and binding.claim(self) else None


class _MiddlewareWithoutTools(HooklineMiddleware):
    state_schema = _StateWithoutTools
    wrap_tool_call = AgentMiddleware.wrap_tool_call
    awrap_tool_call = AgentMiddleware.awrap_tool_call

    @property
    def name(self) -> str:
        return HooklineMiddleware.__name__


def _with_signature(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a stored signature: LangSmith reads it on every call, which takes longer than hooks do."""

    def call(request: Any, handler: Any) -> Any:
        return method(request, handler)

    call.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return call


class _CompactionDenied(Exception):
    """A hook denied a compaction, so the conversation stays as it is."""


class HooklineSummarization(SummarizationMiddleware):
    """LangChain's `SummarizationMiddleware`, with the hooks of the run around each summary."""

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Compact the conversation if it is long enough and no hook denies it."""
        try:
            return super().before_model(state, runtime)
        except _CompactionDenied:
            return None

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Compact the conversation if it is long enough and no hook denies it."""
        try:
            return await super().abefore_model(state, runtime)
        except _CompactionDenied:
            return None

    def _create_summary(self, messages_to_summarize: list[Any]) -> str:
        binding = current_binding.get()
        if binding is None:
            return super()._create_summary(messages_to_summarize)
        return binding.run_in_loop(
            self._summarize_through_hooks(binding, messages_to_summarize, InThread(super()._create_summary))
        )

    async def _acreate_summary(self, messages_to_summarize: list[Any]) -> str:
        binding = current_binding.get()
        if binding is None:
            return await super()._acreate_summary(messages_to_summarize)
        return await self._summarize_through_hooks(binding, messages_to_summarize, super()._acreate_summary)

    async def _summarize_through_hooks(
        self, binding: LangChainBinding, messages: Sequence[Any], summarize: Callable[..., Awaitable[str]]
    ) -> str:
        summary = await binding.compact(list(messages), self.token_counter(messages), summarize)
        if summary is None:
            raise _CompactionDenied
        return summary
