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

import msgspec

from hookline._yaml import BadLine, LinedDict, plain, read_lined
from hookline.calls import ModelResponse, ToolRequest, ToolResult
from hookline.errors import HooklineError
from hookline.evals.cassettes import Matching
from hookline.evals.conversations import SimulatedUser, StopConditions
from hookline.evals.datasets import CaseMatrix, CaseSource, Dataset, FileCases, InlineCases, parameters_in
from hookline.evals.errors import DataFileError, SuiteFileError, ToolNameError
from hookline.evals.faults import parse_fault
from hookline.evals.matching import ArgumentMode, Matcher, match
from hookline.evals.mocking import Rule, Then, ToolMocks
from hookline.evals.suites._checks_file import parse_check, parse_judge_options
from hookline.evals.suites._expected import Expected, expected_pattern
from hookline.evals.suites._fields import REQUIRED, Fields
from hookline.evals.suites._source import SuiteSource
from hookline.evals.suites._task import Task, tool_request
from hookline.evals.suites._template import VALUE_KEYS, fill_entry, has_parameters
from hookline.evals.suites._tool_names import EXPECTED, FAULTS, LIMITS, MOCKS, tool_patterns_of
from hookline.evals.suites._user import UserSuite, check_title
from hookline.evals.suites.checks import Check, within_limits
from hookline.evals.trajectories import ExpectedCall, Limits, MatchType

__all__ = ["read_yaml_suite"]

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


def _parse_rules(entries: Sequence[tuple[int, Any]], source: SuiteSource) -> MockRules | None:
    """Parse the rules of a task.

    Args:
        entries: The rules as they stand in the file, with their lines.
        source: Where the file is.

    Returns:
        `None` if there is no rule.

    Raises:
        BadLine: If a rule makes no sense; it is tried out here, so that no run has to fail for it.
    """
    rules = [_parse_rule(line, entry, source) for line, entry in entries]
    return MockRules(rules, [entry["tool"] for _, entry in entries]) if rules else None


def _parse_rule(line: int, entry: Any, source: SuiteSource) -> tuple[Matcher, str | None, GiveAnswer]:
    fields = Fields(entry, "a mock", line)
    try:
        matcher = _parse_matcher(fields)
        name = fields.text("name", default=fields.take("tool"))
        given = [key for key in ANSWERS if key in fields]
        if len(given) != 1:
            got = " and ".join(f"`{key}`" for key in given) or "none"
            raise BadLine(line, f"a mock has one answer, one of {', '.join(ANSWERS)}; got {got}")
        answer = ANSWERS[given[0]](fields, source)
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


def _parse_returns(fields: Fields, source: SuiteSource) -> GiveAnswer:
    value = plain(fields.take("returns"))
    return lambda rule: rule.returns(value)


def _parse_raises(fields: Fields, source: SuiteSource) -> GiveAnswer:
    error = _parse_error(fields.lines["raises"], fields.take("raises"))
    return lambda rule: rule.raises(error)


def _parse_fails(fields: Fields, source: SuiteSource) -> GiveAnswer:
    content = fields.text("fails")
    return lambda rule: rule.fails(content)


def _parse_sequence(fields: Fields, source: SuiteSource) -> GiveAnswer:
    answers = [_parse_answer(line, entry) for line, entry in fields.items("sequence")]
    then = fields.one_of("then", get_args(Then), default="last")
    return lambda rule: rule.sequence(answers, then=then)


def _parse_table(fields: Fields, source: SuiteSource) -> GiveAnswer:
    table = Fields(fields.take("table"), "`table`", fields.lines["table"])
    field, answers = table.text("field"), table.mapping("answers")
    table.refuse_rest()
    return lambda rule: rule.table(field, answers)


def _parse_template(fields: Fields, source: SuiteSource) -> GiveAnswer:
    text = fields.text("template")
    return lambda rule: rule.template(text)


def _parse_runs(fields: Fields, source: SuiteSource) -> GiveAnswer:
    function = fields.import_object("runs", source)
    return lambda rule: rule.runs(function)


def _parse_passthrough(fields: Fields, source: SuiteSource) -> GiveAnswer:
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


ANSWERS: dict[str, Callable[[Fields, SuiteSource], GiveAnswer]] = {
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


class ToolLines:
    """The line of each tool's name, by task, part of the task, and name.

    The tasks of a dataset are made one at a time, and only the lines of the last one are kept.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, str], int] = {}
        self._last: dict[tuple[str, str, str], int] | None = None

    def begin_case(self) -> None:
        """Forget the lines of the last case; those that are noted from now on are those of the next one."""
        self._last = {}

    def end_cases(self) -> None:
        """Keep the lines that are noted from now on."""
        self._last = None

    def note(self, task: str, what: str, pattern: str, line: int) -> None:
        """Note in which line a part of a task names a tool."""
        (self._kept if self._last is None else self._last).setdefault((task, what, pattern), line)

    def find(self, error: ToolNameError, suite: str) -> int | None:
        """Return the line of the tool that an error is about."""
        key = (error.task.removeprefix(f"{suite}/"), error.what, error.pattern)
        return (self._last or {}).get(key) or self._kept.get(key)


def read_yaml_suite(path: Path) -> UserSuite:
    """Read a suite from a YAML file.

    Args:
        path: The file, YAML in UTF-8. Its folder is where import paths begin, cassettes, and files of cases.

    Raises:
        SuiteFileError: If the file cannot be read or has invalid content. The error names the line.
        DataFileError: If a file of cases cannot be used. The error names its line.
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
    source = SuiteSource(folder)
    name = fields.text("suite")
    tools = fields.import_object("tools", source, default=())
    agent = fields.import_object("agent", source, default=None)
    instructions = fields.text("instructions", default="")
    options = _parse_cassette_options(fields)
    tags = fields.texts("tags")
    if "judge" in fields:
        defaults = Fields(fields.take("judge"), "`judge`", fields.lines["judge"])
        source.judge = parse_judge_options(defaults, source)
        defaults.refuse_rest()
    lines = ToolLines()
    checks = [(at, parse_check(at, check, source)) for at, check in fields.items("checks", default=[])]
    limits = _parse_limits(fields)
    if limits is not None:
        checks.append((fields.lines["limits"], within_limits(limits)))
    for at, each in checks:
        for pattern in tool_patterns_of(each):
            lines.note("*", check_title(each), pattern, at)
    tasks = [_parse_entry(line, entry, source, lines) for line, entry in fields.items("tasks")]
    fields.refuse_rest()
    try:
        return UserSuite(
            name,
            tasks=tasks,
            tools=tools,
            agent=agent,
            instructions=instructions,
            checks=[each for _, each in checks],
            cassette_options=options,
            tags=tags,
        )
    except (BadLine, DataFileError):
        raise
    except ToolNameError as error:
        raise BadLine(lines.find(error, name) or fields.line, error.problem) from error
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


def _parse_entry(line: int, entry: Any, source: SuiteSource, lines: ToolLines) -> Task | Dataset[Task]:
    """Parse a task, or the tasks that it makes of its cases."""
    fields = Fields(entry, "a task", line)
    if "cases" not in fields and "matrix" not in fields:
        return _parse_task(line, entry, source, lines)
    template = LinedDict(entry.line)
    template.lines = entry.lines
    template.update({key: value for key, value in entry.items() if key not in ("cases", "matrix")})
    if isinstance(entry.get("id"), str) and not parameters_in(entry["id"]):
        name = entry["id"]
        problem = f"the `id` of a task with cases names a parameter, such as '{name}-{{item}}'; got {name!r}"
        raise BadLine(fields.lines["id"], problem)
    changing = {key for key, value in template.items() if has_parameters(value, key)}

    def make(values: dict[str, Any]) -> Task:
        filled = LinedDict(template.line)
        filled.lines = template.lines
        for key, value in template.items():
            if key in changing:
                value = fill_entry(value, values, key=key, line=template.lines[key], raw=key in VALUE_KEYS)
            filled[key] = value
        lines.begin_case()
        return _parse_task(line, filled, source, lines)

    return Dataset(_parse_cases(fields, source), make)


def _parse_cases(fields: Fields, source: SuiteSource) -> CaseSource:
    """Parse where the cases of a task come from."""
    cases: CaseSource | None = None
    given = fields.take("cases", default=None)
    if isinstance(given, str):
        try:
            cases = FileCases(source.folder / given)
        except DataFileError as error:
            raise BadLine(fields.lines["cases"], f"`cases`: {error.problem}; got {given!r}") from error
    elif given is not None:
        entries = fields.items("cases")
        for line, entry in entries:
            if not isinstance(entry, LinedDict):
                raise BadLine(line, f"a case is a mapping of its values; got {plain(entry)!r:.100}")
        cases = InlineCases([plain(entry) for _, entry in entries], [line for line, _ in entries])
    if "matrix" not in fields:
        if cases is None:
            raise BadLine(fields.lines["cases"], "`cases` is a file, such as cases.jsonl, or a list of mappings")
        return cases
    matrix = Fields(fields.take("matrix"), "`matrix`", fields.lines["matrix"])
    values: dict[str, list[Any]] = {}
    for name in fields.take("matrix"):
        values[name] = [plain(each) for _, each in matrix.items(name)]
        if not values[name]:
            raise BadLine(matrix.lines[name], f"`{name}` of the matrix has no values")
    return CaseMatrix(values, matrix.line, cases)


def _parse_task(line: int, entry: Any, source: SuiteSource, lines: ToolLines) -> Task:
    """Parse a task, and note in which line each tool is named."""
    fields = Fields(entry, "a task", line)
    name = fields.text("id")
    prompt = fields.text("prompt", default="" if "user" in fields else REQUIRED)
    script = [_parse_turn(*turn) for turn in fields.items("script", default=None)] if "script" in fields else None
    if script is not None and "model" in fields:
        raise BadLine(fields.lines["model"], f"task {name!r} has a `script`, which is its model; leave one out")
    model = fields.model("model", source, default=None)
    mocks = fields.items("mocks", default=[])
    rules = _parse_rules(mocks, source)
    faults = [(at, parse_fault(at, fault)) for at, fault in fields.items("faults", default=[])]
    expected = _parse_expected(fields.lines["expected"], fields.take("expected")) if "expected" in fields else None
    expected_output = fields.text("expected_output", default=None)
    found = [(at, parse_check(at, check, source)) for at, check in fields.items("checks", default=[])]
    limits = _parse_limits(fields)
    cassette = fields.text("cassette", default=None)
    turns = fields.texts("turns")
    user = _parse_user(fields, source)
    stop = _parse_stop(fields, source)
    tags, metadata = fields.texts("tags"), fields.mapping("metadata", default={})
    weight = fields.amount("weight", default=1.0)
    fields.refuse_rest()
    for at, mock in mocks:
        lines.note(name, MOCKS, mock["tool"], at)
    for at, fault in faults:
        lines.note(name, FAULTS, fault.tool, at)
    for tool in () if limits is None else limits.max_calls_per_tool:
        lines.note(name, LIMITS, tool, fields.lines["limits"])
    if "expected" in fields:
        for at, call in Fields(fields.take("expected"), "`expected`", line).items("calls"):
            tool = call if isinstance(call, str) else call["tool"]
            lines.note(name, EXPECTED, expected_pattern(tool), at)
    stop_check = [] if stop is None or stop.check is None else [(fields.lines["stop"], stop.check)]
    for at, check in [*found, *stop_check]:
        for pattern in tool_patterns_of(check):
            lines.note(name, check_title(check), pattern, at)
    try:
        return Task(
            id=name,
            prompt=prompt,
            script=script,
            model=model,
            mocks=rules,
            expected=expected,
            checks=[check for _, check in found],
            cassette=None if cassette is None else source.folder / cassette,
            expected_output=expected_output,
            limits=limits,
            faults=[fault for _, fault in faults],
            turns=turns,
            user=user,
            stop=stop,
            tags=tags,
            weight=weight,
            metadata=metadata,
        )
    except HooklineError as error:
        raise BadLine(fields.line, str(error).rstrip(".")) from error


def _parse_limits(owner: Fields) -> Limits | None:
    if "limits" not in owner:
        return None
    line = owner.lines["limits"]
    fields = Fields(owner.take("limits"), "`limits`", line)
    given = {each.name: fields.take(each.name) for each in msgspec.structs.fields(Limits) if each.name in fields}
    for each in msgspec.structs.fields(Limits):
        fields.take(each.name, default=None)
    fields.refuse_rest()
    if not given:
        raise BadLine(line, "`limits` has no limit; leave it out, or give one, such as max_calls: 5")
    try:
        return Limits(**plain(given))
    except HooklineError as error:
        raise BadLine(line, str(error).rstrip(".")) from error


def _parse_user(owner: Fields, source: SuiteSource) -> SimulatedUser | None:
    if "user" not in owner:
        return None
    fields = Fields(owner.take("user"), "`user`", owner.lines["user"])
    goal, persona = fields.text("goal"), fields.text("persona", default="")
    model, settings = fields.model("model", source), fields.mapping("settings", default=None)
    fields.refuse_rest()
    try:
        return SimulatedUser(goal=goal, model=model, persona=persona, settings=settings)
    except HooklineError as error:
        raise BadLine(fields.line, str(error).rstrip(".")) from error


def _parse_stop(owner: Fields, source: SuiteSource) -> StopConditions | None:
    if "stop" not in owner:
        return None
    line = owner.lines["stop"]
    fields = Fields(owner.take("stop"), "`stop`", line)
    turns, phrase = fields.number("max_turns", default=None), fields.text("phrase", default="")
    check: Check | None = None
    if "check" in fields:
        check = parse_check(fields.lines["check"], fields.take("check"), source)
    fields.refuse_rest()
    try:
        return StopConditions(max_turns=turns, phrase=phrase, check=check)
    except HooklineError as error:
        raise BadLine(line, str(error).rstrip(".")) from error


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
