"""What the receivers of controls answer: read strictly, lest a typing error allow a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from hookline.calls import as_tool_result
from hookline.errors import DeliveryError, HookUsageError
from hookline.webhooks import ControlAnswer

__all__ = ["checked_answer", "read_answer"]

SPECIFIC = {"permissionDecision", "permissionDecisionReason", "updatedInput", "additionalContext", "hookEventName"}
"""What LobeHub's longer form of an answer may hold."""


def read_answer(hook_id: str, body: bytes) -> ControlAnswer:
    """The answer of a control, as JSON. What is not understood to the last key is no answer.

    Besides `ControlAnswer`, both forms of LobeHub are understood: `{"decision", "reason"}` and `{"hookSpecificOutput":
    {"permissionDecision", "permissionDecisionReason", "updatedInput"}}`.

    Args:
        hook_id: The control, for the error.
        body: What came.

    Raises:
        DeliveryError: `"invalid_response"`, if it is no proper answer.
    """
    try:
        msgspec.json.decode(body)  # which is stricter about JSON than the standard library
        given = json.loads(body, object_pairs_hook=_once)
        if not isinstance(given, dict):
            raise ValueError(f"it is no JSON object but {type(given).__name__}")
        if "hookSpecificOutput" in given:
            given = _unfolded(given)
        unknown = sorted(set(given) - set(ControlAnswer.__struct_encode_fields__))
        if unknown:
            raise ValueError(f"it has the unknown key {unknown[0]!r:.100}")
        if "reason" in given and "decision" not in given:
            raise ValueError("it has a `reason` and no `decision`")
        answer = msgspec.convert(given, ControlAnswer)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _invalid(hook_id, str(error) or type(error).__name__) from None
    return checked_answer(hook_id, answer)


def checked_answer(hook_id: str, answer: object) -> ControlAnswer:
    """An answer of which every part fits its decision.

    Args:
        hook_id: The control, for the error.
        answer: What came. `None`, from a function in this process, has nothing against the call.

    Raises:
        DeliveryError: `"invalid_response"`, if it does not.
    """
    if answer is None:
        return ControlAnswer()
    if not isinstance(answer, ControlAnswer):
        raise _invalid(hook_id, f"it is no ControlAnswer but {type(answer).__name__}")
    if answer.decision not in ("allow", "deny", "answer", "ask"):
        raise _invalid(hook_id, f"`decision` is 'allow', 'deny', 'answer' or 'ask'; got {answer.decision!r:.100}")
    if not isinstance(answer.reason, str) or not isinstance(answer.stop, bool):
        raise _invalid(hook_id, "`reason` is text, and `stop` true or false")
    for name, given, wanted in (
        ("args", answer.args is not None, "allow"),
        ("result", answer.result is not None, "answer"),
        ("stop", answer.stop, "deny"),
    ):
        if given and answer.decision != wanted:
            raise _invalid(hook_id, f"`{name}` goes with {wanted!r}, not with {answer.decision!r}")
    if answer.decision == "answer":
        try:
            as_tool_result(answer.result)
        except HookUsageError as error:
            raise _invalid(hook_id, f"`result`: {error}") from None
    if answer.args is not None and not isinstance(answer.args, dict):
        raise _invalid(hook_id, f"`args` is an object; got {type(answer.args).__name__}")
    return answer


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys each stand there once, since of two answers neither counts."""
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("it has a key twice")
    return dict(pairs)


def _unfolded(given: Mapping[str, Any]) -> dict[str, Any]:
    """LobeHub's longer form, as ours.

    Raises:
        ValueError: If it is not in order.
    """
    specific = given["hookSpecificOutput"]
    if len(given) > 1 or not isinstance(specific, dict) or set(specific) - SPECIFIC:
        raise ValueError("`hookSpecificOutput` stands alone, and holds " + ", ".join(sorted(SPECIFIC)))
    if specific.get("hookEventName", "beforeToolCall") not in ("beforeToolCall", "PreToolUse"):
        raise ValueError("`hookEventName` is not 'beforeToolCall'")
    decision = specific.get("permissionDecision")
    if decision not in ("allow", "deny"):
        raise ValueError("`permissionDecision` is 'allow' or 'deny'")
    answer = {"decision": decision, "reason": specific.get("permissionDecisionReason") or ""}
    if specific.get("updatedInput") is not None:
        answer["args"] = specific["updatedInput"]
    return answer


def _invalid(hook_id: str, problem: str) -> DeliveryError:
    return DeliveryError(hook_id, "invalid_response", f"the answer cannot be used: {problem}")
