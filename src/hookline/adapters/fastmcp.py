"""Hooks on the tools of a FastMCP server, whoever calls them: `server.add_middleware(HooklineMiddleware(hooks=[...]))`.

A connection is an operation: of a client's session as long as that lives, and of a single request where the transport
knows no sessions. So calls are counted, mocked and limited per client, as in a run; and the server, which never sees
the model, has nothing else to tell of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import anyio
import msgspec

from hookline._readonly import writable
from hookline.calls import Denial, ToolCall, ToolRequest, ToolResult
from hookline.errors import MissingExtraError, UnknownToolError
from hookline.events import HookType
from hookline.hooks import AnyHook, hook_batch
from hookline.runtime import KINDS, AdapterRun, Capabilities, ToolDone

try:
    import jsonschema
    from fastmcp.exceptions import NotFoundError, ToolError
    from fastmcp.server.dependencies import get_access_token
    from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
    from fastmcp.tools.base import ToolResult as Answer
    from mcp_types import CallToolRequestParams, TextContent
except ImportError as error:
    raise MissingExtraError("fastmcp", "The adapter of FastMCP") from error

__all__ = ["CALL_ID", "DRIVES", "HooklineMiddleware"]

DRIVES = Capabilities(
    framework="FastMCP",
    events=frozenset({HookType.BEFORE_TOOL_CALL, HookType.AFTER_TOOL_CALL, HookType.ON_TOOL_CALL_ERROR}),
    calls={ToolCall: KINDS},
)
"""What of hookline a FastMCP server can drive."""

CALL_ID = "hookline/tool_call_id"
"""Under what key of its `_meta` a client may say the model's id of a call; else it is that of the request."""

Given = Iterable[AnyHook] | Callable[[Any], Iterable[AnyHook]]


class HooklineMiddleware(Middleware):
    """Leads the tool calls of a server's clients through hooks.

    Add it first, so that it stands outside of middleware that answers calls. Hooks see the server's name as the
    tools' `toolset`.

    Args:
        hooks: The hooks of every connection; or a function from FastMCP's `Context` of the first call to those of that
            one, for hooks of one's own for each tenant.
        identify: From that `Context` to what is known of the client: any of `operation_id`, `user_id`, `tenant_id`.
            Unless it says otherwise, the user is the subject of the client's access token.
        attach: What else a run takes: `dispatcher`, `drain_timeout`, `best_effort`.

    Raises:
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook cannot work.
    """

    def __init__(
        self, *, hooks: Given, identify: Callable[[Any], Mapping[str, str]] | None = None, **attach: Any
    ) -> None:
        self._hooks = hooks if callable(hooks) else hook_batch(hooks)
        self._identify = identify
        self._attach = attach
        if not callable(self._hooks) and not attach.get("best_effort"):
            AdapterRun(self._hooks, DRIVES, **attach)

    async def on_call_tool(
        self, context: MiddlewareContext[CallToolRequestParams], call_next: CallNext[CallToolRequestParams, Answer]
    ) -> Answer:
        """Lead one call of a tool through the hooks."""
        here = context.fastmcp_context
        request = here.request_context if here is not None else None
        connection = getattr(request.session, "_connection", None) if request is not None else None
        if connection is None:  # the server's own code calls the tool
            run = self._run(here)
            await run.open()
            try:
                return await _call(_Client(run), run, context, call_next)
            finally:
                await run.close()
        # One middleware may stand on several servers that serve a connection together, and several on one.
        key = f"hookline:{id(self)}"
        client: _Client | None = connection.state.get(key)
        if client is None:
            client = connection.state[key] = _Client()
        if client.run is None:
            async with client.opening:
                if client.run is None:
                    run = self._run(here)
                    await run.open()
                    connection.exit_stack.push_async_callback(run.close)
                    client.run = run
        return await _call(client, client.run, context, call_next)

    def _run(self, here: Any) -> AdapterRun:
        token = get_access_token()
        known = {"user_id": (token.subject or "") if token is not None else ""}
        if self._identify is not None and here is not None:
            known.update(self._identify(here))
        hooks = self._hooks(here) if callable(self._hooks) else self._hooks
        name = here.fastmcp.name if here is not None else "fastmcp"
        session = here.session_id if here is not None and here.request_context is not None else None
        return AdapterRun(hooks, DRIVES, agent_id=name, conversation_id=session, **{**known, **self._attach})


class _Client:
    """A connection, its operation, and how many of its calls are under way."""

    def __init__(self, run: AdapterRun | None = None) -> None:
        self.opening = anyio.Lock(fast_acquire=True)
        self.run = run
        self.calls = 0


async def _call(
    client: _Client,
    run: AdapterRun,
    context: MiddlewareContext[CallToolRequestParams],
    call_next: CallNext[CallToolRequestParams, Answer],
) -> Answer:
    if run.denied is not None or run.interrupted:
        return _failed(_stopped(run.denied))
    message, here = context.message, context.fastmcp_context
    args = message.arguments or {}
    calling = ToolRequest(toolset=run.run.agent.id, tool_name=message.name, args=args, tool_call_id=_call_id(here))
    answers: list[Answer] = []
    failures: list[Exception] = []

    async def work(final: Mapping[str, Any]) -> ToolResult:
        asked = context
        if final != args:
            asked = context.copy(message=message.model_copy(update={"arguments": writable(final)}))
        try:
            answers.append(await call_next(asked))
        except Exception as error:
            failures.append(error)
        if failures:
            raise await _raised(failures[0], message.name, here)
        return _told(answers[0])

    if not client.calls:  # calls that overlap share a step, which must not end before them
        run.begin_step()
    client.calls += 1
    try:
        done = await run.call_tool(calling, work)
    finally:
        client.calls -= 1
        run.run.outcomes.clear()  # a connection may live long, and nobody asks for them again
    if failures and not done.changed:
        raise failures[0]
    if answers and not done.changed and done.result.success is not getattr(answers[0], "is_error", False):
        return answers[0]
    return await _answer(done, message.name, here)


def _call_id(here: Any) -> str:
    request = here.request_context if here is not None else None
    if request is None:
        return ""
    return str((request.meta or {}).get(CALL_ID) or request.request_id)


async def _raised(failure: Exception, name: str, here: Any) -> Exception:
    """What was raised in the words of hookline; FastMCP wraps what a tool has raised."""
    if isinstance(failure, NotFoundError) and here is not None and await here.fastmcp.get_tool(name) is None:
        return UnknownToolError(name, sorted({tool.name for tool in await here.fastmcp.list_tools()}))
    wrapped = failure.__cause__ if type(failure) is ToolError else None
    return wrapped if isinstance(wrapped, Exception) else failure


def _told(answer: Any) -> ToolResult:
    """What a tool has answered; an extension may answer by something of its own, such as a task."""
    blocks = getattr(answer, "content", None) or []
    texts = [block.text if isinstance(block, TextContent) else block.model_dump_json() for block in blocks]
    return ToolResult(content="\n".join(texts), success=not getattr(answer, "is_error", False))


async def _answer(done: ToolDone, name: str, here: Any) -> Answer:
    """The answer of a hook, in the form that the tool's output schema demands."""
    if done.asked is not None:
        return _failed(f"A person would have to decide about this call, and nobody can be asked: {done.asked.prompt}")
    content = done.result.content
    if done.stop is not None:
        return _failed(_stopped(done.stop))
    if not done.result.success:
        return _failed(content)
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
        return _failed(
            f"A hook answered {content!r}, which does not fit the output schema of {name!r}: {error.message}"
        )
    return Answer(content=content, structured_content=value)


def _stopped(denial: Denial | None) -> str:
    return denial.reason if denial is not None else "The session was interrupted."


def _failed(reason: str) -> Answer:
    return Answer(content=reason, is_error=True)
