"""The view of an operation says who said and did what, and why, however long, hostile or incomplete it is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import anyio
import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import text as sql

from hookline.calls import Ask, Deny, Message, ModelCall, ModelResponse, ToolCall, ToolRequest, Usage
from hookline.events import AfterStep, AfterToolCall, BeforeStep, BeforeToolCall, encode
from hookline.hooks import Hooks
from hookline.runtime import (
    Agent,
    Approve,
    Compaction,
    JournalEntry,
    OperationState,
    ScriptedModel,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.store import SqlStore, events
from tests.server.browsing import complaints, look, page, secret, status_of, tenant, text, until, window
from tests.server.site import Site, key, new_id, operation
from tests.server.test_page_decisions import EVIL, SHOWN
from tests.server.test_page_guards import done, token_in, visitor

__all__ = ["complaints", "page", "secret", "tenant", "window"]

PROMPT = "Refund order 8812, please. " + "It arrived broken. " * 20


@tool(in_thread=False)
async def find_order(order: int, full: bool) -> dict[str, object]:
    """Find an order."""
    return {"order": order, "total": 129.5}


@tool(in_thread=False)
async def delete_customer(name: str) -> str:
    """Delete a customer."""
    return "deleted"


@tool(in_thread=False, needs_approval=True)
async def refund(order: int) -> str:
    """Give money back."""
    return f"refunded {order}"


@tool(in_thread=False)
async def free() -> str:
    """Give it away."""
    return "gone"


@tool(in_thread=False)
async def wait() -> str:
    """Wait for ever."""
    await anyio.sleep_forever()
    return ""


def ask(*requests: tuple[str, dict[str, Any], str], said: str = "", toolset: str = "local") -> ModelResponse:
    calls = [ToolRequest(name, args, tool_call_id=call, toolset=toolset) for name, args, call in requests]
    return ModelResponse(
        content=said, tool_calls=calls, usage=Usage(input_tokens=1200, output_tokens=80, cost_usd=0.02)
    )


def by_turn(*answers: ModelResponse) -> ScriptedModel:
    """Answer by the number of answers so far, so that a resumed run goes on."""

    def answer(call: ModelCall) -> ModelResponse:
        return answers[sum(message.role == "assistant" for message in call.messages)]

    return ScriptedModel(answer)


WRITER = Agent(
    id="writer",
    model=by_turn(
        ask(("find_order", {"order": 1, "full": True}, "w"), said="I look."), ModelResponse(content="Dear Maria")
    ),
    tools=[find_order],
)
CLERK = Agent(
    id="clerk",
    instructions="Be kind.",
    model=by_turn(
        ask(("find_order", {"order": 8812, "full": False}, "c1"), said="I look it up."),
        ask(("delete_customer", {"name": "Maria"}, "c2"), said="I clean up."),
        ask(("writer", {"instruction": "Write to Maria"}, "c3"), toolset="agent"),
        ask(("refund", {"order": 8812}, "c4"), said="I refund it."),
        ModelResponse(content="It is on its way."),
    ),
    tools=[find_order, delete_customer, refund],
    sub_agents=[WRITER],
)
WAITER = Agent(
    id="waiter", model=by_turn(ask(("wait", {}, "w1"), said="I wait."), ModelResponse(content="x")), tools=[wait]
)
RULES = Hooks("rules")
RULES.guard(ToolCall, id="rules.privacy", tool="*delete*")(lambda call: Deny("Customers are never deleted."))


@RULES.before(ToolCall, id="rules.full", tool="*find_order")
def look_fully(call: ToolCall) -> ToolCall:
    return msgspec.structs.replace(call, args={**call.args, "full": True})


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that has the agents, and traces in another place."""
    url = f"sqlite:///{tmp_path_factory.mktemp('operation')}/page.db"
    with Site(url, page=True, agents=[WAITER], trace_url="https://traces.example.com/{trace_id}") as site:
        yield site


def clerked(site: Site, tenant_id: str) -> str:
    """An operation of the clerk, which a person has approved."""
    store = site.server.store
    its = new_id("op")

    async def run() -> None:
        given: dict[str, Any] = {"store": store, "hooks": [RULES]}
        first = await exec_agent(CLERK, PROMPT, operation_id=its, tenant_id=tenant_id, user_id="maria", **given)
        assert first.reason == "waiting_for_human", first.error
        await store.decide(its, Approve("c4"), by="cli:ann")
        assert (await resume_agent(CLERK, its, [Approve("c4")], **given)).reason == "done"
        async with store.writing() as connection:
            await connection.execute(
                sql("UPDATE operations SET trace_id = :trace WHERE operation_id = :its"),
                {"trace": "ab" * 16, "its": its},
            )
        await site.server.log.flush()

    done(site, run())
    return its


def test_the_tags_of_an_operation_lead_to_all_that_have_them(page: Page, paged: Site, tenant: str) -> None:
    async def run() -> list[str]:
        its = [new_id("op") for _ in range(3)]
        for operation_id, tags in zip(its, (["vip", "<b>eu</b> & co"], ["vip"], []), strict=True):
            agent = Agent(id="clerk", model=ScriptedModel(["Done."]))
            given: dict[str, Any] = {"operation_id": operation_id, "tenant_id": tenant, "tags": tags}
            await exec_agent(agent, f"Task {operation_id}", store=paged.server.store, **given)
        return its

    first, second, third = done(paged, run())
    page.goto(f"operations/{first}")
    page.get_by_role("link", name="vip", exact=True).click()

    expect(page.get_by_role("link", name=f"Task {first}")).to_be_visible()
    expect(page.get_by_role("link", name=f"Task {second}")).to_be_visible()
    expect(page.get_by_role("link", name=f"Task {third}")).to_have_count(0)
    expect(page.get_by_label("Tag", exact=True)).to_have_value("vip")
    page.get_by_label("Tags", exact=True).check()
    expect(page.locator("td[data-label=tags]").last).to_have_text("vip, <b>eu</b> & co")
    page.get_by_label("Tag", exact=True).fill("<b>eu</b> & co")
    page.get_by_label("Tag", exact=True).press("Enter")
    expect(page.get_by_role("link", name=f"Task {second}")).to_have_count(0)
    expect(page.get_by_role("link", name=f"Task {first}")).to_be_visible()


def test_why_a_call_was_denied_and_who_approved_another_is_said_beside_it(page: Page, paged: Site, tenant: str) -> None:
    page.goto(f"operations/{clerked(paged, tenant)}")

    expect(page.locator(".said.is-user")).to_contain_text(PROMPT.strip())
    expect(page.get_by_role("article", name="Tool delete_customer")).to_contain_text(
        "Denied by rules.privacy: Customers are never deleted."
    )
    found = page.get_by_role("article", name="Tool find_order").first
    expect(found).to_contain_text("8812")
    expect(found.locator("dl").first).to_contain_text("fulltrue")
    found.get_by_text("A hook changed the arguments").click()
    expect(found.locator(".changed dl")).to_contain_text("fullfalse")
    expect(found.get_by_role("region", name="Result of find_order")).to_contain_text('"total": 129.5')
    asked = page.get_by_role("article", name="Tool refund").first
    expect(asked).to_contain_text("approved by ann on the command line")
    expect(page.get_by_role("article", name="Tool refund").last).to_contain_text("refunded 8812")
    step = page.get_by_role("region", name="Step 1", exact=True)
    expect(step.locator(".model")).to_contain_text("1,200 → 80 tokens · $0.02")
    expect(page.get_by_role("link", name="ab" * 16)).to_have_attribute(
        "href", f"https://traces.example.com/{'ab' * 16}"
    )
    page.locator(".troubles").get_by_role("link", name="delete_customer").press("Enter")
    expect(page.locator("article:target")).to_contain_text("Denied by rules.privacy")
    agent = page.get_by_role("article", name="Sub-agent writer")
    agent.locator(".child > summary").press("Enter")
    expect(agent.get_by_role("article", name="Tool find_order")).to_be_visible()
    expect(agent.get_by_text("I look.")).to_be_visible()
    page.get_by_text("Events", exact=True).click()
    expect(page.locator(".events tbody tr").first).to_contain_text(re.compile(r"\d\d:\d\d:\d\d.*\.\d{3}"))


def test_what_hooks_let_pass_is_counted_and_named_behind_it(page: Page, paged: Site, tenant: str) -> None:
    page.goto(f"operations/{clerked(paged, tenant)}")
    found = page.get_by_role("article", name="Tool find_order").first
    quiet = found.locator(".quiet")

    expect(quiet.locator("summary")).to_contain_text("1 hook let it pass")
    expect(quiet.get_by_text("rules.full")).to_be_hidden()
    quiet.locator("summary").press("Enter")
    expect(quiet.get_by_text("rules.full")).to_be_visible()
    expect(page.get_by_role("article", name="Tool delete_customer").locator(".quiet")).to_have_count(0)


def test_a_hook_that_asked_a_person_is_named_and_not_said_to_deny(page: Page, paged: Site, tenant: str) -> None:
    asking = Hooks("asking")
    asking.guard(ToolCall, id="asks-first", tool="*free")(lambda call: Ask("Give it away?"))
    model = by_turn(ask(("free", {}, "f1"), said="I give."), ModelResponse(content="x"))
    agent = Agent(id="giver", model=model, tools=[free])
    store = paged.server.store
    ran = done(paged, exec_agent(agent, "Give", store=store, tenant_id=tenant, hooks=[asking]))
    assert ran.reason == "waiting_for_human"
    done(paged, paged.server.log.flush())

    page.goto(f"operations/{ran.operation_id}")
    call = page.get_by_role("article", name="Tool free")
    expect(call.locator(".asks")).to_contain_text("asks-first asked: Give it away?")
    expect(call).not_to_contain_text("denied")
    expect(page.get_by_role("article", name="Waiting:")).to_contain_text("Hook asks-first asks: Give it away?")
    expect(page.get_by_role("article", name="Waiting:").get_by_role("link")).to_have_count(0)
    page.get_by_role("link", name="Executions of hooks").click()
    rows = page.locator("tr[data-row]")
    expect(rows.filter(has_text="asks-first: Give it away?").locator(".state")).to_have_text("asked")
    expect(page.locator("td.state", has_text="denied")).to_have_count(0)


def test_what_a_shadow_hook_would_have_done_is_said_beside_what_was_done(page: Page, paged: Site, tenant: str) -> None:
    shadow = Hooks("shadow", shadow=True)
    shadow.guard(ToolCall, id="no-gifts")(lambda call: Deny("Nothing is free."))
    shadow.before(ToolCall, id="looks")(lambda call: None)
    model = by_turn(ask(("free", {}, "f1"), said="I give."), ModelResponse(content="x"))
    agent = Agent(id="giver", model=model, tools=[free])
    store = paged.server.store
    ran = done(paged, exec_agent(agent, "Give", store=store, tenant_id=tenant, hooks=[shadow]))
    assert ran.reason == "done"
    done(paged, paged.server.log.flush())

    page.goto(f"operations/{ran.operation_id}")
    call = page.get_by_role("article", name="Tool free")
    expect(call).to_contain_text("no-gifts would have denied it: Nothing is free.")
    expect(call.locator(".quiet summary")).to_contain_text("1 hook let it pass")
    expect(page.locator(".troubles")).to_have_count(0)
    page.get_by_role("link", name="Executions of hooks").click()
    row = page.locator("tr[data-row]").filter(has_text="no-gifts")
    expect(row.locator("td.state").first).to_have_text("shadow")
    row.locator("summary").click()
    expect(row).to_contain_text("would have denied it: Nothing is free.")


def test_an_operation_is_interrupted_from_the_page_within_a_second(page: Page, paged: Site, tenant: str) -> None:
    its, store = new_id("op"), paged.server.store
    run = asyncio.run_coroutine_threadsafe(
        exec_agent(WAITER, "Wait", store=store, tenant_id=tenant, operation_id=its), paged.loop
    )
    until(lambda: (state := done(paged, store.load(its))) is not None and state.begun)
    page.goto(f"operations/{its}")
    expect(page.get_by_text("I wait.")).to_be_visible()
    expect(page.get_by_role("article", name="Tool wait")).to_contain_text("running")

    page.locator("summary", has_text="Interrupt").press("Enter")
    page.get_by_role("button", name="Interrupt the operation").press("Enter")
    assert run.result(20).reason == "interrupted"

    text(page, "#facts").to_contain_text("Interruption asked for by you, a test (API key")
    text(page, "#facts .badge").to_have_text("interrupted")
    page.reload()
    page.locator("summary", has_text="Retry").click()
    page.get_by_role("button", name="Start a new operation").click()
    page.wait_for_url(re.compile(r"operations/op_[0-9a-f]{32}\?notice=retry"))
    new = re.findall(r"op_[0-9a-f]{32}", page.url)[0]
    until(lambda: status_of(paged, new) == "running")
    page.get_by_role("link", name=its).click()
    text(page, "#facts").to_contain_text(f"Retried by {new}")
    done(paged, store.request_interrupt(new))
    until(lambda: status_of(paged, new) == "interrupted")


def test_a_form_of_a_retry_that_is_sent_twice_starts_one_operation(paged: Site, tenant: str) -> None:
    store = paged.server.store
    state = OperationState(operation_id=(its := new_id("op")), agent_id="waiter", tenant_id=tenant, status="done")
    state = msgspec.structs.replace(state, messages=[Message(role="user", content="Wait")])
    done(paged, store.commit(state, expected_version=None, entries=()))
    secret = done(paged, key(store, tenant))
    with visitor(paged, secret) as person:
        shown = person.get(f"/operations/{its}").text
        form = {"token": token_in(shown), "key": re.findall(r'name="key" value="(\w+)"', shown)[0]}
        places = {person.post(f"/operations/{its}/retry", data=form).headers["location"] for _ in range(2)}
        late = person.post(f"/operations/{its}/interrupt", data=form)
    assert len(places) == 1
    assert (late.status_code, "is done already, so there is nothing to interrupt" in late.text) == (409, True)
    new = re.findall(r"op_[0-9a-f]{32}", places.pop())[0]
    done(paged, store.request_interrupt(new))
    until(lambda: status_of(paged, new) == "interrupted")


def test_an_operation_that_no_worker_can_end_says_that_its_interruption_was_asked_for(paged: Site) -> None:
    store = paged.server.store
    its = done(paged, operation(store, "acme"))
    with visitor(paged, done(paged, key(store))) as person:
        token = token_in(person.get(f"/operations/{its}").text)
        assert person.post(f"/operations/{its}/interrupt", data={"token": token}).status_code == 303
        shown = person.get(f"/operations/{its}").text
    with visitor(paged, done(paged, key(store, "globex"))) as stranger:
        token = {"token": token_in(stranger.get("/operations").text)}
        views = [
            stranger.get(f"/operations/{its}{view}") for view in ("", "/steps", "/messages", "/messages/1", "/events/1")
        ]
        acts = [stranger.post(f"/operations/{its}/{act}", data=token) for act in ("interrupt", "retry")]
    with visitor(paged, done(paged, key(store, "acme", ["operations:read"]))) as reader:
        token = {"token": token_in(reader.get("/operations").text)}
        limited = reader.get(f"/operations/{its}").text
        denied = [reader.post(f"/operations/{its}/{act}", data=token).status_code for act in ("interrupt", "retry")]
    assert "Interruption asked for by you, a test (API key" in shown
    assert "this server does not have the agent" in shown
    assert {answer.status_code for answer in (*views, *acts)} == {404}
    assert denied == [403, 403]
    assert "/interrupt" not in limited


def test_hostile_texts_are_shown_as_they_are_in_every_place(browser: Browser, paged: Site, tenant: str) -> None:
    evil = ask((EVIL, {EVIL: {"deep": [EVIL]}}, "e1"), said=EVIL)
    agent = Agent(id=EVIL, model=by_turn(evil, ModelResponse(content=EVIL)), instructions=EVIL)
    ran = done(paged, exec_agent(agent, EVIL, store=paged.server.store, tenant_id=tenant, user_id=EVIL))
    context = look(browser, paged, done(paged, key(paged.server.store, tenant)))
    seen = context.new_page()
    for place in ("", "/messages"):
        seen.goto(f"operations/{ran.operation_id}{place}")
        shown = seen.locator("main").inner_text()
        assert shown.count(SHOWN) >= 3
        expect(seen.locator("hook-waterfall [role=row]")).to_have_count(4 if not place else 0)
        assert "\u202e" not in seen.locator("main").inner_html()
        assert seen.title() != "owned"
    context.close()


async def seed(store: SqlStore, its: str, *, steps: int, size: int = 20) -> None:
    """An operation of many steps, each with a call of a tool: four events, or eight."""
    told: list[Any] = []
    for step in range(steps):
        call: dict[str, Any] = {"toolset": "bank", "tool_name": "look", "args": {"nth": step}, "call_index": step + 1}
        call |= {"operation_id": its, "step_index": step, "tool_call_id": f"c{step}"}
        request = ToolRequest("look", {"nth": step}, toolset="bank", tool_call_id=f"c{step}")
        told += [
            BeforeStep(operation_id=its, step_index=step),
            BeforeToolCall(**call),
            AfterToolCall(**call, content="x" * size, success=True),
            AfterStep(
                operation_id=its,
                step_index=step,
                step_type="call_tool",
                content=f"turn {step}",
                reasoning="",
                tools_calling=[request],
                tools_result=[],
                should_continue=True,
                execution_time_ms=1.0,
                elapsed_ms=1.0,
                step_cost_usd=0.0,
                total_cost_usd=0.0,
                total_input_tokens=0,
                total_output_tokens=0,
                total_steps=1,
                total_tool_calls=1,
            ),
        ]
    entries = [
        JournalEntry(number=nth, type=event.hook_type, time_unix_nano=10**18 + nth, wire=encode(event))
        for nth, event in enumerate(told, 1)
    ]
    state = OperationState(
        operation_id=its, agent_id="agent", tenant_id="acme", status="done", events=len(entries), steps=steps
    )
    await store.commit(state, expected_version=None, entries=entries)


def test_of_ten_thousand_events_a_page_shows_whole_steps_and_leads_to_the_rest(paged: Site) -> None:
    store, long = paged.server.store, new_id("op")
    done(paged, seed(store, long, steps=2500))
    with visitor(paged, done(paged, key(store))) as person:
        first = person.get(f"/operations/{long}").text
        after = re.findall(r"\?after=(\d+)", first)[0]
        second = person.get(f"/operations/{long}", params={"after": after}).text
        latest = person.get(f"/operations/{long}", params={"after": "latest"}).text

    assert "turn 0<" in first
    assert 'id="step-50"' in first
    assert 'id="step-51"' not in first
    assert 'id="step-51"' in second
    assert "turn 2499<" in latest
    assert 'id="step-2440"' not in latest


def test_what_is_huge_is_cut_and_is_whole_one_click_away(paged: Site) -> None:
    store, its = paged.server.store, new_id("op")
    done(paged, seed(store, its, steps=1, size=3_000_000))
    said = Message(role="user", content='"\\' * 100_000 + "end")
    huge = OperationState(operation_id=(talk := new_id("op")), agent_id="a", tenant_id="acme", messages=[said])
    done(paged, store.commit(huge, expected_version=None, entries=()))
    with visitor(paged, done(paged, key(store))) as person:
        shown = person.get(f"/operations/{its}").text
        event = person.get(f"/operations/{its}/events/3")
        talked = person.get(f"/operations/{talk}").text
        message = person.get(f"/operations/{talk}/messages/1")
        gone = [person.get(f"/operations/{its}/{place}").status_code for place in ("events/99", "messages/1")]

    assert len(shown) < 60_000
    assert "The result has 3,000," in shown
    assert ">ended</span>" in shown
    assert ">running</span>" not in shown
    assert event.text.count("x") > 3_000_000
    assert event.headers["content-type"].startswith("text/plain")
    assert len(talked) < 60_000
    assert message.text == said.content
    assert gone == [404, 404]


def test_what_is_missing_is_said(paged: Site) -> None:
    store = paged.server.store
    newer, only = new_id("op"), new_id("op")
    done(paged, seed(store, newer, steps=2))

    async def break_it() -> None:
        async with store.writing() as connection:
            await connection.execute(sql("UPDATE operations SET format = 99 WHERE operation_id = :its"), {"its": newer})
            event = BeforeStep(operation_id=only, step_index=0)
            row = {"operation_id": only, "number": 1, "tenant_id": "acme", "type": "beforeStep", "time_unix_nano": 1}
            await connection.execute(events.insert().values(**row, wire=encode(event), day=0))

    done(paged, break_it())
    with visitor(paged, done(paged, key(store))) as person:
        shown = person.get(f"/operations/{newer}").text
        messages = person.get(f"/operations/{newer}/messages")
        log = person.get(f"/operations/{only}").text
    with visitor(paged, done(paged, key(store, "globex"))) as stranger:
        foreign = stranger.get(f"/operations/{only}")
    assert "The state of this operation cannot be read" in shown
    assert "turn 1<" in shown
    assert messages.status_code == 409
    assert "Only the events of this operation are stored here" in log
    assert "Step 1<" in log
    assert foreign.status_code == 404


def test_a_compaction_hides_nothing_that_the_events_know(paged: Site, tenant: str) -> None:
    async def summarize(messages: list[Any]) -> str:
        return "They talked."

    answers = [ask(("find_order", {"order": nth, "full": True}, f"c{nth}"), said=f"turn {nth}.") for nth in range(4)]
    agent = Agent(
        id="long",
        model=ScriptedModel([*answers, ModelResponse(content="end")]),
        tools=[find_order],
        compaction=Compaction(max_tokens=100, keep_last=1, summarize=summarize),
    )
    ran = done(paged, exec_agent(agent, PROMPT, store=paged.server.store, tenant_id=tenant))
    with visitor(paged, done(paged, key(paged.server.store, tenant))) as person:
        shown = person.get(f"/operations/{ran.operation_id}").text
        now = person.get(f"/operations/{ran.operation_id}/messages").text
    assert "Older messages were compacted" in shown
    assert PROMPT.strip() in shown
    assert all(f"turn {nth}." in shown for nth in range(4))
    assert "turn 0." not in now
    assert "They talked." in now
