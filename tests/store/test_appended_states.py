"""A state is stored as rows that are added; what is read is the state that was written, and nothing else is kept."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, text

from hookline import (
    Agent,
    AgentCall,
    AgentSession,
    Approve,
    Compaction,
    Deny,
    Hooks,
    Message,
    ModelCall,
    ModelResponse,
    Phase,
    ScriptedModel,
    StepCall,
    ToolRequest,
    TransientModelError,
    Usage,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.errors import HookUsageError, StateFormatError
from hookline.events import AfterCompact, ToolOutcome, encode
from hookline.phases import PhaseTransition
from hookline.runtime import (
    DurableStore,
    InterceptorKey,
    JournalEntry,
    ModelRetry,
    OperationState,
)
from hookline.runtime._state import tool_message
from hookline.store import SqlStore, downgrade_store, read_past_conversations
from hookline.store._state_rows import Layout, StateChange, collect_numbers
from hookline.store._tables import operations, state_rows

from .records import hook, state

pytestmark = pytest.mark.anyio
EARLIER = Path(__file__).with_name("stored") / "by_8ffe382.sql"


def outcome(name: str, content: str) -> ToolOutcome:
    return ToolOutcome(toolset="local", tool_name="look", tool_call_id=name, content=content, success=True)


def requests(*names: str) -> list[ToolRequest]:
    return [ToolRequest("look", {"at": name}, tool_call_id=name) for name in names]


contents = st.text(max_size=3)
names = st.sampled_from(["t0", "t1", "t2"])
messages = st.one_of(
    st.builds(lambda content: Message(role="user", content=content), contents),
    st.builds(lambda content: Message(role="assistant", content=content, tool_calls=requests("t0", "t1")), contents),
    st.builds(lambda name, content: tool_message(outcome(name, content)), names, contents),
)
outcomes = st.dictionaries(names, contents, max_size=2).map(lambda found: {k: outcome(k, v) for k, v in found.items()})


@st.composite
def next_states(draw: st.DrawFn) -> list[OperationState]:
    """States of one operation, each with some messages of the one before, or all, and some of its outcomes."""
    found: list[OperationState] = []
    conversation: list[Message] = []
    known: dict[str, ToolOutcome] = {}
    for version in range(1, draw(st.integers(1, 6)) + 1):
        kept = draw(st.integers(0, len(conversation)) | st.just(len(conversation)))
        closed = [tool_message(each) for each in known.values()] if draw(st.booleans()) else []
        conversation = [*conversation[:kept], *closed, *draw(st.lists(messages, max_size=3))]
        known = {} if closed else {name: each for name, each in known.items() if draw(st.booleans())}
        known |= draw(outcomes)
        found.append(
            state(
                version=version,
                messages=list(conversation),
                outcomes=dict(known),
                open_calls=draw(st.sampled_from([[], requests("t0", "t1"), requests("t2")])),
                hooks=[hook(each) for each in draw(st.lists(st.sampled_from("ab"), max_size=2))],
                interceptors=draw(st.none() | st.just([InterceptorKey("id", "guard", "ToolCall")])),
            )
        )
    return found


@given(next_states(), st.data())
def test_the_rows_of_a_state_make_it_up_again(states: list[OperationState], data: st.DataObject) -> None:
    layout: Layout | None = None
    rows: dict[int, dict[str, Any]] = {}
    before: OperationState | None = None
    for each in states:
        earlier = before.messages if before is not None else []
        equal = next(
            (at for at, pair in enumerate(zip(earlier, each.messages, strict=False)) if pair[0] != pair[1]), None
        )
        kept = min(len(earlier), len(each.messages)) if equal is None else equal
        same = {k for k, v in each.outcomes.items() if before is not None and before.outcomes.get(k) == v}
        change = StateChange(
            each,
            kept_messages=data.draw(st.integers(0, kept) | st.just(kept)),
            kept_outcomes=data.draw(st.sets(st.sampled_from(sorted(same)))) if same else (),
        )

        layout, new = change.place(layout, is_whole=False)

        rows |= {row["number"]: row for row in new}
        needed = {number: rows[number] for number in collect_numbers(layout.ranges())}
        assert join(change.head, layout, needed) == each
        before = each


def join(head: bytes, layout: Layout, rows: dict[int, dict[str, Any]]) -> OperationState:
    """What `complete_state` does, said once more in other words."""
    known: dict[str, Any] = {}
    said: list[Message] = []
    for first, last in layout.messages:
        for number in range(first, last + 1):
            body = rows[number]["body"]
            if rows[number]["kind"] == "message":
                said.append(msgspec.json.decode(body, type=Message))
            else:
                said.append(tool_message(msgspec.json.decode(body, type=ToolOutcome)))
    types = {field.name: field.type for field in msgspec.structs.fields(OperationState)}
    for name, (number, _) in layout.fields.items():
        known[name] = msgspec.json.decode(rows[number]["body"], type=types[name])
    if layout.calls_said:
        known["open_calls"] = said[-1].tool_calls
    known["outcomes"] = {
        name: msgspec.json.decode(rows[number]["body"], type=ToolOutcome)
        for name, (number, _) in layout.outcomes.items()
    }
    return msgspec.structs.replace(msgspec.json.decode(head, type=OperationState), messages=said, **known)


class CheckedStore(SqlStore):
    """A store that reads each state that it has written, and counts what it wrote."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.appended = 0

    async def append(self, state: OperationState, **given: Any) -> None:
        await super().append(state, **given)
        self.appended += 1
        assert msgspec.json.encode(await self.load(state.operation_id)) == msgspec.json.encode(state)
        async with self.reading() as connection:
            found = select(state_rows.c.number).where(state_rows.c.operation_id == state.operation_id)
            stored = set((await connection.execute(found)).scalars())
            query = select(operations.c.layout).where(operations.c.operation_id == state.operation_id)
            layout = (await connection.execute(query)).scalar_one()
        assert stored == collect_numbers(msgspec.json.decode(layout, type=Layout).stored_ranges()), (
            "rows that nothing needs were kept"
        )


@tool
def look(at: str) -> str:
    """Look."""
    return f"seen {at}" * 20


@tool(needs_approval=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


async def test_every_write_of_a_run_is_read_as_it_was_written(database_url: str) -> None:
    turns = [
        [ToolRequest("look", {"at": "a"}), ToolRequest("look", {"at": "b"}), ToolRequest("pay", {"euros": 3})],
        ToolRequest("look", {"at": "ä"}),
        *(ToolRequest("look", {"at": str(at)}) for at in range(6)),
        "done",
    ]

    async def summarize(said: list[Message]) -> str:
        return f"{len(said)} messages"

    model = ScriptedModel(
        [
            ModelResponse(tool_calls=list(each) if isinstance(each, list) else [each], usage=Usage(input_tokens=90))
            if not isinstance(each, str)
            else ModelResponse(content=each)
            for each in turns
        ]
    )
    agent = Agent(
        id="agent",
        model=model,
        tools=[look, pay],
        compaction=Compaction(summarize=summarize, max_tokens=80, keep_last=1),
    )
    async with CheckedStore(database_url) as store:
        paused = await exec_agent(agent, "Look.", operation_id="op", store=store)
        [waiting] = paused.pending
        result = await resume_agent(agent, "op", [Approve(waiting.tool_call_id)], store=store)
        stored = await store.load("op")

    assert (paused.reason, result.reason, result.output) == ("waiting_for_human", "done", "done")
    assert store.appended > 20
    assert stored is not None
    assert stored.messages == result.messages


async def run_and_load(store: SqlStore, reading: str) -> list[Message]:
    """Run a step with a tool call and another one, and return what is stored when the second one may wait.

    Args:
        store: The store.
        reading: What reads it: `"step"`, an interceptor; `"summary"`; `"phase"`, a hook; else nothing does.
    """
    found: list[Message] = []

    async def read() -> None:
        [operation] = (await store.operations()).items
        stored = await store.load(operation.operation_id)
        assert stored is not None
        found[:] = stored.messages

    async def step(call: StepCall) -> None:
        if call.step_index == 1:
            await read()

    async def asking(transition: PhaseTransition) -> None:
        await read()

    async def summarize(said: list[Message]) -> str:
        await read()
        return "They looked."

    hooks = Hooks()
    if reading == "step":
        hooks.before(StepCall)(step)
    elif reading == "phase":
        hooks.on_phase(None, Phase.AWAITING_LLM_RESPONSE)(asking)
    first = ModelResponse(tool_calls=[ToolRequest("look", {"at": "a"})], usage=Usage(input_tokens=90))
    agent = Agent(
        id="agent",
        model=ScriptedModel([first, "Done."]),
        tools=[look],
        compaction=Compaction(summarize=summarize, max_tokens=80, keep_last=0) if reading == "summary" else None,
    )
    if reading == "phase":
        async with AgentSession(agent, hooks=[hooks], store=store) as session:
            result = await session.run("Look.")
    else:
        result = await exec_agent(agent, "Look.", operation_id="op", store=store, hooks=[hooks])
    assert result.reason == "done"
    return found


@pytest.mark.parametrize("reading", ["step", "summary", "phase"])
async def test_what_a_step_did_is_stored_before_anything_of_the_next_step_can_wait(
    database_url: str, reading: str
) -> None:
    async with SqlStore(database_url) as store:
        assert [message.role for message in await run_and_load(store, reading)] == ["user", "assistant", "tool"]


async def test_a_step_that_is_followed_by_its_model_call_at_once_is_committed_with_it(database_url: str) -> None:
    async with CheckedStore(database_url) as store:
        await run_and_load(store, "nothing")
        stored = await store.load("op")
    # The claim, before each of two model calls, before the tool, and the end.
    assert (stored.version if stored else None, store.appended) == (5, 4)


async def test_what_a_hook_has_rewritten_is_not_kept(database_url: str) -> None:
    rules = Hooks("rules")

    @rules.before(AgentCall)
    def redact(call: AgentCall) -> AgentCall:
        return msgspec.structs.replace(call, input=[Message(role="user", content="My number is [redacted].")])

    agent = Agent(id="agent", model=ScriptedModel([ToolRequest("look", {"at": "a"}), "Done."]), tools=[look])
    async with CheckedStore(database_url) as store:
        await exec_agent(agent, "My number is 4711.", operation_id="op", hooks=[rules], store=store)
        async with store.reading() as connection:
            bodies = list((await connection.execute(select(state_rows.c.body))).scalars())
        stored = await store.operation("op")

    assert not [body for body in bodies if b"4711" in body]
    assert stored is not None
    assert stored.prompt == "My number is [redacted]."


async def test_messages_that_a_summary_replaced_are_kept_until_they_are_rewritten(database_url: str) -> None:
    said = [Message(role="user", content=text) for text in ("be kind", "my number is 4711", "go")]
    compacted = [said[0], Message(role="user", content="a summary"), said[2]]
    rewritten = [Message(role="user", content="[redacted]"), *compacted[1:]]
    event = AfterCompact(
        operation_id="op", agent_id="a", step_index=0, group_id="g", messages_before=3, messages_after=3, summary="a"
    )
    entry = JournalEntry(number=1, type=event.hook_type, time_unix_nano=1, wire=encode(event))

    async def read(store: SqlStore) -> tuple[list[str], list[int]]:
        async with store.reading() as connection:
            bodies = (await connection.execute(select(state_rows.c.body).order_by(state_rows.c.number))).scalars()
            texts = [msgspec.json.decode(body)["content"] for body in bodies]
        [(_, found)] = [each async for each in read_past_conversations(store, ["op"])]
        return texts, [0 if each is None else len(each) for each in found.compacted]

    async with CheckedStore(database_url) as store:
        await store.commit(state(messages=said), expected_version=None, entries=())
        second = state(version=2, messages=compacted, events=1)
        await store.append(second, expected_version=1, entries=[entry], kept_messages=1, kept_outcomes=())
        kept = await read(store)
        third = state(version=3, messages=rewritten, events=1)
        await store.append(third, expected_version=2, entries=(), kept_messages=0, kept_outcomes=())
        left = await read(store)
        await store.save(state(version=4, messages=said[2:], events=1), expected_version=3)
        whole = await read(store)

    assert kept == (["be kind", "my number is 4711", "go", "a summary", "go"], [3])
    assert left == (["[redacted]", "a summary", "go"], [0])
    assert whole == (["go"], [])


async def test_lists_have_the_prompt_the_duration_and_the_trace(database_url: str) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    said = [Message(role="user", content="Before."), Message(role="user", content="Now\0 " + "x" * 300)]
    async with SqlStore(database_url) as store:
        first = state(messages=said, traceparents=[f"00-{trace_id}-00f067aa0ba902b7-01"], active_ms=12.5)
        await store.commit(first, expected_version=None, entries=())
        later = state(version=2, messages=[*said, Message(role="user", content="Later.")], llm_calls=1, active_ms=20.0)
        await store.append(later, expected_version=1, entries=(), kept_messages=2, kept_outcomes=())
        [found] = (await store.operations()).items

    assert found.prompt == ("Now? " + "x" * 300)[:200]
    assert (found.duration_ms, found.trace_id) == (20.0, None)


async def test_a_whole_state_takes_the_place_of_the_stored_one(database_url: str) -> None:
    conversation = [Message(role="user", content=str(at)) for at in range(4)]
    async with SqlStore(database_url) as store:
        await store.commit(state(messages=conversation), expected_version=None, entries=())
        shorter = state(version=2, messages=conversation[2:])
        await store.save(shorter, expected_version=1)
        assert await store.load("op") == shorter
        async with store.reading() as connection:
            count = (await connection.execute(text("SELECT count(*) FROM state_rows"))).scalar_one()

    assert count == 2


async def test_a_store_that_does_not_have_what_it_is_said_to_have_gets_all_of_it(database_url: str) -> None:
    conversation = [Message(role="user", content=str(at)) for at in range(3)]
    known = {"t0": outcome("t0", "seen")}
    async with SqlStore(database_url) as store:
        await store.commit(state(messages=conversation[:1]), expected_version=None, entries=())
        grown = state(version=2, messages=conversation, outcomes=known)
        await store.append(grown, expected_version=1, entries=(), kept_messages=2, kept_outcomes=["t0"])

        assert await store.load("op") == grown


@pytest.mark.parametrize(("kept_messages", "kept_outcomes"), [(-1, ()), (2, ()), (0, ["t0"])])
async def test_a_write_cannot_keep_what_its_state_does_not_have(
    database_url: str, kept_messages: int, kept_outcomes: Collection[str]
) -> None:
    async with SqlStore(database_url) as store:
        await store.commit(state(), expected_version=None, entries=())
        with pytest.raises(HookUsageError, match="has 1 messages and 0 outcomes"):
            await store.append(
                state(version=2, messages=[Message(role="user", content="a")]),
                expected_version=1,
                entries=(),
                kept_messages=kept_messages,
                kept_outcomes=kept_outcomes,
            )
        assert await store.load("op") == state()


async def test_a_state_whose_rows_are_lost_cannot_be_read(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        await store.commit(state(messages=[Message(role="user", content="a")]), expected_version=None, entries=())
        async with store.writing() as connection:
            await connection.execute(text("DELETE FROM state_rows"))
        with pytest.raises(StateFormatError):
            await store.load("op")


async def test_prune_deletes_the_rows_of_a_state(database_url: str) -> None:
    agent = Agent(id="agent", model=ScriptedModel(["Done."]))
    async with SqlStore(database_url) as store:
        await exec_agent(agent, "Go.", store=store)
        assert await store.prune(0) == 1
        async with store.reading() as connection:
            for table in ("state_rows", "model_calls"):
                assert (await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one() == 0


# Model calls.


async def test_each_model_call_is_kept_with_what_it_cost(database_url: str) -> None:
    turns = [
        TransientModelError("busy"),
        ModelResponse(tool_calls=requests("t0"), usage=Usage(input_tokens=10, output_tokens=2, cost_usd=0.5)),
        ValueError("broken"),
    ]
    retry = ModelRetry(attempts=2, first_wait=0.001)
    agent = Agent(id="agent", model=ScriptedModel(turns, name="small"), tools=[look], retry=retry)
    async with SqlStore(database_url) as store:
        result = await exec_agent(agent, "Look.", operation_id="op", store=store)
        answered, failed = await store.model_calls_of("op")

    assert result.reason == "error"
    assert (answered.provider, answered.model, answered.step_index) == ("hookline", "small", 0)
    assert (answered.input_tokens, answered.output_tokens, answered.cost_usd) == (10, 2, 0.5)
    assert answered.duration_ms >= 0.5  # the wait before the second attempt is part of the call
    assert answered.error_type is None
    assert (failed.step_index, failed.error_type, failed.input_tokens) == (1, "ValueError", 0)
    assert answered.start_unix_nano < failed.start_unix_nano


async def test_a_model_call_that_fails_with_a_name_too_long_to_store_ends_the_run_as_its_error(
    database_url: str,
) -> None:
    error = type("Broken" * 100, (Exception,), {})("no")
    agent = Agent(id="agent", model=ScriptedModel([error]))
    async with SqlStore(database_url) as store:
        result = await exec_agent(agent, "Go.", operation_id="op", store=store)
        [failed] = await store.model_calls_of("op")
        stored = await store.operation("op")

    assert result.error is error
    assert failed.error_type == ("Broken" * 100)[:400]
    assert stored is not None
    assert stored.status == "error"


async def test_model_calls_that_hooks_lead_are_kept_too(database_url: str) -> None:
    rules = Hooks("rules")

    @rules.around(ModelCall)
    async def answer(call: ModelCall, proceed: Callable[[ModelCall], Awaitable[ModelResponse]]) -> ModelResponse:
        return ModelResponse(tool_calls=requests("t0")) if call.step_index == 0 else await proceed(call)

    @rules.after(ModelCall)
    def deny(call: ModelCall, result: ModelResponse) -> Deny | None:
        return Deny("no") if call.step_index == 2 else None

    asked = ModelResponse(tool_calls=requests("t1"), usage=Usage(input_tokens=1))
    agent = Agent(id="agent", model=ScriptedModel([asked, asked]), tools=[look])
    async with SqlStore(database_url) as store:
        result = await exec_agent(agent, "Look.", operation_id="op", hooks=[rules], store=store)
        found = await store.model_calls_of("op")

    assert result.reason == "interrupted"
    assert [(each.step_index, each.input_tokens) for each in found] == [(1, 1), (2, 1)]


# Stores of third parties.


class WholeStore(DurableStore):
    """A store that was written before there was `append`."""

    def __init__(self) -> None:
        self.states: dict[str, OperationState] = {}

    async def load(self, operation_id: str) -> OperationState | None:
        return self.states.get(operation_id)

    async def commit(
        self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
    ) -> None:
        self.states[state.operation_id] = state

    async def orphaned(self, operation_id: str) -> bool:
        return False

    async def release(self, operation_id: str) -> None: ...

    async def children(self, operation_id: str) -> list[OperationState]:
        return []


async def test_a_store_without_append_works_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    class OtherStore(WholeStore):
        pass

    agent = Agent(id="agent", model=ScriptedModel(lambda call: "Done."))
    store = OtherStore()
    with caplog.at_level(logging.INFO, logger="hookline"):
        for name in ("one", "two"):
            await exec_agent(agent, "Go.", operation_id=name, store=store)

    assert store.states["two"].status == "done"
    assert [message.content for message in store.states["two"].messages] == ["Go.", "Done."]
    told = [record for record in caplog.records if "writes the whole state" in record.message]
    assert [(record.levelname, record.args) for record in told] == [("INFO", ("OtherStore",))]


# Migrations.


@pytest.fixture
def earlier(tmp_path: Path) -> str:
    """A database of commit 8ffe382, with an operation that waits, one that is decided, and one that died."""
    file = tmp_path / "earlier.db"
    with sqlite3.connect(file) as connection:
        connection.executescript(EARLIER.read_text())
    connection.close()
    return f"sqlite:///{file}"


def stored_states(address: str) -> dict[str, Any]:
    with sqlite3.connect(address.removeprefix("sqlite:///")) as connection:
        found = connection.execute("SELECT operation_id, state FROM operations").fetchall()
    connection.close()
    return {name: msgspec.json.decode(body) for name, body in found}


async def test_old_states_are_moved_to_rows_and_back(earlier: str) -> None:
    before = stored_states(earlier)

    async with SqlStore(earlier) as store:
        read = {name: await store.load(name) for name in before}
        [prompt] = {each.prompt for each in (await store.operations()).items}
    moved = stored_states(earlier)
    for _ in range(2):
        await downgrade_store(earlier, "0005_operation_changes")
    back = stored_states(earlier)

    assert all(before[name]["messages"] and not moved[name]["messages"] for name in before)
    assert prompt == [each for each in before["waits"]["messages"] if each["role"] == "user"][-1]["content"]
    assert read == {name: msgspec.convert(each, OperationState) for name, each in before.items()}
    assert back == before
    async with SqlStore(earlier) as store:
        assert {name: await store.load(name) for name in before} == read


async def test_states_that_were_appended_go_back_to_one_each(database_url: str) -> None:
    agent = Agent(
        id="agent", model=ScriptedModel([requests("t0", "t1"), ToolRequest("pay", {"euros": 3})]), tools=[look, pay]
    )
    async with SqlStore(database_url) as store:
        await exec_agent(agent, "Look.", operation_id="op", hooks=[], store=store)
        read = await store.load("op")

    await downgrade_store(database_url, "0005_operation_changes")

    async with SqlStore(database_url) as store:
        assert read is not None
        assert read.status == "waiting_for_human"
        assert await store.load("op") == read


async def test_a_migration_that_is_cut_off_is_run_again(earlier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored_states(earlier)
    with sqlite3.connect(earlier.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "CREATE TRIGGER cut BEFORE UPDATE ON operations WHEN old.operation_id = 'waits' "
            "BEGIN SELECT RAISE(ABORT, 'cut off'); END"
        )
    connection.close()

    with pytest.raises(Exception, match="cut off"):
        await SqlStore(earlier).__aenter__()
    assert stored_states(earlier) == before
    with sqlite3.connect(earlier.removeprefix("sqlite:///")) as connection:
        assert not connection.execute("SELECT name FROM sqlite_master WHERE name = 'state_rows'").fetchall()
        connection.execute("DROP TRIGGER cut")
    connection.close()

    async with SqlStore(earlier) as store:
        assert {name: await store.load(name) for name in before} == {
            name: msgspec.convert(each, OperationState) for name, each in before.items()
        }


async def test_a_store_goes_back_only_to_a_revision_that_is_known(tmp_path: Path) -> None:
    with pytest.raises(HookUsageError, match=r"0004_endpoint_secrets, 0005_operation_changes.*'0001'"):
        await downgrade_store(f"sqlite:///{tmp_path / 'a.db'}", "0001")
