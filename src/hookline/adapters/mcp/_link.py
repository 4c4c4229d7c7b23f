"""The link to an MCP server: one connection at a time, made again when the server has gone.

The client's own work runs in tasks of a group that belongs to the link. They catch whatever goes wrong there: it is
told to whoever calls next, and never ends the task that opened the link.
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
from hookline.adapters.mcp._process import Witness, process_streams
from hookline.adapters.mcp._results import fault, tool_result
from hookline.adapters.mcp._settings import Secrets, Settings
from hookline.calls import ToolResult
from hookline.errors import message_of

__all__ = ["Connection", "Link", "linked"]

CLIENT = Implementation(name="hookline", version=version("hookline"))


class Connection:
    """One session with the server. `hold` runs as long as it lasts."""

    def __init__(self, settings: Settings, secrets: Secrets) -> None:
        self._settings = settings
        self.witness = Witness(secrets)
        self.client: Client | None = None
        self.tools_changed = True  # since nobody has asked for them
        self.listed = False
        self.settled = anyio.Event()  # open, or failed to open
        self.over = anyio.Event()
        self.failure: BaseException | None = None
        self._scope = anyio.CancelScope()

    @property
    def usable(self) -> bool:
        """Whether it may still come, or has come and lasts."""
        return not self.witness.lost.is_set() and not self.over.is_set()

    async def hold(self) -> None:
        """Open the session, keep it until the server is lost or nobody needs it, and close it."""
        streams = http_streams if self._settings.url else process_streams
        client = Client(
            streams(self._settings, self.witness), cache=None, client_info=CLIENT, message_handler=self._hear
        )
        try:
            with self._scope:
                async with client:
                    self.client = client
                    self.settled.set()
                    await self.witness.lost.wait()
                    # A server that hangs does not hear that its session ends. Ending a process has its own times.
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
            self.witness.lost.set()
            self.over.set()
            self.settled.set()

    def stop(self) -> None:
        """Nobody needs it any more."""
        self.witness.lost.set()
        if self.client is None:
            self._scope.cancel()

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.tools_changed = True

    def told(self, *, briefly: bool = False) -> str:
        """What is known about its failure, without secrets."""
        witness = self.witness
        return " ".join(filter(None, (witness.secrets.clean(_cause(self.failure)), witness.told(briefly=briefly))))


def _cause(failure: BaseException | None) -> str:
    """The innermost reason, without the groups around it."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return f"{message_of(failure)}." if failure is not None else ""


logger = logging.getLogger("hookline")

LAST_WORDS_SECONDS = 0.5
"""How long a failed call waits for the end of the process that failed it, to say how that ended."""


class Link:
    """A server that is there to be called.

    Args:
        settings: Where it is, and how long it may take.
        secrets: What must not be shown.
        group: Where its connections live.
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
        """Whether it may be used from the event loop that runs at this moment."""
        return self._loop == current_token()

    async def tools(self) -> list[Tool]:
        """The server's tools, asked for again if they may have changed.

        Raises:
            McpServerError: If the server cannot be reached or its list cannot be used.
        """
        with anyio.move_on_after(self._settings.start_timeout):
            async with self._lock:
                connection = await self._connected()
                if connection.tools_changed:
                    await self._list(connection)
                return self._tools
        raise self._too_slow(self._connection)

    async def call(self, name: str, args: Mapping[str, Any], *, repeatable: bool = False) -> ToolResult:
        """Have a tool called. Whatever the server does, there is a result within the timeout.

        Args:
            name: The tool.
            args: Its arguments, as they are.
            repeatable: Whether a call that was cut may be made again, once, because that changes nothing.
        """
        server, seconds = self._settings.name, self._settings.timeout
        try:
            # Once queued, what cannot be written would end the connection, and with it the calls of others.
            json.dumps(args, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            return fault(server, "invalid", f"was not called: the arguments are no JSON: {error}")
        with anyio.move_on_after(seconds):
            try:
                return await self._answered(name, dict(args), repeatable=repeatable)
            except McpServerError as error:
                return fault(server, "start", error.problem)
        if self._connection is not None and self._connection.client is None:
            return fault(server, "start", f"was not ready again within {seconds:g} s (`timeout`).")
        return fault(server, "timeout", f"did not answer within {seconds:g} s; it was told that the call is cancelled.")

    def close(self) -> None:
        """End the connection; calls that come later fail."""
        self._closed = True
        if self._connection is not None:
            self._connection.stop()

    async def _answered(self, name: str, args: dict[str, Any], *, repeatable: bool) -> ToolResult:
        server = self._settings.name
        for attempt in range(2):
            connection = self._connection
            if connection is None or not connection.usable or not connection.listed:
                connection = await self._listed_again()
            client = connection.client
            if client is None:
                continue
            try:
                result = await client.call_tool(name, args)
            except MCPError as error:
                if attempt == 0 and _session_is_unknown(error):
                    connection.stop()  # the server was started anew, and has not looked at the call
                    continue
                if attempt == 0 and repeatable and not connection.usable:
                    continue
                return await self._failed(connection, error)
            except ValidationError:
                return fault(server, "invalid", "answered with what is no result of a tool.")
            except Exception as error:  # a result that does not fit the tool's own schema, and the like
                return fault(server, "invalid", f"gave no valid result: {self._secrets.clean(message_of(error))}")
            return tool_result(result, self._secrets)
        return fault(server, "ended", "ended before it could be called, twice.")

    async def _failed(self, connection: Connection, error: MCPError) -> ToolResult:
        server = self._settings.name
        if error.code == PARSE_ERROR:
            return fault(server, "invalid", f"gave no valid result: {error.message}.")
        # A server may have the same code for something else, but over stdio it is then still there.
        if error.code != CONNECTION_CLOSED or (connection.usable and not self._settings.url):
            told = connection.told(briefly=True) if self._settings.url else ""
            return fault(server, "refused", f"refused the call: {self._secrets.clean(error.message)}. {told}".rstrip())
        if self._closed:
            return fault(server, "ended", "was closed during the call.")
        if not connection.usable:
            with anyio.move_on_after(LAST_WORDS_SECONDS):
                await connection.over.wait()
        told = connection.told(briefly=True) or self._secrets.clean(error.message)
        return fault(server, "ended", f"was lost during the call, which may have had its effect or not. {told}")

    async def _listed_again(self) -> Connection:
        async with self._lock:
            connection = await self._connected()
            if not connection.listed:
                # The client checks results by the list, and would ask for it only after the call.
                await self._list(connection)
            return connection

    async def _connected(self) -> Connection:
        """The connection, made if there is none, within the start timeout."""
        name = self._settings.name
        if self._closed:
            raise McpStartError(name, "is closed: the run or the `async with` that kept it open has ended.")
        connection = self._connection
        if connection is None or not connection.usable:
            if connection is not None:
                logger.info("MCP server %r has ended and is started or reached again", name)
                await connection.over.wait()
            connection = self._connection = Connection(self._settings, self._secrets)
            self._group.start_soon(connection.hold, name=f"MCP server {name}")
        with anyio.move_on_after(self._settings.start_timeout) as scope:
            await connection.settled.wait()
        if scope.cancelled_caught:
            raise self._too_slow(connection)
        if connection.client is None:
            raise McpStartError(
                name, f"could not be {'reached' if self._settings.url else 'started'}: {connection.told()}"
            )
        return connection

    def _too_slow(self, connection: Connection | None) -> McpStartError:
        limit = f"within {self._settings.start_timeout:g} s. Give it a longer `start_timeout`, or look at what it does."
        if connection is None:
            return McpStartError(self._settings.name, f"was not ready {limit}")
        stage = "did not list its tools" if connection.client is not None else "was not ready"
        connection.stop()
        return McpStartError(self._settings.name, f"{stage} {limit} {connection.told()}".rstrip())

    async def _list(self, connection: Connection) -> None:
        connection.tools_changed = False  # before, for they may change while they are listed
        try:
            self._tools = await self._listed(connection)
        except BaseException:
            connection.tools_changed = True
            raise
        connection.listed = True

    async def _listed(self, connection: Connection) -> list[Tool]:
        name, client = self._settings.name, connection.client
        if client is None:
            raise McpStartError(name, f"ended before it listed its tools. {connection.told()}".rstrip())
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
                    raise McpToolsError(name, "lists its tools in pages that go round in a circle.")
                seen.add(cursor)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and not connection.usable:
                await connection.over.wait()
            said = self._secrets.clean(error.message)
            raise McpToolsError(name, f"did not list its tools: {said}. {connection.told()}".rstrip()) from None
        except ValidationError:
            raise McpToolsError(name, "answered the question for its tools with what is no list of tools.") from None


@asynccontextmanager
async def linked(settings: Settings) -> AsyncIterator[Link]:
    """A link that is open as long as this is."""
    raised: Exception | None = None
    secrets = Secrets(settings)
    with secrets.kept_out_of_logs():
        async with anyio.create_task_group() as group:
            link = Link(settings, secrets, group)
            try:
                yield link
            except Exception as error:
                raised = error  # as it is, and not in a group
            finally:
                link.close()
    if raised is not None:
        raise raised


def _session_is_unknown(error: MCPError) -> bool:
    """Whether the server has forgotten the session (HTTP 404): the client must start a new one."""
    return error.code == INVALID_REQUEST and error.message == "Session terminated"
