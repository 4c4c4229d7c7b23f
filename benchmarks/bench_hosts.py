"""The hook of a coding agent: the installed command from start to end, and what of it the resident process takes.

Each round starts every command once, in a fresh order, and waits for its end; ratios are to a Python that does nothing,
of the same round. The command is the one that `hookline host install claude` writes, run as Claude Code runs it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns

from benchmarks.harness import Row
from hookline.hosts import Installation, ask_status, install_hook, make_installation, stop_resident

COMMAND_GOAL, RESIDENT_GOAL = 1.5, 3.0
STARTS = 4
"""Starts of each command in a round."""
POLICY = """
from hookline import Deny, Hooks, ToolCall

hooks = Hooks("policy")


@hooks.guard(ToolCall, tool="Bash")
def no_rm(call):
    if "rm -rf" in call.args["command"]:
        return Deny("destructive command")
"""


async def bench(rounds: int) -> list[Row]:
    return await asyncio.to_thread(measure, rounds)


def measure(rounds: int) -> list[Row]:
    """Measure the command without a store, and with one."""
    rows = []
    for name, store in (("no store", ""), ("SQLite", "sqlite:///hookline.db")):
        with installed(store) as made:
            rows += measure_one(made, name, rounds)
    return rows


def measure_one(made: Installation, name: str, rounds: int) -> list[Row]:
    """Measure one installation."""
    bare = [made.python, "-I", "-S", "-c", "pass"]
    whole = ["/bin/sh", "-c", made.command("PreToolUse")]
    alone = made.command_words("PreToolUse")
    cases = {"allowed": (whole, "ls"), "denied": (whole, "rm -rf /"), "no shell": (alone, "ls")}
    times: dict[str, list[float]] = {"bare": [], **{each: [] for each in cases}}
    ratios: dict[str, list[float]] = {each: [] for each in cases}
    inside: dict[str, list[float]] = {"allowed": [], "denied": []}
    for nth in range(-2, rounds * STARTS):  # the first ones start the process, and fill its caches
        order = ["bare", *cases]
        random.shuffle(order)
        took = {}
        for case in order:
            words, command = cases.get(case, (bare, ""))
            call = f"{case}-{nth}"
            took[case] = run(words, question("PreToolUse", call, command))
            if case == "bare":
                continue
            status = ask_status(made)
            assert status is not None
            last = status.decisions[-1]
            assert last.decision == ("deny" if command.startswith("rm") else "")
            if nth >= 0 and case in inside:
                inside[case].append(last.duration_ms)
            if not last.decision:
                run(made.command_words("PostToolUse"), question("PostToolUse", call, command))
        if nth >= 0:
            for case, ns in took.items():
                times[case].append(ns)
            for case in cases:
                ratios[case].append(took[case] / took["bare"])
    rows = [Row(case=f"python -I -S -c pass [{name}]", value=statistics.median(times["bare"]))]
    rows += [
        Row(
            case=f"installed command, {case} [{name}]",
            value=statistics.median(times[case]),
            against="python -I -S -c pass",
            ratio=statistics.median(ratios[case]),
            at_most=COMMAND_GOAL,
        )
        for case in cases
    ]
    rows += [
        Row(
            case=f"of it in the resident process, {case} [{name}]",
            value=statistics.median(inside[case]),
            unit="ms",
            at_most=RESIDENT_GOAL,
        )
        for case in inside
    ]
    return rows


def question(event: str, call: str, command: str) -> bytes:
    """Return what Claude Code sends about a call."""
    frame = {
        "session_id": "s-1",
        "transcript_path": "/home/ada/.claude/projects/p/s-1.jsonl",
        "cwd": "/home/ada/project",
        "permission_mode": "default",
        "hook_event_name": event,
        "tool_name": "Bash",
        "tool_input": {"command": command, "description": "run"},
        "tool_use_id": call,
    }
    if event == "PostToolUse":
        frame["tool_response"] = {"stdout": "", "stderr": "", "interrupted": False}
    return json.dumps(frame).encode()


def run(words: list[str], given: bytes) -> float:
    """Run a command, and return the nanoseconds from its start to its end."""
    begun = perf_counter_ns()
    ran = subprocess.run(words, input=given, capture_output=True, check=True)
    took = perf_counter_ns() - begun
    assert not ran.stderr
    return took


@contextmanager
def installed(store: str) -> Iterator[Installation]:
    """Install a policy for Claude Code in a project of its own."""
    with tempfile.TemporaryDirectory(prefix="hl-") as folder:
        project = Path(folder, "project")
        project.mkdir()
        (project / "policy.py").write_text(POLICY)
        before = {name: os.environ.get(name) for name in ("XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")}
        for name in before:
            Path(folder, name).mkdir()
            os.environ[name] = str(Path(folder, name))
        try:
            made = make_installation(
                "claude", project=project, hooks=["policy.py:hooks"], store=store, environment=["PYTHONPATH"]
            )
            install_hook(made)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        try:
            yield made
        finally:
            stop_resident(made)
