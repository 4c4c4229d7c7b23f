"""Definitions, deliveries, keys and logs that an earlier version has stored are read and used."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline import Chain, Hooks, Interceptor, Outcome, ToolCall, ToolResult
from hookline.registry import ExecutionLog, HookDefinition, Registry
from hookline.server import KeyStore
from hookline.store import SqlStore

from .definitions import BODIES, SAMPLES
from .files import FILES, added_paths, read_json, without_times
from .samples import tool_call

pytestmark = pytest.mark.anyio

EMPTY = Path(__file__).parents[1] / "store" / "stored" / "by_8ffe382.sql"
"""A database of 8ffe382, for its tables; it has operations too, and no definitions."""
DEFINITIONS = FILES / "definitions"

ADDED = {"$.exceptTenants", "$.dialect", "$.hostEvent", "$.matcher", "$.mode", "$.shadowAbove"}
ADDED |= {"$.remote", "$.tenants", "$.agents", "$.operationTags", "$.environments", "$.percent"}
"""Fields that definitions have today, and had not then."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    with sqlite3.connect(tmp_path / "earlier.db") as connection:
        connection.executescript(EMPTY.read_text())
        connection.executescript((DEFINITIONS / "rows.sql").read_text())
    connection.close()
    async with SqlStore(f"sqlite:///{tmp_path / 'earlier.db'}") as store:
        yield store


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store, files=[DEFINITIONS]) as registry:
        yield registry


async def call(registry: Registry, tool: str, tenant_id: str = "acme", **args: Any) -> Outcome:
    """Lead a call through the hooks of a tenant that judge calls in this process."""
    toolset, _, name = tool.partition("/")
    hooks = [each for each in registry.hooks(tenant_id) if isinstance(each, Hooks | Interceptor)]
    made = tool_call(toolset, name, args=args)

    async def run(call: ToolCall) -> ToolResult:
        return ToolResult(content=f"ran with {call.args}")

    return await Chain(hooks).run(made, run)


async def test_stored_definitions_are_read_as_they_were(registry: Registry) -> None:
    stored = read_json("definitions/api.json")["definitions"]

    found = {each.id: each for each in (await registry.list()).items}

    for definition in stored:
        shown = msgspec.json.decode(msgspec.json.encode(found[definition["id"]]))
        if definition["id"] == "disabled":
            assert shown["enabled"] is False
            definition |= {"enabled": False, "revision": 7}
        assert added_paths(without_times(definition), without_times(shown)) == ADDED, definition["id"]


async def test_definitions_of_files_are_read_and_keep_their_switch(registry: Registry) -> None:
    found = {each.id: each for each in (await registry.list()).items if not each.is_stored}

    assert sorted(found) == ["asked", "no-shell-in-file", "switched", "told"]
    assert {id_: each.enabled for id_, each in found.items()} == {
        "asked": True,
        "no-shell-in-file": True,
        "switched": False,
        "told": True,
    }
    assert (found["asked"].tenant_id, found["asked"].config["prompt"]) == ("acme", "May it pay?")
    told = found["told"].webhook
    assert told is not None
    assert (told.url, told.event_fields) == ("https://a.example/x", ["content", "apiName"])


async def test_a_stored_guard_denies_the_call_that_it_denied(registry: Registry) -> None:
    denied = await call(registry, "local/bash", command="ls")
    other = await call(registry, "local/search", q="ls")

    assert denied.denied is not None
    assert denied.denied.hook_id.startswith("no-shell")
    assert other.denied is None
    assert other.result == ToolResult(content="ran with {'q': 'ls'}")


async def test_a_stored_hook_with_a_tool_pattern_judges_those_tools_alone(registry: Registry) -> None:
    denied = await call(registry, "bank/transfer_all")

    assert denied.denied is not None
    assert (denied.denied.hook_id, denied.denied.reason) == ("transfers", "not today")
    assert (await call(registry, "shop/transfer_all")).denied is None


async def test_a_stored_hook_rewrites_arguments(registry: Registry) -> None:
    outcome = await call(registry, "local/send", text="mail ann@example.com")

    assert outcome.result == ToolResult(content="ran with {'text': 'mail [redacted]'}")


async def test_a_definition_is_stored_again_from_the_body_of_the_api() -> None:
    async with SqlStore("sqlite://") as store, Registry(store) as registry:
        made = [await registry.create(body) for body in BODIES]

        for definition, stored in zip(made, read_json("definitions/api.json")["definitions"], strict=True):
            shown = msgspec.json.decode(msgspec.json.encode(definition))
            assert added_paths(without_times(stored), without_times(shown)) == ADDED


def test_the_json_of_a_definition_is_read() -> None:
    for stored in read_json("definitions/api.json")["definitions"]:
        read = msgspec.convert(stored, HookDefinition)

        assert msgspec.to_builtins(read) == stored | {
            "exceptTenants": [],
            "dialect": "hookline",
            "hostEvent": "",
            "matcher": "",
            "mode": "enforce",
            "tenants": [],
            "agents": [],
            "operationTags": [],
            "environments": [],
            "percent": 100.0,
            "shadowAbove": None,
            "remote": None,
        }


async def test_dry_runs_of_stored_definitions_show_what_they_showed(registry: Registry) -> None:
    """Samples name fields as the API always took them, `apiName` or `api_name`; the answer has the keys that it had."""
    stored = read_json("definitions/api.json")["dryRuns"]

    for (id_, sample), shown in zip(SAMPLES, stored, strict=True):
        tried = await registry.dry_run(id_, sample, tenant_id="acme")

        added = added_paths(without_times(shown), without_times(msgspec.to_builtins(tried)))
        assert added <= {"$.call.parent_operation_id", "$.call.tags"}


async def test_a_stored_delivery_waits_to_be_sent(store: SqlStore) -> None:
    async with store.reading() as connection:
        row = (await connection.exec_driver_sql("SELECT id, hook, payload, status FROM deliveries")).one()

    assert row.status == "pending"
    assert msgspec.json.decode(row.hook)["webhook"] == {"url": "https://ledger.example/in", "body": {"team": "risk"}}
    payload = msgspec.json.decode(row.payload)
    assert (payload["type"], payload["operationId"], payload["team"]) == ("onComplete", "op_sent", "risk")


async def test_a_key_of_the_api_still_opens_it(store: SqlStore) -> None:
    (stored,) = read_json("definitions/api.json")["keys"]

    caller = await KeyStore(store).authenticate(stored["key"])

    assert caller is not None
    assert (caller.key_id, caller.tenant_id, caller.scopes) == (stored["id"], "acme", {"hooks:read"})
    assert await KeyStore(store).authenticate(stored["key"] + "x") is None


async def test_the_log_of_executions_is_read_as_it_was(store: SqlStore) -> None:
    (stored,) = read_json("definitions/api.json")["log"]

    async with ExecutionLog(store, retention_hours=1e9) as log:
        (row,) = (await log.logs("acme", hook_id="limit")).items

    assert msgspec.to_builtins(row) == {**stored, "agentId": "", "tool": ""}
    assert (row.point, row.status, row.denied_by, row.reason) == ("ToolCall", "denied", "limit", "not to Bob")
    assert [(each.hook_id, each.status) for each in row.executions] == [("trim", "ok"), ("limit", "denied")]
