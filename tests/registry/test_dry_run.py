"""A definition can be tried out on a sample, alone, and nobody learns of it but who tried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hookline.calls import ToolCall
from hookline.errors import HookUsageError
from hookline.registry import POINTS, DefinitionError, DefinitionNotFoundError, HookDefinition, Registry
from hookline.registry._dry_run import build_sample
from hookline.signals import chain_ran, hook_executed
from hookline.store import SqlStore
from tests.registry import factories
from tests.tables import for_each

from .scenes import FACTORIES, PAY, definition, pay

pytestmark = pytest.mark.anyio


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    (tmp_path / "hook.py").write_text("""import time; print('{"decision": "deny", "reason": "script"}')""")
    (tmp_path / "context.py").write_text(
        """print('{"decision": "deny", "reason": "no", "additionalContext": "EUR"}')"""
    )
    (tmp_path / "guide.py").write_text("""print('{"decision": "guide", "reason": "be kind"}')""")
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    async with (
        SqlStore("sqlite:///:memory:") as store,
        Registry(store, modules=[FACTORIES], scripts=tmp_path) as registry,
    ):
        yield registry


@for_each("point", POINTS)
def test_a_sample_of_every_point_is_made_of_nothing(point: str) -> None:
    sample = build_sample(POINTS[point], {}, "acme")

    assert sample.subject.tenant_id == "acme"
    assert sample.subject.operation_id
    assert (sample.result is None) is (POINTS[point].call is None)


def test_a_sample_has_what_is_given_in_either_spelling() -> None:
    point = POINTS["ToolCall.after"]

    sample = build_sample(point, {"apiName": "pay", "tool_call_id": "t", "args": {"a": [1]}, "result": "paid"}, "")

    assert (sample.subject.tool_name, sample.subject.tool_call_id, sample.subject.args) == ("pay", "t", {"a": [1]})
    assert sample.result.content == "paid"
    step = build_sample(POINTS["beforeStep"], {"type": "beforeStep", "operationId": "op", "stepIndex": 4}, "").subject
    assert (step.operation_id, step.step_index) == ("op", 4)


@for_each(
    "point, given, path",
    [
        ("ToolCall.guard", {"args": 3}, "$.sample.args"),
        ("ToolCall.guard", {"nothing": 3}, "$.sample.nothing"),
        ("ToolCall.guard", [], "$.sample"),
        ("ToolCall.guard", {"result": {"nothing": 3}}, "$.sample.result.nothing"),
        ("ToolCall.guard", {"result": 3}, "$.sample.result"),
        ("AgentCall.guard", {"input": [{"role": "nobody", "content": ""}]}, "$.sample.input[0].role"),
        ("ModelCall.guard", PAY, "$.sample"),
        ("beforeStep", {"stepIndex": "first"}, "$.sample.stepIndex"),
        ("beforeStep", PAY, "$.sample"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "given",
)
def test_what_is_no_sample_for_a_point_is_refused(point: str, given: object, path: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        build_sample(POINTS[point], given, "")

    assert refused.value.path == path


RUNS: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
    ({"script": "context.py"}, {}, {"outcome": "denied", "reason": "no", "context": "EUR"}),
    ({"script": "guide.py", "point": "ModelCall.after"}, {}, {"outcome": "guided", "reason": "be kind"}),
    ({"handler": "deny", "config": {"reason": "no"}}, {}, {"outcome": "denied", "reason": "no"}),
    ({"handler": "deny"}, PAY, {"outcome": "denied"}),
    ({"handler": "deny", "tool": "shop/*"}, PAY, {"outcome": "skipped"}),
    ({"handler": "log"}, {}, {"outcome": "passed"}),
    (
        {"handler": "require-approval", "config": {"tools": ["*"], "prompt": "?"}},
        {},
        {"outcome": "asked", "reason": "?"},
    ),
    (
        {"handler": "redact", "point": "ToolCall.after", "config": {"patterns": ["email"]}},
        {"result": "a@b.example"},
        {"outcome": "changed"},
    ),
    (
        {"handler": f"{FACTORIES}:unlike", "point": "ToolCall.after", "config": {"word": "x"}},
        {},
        {"outcome": "changed"},
    ),
    ({"handler": f"{FACTORIES}:seeing"}, {}, {"outcome": "passed"}),
    ({"handler": f"{FACTORIES}:seeing", "point": "afterStep"}, {}, {"outcome": "passed"}),
    ({"handler": f"{FACTORIES}:seeing", "point": "ToolCall.around"}, {}, {"outcome": "failed"}),
    ({"script": "hook.py"}, {}, {"outcome": "denied", "reason": "script"}),
    (
        {"webhook": {"url": "https://nowhere.invalid", "body": {"k": 1}}, "point": "beforeStep"},
        {"stepIndex": 7},
        {"outcome": "shown"},
    ),
]


@for_each("fields, sample, expected", RUNS)
async def test_a_dry_run_tells_what_the_hook_did(
    registry: Registry, fields: dict[str, Any], sample: Any, expected: dict[str, Any]
) -> None:
    tried = await registry.dry_run({"name": "n", "point": "ToolCall.guard"} | fields, sample, timeout=30)

    assert {name: getattr(tried, name) for name in expected} == expected
    if tried.outcome == "shown":
        assert tried.payload is not None
        assert (tried.payload["stepIndex"], tried.payload["k"], tried.payload["type"]) == (7, 1, "beforeStep")


async def test_a_dry_run_leaves_no_trace(registry: Registry) -> None:
    stored = await registry.create(definition(handler=f"{FACTORIES}:counting", config={"most": 1}))
    seen: list[object] = []

    def note(sender: object, **what: object) -> None:
        seen.append(what)

    with chain_ran.connected_to(note), hook_executed.connected_to(note):
        for _ in range(3):
            assert (await registry.dry_run(stored.id, {})).outcome == "passed"
        assert seen == []
    assert (await pay(registry.hooks())).denied is None
    assert (await registry.list()).items == [stored]


async def test_a_definition_that_is_switched_off_can_be_tried_out(registry: Registry) -> None:
    stored = await registry.create(definition(enabled=False))

    assert (await registry.dry_run(stored.id, PAY)).outcome == "denied"


@pytest.mark.parametrize("fields", [{"handler": f"{FACTORIES}:late"}, {"script": "slow.py"}], ids=["handler", "script"])
async def test_a_dry_run_ends_in_time(registry: Registry, fields: dict[str, Any]) -> None:
    tried = await registry.dry_run({"name": "n", "point": "ToolCall.guard"} | fields, {}, timeout=0.2)

    assert (tried.outcome, tried.error) == ("failed", "it took longer than its timeout of 0.2 s")


async def test_a_handler_that_blocks_does_not_hold_up_the_process(registry: Registry) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    tried = await registry.dry_run(definition(handler=f"{FACTORIES}:blocking"), {}, timeout=0.2)
    ticking.cancel()

    assert tried.outcome == "failed"
    assert ticks >= 2


async def test_what_cannot_be_tried_out_is_refused(registry: Registry) -> None:
    with pytest.raises(DefinitionNotFoundError):
        await registry.dry_run("nothing", {})
    with pytest.raises(DefinitionError):
        await registry.dry_run({"name": "n", "point": "ToolCall.guard", "handler": "os:system"}, {})
    with pytest.raises(DefinitionError):
        await registry.dry_run(definition(), {"nothing": 1})
    with pytest.raises(HookUsageError):
        await registry.dry_run(definition(), {}, timeout=-1)


async def test_the_sample_of_a_tenants_hook_is_the_tenants(registry: Registry) -> None:
    factories.SEEN.clear()
    stored: HookDefinition = await registry.create(definition(handler=f"{FACTORIES}:seeing", tenant_id="acme"))

    await registry.dry_run(stored.id, {"apiName": "x"}, tenant_id="acme")

    ((call,),) = factories.SEEN
    assert isinstance(call, ToolCall)
    assert (call.tenant_id, call.tool_name) == ("acme", "x")
