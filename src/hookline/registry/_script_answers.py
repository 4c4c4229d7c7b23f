"""What the answer of a script means at the point where it stands: read strictly, lest a typing error allow a call."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hookline._readonly import read_only
from hookline.calls import CALLS, Ask, Call, Deny, Respond, ToolCall
from hookline.errors import HookUsageError
from hookline.interceptors import result_of
from hookline.registry._definition import Point
from hookline.registry._errors import ScriptError
from hookline.webhooks import ControlAnswer

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
        written: What the script wrote; nothing, or an empty object, has nothing against the call.

    Raises:
        ScriptError: `"invalid_answer"`, if that is no answer that it may give there.
    """
    if not written.strip():
        return None
    answer = _read(hook_id, written)
    if answer is None:
        return None
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


def _read(hook_id: str, written: bytes) -> ControlAnswer | None:
    """The answer; `None` for an empty object."""
    try:
        msgspec.json.decode(written)  # which is stricter about JSON than the standard library
        given = json.loads(written, object_pairs_hook=_once)
        if not isinstance(given, dict):
            raise ValueError(f"it is no JSON object but {type(given).__name__}")
        unknown = sorted(set(given) - set(ControlAnswer.__struct_encode_fields__))
        if unknown:
            raise ValueError(f"it has the unknown key {unknown[0]!r:.100}")
        if given and "decision" not in given:
            raise ValueError("it has no `decision`")
        return msgspec.convert(given, ControlAnswer) if given else None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _invalid(hook_id, str(error) or type(error).__name__) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys each stand there once, since of two answers neither counts."""
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("it has a key twice")
    return dict(pairs)


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
