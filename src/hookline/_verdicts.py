"""What a hook may give back: whether a changed call is still the same call, and what answers a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hookline._hook_checks import shown
from hookline.calls import AgentResult, Call, CompactResult, ModelResponse, ToolCall, ToolResult, as_tool_result
from hookline.errors import HookUsageError

__all__ = ["check_changed", "result_of"]

_TEXT: dict[type, str] = {AgentResult: "output", ModelResponse: "content", CompactResult: "summary"}
"""The field that a text answers."""

_KEPT = ("operation_id", "tenant_id")


def check_changed(changed: Call, call: Call) -> str | None:
    """What is wrong with a changed call; `None` if nothing is.

    Its `metadata` becomes the one that all hooks of the call share.
    """
    for name in _KEPT if not isinstance(call, ToolCall) else (*_KEPT, "tool_call_id", "call_index", "step_index"):
        old, new = getattr(call, name), getattr(changed, name)
        if new.__class__ is not old.__class__ or new != old:
            return (
                f"changed `{name}` from {shown(old)} to {shown(new)}, which says whose call it is; change calls with "
                "msgspec.structs.replace, which keeps it"
            )
    metadata: object = changed.metadata
    if metadata is not call.metadata:
        if not isinstance(metadata, Mapping):
            return f"changed `metadata` to {shown(metadata)}, which is no mapping"
        call.metadata.update(metadata)
        msgspec.structs.force_setattr(changed, "metadata", call.metadata)
    return None


def result_of(kind: type[msgspec.Struct], answer: object) -> Any:
    """What `Respond(answer)` gives: a result of that class, or the exception that counts as raised.

    Raises:
        HookUsageError: If such a call cannot be answered with it.
    """
    if kind is ToolResult:
        return as_tool_result(answer)
    if isinstance(answer, kind | Exception):
        return answer
    if isinstance(answer, str) and kind in _TEXT:
        return kind(**{_TEXT[kind]: answer})
    if isinstance(answer, Mapping):
        try:
            return msgspec.convert(dict(answer), kind, builtin_types=(bytes,))
        except (msgspec.ValidationError, TypeError) as error:
            raise HookUsageError(f"These are no fields of a {kind.__name__}: {error}.") from error
    text = ", a str" if kind in _TEXT else ""
    raise HookUsageError(
        f"Such a call is answered with a {kind.__name__}{text}, a mapping of its fields, or an Exception instance; "
        f"got {type(answer).__name__}."
    )
