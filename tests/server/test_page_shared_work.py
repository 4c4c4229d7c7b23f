"""Many live views of the same list cost what a few cost, and all of them show the last change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest
from sqlalchemy import event

from hookline.server import Caller
from hookline.server.page._sessions import SessionCookies
from hookline.server.page._shared_work import SharedWork
from hookline.server.page._sign_outs import SignOuts
from hookline.store import SqlStore
from tests.server.site import PLAIN, Site, key, operation
from tests.server.test_page_guards import done, visitor

VIEWS = 200


def test_whoever_asks_gets_a_result_that_is_not_older_than_the_question() -> None:
    async def check() -> None:
        shared, now, rounds = SharedWork(), 0, 0

        async def look() -> int:
            nonlocal rounds
            rounds += 1
            seen = now
            await asyncio.sleep(0)
            return seen

        async def ask() -> bool:
            asked = now
            return await shared.get("its", look) >= asked

        askers = []
        for _ in range(50):
            now += 1
            askers += [asyncio.create_task(ask()) for _ in range(4)]
            await asyncio.sleep(0)
        assert all(await asyncio.gather(*askers))
        assert rounds < 60

    asyncio.run(check())


def test_those_who_ask_at_once_share_a_round_and_its_error_and_other_keys_do_not() -> None:
    async def check() -> None:
        shared, rounds = SharedWork(), []

        async def fail() -> None:
            rounds.append("fail")
            await asyncio.sleep(0)
            raise LookupError("gone")

        async def work() -> str:
            rounds.append("work")
            return "done"

        asked = [shared.get("a", fail) for _ in range(9)] + [shared.get("b", work) for _ in range(9)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(each) for each in found] == ["gone"] * 9 + ["done"] * 9
        assert sorted(rounds) == ["fail", "work"]
        assert await shared.get("a", work) == "done"  # an error is of one round only

    asyncio.run(check())


def test_one_who_goes_away_takes_nothing_from_the_others() -> None:
    async def check() -> None:
        shared, may_end = SharedWork(), asyncio.Event()

        async def work() -> str:
            await may_end.wait()
            return "done"

        first, second = (asyncio.create_task(shared.get("a", work)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        may_end.set()
        assert await second == "done"
        assert first.cancelled()

    asyncio.run(check())


def test_two_hundred_live_lists_show_a_change_for_the_price_of_a_few(new_database_url: Callable[[str], str]) -> None:
    with Site(new_database_url("sqlite"), page=True) as site:
        store = site.server.store
        cookies = []
        for _ in range(VIEWS // 20):
            with visitor(site, done(site, key(store, "acme"))) as person:
                cookies.append(person.cookies["hookline_session"])
        statements: list[str] = []

        async def look() -> None:
            waiting = [asyncio.create_task(read_live(site, cookies[n % len(cookies)], shown)) for n in range(VIEWS)]
            while shown.count("") < VIEWS:
                await asyncio.sleep(0.02)
                [task.result() for task in waiting if task.done()]
            for engine in store._database.engines:
                event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
            its = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(operation(store, "acme"), site.loop))
            while shown.count(its) < VIEWS:
                await asyncio.sleep(0.02)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

        shown: list[str] = []
        asyncio.run(asyncio.wait_for(look(), 120))
        lists = [each for each in statements if "operations.prompt" in each]

    assert 1 <= len(lists) <= VIEWS / 4


async def read_live(site: Site, cookie: str, shown: list[str]) -> None:
    """Read a live list, and note that it has begun, and each operation that it shows first."""
    cookies = {"hookline_session": cookie}
    async with (
        httpx.AsyncClient(base_url=f"{site.address}/page", cookies=cookies, timeout=60, verify=PLAIN) as client,
        client.stream("GET", "/operations/live") as answer,
    ):
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("event: changed"):
                shown.append("")
            if 'id="row-' in line:
                shown.append(line.split('id="row-')[1].split('"')[0])


@pytest.mark.parametrize("ended", [0, 3])
def test_a_session_that_was_ended_is_found_among_many_that_ask_at_once(
    new_database_url: Callable[[str], str], ended: int
) -> None:
    async def check() -> list[bool]:
        async with SqlStore(new_database_url("sqlite")) as store:
            cookies, outs = SessionCookies(), SignOuts(store)
            caller = Caller(key_id="k", tenant_id="t", scopes=frozenset({"hooks:read"}))
            sessions = [cookies.create(caller) for _ in range(50)]
            for each in sessions[:ended]:
                await outs.end(each)
            return list(await asyncio.gather(*(outs.contains(each) for each in sessions)))

    assert asyncio.run(check()) == [True] * ended + [False] * (50 - ended)
