"""Who has decided about a call is kept beside the event that tells of it, and about nothing else than what was seen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from hookline import Agent, Approve, ModelCall, ModelResponse, Reject, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.errors import DecisionError
from hookline.events import AfterHumanIntervention, PendingTool, decode
from hookline.runtime import OperationState, resume_agent
from hookline.store import SqlStore, Worker, downgrade_store
from hookline.store._decisions import make_seen_token
from hookline.store._migrate import VERSION_TABLE
from tests.store.test_worker import status_of
from tests.tables import for_each

DECISIONS = {
    "approve": Approve("t0"),
    "reject": Reject("t0", "too much"),
    "rejectAndContinue": Reject("t0", and_continue=True),
}


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


@tool(in_thread=False, needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def payer(*amounts: int) -> Agent:
    """Asks to pay once, all amounts together."""

    def says(call: ModelCall) -> ModelResponse:
        if call.messages[-1].role == "tool":
            return ModelResponse(content="done")
        calls = [
            ToolRequest(tool_name="pay", args={"amount": each}, tool_call_id=f"t{n}") for n, each in enumerate(amounts)
        ]
        return ModelResponse(tool_calls=calls)

    return Agent(id="payer", model=ScriptedModel(says), tools=[pay])


async def pending(store: SqlStore, *amounts: int, operation_id: str = "op") -> OperationState:
    await exec_agent(payer(*amounts), "Pay", operation_id=operation_id, tenant_id="acme", store=store)
    state = await store.load(operation_id)
    assert state is not None
    return state


@pytest.mark.anyio
@for_each("action", DECISIONS)
async def test_who_decided_is_kept_beside_the_event_which_names_nobody(store: SqlStore, action: str) -> None:
    await pending(store, 5, operation_id=action)
    await store.decide(action, DECISIONS[action], by="key:ann")
    [waiting] = await store.decisions_of(action)
    async with Worker(store, [payer(5)], poll_seconds=0.02):
        await status_of(store, action, "interrupted" if action == "reject" else "done")

    [made] = await store.decisions_of(action)
    [entry] = [each for each in await store.events_of(action) if each.number == made.event_number]

    event = decode(entry.wire)
    assert isinstance(event, AfterHumanIntervention)
    assert (event.action, event.tool_call_id) == (action, "t0")
    assert b"ann" not in entry.wire
    assert (made.decision, made.decided_by, made.tool_name, made.args) == (action, "key:ann", "pay", {"amount": 5})
    assert msgspec.structs.replace(made, event_number=None) == waiting


@pytest.mark.anyio
@for_each("kept, taken", product(DECISIONS, repeat=2))
async def test_nobody_is_named_for_a_decision_of_somebody_else(store: SqlStore, kept: str, taken: str) -> None:
    name = f"{kept}-{taken}"
    await pending(store, 5, operation_id=name)
    await store.decide(name, DECISIONS[kept], by="key:ann")

    await resume_agent(payer(5), name, [DECISIONS[taken]], store=store)

    [made] = await store.decisions_of(name)
    assert (made.decision, made.decided_by) == (taken, "key:ann" if kept == taken else "")
    assert made.event_number is not None
    await store.forget_decisions(name)
    assert await store.decisions_of(name) == [made]


@pytest.mark.anyio
async def test_each_of_several_people_is_named_for_their_own_call(store: SqlStore) -> None:
    await pending(store, 5, 6, 7)
    await store.decide("op", Approve("t2"), by="key:ann")
    await store.decide("op", Reject("t0", and_continue=True), by="cli:bob")
    await resume_agent(payer(5, 6, 7), "op", [Approve("t1")], store=store)

    async with Worker(store, [payer(5, 6, 7)], poll_seconds=0.02):
        await status_of(store, "op", "done")

    found = {made.tool_call_id: (made.decided_by, made.decision) for made in await store.decisions_of("op")}
    assert found == {
        "t0": ("cli:bob", "rejectAndContinue"),
        "t1": ("", "approve"),
        "t2": ("key:ann", "approve"),
    }


@pytest.mark.anyio
async def test_a_decision_about_what_has_changed_is_refused_and_nothing_is_kept(store: SqlStore) -> None:
    state = await pending(store, 5)
    seen = make_seen_token(state, state.pending[0])
    changed = msgspec.structs.replace(state.pending[0], args={"amount": 5000})
    await store.commit(
        msgspec.structs.replace(state, version=state.version + 1, pending=[changed]),
        expected_version=state.version,
        entries=[],
    )

    with pytest.raises(DecisionError, match="'t0' has changed since it was shown"):
        await store.decide("op", Approve("t0"), by="key:ann", seen=seen)

    assert await store.decisions_of("op") == []
    await store.decide("op", Approve("t0"), by="key:ann", seen=make_seen_token(state, changed))


@pytest.mark.anyio
async def test_workers_look_for_what_is_untold_without_reading_all_that_was_ever_decided(tmp_path: Path) -> None:
    untold = "SELECT operation_id FROM decisions WHERE event_number IS NULL"
    async with SqlStore(f"sqlite:///{tmp_path / 'store.db'}") as store, store.reading() as connection:
        plan = (await connection.execute(text(f"EXPLAIN QUERY PLAN {untold}"))).all()

    assert "ix_decisions_operation_id" in str(plan)


@pytest.mark.anyio
async def test_who_is_second_is_told_what_the_first_has_decided(store: SqlStore) -> None:
    await pending(store, 5)
    await store.decide("op", Reject("t0"), by="key:ann")

    with pytest.raises(DecisionError, match="'t0' is decided already: rejected and stopped by key:ann"):
        await store.decide("op", Approve("t0"), by="key:bob")


arguments = st.dictionaries(
    st.text(max_size=5),
    st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5), st.lists),
    max_size=4,
)


@settings(max_examples=50)
@given(arguments, arguments, st.text(max_size=5), st.text(max_size=5), st.integers(0, 2), st.integers(0, 2))
def test_two_calls_have_one_name_exactly_if_a_person_sees_the_same(
    one: dict[str, object], other: dict[str, object], prompt: str, other_prompt: str, pause: int, other_pause: int
) -> None:
    def name(args: dict[str, object], prompt: str, pause: int) -> str:
        call = PendingTool(toolset="bank", tool_name="pay", tool_call_id="t0", args=args, prompt=prompt)
        state = OperationState(operation_id="op", agent_id="a", pending=[call], waiting_since_unix_nano=pause)
        return make_seen_token(state, call)

    first, second = name(one, prompt, pause), name(other, other_prompt, other_pause)

    same = msgspec.json.encode([one, prompt, pause], order="sorted") == msgspec.json.encode(
        [other, other_prompt, other_pause], order="sorted"
    )
    assert (first == second) == same
    assert name(dict(reversed(one.items())), prompt, pause) == first


@pytest.mark.anyio
async def test_decisions_of_an_older_store_are_kept_and_taken(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'old.db'}"
    async with SqlStore(address) as store:
        await pending(store, 5)
        await store.decide("op", Approve("t0"), by="key:ann")
    await downgrade_store(address, "0004_endpoint_secrets")
    engine = create_engine(address)
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX ix_decisions_operation_id"))
        for column in ("call", "event_number"):
            connection.execute(text(f"ALTER TABLE decisions DROP COLUMN {column}"))
        connection.execute(text("DROP INDEX ix_operations_missing_hooks"))
        connection.execute(text("ALTER TABLE operations DROP COLUMN missing_hooks"))
        for table in ("endpoint_secrets", "master_keys"):
            connection.execute(text(f"DROP TABLE {table}"))
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))
    engine.dispose()

    async with SqlStore(address) as store:
        [waiting] = await store.decisions_of("op")
        async with Worker(store, [payer(5)], poll_seconds=0.02):
            await status_of(store, "op", "done")
        [made] = await store.decisions_of("op")

    assert (waiting.decided_by, waiting.tool_name, waiting.event_number) == ("key:ann", "", None)
    assert (made.decided_by, made.event_number) == ("key:ann", 6)
