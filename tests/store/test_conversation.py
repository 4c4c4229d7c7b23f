"""Parts of a conversation and of its events are read at a bounded cost, also where single ones are huge."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Message
from hookline.events import ToolOutcome
from hookline.store import SqlStore, downgrade_store
from hookline.store._conversation import CONTENT, decode_beginning
from hookline.store._rows import replace_unstorable

from .records import entries, state

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[SqlStore]:
    async with SqlStore(database_url) as store:
        yield store


async def test_messages_are_read_by_their_place_also_those_that_were_outcomes(store: SqlStore) -> None:
    said = [Message(role="user", content=f"{nth}") for nth in range(3)]
    outcome = ToolOutcome(toolset="bank", tool_name="pay", tool_call_id="c1", content="paid", success=True)
    first = state(messages=said, outcomes={"c1": outcome})
    await store.commit(first, expected_version=None, entries=())
    result = Message(role="tool", content="paid", tool_call_id="c1")
    huge = Message(role="assistant", content='é"\\' * 100_000)
    second = state(version=2, messages=[*said, result, huge])
    await store.append(second, expected_version=1, entries=(), kept_messages=3, kept_outcomes=())

    found = await store.messages_of("op", after=1, limit=3)
    assert [(each.number, each.role, each.content) for each in found] == [
        (2, "user", "1"),
        (3, "user", "2"),
        (4, "tool", "paid"),
    ]
    cut = (await store.messages_of("op", after=4))[0]
    assert (cut.is_cut, cut.role, cut.size > 400_000) == (True, "assistant", True)
    assert len(cut.content) > 1000
    assert huge.content.startswith(cut.content)
    whole = await store.messages_of("op", after=4, longest=10**7)
    assert [(each.content, each.is_cut) for each in whole] == [(huge.content, False)]
    assert await store.messages_of("op", after=5) == []
    assert await store.messages_of("nobody") == []
    head = await store.conversation_head("op")
    assert head is not None
    assert head.messages == 5


async def test_long_events_are_named_and_not_read_and_many_are_split(store: SqlStore) -> None:
    told = entries("op", 1, 6)
    told[2] = msgspec.structs.replace(told[2], wire=b'"' + b"x" * 100_000 + b'"')
    await store.commit(state(events=6), expected_version=None, entries=told)

    parts, more = await store.event_parts_of("op", limit=4)
    assert [(part.number, part.wire is None) for part in parts] == [(1, False), (2, False), (3, True), (4, False)]
    assert (parts[2].size, more) == (100_002, True)
    few, more = await store.event_parts_of("op", most=1)
    assert ([part.number for part in few], more) == ([1], True)
    last, more = await store.event_parts_of("op", after=4, limit=4)
    assert ([part.number for part in last], more) == ([5, 6], False)
    assert await store.event_parts_of("nobody") == ([], False)


@given(st.text(), st.integers(min_value=0))
def test_the_beginning_of_a_text_is_read_wherever_it_is_cut(content: str, place: int) -> None:
    content = content.encode(errors="replace").decode()
    body = msgspec.json.encode(Message(role="user", content=content)).decode()
    start = body.index(CONTENT) + len(CONTENT)
    found = decode_beginning(body[: start + place % (len(body) - start)])
    assert replace_unstorable(content).startswith(found.rstrip("?"))  # half of a pair at the end is one of those


async def test_who_interrupted_is_lost_with_the_columns_and_the_operation_is_not(database_url: str) -> None:
    async with SqlStore(database_url) as store:
        await store.commit(state(retry_of="first"), expected_version=None, entries=())
        await store.request_interrupt("op", by="ann")
    await downgrade_store(database_url, "0007_partitions")
    async with SqlStore(database_url) as store:
        found = await store.operation("op")
        assert found is not None
        assert (found.status, found.interrupt_asked_by, found.retry_of) == ("running", None, None)
        assert (await store.request_interrupt("op", by="ben")).interrupt_asked_by == "ben"
