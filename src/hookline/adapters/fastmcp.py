"""Hooks on the tools of a FastMCP server: `hooked(server, hooks=[hooks])`.

In the framework's own way: `server.add_middleware(HooklineMiddleware([hooks]))`.

A connection is an operation: a client's session as long as it lives, or a single request if the transport has no
sessions. So calls are counted, mocked and limited per client, as in a run. The server never sees the model, so tool
calls are its only events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from hookline._readonly import writable
from hookline.adapters._attaching import check_hooked
from hookline.calls import Denial, ToolCall, ToolRequest, ToolResult, join_texts
from hookline.errors import MissingExtraError, UnknownToolError
from hookline.events import HookType
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import KINDS, AdapterRun, Capabilities, ToolDone

try:
    import jsonschema
    from fastmcp import FastMCP
    from fastmcp.exceptions import NotFoundError, ToolError
    from fastmcp.server.dependencies import get_access_token
    from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
    from fastmcp.tools.base import ToolResult as Answer
    from mcp_types import CallToolRequestParams, TextContent
except ImportError as error:
    raise MissingExtraError("fastmcp", "The adapter of FastMCP") from error

__all__ = ["CALL_ID", "DRIVES", "HooklineMiddleware", "hooked"]

DRIVES = Capabilities(
    framework="FastMCP",
    events=frozenset({HookType.BEFORE_TOOL_CALL, HookType.AFTER_TOOL_CALL, HookType.ON_TOOL_CALL_ERROR}),
    calls={ToolCall: KINDS},
    raises_stopped=False,
)
"""The hooks that a FastMCP server supports."""

CALL_ID = "hookline/tool_call_id"
"""Key in a request's `_meta` for the model's id of the call; without it, the id of the request is used."""

HooksOrFactory = Iterable[AnyHook] | Callable[[Any], Iterable[AnyHook]]


def hooked(
    server: FastMCP,
    hooks: HooksOrFactory = (),
    *,
    identify: Callable[[Any], Mapping[str, str]] | None = None,
    **options: Any,
) -> FastMCP:
    """Add hooks to a server, outside of its present middleware. This changes the server.

    The server itself is changed, because its transports and clients would not call a copy.

    Args:
        server: The server.
        hooks: The hooks of every connection, or a function that returns them; see `HooklineMiddleware`.
        identify: See `HooklineMiddleware`.
        options: Options of the runs: `operation_id`, `user_id`, `tenant_id`, `tags`, `dispatcher`, `store`,
            `drain_timeout`, `best_effort`, `allow_missing_hooks`.

    Returns:
        The same server.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
        HookUsageError: If an option is unknown.
    """
    batch = check_hooked(() if callable(hooks) else hooks, DRIVES, options)
    middleware = HooklineMiddleware(hooks if callable(hooks) else batch, identify=identify, **options)
    server.middleware.insert(0, middleware)
    return server


class HooklineMiddleware(Middleware):
    """Middleware that passes the tool calls of a server's clients through hooks.

    Add it first, so that it is outside of middleware that answers calls. Hooks see the server's name as the tools'
    `toolset`.

    Args:
        hooks: The hooks of every connection; or a function that takes FastMCP's `Context` of a connection's first call
            and returns the hooks of that connection, for example per tenant.
        identify: A function that takes the same `Context` and returns any of `operation_id`, `user_id` and `tenant_id`.
            Without a `user_id`, the user is the subject of the client's access token.
        attach: Other options of the runs: `tags`, `dispatcher`, `drain_timeout`, `best_effort`.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
    """

    def __init__(
        self,
        hooks: HooksOrFactory = (),
        *,
        identify: Callable[[Any], Mapping[str, str]] | None = None,
        **attach: Any,
    ) -> None:
        self._hooks = hooks if callable(hooks) else hook_batch(hooks)
        self._identify = identify
        self._attach = attach
        if not callable(self._hooks) and not attach.get("best_effort"):
            AdapterRun(self._hooks, DRIVES, **attach)

    def __repr__(self) -> str:
        return f"HooklineMiddleware({self._hooks!r})"

    async def on_call_tool(
        self, context: MiddlewareContext[CallToolRequestParams], call_next: CallNext[CallToolRequestParams, Answer]
    ) -> Answer:
        """Pass one tool call through the hooks."""
        here = context.fastmcp_context
        request = here.request_context if here is not None else None
        connection = getattr(request.session, "_connection", None) if request is not None else None
        if connection is None:  # the server's own code calls the tool
            run = self._new_run(here)
            await run.open()
            try:
                return await _call_tool(_ClientConnection(run), run, context, call_next)
            finally:
                await run.close()
        # One middleware may be on several servers of one connection, and several middlewares on one server.
        key = f"hookline:{id(self)}"
        client: _ClientConnection | None = connection.state.get(key)
        if client is None:
            client = connection.state[key] = _ClientConnection()
        if client.run is None:
            async with client.opening:
                if client.run is None:
                    run = self._new_run(here)
                    await run.open()
                    connection.exit_stack.push_async_callback(run.close)
                    client.run = run
        return await _call_tool(client, client.run, context, call_next)

    def _new_run(self, here: Any) -> AdapterRun:
        token = get_access_token()
        known = {"user_id": (token.subject or "") if token is not None else ""}
        if self._identify is not None and here is not None:
            known.update(self._identify(here))
        hooks = self._hooks(here) if callable(self._hooks) else self._hooks
        name = here.fastmcp.name if here is not None else "fastmcp"
        session = here.session_id if here is not None and here.request_context is not None else None
        return AdapterRun(hooks, DRIVES, agent_id=name, conversation_id=session, **{**known, **self._attach})


class _ClientConnection:
    """A connection, its operation, and the number of its calls in progress."""

    def __init__(self, run: AdapterRun | None = None) -> None:
        self.opening = anyio.Lock(fast_acquire=True)
        self.run = run
        self.calls = 0


async def _call_tool(
    client: _ClientConnection,
    run: AdapterRun,
    context: MiddlewareContext[CallToolRequestParams],
    call_next: CallNext[CallToolRequestParams, Answer],
) -> Answer:
    if run.denied is not None or run.interrupted:
        return _failed_answer(_stop_reason(run.denied))
    message, here = context.message, context.fastmcp_context
    args = message.arguments or {}
    request = ToolRequest(toolset=run.run.agent.id, tool_name=message.name, args=args, tool_call_id=_call_id(here))
    answers: list[Answer] = []
    failures: list[Exception] = []

    async def work(final: Mapping[str, Any]) -> ToolResult:
        changed = context
        if final != args:
            changed = context.copy(message=message.model_copy(update={"arguments": writable(final)}))
        try:
            answers.append(await call_next(changed))
        except Exception as error:
            failures.append(error)
        if failures:
            raise await _original_error(failures[0], message.name, here)
        return _to_tool_result(answers[0])

    if not client.calls:  # overlapping calls share a step, which must not end before they do
        run.begin_step()
    client.calls += 1
    try:
        done = await run.call_tool(request, work)
    finally:
        client.calls -= 1
        run.run.outcomes.clear()  # a connection may live long, and the outcomes are not needed again
    if failures and not done.changed:
        raise failures[0]
    if answers and not done.changed and done.result.success is not getattr(answers[0], "is_error", False):
        return answers[0]
    if answers and done.added:
        own: Any = answers[0]
        return Answer(
            content=_add_text(own.content, done.added),
            structured_content=own.structured_content,
            meta=own.meta,
            is_error=own.is_error,
        )
    return await _to_answer(done, message.name, here)


def _add_text(blocks: Sequence[Any], text: str) -> list[Any]:
    """Return the blocks of an answer with a text at the end of the last text, or behind what is no text."""
    last = blocks[-1] if blocks else None
    if isinstance(last, TextContent):
        return [*blocks[:-1], last.model_copy(update={"text": join_texts(last.text, text)})]
    return [*blocks, TextContent(type="text", text=text)]


def _call_id(here: Any) -> str:
    request = here.request_context if here is not None else None
    if request is None:
        return ""
    return str((request.meta or {}).get(CALL_ID) or request.request_id)


async def _original_error(failure: Exception, name: str, here: Any) -> Exception:
    """Return the exception that a tool raised, unwrapped from FastMCP's."""
    if isinstance(failure, NotFoundError) and here is not None and await here.fastmcp.get_tool(name) is None:
        return UnknownToolError(name, sorted({tool.name for tool in await here.fastmcp.list_tools()}))
    wrapped = failure.__cause__ if type(failure) is ToolError else None
    return wrapped if isinstance(wrapped, Exception) else failure


def _to_tool_result(answer: Any) -> ToolResult:
    """Convert a tool's answer; an extension may answer with an object of its own, such as a task."""
    blocks = getattr(answer, "content", None) or []
    texts = [block.text if isinstance(block, TextContent) else block.model_dump_json() for block in blocks]
    return ToolResult(content="\n".join(texts), success=not getattr(answer, "is_error", False))


async def _to_answer(done: ToolDone, name: str, here: Any) -> Answer:
    """Return a hook's answer in the form that the tool's output schema requires."""
    if done.asked is not None:
        return _failed_answer(
            f"A person would have to approve this call, and nobody can be asked here: {done.asked.prompt}"
        )
    content = done.result.content
    if done.stop is not None:
        return _failed_answer(_stop_reason(done.stop))
    if not done.result.success:
        return _failed_answer(content)
    tool = await here.fastmcp.get_tool(name) if here is not None else None
    schema = tool.output_schema if tool is not None else None
    if schema is None:
        return Answer(content=content)
    try:
        value = msgspec.json.decode(content)
    except msgspec.DecodeError:
        value = content
    if schema.get("x-fastmcp-wrap-result"):
        text = schema.get("properties", {}).get("result", {}).get("type") == "string"
        value = {"result": content if text else value}
    try:
        jsonschema.validate(value, schema)
    except jsonschema.ValidationError as error:
        return _failed_answer(
            f"A hook answered {content!r}, which does not match the output schema of {name!r}: {error.message}"
        )
    return Answer(content=content, structured_content=value)


def _stop_reason(denial: Denial | None) -> str:
    return denial.reason if denial is not None else "The session was interrupted."


def _failed_answer(reason: str) -> Answer:
    return Answer(content=reason, is_error=True)
