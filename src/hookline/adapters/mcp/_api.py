"""Tools of MCP servers: in processes that a run starts, or at an address; each call with hooks, mocks and guards.

It builds on the client of the `mcp` package, the protocol's own: that one takes any transport, speaks every version,
and puts the current span into each request (`traceparent` in `params._meta`, SEP-414).
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
from hookline.adapters.mcp._settings import Settings, checked_settings
from hookline.calls import ToolCall
from hookline.errors import AgentDefinitionError, HookUsageError, MissingExtraError
from hookline.runtime import Tool

try:
    from hookline.adapters.mcp._link import Link, linked
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "httpx2", "pydantic"):
        raise
    raise MissingExtraError("mcp", "hookline.adapters.mcp") from error

if TYPE_CHECKING:
    from mcp_types import Tool as ListedTool

__all__ = ["McpServer", "McpServerError", "McpStartError", "McpTool", "McpToolsError", "mcp_server"]


NeedsApproval = bool | Literal["destructive"] | Sequence[str] | Callable[[ToolCall], bool | Awaitable[bool]]


class McpTool(Tool, frozen=True, kw_only=True, eq=False):
    """A tool of an MCP server, with what the server says about it. Its word is a hint; who does not trust it, guards.

    Attributes:
        title: Its name for people; may be empty.
        read_only: Whether it only reads.
        destructive: Whether it may destroy: yes, unless the server says that it only reads or only adds.
        idempotent: Whether a second call with the same arguments changes nothing more.
        open_world: Whether it deals with the world outside of the server, such as the web.
    """

    title: str = ""
    read_only: bool = False
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

    Nothing is started here. Each run opens the server before its first step and closes it at its end.

    Args:
        name: The server's name: the `toolset` of its tools, as in `tool="files/*"`.
        command: The executable of a server to start, which speaks over stdin and stdout; or a list with its arguments.
        args: Its (further) arguments.
        env: Its environment variables, beyond the few (`PATH`, `HOME`, …) that every server gets.
        cwd: Its working directory; ours unless given.
        url: The endpoint of a server that runs already (streamable HTTP), in place of `command`.
        headers: Sent with every request to `url`.
        timeout: Seconds that a call may take. After that it is cancelled, and its result is a failure.
        start_timeout: Seconds that the server may take until its tools are listed.
        stop_timeout: Seconds that its process may take to end by itself; then it is killed.
        tools: Globs over the names of its tools, such as `["read_*"]`; all of them unless given.
        needs_approval: Which calls a person must approve: all or none, those of tools by globs over their names,
            `"destructive"` for every tool that the server does not call harmless, or a function of the `ToolCall`.

    Raises:
        AgentDefinitionError: If the server is described in a way that cannot work.
    """
    settings = checked_settings(
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
    """A source of tools: an MCP server that runs open for their time. `mcp_server` makes one.

    Runs that are not inside of its own `async with` each have a connection, or a process, of their own, and close it.
    Inside of `async with server:` they share one, which stays open until that is left; calls of a run that is still
    going on then fail.
    """

    def __init__(self, settings: Settings, *, tools: Sequence[str] | None, needs_approval: NeedsApproval) -> None:
        self._settings = settings
        self._globs = tools
        self._needs_approval = needs_approval
        self._keeping: AbstractAsyncContextManager[Link] | None = None
        self._kept: Link | None = None

    def __repr__(self) -> str:
        return f"mcp_server({self._settings!r})"

    @property
    def toolset(self) -> str:
        """The server's name, which its tools have as their `toolset`."""
        return self._settings.name

    @asynccontextmanager
    async def open(self) -> AsyncIterator[list[McpTool]]:
        """Get the server's tools; they can be called as long as this is open.

        Raises:
            McpStartError: If the server cannot be started or reached, or is not ready in time.
            McpToolsError: If its tools cannot be used as they were asked for.
        """
        kept = self._kept
        if kept is not None and kept.is_of_this_loop:
            yield self._offered(kept, await kept.tools())
            return
        async with linked(self._settings) as link:
            yield self._offered(link, await link.tools())

    async def __aenter__(self) -> Self:
        """Start or reach the server, and keep it for every run until this is left.

        Raises:
            HookUsageError: If it is kept open already.
            McpServerError: If it cannot be used.
        """
        if self._keeping is not None:
            raise HookUsageError(f"MCP server {self.toolset!r} is kept open already: runs share it by themselves.")
        keeping = self._keeping = linked(self._settings)
        try:
            link = await keeping.__aenter__()
            try:
                self._offered(link, await link.tools())
            except BaseException as error:
                await keeping.__aexit__(type(error), error, error.__traceback__)
                raise
        except BaseException:
            self._keeping = None
            raise
        self._kept = link
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        keeping, self._keeping, self._kept = self._keeping, None, None
        if keeping is not None:
            await keeping.__aexit__(kind, error, trace)

    def _offered(self, link: Link, listed: Sequence[ListedTool]) -> list[McpTool]:
        """The tools as an agent is offered them."""
        names = [tool.name for tool in listed]
        self._check(names)
        return [
            self._tool(link, tool) for tool in listed if self._globs is None or self._matches(self._globs, tool.name)
        ]

    def _check(self, names: list[str]) -> None:
        if not names:
            raise McpToolsError(self.toolset, "lists no tools.")
        if "" in names:
            raise McpToolsError(self.toolset, "lists a tool without a name.")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise McpToolsError(
                self.toolset, f"lists {', '.join(map(repr, twice))} more than once; nobody could say which is meant."
            )
        asked = self._needs_approval
        approved = [] if isinstance(asked, bool | str) or callable(asked) else asked
        for title, globs in (("tools", self._globs or ()), ("needs_approval", approved)):
            for glob in globs:
                if not any(tool_test(glob)(f"{self.toolset}/{name}") for name in names):
                    raise McpToolsError(
                        self.toolset, f"has no tool that {glob!r} in `{title}` matches. It has {quote(names)}."
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
            destructive=destructive,
            idempotent=idempotent,
            open_world=not (hints is not None and hints.open_world_hint is False),
        )


def _check_globs(where: str, title: str, globs: object) -> None:
    if globs is None and title == "tools":
        return
    if isinstance(globs, str) or not isinstance(globs, Sequence) or not globs:
        raise AgentDefinitionError(where, f"`{title}` is a list of globs over names of tools; got {quote(globs)}")
    if not all(isinstance(glob, str) and glob for glob in globs):
        raise AgentDefinitionError(where, f"`{title}` is a list of globs over names of tools; got {quote(globs)}")
