"""Definitions of remote observers: an operator names who hears the stored events of runs, without code in the runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import AfterToolCall, Agent, BeforeStep, Hooks, OnComplete, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.bus import CommittedEvents, MemoryBus, heard_event_id
from hookline.bus._hearing import is_for
from hookline.errors import HookUsageError
from hookline.events import EVENTS, decode, encode
from hookline.registry import DefinitionError, HookDefinition, Registry, load_hook_file
from hookline.relay import Relay
from hookline.runtime import InMemoryStore, JournalEntry, OperationState, RemoteHearer
from hookline.server.page.hooks._fields import draw_groups, read_groups, write_values
from hookline.store import SqlStore
from hookline.store._relay_queue import build_relay_row, decode_hearers
from hookline.wakeups import PollingWakeups
from tests.tables import for_each

pytestmark = pytest.mark.anyio

LEDGER: dict[str, Any] = {
    "id": "ledger-of-tools",
    "name": "Ledger",
    "point": "afterToolCall",
    "remote": {"name": "ledger"},
}
PATIENCE = 60.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    async with SqlStore(f"sqlite:///{tmp_path}/hookline.db", wakeups=PollingWakeups()) as store:
        yield store


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store) as registry:
        yield registry


class Ledger:
    """A process that observes all kinds of events, and the ids of those that it heard, by their types."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.heard: list[tuple[str, str]] = []
        self.hooks = Hooks("ledger")
        for event in (BeforeStep, AfterToolCall, OnComplete):
            self.hooks.on(event)(self.note)  # type: ignore[type-var]

    async def note(self, event: Any) -> None:
        self.heard.append((heard_event_id(), event.hook_type.value))

    async def hear(self, store: SqlStore, *runs: Any) -> list[tuple[str, str]]:
        """Return what it hears of runs, once all that was told is heard."""
        async with Relay(store, self.bus), self.bus.peer().serve(self.hooks):
            for run in runs:
                await run
            async with asyncio.timeout(PATIENCE):
                while await self._is_behind(store):
                    await asyncio.sleep(0.01)
        return self.heard

    async def _is_behind(self, store: SqlStore) -> bool:
        async with store.reading() as connection:
            waiting = await connection.exec_driver_sql("SELECT count(*) FROM relay_queue")
            return bool(waiting.scalar()) or (await self.bus.depths()).get("ledger", 0) > 0


def payer(agent_id: str = "payer") -> Agent:
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    return Agent(id=agent_id, model=ScriptedModel([ToolRequest("pay", {"amount": 7}), "Paid."]), tools=[pay])


async def stored_ids(store: SqlStore, operation_id: str, types: Sequence[str]) -> list[tuple[str, str]]:
    events = await store.events_of(operation_id)
    return [(f"{operation_id}:{each.number}", each.type) for each in events if each.type in types]


@pytest.mark.parametrize(
    ("events", "types"),
    [
        ([], ["afterToolCall"]),
        (["onComplete"], ["afterToolCall", "onComplete"]),
        (["*"], ["beforeStep", "afterToolCall", "onComplete"]),
    ],
    ids=["point", "further", "all"],
)
async def test_the_processes_hear_the_events_that_the_definition_names(
    registry: Registry, store: SqlStore, events: list[str], types: list[str]
) -> None:
    await registry.create({**LEDGER, "remote": {"name": "ledger", "events": events}})

    heard = await Ledger(MemoryBus()).hear(
        store, exec_agent(payer(), "pay", hooks=registry.hooks(), store=store, operation_id="op")
    )

    assert heard == await stored_ids(store, "op", types)
    assert heard


async def test_definitions_of_one_name_add_up(registry: Registry, store: SqlStore) -> None:
    await registry.create(LEDGER)
    await registry.create({**LEDGER, "id": "ends", "name": "Ends", "point": "onComplete"})

    heard = await Ledger(MemoryBus()).hear(
        store, exec_agent(payer(), "pay", hooks=registry.hooks(), store=store, operation_id="op")
    )

    assert heard == await stored_ids(store, "op", ["afterToolCall", "onComplete"])


async def test_only_the_operations_of_the_definition_are_heard(registry: Registry, store: SqlStore) -> None:
    await registry.create({**LEDGER, "agents": ["pay*"]})

    heard = await Ledger(MemoryBus()).hear(
        store,
        exec_agent(payer("other"), "pay", hooks=registry.hooks(), store=store, operation_id="other"),
        exec_agent(payer(), "pay", hooks=registry.hooks(), store=store, operation_id="op"),
    )

    assert heard == await stored_ids(store, "op", ["afterToolCall"])


async def test_a_disabled_definition_is_not_heard(registry: Registry, store: SqlStore) -> None:
    await registry.create({**LEDGER, "enabled": False})

    heard = await Ledger(MemoryBus()).hear(store, exec_agent(payer(), "pay", hooks=registry.hooks(), store=store))

    assert heard == []


@pytest.mark.parametrize("kept", [None, InMemoryStore()], ids=["none", "memory"])
async def test_a_run_without_a_store_that_keeps_events_is_refused(registry: Registry, kept: Any) -> None:
    await registry.create(LEDGER)

    with pytest.raises(HookUsageError, match=r"'ledger-of-tools' hear stored events.*store=SqlStore"):
        await exec_agent(payer(), "pay", hooks=registry.hooks(), store=kept)


@for_each(
    "fields, path, problem",
    [
        ({"remote": {"name": "ledger", "deadline": 1}}, "$.remote.deadline", "no run waits"),
        ({"remote": {"name": "ledger", "events": ["onEnd"]}}, "$.remote.events[0]", "'onEnd' is no event"),
        ({"remote": {"name": "ledger", "events": "*"}}, "$.remote.events", "array"),
        ({"timeout": 1.0}, "$.timeout", "no run waits"),
        ({"tool": "pay"}, "$.tool", "leave `tool` out"),
        ({"config": {"a": 1}}, "$.config", "leave `config` out"),
        ({"onError": "open"}, "$.onError", "an observer"),
        ({"mode": "shadow"}, "$.mode", "only observes"),
        ({"point": "beforeToolCall", "mode": "shadow"}, "$.mode", "only observes"),
        ({"point": "ToolCall.before", "remote": {"name": "a", "events": ["*"]}}, "$.remote.events", "only observers"),
    ],
)
async def test_an_invalid_definition_is_refused(
    registry: Registry, fields: dict[str, Any], path: str, problem: str
) -> None:
    with pytest.raises(DefinitionError, match=problem) as caught:
        await registry.create({**LEDGER, **fields})

    assert caught.value.path == path


async def test_a_hook_of_a_tenant_is_refused(registry: Registry) -> None:
    with pytest.raises(DefinitionError, match="only a system hook"):
        await registry.create({**LEDGER, "tenantId": "acme"})


async def test_a_dry_run_shows_the_event_that_would_be_told(registry: Registry) -> None:
    made = await registry.create(LEDGER)

    shown = await registry.dry_run(made.id, {"apiName": "pay"})

    assert shown.outcome == "shown"
    assert (shown.payload or {})["apiName"] == "pay"


async def test_a_test_in_a_file_says_who_hears_an_event(tmp_path: Path) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text(
        '[[hooks]]\nname = "Ledger"\npoint = "afterToolCall"\n'
        'remote = { name = "ledger", events = ["onComplete"] }\n'
        '[[tests]]\nname = "The end is heard"\nhook = "Ledger"\n'
        'type = "onComplete"\nevent = { reason = "done" }\nexpect = "heard"\n'
        '[[tests]]\nname = "A step is not"\nhook = "Ledger"\n'
        'type = "afterStep"\nevent = {}\nexpect = "ignored"\n'
    )
    async with Registry() as registry:
        results = await registry.test_file(load_hook_file(file))

    assert [(each.name, each.problems) for each in results] == [("The end is heard", []), ("A step is not", [])]


def test_the_form_of_the_page_reads_what_it_writes() -> None:
    fields = {**LEDGER, "remote": {"name": "ledger", "events": ["onComplete", "onError"]}}
    values = write_values(msgspec.convert(fields, HookDefinition), None)

    given, problems = read_groups(draw_groups(values, handlers=[], entry=None, tenants=[], is_new=False))

    assert problems == {}
    assert given["remote"] == {"name": "ledger", "events": ["onComplete", "onError"]}
    assert not {"timeout", "config", "handler", "tool", "mode", "onError"} & set(given)


HEARERS = st.lists(
    st.builds(
        RemoteHearer,
        name=st.sampled_from(["ledger", "audit"]),
        inherit=st.booleans(),
        events=st.lists(st.sampled_from([kind.value for kind in EVENTS]), max_size=3),
    ),
    min_size=1,
    max_size=5,
)
STEP, END = (
    BeforeStep(operation_id="op", step_index=0),
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
    ),
)


@pytest.mark.hypothesis
@given(hearers=HEARERS, commit=st.lists(st.sampled_from([STEP, END]), min_size=1, max_size=3))
def test_a_name_hears_exactly_the_events_that_one_of_its_entries_names(
    hearers: list[RemoteHearer], commit: list[BeforeStep | OnComplete]
) -> None:
    entries = [
        JournalEntry(number=number, type=each.hook_type, time_unix_nano=number, wire=encode(each))
        for number, each in enumerate(commit, 1)
    ]
    state = OperationState(operation_id="op", agent_id="a", hearers=hearers, events=len(commit), version=1)

    row = build_relay_row(state, entries)

    names, wanted = ([], {}) if row is None else decode_hearers(row["hearers"])
    told = CommittedEvents(
        operation_id="op", number=1, events=[msgspec.Raw(each.wire) for each in entries], hearers=names, wanted=wanted
    )
    for name in ("ledger", "audit"):
        theirs = [each for each in hearers if each.name == name]
        expected = [
            event for event in commit if any(not each.events or event.hook_type in each.events for each in theirs)
        ]
        heard = [decode(bytes(wire)) for wire in told.events if name in names and is_for(name, told, wire)]
        assert [each.hook_type for each in heard] == [each.hook_type for each in expected]
