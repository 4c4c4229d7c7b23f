"""`HookTest`: a test in a file of definitions, which says what its hooks decide about calls, or who hears an event.

```toml
[[tests]]
name = "The third search is refused"
hook = "Limit searches"

[[tests.calls]]
call = { tool_name = "search" }
expect = "allowed"

[[tests.calls]]
call = { tool_name = "search" }
expect = { verdict = "denied", by = "Limit searches", reason = "at most" }
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from hookline.calls import CALLS, Call, ToolCall
from hookline.events import BeforeToolCall
from hookline.registry._definition import POINTS, HookDefinition, Name, Point, field_error, normalize_keys, point_of
from hookline.registry._dry_run import DryRunSample, build_sample, snake_key
from hookline.registry._errors import DefinitionError, DefinitionFileError
from hookline.registry._files import FileEntry, HookFile

__all__ = ["CallVerdict", "ExpectedVerdict", "HookTest", "HookTestCall", "read_hook_tests"]

T = TypeVar("T")

CallVerdict = Literal[
    "allowed", "denied", "asked", "mocked", "rewritten", "continued", "guided", "failed", "heard", "ignored"
]

MOST_CALLS = 1000
"""Calls that a test may have."""
EVENT_VERDICTS: tuple[CallVerdict, ...] = ("heard", "ignored", "failed")
"""What a test can expect of an event."""
OF_CALLS = ("args", "call", "result", "context", "stop")
"""Fields of an expectation that make no sense for an event."""
WITH_REASON: frozenset[CallVerdict] = frozenset({"denied", "asked", "continued", "guided", "failed"})
CALLS_BY_NAME: Mapping[str, type[Call]] = {call.__name__: call for call in CALLS}


class ExpectedVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The expected verdict about a call, or what becomes of an event. Only what is given is compared.

    Attributes:
        verdict: `"allowed"`: the call is made as it is. `"denied"`. `"asked"`: a person is asked. `"mocked"`: a hook
            answers in the call's place. `"rewritten"`: the call or its result is changed. `"continued"`: the run goes
            on with a further input. `"guided"`: the model is asked again. `"failed"`: a hook raises or times out.
            Of an event: `"heard"`: an observer runs and does not fail, or a webhook would be sent. `"ignored"`: no
            observer is for it. `"failed"`.
        by: The hook that decides so, adds the context, or hears the event, by its id or name.
        reason: Text in the reason of the denial, the question to the person, the further input, the feedback or the
            error.
        args: All arguments of the tool call as the tool gets them.
        call: Fields of the call as it is made.
        result: The answer of the hook, or the changed result: its text, or some of its fields.
        context: Text in the context that hooks add for the model.
        stop: Whether the denial ends the run.
    """

    verdict: CallVerdict
    by: str = ""
    reason: str = ""
    args: dict[str, Any] | None = None
    call: dict[str, Any] | None = None
    result: str | dict[str, Any] | None = None
    context: str = ""
    stop: bool | None = None


class GivenCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A call or an event of a test with what is expected, as the file has them.

    Attributes:
        type: The kind of call, or the wire name of the event; by default that of the test's hook, else `"ToolCall"`.
        call: Some fields of the call; others are filled in.
        event: Some fields of the event, in place of `call`.
        result: The result that the call has if it is made: a text, or some of its fields.
        expect: The verdict, or a table with more.
    """

    type: str = ""
    call: dict[str, Any] | None = None
    event: dict[str, Any] | None = None
    result: str | dict[str, Any] = {}
    expect: CallVerdict | dict[str, Any]


class GivenTest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A test as the file has it: with `call` and `expect`, or with `calls`.

    Attributes:
        name: What the test shows; unique in the file.
        hook: The id or name of the only hook that is tested; by default, all enabled hooks of the file are.
        type: See `GivenCall`, like the three that follow.
        call: The only call.
        event: The only event.
        result: Its result.
        expect: What is expected.
        calls: Several calls, in order.
        webhook_answers: What the receivers of controls answer, by the id or name of the hook.
    """

    name: Name
    hook: str = ""
    type: str | msgspec.UnsetType = msgspec.UNSET
    call: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    event: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    result: str | dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    expect: CallVerdict | dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    calls: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_CALLS)] | None = None
    webhook_answers: dict[str, dict[str, Any]] = {}


class HookTestCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call or an event of a test.

    Attributes:
        point: The kind of call, or the event.
        fields: The given fields of the call or the event, and of a call's result under `result`.
        tenant_id: The tenant of the call or the event, unless the fields name one.
        expected: The expected verdict; its `by` is an id.
    """

    point: Point
    fields: dict[str, Any]
    tenant_id: str
    expected: ExpectedVerdict

    def build(self) -> DryRunSample:
        """Build the call or the event anew, so that no run sees the `metadata` of another one."""
        return build_sample(self.point, self.fields, self.tenant_id)


class HookTest(msgspec.Struct, frozen=True, kw_only=True):
    """A test of the hooks in a file.

    Attributes:
        name: Its name.
        file: The file.
        line: The line where it begins, from 1; `None` if it is not known.
        hooks: The definitions that it tests.
        calls: Its calls, in order.
        webhook_answers: What the receivers of controls answer, by the id of the hook.
    """

    name: str
    file: str
    line: int | None
    hooks: Sequence[HookDefinition]
    calls: Sequence[HookTestCall]
    webhook_answers: Mapping[str, dict[str, Any]]


def read_hook_tests(file: HookFile) -> list[HookTest]:
    """Parse the tests of a file.

    Raises:
        DefinitionFileError: If one is invalid, or names a hook that is not in the file.
    """
    found: dict[str, HookTest] = {}
    for nth, entry in enumerate(file.tests):
        try:
            test = _read_test(file, entry)
            if test.name in found:
                raise DefinitionError("invalid", "$.name", f"two tests have the name {test.name!r}; rename one")
        except DefinitionError as error:
            inside = f"$.tests[{nth}]{error.path.removeprefix('$')}"
            line = entry.find_line(error.path)
            raise DefinitionFileError(error.code, inside, error.problem, file.file, line) from None
        found[test.name] = test
    return [*found.values()]


def _read_test(file: HookFile, entry: FileEntry) -> HookTest:
    given = _convert(entry.given, GivenTest, "$")
    if given.hook:
        hooks = [msgspec.structs.replace(_find_hook(file, given.hook, "$.hook"), enabled=True)]
    else:
        hooks = [each for each in file.definitions if each.enabled]
    tenants = {each.tenant_id for each in hooks}
    tenant_id = tenants.pop() if len(tenants) == 1 else ""
    tested = hooks[0] if given.hook else None
    calls = [
        _read_call(file, call, path, tested=tested, tenant_id=tenant_id) for path, call in _list_given_calls(given)
    ]
    answers: dict[str, dict[str, Any]] = {}
    for name, answer in given.webhook_answers.items():
        hook = _find_hook(file, name, "$.webhookAnswers")
        if hook.webhook is None or not hook.webhook.control:
            problem = f"{name!r:.100} is no webhook with `control = true`, so no answer of it counts; leave it out"
            raise DefinitionError("invalid", "$.webhookAnswers", problem)
        answers[hook.id] = answer
    return HookTest(name=given.name, file=file.file, line=entry.line, hooks=hooks, calls=calls, webhook_answers=answers)


def _list_given_calls(given: GivenTest) -> list[tuple[str, GivenCall]]:
    """Return the calls of a test with their paths."""
    single = {
        name: value
        for name in ("type", "call", "event", "result", "expect")
        if (value := getattr(given, name)) is not msgspec.UNSET
    }
    if given.calls is None:
        return [("$", _convert(single, GivenCall, "$"))]
    if single:
        name = next(iter(single))
        raise DefinitionError("invalid", f"$.{name}", f"with `calls`, each call has its own `{name}`; move it there")
    return [(f"$.calls[{nth}]", _convert(call, GivenCall, f"$.calls[{nth}]")) for nth, call in enumerate(given.calls)]


def _read_call(
    file: HookFile, given: GivenCall, path: str, *, tested: HookDefinition | None, tenant_id: str
) -> HookTestCall:
    """Read a call or an event of a test.

    Args:
        file: The file.
        given: What it has.
        path: Where.
        tested: The only hook that is tested; `None` for all of the file.
        tenant_id: The tenant of the call or the event, unless it names one.
    """
    point = _read_event_point(given, path, tested) if given.call is None else _read_call_point(given, path, tested)
    expect = {"verdict": given.expect} if isinstance(given.expect, str) else given.expect
    expected = _convert(expect, ExpectedVerdict, f"{path}.expect")
    if point.call is not None:
        _check_expected(expected, point.call, f"{path}.expect")
    else:
        _check_expected_of_event(expected, point, f"{path}.expect")
    if expected.by:
        by = _find_hook(file, expected.by, f"{path}.expect.by").id
        expected = msgspec.structs.replace(expected, by=by)
    name = "event" if given.call is None else "call"
    fields = dict(given.event or {}) if given.call is None else {**given.call, "result": given.result}
    read = HookTestCall(point=point, fields=fields, tenant_id=tenant_id, expected=expected)
    try:
        read.build()
    except DefinitionError as error:
        inside = error.path.removeprefix("$.sample")
        where = inside if inside.startswith(".result") and name == "call" else f".{name}{inside}"
        raise DefinitionError(error.code, f"{path}{where}", error.problem) from None
    return read


def _read_call_point(given: GivenCall, path: str, tested: HookDefinition | None) -> Point:
    """Return the kind of call of a test."""
    if given.event is not None:
        raise DefinitionError("invalid", f"{path}.event", "a test has a `call` or an `event`; leave one out")
    if tested is not None and not tested.decides:
        problem = (
            f"{tested.name!r:.100} only observes {tested.point} and decides about no call; give an `event`, and expect "
            'that it is "heard"'
        )
        raise DefinitionError("invalid", "$.hook", problem)
    if "result" in (given.call or {}):
        raise DefinitionError("invalid", f"{path}.call.result", "the `result` stands beside the `call`, not in it")
    if given.type and given.type not in CALLS_BY_NAME:
        problem = f"{given.type!r:.100} is no call; a test is about one of {', '.join(CALLS_BY_NAME)}"
        raise DefinitionError("invalid", f"{path}.type", problem)
    kind = CALLS_BY_NAME[given.type] if given.type else (point_of(tested).call if tested else None) or ToolCall
    return Point(kind.__name__, call=kind)


def _read_event_point(given: GivenCall, path: str, tested: HookDefinition | None) -> Point:
    """Return the event of a test."""
    if given.event is None:
        raise DefinitionError("invalid", f"{path}.call", "missing required field `call`; for an observer, `event`")
    if tested is not None and tested.decides:
        problem = f"{tested.name!r:.100} decides about calls; give a `call` in place of the `event`"
        raise DefinitionError("invalid", f"{path}.event", problem)
    if given.result != {}:
        raise DefinitionError("invalid", f"{path}.result", "an event has no `result` of its own; leave it out")
    name = given.type or (tested.point if tested is not None else "")
    point = POINTS.get(name)
    if point is None or point.event is None or point.event is BeforeToolCall:
        known = ", ".join(each for each, of in POINTS.items() if of.event not in (None, BeforeToolCall))
        problem = f"{name!r:.100} is no event" if name else "an event needs a `type`"
        if point is not None and point.event is BeforeToolCall:
            problem = "hooks of beforeToolCall decide about the call; give a `call` in place of the `event`"
        raise DefinitionError("invalid", f"{path}.type", f"{problem}; the type of an event is one of {known}")
    return point


def _check_expected_of_event(expected: ExpectedVerdict, point: Point, path: str) -> None:
    """Check that an expectation makes sense for an event."""
    if expected.verdict not in EVENT_VERDICTS:
        problem = f"nobody decides about {point.name}; expect {', '.join(map(repr, EVENT_VERDICTS))}"
        raise DefinitionError("invalid", path, problem)
    wrong = [name for name in OF_CALLS if getattr(expected, name) not in (None, "")]
    if expected.reason and expected.verdict != "failed":
        wrong.append("reason")
    if expected.by and expected.verdict == "ignored":
        wrong.append("by")
    if wrong:
        problem = f"there is no `{wrong[0]}` where an event is {expected.verdict!r}; leave it out"
        raise DefinitionError("invalid", f"{path}.{wrong[0]}", problem)


def _check_expected(expected: ExpectedVerdict, call_type: type[Call], path: str) -> None:
    """Check that the fields of an expectation go with its verdict."""
    verdict = expected.verdict
    if verdict in ("heard", "ignored"):
        raise DefinitionError("invalid", path, f"a call is not {verdict!r}; give an `event`, or expect another verdict")
    known = {field.name for field in msgspec.structs.fields(call_type)}
    unknown = next((key for key in expected.call or () if snake_key(key) not in known), None)
    is_made = verdict not in ("denied", "asked", "mocked", "failed")
    for name, is_wrong, problem in (
        ("reason", expected.reason and verdict not in WITH_REASON, f"there is no reason where a call is {verdict!r}"),
        (
            "by",
            expected.by and verdict == "allowed" and not expected.context,
            "no hook decides where a call is allowed",
        ),
        ("stop", expected.stop is not None and verdict != "denied", "only a denial can end the run"),
        ("args", expected.args is not None and call_type is not ToolCall, f"a {call_type.__name__} has no `args`"),
        ("args", expected.args is not None and not is_made, f"a call that is {verdict!r} is not made"),
        ("call", expected.call is not None and not is_made, f"a call that is {verdict!r} is not made"),
        (f"call.{unknown}", unknown is not None, f"a {call_type.__name__} has no field {unknown!r:.100}"),
        ("result", expected.result is not None and verdict in ("denied", "asked", "failed"), "it has no result"),
    ):
        if is_wrong:
            raise DefinitionError("invalid", f"{path}.{name}", f"{problem}; leave it out, or change it")


def _find_hook(file: HookFile, name: str, path: str) -> HookDefinition:
    """Return the definition in a file that has an id or a name.

    Raises:
        DefinitionError: If there is none, or several have the name.
    """
    found = [each for each in file.definitions if each.id == name]
    found = found or [each for each in file.definitions if each.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise DefinitionError(
            "invalid", path, f"several hooks have the name {name!r:.100}; give one an id, and use that"
        )
    names = ", ".join(repr(each.name) for each in file.definitions) or "none"
    raise DefinitionError("invalid", path, f"there is no hook {name!r:.100} in this file; it has {names:.300}")


def _convert(given: Mapping[str, Any], kind: type[T], path: str) -> T:
    """Convert a table of a test, with keys in either spelling."""
    try:
        try:
            return msgspec.convert(normalize_keys(given), kind)
        except msgspec.ValidationError as error:
            raise field_error(str(error)) from None
    except DefinitionError as error:
        raise DefinitionError(error.code, f"{path}{error.path.removeprefix('$')}", error.problem) from None
