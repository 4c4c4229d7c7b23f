"""Run the tests of hook files: let new hooks judge calls and hear events, and compare what they do.

No tool runs and nothing is sent: a call that hooks let through has the result that the test declares, and controls get
the answers that it declares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from typing import Any

import msgspec

from hookline.calls import Call, ToolCall
from hookline.delivery import read_answer, read_host_answer
from hookline.dispatcher import HookDispatcher, before_tool_call_of, hooks_of_this_process
from hookline.errors import DeliveryError, HookUsageError
from hookline.events import EVENTS, BeforeToolCall, Event, HookType
from hookline.hooks import AnyHook, Hook, Hooks, select_hooks
from hookline.interceptors import Chain, Outcome
from hookline.registry._build import Builder
from hookline.registry._dry_run import snake_key, to_plain
from hookline.registry._hook_tests import CallVerdict, ExpectedVerdict, HookTest
from hookline.registry._snapshot import Snapshot
from hookline.signals import HookExecution, hook_executed
from hookline.webhooks import ControlAnswer, Delivery, Envelope, ServedBy

__all__ = ["HookTestResult", "JudgedCall", "run_hook_test"]

FAILURES = ("error", "timeout")
ROLLED_OUT: Mapping[str, Any] = {"mode": "enforce", "percent": 100.0, "environments": []}
"""The fields of a definition that say how far it is rolled out, as they are when that is done."""


class JudgedCall(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The decision of hooks about a call of a test, or the outcome of an event.

    Attributes:
        verdict: Their verdict: `"allowed"`, `"denied"`, `"asked"`, `"mocked"`, `"rewritten"`, `"continued"`,
            `"guided"` or `"failed"`; of an event `"heard"`, `"ignored"` or `"failed"`.
        by: The ids of the hooks that decided so, or heard the event; where the call is allowed, of those that added
            context.
        reason: The reason of the denial, the question to the person, the further input, the feedback or the error.
        call: The call as it was made; `None` if it was not.
        result: The result; `None` after a denial.
        context: The texts that hooks added for the model.
        stop: Whether the denial ends the run.
    """

    verdict: CallVerdict
    by: list[str] = []
    reason: str = ""
    call: dict[str, Any] | None = None
    result: Any = None
    context: str = ""
    stop: bool = False


class HookTestResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a test of hooks.

    Attributes:
        file: The file.
        line: The line where the test begins, from 1; `None` if it is not known.
        name: The name of the test.
        passed: Whether it was run, and all verdicts were the expected ones.
        problems: What differs, one sentence for each difference.
        calls: The verdicts, in the order of the calls.
        duration_ms: How long the test took.
        not_run: Why it was not run; `""` if it was.
    """

    file: str
    line: int | None
    name: str
    passed: bool
    problems: list[str]
    calls: list[JudgedCall]
    duration_ms: float
    not_run: str = ""


async def run_hook_test(builder: Builder, test: HookTest, *, timeout: float) -> HookTestResult:
    """Run a test with new hooks, in the order in which a run would call them.

    Hooks judge as if they were enforced for all operations in every environment: a test says what a hook decides, and
    holds before it is rolled out and after. Whether a hook is for the tenant, the agent and the tags of a call counts.

    Args:
        builder: Knows the handlers; its own hooks are not used.
        test: The test.
        timeout: Seconds that each hook without a `timeout` may take.
    """
    started = perf_counter()
    fresh = builder.renew()
    snapshot = Snapshot(fresh)
    snapshot.set_file_definitions(msgspec.structs.replace(each, **ROLLED_OUT) for each in test.hooks)
    names = {each.id: each.name for each in test.hooks}
    answers = DeclaredAnswers(test.webhook_answers, names)
    problems: list[str] = []
    judged: list[JudgedCall] = []
    for nth, tested in enumerate(test.calls, 1):
        sample = tested.build()
        subject = sample.subject
        selected = select_hooks(
            snapshot.hooks(subject.tenant_id), subject.operation_id, [subject.agent_id], subject.tags
        )
        if isinstance(subject, Call):
            hooks = hooks_of_this_process(selected, lambda: answers)
            verdict = await _judge_call(hooks, subject, sample.result, timeout=timeout)
        else:
            verdict = await _tell_observers(selected, subject, answers, timeout=timeout)
        if fresh.unasked:
            break
        judged.append(verdict)
        where = f"call {nth}: " if len(test.calls) > 1 else ""
        differences = answers.missing or _list_differences(tested.expected, verdict, names)
        if differences and verdict.verdict in ("allowed", "ignored"):
            known = {hook.id for hook in selected if isinstance(hook, Hooks | Hook)}
            others = ", ".join(repr(each.name) for each in test.hooks if each.id not in known)
            differences = [
                f"{each} (not for its tenant, agent or tags: {others})" if others else each for each in differences
            ]
        problems += [f"{where}{problem}" for problem in differences]
        answers.missing = []
    return HookTestResult(
        file=test.file,
        line=test.line,
        name=test.name,
        passed=not problems and not fresh.unasked,
        problems=[] if fresh.unasked else problems,
        calls=judged,
        duration_ms=(perf_counter() - started) * 1e3,
        not_run=f"it asks {fresh.unasked[0]!r} over a bus, and there is none" if fresh.unasked else "",
    )


class DeclaredAnswers:
    """A delivery that sends nothing: controls get the answers that a test declares.

    Args:
        answers: The answers by the id of the hook.
        names: The names of the hooks by id.

    Attributes:
        missing: A sentence for each answer that was asked for and is not declared.
    """

    def __init__(self, answers: Mapping[str, dict[str, Any]], names: Mapping[str, str]) -> None:
        self._answers = answers
        self._names = names
        self.missing: list[str] = []

    async def request(self, envelope: Envelope, *, timeout: float) -> ControlAnswer:
        """Return the declared answer of a control, which is parsed as one of its receiver.

        Raises:
            DeliveryError: If there is none, or it is invalid.
        """
        hook = envelope.hook
        if hook.id not in self._answers:
            named = self._names.get(hook.id, hook.id)
            problem = f"a test sends nothing; give the answer of {named!r} in `webhook_answers`"
            self.missing.append(problem)
            raise DeliveryError(hook.id, "configuration", problem)
        body = msgspec.json.encode(self._answers[hook.id])
        return read_answer(hook.id, body) if hook.webhook.dialect == "hookline" else read_host_answer(hook, body)

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Deliver no event."""

    def serve(self, name: str, handler: ServedBy) -> AbstractAsyncContextManager[None]:
        """Refuse to receive deliveries.

        Raises:
            HookUsageError: Always.
        """
        raise HookUsageError("A test of hooks receives no deliveries.")

    async def aclose(self) -> None:
        """Close nothing."""


async def _judge_call(hooks: Sequence[AnyHook], call: Call, result: Any, *, timeout: float) -> JudgedCall:
    """Run a call through hooks; a call that they let through has a given result."""
    made: list[Call] = []
    records: list[HookExecution] = []
    answered_by: list[str] = []
    askable = [
        observer
        for entry in hooks
        for observer in (entry.observers if isinstance(entry, Hooks) else ())
        if observer.event is BeforeToolCall
    ]

    def record(sender: object, *, execution: HookExecution) -> None:
        records.append(execution)

    async def make(final: Call) -> Any:
        made.append(final)
        if not askable or not isinstance(final, ToolCall):
            return result
        event = before_tool_call_of(final)
        async with HookDispatcher(hook_timeout=timeout) as dispatcher:
            with hook_executed.connected_to(record, sender=dispatcher):
                async with dispatcher.operation(final.operation_id, askable):
                    answer = await dispatcher.dispatch_before_tool_call(event)
        if answer is None:
            return result
        made.pop()
        answered_by.append(event.answered_by or "")
        return answer

    outcome = await Chain(hooks, hook_timeout=timeout).run(call, make)
    return _summarize(call, result, outcome, made, [*outcome.executions, *records], answered_by)


async def _tell_observers(hooks: Sequence[AnyHook], event: Event, delivery: Delivery, *, timeout: float) -> JudgedCall:
    """Dispatch an event to the observers among hooks, and wait until they have heard it."""
    observers = [_local_observers(each) for each in hooks if isinstance(each, Hooks | Hook) and not _is_control(each)]
    records: list[HookExecution] = []

    def record(sender: object, *, execution: HookExecution) -> None:
        records.append(execution)

    async with HookDispatcher(hook_timeout=timeout, delivery=delivery) as dispatcher:
        with hook_executed.connected_to(record, sender=dispatcher):
            dispatcher.register(event.operation_id, observers)
            dispatcher.dispatch(event)
            await dispatcher.unregister(event.operation_id, drain_timeout=math.inf)  # each has a timeout of its own
    failed = [each for each in records if each.status != "ok"]
    told = failed or records
    return JudgedCall(
        verdict="failed" if failed else "heard" if records else "ignored",
        by=list(dict.fromkeys(each.hook_id for each in told)),
        reason="; ".join(each.error or each.status for each in failed),
    )


def _local_observers(entry: Hooks | Hook) -> Hooks | Hook:
    """Return observers of this process that hear what remote ones are told, since a test tells nobody."""
    if not isinstance(entry, Hooks) or not entry.hearer:
        return entry
    made = Hooks(entry.id, tenant_id=entry.tenant_id)
    for name in entry.heard_events or EVENTS:
        made.on(EVENTS[HookType(name)], id=entry.id)(lambda event: None)
    return made


def _is_control(entry: Hooks | Hook) -> bool:
    data = entry.data() if isinstance(entry, Hook) else None
    return data is not None and data.webhook.control


def _summarize(
    call: Call,
    result: Any,
    outcome: Outcome,
    made: Sequence[Call],
    records: Sequence[HookExecution],
    answered_by: list[str],
) -> JudgedCall:
    """Name the verdict about a call.

    Args:
        call: The call as the test has it.
        result: The result that it has if it is made.
        outcome: The outcome of its chain.
        made: The call as it was made; empty if it was not.
        records: The records of the hooks that ran.
        answered_by: The observer that answered in the call's place, if one did.
    """

    def deciding(decision: str) -> list[str]:
        return list(dict.fromkeys(each.hook_id for each in records if each.decision == decision))

    failed = [each for each in records if each.status in FAILURES]
    context = "\n\n".join(each.text for each in outcome.context)
    verdict: CallVerdict = "allowed"
    by, reason = list(dict.fromkeys(each.hook_id for each in outcome.context)), ""
    if failed:
        verdict, by = "failed", [each.hook_id for each in failed]
        reason = "; ".join(each.error or each.status for each in failed)
    elif outcome.denied is not None:
        verdict, by, reason = "denied", [outcome.denied.hook_id], outcome.denied.reason
        if outcome.asked is not None:
            verdict, reason = "asked", outcome.asked.prompt
    elif outcome.guides:
        verdict, by, reason = "guided", deciding("continued"), "\n".join(outcome.guides)
    elif outcome.continues:
        verdict, by, reason = "continued", deciding("continued"), "\n".join(outcome.continues)
    elif not made:
        verdict, by = "mocked", answered_by or deciding("mocked")
    elif made[0] != call or outcome.result != result:
        verdict, by = "rewritten", deciding("changed")
    return JudgedCall(
        verdict=verdict,
        by=by,
        reason=reason,
        call=to_plain(made[0]) if made else None,
        result=None if outcome.denied is not None else to_plain(outcome.result),
        context=context,
        stop=outcome.stop,
    )


def _list_differences(expected: ExpectedVerdict, judged: JudgedCall, names: Mapping[str, str]) -> list[str]:
    """Return a sentence for each difference between the expected verdict and the real one."""
    by = ", ".join(repr(names.get(each, each)) for each in judged.by)
    real = judged.verdict + (f" by {by}" if by else "") + (f": {judged.reason}" if judged.reason else "")
    if judged.verdict != expected.verdict:
        return [f"expected {expected.verdict}; got {real}"]
    problems: list[str] = []
    if expected.by and expected.by not in judged.by:
        problems.append(f"expected {expected.verdict} by {names.get(expected.by, expected.by)!r}; got {real}")
    if expected.reason not in judged.reason:
        problems.append(f"expected {expected.reason!r} in the reason; got {judged.reason!r}")
    if expected.context not in judged.context:
        problems.append(f"expected {expected.context!r} in the context; got {judged.context!r}")
    if expected.stop is not None and expected.stop is not judged.stop:
        problems.append("expected that the denial " + ("ends the run" if expected.stop else "does not end the run"))
    made = {snake_key(key): value for key, value in (judged.call or {}).items()}
    if expected.args is not None and made.get("args") != expected.args:
        problems.append(f"expected the arguments {_show(expected.args)}; got {_show(made.get('args'))}")
    for key, value in (expected.call or {}).items():
        if made.get(snake_key(key)) != value:
            problems.append(f"expected {key} = {_show(value)}; got {_show(made.get(snake_key(key)))}")
    problems += _list_result_differences(expected.result, judged.result)
    return problems


TEXTS_OF_RESULTS = ("content", "output", "summary")
"""The fields that hold the text of a result; each kind of result has one at most."""


def _list_result_differences(expected: str | dict[str, Any] | None, result: Any) -> list[str]:
    if expected is None:
        return []
    fields = {snake_key(key): value for key, value in result.items()} if isinstance(result, dict) else {}
    if isinstance(expected, str):
        text = next((fields[name] for name in TEXTS_OF_RESULTS if name in fields), result)
        return [] if text == expected else [f"expected the result {expected!r}; got {_show(text)}"]
    return [
        f"expected {key} = {_show(value)} of the result; got {_show(fields.get(snake_key(key)))}"
        for key, value in expected.items()
        if fields.get(snake_key(key)) != value
    ]


def _show(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode(errors="replace")
