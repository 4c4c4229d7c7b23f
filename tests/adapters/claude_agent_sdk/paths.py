"""The ways to run an agent of the Claude Agent SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from hookline.adapters.claude_agent_sdk import HookedClaude
from hookline.evals.verdicts import Path

from ..differences import deny_questions, stop_is_read
from .cli import FakeCli
from .stage import ClaudeStage

__all__ = ["PATHS"]


class ClientStage(ClaudeStage):
    """Holds a conversation of one turn with a client."""

    async def messages(self, claude: HookedClaude, prompt: str, cli: FakeCli) -> AsyncIterator[Any]:
        async with claude.client(transport=cli) as client:
            await client.query(prompt)
            async for message in client.receive_response():
                yield message


ASKS = deny_questions(
    "Without a `can_use_tool` in the options nobody can be asked, so a hook that asks denies the call."
)

NESTED = {
    **ASKS,
    **stop_is_read(
        "Claude Code cannot end a sub-agent alone: the sub-agent reads the reason, and its further calls are refused."
    ),
}

PATHS = [
    Path("query", ClaudeStage(), differs=ASKS),
    Path("client", ClientStage(), differs=ASKS),
    Path("sub-agent", ClaudeStage(), depth=1, differs=NESTED),
    Path("sub-agent of a sub-agent", ClaudeStage(), depth=2, differs=NESTED),
    Path("client, sub-agent", ClientStage(), depth=1, differs=NESTED),
]
