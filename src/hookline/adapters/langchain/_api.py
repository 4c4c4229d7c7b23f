"""Hooks in runs of LangChain agents: a middleware that the agent is built with, and `hooked` for each run of it.

The middleware is static. It finds the run that it serves in a context variable, so that one agent serves many runs at
once, each with hooks of its own; in a run without hooks it does nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import anyio.to_thread

from hookline.errors import HookUsageError, MissingExtraError

try:
    from typing import NotRequired

    from langchain.agents.middleware import AgentMiddleware, AgentState, SummarizationMiddleware
    from langchain.agents.middleware.types import ModelRequest, ModelResponse, PrivateStateAttr
    from langchain_core.runnables import Runnable, RunnableLambda
    from langgraph.prebuilt import ToolNode

    from hookline.adapters.langchain._attached import DRIVES, Attached, present
    from hookline.adapters.langchain._hooked import HookedAgent, HookedToolNode, RunStopped, answers, hooked
    from hookline.adapters.langchain._messages import reviewed, shown
except ImportError as error:
    raise MissingExtraError("langchain", "The adapter of LangChain") from error

__all__ = ["DRIVES", "HookedAgent", "HooklineMiddleware", "HooklineSummarization", "RunStopped", "answers", "hooked"]


class _State(AgentState[Any]):
    # Nothing is ever kept here; it is how `hooked` knows that an agent has the middleware.
    hookline_middleware: NotRequired[Annotated[None, PrivateStateAttr]]


class _StateWithoutTools(_State):
    # Nothing is ever kept here either; `hooked` refuses an agent that has it and calls tools.
    hookline_without_tools: NotRequired[Annotated[None, PrivateStateAttr]]


class HooklineMiddleware(AgentMiddleware[Any, Any, Any]):
    """Lets runs of an agent have hooks. Give it to `create_agent` as the first middleware, so that none hides a call.

    In a graph of your own, ask its `model` and let its `tool_node` call the tools.

    Args:
        sub_agents: The tools that call an agent, and the ids of the agents that they call.
        identifiers: Where tools come from that are no Python functions of yours: for those of an MCP server its name.
        tools: Whether it wraps tool calls. LangChain gives an agent whose middleware does so a node for tools, even
            where it has none; `False` leaves the graph of an agent without tools as it is.
    """

    state_schema = _State

    def __new__(cls, *, tools: bool = True, **options: Any) -> HooklineMiddleware:
        """Make one of the class that wraps what it is to wrap: LangChain looks at classes."""
        return super().__new__(cls if tools or cls is not HooklineMiddleware else _WithoutTools)

    def __init__(
        self,
        *,
        sub_agents: Mapping[str, str] | None = None,
        toolsets: Mapping[str, str] | None = None,
        tools: bool = True,
    ) -> None:
        super().__init__()
        self._sub_agents, self._identifiers = dict(sub_agents or {}), dict(toolsets or {})
        self.awrap_model_call = _with_signature(self.awrap_model_call)  # type: ignore[method-assign]
        if type(self).awrap_tool_call is not AgentMiddleware.awrap_tool_call:
            self.awrap_tool_call = _with_signature(self.awrap_tool_call)  # type: ignore[method-assign]

    def named(self, tool: str) -> tuple[str, str]:
        """Where a tool comes from, and what it is called there.

        Args:
            tool: Its name.
        """
        if tool in self._sub_agents:
            return "agent", self._sub_agents[tool]
        return self._identifiers.get(tool, "local"), tool

    # These give a coroutine, but are not `async def`: LangSmith moves every call of such a wrapper to threads and back.

    def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """A model is asked."""
        attached = self._attached()
        return handler(request) if attached is None else attached.ask(request, handler)

    def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """A tool is called."""
        attached = self._attached()
        if attached is None:
            return handler(request)
        request = reviewed(request)
        toolset, name = self.named(request.tool_call["name"])
        if toolset == "agent":
            return attached.call_agent(request, handler, name)
        return attached.call(request, handler, toolset, name)

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """A model is asked, in a sync run."""
        attached = self._attached()
        return handler(request) if attached is None else attached.wait(self.awrap_model_call(request, _other(handler)))

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """A tool is called, in a sync run."""
        attached = self._attached()
        return handler(request) if attached is None else attached.wait(self.awrap_tool_call(request, _other(handler)))

    # For graphs that `create_agent` has not made.

    def model(self, model: Any, tools: Sequence[Any] = ()) -> Runnable[Any, Any]:
        """A chat model for a graph of your own, asked through the hooks of the run.

        Args:
            model: The chat model.
            tools: What it may call.
        """
        bound = model.bind_tools(tools) if tools else model

        def given(messages: Any) -> ModelRequest[Any]:
            asked: list[Any] = [*shown({"messages": messages})]
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
        """The node that calls the tools, for a graph of your own.

        Args:
            tools: Its tools.
            options: What else a `ToolNode` takes.

        Raises:
            HookUsageError: If the middleware was made with `tools=False`.
        """
        if isinstance(self, _WithoutTools):
            raise HookUsageError(
                "A HooklineMiddleware(tools=False) hears of no tool calls, so its node could not tell hooks of them. "
                "Make the node with HooklineMiddleware()."
            )
        return HookedToolNode(
            tools, wrap_tool_call=self.wrap_tool_call, awrap_tool_call=self.awrap_tool_call, **options
        )

    def _attached(self) -> Attached | None:
        attached = present.get()
        return attached if attached is not None and attached.serves(self) else None


class _WithoutTools(HooklineMiddleware):
    state_schema = _StateWithoutTools
    wrap_tool_call = AgentMiddleware.wrap_tool_call
    awrap_tool_call = AgentMiddleware.awrap_tool_call

    @property
    def name(self) -> str:
        return HooklineMiddleware.__name__


def _with_signature(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with its signature at hand: LangSmith reads it on every call, which takes longer than hooks do."""

    def call(request: Any, handler: Any) -> Any:
        return method(request, handler)

    call.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return call


def _other(handler: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    """What a sync run does next, for the loop that its hooks are in: in a thread, inside of what they have begun."""

    async def call(request: Any) -> Any:
        return await anyio.to_thread.run_sync(handler, request)

    return call


class _KeptAsItIs(Exception):
    """A conversation is not compacted, because a hook said so."""


class HooklineSummarization(SummarizationMiddleware):
    """`SummarizationMiddleware` that leads its compactions through the hooks of the run."""

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Compact the conversation, if it is time to and no hook stands in the way."""
        try:
            return super().before_model(state, runtime)
        except _KeptAsItIs:
            return None

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Compact the conversation, if it is time to and no hook stands in the way."""
        try:
            return await super().abefore_model(state, runtime)
        except _KeptAsItIs:
            return None

    def _create_summary(self, messages_to_summarize: list[Any]) -> str:
        attached = present.get()
        if attached is None:
            return super()._create_summary(messages_to_summarize)
        return attached.wait(self._led(attached, messages_to_summarize, _other(super()._create_summary)))

    async def _acreate_summary(self, messages_to_summarize: list[Any]) -> str:
        attached = present.get()
        if attached is None:
            return await super()._acreate_summary(messages_to_summarize)
        return await self._led(attached, messages_to_summarize, super()._acreate_summary)

    async def _led(self, attached: Attached, messages: Sequence[Any], summarize: Callable[..., Awaitable[str]]) -> str:
        summary = await attached.compact(list(messages), self.token_counter(messages), summarize)
        if summary is None:
            raise _KeptAsItIs
        return summary
