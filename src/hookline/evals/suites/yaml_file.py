"""A suite in one YAML file; whatever is wrong in it is told with its line.

```yaml
suite: shop
tools: shop_tools:tools
tasks:
  - id: tea
    prompt: What does tea cost?
    script:
      - {tool: price, args: {item: tea}}
      - say: Tea costs 3 EUR.
    expected: {calls: [{tool: price, args: {item: tea}}]}
    checks: [{output_contains: 3 EUR}]
```
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookline.calls import ModelResponse, ToolCalling
from hookline.errors import HooklineError
from hookline.evals._yaml_lines import BadLine, LinedDict, plain, read_lined
from hookline.evals.suites import checks
from hookline.evals.suites._errors import SuiteFileError, ToolNameError
from hookline.evals.suites._imports import ImportProblem, imported
from hookline.evals.suites._tool_names import EXPECTED, MOCKS, tool_patterns_of
from hookline.evals.suites._yaml_fields import REQUIRED, Fields, one_key
from hookline.evals.suites._yaml_mocks import mock_rules
from hookline.evals.suites.expected import Expected, expected_pattern
from hookline.evals.suites.user import Task, UserSuite, calling, check_title
from hookline.evals.trajectory import ExpectedCall

__all__ = ["read_yaml_suite"]

Lines = dict[tuple[str, str, str], int]
"""Where each tool is named: by task, what names it, and name."""


def read_yaml_suite(path: Path) -> UserSuite:
    """Read a suite.

    Args:
        path: The file, YAML in UTF-8. Its folder is where import paths begin, and cassettes.

    Raises:
        SuiteFileError: If it cannot be read, or says anything that no suite takes; it says in which line.
        MissingExtraError: If PyYAML is not installed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SuiteFileError(str(path), f"the file cannot be read ({error.strerror or error})") from error
    try:
        return _suite(read_lined(data, needed_for="Reading a suite from a file"), path.absolute().parent)
    except BadLine as error:
        raise SuiteFileError(str(path), error.problem, error.line) from error.__cause__


def _suite(document: Any, folder: Path) -> UserSuite:
    fields = Fields(document, "the suite", 1)
    name = fields.text("suite")
    tools = fields.imported("tools", folder, default=())
    agent = fields.imported("agent", folder, default=None)
    instructions = fields.text("instructions", default="")
    options = _cassette_options(fields)
    lines: Lines = {}
    tasks = [_task(line, entry, folder, lines) for line, entry in fields.items("tasks")]
    fields.done()
    try:
        return UserSuite(
            name, tasks=tasks, tools=tools, agent=agent, instructions=instructions, cassette_options=options
        )
    except ToolNameError as error:
        at = lines.get((error.task.removeprefix(f"{name}/"), error.what, error.pattern), fields.line)
        raise BadLine(at, error.problem) from error
    except HooklineError as error:
        raise BadLine(fields.line, str(error).rstrip(".")) from error
    except (Exception, SystemExit) as error:  # what the file names is the user's own code, and it has just been called
        at = fields.lines.get("tools", fields.lines.get("agent", fields.line))
        raise BadLine(at, f"its tools cannot be made: {type(error).__name__}: {error}") from error


def _cassette_options(suite: Fields) -> dict[str, Any]:
    if "cassettes" not in suite:
        return {}
    fields = Fields(suite.take("cassettes"), "`cassettes`", suite.lines["cassettes"])
    matching = fields.one_of("matching", ("keyed", "sequential"), default="keyed")
    ignore = [_field_name(*item) for item in fields.items("ignore", default=[])]
    fields.done()
    return {"matching": matching, "ignore": ignore}


def _field_name(line: int, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise BadLine(line, f"`ignore` lists fields of arguments, such as request.id; got {plain(value)!r:.100}")
    return value


def _task(line: int, entry: Any, folder: Path, lines: Lines) -> Task:
    """Read a task, and note in which line each tool is named."""
    fields = Fields(entry, "a task", line)
    name = fields.text("id")
    prompt = fields.text("prompt")
    script = [_turn(*turn) for turn in fields.items("script", default=None)] if "script" in fields else None
    model = fields.imported("model", folder, default=None)
    mocks = fields.items("mocks", default=[])
    rules = mock_rules(mocks, folder)
    expected = _expected(fields.lines["expected"], fields.take("expected")) if "expected" in fields else None
    found = [(at, _check(at, check, folder)) for at, check in fields.items("checks", default=[])]
    cassette = fields.text("cassette", default=None)
    if script is not None and "model" in fields:
        raise BadLine(fields.lines["model"], f"task {name!r} has a `script`, which is its model; leave one out")
    fields.done()
    for at, mock in mocks:
        lines.setdefault((name, MOCKS, mock["tool"]), at)
    if "expected" in fields:
        for at, call in Fields(fields.take("expected"), "`expected`", line).items("calls"):
            tool = call if isinstance(call, str) else call["tool"]
            lines.setdefault((name, EXPECTED, expected_pattern(tool)), at)
    for at, check in found:
        for pattern in tool_patterns_of(check):
            lines.setdefault((name, check_title(check), pattern), at)
    return Task(
        id=name,
        prompt=prompt,
        script=script,
        model=model,
        mocks=rules,
        expected=expected,
        checks=[check for _, check in found],
        cassette=None if cassette is None else folder / cassette,
    )


def _turn(line: int, entry: Any) -> ModelResponse:
    """`{say}`, `{tool, args}`, or `{calls: [{tool, args}, …]}`, each optionally with what the model says."""
    fields = Fields(entry, "a turn", line)
    if "tool" in fields:
        calls = [_call(fields)]
    else:
        calls = []
        for at, each in fields.items("calls", default=[]):
            one = Fields(each, "a call", at)
            calls.append(_call(one))
            one.done()
    say = fields.text("say", default="" if calls else REQUIRED, empty=True)
    fields.done()
    return ModelResponse(content=say, tool_calls=calls, finish_reason="tool_calls" if calls else "stop")


def _call(fields: Fields) -> ToolCalling:
    return calling(fields.text("tool"), fields.mapping("args", default={}))


def _expected(line: int, entry: Any) -> Expected:
    fields = Fields(entry, "`expected`", line)
    calls: list[ExpectedCall] = []
    for at, each in fields.items("calls"):
        if isinstance(each, str):
            calls.append(each)
            continue
        call = Fields(each, "an expected call", at)
        tool, args = call.text("tool"), call.mapping("args", default=None)
        calls.append(tool if args is None else (tool, args))
        call.done()
    mode = fields.one_of("mode", ("strict", "in_order", "unordered", "subset", "superset"), default="in_order")
    args = fields.one_of("args", ("exact", "ignore", "subset", "superset"), default="exact")
    fields.done()
    return Expected(calls=calls, mode=mode, args=args)


def _check(line: int, entry: Any, folder: Path) -> checks.Check:
    """One key says what is checked, its value what for."""
    kind, value = one_key(line, entry, "a check", CHECKS)
    try:
        return CHECKS[kind](line, value, folder)
    except HooklineError as error:
        raise BadLine(line, f"`{kind}`: {str(error).rstrip('.')}") from error


def _text_check(make: Callable[[str], checks.Check]) -> Callable[[int, Any, Path], checks.Check]:
    def check(line: int, value: Any, folder: Path) -> checks.Check:
        if not isinstance(value, str):
            raise BadLine(line, f"this check takes a text; got {plain(value)!r:.100}. Put it in quotes")
        return make(value)

    return check


def _called(line: int, value: Any, folder: Path) -> checks.Check:
    if isinstance(value, str):
        return checks.called(value)
    fields = Fields(value, "`called`", line)
    tool, args = fields.text("tool"), fields.mapping("args", default=None)
    times = fields.number("times", default=None)
    fields.done()
    return checks.called(tool, args, times=times)


def _not_called(line: int, value: Any, folder: Path) -> checks.Check:
    if isinstance(value, str):
        return checks.not_called(value)
    fields = Fields(value, "`not_called`", line)
    tool, args = fields.text("tool"), fields.mapping("args", default=None)
    fields.done()
    return checks.not_called(tool, args)


def _max_calls(line: int, value: Any, folder: Path) -> checks.Check:
    if not isinstance(value, LinedDict):
        return checks.max_calls(_count(line, value))
    fields = Fields(value, "`max_calls`", line)
    count, tool = fields.number("count"), fields.text("tool", default="*")
    fields.done()
    return checks.max_calls(count, tool)


def _max_steps(line: int, value: Any, folder: Path) -> checks.Check:
    return checks.max_steps(_count(line, value))


def _python(line: int, value: Any, folder: Path) -> checks.Check:
    try:
        found = imported(value, folder)
    except ImportProblem as error:
        raise BadLine(line, str(error)) from error.__cause__
    if not callable(found):
        raise BadLine(line, f"{value!r} is no function of the finished task")
    check: checks.Check = found
    return check


def _count(line: int, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadLine(line, f"this check takes a whole number from 0; got {plain(value)!r:.100}")
    return value


CHECKS: dict[str, Callable[[int, Any, Path], checks.Check]] = {
    "output_contains": _text_check(checks.output_contains),
    "output_equals": _text_check(checks.output_equals),
    "output_matches": _text_check(checks.output_matches),
    "called": _called,
    "not_called": _not_called,
    "max_calls": _max_calls,
    "max_steps": _max_steps,
    "python": _python,
}
"""Every check that a file may name."""
