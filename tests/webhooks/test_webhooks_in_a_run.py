"""Hooks given as data: delivered wherever the operation runs, whether it also has a handler or not."""

import math
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from hookline import (
    AfterToolCall,
    Agent,
    Approve,
    BeforeToolCall,
    Event,
    Hook,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    ModelResponse,
    OnComplete,
    OnError,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.delivery import ControlAnswer, Envelope, InProcess, Webhook
from hookline.errors import CriticalDeliveryError, HookDefinitionError
from tests.runtime.durable import Disk, DyingStore
from tests.tables import for_each

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Inbox:
    """What arrived at local addresses, and how they answer."""

    def __init__(self) -> None:
        self.got: list[dict[str, object]] = []
        self.answer: ControlAnswer | None = None

    async def take(self, envelope: Envelope) -> ControlAnswer | None:
        self.got.append(msgspec.json.decode(envelope.payload))
        return self.answer

    async def fail(self, envelope: Envelope) -> ControlAnswer | None:
        self.got.append(msgspec.json.decode(envelope.payload))
        raise ConnectionError("down")


@pytest.fixture
async def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
async def dispatcher(inbox: Inbox) -> AsyncIterator[HookDispatcher]:
    delivery = InProcess(tries=1)
    async with (
        delivery.serve("inbox", inbox.take),
        delivery.serve("broken", inbox.fail),
        HookDispatcher(delivery=delivery) as dispatcher,
    ):
        yield dispatcher


ran: list[dict[str, object]] = []


@tool(in_thread=False)
async def add(a: int, b: int) -> int:
    ran.append({"a": a, "b": b})
    return a + b


@tool(in_thread=False, needs_approval=True)
async def pay(amount: int) -> str:
    return f"paid {amount}"


def adding() -> Agent:
    ran.clear()
    turns = [
        ModelResponse(tool_calls=[ToolRequest(tool_name="add", args={"a": 1, "b": 2}, tool_call_id="t1")]),
        ModelResponse(content="three"),
    ]
    return Agent(id="adder", model=ScriptedModel(turns), tools=[add])


def paying() -> Agent:
    turns = [ModelResponse(tool_calls=[ToolRequest(tool_name="pay", args={"amount": 5}, tool_call_id="t1")])]
    return Agent(id="payer", model=ScriptedModel(turns), tools=[pay])


def paid() -> Agent:
    return Agent(id="payer", model=ScriptedModel([ModelResponse(content="done")]), tools=[pay])


def to(name: str = "inbox", **fields: object) -> dict[str, object]:
    return {"url": f"local://{name}", **fields}


async def test_a_hook_without_a_handler_is_delivered_where_the_operation_runs(
    dispatcher: HookDispatcher, inbox: Inbox
) -> None:
    hook = Hook(id="end", type=OnComplete, webhook=to(body={"job": 7}))
    result = await exec_agent(adding(), "Add", hooks=[hook], dispatcher=dispatcher)
    assert result.reason == "done"
    [got] = inbox.got
    assert (got["type"], got["hookId"], got["job"], got["reason"]) == ("onComplete", "end", 7, "done")
    assert got["operationId"] == result.operation_id


async def test_a_hook_with_both_runs_its_handler_and_is_delivered(dispatcher: HookDispatcher, inbox: Inbox) -> None:
    seen: list[Event] = []
    hook = Hook(id="tools", type=AfterToolCall, tool="*/add", handler=seen.append, webhook=to())
    await exec_agent(adding(), "Add", hooks=[hook], dispatcher=dispatcher)
    assert [type(event) for event in seen] == [AfterToolCall]
    assert [got["content"] for got in inbox.got] == ["3"]


async def test_an_observed_tool_call_is_delivered_and_answers_nothing(dispatcher: HookDispatcher, inbox: Inbox) -> None:
    inbox.answer = ControlAnswer(decision="deny")
    hook = Hook(id="watch", type=BeforeToolCall, webhook=to())
    await exec_agent(adding(), "Add", hooks=[hook], dispatcher=dispatcher)
    assert [got["args"] for got in inbox.got] == [{"a": 1, "b": 2}]
    assert ran == [{"a": 1, "b": 2}]


async def test_a_bare_dispatcher_delivers_too(dispatcher: HookDispatcher, inbox: Inbox) -> None:
    async with dispatcher.operation("op", [Hook(id="end", type="onComplete", webhook=to(event_fields=["reason"]))]):
        dispatcher.dispatch(
            OnComplete(
                operation_id="op",
                reason="done",
                steps=1,
                llm_calls=1,
                tool_calls=0,
                total_tokens=0,
                cost_usd=0.0,
                duration_ms=1.0,
                last_assistant_content="",
                error_type=None,
                error_message=None,
            )
        )
    assert inbox.got == [{"type": "onComplete", "reason": "done", "hookId": "end"}]


@pytest.mark.parametrize(
    ("answer", "told", "executed"),
    [
        (ControlAnswer(), "3", [{"a": 1, "b": 2}]),
        (ControlAnswer(args={"a": 40, "b": 2}), "42", [{"a": 40, "b": 2}]),
        (ControlAnswer(decision="deny", reason="not today"), "not today", []),
        (ControlAnswer(decision="answer", result={"content": "mocked"}), "mocked", []),
    ],
    ids=["allow", "change", "deny", "answer"],
)
async def test_a_control_decides_about_the_call(
    dispatcher: HookDispatcher, inbox: Inbox, answer: ControlAnswer, told: str, executed: list[object]
) -> None:
    inbox.answer = answer
    hook = Hook(id="policy", type=BeforeToolCall, tool="*/add", webhook=to(control=True))
    result = await exec_agent(adding(), "Add", hooks=[hook], dispatcher=dispatcher)
    assert [message.content for message in result.messages if message.role == "tool"] == [told]
    assert ran == executed
    assert inbox.got[0]["args"] == {"a": 1, "b": 2}


async def test_a_control_may_have_a_person_asked(dispatcher: HookDispatcher, inbox: Inbox) -> None:
    inbox.answer = ControlAnswer(decision="ask", reason="really?")
    hook = Hook(id="policy", type=BeforeToolCall, webhook=to(control=True))
    result = await exec_agent(adding(), "Add", hooks=[hook], dispatcher=dispatcher)
    assert (result.reason, result.pending[0].prompt) == ("waiting_for_human", "really?")


@pytest.mark.parametrize(("on_error", "executed"), [("closed", 0), ("open", 1)])
async def test_a_control_that_cannot_be_asked_fails_as_it_was_told_to(
    dispatcher: HookDispatcher, on_error: str, executed: int
) -> None:
    hook = Hook(id="policy", type=BeforeToolCall, webhook=to("broken", control=True, on_error=on_error))
    result = await exec_agent(adding(), "Add", hooks=[hook], dispatcher=dispatcher)
    assert (result.reason, len(ran)) == ("done", executed)


async def test_guards_judge_the_arguments_that_a_control_has_changed(dispatcher: HookDispatcher, inbox: Inbox) -> None:
    inbox.answer = ControlAnswer(args={"a": 40, "b": 2})
    judged: list[object] = []
    hooks = Hooks("local")
    hooks.guard(ToolCall)(lambda call: judged.append(dict(call.args)))
    control = Hook(id="policy", type=BeforeToolCall, webhook=to(control=True))
    await exec_agent(adding(), "Add", hooks=[hooks, control], dispatcher=dispatcher)
    assert judged == [{"a": 40, "b": 2}]


async def test_a_delivery_that_fails_harms_nobody(dispatcher: HookDispatcher, inbox: Inbox) -> None:
    hooks = [Hook(id="lost", type=OnComplete, webhook=to("broken")), Hook(id="end", type=OnComplete, webhook=to())]
    result = await exec_agent(adding(), "Add", hooks=hooks, dispatcher=dispatcher)
    assert result.reason == "done"
    assert sorted(str(got["hookId"]) for got in inbox.got) == ["end", "lost"]


async def test_a_critical_delivery_that_fails_is_the_failure_of_the_operation(
    dispatcher: HookDispatcher, inbox: Inbox
) -> None:
    errors: list[OnError] = []
    hooks = [
        Hook(id="bridge", type=OnComplete, webhook=to("broken", fallback="none")),
        Hook(id="sibling", type=OnComplete, webhook=to()),
        Hook(id="errors", type=OnError, handler=errors.append),
    ]
    result = await exec_agent(adding(), "Add", hooks=hooks, dispatcher=dispatcher)
    assert result.reason == "error"
    assert isinstance(result.error, CriticalDeliveryError)
    assert result.error.hook_id == "bridge"
    assert sorted(str(got["hookId"]) for got in inbox.got) == ["bridge", "sibling"]
    assert [event.error_type for event in errors] == ["CriticalDeliveryError"]


async def test_a_critical_delivery_that_arrives_changes_nothing(dispatcher: HookDispatcher, inbox: Inbox) -> None:
    hook = Hook(id="bridge", type=OnComplete, webhook=to(fallback="none"))
    result = await exec_agent(adding(), "Add", hooks=[hook], dispatcher=dispatcher)
    assert (result.reason, len(inbox.got)) == ("done", 1)


async def test_a_hook_that_is_data_travels_with_the_operation(dispatcher: HookDispatcher, inbox: Inbox) -> None:
    store = InMemoryStore()
    hook = Hook(id="end", type=OnComplete, webhook=to())
    first = await exec_agent(paying(), "Pay", hooks=[hook], store=store, dispatcher=dispatcher)
    assert first.reason == "waiting_for_human"
    again = [hook, Hook(id="other", type=OnComplete, webhook=to())]  # the same hook given again counts once
    await resume_agent(paid(), first.operation_id, [Approve("t1")], hooks=again, store=store, dispatcher=dispatcher)
    assert [(got["hookId"], got["reason"]) for got in inbox.got] == [
        ("end", "waiting_for_human"),
        ("end", "done"),
        ("other", "done"),
    ]


async def test_a_durable_store_is_given_the_hooks_and_the_run_delivers_nothing_itself(
    dispatcher: HookDispatcher, inbox: Inbox
) -> None:
    disk = Disk()
    seen: list[Event] = []
    hook = Hook(id="end", type=OnComplete, handler=seen.append, webhook=to())
    await exec_agent(adding(), "Add", hooks=[hook], operation_id="op", store=DyingStore(disk), dispatcher=dispatcher)
    [kept] = disk.state("op").hooks
    assert (kept.id, kept.webhook.url) == ("end", "local://inbox")
    assert inbox.got == []
    assert len(seen) == 1


@for_each(
    "hook, problem",
    [
        (Hook(id="h", type=OnComplete), "needs a `handler`"),
        (Hook(id="h", type=OnComplete, webhook={}), "missing required field `url`"),
        (Hook(id="h", type=OnComplete, webhook={"url": "example.org/x"}), "absolute URL"),
        (Hook(id="h", type=OnComplete, webhook={"url": "ftp://example.org"}), "absolute URL"),
        (Hook(id="h", type=OnComplete, webhook={"url": "https://a:b@example.org"}), "password"),
        (Hook(id="h", type=OnComplete, webhook={"url": "https://example.org/\r\nx"}), "control characters"),
        (Hook(id="h", type=OnComplete, webhook={"url": "https://[::1"}), "cannot be parsed"),
        (Hook(id="h", type=OnComplete, webhook={"url": "https://example.org/" + "x" * 2048}), "at most 2048"),
        (Hook(id="h", type=OnComplete, webhook={"url": "https://exämple.org/"}), "ASCII"),
        (Hook(id="h", type=OnComplete, webhook=to(retries=3)), "unknown field"),
        (Hook(id="h", type=OnComplete, webhook=to(event_fields=["resaon"])), "has no fields"),
        (Hook(id="h", type=OnComplete, webhook=to(body={"operationId": "x"})), "may not replace"),
        (Hook(id="h", type=OnComplete, webhook=to(body={"hookId": "x"})), "may not replace"),
        (Hook(id="h", type=OnComplete, webhook=to(timeout=0)), "0.1 to 300"),
        (Hook(id="h", type=OnComplete, webhook=to(headers={"Host": "x"})), "may not set"),
        (Hook(id="h", type=OnComplete, webhook=to(headers={"a": "${KEY}"})), "allowed_env_vars"),
        (Hook(id="h", type=OnComplete, webhook=to(headers={"a": "x\r\ny: z"})), "line breaks"),
        (Hook(id="h", type=OnComplete, webhook=to(control=True)), "beforeToolCall"),
        (Hook(id="h", type=BeforeToolCall, webhook=to(control=True), handler=print), "two hooks"),
        (Hook(id="h", type=OnComplete, webhook="https://example.org"), "mapping with a `url`"),  # type: ignore[arg-type]
    ],
)
async def test_a_webhook_that_could_not_work_is_refused_before_anything_runs(hook: Hook, problem: str) -> None:
    with pytest.raises(HookDefinitionError, match=problem):
        await exec_agent(adding(), "Add", hooks=[hook])
    assert ran == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"url": None}, "got `null` - at `$.url`"),
    ({"url": b"https://example.org"}, "got `bytes` - at `$.url`"),
    ({"url": "https://example.org/\ud800"}, "`url` must have at most 2048 characters"),
    ({"body": 5}, "got `int` - at `$.body`"),
    ({"body": {5: 5}}, "got `int` - at `key` in `$.body`"),
    ({"body": {"n": [math.nan]}}, "`body.n[0]` is nan"),
    ({"body": {"a": "\ud800"}}, "`body` cannot be written as JSON"),
    ({"body": {"a": object()}}, "`body` cannot be written as JSON"),
    ({"event_fields": 5}, "got `int` - at `$.eventFields`"),
    ({"event_fields": "reason"}, "got `str` - at `$.eventFields`"),
    ({"headers": {"a": 5}}, "got `int` - at `$.headers[...]`"),
    ({"headers": ["a"]}, "got `array` - at `$.headers`"),
    ({"headers": {"a": "\ud800"}}, "`headers` cannot be written as JSON"),
    ({"headers": {"a\x01": "b"}}, "may not set 'a\\x01'"),
    ({"headers": {"a": "b\x01"}}, "may not contain line breaks or other control characters"),
    ({"headers": {"a": "b\x7f"}}, "may not contain line breaks or other control characters"),
    ({"allowed_env_vars": "HOME", "headers": {"a": "${H}"}}, "got `str` - at `$.allowedEnvVars`"),
    ({"allowed_env_vars": ["\ud800"]}, "`allowed_env_vars` cannot be written as JSON"),
    ({"timeout": "3"}, "got `str` - at `$.timeout`"),
    ({"timeout": math.nan}, "0.1 to 300 seconds"),
    ({"fallback": "x"}, "Invalid enum value 'x' - at `$.fallback`"),
    ({"on_error": None}, "at `$.onError`"),
    ({"key": 5}, "got `int` - at `$.key`"),
    ({"key": "\ud800"}, "`key` cannot be written as JSON"),
    ({"control": "yes"}, "got `str` - at `$.control`"),
]


@pytest.mark.parametrize("as_mapping", [False, True], ids=["struct", "mapping"])
@pytest.mark.parametrize(("fields", "problem"), WRONG, ids=[f"{n}-{next(iter(f))}" for n, (f, _) in enumerate(WRONG)])
async def test_a_webhook_with_a_value_that_no_field_takes_is_refused_in_either_form(
    fields: dict[str, Any], problem: str, as_mapping: bool
) -> None:
    given = {"url": "https://example.org", **fields}
    hook = Hook(id="h", type=OnComplete, webhook=given if as_mapping else Webhook(**given))

    with pytest.raises(HookDefinitionError) as refused:
        await exec_agent(adding(), "Add", hooks=[hook])

    assert problem in str(refused.value)
    assert str(refused.value).startswith("hooks[0], Hook 'h': ")
    assert ran == []


@pytest.mark.parametrize("field", ["id", "tool", "tenant_id"])
async def test_a_hook_with_a_webhook_has_text_that_can_be_kept(field: str) -> None:
    given: dict[str, Any] = {"id": "h", "type": AfterToolCall, "webhook": to(), field: "a/\ud800"}
    hook = Hook(**given)

    with pytest.raises(HookDefinitionError, match=f"`{field}` cannot be written as JSON"):
        await exec_agent(adding(), "Add", hooks=[hook])
    with pytest.raises(HookDefinitionError, match="cannot be written as JSON"):
        hook.data()


async def test_a_header_may_have_tabs_and_an_address_capitals(dispatcher: HookDispatcher, inbox: Inbox) -> None:
    webhook = Webhook(url="LOCAL://inbox", headers={"a": "b\tc"}, timeout=3)
    await exec_agent(adding(), "Add", hooks=[Hook(id="h", type=OnComplete, webhook=webhook)], dispatcher=dispatcher)
    assert [got["hookId"] for got in inbox.got] == ["h"]


async def test_the_struct_and_both_spellings_mean_the_same() -> None:
    forms: list[Webhook | dict[str, object]] = [
        Webhook(url="https://example.org", event_fields=["reason"], allowed_env_vars=["A"]),
        {"url": "https://example.org", "event_fields": ["reason"], "allowed_env_vars": ["A"]},
        {"url": "https://example.org", "eventFields": ["reason"], "allowedEnvVars": ["A"]},
    ]
    assert len({msgspec.json.encode(Hook(id="h", type=OnComplete, webhook=form).data()) for form in forms}) == 1
