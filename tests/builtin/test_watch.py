"""Numbers about calls, and the log of what was decided about them."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from hookline import Deny, Hooks, ModelCall, ToolCall, exec_agent, interrupt, tool
from hookline.builtin import AuditLog, AuditRecord, CallMetrics, deny_tools, require_approval
from hookline.calls import MemoryCall, MemoryResult, RequestCall, RequestResult, Respond, ToolResult
from hookline.errors import HookDefinitionError
from hookline.interceptors import Chain
from tests.tables import for_each

from .scenes import agent_of, asks, called, says, through, told

pytestmark = pytest.mark.anyio


async def test_calls_are_counted_by_class_and_by_how_they_ended() -> None:
    metrics = CallMetrics()
    answers = Hooks("answers")

    @answers.before(ToolCall, tool="*/search")
    def answer(call: ToolCall) -> Respond:
        return Respond("from a hook")

    for _ in range(2):
        agent = agent_of(asks("search", "bash", "broken"), says())
        await exec_agent(agent, "hi", hooks=[answers, deny_tools("bash"), metrics])

    snapshot = metrics.snapshot()
    assert {name: counts["count"] for name, counts in snapshot.items()} == {
        "AgentCall": 2, "StepCall": 4, "ModelCall": 4, "ToolCall": 6
    }  # fmt: skip
    assert snapshot["ToolCall"]["outcomes"] == {"answered": 2, "denied": 2, "failed": 2}
    assert snapshot["ToolCall"]["errors"] == 2
    assert snapshot["ModelCall"]["outcomes"] == {"ok": 4}
    for counts in snapshot.values():
        assert 0 < counts["min_ms"] <= counts["total_ms"] / counts["count"] <= counts["max_ms"] <= counts["total_ms"]


async def test_a_snapshot_is_a_copy() -> None:
    metrics = CallMetrics()
    await through(Chain([metrics]), called())

    metrics.snapshot()["ToolCall"]["outcomes"]["ok"] = 99

    assert metrics.snapshot()["ToolCall"]["outcomes"] == {"ok": 1}
    assert CallMetrics().snapshot() == {}


async def test_the_time_of_other_hooks_is_measured_too() -> None:
    metrics, slow = CallMetrics(), Hooks("slow", priority=0)

    @slow.before(ToolCall)
    async def before(call: ToolCall) -> None:
        await anyio.sleep(0.02)

    await through(Chain([metrics, slow]), called())

    assert metrics.snapshot()["ToolCall"]["min_ms"] >= 15


async def test_every_call_is_in_the_log_denied_ones_too() -> None:
    log = AuditLog()
    agent = agent_of(asks("search", "bash", query="x"), says())

    result = await exec_agent(agent, "hi", hooks=[log, deny_tools("bash")], operation_id="op-log", tenant_id="acme")

    records = {(record.call, record.target): record for record in log.records}
    assert (
        sorted(record.call for record in log.records)
        == ["AgentCall"] + ["ModelCall"] * 2 + ["StepCall"] * 2 + ["ToolCall"] * 2
    )
    denied, ran = records["ToolCall", "local/bash"], records["ToolCall", "local/search"]
    assert (denied.outcome, denied.denied_by, denied.reason) == ("denied", "deny_tools", told(result)[1])
    assert (ran.outcome, ran.denied_by, ran.reason, ran.args) == ("ok", None, None, {"query": "x"})
    assert {(record.operation_id, record.tenant_id) for record in log.records} == {("op-log", "acme")}
    assert all(record.time_unix_nano > 0 and record.duration_ms > 0 for record in log.records)
    assert msgspec.json.decode(msgspec.json.encode(denied), type=AuditRecord) == denied


async def test_the_arguments_in_the_log_are_those_that_ran() -> None:
    log, changes = AuditLog(), Hooks("changes")

    @changes.before(ToolCall)
    def change(call: ToolCall) -> ToolCall:
        return msgspec.structs.replace(call, args={"query": "final"})

    call = called(args={"query": "first"})
    await through(Chain([log, changes]), call)

    assert log.records[0].args == {"query": "final"}
    assert call.metadata == {}


async def test_a_question_to_a_person_is_in_the_log() -> None:
    log = AuditLog()

    await exec_agent(agent_of(asks("bash"), says()), "hi", hooks=[log, require_approval("bash", prompt="Really?")])

    asked = next(record for record in log.records if record.call == "ToolCall")
    assert (asked.outcome, asked.denied_by, asked.reason) == ("denied", "require_approval", "Really?")


@for_each(
    ("call", "result", "target", "outcome"),
    [
        (RequestCall(method="GET", path="/x"), RequestResult(status=503), "GET /x", "failed"),
        (RequestCall(method="GET", path="/x"), RequestResult(status=404), "GET /x", "ok"),
        (MemoryCall(key="k", value=1), MemoryResult(), "k", "ok"),
        (ModelCall(messages=[], model="m"), says(), "m", "ok"),
        (called("mcp/x"), ToolResult(content="", success=False), "mcp/x", "failed"),
    ],
)
async def test_a_record_says_what_the_call_was_about(call: Any, result: Any, target: str, outcome: str) -> None:
    log = AuditLog()

    await through(Chain([log]), call, result)

    assert [(record.target, record.outcome) for record in log.records] == [(target, outcome)]


async def test_what_raises_is_in_the_log_and_goes_on_to_the_caller() -> None:
    log = AuditLog()

    async def terminal(call: ModelCall) -> Any:
        raise ConnectionError("down")

    with pytest.raises(ConnectionError):
        await Chain([log]).run(ModelCall(messages=[]), terminal)

    assert [(record.outcome, record.reason) for record in log.records] == [("failed", "down")]


async def test_a_result_that_was_withheld_is_denied() -> None:
    log, withholds = AuditLog(), Hooks("withholds")

    @withholds.after(ToolCall)
    def withhold(call: ToolCall, result: ToolResult) -> Deny:
        return Deny("secret")

    await through(Chain([log, withholds]), called())

    assert [(record.outcome, record.denied_by) for record in log.records] == [("denied", "withholds.withhold")]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_sink_is_given_every_record(is_async: bool) -> None:
    written: list[AuditRecord] = []

    async def later(record: AuditRecord) -> None:
        await anyio.lowlevel.checkpoint()
        written.append(record)

    log = AuditLog(later if is_async else written.append)

    await exec_agent(agent_of(asks("search", "bash"), says()), "hi", hooks=[log])

    assert sorted(written, key=id) == sorted(log.records, key=id)
    assert len(written) == 7


@for_each("is_async", [True, False])
@for_each("denied", [True, False])
async def test_a_sink_that_fails_harms_nobody(is_async: bool, denied: bool, caplog: pytest.LogCaptureFixture) -> None:
    def fails(record: AuditRecord) -> None:
        raise OSError("disk full")

    async def fails_later(record: AuditRecord) -> None:
        fails(record)

    hooks = [AuditLog(fails_later if is_async else fails), deny_tools(*(["search"] if denied else ["other"]))]
    with caplog.at_level(logging.WARNING, "hookline"):
        result = await exec_agent(agent_of(asks("search", query="x"), says()), "hi", hooks=hooks)

    assert result.reason == "done"
    assert told(result) == ["local/search is denied by the rule 'search'" if denied else "found x"]
    assert "Could not write a record of 'audit_log'" in caplog.text


async def test_a_sink_that_hangs_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def hangs(record: AuditRecord) -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(5), caplog.at_level(logging.WARNING, "hookline"):
        outcome = await through(Chain([AuditLog(hangs, sink_timeout=0.01)]), called())

    assert outcome.result.content == "real"
    assert "exceeded its timeout of 0.01 s" in caplog.text


async def test_a_call_that_is_interrupted_is_written_too() -> None:
    written: list[AuditRecord] = []

    async def sink(record: AuditRecord) -> None:
        await anyio.sleep(0)
        written.append(record)

    @tool(name="hang")
    async def hang() -> str:
        """Hang."""
        interrupt("op-hang")
        await anyio.sleep_forever()
        return ""

    metrics = CallMetrics()
    agent = agent_of(asks("hang"), tools=[hang])
    result = await exec_agent(agent, "hi", hooks=[AuditLog(sink), metrics], operation_id="op-hang")

    assert result.reason == "interrupted"
    assert [(record.call, record.outcome) for record in written if record.call == "ToolCall"] == [
        ("ToolCall", "cancelled")
    ]
    assert metrics.snapshot()["ToolCall"]["outcomes"] == {"cancelled": 1}


async def test_a_cancelled_caller_is_cancelled() -> None:
    log = AuditLog()

    async def terminal(call: Any) -> Any:
        scope.cancel()
        await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await Chain([log]).run(called(), terminal)

    assert scope.cancelled_caught
    assert [record.outcome for record in log.records] == ["cancelled"]


async def test_the_log_is_bounded_and_keeps_the_newest() -> None:
    log = AuditLog(max_entries=3)
    chain = Chain([log])

    for index in range(10):
        await through(chain, called(operation_id=str(index)))

    assert [record.operation_id for record in log.records] == ["7", "8", "9"]


async def test_a_record_can_be_redacted_or_left_out_before_anybody_sees_it() -> None:
    written: list[AuditRecord] = []

    def redact(record: AuditRecord) -> AuditRecord | None:
        return None if record.target == "local/bash" else msgspec.structs.replace(record, args={})

    log = AuditLog(written.append, redact=redact)
    chain = Chain([log])
    await through(chain, called("local/search", args={"password": "x"}))
    await through(chain, called("local/bash"))

    assert [(record.target, record.args) for record in log.records] == [("local/search", {})]
    assert written == log.records


async def test_a_record_that_cannot_be_redacted_is_not_kept() -> None:
    def fails(record: AuditRecord) -> AuditRecord:
        raise KeyError("args")

    log = AuditLog(redact=fails)
    outcome = await through(Chain([log]), called())

    assert outcome.result.content == "real"
    assert log.records == []


async def test_concurrent_runs_share_one_log_and_one_set_of_numbers() -> None:
    log, metrics = AuditLog(), CallMetrics()

    async def run(tenant: str) -> None:
        await exec_agent(agent_of(asks("search"), says()), "hi", hooks=[log, metrics], tenant_id=tenant)

    async with anyio.create_task_group() as group:
        for index in range(10):
            group.start_soon(run, f"t{index}")

    assert metrics.snapshot()["ToolCall"]["count"] == 10
    for index in range(10):
        assert len([record for record in log.records if record.tenant_id == f"t{index}"]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sink": "file.log"}, "`sink` must be a function of one AuditRecord; got 'file.log'"),
        ({"redact": 3}, "`redact` must be a function of one AuditRecord"),
        ({"max_entries": 0}, "`max_entries` must be a whole number from 1"),
        ({"sink_timeout": 0}, "`sink_timeout` must be a number above 0"),
        ({"id": ""}, "`id` must be a non-empty string"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HookDefinitionError, match=message):
        AuditLog(**arguments)
