"""Callers that ask at the same time share one read of the database, which begins after all of them asked."""

from __future__ import annotations

import asyncio

import pytest

from hookline.registry._shared_read import SharedRead

pytestmark = pytest.mark.anyio


class Source:
    """A source whose reads end when they are told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Semaphore(0)
        self.error: Exception | None = None

    async def read(self) -> None:
        self.begun += 1
        await self.may_end.acquire()
        if self.error is not None:
            raise self.error


async def settle() -> None:
    """Let all tasks go on until each of them waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_callers_that_ask_at_once_share_one_read() -> None:
    source = Source()
    shared = SharedRead(source.read)
    source.may_end.release()

    await asyncio.gather(*(shared.share() for _ in range(5)))

    assert source.begun == 1


async def test_callers_that_ask_during_a_read_share_the_next_one() -> None:
    source = Source()
    shared = SharedRead(source.read)
    first = asyncio.create_task(shared.share())
    await settle()
    later = [asyncio.create_task(shared.share()) for _ in range(3)]
    await settle()
    assert source.begun == 1

    source.may_end.release()
    await first
    await settle()
    assert source.begun == 2
    assert not any(each.done() for each in later)
    source.may_end.release()
    await asyncio.gather(*later)

    assert source.begun == 2


async def test_all_that_share_a_read_get_its_error_and_the_next_read_succeeds() -> None:
    source = Source()
    shared = SharedRead(source.read)
    source.error = ValueError("no database")
    source.may_end.release()

    found = await asyncio.gather(shared.share(), shared.share(), return_exceptions=True)
    source.error = None
    source.may_end.release()
    await shared.share()

    assert [str(error) for error in found] == ["no database", "no database"]
    assert source.begun == 2


async def test_a_cancelled_caller_does_not_end_the_read_of_the_others() -> None:
    source = Source()
    shared = SharedRead(source.read)
    first, second = asyncio.create_task(shared.share()), asyncio.create_task(shared.share())
    await settle()

    first.cancel()
    await settle()
    source.may_end.release()
    await second

    assert first.cancelled()
    assert source.begun == 1


async def test_a_read_that_was_cancelled_before_it_began_is_begun_again_for_the_next_caller() -> None:
    source = Source()
    shared = SharedRead(source.read)
    present = asyncio.create_task(shared.share())
    await settle()
    others = asyncio.all_tasks()
    waiting = asyncio.create_task(shared.share())
    await settle()
    (read,) = asyncio.all_tasks() - others - {waiting}

    read.cancel()
    await settle()
    source.may_end.release()
    await present
    last = asyncio.create_task(shared.share())
    source.may_end.release()
    await asyncio.gather(waiting, last)

    assert source.begun == 2


async def test_a_read_whose_callers_were_cancelled_ends_with_its_owner() -> None:
    source = Source()
    shared = SharedRead(source.read)
    before = asyncio.all_tasks()
    callers = [asyncio.create_task(shared.share())]
    await settle()
    callers.append(asyncio.create_task(shared.share()))
    await settle()
    for each in callers:
        each.cancel()
    await settle()
    assert asyncio.all_tasks() != before

    await shared.aclose(patience=0)

    assert asyncio.all_tasks() == before
