"""Operations are interrupted and retried over HTTP: by whom, which ones, how often, and under which hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic

import anyio
import httpx
import pytest

from hookline import Agent, Message, ModelResponse, ScriptedModel, ToolCall, ToolRequest, Usage, exec_agent, tool
from hookline.calls import ModelCall
from hookline.errors import HookUsageError
from hookline.hooks import Hooks
from hookline.runtime import Compaction, OperationState, find_prompt
from hookline.runtime._state import Steering
from hookline.server import Server
from hookline.server._parts import check_trace_url
from hookline.store import StoredOperation
from tests.server.site import Site, key, new_id, operation
from tests.server.test_page_guards import done

pytestmark = pytest.mark.anyio


def answer(call: ModelCall) -> ModelResponse:
    """Say how long the prompt was."""
    said = next(message.content for message in call.messages if message.role == "user")
    return ModelResponse(content=f"{len(said)} characters", usage=Usage(input_tokens=10, output_tokens=2))


@tool(in_thread=False)
async def wait() -> str:
    """Wait for ever."""
    await anyio.sleep_forever()
    return ""


CALLEE = Agent(id="callee", model=ScriptedModel([ModelResponse(content="heard")]))
AGENT = Agent(id="counter", model=ScriptedModel(answer), instructions="Count.", sub_agents=[CALLEE])
WAITER = Agent(
    id="waiter",
    model=ScriptedModel([ModelResponse(tool_calls=[ToolRequest("wait")]), ModelResponse(content="done")]),
    tools=[wait],
)


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(f"sqlite:///{tmp_path_factory.mktemp('acting')}/acting.db", agents=[AGENT, WAITER]) as site:
        yield site


def ran(site: Site, prompt: str, tenant_id: str, **given: object) -> str:
    """An operation of the agent that is done."""
    work = exec_agent(AGENT, prompt, store=site.server.store, tenant_id=tenant_id, user_id="maria", **given)  # type: ignore[arg-type]
    result = done(site, work)
    assert result.reason == "done"
    return result.operation_id


def ended(site: Site, operation_id: str, status: str) -> StoredOperation:
    """An operation, once it has a status."""
    until = monotonic() + 20
    while True:
        found = done(site, site.server.store.operation(operation_id))
        if found is not None and found.status == status:
            return found
        assert monotonic() < until, found


async def refused(client: httpx.AsyncClient, place: str) -> tuple[int, str]:
    response = await client.post(place)
    return response.status_code, response.json()["detail"]


async def test_a_retry_has_the_whole_prompt_and_names_what_it_retries(acting: Site) -> None:
    tenant, prompt = new_id("tenant"), "word " * 200
    its = ran(acting, prompt, tenant, tags=["vip"])
    secret = done(acting, key(acting.server.store, tenant))
    async with acting.client(secret) as client:
        first = await client.post(f"/v1/operations/{its}/retry", headers={"Idempotency-Key": "once"})
        again = await client.post(f"/v1/operations/{its}/retry", headers={"Idempotency-Key": "once"})
        new = ended(acting, first.json()["operationId"], "done")
        read = (await client.get(f"/v1/operations/{new.operation_id}")).json()

    assert (first.status_code, again.json()) == (201, first.json())
    assert (new.agent_id, new.tenant_id, new.user_id, new.retry_of) == ("counter", tenant, "maria", its)
    state = done(acting, acting.server.store.load(new.operation_id))
    assert state is not None
    assert [message.content for message in state.messages] == ["Count.", prompt, f"{len(prompt)} characters"]
    assert (read["retryOf"], read["tags"]) == (its, ["vip"])
    async with acting.client() as admin:
        entries = (await admin.get("/v1/audit", params={"tenantId": tenant, "limit": 1})).json()["items"]
    assert (entries[0]["action"], entries[0]["detail"]) == ("operation.retry", {"operationId": new.operation_id})


async def test_what_cannot_be_retried_is_refused_with_the_reason(acting: Site) -> None:
    store, tenant = acting.server.store, new_id("tenant")
    running = done(acting, operation(store, tenant, status="running", pending=[]))
    strange = done(acting, operation(store, tenant, status="done", pending=[]))
    parent = ran(acting, "Hi", tenant)
    child = done(acting, operation(store, tenant, status="done", pending=[], parent_operation_id=parent))
    foreign = done(acting, operation(store, tenant, status="done", pending=[], agent_id="counter", framework="Loops"))
    async with acting.client(done(acting, key(store, tenant))) as client:
        told = {
            name: await refused(client, f"/v1/operations/{name}/retry") for name in (running, strange, child, foreign)
        }
    assert {status for status, _ in told.values()} == {409}
    assert "Interrupt it first" in told[running][1]
    assert "does not have its agent" in told[strange][1]
    assert "sub-agent" in told[child][1]
    assert "Loops ran it" in told[foreign][1]


async def test_a_retry_never_runs_without_the_hooks_of_what_it_retries(acting: Site) -> None:
    guarded = Hooks("rules")
    guarded.guard(ToolCall, id="rules.look")(lambda call: None)
    its = ran(acting, "Hi", "acme", hooks=[guarded])
    async with acting.client() as client:
        new = (await client.post(f"/v1/operations/{its}/retry")).json()["operationId"]
        until = monotonic() + 20
        while not (found := (await client.get(f"/v1/operations/{new}")).json())["missingHooks"]:
            assert monotonic() < until
    assert (found["missingHooks"], found["steps"], found["status"]) == (["rules.look"], 0, "running")


async def test_an_interrupt_stops_the_run_of_the_server_and_an_ended_one_says_so(acting: Site) -> None:
    tenant, store = new_id("tenant"), acting.server.store
    run = asyncio.run_coroutine_threadsafe(
        exec_agent(WAITER, "Wait", store=store, tenant_id=tenant, operation_id=(its := new_id("op"))), acting.loop
    )
    until = monotonic() + 20
    while (state := done(acting, store.load(its))) is None or not state.begun:
        assert monotonic() < until
    async with acting.client(done(acting, key(store, tenant))) as client:
        first = await client.post(f"/v1/operations/{its}/interrupt")
        result = await asyncio.to_thread(run.result, 20)
        ended(acting, its, "interrupted")
        late = await refused(client, f"/v1/operations/{its}/interrupt")

    assert first.status_code == 200
    assert first.json()["interruptAskedBy"].startswith("key:")
    assert result.reason == "interrupted"
    assert late == (409, "The operation was interrupted already, so there is nothing to interrupt.")


@pytest.mark.parametrize("action", ["interrupt", "retry"])
async def test_another_tenant_and_a_key_without_the_scope_change_nothing(acting: Site, action: str) -> None:
    store = acting.server.store
    its = done(acting, operation(store, "acme", agent_id="counter"))
    globex = done(acting, key(store, "globex"))
    reader = done(acting, key(store, "acme", ["operations:read", "approvals:decide", "hooks:manage"]))
    place = f"/v1/operations/{its}/{action}"
    async with acting.client(globex) as theirs, acting.client(reader) as limited:
        statuses = [(await client.post(place)).status_code for client in (theirs, limited)]
    assert statuses == [404, 403]
    found = done(acting, store.operation(its))
    assert found is not None
    assert found.interrupt_asked_at is None


def test_the_prompt_of_a_compacted_conversation_is_known_if_it_was_one_message() -> None:
    calls = [ModelResponse(content=str(nth), tool_calls=[ToolRequest("wait", {})]) for nth in range(3)]

    @tool(in_thread=False, name="wait")
    async def quick() -> str:
        return "word " * 50

    async def summarize(messages: list[Message]) -> str:
        return "short"

    def conversation(prompt: str | list[Message]) -> OperationState:
        agent = Agent(
            id="a",
            model=ScriptedModel([*calls, ModelResponse(content="end")]),
            tools=[quick],
            compaction=Compaction(max_tokens=1, keep_last=1, summarize=summarize),
        )
        result = asyncio.run(exec_agent(agent, prompt))
        steering = Steering(said_from=len(prompt))
        return OperationState(operation_id="op", agent_id="a", messages=result.messages, steering=steering)

    one = [Message(role="user", content="Hello")]
    history = [Message(role="user", content="Hi"), Message(role="assistant", content="Yes?"), *one]
    assert find_prompt(conversation(one), "Hello") == one
    assert find_prompt(conversation(history), "Hello") is None


def test_a_template_of_traces_that_is_none_is_refused(new_database_url: Callable[[str], str]) -> None:
    bad = ("", "traces/{trace_id}", "ftp://a/{trace_id}", "https://a/trace", "https://{trace_id}/x")
    for each in (*bad, "javascript:{trace_id}", "https://a/{trace_id}\n", "https://[/{trace_id}", 7):
        with pytest.raises(HookUsageError, match="trace_url"):
            check_trace_url(each)  # type: ignore[arg-type]
    with pytest.raises(HookUsageError, match="trace_url"):
        Server(new_database_url("sqlite"), trace_url="https://a/trace")
    assert check_trace_url("https://a.example/t?id={trace_id}") == "https://a.example/t?id={trace_id}"
