"""A hook that fails may quote the call that it judged; neither the log of executions nor any log line keeps secrets."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import AfterStep, BeforeToolCall, Chain, Deny, HookDispatcher, Hooks, Phase, ToolCall, ToolResult
from hookline.phases import PhaseMachine
from hookline.redaction import Redaction
from hookline.registry import ExecutionLog
from hookline.registry._log_rows import LONGEST_TEXT, clean_error
from hookline.store import SqlStore

pytestmark = pytest.mark.anyio

SECRET = "hunter2-secret"
ARGS: dict[str, Any] = {
    "password": SECRET,
    "url": f"https://joe:{SECRET}@example.org/",
    "header": "Bearer abcdefgh12345678.hunter2-secret",
    "env": {"API_KEY": SECRET},
}


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a handler writes, with tracebacks."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


def fail(args: Any) -> None:
    try:
        raise LookupError(f"no account for {args!r}")
    except LookupError as error:
        raise ValueError(f"failed on {args}") from error


@pytest.mark.parametrize("answer", ["raise", "raise-open", "deny", "after"])
async def test_what_an_interceptor_says_of_a_call_is_kept_without_its_secrets(
    answer: str, new_database_url: Callable[[str], str], lines: io.StringIO
) -> None:
    hooks = Hooks("bank")

    def judge(call: ToolCall) -> Deny | None:
        if answer == "deny":
            return Deny(f"not with {call.args}")
        return fail(dict(call.args))

    if answer == "after":
        hooks.after(ToolCall)(lambda call, result: fail(dict(call.args)))
    else:
        hooks.guard(ToolCall, on_error="open" if answer == "raise-open" else "closed")(judge)

    async def tool(call: ToolCall) -> ToolResult:
        return ToolResult(content="done")

    async with SqlStore(new_database_url("sqlite")) as store, ExecutionLog(store) as log:
        await Chain([hooks]).run(ToolCall(toolset="bank", tool_name="pay", operation_id="op", args=ARGS), tool)
        await log.flush()
        [row] = (await log.logs(None)).items

    kept = msgspec.json.encode(row).decode()
    assert SECRET not in kept
    assert "[redacted]" in kept
    assert SECRET not in lines.getvalue()
    if answer != "deny":
        assert "ValueError: failed on" in lines.getvalue()
        assert "Traceback (most recent call last)" in lines.getvalue()
        assert "LookupError" in lines.getvalue()


async def test_what_observers_and_phase_hooks_say_is_logged_without_secrets(
    new_database_url: Callable[[str], str], lines: io.StringIO
) -> None:
    hooks = Hooks("watch")
    hooks.on(BeforeToolCall)(lambda event: fail(event.args))

    @hooks.on(AfterStep)
    async def later(event: AfterStep) -> None:
        fail(ARGS)

    hooks.on_phase(None, None)(lambda move: fail(ARGS))
    ids = {"operation_id": "op", "step_index": 0}
    async with SqlStore(new_database_url("sqlite")) as store, ExecutionLog(store, observers=True) as log:
        async with HookDispatcher() as dispatcher:
            dispatcher.register("op", [hooks])
            await dispatcher.dispatch_before_tool_call(
                BeforeToolCall(toolset="bank", tool_name="pay", args=ARGS, call_index=1, tool_call_id="c", **ids)
            )
            dispatcher.dispatch(after_step(**ids))
            await dispatcher.unregister("op")
        await PhaseMachine("agent", [hooks]).move(Phase.BOOTSTRAPPING)
        await log.flush()
        rows = (await log.logs(None)).items

    assert len(rows) >= 2
    assert SECRET not in msgspec.json.encode(rows).decode() + lines.getvalue()
    assert lines.getvalue().count("ValueError: failed on") >= 3


def after_step(**ids: Any) -> AfterStep:
    counted = dict.fromkeys(("total_input_tokens", "total_output_tokens", "total_steps", "total_tool_calls"), 0)
    times = dict.fromkeys(("execution_time_ms", "elapsed_ms", "step_cost_usd", "total_cost_usd"), 0.0)
    empty: dict[str, Any] = {"content": "", "reasoning": "", "tools_calling": [], "tools_result": []}
    return AfterStep(step_type="call_llm", should_continue=False, **empty, **counted, **times, **ids)


async def test_a_failure_without_secrets_keeps_its_exception_for_handlers(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks("plain")
    hooks.guard(ToolCall)(lambda call: fail("nothing"))

    async def tool(call: ToolCall) -> ToolResult:
        return ToolResult(content="done")

    await Chain([hooks]).run(ToolCall(toolset="bank", tool_name="pay", operation_id="op"), tool)

    [record] = [record for record in caplog.records if record.name == "hookline"]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


@given(
    before=st.text(max_size=50),
    name=st.sampled_from(["password", "apiKey", "PGPASSWORD"]),
    padding=st.integers(0, 2 * LONGEST_TEXT),
)
def test_a_secret_is_kept_out_wherever_the_text_is_cut(before: str, name: str, padding: int) -> None:
    text = f"{before} {'x' * padding} {{'{name}': 'hunter2-{'y' * 40}'}}"

    kept = clean_error(text)

    assert "hunter2" not in kept
    assert len(kept) <= LONGEST_TEXT
    assert Redaction().text(kept) == kept or len(kept) == LONGEST_TEXT
