"""Read the checks of a task or a suite in a YAML file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from hookline._yaml import BadLine, LinedDict, LinedList, plain
from hookline.errors import HooklineError
from hookline.evals.judges import Combine, judge
from hookline.evals.suites import checks
from hookline.evals.suites._fields import Fields
from hookline.evals.suites._source import SuiteSource

__all__ = ["CHECKS", "parse_check", "parse_judge_options"]


def parse_check(line: int, entry: Any, source: SuiteSource) -> checks.Check:
    """Parse a check, a mapping whose one key says what is checked."""
    known = ", ".join(CHECKS)
    if not isinstance(entry, LinedDict) or len(entry) != 1:
        raise BadLine(line, f"a check is a mapping with one key, one of {known}; got {plain(entry)!r:.100}")
    ((kind, value),) = entry.items()
    if kind not in CHECKS:
        raise BadLine(entry.lines[kind], f"a check has no kind `{kind}`; it is one of {known}")
    try:
        return CHECKS[kind](line, value, source)
    except HooklineError as error:
        raise BadLine(line, f"`{kind}`: {str(error).rstrip('.')}") from error


def _text_check(make: Callable[[str], checks.Check]) -> Callable[[int, Any, SuiteSource], checks.Check]:
    def check(line: int, value: Any, source: SuiteSource) -> checks.Check:
        if not isinstance(value, str):
            raise BadLine(line, f"this check takes a text; got {plain(value)!r:.100}. Put it in quotes")
        return make(value)

    return check


def _parse_called(line: int, value: Any, source: SuiteSource) -> checks.Check:
    if isinstance(value, str):
        return checks.called(value)
    fields = Fields(value, "`called`", line)
    tool, args = fields.text("tool"), fields.mapping("args", default=None)
    times = fields.number("times", default=None)
    fields.refuse_rest()
    return checks.called(tool, args, times=times)


def _parse_not_called(line: int, value: Any, source: SuiteSource) -> checks.Check:
    if isinstance(value, str):
        return checks.not_called(value)
    fields = Fields(value, "`not_called`", line)
    tool, args = fields.text("tool"), fields.mapping("args", default=None)
    fields.refuse_rest()
    return checks.not_called(tool, args)


def _parse_max_calls(line: int, value: Any, source: SuiteSource) -> checks.Check:
    if not isinstance(value, LinedDict):
        return checks.max_calls(_parse_count(line, value))
    fields = Fields(value, "`max_calls`", line)
    count, tool = fields.number("count"), fields.text("tool", default="*")
    fields.refuse_rest()
    return checks.max_calls(count, tool)


def _parse_max_steps(line: int, value: Any, source: SuiteSource) -> checks.Check:
    return checks.max_steps(_parse_count(line, value))


def _parse_python(line: int, value: Any, source: SuiteSource) -> checks.Check:
    found = source.load(line, "", value)
    if not callable(found):
        raise BadLine(line, f"{value!r} is not a function of the finished task")
    check: checks.Check = found
    return check


def _parse_judge(line: int, value: Any, source: SuiteSource) -> checks.Check:
    if isinstance(value, str):
        given: dict[str, Any] = {"rubric": value}
    else:
        fields = Fields(value, "`judge`", line)
        given = {"rubric": fields.text("rubric"), "name": fields.text("name", default=None)}
        given |= parse_judge_options(fields, source)
        fields.refuse_rest()
    given = {**source.judge, **given}
    if "model" not in given:
        problem = "this judge has no `model`; give it one, or all judges of the suite: `judge: {model: openai:gpt-5}`"
        raise BadLine(line, problem)
    return judge(**given)


def parse_judge_options(fields: Fields, source: SuiteSource) -> dict[str, Any]:
    """Parse the arguments of a judge, apart from its rubric and its name.

    Args:
        fields: The mapping that has them.
        source: Where the file is.
    """
    found: dict[str, Any] = {}
    given = fields.take("model", default=None)
    if isinstance(given, LinedList):
        found["model"] = [source.model(at, "model", each) for at, each in zip(given.lines, given, strict=True)]
    elif "model" in fields:
        found["model"] = source.model(fields.lines["model"], "model", given)
    readers: dict[str, Callable[[str], Any]] = {
        "threshold": fields.amount,
        "grades": fields.number,
        "attempts": fields.number,
        "required": fields.flag,
        "tools": fields.flag,
        "settings": fields.mapping,
        "combine": partial(fields.one_of, words=get_args(Combine)),
    }
    for key, read in readers.items():
        fields.take(key, default=None)  # so that it is among the known keys
        if key in fields:
            found[key] = read(key)
    return found


def _parse_ended_by(line: int, value: Any, source: SuiteSource) -> checks.Check:
    given = list(value) if isinstance(value, list) else [value]
    return checks.conversation_ended(*given)


def _parse_expected_output(line: int, value: Any, source: SuiteSource) -> checks.Check:
    return checks.output_as_expected(value)


def _parse_count(line: int, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadLine(line, f"this check takes a whole number from 0; got {plain(value)!r:.100}")
    return value


CHECKS: dict[str, Callable[[int, Any, SuiteSource], checks.Check]] = {
    "output_contains": _text_check(checks.output_contains),
    "any_output_contains": _text_check(checks.any_output_contains),
    "output_equals": _text_check(checks.output_equals),
    "output_matches": _text_check(checks.output_matches),
    "called": _parse_called,
    "not_called": _parse_not_called,
    "max_calls": _parse_max_calls,
    "max_steps": _parse_max_steps,
    "output_as_expected": _parse_expected_output,
    "conversation_ended": _parse_ended_by,
    "judge": _parse_judge,
    "python": _parse_python,
}
"""Every check that a file may name."""
