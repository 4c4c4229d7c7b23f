"""Parse the answers of control webhooks. The parser is strict, so that a misspelled key never allows a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hookline.calls import as_tool_result
from hookline.dialects import DIALECTS, parse_answer, parse_answer_object, report_answer
from hookline.errors import DeliveryError, HookUsageError
from hookline.webhooks import ControlAnswer, HookData

__all__ = [
    "check_answer",
    "check_known_keys",
    "find_misplaced_field",
    "parse_answer_object",
    "read_answer",
    "read_host_answer",
]

SPECIFIC = {"permissionDecision", "permissionDecisionReason", "updatedInput", "additionalContext", "hookEventName"}
"""Keys that LobeHub's `hookSpecificOutput` may have."""


def read_answer(hook_id: str, body: bytes) -> ControlAnswer:
    """Parse the JSON answer of a control. An unknown key anywhere makes the answer invalid.

    Besides `ControlAnswer`, both forms of LobeHub are accepted: `{"decision", "reason"}` and `{"hookSpecificOutput":
    {"permissionDecision", "permissionDecisionReason", "updatedInput", "additionalContext"}}`.

    Args:
        hook_id: The control's hook id, for the error.
        body: The body of the response.

    Raises:
        DeliveryError: `"invalid_response"`, if the body is not a valid answer.
    """
    try:
        given = parse_answer_object(body)
        if "hookSpecificOutput" in given:
            given = _flatten_hook_specific_output(given)
        check_known_keys(given)
        if "reason" in given and "decision" not in given:
            raise ValueError("it has a `reason` but no `decision`")
        answer = msgspec.convert(given, ControlAnswer)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _invalid_answer_error(hook_id, str(error) or type(error).__name__) from None
    return check_answer(hook_id, answer)


def read_host_answer(hook: HookData, body: bytes) -> ControlAnswer:
    """Parse the answer of a control in the dialect of a coding agent, for its event before a tool call.

    Args:
        hook: The control's hook.
        body: The body of the response.

    Raises:
        DeliveryError: `"invalid_response"`, if the answer does not count.
    """
    answer = parse_answer(DIALECTS[hook.webhook.dialect], "PreToolUse", body)
    report_answer(hook.id, answer)
    fault = answer.find_fault(closed=hook.webhook.on_error == "closed")
    if fault:
        raise _invalid_answer_error(hook.id, fault)
    context = answer.context or msgspec.UNSET
    if answer.decision in ("deny", "ask"):
        return ControlAnswer(
            decision=answer.decision, reason=answer.reason, stop=answer.stop, additional_context=context
        )
    return ControlAnswer(args=answer.args, additional_context=context)


def check_answer(hook_id: str, answer: object) -> ControlAnswer:
    """Check that each field of an answer goes with its decision, and return the answer.

    Args:
        hook_id: The control's hook id, for the error.
        answer: The answer. `None`, from a function of this process, allows the call.

    Raises:
        DeliveryError: `"invalid_response"`, if a field does not go with the decision.
    """
    if answer is None:
        return ControlAnswer()
    if not isinstance(answer, ControlAnswer):
        raise _invalid_answer_error(hook_id, f"it must be a ControlAnswer, not {type(answer).__name__}")
    if answer.decision not in ("allow", "deny", "answer", "ask"):
        raise _invalid_answer_error(
            hook_id, f"`decision` must be 'allow', 'deny', 'answer' or 'ask'; got {answer.decision!r:.100}"
        )
    if not isinstance(answer.reason, str) or not isinstance(answer.additional_context, str | msgspec.UnsetType):
        raise _invalid_answer_error(hook_id, "`reason` and `additionalContext` must be text")
    if not isinstance(answer.stop, bool):
        raise _invalid_answer_error(hook_id, "`stop` must be true or false")
    misplaced = find_misplaced_field(answer)
    if misplaced is not None:
        raise _invalid_answer_error(hook_id, misplaced)
    if answer.decision == "answer":
        try:
            as_tool_result(answer.result)
        except HookUsageError as error:
            raise _invalid_answer_error(hook_id, f"`result`: {error}") from None
    if answer.args is not None and not isinstance(answer.args, dict):
        raise _invalid_answer_error(hook_id, f"`args` must be an object; got {type(answer.args).__name__}")
    return answer


def check_known_keys(given: Mapping[str, Any]) -> None:
    """Check that an answer has only keys of `ControlAnswer`.

    Raises:
        ValueError: If it has another one.
    """
    unknown = sorted(set(given) - set(ControlAnswer.__struct_encode_fields__))
    if unknown:
        raise ValueError(f"it has an unknown key {unknown[0]!r:.100}")


def find_misplaced_field(answer: ControlAnswer) -> str | None:
    """Return what is wrong with an answer of which a field does not go with its decision; `None` if all fields do."""
    for name, given, wanted in (
        ("args", answer.args is not None, "allow"),
        ("result", answer.result is not None, "answer"),
        ("stop", answer.stop, "deny"),
    ):
        if given and answer.decision != wanted:
            return f"`{name}` is only allowed with {wanted!r}, not with {answer.decision!r}"
    return None


def _flatten_hook_specific_output(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert LobeHub's `hookSpecificOutput` form into the keys of `ControlAnswer`.

    Raises:
        ValueError: If a key or a value is not one that LobeHub defines.
    """
    specific = given["hookSpecificOutput"]
    if len(given) > 1 or not isinstance(specific, dict) or set(specific) - SPECIFIC:
        raise ValueError("`hookSpecificOutput` must be the only key, with " + ", ".join(sorted(SPECIFIC)))
    if specific.get("hookEventName", "beforeToolCall") not in ("beforeToolCall", "PreToolUse"):
        raise ValueError("`hookEventName` must be 'beforeToolCall'")
    decision = specific.get("permissionDecision")
    if decision not in ("allow", "deny"):
        raise ValueError("`permissionDecision` must be 'allow' or 'deny'")
    answer = {"decision": decision, "reason": specific.get("permissionDecisionReason") or ""}
    if specific.get("additionalContext") is not None:
        answer["additionalContext"] = specific["additionalContext"]
    if specific.get("updatedInput") is not None:
        answer["args"] = specific["updatedInput"]
    return answer


def _invalid_answer_error(hook_id: str, problem: str) -> DeliveryError:
    return DeliveryError(hook_id, "invalid_response", f"the answer is invalid: {problem}")
