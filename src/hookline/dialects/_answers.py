"""Read what a hook of a host answers: its output, its errors and its exit code. Reading never raises.

Of two readings the stricter one holds. A denial is found wherever some host looks for it, whatever else is wrong with
the answer; everything but a denial needs an answer without a fault.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from hookline.dialects._table import Dialect

__all__ = ["HostAnswer", "parse_answer", "parse_answer_object"]

LONGEST_TEXT = 10_000
"""Characters of a reason or a context that are kept."""
SURROGATE = re.compile(r"[\ud800-\udfff]")
EMBEDDED = re.compile(r'\{\s*"')
"""The beginning of a JSON object inside of a text. A text without one, such as a line of a log, is no broken answer."""
WORDS: Mapping[str, Literal["allow", "ask", "deny"]] = {
    "allow": "allow",
    "approve": "allow",
    "ask": "ask",
    "defer": "ask",
    "deny": "deny",
    "block": "deny",
}
"""Values of `decision` and `permissionDecision`. A deferred call waits for a person, as one that is asked about."""
STRICTNESS = ("", "allow", "ask", "deny")
KEYS = frozenset(
    {
        *("continue", "stopReason", "suppressOutput", "systemMessage", "decision", "reason", "hookSpecificOutput"),
        *("permissionDecision", "permissionDecisionReason", "additionalContext", "modifiedArgs", "modifiedResult"),
    }
)
SPECIFIC_KEYS = frozenset(
    {
        *("hookEventName", "permissionDecision", "permissionDecisionReason", "updatedInput", "additionalContext"),
        *("updatedToolOutput", "updatedMCPToolOutput", "tool_input", "decision", "reason"),
    }
)


class HostAnswer(NamedTuple):
    """The answer of a hook script or an HTTP hook, in no host's spelling.

    Attributes:
        decision: `"deny"`, `"ask"`, `"allow"`, or `""` if it decided nothing.
        reason: The reason of a denial, or the question to a person; `""` if none was given.
        stop: Whether the run is to end.
        args: Changed arguments.
        result: A changed result of the call, as text.
        context: Text for the model.
        message: Text for the user.
        failure: What was wrong: `"exit_code"`, or `"invalid_answer"`; `""` if nothing was.
        problem: The failure, in words.
        is_text: Whether it wrote text that is no JSON, which hosts ignore where they do not pass it to the model.
        remarks: What to know about an answer that counts here and would not in its host.
        unknown: The paths of keys that nothing reads.
    """

    decision: Literal["", "allow", "ask", "deny"] = ""
    reason: str = ""
    stop: bool = False
    args: dict[str, Any] | None = None
    result: str | None = None
    context: str = ""
    message: str = ""
    failure: Literal["", "exit_code", "invalid_answer"] = ""
    problem: str = ""
    is_text: bool = False
    remarks: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def find_fault(self, *, closed: bool, judges: bool = True) -> str:
        """Return why the answer does not count; `""` if it does. A denial always counts.

        Args:
            closed: Whether the hook fails closed: then an exit code, and text in the place of JSON, are faults.
            judges: Whether the event lets the hook decide; else text is no fault.
        """
        if self.decision == "deny":
            return ""
        if self.failure == "exit_code":
            says_something = self.decision or self.args is not None or self.result is not None or self.context
            return self.problem if closed or not says_something else ""
        if self.failure:
            return self.problem
        return "it wrote text that is no JSON" if self.is_text and closed and judges else ""


def parse_answer(dialect: Dialect, event: str, output: bytes, errors: bytes = b"", exit_code: int = 0) -> HostAnswer:
    """Read the answer of a hook.

    Args:
        dialect: The dialect of the hook.
        event: The event that it was asked about, by Claude Code's name.
        output: Its stdout, or the body of its response.
        errors: Its stderr.
        exit_code: Its exit code; negative if a signal ended it.
    """
    answer = _read_output(dialect, event, output)
    if exit_code == 0:
        return answer
    told = _clean(errors.decode(errors="replace").strip())
    blocks = (
        exit_code == 2
        or dialect.blocking_exits == "all"
        or (dialect.blocking_exits == "told" and exit_code > 1 and bool(told))
    )
    if blocks:
        # The other fields of an answer do not go with a block; a host that blocks has not read them.
        reason = told or answer.reason
        return HostAnswer(
            decision="deny", reason=reason, stop=answer.stop, context=answer.context, unknown=answer.unknown
        )
    problem = f"it was ended by signal {-exit_code}" if exit_code < 0 else f"it exited with {exit_code}"
    return answer._replace(failure="exit_code", problem=f"{problem}: {told}" if told else problem)


def _read_output(dialect: Dialect, event: str, output: bytes) -> HostAnswer:
    text = output.decode(errors="replace").removeprefix("\ufeff").strip()
    if not text:
        return HostAnswer()
    if not text.startswith("{"):
        if EMBEDDED.search(text):
            return HostAnswer(failure="invalid_answer", problem="it wrote text before its JSON", is_text=True)
        if dialect.text_is_context and event in ("UserPromptSubmit", "SessionStart"):
            return HostAnswer(context=_clean(text))
        return HostAnswer(is_text=True)
    try:
        given, repeated = _load(text)
    except (ValueError, RecursionError) as error:
        problem = f"its output is no valid JSON: {str(error) or type(error).__name__}"
        return HostAnswer(failure="invalid_answer", problem=problem)
    return _AnswerReader(dialect, given, repeated).read()


def _load(text: str) -> tuple[dict[str, Any], list[str]]:
    """Load an object as the hosts do: of repeated keys the last counts, and half a surrogate is a character.

    Returns:
        The object, and the keys that stand in it more than once.

    Raises:
        ValueError: If it is no JSON object.
        RecursionError: If it is nested too deeply.
    """
    repeated: list[str] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            repeated.extend(sorted({name for name in names if names.count(name) > 1})[:3])
        return found

    given = json.loads(
        text, object_pairs_hook=build, parse_constant=_refuse_constant, parse_float=_parse_finite, strict=False
    )
    if not isinstance(given, dict):
        raise ValueError(f"it must be a JSON object, not {type(given).__name__}")
    if "\\ud" in text.lower():
        given = _without_surrogates(given)
    return given, repeated


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.20} is too large a number")
    return number


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return SURROGATE.sub("�", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(each) for each in value]
    return value


def _clean(text: str) -> str:
    """Return a text that can be stored and shown: whole characters, and not too long."""
    text = SURROGATE.sub("�", text).replace("\x00", "�").strip()
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


class _AnswerReader:
    """Reads an answer field by field, and keeps what is wrong with it."""

    def __init__(self, dialect: Dialect, given: dict[str, Any], repeated: list[str]) -> None:
        self._dialect = dialect
        self._given = given
        self._problems = [f"the key {name!r:.100} is repeated" for name in repeated]
        self._remarks: list[str] = []
        specific = given.get("hookSpecificOutput")
        if specific is not None and not isinstance(specific, dict):
            self._problems.append("`hookSpecificOutput` must be an object")
        self._specific: dict[str, Any] = specific if isinstance(specific, dict) else {}

    def read(self) -> HostAnswer:
        """Return what the answer says."""
        given, specific = self._given, self._specific
        flat, nested = self._word(given, "permissionDecision"), self._word(specific, "permissionDecision")
        top = self._word(given, "decision")
        if given.get("decision") == "deny" and not self._dialect.deny_is_read:
            self._remarks.append('it answered `decision: "deny"`, for which its host would let the call run')
        asked = specific.get("decision")
        if asked is not None and not isinstance(asked, dict):
            self._word(specific, "decision")
            asked = None
        behavior = self._word(asked or {}, "behavior")
        decision = max(flat, nested, top, behavior, key=STRICTNESS.index)
        reasons = [
            (nested, self._text(specific, "permissionDecisionReason")),
            (flat, self._text(given, "permissionDecisionReason")),
            (top, self._text(given, "reason")),
            (behavior, self._text(asked or {}, "message")),
        ]
        stop = self._flag(given, "continue", default=True) is False
        stop_reason = self._text(given, "stopReason")
        reason = next((text for word, text in reasons if word == decision and text), "")
        reason = reason or next((text for _, text in reasons if text), "")
        if stop:
            decision, reason = "deny", (reason if decision == "deny" and reason else stop_reason or reason)
        self._flag(given, "suppressOutput", default=False)
        contexts = [self._text(given, "additionalContext"), self._text(specific, "additionalContext")]
        args, result = self._args(), self._result()
        return HostAnswer(
            decision=decision,
            reason=reason,
            stop=stop,
            args=args,
            result=result,
            context="\n\n".join(filter(None, contexts)),
            message=self._text(given, "systemMessage"),
            failure="invalid_answer" if self._problems else "",
            problem="; ".join(self._problems[:3]),
            remarks=tuple(self._remarks),
            unknown=self._unknown(),
        )

    def _word(self, place: Mapping[str, Any], key: str) -> Literal["", "allow", "ask", "deny"]:
        value = place.get(key)
        if value is None:
            return ""
        word = WORDS.get(value) if isinstance(value, str) else None
        if word is None:
            self._problems.append(f"`{key}` cannot be {value!r:.60}")
            return ""
        return word

    def _text(self, place: Mapping[str, Any], key: str) -> str:
        value = place.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            self._problems.append(f"`{key}` must be text")
            return ""
        return _clean(value)

    def _flag(self, place: Mapping[str, Any], key: str, *, default: bool) -> bool:
        value = place.get(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._problems.append(f"`{key}` must be true or false")
            return default
        return value

    def _find(self, places: tuple[tuple[str, ...], ...]) -> Any:
        """Return what stands in the first of some places that has something."""
        for place in places:
            value: Any = self._given
            for key in place:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                return value
        return None

    def _args(self) -> dict[str, Any] | None:
        value = self._find(self._dialect.args)
        if value is not None and not isinstance(value, dict):
            self._problems.append("the changed arguments must be an object")
            return None
        try:
            msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            self._problems.append(f"the changed arguments cannot be used: {error}")
            return None
        return value

    def _result(self) -> str | None:
        value = self._find(self._dialect.result)
        if value is None or isinstance(value, str):
            return value if value is None else _clean_result(value)
        return _clean_result(json.dumps(value, ensure_ascii=False))

    def _unknown(self) -> tuple[str, ...]:
        top = [str(key) for key in self._given if key not in KEYS]
        inside = [f"hookSpecificOutput.{key}" for key in self._specific if key not in SPECIFIC_KEYS]
        return tuple(SURROGATE.sub("�", key)[:100] for key in (top + inside)[:20])


def _clean_result(text: str) -> str:
    return SURROGATE.sub("�", text)


def parse_answer_object(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of an answer in hookline's own protocol, whose keys are not checked yet.

    Raises:
        ValueError: If it is no JSON, no object, or has a key twice.
        RecursionError: If it is nested too deeply.
    """
    msgspec.json.decode(body)  # stricter about JSON than the standard library
    given = json.loads(body, object_pairs_hook=_reject_duplicate_keys)
    if not isinstance(given, dict):
        raise ValueError(f"it must be a JSON object, not {type(given).__name__}")
    return given


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object, refusing duplicate keys: of two contradicting answers neither may count.

    Raises:
        ValueError: If a key stands there twice.
    """
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("it has a repeated key")
    return dict(pairs)
