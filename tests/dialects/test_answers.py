"""What a hook of a coding agent says means what its host documents, and never less than a denial."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.dialects import DIALECTS, HOST_EVENTS, HostAnswer, parse_answer, report_answer
from tests.tables import for_each

NO = "not here"


def own(**fields: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **fields}}


def read(dialect: str, output: Any = "", errors: str = "", code: int = 0, event: str = "PreToolUse") -> HostAnswer:
    text = output if isinstance(output, str) else json.dumps(output)
    return parse_answer(DIALECTS[dialect], event, text.encode(), errors.encode(), code)


DENY = own(permissionDecision="deny", permissionDecisionReason=NO)
DENIED: list[tuple[str, str, Any, str, int]] = [
    # Exit codes. Where Codex and Gemini need a text with 2, the stricter reading of Claude holds.
    ("exit 2 with a reason", "claude", "", NO, 2),
    ("exit 2 with a reason", "codex", "", NO, 2),
    ("exit 2 with a reason", "gemini", "", NO, 2),
    ("exit 2 with a reason", "copilot", "", NO, 2),
    ("exit 2 in silence", "claude", "", "", 2),
    ("exit 2 in silence", "codex", "", "", 2),
    ("exit 2 in silence", "gemini", "", "", 2),
    ("exit 2 in silence", "copilot", "", "", 2),
    ("exit 2 and JSON without a decision", "claude", {"systemMessage": "m"}, NO, 2),
    ("exit 2 and JSON without a decision", "gemini", {"systemMessage": "m"}, NO, 2),
    ("exit 2 and JSON that allows", "claude", own(permissionDecision="allow"), NO, 2),
    ("exit 2 and broken JSON", "claude", "{", NO, 2),
    ("exit 2 and the reason in JSON only", "claude", {"decision": "block", "reason": NO}, "", 2),
    ("exit 3 with text", "gemini", "", NO, 3),
    ("exit 127 with text", "gemini", "", NO, 127),
    ("exit 1", "copilot", "", NO, 1),
    ("ended by a signal", "copilot", "", NO, -9),
    # The block of JSON.
    ("permissionDecision deny", "claude", DENY, "", 0),
    ("permissionDecision deny", "codex", DENY, "", 0),
    ("permissionDecision deny, which Gemini ignores", "gemini", DENY, "", 0),
    ("a flat denial", "copilot", {"permissionDecision": "deny", "permissionDecisionReason": NO}, "", 0),
    ("a flat denial, which Claude ignores", "claude", {"permissionDecision": "deny"}, "", 0),
    ("a denial without a reason, which Codex ignores", "codex", own(permissionDecision="deny"), "", 0),
    ("a blank reason", "codex", own(permissionDecision="deny", permissionDecisionReason="  "), "", 0),
    ("block", "claude", {"decision": "block", "reason": NO}, "", 0),
    ("block", "codex", {"decision": "block", "reason": NO}, "", 0),
    ("block", "gemini", {"decision": "block", "reason": NO}, "", 0),
    ("block, which Copilot ignores", "copilot", {"decision": "block", "reason": NO}, "", 0),
    ("decision deny", "gemini", {"decision": "deny", "reason": NO}, "", 0),
    ("decision deny, which Claude ignores", "claude", {"decision": "deny", "reason": NO}, "", 0),
    ("decision deny, which Codex ignores", "codex", {"decision": "deny", "reason": NO}, "", 0),
    ("both forms, which Claude throws away", "claude", {"decision": "deny", "reason": NO, **DENY}, "", 0),
    ("block beside an allowing block", "claude", {"decision": "block", "reason": NO, **own(permissionDecision="allow")}, "", 0),
    ("an approval beside a denying block", "claude", {"decision": "approve", **DENY}, "", 0),
    ("a denial with an unknown key, which Codex rejects", "codex", {**DENY, "shiny": 1}, "", 0),
    ("the event of another hook, for which Claude allows", "claude", {"hookSpecificOutput": {"hookEventName": "Stop", "permissionDecision": "deny", "permissionDecisionReason": NO}}, "", 0),
    ("a denial and exit 1", "claude", DENY, "", 1),
    ("a denial and exit 1, which Codex ignores", "codex", DENY, "", 1),
    ("a denial and exit 1", "gemini", {"decision": "deny", "reason": NO}, "", 1),
    ("a denial with a field of a wrong type", "claude", {"decision": "block", "reason": NO, "systemMessage": 4}, "", 0),
    ("half a surrogate in the reason", "claude", '{"decision": "block", "reason": "not here \\ud83d"}', "", 0),
    ("a denial after a byte order mark", "claude", "\ufeff" + json.dumps(DENY), "", 0),
    ("continue: false, with which Claude runs the tool", "claude", {"continue": False, "stopReason": NO}, "", 0),
    ("continue: false", "gemini", {"continue": False, "stopReason": NO}, "", 0),
    ("continue: false, which Codex rejects", "codex", {"continue": False, "stopReason": NO}, "", 0),
    ("a permission refused", "claude", {"hookSpecificOutput": {"decision": {"behavior": "deny", "message": NO}}}, "", 0),
]  # fmt: skip


@for_each(("name", "dialect", "output", "errors", "code"), DENIED, ids=[f"{row[1]}: {row[0]}" for row in DENIED])
def test_a_denial_counts_also_in_a_closed_hook(name: str, dialect: str, output: Any, errors: str, code: int) -> None:
    answer = read(dialect, output, errors, code)

    assert answer.decision == "deny"
    assert answer.find_fault(closed=True) == answer.find_fault(closed=False) == ""
    assert answer.reason.startswith(NO) or NO not in f"{output}{errors}"


PASSES: list[tuple[str, str, Any, str, int, dict[str, Any]]] = [
    ("nothing", "claude", "", "", 0, {}),
    ("white space", "codex", " \n\t", "", 0, {}),
    ("an empty object", "gemini", {}, "", 0, {}),
    ("an empty object", "copilot", {}, "", 0, {}),
    ("allow", "claude", own(permissionDecision="allow"), "", 0, {"decision": "allow"}),
    ("approve", "claude", {"decision": "approve"}, "", 0, {"decision": "allow"}),
    ("allow", "gemini", {"decision": "allow"}, "", 0, {"decision": "allow"}),
    ("ask", "claude", own(permissionDecision="ask", permissionDecisionReason=NO), "", 0, {"decision": "ask", "reason": NO}),
    ("ask, which Codex rejects", "codex", own(permissionDecision="ask"), "", 0, {"decision": "ask"}),
    ("ask, with which Gemini hangs", "gemini", {"decision": "ask", "reason": NO}, "", 0, {"decision": "ask", "reason": NO}),
    ("ask", "copilot", {"permissionDecision": "ask"}, "", 0, {"decision": "ask"}),
    ("ask beside an approval", "claude", {"decision": "approve", **own(permissionDecision="ask")}, "", 0, {"decision": "ask"}),
    ("defer", "claude", own(permissionDecision="defer"), "", 0, {"decision": "ask"}),
    ("updatedInput with allow", "claude", own(permissionDecision="allow", updatedInput={"a": 1}), "", 0, {"args": {"a": 1}}),
    ("updatedInput alone", "claude", own(updatedInput={"a": 1}), "", 0, {"args": {"a": 1}}),
    ("updatedInput, which Gemini ignores", "gemini", own(updatedInput={"a": 1}), "", 0, {"args": None}),
    ("tool_input", "gemini", {"hookSpecificOutput": {"tool_input": {"a": 1}}}, "", 0, {"args": {"a": 1}}),
    ("modifiedArgs", "copilot", {"modifiedArgs": {"a": 1}}, "", 0, {"args": {"a": 1}}),
    ("updatedInput in Claude's form", "copilot", own(updatedInput={"a": 1}), "", 0, {"args": {"a": 1}}),
    ("half a surrogate in an argument", "claude", '{"hookSpecificOutput": {"updatedInput": {"a": "\\ud800"}}}', "", 0, {"args": {"a": "�"}}),
    ("additionalContext", "claude", own(additionalContext="be brief"), "", 0, {"context": "be brief"}),
    ("additionalContext", "copilot", {"additionalContext": "be brief"}, "", 0, {"context": "be brief"}),
    ("systemMessage", "claude", {"systemMessage": "look"}, "", 0, {"message": "look"}),
    ("stderr without a code", "claude", "", "log line", 0, {}),
    ("suppressOutput", "claude", {"suppressOutput": True}, "", 0, {}),
    ("continue: true", "claude", {"continue": True, "stopReason": "unused"}, "", 0, {"stop": False, "decision": ""}),
    ("nulls", "claude", {"decision": None, "reason": None, "hookSpecificOutput": None, "continue": None}, "", 0, {}),
    ("unknown keys", "claude", {"shiny": 1, **own(newer=2)}, "", 0, {"unknown": ("shiny", "hookSpecificOutput.newer")}),
]  # fmt: skip


@for_each(
    ("name", "dialect", "output", "errors", "code", "holds"), PASSES, ids=[f"{row[1]}: {row[0]}" for row in PASSES]
)
def test_what_does_not_deny_is_read_as_the_host_reads_it(
    name: str, dialect: str, output: Any, errors: str, code: int, holds: dict[str, Any]
) -> None:
    answer = read(dialect, output, errors, code)

    assert answer.find_fault(closed=True) == ""
    assert {key: getattr(answer, key) for key in holds} == holds
    assert answer.decision != "deny"


FAULTS: list[tuple[str, str, Any, str, int, bool]] = [
    ("exit 1", "claude", "", "no jq", 1, True),
    ("exit 1", "gemini", "", "no jq", 1, True),
    ("exit 3 in silence", "gemini", "", "", 3, True),
    ("exit 3", "claude", "", "no jq", 3, True),
    ("a signal", "claude", "", "", -9, True),
    ("a signal", "gemini", "", "bye", -15, True),
    ("broken JSON", "claude", "{", "", 0, True),
    ("broken JSON", "copilot", "{", "", 0, True),
    ("text, then a denial", "claude", "hi\n" + json.dumps(DENY), "", 0, True),
    ("text, then a denial", "gemini", 'hi {"decision": "deny"}', "", 0, True),
    ("text", "claude", "all is well", "", 0, False),
    ("a list", "codex", "[]", "", 0, False),
    ("an unknown decision", "claude", {"decision": "maybe"}, "", 0, True),
    ("a decision that is no text", "claude", own(permissionDecision=["deny"]), "", 0, True),
    ("exit 1 and a rewriting, which Claude obeys", "claude", own(updatedInput={"a": 1}), "", 1, False),
    ("exit 1 and a question, which Claude obeys", "claude", own(permissionDecision="ask"), "", 1, False),
    ("arguments that are no object", "claude", own(updatedInput=[1]), "", 0, True),
    ("an output that is a text", "claude", {"hookSpecificOutput": "deny"}, "", 0, True),
    ("a repeated key", "claude", '{"decision": "block", "decision": "approve"}', "", 0, True),
]


@for_each(
    ("name", "dialect", "output", "errors", "code", "is_fault"), FAULTS, ids=[f"{row[1]}: {row[0]}" for row in FAULTS]
)
def test_what_is_wrong_is_a_fault_of_a_closed_hook_and_mostly_of_an_open_one(
    name: str, dialect: str, output: Any, errors: str, code: int, is_fault: bool
) -> None:
    answer = read(dialect, output, errors, code)

    assert answer.decision != "deny"
    assert answer.find_fault(closed=True) != ""
    assert (answer.find_fault(closed=False) != "") is is_fault


def test_plain_text_is_context_where_the_host_takes_it_for_that() -> None:
    for dialect, event, context in (
        ("claude", "UserPromptSubmit", "branch: main"),
        ("claude", "SessionStart", "branch: main"),
        ("codex", "UserPromptSubmit", "branch: main"),
        ("claude", "PreToolUse", ""),
        ("gemini", "UserPromptSubmit", ""),
    ):
        answer = read(dialect, "branch: main\n", event=event)
        assert answer.context == context
        assert answer.is_text is not bool(context)


def test_texts_are_cut_and_made_of_whole_characters() -> None:
    answer = read("claude", '{"decision": "block", "reason": "a\\u0000\\udc00' + "x" * 20_000 + '"}')

    assert len(answer.reason) == 10_000
    assert answer.reason.startswith("a��x")
    msgspec.json.encode(answer.reason)


def test_changed_results_are_texts_wherever_the_host_has_them() -> None:
    assert read("claude", own(updatedToolOutput="clean"), event="PostToolUse").result == "clean"
    assert read("claude", own(updatedToolOutput={"a": 1}), event="PostToolUse").result == '{"a": 1}'
    assert read("copilot", {"modifiedResult": {"textResultForLlm": "t"}}, event="PostToolUse").result == "t"
    assert read("gemini", own(updatedToolOutput="clean"), event="PostToolUse").result is None


def test_a_message_is_logged_and_a_key_is_counted_without_its_value(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hookline")

    for _ in range(100):
        report_answer("hook_pure", HostAnswer(message="look", unknown=("shiny",)))

    assert sum("shiny" in each for each in caplog.messages) == 3  # the 1st, the 10th, the 100th
    assert caplog.messages.count("Hook 'hook_pure' says: look") == 100


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        *("continue", "stopReason", "systemMessage", "decision", "reason", "hookSpecificOutput", "permissionDecision"),
        *("additionalContext", "modifiedArgs", "updatedInput", "hookEventName", "tool_input", "updatedToolOutput", "x"),
    ]
)
VALUES = st.sampled_from(["allow", "deny", "block", "ask", "approve", "defer", "", False, True]) | JSON
OBJECTS = st.dictionaries(FIELDS, VALUES | st.dictionaries(FIELDS, VALUES, max_size=4), max_size=6)
OUTPUTS = st.binary(max_size=200) | OBJECTS.map(lambda found: json.dumps(found).encode(errors="replace"))
CODES = st.integers(-64, 255)
NAMES = st.sampled_from(sorted(DIALECTS))
EVENTS = st.sampled_from(sorted(HOST_EVENTS))


@given(NAMES, EVENTS, OUTPUTS, st.binary(max_size=50), CODES)
def test_reading_never_raises_and_what_is_read_can_be_stored(
    dialect: str, event: str, output: bytes, errors: bytes, code: int
) -> None:
    answer = parse_answer(DIALECTS[dialect], event, output, errors, code)

    msgspec.json.encode([answer.reason, answer.context, answer.message, answer.problem, answer.unknown, answer.result])
    msgspec.json.encode(answer.args)


@given(NAMES, OUTPUTS, st.binary(max_size=50), CODES.filter(lambda code: code not in (0, 2)))
def test_a_closed_hook_that_exits_with_anything_but_0_and_2_allows_nothing(
    dialect: str, output: bytes, errors: bytes, code: int
) -> None:
    answer = parse_answer(DIALECTS[dialect], "PreToolUse", output, errors, code)

    assert answer.decision == "deny" or answer.find_fault(closed=True)


@given(NAMES, EVENTS, OUTPUTS, st.binary(max_size=50))
def test_exit_2_denies_whatever_stands_beside_it(dialect: str, event: str, output: bytes, errors: bytes) -> None:
    assert parse_answer(DIALECTS[dialect], event, output, errors, 2).decision == "deny"


@given(NAMES, st.binary(min_size=1, max_size=200).filter(lambda data: not data.strip().startswith(b"{")))
def test_a_closed_hook_that_writes_no_object_allows_nothing(dialect: str, output: bytes) -> None:
    answer = parse_answer(DIALECTS[dialect], "PreToolUse", output)

    blank = not output.decode(errors="replace").removeprefix("\ufeff").strip()
    assert blank or answer.find_fault(closed=True) or answer.decision == "deny"


@given(NAMES, OBJECTS)
def test_a_word_that_denies_is_found_beside_anything(dialect: str, beside: dict[str, Any]) -> None:
    for place in ({"decision": "block"}, {"hookSpecificOutput": {"permissionDecision": "deny"}}, {"continue": False}):
        output = json.dumps(beside | place, allow_nan=True)
        answer = parse_answer(DIALECTS[dialect], "PreToolUse", output.encode(errors="replace"))
        # Numbers that are no JSON make the whole answer broken, in the hosts as here.
        assert answer.decision == "deny" or answer.failure == "invalid_answer"
        if answer.decision != "deny":
            assert any(word in output for word in ("NaN", "Infinity", "e+", "E"))
