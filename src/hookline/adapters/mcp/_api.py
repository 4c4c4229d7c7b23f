"""Tools of MCP servers, started as processes or reached by URL; each call passes through hooks, mocks and guards.

The adapter uses the client of the protocol's own `mcp` package, which supports any transport and every version of the
protocol, and sends the current span with each request (`traceparent` in `params._meta`, SEP-414).
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from hookline._checks import quote, tool_test
from hookline.adapters.mcp._errors import McpServerError, McpStartError, McpToolsError
from hookline.calls import ToolCall
from hookline.errors import AgentDefinitionError, HookUsageError, MissingExtraError
from hookline.runtime import Tool

try:
    from hookline.adapters.mcp._link import Link, open_link
    from hookline.adapters.mcp._settings import Settings, check_settings
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "httpx2", "pydantic"):
        raise
    raise MissingExtraError("mcp", "hookline.adapters.mcp") from error

if TYPE_CHECKING:
    from mcp_types import Tool as ListedTool

__all__ = ["McpServer", "McpServerError", "McpStartError", "McpTool", "McpToolsError", "mcp_server"]


NeedsApproval = bool | Literal["destructive"] | Sequence[str] | Callable[[ToolCall], bool | Awaitable[bool]]


class McpTool(Tool, frozen=True, kw_only=True, eq=False):
    """A tool of an MCP server, with the server's hints about it. Hints are not guarantees; use a guard to enforce.

    Attributes:
        title: The display name; may be empty.
        destructive: Whether the tool may destroy data; true unless the server says that it only reads or only adds.
        idempotent: Whether a second call with the same arguments has no further effect.
        open_world: Whether the tool interacts with the world outside of the server, such as the web.
    """

    title: str = ""
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = True


def mcp_server(
    name: str,
    *,
    command: str | os.PathLike[str] | Sequence[str] | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    url: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    start_timeout: float = 30.0,
    stop_timeout: float = 2.0,
    tools: Sequence[str] | None = None,
    needs_approval: NeedsApproval = False,
) -> McpServer:
    """Offer the tools of an MCP server to an agent: `Agent(tools=[mcp_server("files", command="npx", args=[...])])`.

    This starts nothing. Each run opens the server before its first step and closes it at the end.

    Args:
        name: The server's name: the `toolset` of its tools, as in `tool="files/*"`.
        command: The executable of a server to start, which communicates over stdin and stdout; or a list of the
            executable and its arguments.
        args: Further arguments of the executable.
        env: Environment variables, in addition to the few (`PATH`, `HOME`, …) that every server gets.
        cwd: The server's working directory; that of this process unless given.
        url: The endpoint of a running server (streamable HTTP), instead of `command`.
        headers: Headers of every request to `url`.
        timeout: Seconds that a call may take. After that it is cancelled, and its result is a failure.
        start_timeout: Seconds that the server may take until its tools are listed.
        stop_timeout: Seconds that the process may take to end by itself before it is killed.
        tools: Globs over the names of the tools to offer, such as `["read_*"]`; all tools unless given.
        needs_approval: The calls that a person must approve: all or none, globs over tool names, `"destructive"` for
            every tool that the server does not mark as harmless, or a function of the `ToolCall`.

    Raises:
        AgentDefinitionError: If the settings are invalid.
    """
    settings = check_settings(
        name,
        command=command,
        args=args,
        env=env,
        cwd=cwd,
        url=url,
        headers=headers,
        timeouts={"timeout": timeout, "start_timeout": start_timeout, "stop_timeout": stop_timeout},
    )
    where = f"MCP server {name!r}"
    _check_globs(where, "tools", tools)
    if not isinstance(needs_approval, bool) and not callable(needs_approval) and needs_approval != "destructive":
        _check_globs(where, "needs_approval", needs_approval)
    return McpServer(settings, tools=tools, needs_approval=needs_approval)


class McpServer:
    """A source of tools: an MCP server, which each run opens for its duration; created by `mcp_server`.

    By default each run has a connection or process of its own and closes it. Inside `async with server:` runs share one
    that stays open until the block ends; calls of runs that are still going then fail.
    """

    def __init__(self, settings: Settings, *, tools: Sequence[str] | None, needs_approval: NeedsApproval) -> None:
        self._settings = settings
        self._globs = tools
        self._needs_approval = needs_approval
        self._shared_context: AbstractAsyncContextManager[Link] | None = None
        self._shared_link: Link | None = None

    def __repr__(self) -> str:
        return f"mcp_server({self._settings!r})"

    @property
    def toolset(self) -> str:
        """The server's name, which is the `toolset` of its tools."""
        return self._settings.name

    @asynccontextmanager
    async def open(self) -> AsyncIterator[list[McpTool]]:
        """Open the server and yield its tools, which can be called while the block runs.

        Raises:
            McpStartError: If the server cannot be started or reached, or is not ready in time.
            McpToolsError: If its tools cannot be used as requested.
        """
        shared = self._shared_link
        if shared is not None and shared.is_of_this_loop:
            yield self._select_tools(shared, await shared.tools())
            return
        async with open_link(self._settings) as link:
            yield self._select_tools(link, await link.tools())

    async def __aenter__(self) -> Self:
        """Start or reach the server, and share it among all runs until the block ends.

        Raises:
            HookUsageError: If the server is open already.
            McpServerError: If the server cannot be used.
        """
        if self._shared_context is not None:
            raise HookUsageError(f"MCP server {self.toolset!r} is already open: runs share it automatically.")
        context = self._shared_context = open_link(self._settings)
        try:
            link = await context.__aenter__()
            try:
                self._select_tools(link, await link.tools())
            except BaseException as error:
                await context.__aexit__(type(error), error, error.__traceback__)
                raise
        except BaseException:
            self._shared_context = None
            raise
        self._shared_link = link
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context, self._shared_context, self._shared_link = self._shared_context, None, None
        if context is not None:
            await context.__aexit__(kind, error, trace)

    def _select_tools(self, link: Link, listed: Sequence[ListedTool]) -> list[McpTool]:
        """Return the tools that an agent is offered."""
        names = [tool.name for tool in listed]
        self._check_tools(names)
        return [
            self._tool(link, tool) for tool in listed if self._globs is None or self._matches(self._globs, tool.name)
        ]

    def _check_tools(self, names: list[str]) -> None:
        if not names:
            raise McpToolsError(self.toolset, "lists no tools.")
        if "" in names:
            raise McpToolsError(self.toolset, "lists a tool without a name.")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise McpToolsError(
                self.toolset, f"lists {', '.join(map(repr, twice))} more than once, so a call would be ambiguous."
            )
        asked = self._needs_approval
        approved = [] if isinstance(asked, bool | str) or callable(asked) else asked
        for title, globs in (("tools", self._globs or ()), ("needs_approval", approved)):
            for glob in globs:
                if not any(self._matches([glob], name) for name in names):
                    raise McpToolsError(
                        self.toolset, f"has no tool that matches {glob!r} in `{title}`. It has {quote(names)}."
                    )

    def _matches(self, globs: Sequence[str], name: str) -> bool:
        return any(tool_test(glob)(f"{self.toolset}/{name}") for glob in globs)

    def _tool(self, link: Link, listed: ListedTool) -> McpTool:
        hints = listed.annotations
        read_only = bool(hints and hints.read_only_hint)
        destructive = not read_only and not (hints is not None and hints.destructive_hint is False)
        idempotent = read_only or bool(hints and hints.idempotent_hint)
        asked: Any = self._needs_approval
        if asked == "destructive":
            asked = destructive
        elif not isinstance(asked, bool) and not callable(asked):
            asked = self._matches(asked, listed.name)
        return McpTool(
            toolset=self.toolset,
            name=listed.name,
            description=listed.description or "",
            schema=listed.input_schema,
            run=functools.partial(link.call, listed.name, repeatable=idempotent),
            needs_approval=asked,
            title=listed.title or (hints.title if hints else None) or "",
            read_only=read_only,
            version=link.version,
            destructive=destructive,
            idempotent=idempotent,
            open_world=not (hints is not None and hints.open_world_hint is False),
        )


def _check_globs(where: str, title: str, globs: object) -> None:
    if globs is None and title == "tools":
        return
    listed: Sequence[object] = globs if isinstance(globs, Sequence) and not isinstance(globs, str) else ()
    if not listed or not all(isinstance(glob, str) and glob for glob in listed):
        raise AgentDefinitionError(where, f"`{title}` must be a list of globs over tool names; got {quote(globs)}")
