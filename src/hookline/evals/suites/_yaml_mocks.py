"""The rules of a task in a YAML suite: which calls, and what they are answered."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.calls import ToolResult
from hookline.errors import HooklineError
from hookline.evals._yaml_lines import BadLine, LinedDict, plain
from hookline.evals.matching import Matcher, match
from hookline.evals.rules import Rule
from hookline.evals.suites._imports import ImportProblem, imported
from hookline.evals.suites._yaml_fields import Fields

if TYPE_CHECKING:
    from hookline.evals.mocks import ToolMocks

__all__ = ["MockRules", "mock_rules"]

Answer = Callable[[Rule], object]
"""Gives a rule its answer."""


class MockRules:
    """Adds the rules of a task in a file to its `ToolMocks`.

    Args:
        rules: What each is for, its name, and its answer.
        tool_patterns: The tools that they are for.
    """

    def __init__(self, rules: Sequence[tuple[Matcher, str | None, Answer]], tool_patterns: Sequence[str]) -> None:
        self.rules, self.tool_patterns = list(rules), list(tool_patterns)

    def __call__(self, mocks: ToolMocks) -> None:
        """Add them."""
        for matcher, name, answer in self.rules:
            answer(mocks.when(matcher, name=name))


def mock_rules(entries: Sequence[tuple[int, Any]], folder: Path) -> MockRules | None:
    """Read the rules of a task.

    Args:
        entries: The rules as they stand in the file, with their lines.
        folder: Where import paths begin.

    Returns:
        `None` if there is no rule.

    Raises:
        BadLine: If a rule makes no sense; it is tried out here, so that no run has to fail for it.
    """
    rules = [_rule(line, entry, folder) for line, entry in entries]
    return MockRules(rules, [entry["tool"] for _, entry in entries]) if rules else None


def _rule(line: int, entry: Any, folder: Path) -> tuple[Matcher, str | None, Answer]:
    fields = Fields(entry, "a mock", line)
    try:
        matcher = _matcher(fields)
        name = fields.text("name", default=fields.take("tool"))
        given = [key for key in ANSWERS if key in fields]
        if len(given) != 1:
            got = " and ".join(f"`{key}`" for key in given) or "none"
            raise BadLine(line, f"a mock has one answer, one of {', '.join(ANSWERS)}; got {got}")
        answer = ANSWERS[given[0]](fields, folder)
        fields.done()
        answer(Rule("probe", matcher, 0, lambda rule: None))
    except HooklineError as error:
        raise BadLine(line, str(error).rstrip(".")) from error
    return matcher, name, answer


def _matcher(fields: Fields) -> Matcher:
    matcher = match.tool(fields.text("tool"))
    args = fields.mapping("args", default=None)
    mode = fields.one_of("args_mode", ("exact", "subset", "superset", "ignore"), default="exact")
    if args is not None:
        matcher &= match.args(args, mode=mode)
    values = fields.mapping("fields", default=None)
    if values is not None:
        matcher &= match.fields(values)
    schema = fields.mapping("schema", default=None)
    if schema is not None:
        matcher &= match.schema(schema)
    nth, step = fields.number("nth", default=None), fields.number("step", default=None)
    if nth is not None:
        matcher &= match.nth(nth)
    if step is not None:
        matcher &= match.step(step)
    return matcher


def _returns(fields: Fields, folder: Path) -> Answer:
    value = plain(fields.take("returns"))
    return lambda rule: rule.returns(value)


def _raises(fields: Fields, folder: Path) -> Answer:
    error = _error(fields.lines["raises"], fields.take("raises"))
    return lambda rule: rule.raises(error)


def _fails(fields: Fields, folder: Path) -> Answer:
    content = fields.text("fails")
    return lambda rule: rule.fails(content)


def _sequence(fields: Fields, folder: Path) -> Answer:
    answers = [_one(line, entry) for line, entry in fields.items("sequence")]
    then = fields.one_of("then", ("last", "cycle", "error"), default="last")
    return lambda rule: rule.sequence(answers, then=then)


def _table(fields: Fields, folder: Path) -> Answer:
    table = Fields(fields.take("table"), "`table`", fields.lines["table"])
    field, answers = table.text("field"), table.mapping("answers")
    table.done()
    return lambda rule: rule.table(field, answers)


def _template(fields: Fields, folder: Path) -> Answer:
    text = fields.text("template")
    return lambda rule: rule.template(text)


def _runs(fields: Fields, folder: Path) -> Answer:
    try:
        function = imported(fields.take("runs"), folder)
    except ImportProblem as error:
        raise BadLine(fields.lines["runs"], f"`runs`: {error}") from error.__cause__
    return lambda rule: rule.runs(function)


def _passthrough(fields: Fields, folder: Path) -> Answer:
    if fields.take("passthrough") is not True:
        raise BadLine(fields.lines["passthrough"], "`passthrough` is true, or left out")
    return lambda rule: rule.passthrough()


def _one(line: int, entry: Any) -> object:
    """An answer of a sequence: a value, `{raises: …}` or `{fails: …}`."""
    if isinstance(entry, LinedDict) and list(entry) == ["raises"]:
        return _error(line, entry["raises"])
    if isinstance(entry, LinedDict) and list(entry) == ["fails"]:
        return ToolResult(content=Fields(entry, "an answer", line).text("fails"), success=False)
    return plain(entry)


def _error(line: int, given: Any) -> Exception:
    """`ConnectionError`, or `ConnectionError: what it says`."""
    if isinstance(given, str):
        name, _, message = given.partition(":")
        kind = getattr(builtins, name.strip(), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(message.strip()) if message.strip() else kind()
            except TypeError as error:
                raise BadLine(line, f"{name} takes more than a message ({error})") from error
    expected = "an exception that Python brings along, as in 'ConnectionError: down'"
    raise BadLine(line, f"`raises` is {expected}; got {plain(given)!r:.100}")


ANSWERS: dict[str, Callable[[Fields, Path], Answer]] = {
    "returns": _returns,
    "raises": _raises,
    "fails": _fails,
    "sequence": _sequence,
    "table": _table,
    "template": _template,
    "runs": _runs,
    "passthrough": _passthrough,
}
"""Every answer that a file may name."""
