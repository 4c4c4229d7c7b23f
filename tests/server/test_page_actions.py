"""Interrupt, retry, revert and export on the page, at the moments at which they are hardest."""

from __future__ import annotations

import asyncio
import csv
import gc
import io
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from sqlalchemy import insert

from hookline import exec_agent
from hookline.registry import DefinitionError
from hookline.registry._revisions import KEPT_REVISIONS
from hookline.server._audit import AuditFilter, export_audit
from hookline.store import SqlStore, audit
from tests.server.browsing import status_of, until
from tests.server.page_routes import CASES, Made, find_form, read_forms
from tests.server.site import Site, key, new_id, operation
from tests.server.test_operation_actions import AGENT, WAITER
from tests.server.test_page_faults import said
from tests.server.test_page_guards import done, token_in, visitor

SESSION_KEY = b"the same in both processes, as long as needed"


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path_factory.mktemp('acting')}/page.db"
    with Site(url, page=True, agents=[AGENT, WAITER], scripts=tmp_path_factory.mktemp("scripts")) as site:
        yield site


@pytest.fixture
def admin(acting: Site) -> Iterator[httpx.Client]:
    with visitor(acting) as person:
        yield person


def ran(site: Site, prompt: str = "Hi") -> str:
    result = done(site, exec_agent(AGENT, prompt, store=site.server.store, tenant_id="acme"))
    return result.operation_id


def test_a_retry_that_is_sent_many_times_at_once_starts_one_operation(acting: Site, admin: httpx.Client) -> None:
    its = ran(acting)
    shown = admin.get(f"/operations/{its}").text
    form = next(dict(each.fields) for each in read_forms(shown)[0] if each.action.endswith("/retry"))
    ready = threading.Barrier(6)

    def send(_: int) -> str:
        with httpx.Client(base_url=admin.base_url, cookies=admin.cookies, timeout=20) as copy:
            ready.wait(30)
            answer = copy.post(f"/operations/{its}/retry", data=form)
            assert answer.status_code == 303, answer.text
            return answer.headers["location"].partition("?")[0]

    with ThreadPoolExecutor(6) as pool:
        places = set(pool.map(send, range(6)))

    assert len(places) == 1
    found = done(acting, acting.server.store.operation(its))
    assert found is not None
    new = done(acting, acting.server.store.retries_of(found))
    assert [f"/page/operations/{each.operation_id}" for each in new] == list(places)


def test_an_interrupt_of_an_operation_that_ends_at_that_moment_is_told_which_it_was(
    acting: Site, admin: httpx.Client
) -> None:
    token = {"token": token_in(admin.get("/keys").text)}
    for _ in range(12):
        its = new_id("op")
        work = exec_agent(AGENT, "Hi", store=acting.server.store, tenant_id="acme", operation_id=its)
        run = asyncio.run_coroutine_threadsafe(work, acting.loop)
        answers = []
        while not run.done() or not answers:
            answers.append(admin.post(f"/operations/{its}/interrupt", data=token))
        answers.append(admin.post(f"/operations/{its}/interrupt", data=token))

        reason, last = run.result(20).reason, said(answers[-1])
        assert {answer.status_code for answer in answers} <= {303, 404, 409}
        assert answers[-1].status_code == 409
        assert reason in ("done", "interrupted")
        assert ("is done already" if reason == "done" else "was interrupted already") in last
        assert status_of(acting, its) == reason


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"status": "done", "agent_id": "nobody-has-it"}, "does not have its agent"),
        ({"status": "done", "agent_id": "counter", "parent_operation_id": "op-parent"}, "operation of a sub-agent"),
        ({"status": "running", "agent_id": "counter", "waiting_since_unix_nano": None}, "It has not ended"),
        ({"status": "done", "agent_id": "counter", "framework": "Loops"}, "Loops ran it"),
    ],
    ids=["agent", "sub-agent", "running", "framework"],
)
def test_what_cannot_be_retried_says_why_and_starts_nothing(
    acting: Site, admin: httpx.Client, fields: dict[str, str], why: str
) -> None:
    its = done(acting, operation(acting.server.store, "acme", pending=[], **fields))
    token = {"token": token_in(admin.get("/keys").text), "key": "k"}

    answer = admin.post(f"/operations/{its}/retry", data=token)

    assert answer.status_code == 409
    assert why in said(answer)
    found = done(acting, acting.server.store.operation(its))
    assert found is not None
    assert done(acting, acting.server.store.retries_of(found)) == []


def test_forms_go_on_working_after_a_restart(new_database_url: Callable[[str], str]) -> None:
    url = new_database_url("sqlite")
    settings = {"page": True, "agents": [AGENT], "session_key": SESSION_KEY}
    with Site(url, **settings) as site, visitor(site) as person:
        its, waits = ran(site), done(site, operation(site.server.store, "acme"))
        forms = {
            place: next(
                dict(each.fields) for each in read_forms(person.get(f"/operations/{op}").text)[0] if end in each.action
            )
            for place, op, end in ((f"/operations/{its}/retry", its, "/retry"), ("/approvals", waits, "/approvals"))
        }
        cookies = dict(person.cookies)
    with Site(url, **settings) as site:
        with httpx.Client(base_url=f"{site.address}/page", cookies=cookies, timeout=20) as person:
            answers = [
                person.post(place, data=form | {"decision": "approve"})
                for place, form in forms.items()
                for _ in range(2)
            ]
            shown = person.get(f"/operations/{waits}").text
        made = done(site, site.server.store.decisions_of(waits))

    assert [answer.status_code for answer in answers] == [303] * 4
    assert answers[0].headers["location"] == answers[1].headers["location"]
    assert [each.decision for each in made] == ["approve"]
    assert "first administrator" in shown


def test_of_many_changes_the_newest_are_kept_and_a_page_leads_to_the_rest(acting: Site, admin: httpx.Client) -> None:
    registry, tenant = acting.server.registry, new_id("tenant")
    made = {"name": "one", "point": "ToolCall.guard", "handler": "deny", "tenantId": tenant}

    async def change() -> str:
        found = await registry.create(made)
        for nth in range(3 * KEPT_REVISIONS // 2):
            await registry.update(found.id, {"priority": nth}, tenant_id=tenant, actor="cli:ann")
        return found.id

    its = asyncio.run_coroutine_threadsafe(change(), acting.loop).result(300)
    shown = admin.get(f"/hooks/{its}", params={"tenant": tenant}).text
    history = admin.get(f"/hooks/{its}/history", params={"tenant": tenant}).text
    first = admin.get(f"/hooks/{its}/edit", params={"tenant": tenant}).text
    form = find_form(admin, CASES["POST", "/hooks/{id:str}/edit"], Made(its, {"tenant": tenant}))
    stale = admin.post(f"/hooks/{its}/edit", data=form | {"revision": "1", "priority": "5"})

    assert "All revisions that are kept" in shown
    assert history.count('class="history-line"') == KEPT_REVISIONS
    assert f'value="{3 * KEPT_REVISIONS // 2 - 1}"' in first
    assert stale.status_code == 409
    assert "Somebody else has changed this hook in the meantime" in stale.text
    assert "ann on the command line" in said(stale)


def test_a_revision_whose_script_is_gone_is_not_gone_back_to(acting: Site, admin: httpx.Client) -> None:
    registry = acting.server.registry
    folder: Path = acting._settings["scripts"]
    (folder / "old.sh").write_text("#!/bin/sh\ncat > /dev/null\n")
    (folder / "old.sh").chmod(0o755)
    made = {"name": new_id("hook"), "point": "ToolCall.guard", "script": "old.sh", "tenantId": ""}
    found = done(acting, registry.create(made))
    now = done(acting, registry.update(found.id, {"script": None, "handler": "deny"}))
    (folder / "old.sh").unlink()
    form = {"token": token_in(admin.get("/keys").text), "tenant": "", "to": str(found.revision)}

    answer = admin.post(f"/hooks/{found.id}/revert", data=form | {"revision": str(now.revision)})

    assert answer.status_code == 422
    assert "old.sh" in said(answer)
    assert "Nothing was changed." in said(answer)
    assert done(acting, registry.get(found.id)) == now
    with pytest.raises(DefinitionError):
        done(acting, registry.revert(found.id, found.revision))


def test_an_export_of_the_audit_log_takes_the_same_memory_however_long_it_is(
    new_database_url: Callable[[str], str],
) -> None:
    async def measure(store: SqlStore, count: int) -> tuple[int, int]:
        rows = [
            {
                "tenant_id": "acme",
                "actor": f"key:{nth}",
                "action": "definition.update",
                "target": f"hook{nth}",
                "created_at": 1.7e9 + nth,
                "detail": b'{"name":"%s"}' % (b"x" * 300),
            }
            for nth in range(1000)
        ]
        for _ in range(count // 1000):
            async with store.writing() as connection:
                await connection.execute(insert(audit), rows)
        tracemalloc.start()
        size = 0
        async for piece in export_audit(store, AuditFilter(), "csv"):
            size += piece.count(b"\n")
            gc.collect(1)  # what is in use counts, and not when the collector runs
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size, peak

    async def check() -> None:
        async with SqlStore(new_database_url("sqlite")) as store:
            few, less = await measure(store, 3000)
            many, more = await measure(store, 12_000)
        assert (few, many) == (3001, 15_001)
        assert more < 1.5 * less

    asyncio.run(check())


def test_texts_of_the_audit_log_run_in_no_spreadsheet(acting: Site, admin: httpx.Client) -> None:
    bad = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", '"=1', "a\r\n=1,2", ";=1"]

    async def fill() -> None:
        async with acting.server.store.writing() as connection:
            for each in bad:
                row = {"tenant_id": "sheet", "actor": each, "action": "key.create", "target": each, "created_at": 1.7e9}
                await connection.execute(insert(audit).values(**row, detail=b"{}"))

    done(acting, fill())
    table = admin.get("/audit/export", params={"tenant": "sheet", "format": "csv"}).content.decode()
    rows = list(csv.reader(io.StringIO(table, newline="")))

    assert len(rows) == len(bad) + 1
    assert {len(row) for row in rows} == {len(rows[0])}
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


def test_an_operation_that_waits_is_interrupted_once_however_many_ask(acting: Site, admin: httpx.Client) -> None:
    its = done(acting, operation(acting.server.store, "acme"))
    people = [done(acting, key(acting.server.store, "acme")) for _ in range(3)]
    for secret in people:
        with visitor(acting, secret) as person:
            token = {"token": token_in(person.get("/keys").text)}
            assert person.post(f"/operations/{its}/interrupt", data=token).status_code == 303
    first = f"API key {people[0].split('_')[1]}"

    until(lambda: first in admin.get(f"/operations/{its}").text, 20)
