"""Hooks that another process serves decide about the calls of a run as hooks of this process do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline import (
    Agent,
    AgentCall,
    Approve,
    Ask,
    Deny,
    HookDispatcher,
    Hooks,
    ModelCall,
    OperationResult,
    Respond,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.bus import (
    REVISIONS,
    Answerer,
    Bus,
    CommittedEvents,
    EventFilter,
    Hearer,
    MemoryBus,
    Watcher,
    remote,
    serve,
)
from hookline.errors import HookDefinitionError, HookUsageError
from hookline.runtime import InMemoryStore
from hookline.store import SqlStore
from hookline.wakeups import LocalWakeups, PollingWakeups
from tests.nats_servers import NatsServer
from tests.tables import for_each

from .stages import MemoryStage, NatsStage

pytestmark = pytest.mark.anyio

Join = Callable[[], Awaitable[Bus]]


@pytest.fixture(params=["memory", "nats"])
async def join(request: pytest.FixtureRequest) -> AsyncIterator[Join]:
    """Makes the bus of a further process."""
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            stage: Any = MemoryStage()
        else:
            server: NatsServer = request.getfixturevalue("nats_server")
            stage = NatsStage(server, request.getfixturevalue("nats_prefix"))
        await stack.enter_async_context(stage)
        yield stage.join


class Payments:
    """An agent that pays once, and what the tool was called with."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, int]] = []
        self.read: list[str] = []

        @tool
        async def pay(to: str, amount: int) -> str:
            """Pay somebody."""
            self.paid.append((to, amount))
            return f"paid {amount}"

        def turn(call: ModelCall) -> ToolRequest | str:
            if call.messages[-1].role != "tool":
                return ToolRequest("pay", {"to": "Ann", "amount": 5}, tool_call_id="t1")
            self.read.append(call.messages[-1].content)
            return "done"

        self.agent = Agent(id="clerk", model=ScriptedModel(turn), tools=[pay])

    async def run(self, *hooks: Any, **options: Any) -> OperationResult:
        async with HookDispatcher() as dispatcher:
            return await exec_agent(self.agent, "pay Ann", hooks=list(hooks), dispatcher=dispatcher, **options)


def policy(decide: Callable[[ToolCall], Any]) -> Hooks:
    hooks = Hooks("guard")
    hooks.before(ToolCall)(decide)
    return hooks


async def test_a_call_passes_that_the_other_process_has_no_objection_to(join: Join) -> None:
    payments, asked = Payments(), []
    async with serve(await join(), policy(lambda call: asked.append(call))):
        await payments.run(remote("guard", bus=await join()))

    assert payments.paid == [("Ann", 5)]
    assert [(call.tool_name, call.args, call.tool_call_id, call.agent_id) for call in asked] == [
        ("pay", {"to": "Ann", "amount": 5}, "t1", "clerk")
    ]


async def test_a_call_is_changed(join: Join) -> None:
    payments = Payments()
    async with serve(await join(), policy(lambda call: call.with_args(amount=3))):
        await payments.run(remote("guard", bus=await join()))

    assert payments.paid == [("Ann", 3)]


async def test_a_call_is_denied_and_the_model_reads_why(join: Join) -> None:
    payments = Payments()
    async with serve(await join(), policy(lambda call: Deny("too much"))):
        await payments.run(remote("guard", bus=await join()))

    assert payments.paid == []
    assert "too much" in payments.read[0]


async def test_a_denial_that_ends_the_run_ends_it(join: Join) -> None:
    payments = Payments()
    async with serve(await join(), policy(lambda call: Deny("fraud", stop=True))):
        result = await payments.run(remote("guard", bus=await join()))

    assert payments.read == []
    assert result.reason != "done"


async def test_a_call_is_answered(join: Join) -> None:
    payments = Payments()
    async with serve(await join(), policy(lambda call: Respond({"content": "paid already", "success": False}))):
        await payments.run(remote("guard", bus=await join()))

    assert payments.paid == []
    assert payments.read == ["paid already"]


async def test_a_person_is_asked_and_the_hook_judges_the_approved_call_again(join: Join) -> None:
    payments, store, judged = Payments(), InMemoryStore(), []

    def decide(call: ToolCall) -> Ask | None:
        judged.append(call.tool_call_id)
        return Ask("Pay Ann?")

    async with serve(await join(), policy(decide)), HookDispatcher() as dispatcher:
        hooks = [remote("guard", bus=await join())]
        waiting = await exec_agent(payments.agent, "pay", hooks=hooks, store=store, dispatcher=dispatcher)
        assert [each.prompt for each in waiting.pending] == ["Pay Ann?"]
        await resume_agent(
            payments.agent, waiting.operation_id, [Approve("t1")], hooks=hooks, store=store, dispatcher=dispatcher
        )

    assert payments.paid == [("Ann", 5)]
    assert judged == ["t1", "t1"]


async def test_context_reaches_the_model(join: Join) -> None:
    payments, hooks = Payments(), Hooks("guard")

    @hooks.guard(ToolCall)
    def explain(call: ToolCall) -> None:
        call.add_context("Ann is new.")

    async with serve(await join(), hooks):
        await payments.run(remote("guard", bus=await join()))

    assert "Ann is new." in payments.read[0]


async def test_other_calls_are_judged_if_they_are_named(join: Join) -> None:
    payments, hooks, judged = Payments(), Hooks("guard"), []

    @hooks.guard(ModelCall)
    @hooks.guard(AgentCall)
    def judge(call: Any) -> None:
        judged.append(type(call).__name__)

    async with serve(await join(), hooks):
        await payments.run(remote("guard", bus=await join(), calls=(AgentCall, ModelCall)))

    assert judged == ["AgentCall", "ModelCall", "ModelCall"]


async def test_the_revision_that_judged_is_with_the_call(join: Join) -> None:
    payments, hooks, seen = Payments(), Hooks("after-it"), []
    hooks.guard(ToolCall)(lambda call: seen.append(dict(call.metadata[REVISIONS])))
    async with serve(await join(), policy(lambda call: None), revision="2026-11-28"):
        await payments.run(remote("guard", bus=await join(), priority=1), hooks)

    assert seen == [{"guard": "2026-11-28"}]


async def test_each_decision_carries_the_revision_of_the_process_that_made_it(join: Join) -> None:
    payments, seen = Payments(), []
    hooks = Hooks("after-it")
    hooks.guard(ToolCall)(lambda call: seen.append((call.args["amount"], call.metadata[REVISIONS]["guard"])))
    async with (
        serve(await join(), policy(lambda call: call.with_args(amount=1)), revision="old"),
        serve(await join(), policy(lambda call: call.with_args(amount=2)), revision="new"),
    ):
        asking = remote("guard", bus=await join(), priority=1)
        for _ in range(10):
            await payments.run(asking, hooks)

    assert set(seen) <= {(1, "old"), (2, "new")}
    assert len(seen) == 10


@pytest.mark.parametrize(("on_error", "paid"), [("closed", []), ("open", [("Ann", 5)])])
async def test_where_nobody_serves_the_declared_mode_decides_at_once(join: Join, on_error: Any, paid: Any) -> None:
    payments = Payments()
    async with asyncio.timeout(60):
        await payments.run(remote("guard", bus=await join(), deadline=3000, on_error=on_error))

    assert payments.paid == paid


@pytest.mark.parametrize(("on_error", "paid"), [("closed", []), ("open", [("Ann", 5)])])
async def test_where_the_answer_is_late_the_declared_mode_decides(join: Join, on_error: Any, paid: Any) -> None:
    async def hang(call: ToolCall) -> None:
        await asyncio.Event().wait()

    payments = Payments()
    async with serve(await join(), policy(hang)):
        await payments.run(remote("guard", bus=await join(), deadline=0.1, on_error=on_error))

    assert payments.paid == paid


@for_each(
    "answer",
    [
        b"",
        b"{}",
        b"[]",
        b'{"format":2,"decision":"pass"}',
        b'{"format":1,"decision":"allow"}',
        b'{"format":1,"decision":"pass","reson":"x"}',
        b'{"format":1,"decision":"pass","stop":true}',
        b'{"format":1,"decision":"change"}',
        b'{"format":1,"decision":"change","fields":{"args":{}}}',
        b'{"format":1,"decision":"pass","fields":{}}',
        b'{"format":1,"decision":"answer"}',
        b'{"format":1,"decision":"answer","result":{"content":7}}',
        b'{"format":1,"decision":"deny","result":{"content":"x"}}',
    ],
)
async def test_a_decision_that_cannot_be_read_never_allows_a_call(answer: bytes) -> None:
    bus, payments = MemoryBus(), Payments()
    async with bus.answer("guard", lambda question: asyncio.sleep(0, answer)):
        await payments.run(remote("guard", bus=bus))

    assert payments.paid == []


async def test_a_change_of_whose_call_it_is_never_allows_it() -> None:
    bus, payments = MemoryBus(), Payments()

    async def change_owner(question: bytes) -> bytes:
        fields = msgspec.json.decode(question)["fields"]
        return msgspec.json.encode({"format": 1, "decision": "change", "fields": {**fields, "tenant_id": "other"}})

    async with bus.answer("guard", change_owner):
        await payments.run(remote("guard", bus=bus))

    assert payments.paid == []


async def test_a_question_of_another_version_is_refused_with_the_reason() -> None:
    bus = MemoryBus()
    async with serve(bus, policy(lambda call: None)):
        with pytest.raises(Exception, match="questions of format 1"):
            await bus.ask("guard", b'{"format":2,"call":"ToolCall","fields":{}}', deadline=5)


SECRET, OTHER_SECRET = "s" * 24, "t" * 24


async def test_a_bus_serves_hooks_itself(join: Join) -> None:
    payments, bus = Payments(), await join()
    async with bus.serve(policy(lambda call: call.with_args(amount=3)), revision="7") as name:
        await payments.run(remote(name, bus=await join()))

    assert payments.paid == [("Ann", 3)]


class OwnBus(LocalWakeups, Bus):
    """A bus of a third party, with what `Bus` wants and no more."""

    def __init__(self, carrier: MemoryBus) -> None:
        super().__init__((3600.0, 3600.0))
        self._carrier = carrier

    async def ask(self, name: str, question: bytes, *, deadline: float) -> bytes:
        return await self._carrier.ask(name, question, deadline=deadline)

    def answer(self, name: str, handler: Answerer) -> AbstractAsyncContextManager[None]:
        return self._carrier.answer(name, handler)

    async def depths(self) -> dict[str, int]:
        return await self._carrier.depths()

    async def tell(self, commit: CommittedEvents) -> None:
        await self._carrier.tell(commit)

    def hear(
        self, name: str, handler: Hearer, *, where: EventFilter | None = None
    ) -> AbstractAsyncContextManager[None]:
        return self._carrier.hear(name, handler, where=where)

    async def put(self, key: str, value: bytes, *, seconds: float | None = None) -> None:
        await self._carrier.put(key, value, seconds=seconds)

    async def get(self, key: str) -> bytes | None:
        return await self._carrier.get(key)

    async def delete(self, key: str) -> None:
        await self._carrier.delete(key)

    def watch(self, prefix: str, call: Watcher) -> AbstractAsyncContextManager[None]:
        return self._carrier.watch(prefix, call)


async def test_a_bus_of_a_third_party_serves_hooks_that_it_knows_nothing_of() -> None:
    payments, bus = Payments(), OwnBus(MemoryBus())
    async with bus.serve(policy(lambda call: call.with_args(amount=3))) as name:
        await payments.run(remote(name, bus=bus))

    assert payments.paid == [("Ann", 3)]


def test_a_bus_that_lacks_a_method_is_refused_when_it_is_made() -> None:
    class Mute(OwnBus):
        ask = Bus.ask

    with pytest.raises(TypeError, match="ask"):
        Mute(MemoryBus())


@pytest.mark.parametrize(("asking", "serving"), [(SECRET, SECRET), ([OTHER_SECRET, SECRET], SECRET)])
async def test_signed_questions_get_signed_answers(join: Join, asking: Any, serving: Any) -> None:
    payments = Payments()
    async with serve(await join(), policy(lambda call: call.with_args(amount=3)), secret=serving):
        await payments.run(remote("guard", bus=await join(), secret=asking))

    assert payments.paid == [("Ann", 3)]


@pytest.mark.parametrize(
    ("asking", "serving"), [(SECRET, OTHER_SECRET), (SECRET, None), (None, SECRET)], ids=["other", "none", "only"]
)
@pytest.mark.parametrize(("on_error", "paid"), [("closed", []), ("open", [("Ann", 5)])])
async def test_what_is_wrongly_signed_is_no_answer(asking: Any, serving: Any, on_error: Any, paid: Any) -> None:
    bus, payments = MemoryBus(), Payments()
    async with serve(bus, policy(lambda call: call.with_args(amount=3)), secret=serving):
        await payments.run(remote("guard", bus=bus, secret=asking, on_error=on_error))

    assert payments.paid == paid


async def test_an_answer_to_another_question_is_no_answer() -> None:
    bus, payments = MemoryBus(), Payments()
    answers: list[bytes] = []
    genuine = MemoryBus()

    async def repeat_the_first(question: bytes) -> bytes:
        if not answers:
            answers.append(await genuine.ask("guard", question, deadline=30))
        return answers[0]

    async with (
        serve(genuine, policy(lambda call: None), secret=SECRET),
        bus.answer("guard", repeat_the_first),
    ):
        for _ in range(2):
            await payments.run(remote("guard", bus=bus, secret=SECRET))

    assert payments.paid == [("Ann", 5)]  # the second run got the answer of the first


async def test_a_question_that_is_sent_back_is_no_answer() -> None:
    bus, payments = MemoryBus(), Payments()
    async with bus.answer("guard", lambda question: asyncio.sleep(0, question)):
        await payments.run(remote("guard", bus=bus, secret=SECRET))

    assert payments.paid == []


async def test_changed_arguments_of_a_question_are_refused() -> None:
    from hookline.bus._signing import sign_answers

    asked: list[bytes] = []

    async def decide(question: bytes) -> bytes:
        asked.append(question)
        return b"{}"

    bus = MemoryBus()
    answerer = sign_answers(decide, "guard", (SECRET.encode(),))

    async def change(question: bytes) -> bytes:
        return await answerer(question.replace(b'"amount":5', b'"amount":4'))

    payments = Payments()
    async with bus.answer("guard", change):
        await payments.run(remote("guard", bus=bus, secret=SECRET))

    assert (payments.paid, asked) == ([], [])


@for_each("secret", ["short", [], [7], 7, ["s" * 24, "short"]])
async def test_a_bad_secret_is_refused_and_not_shown(secret: Any) -> None:
    with pytest.raises(HookDefinitionError) as caught:
        remote("guard", secret=secret)
    with pytest.raises(HookUsageError):
        async with serve(MemoryBus(), policy(lambda call: None), secret=secret):
            pass

    assert "short" not in str(caught.value).replace("at least", "")


async def test_the_bus_of_the_store_carries_the_questions(tmp_path: Path) -> None:
    bus, payments = MemoryBus(), Payments()
    async with (
        SqlStore(f"sqlite:///{tmp_path}/hookline.db", wakeups=bus) as store,
        serve(bus.peer(), policy(lambda call: call.with_args(amount=2))),
    ):
        await payments.run(remote("guard"), store=store)

    assert payments.paid == [("Ann", 2)]


async def test_wake_ups_that_cannot_ask_are_refused_at_the_start(tmp_path: Path) -> None:
    payments, wakeups = Payments(), PollingWakeups()
    async with SqlStore(f"sqlite:///{tmp_path}/hookline.db", wakeups=wakeups) as store:
        with pytest.raises(HookUsageError, match="wakes up with PollingWakeups, which cannot ask"):
            await payments.run(remote("guard"), store=store)
    with pytest.raises(HookUsageError, match="has no wake-ups"):
        await payments.run(remote("guard"))

    assert payments.paid == []


@for_each("kind", ["after", "around"])
async def test_what_cannot_be_served_is_refused(kind: str) -> None:
    hooks = Hooks("guard")
    if kind == "after":
        hooks.after(ToolCall)(lambda call, result: None)
    else:
        hooks.around(ToolCall)(lambda call, call_next: call_next(call))

    with pytest.raises(HookUsageError, match="cannot be served over a bus"):
        async with serve(MemoryBus(), hooks):
            pass


@for_each(
    "fields, problem",
    [
        ({"name": "a.b"}, "name on the bus"),
        ({"deadline": 0}, "`deadline`"),
        ({"deadline": True}, "`deadline`"),
        ({"calls": ()}, "`calls`"),
        ({"calls": (int,)}, "not one of the eight calls"),
        ({"on_error": "ajar"}, "`on_error`"),
        ({"bus": PollingWakeups()}, "`bus`"),
        ({"calls": (ModelCall,), "tool": "pay"}, "`tool`"),
    ],
)
async def test_a_wrong_argument_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(HookDefinitionError, match=problem):
        remote(**{"name": "guard", **fields})
