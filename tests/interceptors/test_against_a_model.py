"""Every law at once: random chains against a plain recursive function that says what must come of a call."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hookline.calls import Ask, Deny, Respond, ToolCall, ToolResult
from hookline.errors import HookDenied
from hookline.interceptors import Chain, Interceptor

from .calls import recorded, replace, tool_call

FAILED = "the hook failed, and it fails closed: "


class ToolError(Exception):
    """What the terminal raises."""


class HookBrokenError(Exception):
    """What a hook raises."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """A hook, as data."""

    kind: str
    priority: int = 1
    tenant: str = ""
    tool: str | None = None
    closed: bool = True
    is_async: bool = True
    wait: bool = True
    action: str = "pass"
    """What it does; of an `around` that goes on: what it returns in the end."""
    early: bool = False
    """Of an `around`: `action` comes without `call_next`."""
    change: str = "no"
    """What an `around` hands on: `no`, `path` or `tool`."""
    calls: int = 1
    """How often an `around` calls `call_next`."""
    swallows_denial: bool = False
    swallows_error: str = "no"
    """What an `around` does with the terminal's exception: `no`, `yes`, or `wraps` it."""


# --- the model


class Refused(Exception):
    """The call was denied."""


@dataclasses.dataclass
class Model:
    """What must happen."""

    specs: list[Spec]
    tenant: str
    raises: bool
    trace: list[Any] = dataclasses.field(default_factory=list)
    background: list[Any] = dataclasses.field(default_factory=list)
    records: list[list[Any]] = dataclasses.field(default_factory=list)
    call: tuple[str, str] = ("", "ls")
    denied: tuple[str, str] | None = None
    asked: str | None = None
    stop: bool = False
    reached: bool = False
    answered: bool = False
    result: str | None = None
    raised: bool = False

    def lead(self) -> None:
        mine = [n for n, spec in enumerate(self.specs) if spec.tenant in ("", self.tenant)]
        mine.sort(key=lambda n: (self.specs[n].priority, self.specs[n].tenant != ""))
        waited = [n for n in mine if self.specs[n].wait]
        self.unwaited = [n for n in mine if not self.specs[n].wait]
        guards = [n for n in waited if self.specs[n].kind == "guard"]
        self.order = [n for n in waited if n not in guards] + guards
        try:
            self.result = self.go(0, self.call)
        except Refused:
            return
        except ToolError:
            self.raised = True
            return
        self.start("after")

    def start(self, kind: str) -> None:
        for n in self.unwaited:
            if self.specs[n].kind == kind and matches(self.specs[n], self.call):
                self.background.append((n, self.call))

    def go(self, index: int, call: tuple[str, str]) -> str:
        self.call = call
        if index == len(self.order):
            self.start("before")
            self.reached = True
            self.trace.append(("terminal", call))
            if self.raises:
                raise ToolError
            return "result"
        n = self.order[index]
        spec = self.specs[n]
        if spec.kind == "after":
            return self.after(n, spec, self.go(index + 1, call))
        if not matches(spec, call):
            return self.go(index + 1, call)
        record = self.begin(n, call)
        if spec.kind == "around":
            return self.around(n, spec, record, index, call)
        if spec.action == "pass":
            return self.go(index + 1, call)
        if spec.kind == "before" and spec.action in ("path", "tool"):
            return self.go(index + 1, changed(call, n, spec.action))
        if spec.kind == "before" and spec.action == "respond":
            record[1] = "mocked"
            self.answered = True
            return f"answer {n}"
        self.refuse(n, spec, record)
        return self.go(index + 1, call)

    def after(self, n: int, spec: Spec, result: str) -> str:
        if not matches(spec, self.call):
            return result
        record = self.begin(n, self.call)
        if spec.action == "pass":
            return result
        if spec.action == "replace":
            return f"{result} {n}"
        if spec.action == "deny":
            self.refuse(n, spec, record)
        self.fail(n, spec, record)
        return result

    def around(self, n: int, spec: Spec, record: list[Any], index: int, call: tuple[str, str]) -> str:
        result: str | None = None
        error: Exception | None = None
        if not spec.early:
            try:
                result = self.go(index + 1, changed(call, n, spec.change))
            except Refused:
                if not spec.swallows_denial:
                    raise
                self.trace.append(("out", n))
                # What it says now changes nothing.
                record[1] = {"deny": "denied", "ask": "denied", "raise": "error"}.get(spec.action, "whatever")
                raise
            except ToolError as raised:
                if spec.swallows_error == "no":
                    raise
                if spec.swallows_error == "wraps":
                    self.fail(n, spec, record)
                    raise
                error = raised
            self.trace.append(("out", n))
        if spec.action in ("replace", "respond"):
            if spec.early:
                self.answered = True
            record[1] = "mocked" if spec.early or spec.action == "respond" else "ok"
            return f"answer {n}" if spec.action == "respond" else f"{result} {n}"
        if spec.action not in ("pass", "none") or spec.early:
            self.refuse(n, spec, record)
            if spec.early:
                return self.go(index + 1, call)
        if error is not None:
            raise error
        assert result is not None
        return result

    def begin(self, n: int, call: tuple[str, str]) -> list[Any]:
        self.trace.append((self.specs[n].kind, n, call))
        record = [str(n), "ok"]
        self.records.append(record)
        return record

    def refuse(self, n: int, spec: Spec, record: list[Any]) -> None:
        """Deny, ask, or fail."""
        if spec.action not in ("deny", "ask"):
            self.fail(n, spec, record)
            return
        record[1] = "denied"
        self.denied = (str(n), f"{spec.action} {n}")
        self.stop = spec.action == "deny" and n % 2 == 0
        if spec.action == "ask" and not self.reached and not self.answered:
            self.asked = f"ask {n}"
        raise Refused

    def fail(self, n: int, spec: Spec, record: list[Any]) -> None:
        record[1] = "error"
        if spec.closed:
            self.denied = (str(n), FAILED)
            raise Refused


def matches(spec: Spec, call: tuple[str, str]) -> bool:
    return spec.tool is None or spec.tool == f"*/{call[1]}"


def changed(call: tuple[str, str], n: int, how: str) -> tuple[str, str]:
    path, tool = call
    if how == "no":
        return call
    return (f"{path} {n}", ("cat" if tool == "ls" else "ls") if how == "tool" else tool)


# --- the real thing


@dataclasses.dataclass
class Real:
    """What did happen."""

    raises: bool
    trace: list[Any] = dataclasses.field(default_factory=list)
    background: list[Any] = dataclasses.field(default_factory=list)

    def hook(self, n: int, spec: Spec) -> Interceptor:
        handler = self.around(n, spec) if spec.kind == "around" else self.simple(n, spec)
        return Interceptor(
            id=str(n),
            call=ToolCall,
            kind=spec.kind,  # type: ignore[arg-type]
            handler=handler,
            priority=spec.priority,
            tool=spec.tool,
            on_error="closed" if spec.closed else "open",
            wait=spec.wait,
            tenant_id=spec.tenant,
        )

    def simple(self, n: int, spec: Spec) -> Any:
        def at_once(call: ToolCall, result: Any = None) -> Any:
            if not spec.wait:
                self.background.append((n, seen(call)))
            else:
                self.trace.append((spec.kind, n, seen(call)))
            return said(n, spec.action, call, result)

        async def later(call: ToolCall, result: Any = None) -> Any:
            await anyio.lowlevel.checkpoint()
            return at_once(call, result)

        return later if spec.is_async else at_once

    def around(self, n: int, spec: Spec) -> Any:
        async def through(call: ToolCall, call_next: Any) -> Any:
            self.trace.append((spec.kind, n, seen(call)))
            if spec.is_async:
                await anyio.lowlevel.checkpoint()
            if spec.early:
                return said(n, "none" if spec.action == "pass" else spec.action, call, None)
            result = None
            for again in range(spec.calls):
                try:
                    result = await call_next(edited(call, 1000 if again else n, "path" if again else spec.change))
                except HookDenied:
                    if not spec.swallows_denial:
                        raise
                except ToolError:
                    if spec.swallows_error == "no":
                        raise
                    if spec.swallows_error == "wraps":
                        raise HookBrokenError from None
            self.trace.append(("out", n))
            return result if spec.action == "pass" else said(n, spec.action, call, result)

        return through

    async def terminal(self, call: ToolCall) -> ToolResult:
        self.trace.append(("terminal", seen(call)))
        if self.raises:
            raise ToolError
        await anyio.lowlevel.checkpoint()
        return ToolResult(content="result")


def seen(call: ToolCall) -> tuple[str, str]:
    return (call.args["path"], call.tool_name)


def edited(call: ToolCall, n: int, how: str) -> ToolCall:
    if how == "no":
        return call
    path, tool = changed(seen(call), n, how)
    return replace(call, args={"path": path}, tool_name=tool)


def said(n: int, action: str, call: ToolCall, result: Any) -> Any:
    if action == "raise":
        raise HookBrokenError
    if action in ("path", "tool"):
        return edited(call, n, action)
    return {
        "pass": None,
        "none": None,
        "deny": Deny(f"deny {n}", stop=n % 2 == 0),
        "ask": Ask(f"ask {n}"),
        "respond": Respond(f"answer {n}"),
        "replace": ToolResult(content=f"{result.content if result is not None else None} {n}"),
        "wrong": 42,
    }[action]


# --- the two together


def common(kind: str, actions: list[str]) -> dict[str, Any]:
    return {
        "kind": st.just(kind),
        "priority": st.integers(0, 2),
        "tenant": st.sampled_from(["", "", "acme", "other"]),
        "tool": st.sampled_from([None, None, None, "*/ls", "*/cat"]),
        "closed": st.booleans(),
        "is_async": st.booleans(),
        "action": st.sampled_from(actions),
    }


WRONG = ["raise", "wrong"]
GOING_ON = st.builds(
    Spec,
    **common("around", ["pass", "pass", "none", "replace", "respond", "deny", "ask", *WRONG]),
    change=st.sampled_from(["no", "path", "tool"]),
    calls=st.integers(1, 3),
    swallows_denial=st.booleans(),
    swallows_error=st.sampled_from(["no", "yes", "wraps"]),
)
AT_ONCE = st.builds(
    Spec, **common("around", ["replace", "respond", "deny", "ask", "none", *WRONG]), early=st.just(True)
)
AROUNDS = st.one_of(GOING_ON, GOING_ON, GOING_ON, AT_ONCE)
SPECS = st.one_of(
    st.builds(Spec, **common("before", ["pass", "path", "path", "tool", "respond", "deny", "ask", *WRONG])),
    st.builds(Spec, **common("guard", ["pass", "pass", "deny", "ask", "path", "replace", *WRONG])),
    st.builds(Spec, **common("after", ["pass", "replace", "replace", "deny", "ask", "respond", *WRONG])),
    st.builds(Spec, **common("before", ["pass", "deny", "raise"]), wait=st.just(False)),
    st.builds(Spec, **common("after", ["pass", "deny", "raise"]), wait=st.just(False)),
    AT_ONCE,
    GOING_ON,
    GOING_ON,
    GOING_ON,
)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"budget": 60},
    {"record": False},
    {"hook_timeout": math.inf},
    {"record": False, "hook_timeout": math.inf},
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of failing hooks need no log."""
    logger = logging.getLogger("hookline")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    specs=st.lists(SPECS, max_size=7),
    tenant=st.sampled_from(["", "acme", "acme", "unknown"]),
    raises=st.sampled_from([False, False, True]),
    options=st.sampled_from(OPTIONS),
    listening=st.booleans(),
)
@example(  # F2: an open failure after `call_next`
    specs=[Spec("around", action="raise", closed=False), Spec("around", action="wrong", closed=False, calls=2)],
    tenant="",
    raises=False,
    options={},
    listening=False,
)
@example(  # F7: a denial that an outer hook would like to clear
    specs=[Spec("around", action="replace", swallows_denial=True), Spec("guard", action="deny")],
    tenant="",
    raises=False,
    options={},
    listening=False,
)
@example(  # philschmid 4: a guard registered before a rewriter
    specs=[Spec("guard", action="deny", tool="*/cat", priority=0), Spec("before", action="tool", priority=2)],
    tenant="",
    raises=False,
    options={},
    listening=False,
)
def test_a_chain_does_what_the_laws_say(
    anyio_backend: str, specs: list[Spec], tenant: str, raises: bool, options: dict[str, Any], listening: bool
) -> None:
    check(anyio_backend, specs, tenant, raises, options, listening)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    specs=st.lists(AROUNDS.map(lambda spec: dataclasses.replace(spec, tenant="", tool=None)), min_size=1, max_size=5),
    raises=st.booleans(),
    options=st.sampled_from(OPTIONS),
)
def test_a_chain_of_nothing_but_arounds_does_what_the_laws_say(
    anyio_backend: str, specs: list[Spec], raises: bool, options: dict[str, Any]
) -> None:
    check(anyio_backend, specs, "", raises, options, listening=False)


def check(
    anyio_backend: str, specs: list[Spec], tenant: str, raises: bool, options: dict[str, Any], listening: bool
) -> None:
    """Lead one call through a real chain, and compare everything with the model."""
    model = Model(specs, tenant, raises)
    model.lead()
    real = Real(raises)
    chain = Chain([real.hook(n, spec) for n, spec in enumerate(specs)], **options)
    call = tool_call(tenant_id=tenant, tool_name="ls", args={"path": ""})
    outcome: Any = None
    error: BaseException | None = None

    async def lead() -> Any:
        with anyio.fail_after(5):
            return await chain.run(call, real.terminal)

    if listening:
        with recorded() as records:
            outcome, error = attempt(lead, anyio_backend)
        expected = [*model.records, *([str(n), "ok"] for n, _ in model.background)]
        assert sorted(each.hook_id for each in records) == sorted(each[0] for each in expected)
    else:
        outcome, error = attempt(lead, anyio_backend)

    assert real.trace == model.trace
    assert sorted(real.background) == sorted(model.background)
    if model.raised:
        assert isinstance(error, ToolError)
        return
    assert error is None
    assert (outcome.result.content if outcome.result is not None else None) == model.result
    assert seen(outcome.call) == model.call
    assert (outcome.call.operation_id, outcome.call.tenant_id) == ("op", tenant)
    assert (outcome.asked.prompt if outcome.asked is not None else None) == model.asked
    assert outcome.stop == model.stop
    if model.denied is None:
        assert outcome.denied is None
        assert outcome.unwrap() is outcome.result
    else:
        assert outcome.denied.hook_id == model.denied[0]
        assert outcome.denied.reason.startswith(model.denied[1])
        with pytest.raises(HookDenied) as caught:
            outcome.unwrap()
        assert (caught.value.__cause__ is None) == (model.denied[1] != FAILED)
    if not options.get("record", True):
        return
    waited = [each for each in outcome.executions if specs[int(each.hook_id)].wait]
    assert [each.hook_id for each in waited] == [record[0] for record in model.records]
    for execution, (_, status) in zip(waited, model.records, strict=True):
        assert status in (execution.status, "whatever")
    ran = sorted(each.hook_id for each in outcome.executions if not specs[int(each.hook_id)].wait)
    assert ran == sorted(str(n) for n, _ in model.background)


def attempt(lead: Any, backend: str) -> tuple[Any, BaseException | None]:
    try:
        return anyio.run(lead, backend=backend), None
    except ToolError as error:
        return None, error
