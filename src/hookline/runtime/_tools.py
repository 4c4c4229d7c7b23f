"""Tools: typed Python functions that a model can call."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, overload

import anyio.to_thread
import msgspec

from hookline._checks import quote
from hookline.calls import ToolCall, ToolResult, ToolSpec, check_result
from hookline.errors import AgentDefinitionError, HookUsageError, ToolResultError
from hookline.execution import is_async_handler
from hookline.runtime._docstrings import parse_docstring
from hookline.runtime._tool_arguments import compile_binding, describe_parameters

__all__ = ["PlainFunction", "Tool", "ToolSource", "as_result", "is_source", "open_sources", "tool"]

logger = logging.getLogger("hookline")


class ToolSource(Protocol):
    """A source of tools that are listed when a run starts, such as an MCP server.

    Attributes:
        toolset: The `toolset` of its tools.
    """

    @property
    def toolset(self) -> str: ...

    def open(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Open the source, and return its tools, which can be called while the context is open.

        The context is entered and left in the task of the run, which is cancelled if the run is interrupted. Background
        work must not fail or cancel that task.
        """
        ...


def is_source(entry: object) -> bool:
    """Whether an entry of `Agent.tools` is a source."""
    return callable(getattr(entry, "open", None)) and isinstance(getattr(entry, "toolset", None), str)


@asynccontextmanager
async def open_sources(sources: Sequence[ToolSource]) -> AsyncIterator[list[Tool]]:
    """Open several sources, one after the other, and give their tools.

    Raises:
        AgentDefinitionError: If a source gives something else than tools.
    """
    async with AsyncExitStack() as stack:
        tools: list[Tool] = []
        for source in sources:
            given = await stack.enter_async_context(_open(source))
            for tool in given:
                if not isinstance(tool, Tool):
                    raise AgentDefinitionError(
                        f"Tool source {source.toolset!r}", f"it must return Tools; got {quote(tool)}"
                    )
            tools.extend(given)
        yield tools


@asynccontextmanager
async def _open(source: ToolSource) -> AsyncIterator[Sequence[Tool]]:
    """Open one source. A run that is over does not fail because its source cannot be closed."""
    opening = source.open()
    tools = await opening.__aenter__()
    try:
        yield tools
    finally:
        try:
            await opening.__aexit__(None, None, None)
        except Exception:
            logger.exception("Tool source %r could not be closed", source.toolset)


Approval = bool | Callable[[ToolCall], bool | Awaitable[bool]]


class Tool(ToolSpec, frozen=True, kw_only=True, eq=False):
    """A tool. Use `tool` to make one from a function, or set the fields yourself.

    Attributes:
        run: `async (args) -> result`: gets the model's arguments, and returns text, a `ToolResult` or a JSON value.
        needs_approval: Whether a person must approve calls: a bool, or a function of the `ToolCall`.
        function: The function, if `tool` made this tool.
        read_only: Whether calls change nothing, so that one may be made just to see what it answers. For a tool of an
            MCP server this is a hint of the server.
        version: The version of the tool, or of the server that it belongs to; empty if there is none.
    """

    run: Callable[[Mapping[str, Any]], Awaitable[object]]
    needs_approval: Approval = False
    function: Callable[..., Any] | None = None
    read_only: bool = False
    version: str = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly."""
        if self.function is None:
            raise TypeError(f"Tool {self.name!r} was not made from a function; use `await tool.run(args)`.")
        return self.function(*args, **kwargs)

    async def asks_first(self, call: ToolCall) -> bool:
        """Return whether a call must wait for a person. If `needs_approval` raises, it must."""
        if isinstance(self.needs_approval, bool):
            return self.needs_approval
        try:
            answer = self.needs_approval(call)
            return bool(await answer if inspect.isawaitable(answer) else answer)
        except Exception:
            return True


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    fn: None = None,
    *,
    name: str | None = None,
    needs_approval: Approval = False,
    in_thread: bool = True,
    read_only: bool = False,
    version: str = "",
) -> Callable[[Callable[..., Any]], Tool]: ...
@overload
def tool(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    needs_approval: Approval = False,
    in_thread: bool = True,
    read_only: bool = False,
    version: str = "",
) -> Tool: ...
def tool(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    needs_approval: Approval = False,
    in_thread: bool = True,
    read_only: bool = False,
    version: str = "",
) -> Any:
    """Make a tool from a typed function, as a decorator or a function.

    The docstring's text is the description. The schema comes from the annotations and the docstring's `Args` (Google
    sections or `:param name:`). Arguments are validated and coerced before the function is called.

    Args:
        fn: The function, plain or async. A returned `str` is the content, a `ToolResult` is the result, anything else
            becomes JSON.
        name: The tool's name; the function's name by default.
        needs_approval: Whether a person must approve calls: a bool, or a function of the `ToolCall`.
        in_thread: Whether to run a plain function in a worker thread, so that it does not block the event loop; `False`
            for a quick function.
        read_only: Whether calls change nothing. `hookline eval cassettes check --live` calls such tools again to see
            whether they still answer as they did when they were recorded.
        version: The version of the tool, which is kept with recordings of it.

    Raises:
        AgentDefinitionError: If the function's parameters cannot be described by a schema.
    """
    if fn is None:
        return functools.partial(
            tool,
            name=name,
            needs_approval=needs_approval,
            in_thread=in_thread,
            read_only=read_only,
            version=version,
        )
    if isinstance(fn, Tool):
        raise AgentDefinitionError(f"Tool {fn.name!r}", "is already a tool")
    if not callable(fn):
        raise AgentDefinitionError("tool", f"expected a function, got {quote(fn)}")
    title = name or getattr(fn, "__name__", "")
    if not title or title == "<lambda>":
        raise AgentDefinitionError("tool", f"{fn!r} has no name; use tool(fn, name=...)")
    text, notes = parse_docstring(inspect.getdoc(fn) or "")
    parameters, schema = describe_parameters(fn, title, notes)
    return Tool(
        name=title,
        description=text,
        schema=schema,
        run=_runner(fn, title, parameters, in_thread=in_thread),
        needs_approval=needs_approval,
        function=fn,
        read_only=read_only,
        version=version,
    )


def as_result(name: str, value: object) -> ToolResult:
    """Return a tool's return value as the model will read it.

    Raises:
        ToolResultError: If it is neither text, nor a `ToolResult`, nor JSON.
    """
    if isinstance(value, str):
        return ToolResult(content=value)
    if isinstance(value, ToolResult):
        try:
            return check_result(value)
        except HookUsageError as error:
            raise ToolResultError(name, str(error)) from error
    try:
        return ToolResult(content=msgspec.json.encode(value, enc_hook=_jsonable).decode())
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ToolResultError(name, str(error)) from error


def _jsonable(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)  # pydantic, which hookline does not need
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def _runner(
    fn: Callable[..., Any], name: str, parameters: type[msgspec.Struct], *, in_thread: bool
) -> Callable[[Mapping[str, Any]], Awaitable[object]]:
    bind = compile_binding(name, parameters)
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004

        async def run(args: Mapping[str, Any]) -> object:
            return await fn(**bind(args))

        return run
    return PlainFunction(fn, bind, in_thread=in_thread)


class PlainFunction:
    """The `run` of a tool that was made from a plain function.

    Args:
        function: The function.
        bind: Checks the model's arguments, and returns those of the function.
        in_thread: Whether the function runs in a worker thread.

    Attributes:
        is_async: Whether the function says that it returns an awaitable, as a decorated async function does.
    """

    __slots__ = ("_bind", "_function", "_in_thread", "is_async")

    def __init__(
        self, function: Callable[..., Any], bind: Callable[[Mapping[str, Any]], dict[str, Any]], *, in_thread: bool
    ) -> None:
        self._function, self._bind, self._in_thread = function, bind, in_thread
        self.is_async = is_async_handler(function)

    def __deepcopy__(self, memo: object) -> PlainFunction:
        """Return itself, as a copy of a function is the function."""
        return self

    async def __call__(self, args: Mapping[str, Any]) -> object:
        """Call the function, in a worker thread unless it is a quick one."""
        bound = self._bind(args)
        if self._in_thread:
            return await _await_if_needed(await _in_thread(functools.partial(self._function, **bound)))
        return await _await_if_needed(self._function(**bound))

    def call(self, args: Mapping[str, Any]) -> object:
        """Call the function in the present thread.

        Raises:
            HookUsageError: If it returns an awaitable.
        """
        value = self._function(**self._bind(args))
        if not inspect.isawaitable(value):
            return value
        if inspect.iscoroutine(value):
            value.close()  # or Python would warn that nobody has awaited it
        raise HookUsageError("This tool is a plain function that returned an awaitable. Make it an `async def`.")


async def _await_if_needed(value: object) -> object:
    return await value if inspect.isawaitable(value) else value


async def _in_thread(call: Callable[[], object]) -> object:
    def captured() -> tuple[object, BaseException | None]:
        try:
            return call(), None
        except BaseException as error:
            return None, error  # a future cannot carry StopIteration

    value, error = await anyio.to_thread.run_sync(captured, abandon_on_cancel=True)
    if error is not None:
        raise error
    return value
