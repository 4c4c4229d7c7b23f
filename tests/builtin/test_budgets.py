"""Budgets across runs, as hooks of runs: what a call reserves, what it is settled for, and who shares a budget."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from hookline import (
    Agent,
    AgentSession,
    Approve,
    Deny,
    Hooks,
    ModelCall,
    ModelResponse,
    ScriptedModel,
    ToolCall,
    exec_agent,
    resume_agent,
    signals,
    tool,
)
from hookline.budgets import (
    Amounts,
    BudgetChange,
    BudgetFigures,
    BudgetRequest,
    InMemoryBudgets,
    Reservation,
    Settlement,
)
from hookline.builtin import budget, require_approval
from hookline.calls import Usage
from hookline.errors import HookDefinitionError, StoreUnavailableError
from hookline.interceptors import Chain
from tests.tables import for_each

from .scenes import agent_of, asks, says, through, told

pytestmark = pytest.mark.anyio


async def figures_of(store: Any) -> BudgetFigures:
    [figures] = await store.budgets()
    assert isinstance(figures, BudgetFigures)
    return figures


def reason_of(result: Any) -> str:
    assert result.reason == "interrupted"
    assert result.denied is not None
    return str(result.denied.reason)


async def test_runs_draw_on_the_budget_of_their_user() -> None:
    store = InMemoryBudgets()
    hooks = budget(cost_usd=1.0, per="user", store=store, reserve_usd=0.4)

    first = await exec_agent(agent_of(asks("search", cost=0.3), says(cost=0.3)), "hi", hooks=[hooks], user_id="ann")
    second = await exec_agent(agent_of(says(cost=0.3)), "hi", hooks=[hooks], user_id="ann")
    other = await exec_agent(agent_of(says(cost=0.3)), "hi", hooks=[hooks], user_id="bob")

    assert (first.reason, second.reason, other.reason) == ("done", "done", "done")
    third = await exec_agent(agent_of(says(cost=0.1)), "hi", hooks=[hooks], user_id="ann")
    assert reason_of(third) == (
        "the budget 'budget' of the user 'ann' has $0.90 used of $1.00; this call reserves $0.40"
    )


async def test_bundles_with_the_same_id_share_a_store_and_tenants_do_not() -> None:
    store = InMemoryBudgets()

    def hooks() -> Hooks:
        return budget(tokens=100, per="tenant", window="month", store=store, reserve_tokens=60, id="team")

    first = await exec_agent(agent_of(says(tokens=50)), "hi", hooks=[hooks()], tenant_id="a")
    second = await exec_agent(agent_of(says(tokens=50)), "hi", hooks=[hooks()], tenant_id="a")
    other = await exec_agent(agent_of(says(tokens=50)), "hi", hooks=[hooks()], tenant_id="b")

    assert (first.reason, other.reason) == ("done", "done")
    assert "the budget 'team' has 50 tokens used of 100 tokens until " in reason_of(second)


async def test_sub_agents_count_with_the_run_that_called_them() -> None:
    store = InMemoryBudgets()
    hooks = budget(tokens=1000, per="operation", store=store, reserve_tokens=100)
    inner = agent_of(says(tokens=30), id="inner")
    helper = agent_of(asks("agent/inner", tokens=20), says(tokens=10), id="helper", sub_agents=[inner])
    agent = agent_of(asks("agent/helper", tokens=5), says(tokens=5), sub_agents=[helper])

    result = await exec_agent(agent, "hi", hooks=[hooks], operation_id="top")

    assert result.reason == "done"
    figures = await figures_of(store)
    assert (figures.scope.key, figures.used.tokens, figures.reserved.tokens) == ("top", 70, 0)


async def test_tool_calls_count_per_tool_and_not_if_another_hook_denies_them() -> None:
    store = InMemoryBudgets()
    denies = Hooks("denies")
    denies.guard(ToolCall, tool="search", priority=1000)(lambda call: Deny("no") if call.args["query"] == "x" else None)
    turns = [asks("search", query="a"), asks("search", query="x"), asks("search", query="b"), asks("search", query="c")]
    hooks = [budget(calls=2, per="tool", window="1d", store=store, tool="search"), denies]

    result = await exec_agent(agent_of(*turns, asks("bash"), says()), "hi", hooks=hooks)

    assert result.reason == "done"
    told_of = told(result)
    assert told_of[:3] == ["found a", "no", "found b"]
    assert told_of[3].startswith("the budget 'budget' of the tool 'local/search' has 2 calls used of 2 calls until ")
    assert told_of[4] == "ran "
    figures = await figures_of(store)
    assert (figures.scope.key, figures.used.calls, figures.reserved.calls) == ("local/search", 2, 0)


async def test_a_budget_may_end_the_run_at_a_tool_call() -> None:
    hooks = budget(calls=1, per="tenant", on_limit="stop")

    result = await exec_agent(agent_of(asks("search"), asks("search"), says("never")), "hi", hooks=[hooks])

    assert "has 1 call used of 1 call" in reason_of(result)


async def test_a_call_that_takes_more_than_it_reserved_closes_the_window(caplog: pytest.LogCaptureFixture) -> None:
    store = InMemoryBudgets()
    hooks = budget(cost_usd=10, per="tenant", store=store, reserve_usd=0.1)

    with caplog.at_level(logging.WARNING, "hookline"):
        result = await exec_agent(agent_of(asks("search", cost=0.5), says("never")), "hi", hooks=[hooks])

    assert "is closed after an overrun" in reason_of(result)
    figures = await figures_of(store)
    assert (figures.used.nano_usd, figures.overrun.nano_usd) == (500_000_000, 400_000_000)
    assert "took $0.40 more than it had reserved" in caplog.text


@for_each(
    ("response", "used"),
    [
        (ModelResponse(content="x", usage=Usage(input_tokens=3, output_tokens=4)), 7),
        (ModelResponse(content="x"), 100),  # it does not say what it took
        (RuntimeError("out of order"), 100),
    ],
)
async def test_a_call_whose_use_is_unknown_counts_with_all_that_it_reserved(response: Any, used: int) -> None:
    store = InMemoryBudgets()

    await exec_agent(
        agent_of(response), "hi", hooks=[budget(tokens=1000, per="tenant", store=store, reserve_tokens=100)]
    )

    figures = await figures_of(store)
    assert (figures.used.tokens, figures.reserved.tokens) == (used, 0)


async def test_a_cost_that_is_unknown_counts_with_the_reservation() -> None:
    store = InMemoryBudgets()
    response = ModelResponse(content="x", usage=Usage(input_tokens=3), cost_known=False)

    await exec_agent(agent_of(response), "hi", hooks=[budget(cost_usd=1, per="tenant", store=store, reserve_usd=0.25)])

    assert (await figures_of(store)).used.nano_usd == 250_000_000


@pytest.mark.parametrize(
    ("model", "usd"),
    [
        ("gpt-5", 0.02025),  # 1,000 tokens at $1.25 and 1,900 at $10 per million
        ("mine", 0.25),  # all that it reserved
    ],
)
async def test_tokens_without_a_cost_take_their_price_and_without_a_price_the_reservation(
    model: str, usd: float
) -> None:
    store = InMemoryBudgets()
    usage = Usage(input_tokens=1000, output_tokens=1900)
    response = ModelResponse(content="x", usage=usage, cost_known=False, model=model)

    hooks = budget(cost_usd=1, tokens=10_000, per="tenant", store=store, reserve_usd=0.25, reserve_tokens=5000)
    await exec_agent(agent_of(response), "hi", hooks=[hooks])

    used = (await figures_of(store)).used
    assert (used.nano_usd / 1e9, used.tokens) == (usd, 2900)


async def test_a_cost_without_tokens_counts_and_the_tokens_are_those_reserved() -> None:
    store = InMemoryBudgets()
    hooks = budget(cost_usd=1, tokens=1000, per="tenant", store=store, reserve_usd=0.25, reserve_tokens=100)

    await exec_agent(agent_of(says(cost=0.4)), "hi", hooks=[hooks])

    figures = await figures_of(store)
    assert (figures.used.nano_usd, figures.used.tokens) == (400_000_000, 100)
    assert figures.closed


async def test_a_cancelled_call_counts_in_full_and_leaves_no_reservation() -> None:
    store, started = InMemoryBudgets(), anyio.Event()
    chain = Chain([budget(tokens=1000, per="tenant", store=store, reserve_tokens=100)])

    async def hang(call: object) -> None:
        started.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(chain.run, ModelCall(messages=[]), hang)
        await started.wait()
        group.cancel_scope.cancel()

    figures = await figures_of(store)
    assert (figures.used.tokens, figures.reserved.tokens) == (100, 0)


async def test_a_model_call_that_another_hook_denies_takes_nothing_and_one_that_is_withheld_does() -> None:
    store = InMemoryBudgets()
    hooks = budget(tokens=1000, per="tenant", store=store, reserve_tokens=100, priority=10)
    denies, withholds = Hooks("denies"), Hooks("withholds")
    denies.guard(ModelCall)(lambda call: Deny("no"))
    withholds.after(ModelCall, priority=500)(lambda call, response: Deny("secret"))

    await through(Chain([hooks, denies]), ModelCall(messages=[]), says(tokens=7))
    nothing = await figures_of(store)
    await through(Chain([hooks, withholds]), ModelCall(messages=[]), says(tokens=7))

    assert (nothing.used.tokens, nothing.reserved.tokens) == (0, 0)
    assert (await figures_of(store)).used.tokens == 7


async def test_a_call_reserves_its_input_and_max_tokens_at_the_price_of_its_model() -> None:
    store = InMemoryBudgets()
    seen: list[Reservation] = []

    class Watched(InMemoryBudgets):
        async def reserve_budget(self, request: BudgetRequest) -> Reservation:
            seen.append(answer := await store.reserve_budget(request))
            return answer

        async def settle_budget(self, reservation_id: str, used: Amounts | None = None) -> Settlement | None:
            return await store.settle_budget(reservation_id, used)

    chain = Chain([budget(cost_usd=1, tokens=100_000, per="tenant", store=Watched())])
    call = ModelCall(messages=[], model="gpt-5", settings={"max_tokens": 1000})

    outcome = await through(chain, call, says(tokens=7, cost=0.001))

    assert outcome.denied is None
    reserved = seen[0].figures.reserved
    assert 1000 < reserved.tokens < 1100  # the text of an empty conversation is a few bytes
    assert 10_000_000 < reserved.nano_usd < 10_100_000  # 1,000 tokens at $10 per million


@for_each(
    ("call", "problem"),
    [
        (ModelCall(messages=[], model="gpt-5"), "its settings have no `max_tokens`"),
        (ModelCall(messages=[], model="gpt-5", settings={"max_tokens": "many"}), "its settings have no `max_tokens`"),
        (ModelCall(messages=[], model="mine", settings={"max_tokens": 5}), "no price is known for the model 'mine'"),
    ],
)
async def test_a_call_without_a_ceiling_is_denied_and_told_what_to_give(call: ModelCall, problem: str) -> None:
    outcome = await through(Chain([budget(cost_usd=1, per="tenant")]), call, says())

    assert outcome.denied is not None
    assert problem in outcome.denied.reason
    assert "`reserve_usd`" in outcome.denied.reason


async def test_a_window_warns_once_by_log_and_signal(caplog: pytest.LogCaptureFixture) -> None:
    hooks = budget(tokens=100, per="tenant", window="1d", reserve_tokens=40, warn_at=0.8)
    heard: list[BudgetChange] = []

    def receive(sender: object, change: BudgetChange) -> None:
        heard.append(change)

    with signals.budget_changed.connected_to(receive), caplog.at_level(logging.WARNING, "hookline"):
        for _ in range(4):
            await exec_agent(agent_of(says(tokens=25)), "hi", hooks=[hooks])

    assert [each.kind for each in heard] == ["settled", "settled", "warned", "settled", "denied"]
    assert heard[2].figures.reserved.tokens == 40
    assert caplog.text.count("the budget 'budget' has 50 tokens used and 40 tokens reserved of 100 tokens") == 1


async def test_a_person_is_asked_about_a_tool_call_beyond_the_budget_and_may_allow_it() -> None:
    store = InMemoryBudgets()
    hooks = budget(calls=1, per="tenant", store=store, on_limit="ask")
    agent = agent_of(asks("search", query="a"), asks("search", query="b", id="u"), says("done"))

    paused = await exec_agent(agent, "hi", hooks=[hooks], operation_id="op")
    result = await resume_agent(agent, "op", [Approve("u0")], hooks=[hooks])

    assert paused.reason == "waiting_for_human"
    assert "has 1 call used of 1 call" in (paused.pending[0].prompt or "")
    assert (result.reason, told(result)) == ("done", ["found a", "found b"])
    figures = await figures_of(store)
    assert (figures.used.calls, figures.reserved.calls, figures.allowed.calls) == (2, 0, 1)


async def test_a_person_is_asked_before_the_model_call_that_would_not_fit() -> None:
    store = InMemoryBudgets()
    hooks = budget(tokens=100, per="tenant", store=store, reserve_tokens=60, on_limit="ask")
    agent = agent_of(asks("search", query="a", tokens=50), says("done", tokens=20))

    paused = await exec_agent(agent, "hi", hooks=[hooks], operation_id="op")
    result = await resume_agent(agent, "op", [Approve("t0")], hooks=[hooks])

    assert paused.reason == "waiting_for_human"
    assert "one more model call beyond the budget" in (paused.pending[0].prompt or "")
    assert (result.reason, result.output) == ("done", "done")
    assert (await figures_of(store)).used.tokens == 70
    denied = await exec_agent(agent_of(says(tokens=5)), "hi", hooks=[hooks])  # no tool call to ask about
    assert "has 70 tokens used" in reason_of(denied)


async def test_a_call_that_waits_for_approval_is_counted_when_it_runs() -> None:
    store = InMemoryBudgets()
    hooks = [budget(calls=1, per="tenant", store=store, priority=10), require_approval("search")]
    agent = agent_of(asks("search", query="a"), says("done"))

    paused = await exec_agent(agent, "hi", hooks=hooks, operation_id="op")
    waiting = await figures_of(store)
    result = await resume_agent(agent, "op", [Approve("t0")], hooks=hooks)

    assert paused.reason == "waiting_for_human"
    assert (waiting.used.calls, waiting.reserved.calls) == (0, 0)
    assert told(result) == ["found a"]
    assert (await figures_of(store)).used.calls == 1


async def test_a_session_draws_on_one_budget_for_all_its_tasks() -> None:
    hooks = budget(tokens=100, per="agent", reserve_tokens=60)

    async with AgentSession(agent_of(says(tokens=50), says(tokens=50)), hooks=[hooks]) as session:
        first, second = await session.run("one"), await session.run("two")

    assert first.reason == "done"
    assert "of the agent 'tester' has 50 tokens used" in reason_of(second)


class Away(InMemoryBudgets):
    """A store that cannot be reached while it is away."""

    away = False

    def check(self) -> None:
        if self.away:
            raise StoreUnavailableError("postgresql://db", "it does not answer")

    async def reserve_budget(self, request: BudgetRequest) -> Reservation:
        self.check()
        return await super().reserve_budget(request)

    async def settle_budget(self, reservation_id: str, used: Amounts | None = None) -> Settlement | None:
        self.check()
        return await super().settle_budget(reservation_id, used)


@pytest.mark.parametrize(("on_error", "reason"), [("closed", "interrupted"), ("open", "done")])
async def test_a_store_that_is_away_denies_calls_or_lets_them_run_as_declared(on_error: Any, reason: str) -> None:
    store = Away()
    store.away = True
    hooks = budget(tokens=100, per="tenant", store=store, reserve_tokens=50, on_error=on_error)

    result = await exec_agent(agent_of(says(tokens=5)), "hi", hooks=[hooks])

    assert result.reason == reason
    if on_error == "closed":
        assert "it fails closed: StoreUnavailableError: The store postgresql://db" in reason_of(result)


async def test_what_could_not_be_settled_is_settled_when_the_store_is_back() -> None:
    store = Away()
    hooks = budget(tokens=1000, per="tenant", store=store, reserve_tokens=100)

    chain = Chain([hooks])

    async def answer_while_it_goes_away(call: object) -> ModelResponse:
        store.away = True
        return says(tokens=7)

    outcome = await chain.run(ModelCall(messages=[]), answer_while_it_goes_away)
    store.away = False
    reserved = await figures_of(store)
    await through(chain, ModelCall(messages=[]), says(tokens=3))

    assert outcome.denied is None
    assert (reserved.used.tokens, reserved.reserved.tokens) == (0, 100)
    figures = await figures_of(store)
    assert (figures.used.tokens, figures.reserved.tokens) == (10, 0)


async def test_a_run_that_ends_settles_what_the_store_missed() -> None:
    store = Away()
    hooks = budget(tokens=1000, per="tenant", store=store, reserve_tokens=100)

    @tool
    async def repair() -> str:
        """Let the store come back."""
        store.away = False
        return "back"

    def answer(call: ModelCall) -> ModelResponse:
        store.away = True
        return asks("repair", tokens=7)

    result = await exec_agent(
        Agent(id="a", model=ScriptedModel(answer), tools=[repair], max_steps=1), "hi", hooks=[hooks]
    )

    assert result.reason == "max_steps"
    figures = await figures_of(store)
    assert (figures.used.tokens, figures.reserved.tokens) == (7, 0)


@for_each(
    ("options", "problem"),
    [
        ({"per": "user"}, "pass `cost_usd`, `tokens` or `calls`"),
        ({"tokens": 5, "window": "1d"}, "say whose calls it counts together"),
        ({"calls": 5}, "say whose calls it counts together"),
        ({"tokens": 5, "per": "team"}, "`per` must be 'operation', 'user', 'tenant', 'agent' or 'tool'; got 'team'"),
        ({"tokens": 5, "per": "user", "window": "1w"}, "`window` must be '1h', '1d' or 'month'; got '1w'"),
        ({"tokens": 5, "per": "user", "zone": "Mars"}, "There is no time zone 'Mars'"),
        ({"tokens": 5, "per": "tool"}, "with per='tool', pass `calls` alone"),
        ({"tokens": 5, "per": "user", "tool": "x"}, "`tool` says which tools `calls` counts"),
        ({"tokens": 5, "per": "user", "reserve_tokens": 6}, "no call fits: each reserves 6 of the 5"),
        ({"tokens": 5, "per": "user", "reserve_usd": 0.1}, "`reserve_usd` goes with `cost_usd`"),
        ({"tokens": 5, "per": "user", "reserve_tokens": 1.5}, "`reserve_tokens` must be a whole number from 1"),
        ({"tokens": 5, "per": "user", "warn_at": 80}, "`warn_at` is a share of the limit, such as 0.8; got 80"),
        ({"tokens": 5, "per": "user", "on_limit": "wait"}, "`on_limit` must be 'deny', 'stop' or 'ask'"),
        ({"tokens": 5, "per": "user", "on_error": "ignore"}, "`on_error` must be 'closed' or 'open'"),
        ({"tokens": 5, "per": "user", "store": "sqlite:///x"}, "`store` must be a SqlStore or another BudgetStore"),
        ({"tokens": 5, "per": "user", "lease_seconds": 0}, "`lease_seconds` must be a number above 0"),
        ({"cost_usd": 10**9, "per": "user"}, "`cost_usd` can be 1,000,000 at most"),
        ({"tokens": 5, "store": InMemoryBudgets()}, "say whose calls it counts together"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(HookDefinitionError) as caught:
        budget(**options)

    assert problem in str(caught.value)


def test_a_cost_without_prices_is_refused_at_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookline.builtin._budgets.find_spec", lambda name: None)

    with pytest.raises(HookDefinitionError, match="pass `reserve_usd`"):
        budget(cost_usd=1, per="user")
    budget(cost_usd=1, per="user", reserve_usd=0.1)
