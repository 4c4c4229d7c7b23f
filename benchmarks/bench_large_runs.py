"""Large evaluations: memory and CPU from 100 to 10,000 cases, the report in Chromium, and runs that are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from playwright.async_api import async_playwright

from benchmarks.harness import Row
from hookline.evals import load_run, stable_fields
from tests.browsers import FLAGS, find_chromium

FEW, MANY, CALLS = 100, 10_000, 20
ROUNDS = 3
"""The most rounds: a run of 10,000 cases takes more than a minute."""
OPENED = 5
"""How often the report is opened."""

KILLED_CASES, KILLED_CALLS = 150, 4
SLOTS = 4
"""Tasks that run at the same time in a run that is killed."""
KILLS_A_ROUND = 10
LATEST_KILL = 2.0
"""Seconds within which a run is killed: from before it has loaded the suite until after it has ended."""

TOOLS = '''\
import os
from pathlib import Path

import anyio

from hookline import tool

STARTED = Path(__file__).with_name("started.txt")


@tool(in_thread=False)
def look_up(case: int, page: int) -> str:
    """Read a page of a case."""
    raise AssertionError("a rule answers every call")


@tool(in_thread=False)
async def work(case: int, page: int) -> str:
    """Note that a task has started, and take some time."""
    if page == 0:
        file = os.open(STARTED, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{case}\\n".encode())
        os.close(file)
    await anyio.sleep(0.01)
    return f"Page {page} of case {case}"


mocked, real = [look_up], [work]
'''


LAUNCHER = """\
import json, os, sys
process = os.fork()
if not process:
    os.execv(sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(process, 0)
code = os.waitstatus_to_exitcode(status)
print("\\n" + json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""
"""A small process that starts the measured one: a new process begins with the peak memory of the one that forks it."""


class Usage(NamedTuple):
    """What a process took.

    Attributes:
        cpu: Seconds of the processor, user and system together, with the processes that it started.
        memory: The largest resident memory in MiB, of it or of a process that it started.
    """

    cpu: float
    memory: float


async def bench(rounds: int) -> list[Row]:
    rounds = min(rounds, ROUNDS)
    with tempfile.TemporaryDirectory(prefix="hookline-bench-") as name:
        folder = Path(name)
        (folder / "bench_tools.py").write_text(TOOLS)
        rows = measure_runs(folder, rounds)
        rows += measure_workers(folder)
        rows += await measure_report(folder / f"report-{MANY}.html")
        rows += count_losses(folder, KILLS_A_ROUND * rounds, workers=False)
        rows += count_losses(folder, KILLS_A_ROUND * rounds, workers=True)
    return rows


def measure_runs(folder: Path, rounds: int) -> list[Row]:
    """Run 10,000 cases as a process, and meanwhile one case and 100 in turn; one case is the start-up."""
    suites = {count: write_suite(folder, f"cases-{count}", count, CALLS, tool="look_up") for count in (1, FEW, MANY)}
    per_call: dict[int, list[float]] = {FEW: [], MANY: []}
    memory: dict[int, list[float]] = {FEW: [], MANY: []}
    startups: list[float] = []
    for _ in range(rounds):
        used: dict[int, list[Usage]] = {1: [], FEW: [], MANY: []}
        large = start(folder, suites[MANY], MANY)
        while large.poll() is None or not used[FEW]:
            for count in (1, FEW):
                used[count].append(finish(start(folder, suites[count], count)))
        used[MANY].append(finish(large))
        cpu = {count: statistics.mean(each.cpu for each in found) for count, found in used.items()}
        startups.append(cpu[1])
        for count in (FEW, MANY):
            per_call[count].append((cpu[count] - cpu[1]) * 1e9 / ((count - 1) * CALLS))
            memory[count].append(max(each.memory for each in used[count]))
    few = f"CPU per mocked call [cases={FEW}]"
    samples = zip(per_call[FEW], per_call[MANY], strict=True)
    return [
        Row(case="start-up, CPU", value=statistics.median(startups) * 1e9),
        Row(case=few, value=statistics.median(per_call[FEW])),
        Row(
            case=f"CPU per mocked call [cases={MANY}]",
            value=statistics.median(per_call[MANY]),
            against=few,
            ratio=statistics.median(many / few for few, many in samples),
            at_most=1.1,
        ),
        Row(case=f"peak memory [cases={FEW}]", value=max(memory[FEW]), unit="MiB"),
        Row(case=f"peak memory [cases={MANY}]", value=max(memory[MANY]), unit="MiB", at_most=150),
    ]


def measure_workers(folder: Path) -> list[Row]:
    """Run 10,000 cases in two worker processes."""
    used = finish(start(folder, folder / f"cases-{MANY}.yaml", MANY, "--workers", "2"))
    return [Row(case=f"peak memory [cases={MANY}, --workers 2]", value=used.memory, unit="MiB", at_most=150)]


async def measure_report(report: Path) -> list[Row]:
    """Open the report of 10,000 cases in a new browser, until its first row can be seen."""
    found = find_chromium(os.environ, is_root=os.geteuid() == 0, folder=Path(".cache"))
    if not found.path:
        raise RuntimeError(f"The report is measured in Chromium, and none can be started: {found.problem}.")
    taken: list[float] = []
    for _ in range(OPENED):
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=found.path, args=list(FLAGS))
            page = await browser.new_page(viewport={"width": 1280, "height": 900})
            started = perf_counter()
            await page.goto(report.as_uri(), wait_until="commit")
            await page.wait_for_selector("html[data-ready]")
            await page.locator("details.task").first.wait_for(state="visible")
            taken.append(perf_counter() - started)
            counted = await page.locator("#count").inner_text()
            await browser.close()
        assert counted == f"{MANY:,} tasks", counted
    return [
        Row(case=f"report [cases={MANY}]", value=report.stat().st_size / 1e6, unit="MB", at_most=30),
        Row(case=f"report opened in Chromium [cases={MANY}]", value=statistics.median(taken), unit="s", at_most=2),
    ]


def count_losses(folder: Path, kills: int, *, workers: bool) -> list[Row]:
    """Kill a run again and again at random, continue it each time, and count what is lost."""
    suite = write_suite(folder, "killed", KILLED_CASES, KILLED_CALLS, tool="work")
    options = ["--concurrency", str(SLOTS), *(["--workers", "2"] if workers else [])]
    finish(start(folder, suite, KILLED_CASES, *options))
    whole = results_of(folder / f"run-{KILLED_CASES}.jsonl")
    source = random.Random(workers)
    lost, differing, completed = 0, 0, 0
    path = folder / "run-killed.jsonl"
    path.unlink(missing_ok=True)
    for number in range(kills + 1):
        before = {} if not is_begun(path) else results_of(path)
        (folder / "started.txt").unlink(missing_ok=True)
        last = number == kills
        # A file that was cut off in its first line has no plan to continue.
        words = ["--resume", path.name] if is_begun(path) else ["--save", path.name]
        kill = None if last else source.uniform(0, LATEST_KILL)
        run_killed(folder, [*command(suite), *words, *options], kill, source if workers else None)
        after = {} if not is_begun(path) else results_of(path)
        differing += sum(before[key] != after.get(key) for key in before)
        started = read_started(folder / "started.txt")
        # Those beyond the tasks that may have been under way had ended, and are lost.
        lost += max(0, len(started - after.keys()) - SLOTS)
        if len(after) == KILLED_CASES:
            completed += 1
            differing += sum(after[key] != whole[key] for key in whole)
            if not last:
                path.unlink()
    name = f"{kills} kills{', of workers too [--workers 2]' if workers else ''}"
    return [
        Row(case=f"{name}: tasks lost that were not under way", value=lost, unit="", at_most=0),
        Row(case=f"{name}: results that differ", value=differing, unit="", at_most=0),
        Row(case=f"{name}: runs completed", value=completed, unit="", at_least=1),
    ]


def write_suite(folder: Path, name: str, cases: int, calls: int, *, tool: str) -> Path:
    """Write a suite whose scripted model asks for so many calls in each case; rules answer those of `look_up`."""
    (folder / f"{name}.jsonl").write_text("".join(f'{{"case": {number}}}\n' for number in range(cases)))
    rules = '    mocks: [{tool: look_up, template: "Page {page} of case {case}"}]\n' if tool == "look_up" else ""
    asked = "".join(f'      - {{tool: {tool}, args: {{case: "{{case}}", page: {page}}}}}\n' for page in range(calls))
    suite = folder / f"{name}.yaml"
    suite.write_text(
        f"suite: large\ntools: bench_tools:{'mocked' if tool == 'look_up' else 'real'}\ntasks:\n"
        f'  - id: "{{case}}"\n    cases: {name}.jsonl\n    prompt: "Summarize case {{case}}."\n{rules}'
        f'    script:\n{asked}      - say: "Case {{case}} is closed."\n'
        f'    checks: [{{output_contains: "Case {{case}} is closed."}}, {{max_calls: {calls}}}]\n'
    )
    return suite


def command(suite: Path) -> list[str]:
    return [sys.executable, "-c", "from hookline.cli import main; main()", "eval", suite.name]


def start(folder: Path, suite: Path, count: int, *options: str) -> subprocess.Popen[str]:
    """Start a run as a process with everything that a large run is for: a saved run and a report."""
    words = [*command(suite), "--save", f"run-{count}.jsonl", "--report", f"report-{count}.html", *options]
    if suite.name.startswith("cases"):
        words += ["--mode", "strict"]
    launch = [sys.executable, "-S", "-E", "-c", LAUNCHER, *words]
    return subprocess.Popen(launch, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> Usage:
    """Wait for a run to end, and return what it took."""
    printed, _ = process.communicate()
    output, _, told = printed.strip().rpartition("\n")
    code, cpu, memory = json.loads(told)
    if code:
        raise RuntimeError(f"A run failed:\n{output[-2000:]}")
    return Usage(cpu=cpu, memory=memory)


def run_killed(folder: Path, words: list[str], kill: float | None, worker_source: random.Random | None) -> None:
    """Run a command, and kill it after some seconds; with a source of chance, often one of its workers before."""
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(words, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        if kill is not None:
            if worker_source is not None and worker_source.random() < 0.5:
                wait(process, kill / 2)
                for child in children_of(process.pid)[:1]:
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                kill /= 2
            wait(process, kill)
            workers = children_of(process.pid)
            process.kill()
            process.wait()
            while any(map(is_running, workers)):  # their tasks would write among those of the next run
                time.sleep(0.01)
        elif process.wait():
            raise RuntimeError(f"The resumed run failed:\n{(folder / 'output.txt').read_text()[-2000:]}")


def wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def children_of(process: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def is_running(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def is_begun(path: Path) -> bool:
    """Whether a file has its whole first line."""
    return path.exists() and b"\n" in path.read_bytes()


def results_of(path: Path) -> dict[str, Any]:
    """Return what may not differ of the results in the file of a run, by task."""
    return {each.task_id: stable_fields(each) for each in load_run(path).results}


def read_started(path: Path) -> set[str]:
    return set(path.read_text().split()) if path.exists() else set()
