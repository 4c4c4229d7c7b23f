"""A person has approved a call: guards and controls judge it again, other hooks that had judged it do not run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from hookline import (
    Agent,
    AgentSession,
    Approve,
    Ask,
    BeforeToolCall,
    Deny,
    Hook,
    HookDispatcher,
    Hooks,
    ModelResponse,
    OperationResult,
    Reject,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.delivery import ControlAnswer, Envelope, InProcess
from hookline.runtime import KINDS, AdapterRun, Capabilities, recover_agent
from tests.runtime.durable import Died, Disk, DyingStore
from tests.runtime.interception import JsonStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Policy:
    """A receiver: what it is asked, and what it answers, one after the other; the last answer stays."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answers = [ControlAnswer()]

    async def take(self, envelope: Envelope) -> ControlAnswer:
        self.asked.append(msgspec.json.decode(envelope.payload)["args"])
        return self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)


@pytest.fixture
async def policy() -> Policy:
    return Policy()


@pytest.fixture
async def dispatcher(policy: Policy) -> AsyncIterator[HookDispatcher]:
    delivery = InProcess(tries=1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(delivery.serve("policy", policy.take))
        yield await stack.enter_async_context(HookDispatcher(delivery=delivery))


CONTROL = Hook(id="policy", type=BeforeToolCall, webhook={"url": "local://policy", "control": True})


class Bank:
    """An agent that wants to pay what it was told, and that says at the end what it was told of that."""

    def __init__(self, dispatcher: HookDispatcher, *hooks: Any, amounts: tuple[int, ...] = (5,)) -> None:
        self.dispatcher, self.hooks, self.amounts = dispatcher, [CONTROL, *hooks], amounts
        self.store = JsonStore()
        self.paid: list[Any] = []

    def agent(self) -> Agent:
        @tool(in_thread=False)
        async def pay(amount: float) -> str:
            self.paid.append(amount)
            return f"paid {amount}"

        def says(call: Any) -> ModelResponse:
            told = [message.content for message in call.messages if message.role == "tool"]
            if told:
                return ModelResponse(content="; ".join(told))
            calls = [
                ToolRequest(tool_name="pay", args={"amount": amount}, tool_call_id=f"p{nth}")
                for nth, amount in enumerate(self.amounts)
            ]
            return ModelResponse(tool_calls=calls)

        return Agent(id="bank", model=ScriptedModel(says), tools=[pay])

    async def start(self) -> OperationResult:
        return await exec_agent(
            self.agent(), "Pay", hooks=self.hooks, operation_id="op", store=self.store, dispatcher=self.dispatcher
        )

    async def resume(self, *decisions: Approve | Reject) -> OperationResult:
        return await resume_agent(
            self.agent(), "op", decisions, hooks=self.hooks, store=self.store, dispatcher=self.dispatcher
        )


def asking() -> Hooks:
    hooks = Hooks("asks")
    hooks.guard(ToolCall)(lambda call: Ask("Pay?"))
    return hooks


async def test_a_control_judges_an_approved_call_again_and_may_refuse_it(
    dispatcher: HookDispatcher, policy: Policy
) -> None:
    bank = Bank(dispatcher, asking())
    await bank.start()
    policy.answers = [ControlAnswer(decision="deny", reason="frozen since then")]

    result = await bank.resume(Approve("p0"))

    assert (bank.paid, result.output) == ([], "frozen since then")
    assert policy.asked == [{"amount": 5}] * 2


async def test_a_control_that_asks_again_is_lifted_by_the_approval(dispatcher: HookDispatcher, policy: Policy) -> None:
    policy.answers = [ControlAnswer(decision="ask", reason="really?")]
    bank = Bank(dispatcher)

    assert (await bank.start()).pending[0].prompt == "really?"
    assert (await bank.resume(Approve("p0"))).reason == "done"
    assert (bank.paid, len(policy.asked)) == ([5], 2)


async def test_a_control_that_answers_an_approved_call_keeps_the_tool_from_running(
    dispatcher: HookDispatcher, policy: Policy
) -> None:
    bank = Bank(dispatcher, asking())
    await bank.start()
    policy.answers = [ControlAnswer(decision="answer", result={"content": "paid already"})]

    result = await bank.resume(Approve("p0"))

    assert (bank.paid, result.output) == ([], "paid already")


async def test_a_control_that_fails_on_resume_denies_what_was_approved(
    dispatcher: HookDispatcher, policy: Policy
) -> None:
    bank = Bank(dispatcher, asking())
    await bank.start()
    policy.answers = [ControlAnswer(decision="allow", result={"content": "contradiction"})]

    await bank.resume(Approve("p0"))

    assert bank.paid == []


async def test_a_control_that_changes_the_arguments_has_the_person_asked_again_with_those(
    dispatcher: HookDispatcher, policy: Policy
) -> None:
    judged: list[Any] = []
    later = Hooks("later")
    later.guard(ToolCall)(lambda call: judged.append(call.args["amount"]))
    bank = Bank(dispatcher, later, asking())
    await bank.start()
    policy.answers = [ControlAnswer(args={"amount": 500})]

    again = await bank.resume(Approve("p0"))

    assert (again.reason, bank.paid) == ("waiting_for_human", [])
    assert [call.args for call in again.pending] == [{"amount": 500}]
    assert judged == [5, 500]
    assert (await bank.resume(Approve("p0"))).reason == "done"  # the control says 500 again, which is what was approved
    assert bank.paid == [500]


async def test_the_question_is_the_controls_own_where_no_guard_asks_one(
    dispatcher: HookDispatcher, policy: Policy
) -> None:
    policy.answers = [ControlAnswer(decision="ask", reason="really?"), ControlAnswer(args={"amount": 6})]
    bank = Bank(dispatcher)
    await bank.start()

    again = await bank.resume(Approve("p0"))

    assert [(call.args, "policy" in call.prompt) for call in again.pending] == [({"amount": 6}, True)]
    assert (await bank.resume(Reject("p0", "no", and_continue=True))).output == "A person refused this call: no"
    assert bank.paid == []


@pytest.mark.parametrize(("said", "asks"), [({"amount": 5}, False), ({"amount": 5.0}, True), ({"amount": True}, True)])
async def test_arguments_are_those_that_were_approved_if_json_shows_them_alike(
    dispatcher: HookDispatcher, policy: Policy, said: dict[str, Any], asks: bool
) -> None:
    bank = Bank(dispatcher, asking())
    await bank.start()
    policy.answers = [ControlAnswer(args=said)]

    result = await bank.resume(Approve("p0"))

    assert (result.reason == "waiting_for_human") is asks
    assert bank.paid == ([] if asks else [5])


async def test_a_guard_that_denies_the_changed_arguments_bothers_nobody(
    dispatcher: HookDispatcher, policy: Policy
) -> None:
    limit = Hooks("limit")
    limit.guard(ToolCall, priority=200)(lambda call: Deny("too much") if call.args["amount"] > 100 else None)
    bank = Bank(dispatcher, limit)
    policy.answers = [ControlAnswer(decision="ask", reason="really?"), ControlAnswer(args={"amount": 500})]
    await bank.start()

    result = await bank.resume(Approve("p0"))

    assert (result.reason, result.output, bank.paid) == ("done", "too much", [])


async def test_of_parallel_calls_only_the_changed_one_is_asked_about_again_and_none_runs_twice(
    dispatcher: HookDispatcher, policy: Policy
) -> None:
    bank = Bank(dispatcher, asking(), amounts=(1, 2))
    await bank.start()

    async def take(envelope: Envelope) -> ControlAnswer:
        args = msgspec.json.decode(envelope.payload)["args"]
        return ControlAnswer(args={"amount": 20} if args["amount"] == 2 else args)

    policy.take = take  # type: ignore[method-assign]
    delivery = InProcess(tries=1)
    async with delivery.serve("policy", take), HookDispatcher(delivery=delivery) as bank.dispatcher:
        again = await bank.resume(Approve("p0"), Approve("p1"))

        assert ([call.tool_call_id for call in again.pending], bank.paid) == (["p1"], [1])
        result = await bank.resume(Approve("p1"))

    assert (result.output, bank.paid) == ("paid 1.0; paid 20.0", [1, 20])


async def test_one_that_dies_after_the_second_question_goes_on_waiting_for_its_answer(
    dispatcher: HookDispatcher, policy: Policy
) -> None:
    """At every write of the segment: what was changed is never run unasked, and what ran is not run again."""
    for dies_at in range(1, 12):
        for written in (False, True):
            bank, disk = Bank(dispatcher, asking()), Disk()
            policy.answers = [ControlAnswer(), ControlAnswer(args={"amount": 9})]
            bank.store = DyingStore(disk)  # type: ignore[assignment]
            await bank.start()
            bank.store = dying = DyingStore(disk, dies_at=dies_at, written=written)  # type: ignore[assignment]
            try:
                await bank.resume(Approve("p0"))
            except Died:
                bank.store = DyingStore(disk)  # type: ignore[assignment]
                if disk.state("op").status == "running":
                    await recover_agent(
                        bank.agent(),
                        "op",
                        store=bank.store,  # type: ignore[arg-type]
                        hooks=bank.hooks,
                        dispatcher=dispatcher,
                    )
                elif disk.state("op").pending[0].args != {"amount": 9}:
                    await bank.resume(Approve("p0"))
            assert bank.paid == []
            assert [call.args for call in disk.state("op").pending] == [{"amount": 9}]
            if not dying.dead:
                return
    pytest.fail("the segment made more writes than were tried")


async def test_a_session_asks_again_too(dispatcher: HookDispatcher, policy: Policy) -> None:
    bank = Bank(dispatcher, asking())
    policy.answers = [ControlAnswer(), ControlAnswer(args={"amount": 9})]
    async with AgentSession(bank.agent(), dispatcher=dispatcher, store=bank.store) as session:
        await session.run("Pay", hooks=bank.hooks)
        again = await session.resume([Approve("p0")])

        assert [call.args for call in again.pending] == [{"amount": 9}]
        assert (await session.resume([Approve("p0")])).reason == "done"
    assert bank.paid == [9]


@pytest.mark.parametrize("asks", [True, False], ids=["a framework that can ask", "one that cannot"])
async def test_a_run_of_another_framework_asks_again_too(
    dispatcher: HookDispatcher, policy: Policy, asks: bool
) -> None:
    capabilities = Capabilities(framework="a loop", calls={ToolCall: KINDS}, asks=asks)
    calling = ToolRequest(tool_name="pay", args={"amount": 5}, tool_call_id="p0")
    policy.answers = [ControlAnswer(args={"amount": 9})]
    paid: list[Any] = []

    async def work(args: Any) -> Any:
        paid.append(args["amount"])
        return "paid"

    async with AdapterRun([CONTROL], capabilities, dispatcher=dispatcher) as run:
        run.begin_step()
        done = await run.call_tool(calling, work, approved=True)

    assert (paid, done.ran) == ([], False)
    assert (done.asked.args if done.asked is not None else None) == ({"amount": 9} if asks else None)


# Hooks that are no guards and no controls.


def counting(seen: list[str], kind: str, **options: Any) -> Hooks:
    """A hook that only notes that it ran."""
    hooks = Hooks(f"{kind}s")

    async def around(call: Any, call_next: Callable[..., Any]) -> Any:
        seen.append("around")
        return await call_next(call)

    handlers: dict[str, Callable[..., Any]] = {
        "before": lambda call: seen.append("before"),
        "guard": lambda call: seen.append("guard"),
        "after": lambda call, result: seen.append("after"),
        "around": around,
    }
    getattr(hooks, kind)(ToolCall, **options)(handlers[kind])
    return hooks


async def test_of_the_hooks_that_had_judged_a_call_only_guards_and_afters_run_once_it_is_approved(
    dispatcher: HookDispatcher,
) -> None:
    seen: list[str] = []
    bank = Bank(dispatcher, *(counting(seen, kind) for kind in ("before", "around", "guard", "after")), asking())
    await bank.start()
    assert seen == ["before", "around", "guard"]
    seen.clear()

    result = await bank.resume(Approve("p0"))

    assert (seen, result.output) == (["guard", "after"], "paid 5.0")


@pytest.mark.parametrize("kind", ["before", "around"])
async def test_a_hook_that_an_ask_further_out_kept_from_the_call_judges_it_once(
    dispatcher: HookDispatcher, kind: str
) -> None:
    seen: list[str] = []
    asks = Hooks("asks", priority=50)
    asks.before(ToolCall)(lambda call: Ask("Pay?"))
    bank = Bank(dispatcher, asks, counting(seen, kind))
    await bank.start()
    assert seen == []

    assert (await bank.resume(Approve("p0"))).reason == "done"
    assert (seen, bank.paid) == ([kind], [5])


async def test_an_around_that_denies_and_was_kept_from_the_call_is_obeyed(dispatcher: HookDispatcher) -> None:
    asks, denies = Hooks("asks", priority=50), Hooks("denies")
    asks.before(ToolCall)(lambda call: Ask("Pay?"))

    @denies.around(ToolCall)
    async def deny(call: Any, call_next: Callable[..., Any]) -> Any:
        return Deny("never")

    bank = Bank(dispatcher, asks, denies)
    await bank.start()

    assert (await bank.resume(Approve("p0"))).output == "never"
    assert bank.paid == []
