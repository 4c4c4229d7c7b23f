"""A real store with what agents have left in it, for the commands that look after one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from typer.testing import CliRunner, Result

from hookline import (
    Agent,
    Deny,
    Hooks,
    ModelResponse,
    OnComplete,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    exec_agent,
    tool,
)
from hookline.cli._app import app
from hookline.delivery import KeyRing, Outbox
from hookline.hooks import AnyHook, Hook
from hookline.registry import ExecutionLog, Registry
from hookline.store import SqlStore, Worker

T = TypeVar("T")

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw1234567890ab"
NOBODY = "http://127.0.0.1:9/in"
"""An address at which nobody listens."""

PAID: list[int] = []


def payer(*amounts: int) -> Agent:
    """Asks to pay each amount at once, and is done when it was told of each."""

    @tool(in_thread=False, needs_approval=True)
    async def pay(amount: int) -> str:
        PAID.append(amount)
        return f"paid {amount}"

    def says(call: object) -> ModelResponse:
        told = [message.content for message in call.messages if message.role == "tool"]  # type: ignore[attr-defined]
        if told or not amounts:
            return ModelResponse(content=" and ".join(told))
        calls = [
            ToolRequest(tool_name="pay", args={"amount": amount}, tool_call_id=f"t{nth}")
            for nth, amount in enumerate(amounts)
        ]
        return ModelResponse(tool_calls=calls)

    return Agent(id="payer", model=ScriptedModel(says), tools=[pay])


def on(url: str, work: Callable[[SqlStore], Awaitable[T]]) -> T:
    """Do something with a store."""

    async def opened() -> T:
        async with SqlStore(url) as store:
            return await work(store)

    return asyncio.run(opened())


async def pause(store: SqlStore, operation_id: str, *amounts: int, tenant: str = "", hooks: Any = ()) -> str:
    """Run an agent until it waits for a person, or has ended."""
    result = await exec_agent(
        payer(*amounts), "go", operation_id=operation_id, store=store, tenant_id=tenant, hooks=list(hooks)
    )
    return result.reason


def paused(url: str, operation_id: str, *amounts: int, tenant: str = "") -> None:
    """An operation that waits for a person to decide about calls `t0`, `t1`, ..."""
    assert on(url, lambda store: pause(store, operation_id, *amounts, tenant=tenant)) == "waiting_for_human"


def go_on(url: str, operation_id: str, *amounts: int) -> str:
    """Have a worker take an operation that was decided about; its status then."""

    async def work(store: SqlStore) -> str:
        async with Worker(store, [payer(*amounts)], poll_seconds=0.02), asyncio.timeout(20):
            while (state := await store.load(operation_id)) is None or state.status in ("waiting_for_human", "running"):
                await asyncio.sleep(0.01)
        return state.status

    return on(url, work)


def denying(hook_id: str, reason: str) -> Hooks:
    hooks = Hooks("refusing")
    hooks.guard(ToolCall, id=hook_id)(lambda call: Deny(reason))
    return hooks


async def log_runs(store: SqlStore, *operations: str, hooks: list[AnyHook], tenant: str = "") -> None:
    """Runs whose hooks are logged."""
    async with ExecutionLog(store):
        for name in operations:
            await pause(store, name, 5, tenant=tenant, hooks=hooks)


async def leave_dead(store: SqlStore, *operations: str) -> None:
    """Deliveries that were given up, one of each operation, as nobody took them."""
    hook = Hook(id="end", type=OnComplete, webhook={"url": NOBODY})
    outbox = Outbox(store, keys=KeyRing({"": [KEY]}), allow_private=["127.0.0.0/8"], schedule=[0])
    async with outbox:
        for name in operations:
            await pause(store, name, hooks=[hook])
        await outbox.idle()


async def define(store: SqlStore, *given: dict[str, Any]) -> list[str]:
    """Store hook definitions; their ids."""
    async with Registry(store) as registry:
        return [(await registry.create({"handler": "deny", **each})).id for each in given]


def run(*args: str, url: str = "", width: int = 80, stdin: str | None = None, **env: str) -> Result:
    """The command, in this process."""
    environment = {"COLUMNS": str(width), "HOOKLINE_STORE": url or None, **env}
    return CliRunner().invoke(app, list(args), env=environment, input=stdin)


def lines(result: Result) -> list[dict[str, Any]]:
    """What a command has printed with `--json`."""
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def database(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"
