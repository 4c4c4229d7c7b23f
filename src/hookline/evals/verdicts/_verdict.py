"""`Verdict`: what became of the tool calls that a policy judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Record", "Verdict"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call that has ended, as the events of a run record it.

    Attributes:
        tool: The tool.
        success: Whether the call succeeded.
        mocked: Whether a hook answered in the tool's place.
        answered_by: The hook that answered or denied the call: its id, or that of its bundle.
    """

    tool: str
    success: bool = True
    mocked: bool = False
    answered_by: str | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a policy: which tools ran, what the model read, whom it asked, and how the run ended.

    Attributes:
        ran: The tools that ran, in order, each with its arguments.
        read: The results that the model read.
        context: The texts that the model read besides, each once.
        asked: The prompts that a person read, in order.
        ended: How the run of the agent that called the tools ended: the reason of its last `OnComplete`.
        records: What the events say about each call that has ended, in order.
    """

    ran: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    read: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    ended: str = "done"
    records: tuple[Record, ...] = ()
