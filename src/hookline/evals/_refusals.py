"""What the model and the developer are told of calls that no mock could answer."""

from __future__ import annotations

from difflib import get_close_matches

from hookline.calls import ToolResult
from hookline.errors import message_of
from hookline.evals._canonical import canonical
from hookline.evals._mock_errors import AnswerError
from hookline.evals.matching import SeenCall
from hookline.evals.rules import Rule, RuleTable

__all__ = ["broken", "explained", "refusal"]

SHOWN = 5
"""How many rules are shown."""

SEARCHED = 2_000
"""How many rules' tools are searched for one that is spelt alike."""


def refusal(table: RuleTable, call: SeenCall) -> ToolResult:
    """The result of a call that nothing answers in a strict run."""
    path = f"{call.identifier}/{call.api_name}"
    content = (
        f"No mock answers {path} with {_short(canonical(call.args))} (call {call.call_index} of it, step "
        f"{call.step_index}), and this run is strict: the real tool was not run. {_nearest(table, call)}Answer it with "
        f"mocks.tool({path!r}).returns(...), or let the tool run with .passthrough()."
    )
    return ToolResult(content=content, success=False, metadata={"unmocked": True})


def broken(call: SeenCall, rule: Rule | None, error: Exception) -> ToolResult:
    """The result of a call whose mock failed."""
    path = f"{call.identifier}/{call.api_name}"
    what = f"Rule {rule.name!r}" if rule is not None else "A mock"
    kind = "" if isinstance(error, AnswerError) else f"{type(error).__name__}: "
    content = f"{what} could not answer {path}: {kind}{message_of(error)}. The real tool was not run."
    metadata = {"unmocked": True} if rule is None else {"unmocked": True, "rule": rule.name}
    return ToolResult(content=content, success=False, metadata=metadata)


def explained(table: RuleTable, call: SeenCall) -> str:
    """Which rule a call gets, and why not the others that are for its tool."""
    path = f"{call.identifier}/{call.api_name}"
    winner, problem = _winner(table, call)
    lines = [f"{path} with {_short(canonical(call.args))}, call {call.call_index} of it, step {call.step_index}:"]
    rules = table.of_tool(path)
    place = rules.index(winner) if winner is not None else 0
    first = max(0, place + 1 - 50)
    if first:
        lines.append(f"    … {first:,} more rules …")
    for rule in rules[first : first + 50]:
        reason = _reason(rule, call)
        if rule is winner:
            lines.append(f"  → {rule.name!r} answers it: {rule.matcher!r}")
        elif reason is None:
            lines.append(f"    {rule.name!r} matches too, but is less specific or was registered earlier")
        else:
            lines.append(f"    {rule.name!r} does not match: {reason}")
    if len(rules) > first + 50:
        lines.append(f"    … {len(rules) - first - 50:,} more rules …")
    if problem is not None:
        lines.append(f"    no rule answers it: a matcher failed with {type(problem).__name__}: {message_of(problem)}")
    elif winner is None:
        lines.append(f"    no rule answers it. {_nearest(table, call)}".rstrip())
    return "\n".join(lines)


def _winner(table: RuleTable, call: SeenCall) -> tuple[Rule | None, Exception | None]:
    try:
        return table.find(call), None
    except Exception as error:
        return None, error


def _reason(rule: Rule, call: SeenCall) -> str | None:
    try:
        return rule.matcher.explain(call)
    except Exception as error:  # of a matcher that nobody had asked about this call
        return f"its matcher failed with {type(error).__name__}: {message_of(error)}"


def _nearest(table: RuleTable, call: SeenCall) -> str:
    path = f"{call.identifier}/{call.api_name}"
    reasons = [(rule, _reason(rule, call) or "") for rule in table.of_tool(path)[:50]]
    if reasons:
        rule, reason = min(reasons, key=lambda each: len(each[1]))
        return f"The nearest rule is {rule.name!r}: {reason}. "
    rules = list(table.rules.values())[-SEARCHED:]
    if not rules:
        return "There are no rules. "
    tools: dict[str, Rule] = {}
    for rule in rules:
        for known in rule.matcher.paths() or (rule.name.partition(" #")[0],):
            tools.setdefault(known, rule)
    close = get_close_matches(path, tools, n=1, cutoff=0.4) or get_close_matches(call.api_name, tools, n=1, cutoff=0.4)
    if close:
        rule = tools[close[0]]
        return f"The nearest rule is {rule.name!r}: {_reason(rule, call)}. "
    names = ", ".join(repr(rule.name) for rule in rules[:SHOWN])
    return f"No rule is for this tool; there are rules {names}{' and others' if len(rules) > SHOWN else ''}. "


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
