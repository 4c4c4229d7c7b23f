"""One session with an MCP server, from its start to the loss of either side."""

from __future__ import annotations

from importlib.metadata import version

import anyio
from mcp.client import Client, IncomingMessage
from mcp_types import Implementation, ToolListChangedNotification

from hookline.adapters._mcp_http import http_streams
from hookline.adapters._mcp_process import process_streams
from hookline.adapters._mcp_secrets import Secrets
from hookline.adapters._mcp_settings import Settings
from hookline.adapters._mcp_streams import Witness
from hookline.errors import message_of

__all__ = ["Connection"]

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
