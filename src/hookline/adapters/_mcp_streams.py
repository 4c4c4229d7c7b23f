"""The two ends that a transport gives to the MCP client: messages in, messages out, and what was noticed about them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

from hookline.adapters._mcp_secrets import Secrets

__all__ = ["LONGEST_MESSAGE", "Incoming", "Outgoing", "Witness", "parsed"]

LONGEST_MESSAGE = 64 * 1024 * 1024
"""Bytes of one message beyond which a server is taken for one that floods."""

UNREADABLE = "its answer is no JSON-RPC response"

KEPT_WORDS = 2000
"""Characters of a server's stderr, its newest, that an error may show."""

FEW_WORDS = 300
"""And that the result of a call may show, which a model reads."""


LOOKED_AT = 64 * 1024
"""Bytes of a strange line that are looked through for secrets."""


class Witness:
    """What one connection has shown of its server, to say it in an error.

    Args:
        secrets: What must not be shown.

    Attributes:
        lost: Set once the server can be talked to no more.
        exit_code: Of its process; `None` while it runs, or where there is none.
        status: The HTTP status of its last answer, if that was a failure.
        strange: The first line that it wrote to stdout and that is no message.
        problem: Why the connection was given up.
    """

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets
        self.lost = anyio.Event()
        self.exit_code: int | None = None
        self.status: int | None = None
        self.strange = ""
        self.problem = ""
        self._words = b""

    def hear(self, words: bytes) -> None:
        """Something that the server wrote to stderr."""
        self._words += words
        if len(self._words) > 8 * KEPT_WORDS:  # cut only where it is clean: half a secret would not be found again
            clean = self.secrets.clean(self._words.decode(errors="surrogateescape"))
            self._words = clean.encode(errors="surrogateescape")[-4 * KEPT_WORDS :]

    def note_strange(self, line: bytes) -> None:
        """A line of stdout that is no message."""
        # Far more is cleaned than shown, so that no half of a secret at its end is.
        self.strange = self.strange or self.secrets.clean(line[:LOOKED_AT].decode(errors="replace")).strip()[:200]

    def told(self, *, briefly: bool = False) -> str:
        """Everything that helps to understand why the server failed, as sentences, without secrets."""
        parts = [self.problem]
        if self.exit_code is not None:
            parts.append(f"Its process ended with exit code {self.exit_code}.")
        if self.status is not None:
            parts.append(f"It answered with HTTP status {self.status}.")
        if self.strange:
            parts.append(f"It wrote to stdout what is no MCP message: {self.strange!r}.")
        words = self.secrets.clean(self._words.decode(errors="replace")).strip()[
            -(FEW_WORDS if briefly else KEPT_WORDS) :
        ]
        if words:
            parts.append(f"The end of its stderr:\n{words}")
        return self.secrets.clean(" ".join(filter(None, parts)))


def parsed(line: bytes) -> SessionMessage | None:
    """One line as a message.

    An answer that is none of JSON-RPC's fails its request, which would wait for it in vain.

    Returns:
        `None` if nobody can be told of it.
    """
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValidationError, RecursionError):
        pass
    try:
        document = msgspec.json.decode(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    number = document.get("id") if isinstance(document, dict) and "method" not in document else None
    if isinstance(number, bool) or not isinstance(number, int | str):
        return None
    error = ErrorData(code=PARSE_ERROR, message=UNREADABLE)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error))


class _End:
    """A stream that is closed by leaving it."""

    async def aclose(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Incoming(_End):
    """Messages of the server. What it says of errors is rid of secrets before anybody logs or traces it.

    Args:
        receive: Where the messages come from.
        secrets: What is taken out.
    """

    def __init__(self, receive: MemoryObjectReceiveStream[SessionMessage | Exception], secrets: Secrets) -> None:
        self._receive, self._secrets = receive, secrets

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        item = await self._receive.receive()
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCError):
            error = item.message.error
            # The client quotes what it could not parse, cut in the middle, where a secret would not be found again.
            told = UNREADABLE if error.code == PARSE_ERROR else self._secrets.clean(error.message)
            item.message.error = ErrorData(code=error.code, message=told, data=error.data)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """No more is wanted."""
        self._receive.close()


class Outgoing(_End):
    """Messages to the server. Sending never waits, so that nobody who gives up a call waits for a server that hangs.

    Args:
        put: Takes a message, for somebody else to write.
        close: Says that there will be no more.
    """

    def __init__(self, put: Callable[[SessionMessage], None], close: Callable[[], None]) -> None:
        self._put, self._close = put, close

    async def send(self, item: SessionMessage) -> None:
        """Queue a message."""
        self._put(item)

    async def aclose(self) -> None:
        """No more will come."""
        self._close()
