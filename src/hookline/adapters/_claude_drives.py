"""What of hookline the Claude Agent SDK can drive."""

from __future__ import annotations

from typing import Any

import msgspec
from claude_agent_sdk import ClaudeAgentOptions

from hookline.calls import AgentCall, SubAgentCall, ToolCall
from hookline.runtime import KINDS, Drives

__all__ = ["DRIVES", "driven_by", "given_to"]

DRIVES = Drives(framework="Claude Agent SDK", calls={AgentCall: KINDS, ToolCall: KINDS, SubAgentCall: KINDS})
"""What of hookline the Claude Agent SDK can drive; Claude asks its model, and compacts, in a process of its own."""

ASKING = msgspec.structs.replace(DRIVES, asks=True)


def driven_by(options: ClaudeAgentOptions) -> Drives:
    """What can be driven with these options: only with `can_use_tool` is there somebody to ask."""
    return DRIVES if options.can_use_tool is None else ASKING


def given_to(options: ClaudeAgentOptions) -> dict[str, Any]:
    """What a run is given unless the caller says otherwise."""
    return {"agent_id": "claude", "model": options.model or "", "provider": "anthropic"}
