"""An operation whose hooks the server does not have waits for them, and everybody who looks is told so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from hookline import Agent, Approve, Hooks, ModelResponse, ScriptedModel, ToolCall, ToolRequest, exec_agent, tool
from hookline.registry import Registry
from hookline.server.routes._health import HOOKS_PROBLEM
from hookline.store import SqlStore
from tests.server.site import Site, key
from tests.server.test_serving import visitor

pytestmark = pytest.mark.anyio

MISSING = ["rules.<b>no_wire</b>"]


def payer() -> Agent:
    @tool(in_thread=False, needs_approval=True)
    async def pay() -> str:
        return "paid"

    def says(call: Any) -> ModelResponse:
        if call.messages[-1].role == "tool":
            return ModelResponse(content="done")
        return ModelResponse(tool_calls=[ToolRequest(tool_name="pay", args={}, tool_call_id="p1")])

    return Agent(id="payer", model=ScriptedModel(says), tools=[pay])


def rules() -> Hooks:
    hooks = Hooks("rules")
    hooks.guard(ToolCall, id=MISSING[0])(lambda call: None)
    return hooks


async def decided(url: str, operation_id: str = "op", hooks: Any = None) -> None:
    async with SqlStore(url) as store:
        given = [rules()] if hooks is None else hooks
        await exec_agent(payer(), "go", operation_id=operation_id, store=store, hooks=given, tenant_id="acme")
        await store.decide(operation_id, Approve("p1"))


async def until(look: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    with anyio.fail_after(20):
        while not wanted(found := await look()):
            await anyio.sleep(0.02)
    return found


@pytest.fixture
def url(new_database_url: Callable[[str], str]) -> str:
    return new_database_url("sqlite")


@pytest.fixture
def working(url: str) -> Iterator[Site]:
    with Site(url, agents=[payer()], page=True) as site:
        yield site


async def test_the_api_and_readiness_name_the_hooks_that_an_operation_waits_for(url: str, working: Site) -> None:
    async with working.client() as client:
        assert (await client.get("/ready")).json().get("waitingForHooks") is None
        await decided(url)

        async def read() -> Any:
            return (await client.get("/v1/operations/op")).json()

        found = await until(read, lambda found: found["missingHooks"])
        listed = (await client.get("/v1/operations")).json()["items"]
        ready = await client.get("/ready", headers={"authorization": ""})

    assert (found["missingHooks"], found["status"]) == (MISSING, "waiting_for_human")
    assert listed == [found]
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "degraded",
        "store": True,
        "registry": True,
        "bus": None,
        "waitingForHooks": {"operations": 1, "hooks": MISSING},
        "problems": [HOOKS_PROBLEM],
    }


async def test_another_tenant_sees_nothing_of_it(url: str, working: Site) -> None:
    await decided(url)
    async with SqlStore(url) as store:
        theirs = await key(store, "globex")

    async with working.client(theirs) as client:
        assert (await client.get("/v1/operations/op")).status_code == 404
        assert (await client.get("/v1/operations")).json()["items"] == []


async def test_the_page_shows_it_in_the_list_and_in_the_view_of_the_operation(url: str, working: Site) -> None:
    await decided(url)
    with visitor(working) as client:

        async def listed() -> str:
            return str(client.get("/operations").text)

        text = await until(listed, lambda text: "waiting for hooks" in text)
        one = client.get("/operations/op").text

    assert "rules.&lt;b&gt;no_wire" in text
    assert "Waiting for hooks" in one
    assert "rules.&lt;b&gt;no_wire" in one


async def test_a_server_that_may_miss_hooks_goes_on(url: str) -> None:
    with Site(url, agents=[payer()], allow_missing_hooks=True) as site:
        await decided(url)
        async with site.client() as client:

            async def read() -> Any:
                return (await client.get("/v1/operations/op")).json()

            found = await until(read, lambda found: found["status"] == "done")
            ready = (await client.get("/ready")).json()

    assert (found["missingHooks"], ready["status"]) == ([], "ok")


async def test_hooks_of_stored_definitions_are_those_in_force_and_are_not_waited_for(url: str, working: Site) -> None:
    async with SqlStore(url) as store, Registry(store) as registry:
        made = await registry.create(
            {"name": "a", "point": "ToolCall.guard", "handler": "deny", "tool": "*/no", "config": {"reason": "no"}}
        )
        await decided(url, hooks=registry.hooks("acme"))
        assert registry.hooks("acme")
        await registry.delete(made.id)

        async def status() -> Any:
            return await store.operation("op")

        await until(status, lambda found: found.status == "done")
