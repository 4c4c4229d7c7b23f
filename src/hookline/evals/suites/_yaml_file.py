"""Read a suite from one YAML file. Every error names its line.

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

import builtins
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from hookline._yaml import BadLine, LinedDict, LinedList, plain, read_lined
from hookline.calls import ModelResponse, ToolRequest, ToolResult
from hookline.errors import HooklineError
from hookline.evals.cassettes import Matching
from hookline.evals.errors import SuiteFileError, ToolNameError
from hookline.evals.matching import ArgumentMode, Matcher, match
from hookline.evals.mocking import Rule, Then, ToolMocks
from hookline.evals.suites import checks
from hookline.evals.suites._expected import Expected, expected_pattern
from hookline.evals.suites._imports import ImportProblem, import_object
from hookline.evals.suites._task import Task, tool_request
from hookline.evals.suites._tool_names import EXPECTED, MOCKS, tool_patterns_of
from hookline.evals.suites._user import UserSuite, check_title
from hookline.evals.trajectories import ExpectedCall, MatchType

__all__ = ["read_yaml_suite"]

REQUIRED: Any = object()
"""The default of a field that must be given."""


class Fields:
    """The fields of a mapping, each read once. `refuse_rest` refuses those that were not read.

    Args:
        entry: The mapping.
        what: The name of the mapping in errors.
        line: The line of the mapping.

    Raises:
        BadLine: If it is not a mapping.
    """

    def __init__(self, entry: Any, what: str, line: int) -> None:
        if not isinstance(entry, LinedDict):
            got = "nothing" if entry is None else repr(plain(entry))[:100]
            raise BadLine(line, f"{what} is a mapping; got {got}")
        self._entry = entry
        self._what = what
        self._taken: list[str] = []
        self.line = entry.line
        self.lines = entry.lines

    def __contains__(self, key: str) -> bool:
        return key in self._entry

    def take(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a field as it stands."""
        self._taken.append(key)
        if key in self._entry:
            return self._entry[key]
        if default is REQUIRED:
            raise BadLine(self.line, f"{self._what} needs `{key}`")
        return default

    def text(self, key: str, default: Any = REQUIRED, *, empty: bool = False) -> Any:
        """Return a field that must be text."""
        value = self.take(key, default)
        if key in self._entry and (not isinstance(value, str) or not (value or empty)):
            self._refuse(key, "a text", value)
        return value

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a field that must be a whole number from 0."""
        value = self.take(key, default)
        if key in self._entry and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            self._refuse(key, "a whole number from 0", value)
        return value

    def mapping(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a field that must be a mapping, as a plain dict."""
        value = self.take(key, default)
        if key in self._entry and not isinstance(value, dict):
            self._refuse(key, "a mapping", value)
        return plain(value)

    def one_of(self, key: str, words: tuple[str, ...], default: Any = REQUIRED) -> Any:
        """Return a field that must be one of some words."""
        value = self.take(key, default)
        if value not in words:
            self._refuse(key, f"one of {', '.join(words)}", value)
        return value

    def items(self, key: str, default: Any = REQUIRED) -> list[tuple[int, Any]]:
        """Return a field that must be a list, as pairs of line and item."""
        value = self.take(key, default)
        if key not in self._entry:
            return []
        if not isinstance(value, LinedList):
            self._refuse(key, "a list", value)
        return list(zip(value.lines, value, strict=True))

    def import_object(self, key: str, folder: Path, default: Any = REQUIRED) -> Any:
        """Return the object that a field names by its import path, such as `package.module:name`."""
        value = self.take(key, default)
        if key not in self._entry:
            return default
        try:
            return import_object(value, folder)
        except ImportProblem as error:
            raise BadLine(self.lines[key], f"`{key}`: {error}") from error.__cause__

    def refuse_rest(self) -> None:
        """Raise an error if a key has not been read."""
        for key in self._entry:
            if key not in self._taken:
                known = ", ".join(f"`{each}`" for each in dict.fromkeys(self._taken))
                raise BadLine(self.lines[key], f"{self._what} has no key `{key}`; it takes {known}")

    def _refuse(self, key: str, expected: str, value: Any) -> None:
        raise BadLine(self.lines[key], f"`{key}` is {expected}; got {plain(value)!r:.100}")


GiveAnswer = Callable[[Rule], object]
"""A function that gives a rule its answer."""


class MockRules:
    """The rules of a task in a file. Call it with a `ToolMocks` to add them.

    Args:
        rules: The matcher, name and answer of each rule.
        tool_patterns: The tools that they are for.
    """

    def __init__(self, rules: Sequence[tuple[Matcher, str | None, GiveAnswer]], tool_patterns: Sequence[str]) -> None:
        self.rules, self.tool_patterns = list(rules), list(tool_patterns)

    def __call__(self, mocks: ToolMocks) -> None:
        """Add the rules."""
        for matcher, name, answer in self.rules:
            answer(mocks.when(matcher, name=name))


def _parse_rules(entries: Sequence[tuple[int, Any]], folder: Path) -> MockRules | None:
    """Parse the rules of a task.

    Args:
        entries: The rules as they stand in the file, with their lines.
        folder: The folder in which import paths begin.

    Returns:
        `None` if there is no rule.

    Raises:
        BadLine: If a rule makes no sense; it is tried out here, so that no run has to fail for it.
    """
    rules = [_parse_rule(line, entry, folder) for line, entry in entries]
    return MockRules(rules, [entry["tool"] for _, entry in entries]) if rules else None


def _parse_rule(line: int, entry: Any, folder: Path) -> tuple[Matcher, str | None, GiveAnswer]:
    fields = Fields(entry, "a mock", line)
    try:
        matcher = _parse_matcher(fields)
        name = fields.text("name", default=fields.take("tool"))
        given = [key for key in ANSWERS if key in fields]
        if len(given) != 1:
            got = " and ".join(f"`{key}`" for key in given) or "none"
            raise BadLine(line, f"a mock has one answer, one of {', '.join(ANSWERS)}; got {got}")
        answer = ANSWERS[given[0]](fields, folder)
        fields.refuse_rest()
        answer(Rule("probe", matcher, 0, lambda rule: None))
    except HooklineError as error:
        raise BadLine(line, str(error).rstrip(".")) from error
    return matcher, name, answer


def _parse_matcher(fields: Fields) -> Matcher:
    matcher = match.tool(fields.text("tool"))
    args = fields.mapping("args", default=None)
    mode = fields.one_of("args_mode", get_args(ArgumentMode), default="exact")
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


def _parse_returns(fields: Fields, folder: Path) -> GiveAnswer:
    value = plain(fields.take("returns"))
    return lambda rule: rule.returns(value)


def _parse_raises(fields: Fields, folder: Path) -> GiveAnswer:
    error = _parse_error(fields.lines["raises"], fields.take("raises"))
    return lambda rule: rule.raises(error)


def _parse_fails(fields: Fields, folder: Path) -> GiveAnswer:
    content = fields.text("fails")
    return lambda rule: rule.fails(content)


def _parse_sequence(fields: Fields, folder: Path) -> GiveAnswer:
    answers = [_parse_answer(line, entry) for line, entry in fields.items("sequence")]
    then = fields.one_of("then", get_args(Then), default="last")
    return lambda rule: rule.sequence(answers, then=then)


def _parse_table(fields: Fields, folder: Path) -> GiveAnswer:
    table = Fields(fields.take("table"), "`table`", fields.lines["table"])
    field, answers = table.text("field"), table.mapping("answers")
    table.refuse_rest()
    return lambda rule: rule.table(field, answers)


def _parse_template(fields: Fields, folder: Path) -> GiveAnswer:
    text = fields.text("template")
    return lambda rule: rule.template(text)


def _parse_runs(fields: Fields, folder: Path) -> GiveAnswer:
    function = fields.import_object("runs", folder)
    return lambda rule: rule.runs(function)


def _parse_passthrough(fields: Fields, folder: Path) -> GiveAnswer:
    if fields.take("passthrough") is not True:
        raise BadLine(fields.lines["passthrough"], "`passthrough` is true, or left out")
    return lambda rule: rule.passthrough()


def _parse_answer(line: int, entry: Any) -> object:
    """Parse one answer of a sequence: a value, `{raises: …}` or `{fails: …}`."""
    if isinstance(entry, LinedDict) and list(entry) == ["raises"]:
        return _parse_error(line, entry["raises"])
    if isinstance(entry, LinedDict) and list(entry) == ["fails"]:
        return ToolResult(content=Fields(entry, "an answer", line).text("fails"), success=False)
    return plain(entry)


def _parse_error(line: int, given: Any) -> Exception:
    """Parse an exception: `ConnectionError`, or `ConnectionError: message`."""
    if isinstance(given, str):
        name, _, message = given.partition(":")
        kind = getattr(builtins, name.strip(), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(message.strip()) if message.strip() else kind()
            except TypeError as error:
                raise BadLine(line, f"{name} takes more than a message ({error})") from error
    expected = "a built-in exception, as in 'ConnectionError: down'"
    raise BadLine(line, f"`raises` is {expected}; got {plain(given)!r:.100}")


ANSWERS: dict[str, Callable[[Fields, Path], GiveAnswer]] = {
    "returns": _parse_returns,
    "raises": _parse_raises,
    "fails": _parse_fails,
    "sequence": _parse_sequence,
    "table": _parse_table,
    "template": _parse_template,
    "runs": _parse_runs,
    "passthrough": _parse_passthrough,
}
"""Every answer that a file may name."""


Lines = dict[tuple[str, str, str], int]
"""The line of each tool's name, by task, part of the task, and name."""


def read_yaml_suite(path: Path) -> UserSuite:
    """Read a suite from a YAML file.

    Args:
        path: The file, YAML in UTF-8. Its folder is where import paths begin, and cassettes.

    Raises:
        SuiteFileError: If the file cannot be read or has invalid content. The error names the line.
        MissingExtraError: If PyYAML is not installed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SuiteFileError(str(path), f"the file cannot be read ({error.strerror or error})") from error
    try:
        return _parse_suite(read_lined(data, needed_for="Reading a suite from a file"), path.absolute().parent)
    except BadLine as error:
        raise SuiteFileError(str(path), error.problem, error.line) from error.__cause__


def _parse_suite(document: Any, folder: Path) -> UserSuite:
    fields = Fields(document, "the suite", 1)
    name = fields.text("suite")
    tools = fields.import_object("tools", folder, default=())
    agent = fields.import_object("agent", folder, default=None)
    instructions = fields.text("instructions", default="")
    options = _parse_cassette_options(fields)
    lines: Lines = {}
    tasks = [_parse_task(line, entry, folder, lines) for line, entry in fields.items("tasks")]
    fields.refuse_rest()
    try:
        return UserSuite(
            name, tasks=tasks, tools=tools, agent=agent, instructions=instructions, cassette_options=options
        )
    except ToolNameError as error:
        at = lines.get((error.task.removeprefix(f"{name}/"), error.what, error.pattern), fields.line)
        raise BadLine(at, error.problem) from error
    except HooklineError as error:
        raise BadLine(fields.line, str(error).rstrip(".")) from error
    except (Exception, SystemExit) as error:  # from the user's code that the file names
        at = fields.lines.get("tools", fields.lines.get("agent", fields.line))
        raise BadLine(at, f"its tools cannot be made: {type(error).__name__}: {error}") from error


def _parse_cassette_options(suite: Fields) -> dict[str, Any]:
    if "cassettes" not in suite:
        return {}
    fields = Fields(suite.take("cassettes"), "`cassettes`", suite.lines["cassettes"])
    matching = fields.one_of("matching", get_args(Matching), default="keyed")
    ignore = [_parse_field_name(*item) for item in fields.items("ignore", default=[])]
    fields.refuse_rest()
    return {"matching": matching, "ignore": ignore}


def _parse_field_name(line: int, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise BadLine(line, f"`ignore` lists fields of arguments, such as request.id; got {plain(value)!r:.100}")
    return value


def _parse_task(line: int, entry: Any, folder: Path, lines: Lines) -> Task:
    """Parse a task, and note in which line each tool is named."""
    fields = Fields(entry, "a task", line)
    name = fields.text("id")
    prompt = fields.text("prompt")
    script = [_parse_turn(*turn) for turn in fields.items("script", default=None)] if "script" in fields else None
    model = fields.import_object("model", folder, default=None)
    mocks = fields.items("mocks", default=[])
    rules = _parse_rules(mocks, folder)
    expected = _parse_expected(fields.lines["expected"], fields.take("expected")) if "expected" in fields else None
    found = [(at, _parse_check(at, check, folder)) for at, check in fields.items("checks", default=[])]
    cassette = fields.text("cassette", default=None)
    if script is not None and "model" in fields:
        raise BadLine(fields.lines["model"], f"task {name!r} has a `script`, which is its model; leave one out")
    fields.refuse_rest()
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


def _parse_turn(line: int, entry: Any) -> ModelResponse:
    """Parse a turn: `{say}`, `{tool, args}`, or `{calls: [{tool, args}, …]}`, each optionally with `say`."""
    fields = Fields(entry, "a turn", line)
    if "tool" in fields:
        calls = [_parse_call(fields)]
    else:
        calls = []
        for at, each in fields.items("calls", default=[]):
            one = Fields(each, "a call", at)
            calls.append(_parse_call(one))
            one.refuse_rest()
    say = fields.text("say", default="" if calls else REQUIRED, empty=True)
    fields.refuse_rest()
    return ModelResponse(content=say, tool_calls=calls, finish_reason="tool_calls" if calls else "stop")


def _parse_call(fields: Fields) -> ToolRequest:
    return tool_request(fields.text("tool"), fields.mapping("args", default={}))


def _parse_expected(line: int, entry: Any) -> Expected:
    fields = Fields(entry, "`expected`", line)
    calls: list[ExpectedCall] = []
    for at, each in fields.items("calls"):
        if isinstance(each, str):
            calls.append(each)
            continue
        call = Fields(each, "an expected call", at)
        tool, args = call.text("tool"), call.mapping("args", default=None)
        calls.append(tool if args is None else (tool, args))
        call.refuse_rest()
    mode = fields.one_of("mode", get_args(MatchType), default="in_order")
    args = fields.one_of("args", get_args(ArgumentMode), default="exact")
    fields.refuse_rest()
    return Expected(calls=calls, mode=mode, args=args)


def _parse_check(line: int, entry: Any, folder: Path) -> checks.Check:
    """Parse a check, a mapping whose one key says what is checked."""
    known = ", ".join(CHECKS)
    if not isinstance(entry, LinedDict) or len(entry) != 1:
        raise BadLine(line, f"a check is a mapping with one key, one of {known}; got {plain(entry)!r:.100}")
    ((kind, value),) = entry.items()
    if kind not in CHECKS:
        raise BadLine(entry.lines[kind], f"a check has no kind `{kind}`; it is one of {known}")
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


def _parse_called(line: int, value: Any, folder: Path) -> checks.Check:
    if isinstance(value, str):
        return checks.called(value)
    fields = Fields(value, "`called`", line)
    tool, args = fields.text("tool"), fields.mapping("args", default=None)
    times = fields.number("times", default=None)
    fields.refuse_rest()
    return checks.called(tool, args, times=times)


def _parse_not_called(line: int, value: Any, folder: Path) -> checks.Check:
    if isinstance(value, str):
        return checks.not_called(value)
    fields = Fields(value, "`not_called`", line)
    tool, args = fields.text("tool"), fields.mapping("args", default=None)
    fields.refuse_rest()
    return checks.not_called(tool, args)


def _parse_max_calls(line: int, value: Any, folder: Path) -> checks.Check:
    if not isinstance(value, LinedDict):
        return checks.max_calls(_parse_count(line, value))
    fields = Fields(value, "`max_calls`", line)
    count, tool = fields.number("count"), fields.text("tool", default="*")
    fields.refuse_rest()
    return checks.max_calls(count, tool)


def _parse_max_steps(line: int, value: Any, folder: Path) -> checks.Check:
    return checks.max_steps(_parse_count(line, value))


def _parse_python(line: int, value: Any, folder: Path) -> checks.Check:
    try:
        found = import_object(value, folder)
    except ImportProblem as error:
        raise BadLine(line, str(error)) from error.__cause__
    if not callable(found):
        raise BadLine(line, f"{value!r} is not a function of the finished task")
    check: checks.Check = found
    return check


def _parse_count(line: int, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadLine(line, f"this check takes a whole number from 0; got {plain(value)!r:.100}")
    return value


CHECKS: dict[str, Callable[[int, Any, Path], checks.Check]] = {
    "output_contains": _text_check(checks.output_contains),
    "output_equals": _text_check(checks.output_equals),
    "output_matches": _text_check(checks.output_matches),
    "called": _parse_called,
    "not_called": _parse_not_called,
    "max_calls": _parse_max_calls,
    "max_steps": _parse_max_steps,
    "python": _parse_python,
}
"""Every check that a file may name."""
