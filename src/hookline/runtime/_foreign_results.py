"""What the calls of a run of another framework came to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hookline.calls import Denial, ToolResult
from hookline.events import PendingTool

__all__ = ["AgentDone", "ToolDone"]


class ToolDone(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool call of another framework came to.

    Attributes:
        result: What the model is to be told.
        ran: Whether the tool has run.
        changed: Whether `result` is something else than what the tool gave; always so if it did not run.
        error: What the tool raised, for an adapter that raises it on.
        asked: What a person must decide first; the call is not over then.
        stop: The denial that is to end the run.
    """

    result: ToolResult
    ran: bool
    changed: bool = True
    error: Exception | None = None
    asked: PendingTool | None = None
    stop: Denial | None = None


class AgentDone(msgspec.Struct, frozen=True, kw_only=True):
    """What a run, or a call of a sub-agent, of another framework came to.

    Attributes:
        output: What was said last.
        ran: Whether it has run at all.
        changed: Whether `output` is something else than what it said.
        denied: The denial, if a hook refused it or withheld its output.
        continues: Further input that hooks of the `AgentCall` ask for.
    """

    output: str
    ran: bool
    changed: bool = False
    denied: Denial | None = None
    continues: Sequence[str] = ()
