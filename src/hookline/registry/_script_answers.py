"""What the answer of a script means at the point where it stands: read strictly, lest a typing error allow a call."""

from __future__ import annotations

from typing import Any

import msgspec

from hookline._frozen import read_only
from hookline._verdicts import result_of
from hookline._webhook import ControlAnswer
from hookline.calls import CALLS, Ask, Call, Deny, Respond, ToolCall
from hookline.errors import HookUsageError
from hookline.registry._definition import Point
from hookline.registry._errors import ScriptError

__all__ = ["decision_of"]

DECISIONS = {
    "before": ("allow", "deny", "answer", "ask"),
    "guard": ("allow", "deny", "ask"),
    "after": ("allow", "deny", "answer"),
}
"""What a script may decide, by the kind of its hook; after a call, `"answer"` is the result to go on with."""


def decision_of(hook_id: str, point: Point, call: Call, result: Any, written: bytes) -> Any:
    """What a script has decided about a call.

    Args:
        hook_id: The hook, for the error.
        point: Where it stands.
        call: The call.
        result: After it, its result.
        written: What the script wrote; blank has nothing against the call.

    Raises:
        ScriptError: `"invalid_answer"`, if that is no answer that it may give there.
    """
    if not written.strip():
        return None
    answer = _read(hook_id, written)
    _check(hook_id, point, answer)
    if answer.decision == "deny":
        return Deny(answer.reason or f"Denied by {hook_id}.", stop=answer.stop)
    if answer.decision == "ask":
        return Ask(answer.reason)
    if answer.decision == "allow":
        return None if answer.args is None else msgspec.structs.replace(call, args=read_only(answer.args))
    try:
        answered = result_of(CALLS[type(call)], answer.result)
    except HookUsageError as error:
        raise _invalid(hook_id, f"`result`: {error}") from None
    return answered if point.kind == "after" else Respond(answered)


def _read(hook_id: str, written: bytes) -> ControlAnswer:
    try:
        given = msgspec.json.decode(written)
        if not isinstance(given, dict):
            raise ValueError(f"it is no JSON object but {type(given).__name__}")
        unknown = sorted(set(given) - set(ControlAnswer.__struct_encode_fields__))
        if unknown:
            raise ValueError(f"it has the unknown key {unknown[0]!r:.100}")
        return msgspec.convert(given, ControlAnswer)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _invalid(hook_id, str(error) or type(error).__name__) from None


def _check(hook_id: str, point: Point, answer: ControlAnswer) -> None:
    allowed = DECISIONS[point.kind or ""]
    if answer.decision not in allowed:
        raise _invalid(hook_id, f"at {point.name} `decision` is one of {', '.join(allowed)}; got {answer.decision!r}")
    for name, given, wanted in (
        ("args", answer.args is not None, "allow"),
        ("result", answer.result is not None, "answer"),
        ("stop", answer.stop, "deny"),
    ):
        if given and answer.decision != wanted:
            raise _invalid(hook_id, f"`{name}` goes with {wanted!r}, not with {answer.decision!r}")
    if answer.decision == "answer" and answer.result is None:
        raise _invalid(hook_id, "'answer' comes with a `result`")
    if answer.args is not None and not (point.call is ToolCall and point.kind == "before"):
        raise _invalid(hook_id, f"`args` are changed at ToolCall.before, not at {point.name}")


def _invalid(hook_id: str, problem: str) -> ScriptError:
    return ScriptError(hook_id, "invalid_answer", problem)
