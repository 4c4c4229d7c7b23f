"""`Policy`: one rule about tool calls, as data, so that a Python hook, a script and a webhook can all apply it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

__all__ = ["Act", "Policy"]

Act = Literal["allow", "deny", "stop", "rewrite", "ask", "answer", "replace", "context", "fail", "hang"]
"""What a policy does about the calls that it applies to.

`"replace"` changes a result, `"context"` adds text for the model, and `"fail"` and `"hang"` break.
"""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One rule about tool calls, as data. A form, such as Python hooks or a script, applies it.

    Attributes:
        act: What the policy does about a call that it applies to. It has no objection to any other call.
        text: The reason of a denial, the prompt for a person, the result that the model reads, or the text that the
            model reads besides the result.
        args: The arguments that a rewritten call gets; the others stay.
        tool: The only tool that it applies to.
        when: The arguments of the only calls that it applies to.
        user_id: The only user that it applies to.
        tenant_id: The only tenant that it applies to.
        agent_id: The only agent that it applies to.
        inherit: Whether sub-agents inherit the policy.
        on_error: What happens to a call if the policy fails or hangs.
    """

    act: Act
    text: str = ""
    args: Mapping[str, Any] = {}
    tool: str | None = None
    when: Mapping[str, Any] = {}
    user_id: str | None = None
    tenant_id: str | None = None
    agent_id: str | None = None
    inherit: bool = True
    on_error: Literal["open", "closed"] = "closed"

    def applies_to(self, call: Mapping[str, Any]) -> bool:
        """Return whether the policy applies to a call.

        Args:
            call: The facts about the call: `tool_name`, `args`, `user_id`, `tenant_id`, `agent_id`.
        """
        args: Mapping[str, Any] = call["args"]
        return (
            self.tool in (None, call["tool_name"])
            and all(args.get(name) == value for name, value in self.when.items())
            and self.user_id in (None, call["user_id"])
            and self.tenant_id in (None, call["tenant_id"])
            and self.agent_id in (None, call["agent_id"])
        )
