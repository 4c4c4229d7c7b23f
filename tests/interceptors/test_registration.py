"""What may be registered, as what, and that everything else is refused at once, by name, with a way to fix it."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from hookline import Hook
from hookline.calls import CALLS as CALL_CLASSES
from hookline.calls import Call, Deny, ModelCall, RequestCall, ToolCall, ToolResult
from hookline.errors import (
    HookDefinitionError,
    HookDenied,
    HookExecutionError,
    HookReturnError,
    HookTimeoutError,
    HookUsageError,
)
from hookline.events import EVENTS, AfterCallAgent, AfterStep, BeforeToolCall
from hookline.hooks import EVENTS_OF_CALLS, Hooks
from hookline.interceptors import Chain, Interceptor
from tests.tables import for_each

from .calls import CALLS, Tool, after, around, before, guard, hook, lead, run, statuses, tool_call, turns

pytestmark = pytest.mark.anyio

KINDS = ["before", "guard", "around", "after"]
ARGUMENTS = {"before": 1, "guard": 1, "around": 2, "after": 2}


# --- handlers of all sorts


class AsyncCallable:
    async def __call__(self, *args: Any) -> Any:
        await turns(1)
        return Deny("object")


class Callable:
    def __call__(self, *args: Any) -> Any:
        return Deny("object")


class Methods:
    async def later(self, *args: Any) -> Any:
        await turns(1)
        return Deny("method")

    def at_once(self, *args: Any) -> Any:
        return Deny("method")

    @classmethod
    async def of_class(cls, *args: Any) -> Any:
        return Deny("class method")

    @staticmethod
    async def static(*args: Any) -> Any:
        return Deny("static method")


async def with_option(option: str, *args: Any) -> Any:
    await turns(1)
    return Deny(option)


def decorated(handler: Any) -> Any:
    @functools.wraps(handler)
    def wrapper(*args: Any) -> Any:
        return handler(*args)

    return wrapper


HANDLERS: dict[str, Any] = {
    "async object": AsyncCallable(),
    "object": Callable(),
    "async method": Methods().later,
    "method": Methods().at_once,
    "class method": Methods.of_class,
    "static method": Methods.static,
    "partial": functools.partial(with_option, "partial"),
    "partial of a partial": functools.partial(functools.partial(with_option, "partial")),
    "partial of an async object": functools.partial(AsyncCallable()),
    "partial of a method": functools.partial(Methods().later),
    "decorated": decorated(Methods().later),
    "keyword partial": functools.partial(lambda *args, reason: Deny(reason), reason="keyword"),
}


@for_each("name", HANDLERS)
@for_each("kind", KINDS)
async def test_a_handler_may_be_any_callable(kind: str, name: str) -> None:
    outcome = await run([hook(kind, HANDLERS[name])])

    assert outcome.denied is not None
    assert not outcome.denied.reason.startswith("the hook failed")
    assert statuses(outcome) == [(kind, "denied")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_decorator_returns_the_function_unchanged(kind: str) -> None:
    bundle = Hooks("bundle")

    async def handler(*args: Any) -> None:
        """Nothing."""

    assert getattr(bundle, kind)(ToolCall)(handler) is handler
    (interceptor,) = bundle.interceptors
    assert interceptor == Interceptor(id="bundle.handler", call=ToolCall, kind=kind, handler=handler)  # type: ignore[arg-type]


def test_the_options_of_a_decorator_stand_in_the_record() -> None:
    bundle = Hooks("bundle", tenant_id="acme", priority=7)

    @bundle.before(ToolCall, priority=0, tool="*/ls", timeout=0.5, on_error="open", wait=False, id="mine")
    def handler(call: ToolCall) -> None:
        """Nothing."""

    assert bundle.interceptors == (
        Interceptor(
            id="mine",
            call=ToolCall,
            kind="before",
            handler=handler,
            priority=0,
            tool="*/ls",
            timeout=0.5,
            on_error="open",
            wait=False,
            tenant_id="acme",
        ),
    )


async def test_the_options_of_a_hook_are_not_dead_settings() -> None:
    def broken(call: Any) -> None:
        raise ValueError

    async def hung(call: Any) -> None:
        await turns(10**9)

    open_one = await run([before(broken, on_error="open"), before(hung, timeout=0.01, on_error="open")])
    closed_one = await run([before(broken)])

    assert open_one.denied is None
    assert [status for _, status in statuses(open_one)] == ["error", "timeout"]
    assert closed_one.denied is not None


async def test_interceptors_hold_the_plain_records_in_the_order_of_registration() -> None:
    bundle = Hooks("bundle")
    for kind in KINDS:
        getattr(bundle, kind)(ToolCall, id=kind)(lambda *args: None)

    assert [each.kind for each in bundle.interceptors] == KINDS
    assert isinstance(bundle.interceptors, tuple)
    outcome = await run(bundle.interceptors)
    assert [each.hook_id for each in outcome.executions] == ["before", "around"]


async def test_ids_need_not_be_unique() -> None:
    outcome = await run([before(lambda call: None, id="same"), before(lambda call: None, id="same")])

    assert statuses(outcome) == [("same", "ok")] * 2


async def test_one_record_given_twice_runs_twice() -> None:
    seen: list[int] = []
    twice = before(lambda call: seen.append(1))

    outcome = await run([twice, twice])

    assert len(seen) == len(outcome.executions) == 2


async def test_a_chain_takes_any_iterable_and_leaves_out_what_is_no_interceptor() -> None:
    bundle = Hooks("bundle")
    bundle.on(AfterStep)(lambda event: None)
    bundle.before(ToolCall)(lambda call: None)
    observer = Hook(id="observer", type=AfterStep, handler=lambda event: None)

    outcome = await run(each for each in [bundle, observer, before(lambda call: None)])

    assert statuses(outcome) == [("bundle.<lambda>", "ok"), ("before", "ok")]


async def test_a_chain_does_not_notice_what_is_added_to_a_bundle_later() -> None:
    seen: list[str] = []
    bundle = Hooks("bundle")

    @bundle.before(ToolCall)
    def first(call: ToolCall) -> None:
        seen.append("first")
        bundle.before(ToolCall)(lambda call: seen.append("added in the middle"))

    given: list[Any] = [bundle]
    chain = Chain(given)
    given.clear()
    await lead(chain)
    await lead(chain)

    assert seen == ["first"] * 2


# --- what is refused


def generator(*args: Any) -> Iterator[int]:
    yield 1


async def async_generator(*args: Any) -> AsyncIterator[int]:
    yield 1


class CallableGenerator:
    def __call__(self, *args: Any) -> Iterator[int]:
        yield 1


class CallableAsyncGenerator:
    async def __call__(self, *args: Any) -> AsyncIterator[int]:
        yield 1


class GeneratorMethod:
    def method(self, *args: Any) -> Iterator[int]:
        yield 1


BAD_HANDLERS: dict[str, Any] = {
    "nothing": None,
    "text": "print",
    "no arguments": lambda: None,
    "three arguments": lambda a, b, c: None,
    "a required keyword": lambda *args, other: None,
    "generator": generator,
    "async generator": async_generator,
    "generator object": CallableGenerator(),
    "async generator object": CallableAsyncGenerator(),
    "generator method": GeneratorMethod().method,
    "partial of a generator": functools.partial(generator),
    "decorated generator": decorated(generator),
    "a coroutine": None,
}


@for_each("kind", KINDS)
@for_each("name", BAD_HANDLERS)
def test_a_handler_that_could_never_work_is_refused(kind: str, name: str) -> None:
    bundle = Hooks("the bundle")

    with pytest.raises(HookDefinitionError, match="the bundle"):
        getattr(bundle, kind)(ToolCall)(BAD_HANDLERS[name])
    with pytest.raises(HookDefinitionError, match="the hook"):
        Chain([hook(kind, BAD_HANDLERS[name], id="the hook")])

    assert bundle.interceptors == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_takes_another_number_of_arguments_is_refused(kind: str) -> None:
    handler: Any = (lambda a, b: None) if ARGUMENTS[kind] == 1 else (lambda a: None)

    with pytest.raises(HookDefinitionError, match="called with"):
        Chain([hook(kind, handler)])


class Nobody(Call, frozen=True, kw_only=True):
    """No call of the eight."""


class MyToolCall(ToolCall, frozen=True, kw_only=True):
    """Not one of the eight either."""


BAD_OPTIONS: list[tuple[str, Any]] = [
    *(("priority", value) for value in (-1, 1001, 1.5, "1", True, math.nan)),
    *(("timeout", value) for value in (0, -3, math.nan, "1", True, 10**400)),
    *(("tool", value) for value in ("", 3, b"x")),
    *(("on_error", value) for value in ("ignore", True, None, "OPEN")),
    *(("wait", value) for value in (None, 0, "no")),
    *(("id", value) for value in ("", 3)),
]


@for_each("kind", KINDS)
@for_each("name, value", BAD_OPTIONS)
def test_an_option_that_makes_no_sense_is_refused_by_name(kind: str, name: str, value: Any) -> None:
    bundle = Hooks("the bundle")
    # `None` as a priority means the bundle's, and is not among these.
    with pytest.raises(HookDefinitionError, match=name):
        getattr(bundle, kind)(ToolCall, **{name: value})(lambda *args: None)
    with pytest.raises(HookDefinitionError, match=name):
        Chain([hook(kind, lambda *args: None, **{name: value})])

    assert bundle.interceptors == ()


@for_each("kind", KINDS)
@for_each(
    "call",
    [Call, Nobody, MyToolCall, ToolResult, "BeforeLunch", None, tool_call()],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_only_the_eight_calls_can_be_intercepted(kind: str, call: Any) -> None:
    bundle = Hooks("the bundle")

    with pytest.raises(HookDefinitionError, match="eight calls"):
        getattr(bundle, kind)(call)(lambda *args: None)


@for_each("name", ["on", *KINDS])
def test_a_decorator_without_what_it_is_for_is_refused(name: str) -> None:
    bundle = Hooks()

    with pytest.raises(
        HookDefinitionError, match=rf"@hooks\.{name}: name what the hook is for, such as @hooks\.{name}\("
    ):
        getattr(bundle, name)(lambda event: None)

    assert (bundle.observers, bundle.interceptors) == ((), ())


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (BeforeToolCall, r"an event, not a call; you mean hooks\.guard\(ToolCall\)"),
        ("AfterToolCall", r"an event, not a call; you mean hooks\.guard\(ToolCall\)"),
        ("beforeToolCall", r"an event, not a call; you mean hooks\.guard\(ToolCall\)"),
        (AfterCallAgent, r"an event, not a call; you mean hooks\.guard\(SubAgentCall\)"),
        ("ToolCall", r"give the class itself, ToolCall; got 'ToolCall'"),
    ],
)
def test_an_event_in_place_of_a_call_is_refused_with_the_call_that_is_meant(given: Any, meant: str) -> None:
    with pytest.raises(HookDefinitionError, match=meant):
        Hooks().guard(given)(lambda call: None)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (ToolCall, r"hooks\.on\(BeforeToolCall\) or hooks\.on\(AfterToolCall\).*; .* hooks\.guard\(ToolCall\)"),
        (ModelCall, r"to observe it, use hooks\.on\(AfterStep\); to decide about it, use hooks\.guard\(ModelCall\)"),
        (RequestCall, r"it has no events; to decide about it, use hooks\.guard\(RequestCall\)"),
    ],
)
def test_a_call_in_place_of_an_event_is_refused_with_the_events_that_are_meant(given: Any, meant: str) -> None:
    with pytest.raises(HookDefinitionError, match=meant):
        Hooks().on(given)(lambda event: None)


def test_every_call_and_every_event_of_a_call_has_its_suggestion() -> None:
    events = {name for names in EVENTS_OF_CALLS.values() for name in names}

    assert list(EVENTS_OF_CALLS) == [call.__name__ for call in CALL_CLASSES]
    assert events == {event.__name__ for event in EVENTS.values() if "HumanIntervention" not in event.__name__}


@pytest.mark.parametrize("kind", ["guard", "around"])
def test_guards_and_arounds_are_always_waited_for(kind: str) -> None:
    with pytest.raises(HookDefinitionError, match="wait"):
        Chain([hook(kind, lambda *args: None, wait=False)])


@for_each("kind", ["", "Before", "during", None, 3, []])
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    with pytest.raises(HookDefinitionError, match="kind"):
        Chain([hook(kind, lambda *args: None, id="x")])


@for_each("kind", KINDS)
@for_each("call", [type(call) for call, _ in CALLS if not isinstance(call, ToolCall)])
def test_a_tool_filter_on_what_has_no_tool_is_refused(kind: str, call: Any) -> None:
    with pytest.raises(HookDefinitionError, match="tool"):
        Chain([hook(kind, lambda *args: None, call=call, tool="*/ls")])


@pytest.mark.parametrize("tenant", [None, 3, b"x"])
def test_a_tenant_that_is_no_text_is_refused(tenant: Any) -> None:
    with pytest.raises(HookDefinitionError, match="tenant_id"):
        Chain([before(lambda call: None, tenant_id=tenant)])
    with pytest.raises(HookDefinitionError, match="tenant_id"):
        Hooks("bundle", tenant_id=tenant)


@for_each(
    "entry",
    [None, "hook", 3, lambda call: None, {}, [], Hooks, Interceptor],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_bad_entry_is_refused_and_says_which_one(entry: Any) -> None:
    with pytest.raises(HookDefinitionError, match=r"hooks\[2\]"):
        Chain([Hooks("fine"), before(lambda call: None), entry])


@pytest.mark.parametrize(
    "hooks", [None, 3, "hooks", Hooks("bundle"), before(lambda call: None)], ids=lambda value: type(value).__name__
)
def test_what_is_no_batch_is_refused(hooks: Any) -> None:
    with pytest.raises(HookDefinitionError):
        Chain(hooks)


# --- words and errors


@for_each("name", ["Ask", "Continue", "Deny", "Denial", "Interceptor", "Respond", *(type(call).__name__ for call, _ in CALLS), *(type(result).__name__ for _, result in CALLS)])  # fmt: skip
def test_the_words_are_also_at_the_root(name: str) -> None:
    import hookline.interceptors

    assert getattr(hookline, name) is getattr(hookline.interceptors, name)


ERRORS = [
    HookDefinitionError("where", "problem"),
    HookUsageError("text"),
    HookDenied("h", "because"),
    HookExecutionError("h", "ToolCall", "before", "problem"),
    HookTimeoutError("h", "ToolCall", 0.5),
    HookReturnError("h", "ToolCall", "returned None"),
]


@for_each("error", ERRORS, ids=lambda error: type(error).__name__)
@for_each("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_errors_pickle(error: Exception, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


async def test_the_errors_of_a_real_run_pickle() -> None:
    async def hung(call: Any) -> None:
        await turns(10**9)

    for broken in (before(hung, timeout=0.01), before(lambda call: "wrong"), guard(lambda call: Deny("no"))):
        outcome = await run([broken])
        assert outcome.refusal is not None
        error: BaseException | None = outcome.refusal
        while error is not None:
            assert str(pickle.loads(pickle.dumps(error))) == str(error)
            error = error.__cause__


def test_the_errors_stand_in_one_tree() -> None:
    from hookline.errors import HookError, HooklineError

    assert issubclass(HookTimeoutError, TimeoutError)
    assert issubclass(HookReturnError, TypeError)
    assert all(
        issubclass(error, HookError) for error in (HookDenied, HookExecutionError, HookTimeoutError, HookReturnError)
    )
    assert issubclass(HookError, HooklineError)


def test_a_chain_says_whether_anybody_stands_in_the_way() -> None:
    chain = Chain([before(lambda call: None, tenant_id="acme"), after(lambda call, result: None)])

    assert ToolCall in chain
    assert ModelCall not in chain
    assert ToolCall not in Chain([Hooks("empty")])


async def test_an_around_may_be_a_plain_function_that_answers() -> None:
    tool = Tool()

    outcome = await run([around(lambda call, call_next: ToolResult(content="42"))], terminal=tool)

    assert outcome.unwrap().content == "42"
    assert tool.calls == []
