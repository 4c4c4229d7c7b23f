"""Tools that come from elsewhere, such as a server in another process: opened for a run, and closed at its end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from hookline._checks import shown
from hookline.errors import AgentDefinitionError
from hookline.runtime._tools import Tool

__all__ = ["ToolSource", "is_source", "opened"]

logger = logging.getLogger("hookline")


class ToolSource(Protocol):
    """Where tools come from that are not known before a run has asked for them.

    Attributes:
        identifier: The `identifier` of its tools.
    """

    @property
    def identifier(self) -> str: ...

    def open(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Get the tools, and whatever they need to be called, for the time that the context is open.

        It is entered and left in the task of the run, which is cancelled when the run is interrupted. What works in the
        background must not fail or cancel that task.
        """
        ...


def is_source(entry: object) -> bool:
    """Whether an entry of `Agent.tools` is a source."""
    return callable(getattr(entry, "open", None)) and isinstance(getattr(entry, "identifier", None), str)


@asynccontextmanager
async def opened(sources: Sequence[ToolSource]) -> AsyncIterator[list[Tool]]:
    """The tools of several sources, one after the other.

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
                        f"Tool source {source.identifier!r}", f"it gives Tools; one of them is {shown(tool)}"
                    )
            tools.extend(given)
        yield tools


@asynccontextmanager
async def _open(source: ToolSource) -> AsyncIterator[Sequence[Tool]]:
    """One source, which cannot spoil a run that is over by failing to close."""
    opening = source.open()
    tools = await opening.__aenter__()
    try:
        yield tools
    finally:
        try:
            await opening.__aexit__(None, None, None)
        except Exception:
            logger.exception("Tool source %r could not be closed", source.identifier)
