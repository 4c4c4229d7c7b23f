"""The link to an MCP server: one connection at a time, opened again when the server has gone away.

The client runs in tasks of a group that belongs to the link. These tasks catch every error and report it to the next
call, so that an error never cancels the task that opened the link.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import current_token
from mcp.client import Client, IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    PARSE_ERROR,
    Implementation,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from hookline.adapters.mcp._errors import McpServerError, McpStartError, McpToolsError
from hookline.adapters.mcp._http import http_streams
from hookline.adapters.mcp._process import ServerDiagnostics, process_streams
from hookline.adapters.mcp._results import fault, tool_result
from hookline.adapters.mcp._settings import Secrets, Settings
from hookline.calls import ToolResult
from hookline.errors import message_of

__all__ = ["Connection", "Link", "open_link"]

CLIENT_INFO = Implementation(name="hookline", version=version("hookline"))


class Connection:
    """One session with the server, which lasts as long as `keep_open` runs."""

    def __init__(self, settings: Settings, secrets: Secrets) -> None:
        self._settings = settings
        self.diagnostics = ServerDiagnostics(secrets)
        self.client: Client | None = None
        self.tools_changed = True  # because they have not been listed yet
        self.listed = False
        self.settled = anyio.Event()  # set when open, or when opening failed
        self.ended = anyio.Event()
        self.failure: BaseException | None = None
        self._scope = anyio.CancelScope()

    @property
    def is_usable(self) -> bool:
        """Whether the connection is opening or open."""
        return not self.diagnostics.lost.is_set() and not self.ended.is_set()

    async def keep_open(self) -> None:
        """Open the session, keep it open until the server is lost or `stop` is called, and close it."""
        streams = http_streams if self._settings.url else process_streams
        client = Client(
            streams(self._settings, self.diagnostics),
            cache=None,
            client_info=CLIENT_INFO,
            message_handler=self._handle_message,
        )
        try:
            with self._scope:
                async with client:
                    self.client = client
                    self.settled.set()
                    await self.diagnostics.lost.wait()
                    # A hung server never ends its session. Processes end by limits of their own.
                    if self._settings.url:
                        self._scope.deadline = anyio.current_time() + self._settings.stop_timeout
        except Exception as error:
            self.failure = error
        except BaseExceptionGroup as group:
            self.failure, rest = group.split(Exception)
            if rest is not None:
                raise rest from None
        finally:
            self.client = None
            self.diagnostics.lost.set()
            self.ended.set()
            self.settled.set()

    def stop(self) -> None:
        """Close the connection."""
        self.diagnostics.lost.set()
        if self.client is None:
            self._scope.cancel()

    async def _handle_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.tools_changed = True

    def describe(self, *, briefly: bool = False) -> str:
        """Return what is known about the connection's failure, without secrets."""
        diagnostics = self.diagnostics
        return " ".join(
            filter(
                None,
                (diagnostics.secrets.clean(_innermost_reason(self.failure)), diagnostics.describe(briefly=briefly)),
            )
        )


def _innermost_reason(failure: BaseException | None) -> str:
    """Return the message of the innermost error, without the exception groups around it."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return f"{message_of(failure)}." if failure is not None else ""


logger = logging.getLogger("hookline")

EXIT_CODE_SECONDS = 0.5
"""How long a failed call waits for the server's process to end, in order to report its exit code."""


class Link:
    """A server whose tools can be listed and called.

    Args:
        settings: The location of the server and its time limits.
        secrets: The secrets to remove from errors.
        group: The task group that its connections run in.
    """

    def __init__(self, settings: Settings, secrets: Secrets, group: TaskGroup) -> None:
        self._settings, self._secrets, self._group = settings, secrets, group
        self._lock = anyio.Lock()
        self._loop = current_token()
        self._connection: Connection | None = None
        self._closed = False
        self._tools: list[Tool] = []

    @property
    def is_of_this_loop(self) -> bool:
        """Whether the link may be used from the running event loop."""
        return self._loop == current_token()

    @property
    def version(self) -> str:
        """The version that the server reports of itself; empty if there is none, or no connection."""
        client = self._connection.client if self._connection is not None else None
        info = client.server_info if client is not None else None
        return (info.version or "") if info is not None else ""

    async def tools(self) -> list[Tool]:
        """Return the server's tools, listed again if they may have changed.

        Raises:
            McpServerError: If the server cannot be reached or its list cannot be used.
        """
        with anyio.move_on_after(self._settings.start_timeout):
            async with self._lock:
                connection = await self._get_connection()
                if connection.tools_changed:
                    await self._update_tools(connection)
                return self._tools
        raise self._timeout_error(self._connection)

    async def call(self, name: str, args: Mapping[str, Any], *, repeatable: bool = False) -> ToolResult:
        """Call a tool. Whatever the server does, there is a result within the timeout.

        Args:
            name: The tool's name.
            args: The arguments.
            repeatable: Whether a call that was cut off may be repeated once, because the tool is idempotent.
        """
        server, seconds = self._settings.name, self._settings.timeout
        try:
            # A queued message that cannot be encoded would end the connection, and with it the calls of others.
            json.dumps(args, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            return fault(server, "invalid", f"was not called: the arguments are not JSON: {error}")
        with anyio.move_on_after(seconds):
            try:
                return await self._call_with_retry(name, dict(args), repeatable=repeatable)
            except McpServerError as error:
                return fault(server, "start", error.problem)
        if self._connection is not None and self._connection.client is None:
            return fault(server, "start", f"was not ready again within {seconds:g} s (`timeout`).")
        return fault(server, "timeout", f"did not answer within {seconds:g} s, and the call was cancelled.")

    def close(self) -> None:
        """End the connection; calls that come later fail."""
        self._closed = True
        if self._connection is not None:
            self._connection.stop()

    async def _call_with_retry(self, name: str, args: dict[str, Any], *, repeatable: bool) -> ToolResult:
        server = self._settings.name
        for attempt in range(2):
            connection = self._connection
            if connection is None or not connection.is_usable or not connection.listed:
                connection = await self._reconnect()
            client = connection.client
            if client is None:
                continue
            try:
                result = await client.call_tool(name, args)
            except MCPError as error:
                if attempt == 0 and _session_is_unknown(error):
                    connection.stop()  # the server was restarted and has not seen the call
                    continue
                if attempt == 0 and repeatable and not connection.is_usable:
                    continue
                return await self._failed_result(connection, error)
            except ValidationError:
                return fault(server, "invalid", "answered with something that is not a tool result.")
            except Exception as error:  # such as a result that does not fit the tool's own schema
                return fault(server, "invalid", f"gave an invalid result: {self._secrets.clean(message_of(error))}")
            return tool_result(result, self._secrets)
        return fault(server, "ended", "ended before it could be called, twice.")

    async def _failed_result(self, connection: Connection, error: MCPError) -> ToolResult:
        server = self._settings.name
        if error.code == PARSE_ERROR:
            return fault(server, "invalid", f"gave an invalid result: {error.message}.")
        # A server may use the same code for something else, but over stdio it is then still there.
        if error.code != CONNECTION_CLOSED or (connection.is_usable and not self._settings.url):
            details = connection.describe(briefly=True) if self._settings.url else ""
            return fault(
                server, "refused", f"refused the call: {self._secrets.clean(error.message)}. {details}".rstrip()
            )
        if self._closed:
            return fault(server, "ended", "was closed during the call.")
        if not connection.is_usable:
            with anyio.move_on_after(EXIT_CODE_SECONDS):
                await connection.ended.wait()
        details = connection.describe(briefly=True) or self._secrets.clean(error.message)
        return fault(server, "ended", f"was lost during the call, which may or may not have taken effect. {details}")

    async def _reconnect(self) -> Connection:
        async with self._lock:
            connection = await self._get_connection()
            if not connection.listed:
                # The client checks results against the list, and would otherwise request the list after the call.
                await self._update_tools(connection)
            return connection

    async def _get_connection(self) -> Connection:
        """Return a usable connection, opening one within the start timeout if there is none."""
        name = self._settings.name
        if self._closed:
            raise McpStartError(name, "is closed: the run or the `async with` block that kept it open has ended.")
        connection = self._connection
        if connection is None or not connection.is_usable:
            if connection is not None:
                logger.info("MCP server %r has gone away; hookline starts or reaches it again", name)
                await connection.ended.wait()
            connection = self._connection = Connection(self._settings, self._secrets)
            self._group.start_soon(connection.keep_open, name=f"MCP server {name}")
        with anyio.move_on_after(self._settings.start_timeout) as scope:
            await connection.settled.wait()
        if scope.cancelled_caught:
            raise self._timeout_error(connection)
        if connection.client is None:
            raise McpStartError(
                name, f"could not be {'reached' if self._settings.url else 'started'}: {connection.describe()}"
            )
        return connection

    def _timeout_error(self, connection: Connection | None) -> McpStartError:
        limit = f"within {self._settings.start_timeout:g} s. Give it a longer `start_timeout`, or check why it is slow."
        if connection is None:
            return McpStartError(self._settings.name, f"was not ready {limit}")
        stage = "did not list its tools" if connection.client is not None else "was not ready"
        connection.stop()
        return McpStartError(self._settings.name, f"{stage} {limit} {connection.describe()}".rstrip())

    async def _update_tools(self, connection: Connection) -> None:
        connection.tools_changed = False  # set before listing, because the tools may change meanwhile
        try:
            self._tools = await self._list_tools(connection)
        except BaseException:
            connection.tools_changed = True
            raise
        connection.listed = True

    async def _list_tools(self, connection: Connection) -> list[Tool]:
        name, client = self._settings.name, connection.client
        if client is None:
            raise McpStartError(name, f"ended before it listed its tools. {connection.describe()}".rstrip())
        tools: list[Tool] = []
        seen: set[str | None] = {None}
        cursor: str | None = None
        try:
            while True:
                page = await client.list_tools(cursor=cursor)
                tools.extend(page.tools)
                cursor = page.next_cursor
                if cursor is None:
                    return tools
                if cursor in seen:
                    raise McpToolsError(name, "lists its tools in pages that repeat in a cycle.")
                seen.add(cursor)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and not connection.is_usable:
                await connection.ended.wait()
            message = self._secrets.clean(error.message)
            raise McpToolsError(name, f"did not list its tools: {message}. {connection.describe()}".rstrip()) from None
        except ValidationError:
            raise McpToolsError(
                name, "answered the request for its tools with something that is not a list of tools."
            ) from None


@asynccontextmanager
async def open_link(settings: Settings) -> AsyncIterator[Link]:
    """Open a link to a server for the duration of the block."""
    raised: Exception | None = None
    secrets = Secrets(settings)
    with secrets.keep_out_of_logs():
        async with anyio.create_task_group() as group:
            link = Link(settings, secrets, group)
            try:
                yield link
            except Exception as error:
                raised = error  # so that it is raised as it is, not in an exception group
            finally:
                link.close()
    if raised is not None:
        raise raised


def _session_is_unknown(error: MCPError) -> bool:
    """Return whether the server no longer knows the session (HTTP 404), so the client must start a new one."""
    return error.code == INVALID_REQUEST and error.message == "Session terminated"
