from __future__ import annotations

import asyncio

import pytest

from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, Usage, exec_agent, tool
from hookline.events import HookType
from hookline.store import EventLog, SqlStore, Worker
from hookline.store._deliveries import build_delivery_rows, insert_deliveries
from hookline.webhooks import Envelope, HookData, Webhook
from tests.server.site import Site, delivery, endpoint, key, new_id, on_lasting_site, operation
from tests.server.test_hooks import problem

pytestmark = pytest.mark.anyio


def banker(paid: list[int]) -> Agent:
    """Pays 3 when a person lets it."""

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    call = ToolRequest(tool_name="pay", args={"amount": 3}, tool_call_id="call")
    model = ScriptedModel([ModelResponse(tool_calls=[call]), ModelResponse(content="done")])
    return Agent(id="banker", model=model, tools=[pay])


@on_lasting_site
async def test_operations_are_listed_newest_first_by_status_and_part(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    ids = [await operation(store, tenant, status="done", pending=[]) for _ in range(5)]
    waiting = await operation(store, tenant)

    async with site.client(await key(store, tenant)) as client:
        found, address = [], "/v1/operations?limit=2"
        while address:
            answer = await client.get(address)
            found += [each["operationId"] for each in answer.json()["items"]]
            address = answer.links.get("next", {}).get("url", "")
        those = (await client.get("/v1/operations?status=waiting_for_human")).json()["items"]
        one = await client.get(f"/v1/operations/{waiting}")

    assert found == [waiting, *reversed(ids)]
    assert [each["operationId"] for each in those] == [waiting]
    assert one.json() == those[0]


@on_lasting_site
async def test_operations_are_listed_by_tag(site: Site, store: SqlStore) -> None:
    tag = new_id("tag")
    tagged = [await operation(store, "acme", tags=["other", tag]) for _ in range(3)]
    await operation(store, "acme", tags=["other"])
    await operation(store, "globex", tags=[tag])

    async with site.client(await key(store)) as client:
        first = await client.get("/v1/operations", params={"tag": tag, "limit": 2})
        rest = await client.get(first.links["next"]["url"])
        none = await client.get("/v1/operations", params={"tag": f"{tag}x"})

    assert [each["operationId"] for each in (*first.json()["items"], *rest.json()["items"])] == tagged[::-1]
    assert first.json()["items"][0]["tags"] == ["other", tag]
    assert none.json()["items"] == []


@on_lasting_site
async def test_events_are_read_in_order_from_a_number_on(site: Site, store: SqlStore) -> None:
    id = await operation(store)  # noqa: A001

    async with site.client() as client:
        first = await client.get(f"/v1/operations/{id}/events?limit=2")
        rest = await client.get(first.links["next"]["url"])

    assert [each["number"] for each in first.json()["items"]] == [1, 2]
    assert first.json()["cursor"] == 2
    assert (rest.json()["items"][0]["event"]["stepIndex"], rest.json()["cursor"]) == (3, None)


@on_lasting_site
async def test_model_calls_are_listed_with_what_they_cost(site: Site, store: SqlStore) -> None:
    asked = ModelResponse(content="hi", usage=Usage(input_tokens=7, output_tokens=2, cost_usd=0.25))
    agent = Agent(id="a", model=ScriptedModel([asked], name="small"))
    result = await exec_agent(agent, "hello", store=store, tenant_id="acme")

    async with site.client(await key(store, "acme")) as acme:
        [found] = (await acme.get(f"/v1/operations/{result.operation_id}/model-calls")).json()
        shown = (await acme.get(f"/v1/operations/{result.operation_id}")).json()

    assert (found["provider"], found["model"], found["stepIndex"]) == ("hookline", "small", 0)
    assert (found["inputTokens"], found["outputTokens"], found["costUsd"], found["errorType"]) == (7, 2, 0.25, None)
    assert 0 < found["durationMs"] <= shown["durationMs"]
    assert shown["prompt"] == "hello"


@on_lasting_site
async def test_events_of_a_run_whose_state_is_kept_nowhere_can_be_read(site: Site, store: SqlStore) -> None:
    log = EventLog(store)
    result = await exec_agent(
        Agent(id="a", model=ScriptedModel([ModelResponse(content="hi")])), "hello", hooks=[log], tenant_id="acme"
    )
    await log.flush()

    async with site.client(await key(store, "acme")) as acme, site.client(await key(store, "globex")) as globex:
        found = await acme.get(f"/v1/operations/{result.operation_id}/events")
        other = await globex.get(f"/v1/operations/{result.operation_id}/events")

    assert [each["number"] for each in found.json()["items"]] == list(range(1, len(found.json()["items"]) + 1))
    assert found.json()["items"][-1]["type"] == "onComplete"
    problem(other, 404, "not_found")


async def test_a_person_lets_a_call_run(site: Site, store: SqlStore) -> None:
    paid: list[int] = []
    agent = banker(paid)
    waiting = await exec_agent(agent, "pay", store=store, tenant_id="acme")

    async with site.client(await key(store)) as client, Worker(store, [agent], poll_seconds=0.02):
        pending = (await client.get("/v1/approvals")).json()["items"]
        body = {"toolCallId": pending[0]["toolCallId"], "decision": "approve"}
        decided = await client.post(f"/v1/operations/{pending[0]['operationId']}/decisions", json=body)
        async with asyncio.timeout(10):
            while (await client.get(f"/v1/operations/{waiting.operation_id}")).json()["status"] != "done":
                await asyncio.sleep(0.01)
        left = (await client.get("/v1/approvals")).json()["items"]

    assert (pending[0]["apiName"], pending[0]["args"]) == ("pay", {"amount": 3})
    assert (decided.status_code, decided.json()["pending"]) == (200, [])
    assert (paid, left) == ([3], [])


@on_lasting_site
async def test_a_person_refuses_a_call_and_says_why(site: Site, store: SqlStore) -> None:
    paid: list[int] = []
    agent = banker(paid)
    waiting = await exec_agent(agent, "pay", store=store, tenant_id="acme")

    async with site.client() as client, Worker(store, [agent], poll_seconds=0.02):
        body = {"toolCallId": "call", "decision": "rejectAndContinue", "reason": "too much"}
        await client.post(f"/v1/operations/{waiting.operation_id}/decisions", json=body)
        async with asyncio.timeout(10):
            while (await client.get(f"/v1/operations/{waiting.operation_id}")).json()["status"] != "done":
                await asyncio.sleep(0.01)
    state = await store.load(waiting.operation_id)

    assert paid == []
    assert state is not None
    assert "too much" in str(state.messages)


@on_lasting_site
async def test_of_two_people_one_decides(site: Site, store: SqlStore) -> None:
    id = await operation(store)  # noqa: A001

    async with site.client() as client:
        bodies = [{"toolCallId": "call", "decision": decision} for decision in ("approve", "reject") * 5]
        answers = await asyncio.gather(*(client.post(f"/v1/operations/{id}/decisions", json=body) for body in bodies))

    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 9
    problem(next(answer for answer in answers if answer.status_code == 409), 409, "not_pending")


@on_lasting_site
async def test_who_decided_is_listed_with_the_operation(site: Site, store: SqlStore) -> None:
    id = await operation(store)  # noqa: A001
    token = await key(store)

    async with site.client(token) as ann, site.client() as admin, site.client(await key(store, "globex")) as stranger:
        [waiting] = (await ann.get(f"/v1/operations/{id}/approvals")).json()
        body = {"toolCallId": "call", "decision": "reject", "reason": "too much", "seen": waiting["seen"]}
        stale = await ann.post(f"/v1/operations/{id}/decisions", json=body | {"seen": "1.0"})
        none = (await ann.get(f"/v1/operations/{id}/decisions")).json()
        decided = await ann.post(f"/v1/operations/{id}/decisions", json=body)
        later = await admin.post(f"/v1/operations/{id}/decisions", json=body)
        [made] = (await ann.get(f"/v1/operations/{id}/decisions")).json()
        other = await stranger.get(f"/v1/operations/{id}/decisions")

    who = f"key:{token.split('_')[1]}"
    assert "has changed since" in problem(stale, 409, "not_pending")["detail"]
    assert none == []
    assert decided.json()["decidedBy"] == who
    assert f"rejected and stopped by {who}" in problem(later, 409, "not_pending")["detail"]
    problem(other, 404, "not_found")
    assert (made["decision"], made["reason"], made["args"]) == ("reject", "too much", {"amount": 3})
    assert (made["decidedBy"], made["decidedByName"], made["eventNumber"]) == (who, "a test", None)


@on_lasting_site
async def test_a_decision_needs_a_call_that_waits(site: Site, store: SqlStore) -> None:
    done = await operation(store, status="done", pending=[])
    waiting = await operation(store)

    async with site.client() as client:
        body = {"toolCallId": "other", "decision": "approve"}
        unknown = await client.post(f"/v1/operations/{waiting}/decisions", json=body)
        over = await client.post(f"/v1/operations/{done}/decisions", json=body)
        nowhere = await client.post("/v1/operations/nix/decisions", json=body)
        maybe = await client.post(f"/v1/operations/{waiting}/decisions", json=body | {"decision": "maybe"})

    problem(unknown, 409, "not_pending")
    problem(over, 409, "not_waiting")
    problem(nowhere, 404, "not_found")
    assert problem(maybe, 422, "invalid")["errors"][0]["pointer"] == "#/decision"


@on_lasting_site
async def test_deliveries_are_listed_by_what_became_of_them(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    ids = {status: await delivery(store, tenant, status) for status in ("dead", "delivered", "pending")}

    async with site.client(await key(store, tenant)) as client:
        dead = (await client.get("/v1/deliveries?status=dead")).json()["items"]
        everything = (await client.get("/v1/deliveries")).json()["items"]
        of_hook = (await client.get("/v1/deliveries?hookId=nobody")).json()["items"]
        one = (await client.get(f"/v1/deliveries/{ids['dead']}")).json()

    assert [each["id"] for each in dead] == [ids["dead"]]
    assert [each["id"] for each in everything] == list(reversed(ids.values()))
    assert of_hook == []
    assert (one["payload"], one["tries"], one["lastError"]) == ({"a": 1}, [], "http_error: 500")


@on_lasting_site
async def test_what_was_given_up_is_tried_again_at_once(site: Site, store: SqlStore) -> None:
    # No key signs here, so that each attempt fails: which is an attempt all the same.
    id = await delivery(store, "acme", "dead")  # noqa: A001
    done = await delivery(store, "acme", "delivered")

    async with site.client() as client:
        retried = await client.post(f"/v1/deliveries/{id}/retry")
        async with asyncio.timeout(10):
            while not (await client.get(f"/v1/deliveries/{id}")).json()["tries"]:
                await asyncio.sleep(0.01)
        over = await client.post(f"/v1/deliveries/{done}/retry")

    assert retried.json() == {"count": 1}
    problem(over, 409, "not_retryable")


@on_lasting_site
async def test_many_deliveries_are_made_again(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    async with store.writing() as connection:
        webhook = Webhook(url="local://nobody")
        hook = HookData(id="told", type=HookType.ON_COMPLETE, webhook=webhook, tenant_id=tenant)
        envelopes = [
            Envelope(id=new_id("m"), hook=hook, operation_id=f"o{n}", tenant_id=tenant, payload=b"{}")
            for n in range(20)
        ]
        await insert_deliveries(connection, build_delivery_rows(envelopes), now=store.now_sql())
        await connection.exec_driver_sql(
            f"UPDATE deliveries SET status = 'dead', settled_at = 1.0 WHERE tenant_id = '{tenant}'"
        )

    async with site.client(await key(store, tenant)) as client:
        nothing = await client.post("/v1/deliveries/replay", json={})
        replayed = await client.post("/v1/deliveries/replay", json={"hookId": "told", "status": "dead"})
        pending = (await client.get("/v1/deliveries?status=pending&limit=100")).json()["items"]

    problem(nothing, 422, "invalid")
    assert replayed.json() == {"count": 20}
    assert len(pending) == 20


@on_lasting_site
async def test_an_endpoint_is_sent_to_again(site: Site, store: SqlStore) -> None:
    tenant = new_id("tenant")
    url = await endpoint(store, tenant)

    async with site.client(await key(store, tenant)) as client:
        before = (await client.get("/v1/endpoints")).json()
        enabled = await client.post("/v1/endpoints/enable", json={"url": url})
        again = await client.post("/v1/endpoints/enable", json={"url": url})
        after = (await client.get("/v1/endpoints")).json()

    assert ([each["url"] for each in before], after) == ([url], [])
    assert enabled.status_code == 204
    problem(again, 404, "not_found")


@on_lasting_site
async def test_where_a_hook_of_the_system_delivers_is_no_business_of_a_tenant(site: Site, store: SqlStore) -> None:
    tenant, id = new_id("tenant"), new_id("m")  # noqa: A001
    webhook = Webhook(url="https://hooks.example.org/SECRET", body={"channel": "ops"})
    hook = HookData(id="ops", type=HookType.ON_COMPLETE, webhook=webhook)
    envelope = Envelope(id=id, hook=hook, operation_id="o1", tenant_id=tenant, payload=b"{}")
    async with store.writing() as connection:
        await insert_deliveries(connection, build_delivery_rows([envelope]), now=store.now_sql())
    async with site.client(await key(store, tenant)) as client:
        assert (await client.get("/v1/deliveries")).json()["items"] == []
        assert (await client.get(f"/v1/deliveries/{id}")).status_code == 404
        assert (await client.post(f"/v1/deliveries/{id}/retry")).status_code == 404
        assert "SECRET" not in (await client.get("/v1/endpoints")).text
