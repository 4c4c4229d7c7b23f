"""A process of its own that writes to the log of executions: `python -m tests.registry.log_writer <url> <rows>`."""

from __future__ import annotations

import asyncio
import sys
import time

from hookline.registry import ExecutionLog
from hookline.signals import ChainRun, HookExecution, chain_ran
from hookline.store import SqlStore


def ran() -> ChainRun:
    fields = {"operation_id": "op", "duration_ms": 1.0, "time_unix_nano": time.time_ns()}
    hook = HookExecution(hook_id="hook", status="ok", hook_type="ToolCall", **fields)  # type: ignore[arg-type]
    return ChainRun(point="ToolCall", tenant_id="t", executions=[hook], **fields)  # type: ignore[arg-type]


async def main(url: str, rows: int) -> None:
    async with SqlStore(url) as store, ExecutionLog(store, max_queued=10**6) as log:
        print("open", flush=True)
        for nth in range(rows):
            chain_ran.send(None, ran=ran())
            if nth % 100 == 0:
                await log.flush()
    print(f"{log.written} {log.dropped}", flush=True)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
