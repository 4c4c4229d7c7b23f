"""Definitions of remote hooks: an operator puts the processes that serve a name in force, without code in the runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline import Agent, Deny, HookDispatcher, Hooks, ScriptedModel, ToolCall, ToolRequest, exec_agent, tool
from hookline.bus import MemoryBus
from hookline.registry import DefinitionError, HookDefinition, Registry
from hookline.server.page.hooks._fields import draw_groups, read_groups, write_values
from hookline.store import SqlStore
from hookline.wakeups import PollingWakeups
from tests.tables import for_each

from .scenes import pay

pytestmark = pytest.mark.anyio

REMOTE: dict[str, Any] = {
    "id": "payments-guard",
    "name": "Payments",
    "point": "ToolCall.before",
    "remote": {"name": "payments", "deadline": 60},
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
async def store(tmp_path: Path, bus: MemoryBus) -> AsyncIterator[SqlStore]:
    async with SqlStore(f"sqlite:///{tmp_path}/hookline.db", wakeups=bus) as store:
        yield store


@pytest.fixture
async def registry(store: SqlStore) -> AsyncIterator[Registry]:
    async with Registry(store) as registry:
        yield registry


def deny(reason: str) -> Hooks:
    hooks = Hooks("payments")
    hooks.guard(ToolCall)(lambda call: Deny(reason))
    return hooks


async def test_a_run_asks_the_processes_that_a_definition_names(
    registry: Registry, store: SqlStore, bus: MemoryBus
) -> None:
    paid: list[int] = []
    read: list[str] = []

    @tool
    async def pay_somebody(amount: int) -> str:
        paid.append(amount)
        return "paid"

    def turn(call: Any) -> ToolRequest | str:
        if call.messages[-1].role != "tool":
            return ToolRequest("pay_somebody", {"amount": 5})
        read.append(call.messages[-1].content)
        return "done"

    await registry.create(REMOTE)
    agent = Agent(id="clerk", model=ScriptedModel(turn), tools=[pay_somebody])
    async with bus.peer().serve(deny("too much")), HookDispatcher() as dispatcher:
        await exec_agent(agent, "pay", hooks=registry.hooks(), store=store, dispatcher=dispatcher)

    assert paid == []
    assert "too much" in read[0]


@pytest.mark.parametrize(("on_error", "is_denied"), [("closed", True), ("open", False)])
async def test_where_nobody_serves_the_declared_mode_decides(
    registry: Registry, on_error: str, is_denied: bool
) -> None:
    await registry.create({**REMOTE, "onError": on_error})

    outcome = await pay(registry.hooks())

    assert (outcome.denied is not None) is is_denied


async def test_the_tool_the_mode_and_the_revision_hold(registry: Registry, bus: MemoryBus) -> None:
    other = await registry.create({**REMOTE, "id": "other", "name": "other", "tool": "nobody/*"})
    shadow = await registry.create({**REMOTE, "mode": "shadow"})
    async with bus.peer().serve(deny("no")):
        outcome = await pay(registry.hooks())

    [record] = outcome.executions
    assert outcome.denied is None
    assert (record.hook_id, record.status, record.decision, record.revision) == (
        shadow.id,
        "shadow",
        "denied",
        shadow.revision,
    )
    assert other.id != shadow.id


@for_each(
    "fields, path, problem",
    [
        ({"remote": {"name": "a.b"}}, "$.remote.name", "name"),
        ({"remote": {"name": ""}}, "$.remote.name", "name"),
        ({"remote": {}}, "$.remote.name", "name"),
        ({"remote": {"name": "a", "deadline": 0}}, "$.remote.deadline", "deadline"),
        ({"remote": {"name": "a", "secret": "s"}}, "$.remote.secret", "unknown field"),
        ({"handler": "deny"}, "$", "exactly one"),
        ({"point": "ToolCall.guard"}, "$.point", "'ToolCall.before'"),
        ({"point": "onComplete"}, "$.remote.deadline", "no run waits"),
        ({"timeout": 3.0}, "$.timeout", "remote.deadline"),
        ({"config": {"a": 1}}, "$.config", "leave `config` out"),
        ({"dialect": "claude"}, "$.dialect", "only a script"),
    ],
)
async def test_an_invalid_definition_is_refused(
    registry: Registry, fields: dict[str, Any], path: str, problem: str
) -> None:
    with pytest.raises(DefinitionError, match=problem) as caught:
        await registry.create({**REMOTE, **fields})

    assert caught.value.path == path


async def test_a_hook_of_a_tenant_is_refused(registry: Registry) -> None:
    with pytest.raises(DefinitionError, match="only a system hook") as caught:
        await registry.create({**REMOTE, "tenantId": "acme"})

    assert caught.value.code == "remote_refused"


async def test_a_store_without_a_bus_refuses_the_definition(tmp_path: Path) -> None:
    async with (
        SqlStore(f"sqlite:///{tmp_path}/other.db", wakeups=PollingWakeups()) as store,
        Registry(store) as registry,
    ):
        with pytest.raises(DefinitionError, match="wakes up with PollingWakeups, which cannot ask") as caught:
            await registry.create(REMOTE)

    assert (caught.value.code, caught.value.path) == ("remote_refused", "$.remote")


async def test_a_file_holds_remote_hooks(tmp_path: Path, store: SqlStore, bus: MemoryBus) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text(
        '[[hooks]]\nid = "file-guard"\nname = "Guard"\npoint = "ToolCall.before"\n'
        'on_error = "open"\nremote = { name = "payments", deadline = 60.0 }\n'
    )
    async with Registry(store, files=[file]) as registry, bus.peer().serve(deny("by the file")):
        outcome = await pay(registry.hooks())

    assert outcome.denied is not None
    assert "by the file" in outcome.denied.reason


async def test_questions_are_signed_with_the_secret_of_the_process(
    registry: Registry, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKLINE_REMOTE_SECRET", "s" * 24)
    await registry.create(REMOTE)
    passing = Hooks("payments")
    passing.guard(ToolCall)(lambda call: None)
    async with bus.peer().serve(passing, secret="s" * 24):
        right = await pay(registry.hooks())
    async with bus.peer().serve(passing, secret="t" * 24):
        wrong = await pay(registry.hooks())

    assert right.denied is None
    assert wrong.denied is not None


async def test_stored_calls_are_judged_only_if_asking_is_allowed(registry: Registry) -> None:
    made = await registry.create(REMOTE)

    with pytest.raises(DefinitionError, match="allow_webhooks"):
        await registry.backtest(made.id, since=0.0)


def test_the_form_of_the_page_reads_what_it_writes() -> None:
    made = msgspec.convert({**REMOTE, "onError": "open"}, HookDefinition)
    values = write_values(made, None)
    groups = draw_groups(values, handlers=[], entry=None, tenants=[], is_new=False)

    given, problems = read_groups(groups)

    assert problems == {}
    assert given["remote"] == {"name": "payments", "deadline": 60}
    assert (given["point"], given["onError"]) == ("ToolCall.before", "open")
    assert not {"timeout", "config", "handler"} & set(given)


def test_the_form_wants_a_name() -> None:
    values = {"runs": "remote", "point": "ToolCall.before", "name": "Guard"}

    _, problems = read_groups(draw_groups(values, handlers=[], entry=None, tenants=None, is_new=True))

    assert problems == {"remote.name": "Fill this in."}
