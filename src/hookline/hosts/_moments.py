"""The moments at which a coding agent asks its hooks, whatever it calls them."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Moment"]


class Moment(StrEnum):
    """A moment in a session of a coding agent."""

    SESSION_START = "session start"
    SESSION_END = "session end"
    PROMPT = "prompt"
    BEFORE_TOOL = "before tool"
    PERMISSION = "permission"
    AFTER_TOOL = "after tool"
    FAILED_TOOL = "failed tool"
    AGENT_START = "sub-agent start"
    AGENT_STOP = "sub-agent stop"
    BEFORE_COMPACT = "before compaction"
    AFTER_COMPACT = "after compaction"
    STOP = "stop"
    OTHER = "other"
