"""Run attacks on AgentDojo's suites in several processes, and print the results as a table."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import anyio
import anyio.to_process
from anyio import CapacityLimiter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from hookline.builtin import PromptInjectionScan, require_provenance
from hookline.cli._terminal import make_one_line, new_table
from hookline.evals.errors import UnknownSuiteError
from hookline.evals.suites import GROUND_TRUTH, AgentChoice
from hookline.evals.suites.agentdojo import (
    FREE,
    SUITES,
    WORDINGS,
    AttackPolicy,
    AttackRow,
    AttackRun,
    UnknownAttackChoiceError,
    attack_pairs,
    load_suite,
)
from hookline.evals.suites.agentdojo import attack as attack_suite

__all__ = ["attack_policies", "run_attacks", "show_attacks"]


def attack_policies() -> list[AttackPolicy]:
    """Return the guard policies to compare: no guard, each guard of hookline, and two together."""
    return [
        AttackPolicy(name="no guard", hooks=lambda tools: []),
        AttackPolicy(name="scan", hooks=lambda tools: [PromptInjectionScan()]),
        AttackPolicy(name="provenance: deny", hooks=lambda tools: [require_provenance(*tools)]),
        AttackPolicy(name="provenance: ask", hooks=lambda tools: [require_provenance(*tools, on_violation="ask")]),
        AttackPolicy(name="targets: deny", hooks=lambda tools: [require_provenance(*tools, free=FREE)]),
        AttackPolicy(
            name="targets: ask", hooks=lambda tools: [require_provenance(*tools, free=FREE, on_violation="ask")]
        ),
        AttackPolicy(
            name="scan + provenance: ask",
            hooks=lambda tools: [PromptInjectionScan(), require_provenance(*tools, on_violation="ask")],
        ),
    ]


FAMILY = "agentdojo"
EVERYTHING = (FAMILY, f"{FAMILY}:all")

COLUMNS = (
    "policy",
    "seen",
    "goals\nreached",
    "\nstopped",
    "tasks\nsolved",
    "\nblinded",
    "clean:\nsolved",
    "\nharmed",
    "\nasked",
)

LEGEND = """\
seen: the model read the injected instruction, which the scripted model then follows. stopped: reached
the goal under the first policy, but not under this one. solved: the user's task. blinded: a result was
withheld from the model, which as a script continues anyway. clean: the user's tasks without an attack. harmed: not
solved because of the policy. asked: decisions of a person."""

Job: TypeAlias = tuple[str, list[tuple[str, str]], bool]
"""A suite, pairs of tasks of it, and whether its tasks are also tried without an attack."""

Work: TypeAlias = Callable[[str, list[tuple[str, str]], bool], Awaitable[AttackRun]]
"""Runs a job."""


def run_attacks(
    targets: Sequence[str],
    *,
    policies: Sequence[str] = (),
    tasks: Sequence[str] = (),
    wording: str = "ignore",
    processes: int | None = None,
    model: str | None = None,
    agent: str | None = None,
) -> AttackRun:
    """Attack suites in several processes, with a progress bar on stderr where that is a terminal.

    Args:
        targets: `agentdojo:SUITE`, or `agentdojo:all` for all four.
        policies: By name; the first is what the others are compared with. All by default.
        tasks: User tasks; all by default.
        wording: How the injected texts speak to the model.
        processes: The number of processes that work at the same time; the number of processors by default.
        model: The name of a model to attack in place of the scripted one.
        agent: The import path of an agent to attack.

    Raises:
        HookUsageError: If the model or the agent cannot be used.
        UnknownSuiteError: If there is no such suite. The message lists the suites.
        UnknownTaskError: If there is no such task. The message lists the tasks.
        UnknownAttackChoiceError: If there is no such policy or wording. The message lists what there is.
        MissingExtraError: If AgentDojo is not installed.
    """
    known = [policy.name for policy in attack_policies()]
    for policy in policies:
        if policy not in known:
            raise UnknownAttackChoiceError("policy", policy, known)
    if wording not in WORDINGS:
        raise UnknownAttackChoiceError("wording", wording, list(WORDINGS))
    if model == GROUND_TRUTH and agent is None:
        model = None
    chosen = AgentChoice(model=model, agent=agent) if model or agent else None
    if chosen is not None:
        for suite in _find_suites(targets):
            load_suite(suite).with_agent(chosen)
    jobs = [job for suite in _find_suites(targets) for job in _make_jobs(suite, tasks)]
    work = partial(_run_job, policies=list(policies) or known, wording=wording, model=model, agent=agent)
    columns = (TextColumn("attacking"), BarColumn(bar_width=32), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("attacking", total=len(jobs))
        runs = anyio.run(
            partial(_run_jobs, jobs, work, processes or os.cpu_count() or 1, partial(progress.advance, bar))
        )
    attempts = [attempt for run in runs for attempt in run.attempts]
    return AttackRun(wording=wording, follows="shown", attempts=attempts, model=chosen.name if chosen else "")


def _find_suites(targets: Sequence[str]) -> list[str]:
    known = {f"{FAMILY}:{suite}": [suite] for suite in SUITES} | {name: list(SUITES) for name in EVERYTHING}
    for target in targets:
        if target not in known:
            raise UnknownSuiteError(target, list(known))
    wanted = {suite for target in targets for suite in known[target]}
    return [suite for suite in SUITES if suite in wanted]


def _make_jobs(suite: str, tasks: Sequence[str]) -> list[Job]:
    """Return one job per injection task, so that its environments are made once and equal endings judged once."""
    by_injection: dict[str, list[tuple[str, str]]] = {}
    for pair in attack_pairs(load_suite(suite), tasks):
        by_injection.setdefault(pair[1], []).append(pair)
    return [(suite, pairs, number == 0) for number, pairs in enumerate(by_injection.values())]


async def _run_jobs(jobs: Sequence[Job], work: Work, processes: int, advance: Callable[[], None]) -> list[AttackRun]:
    """Run all jobs, and return their results in the order of the jobs."""
    found: dict[int, AttackRun] = {}
    limiter = CapacityLimiter(processes)

    async def do(position: int, job: Job) -> None:
        if processes == 1:
            found[position] = await work(*job)
        else:
            found[position] = await anyio.to_process.run_sync(
                _run_in_process, work, job, cancellable=True, limiter=limiter
            )
        advance()

    async with anyio.create_task_group() as group:
        for position, job in enumerate(jobs):
            group.start_soon(do, position, job)
    return [found[position] for position in range(len(jobs))]


def _run_in_process(work: Work, job: Job) -> AttackRun:
    return anyio.run(partial(work, *job))


async def _run_job(
    suite: str,
    pairs: list[tuple[str, str]],
    clean: bool,
    *,
    policies: list[str],
    wording: str,
    model: str | None,
    agent: str | None,
) -> AttackRun:
    by_name = {policy.name: policy for policy in attack_policies()}
    chosen = [by_name[name] for name in policies]
    attacked = load_suite(suite)
    if model or agent:
        attacked = attacked.with_agent(AgentChoice(model=model, agent=agent))
    return await attack_suite(attacked, policies=chosen, pairs=pairs, wording=wording, clean=clean)


def show_attacks(console: Console, run: AttackRun) -> None:
    """Print one row per suite and policy, and a legend of the columns."""
    table = new_table()
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == COLUMNS[0] else "right", no_wrap=True)
    suite = ""
    for row in run.rows:
        if row.suite != suite:
            suite = row.suite
            table.add_section()
            of = [f"of {row.pairs}", "", "", f"of {row.pairs}", "", f"of {row.tasks}"]
            table.add_row(*(Text(cell, style="bold") for cell in [suite, *of]))
        table.add_row(*_cells(row))
    console.print()
    if run.model:
        console.print(f"model {make_one_line(run.model)}", style="dim", markup=False)
    console.print(table)
    console.print()
    console.print(LEGEND, soft_wrap=True)


def _cells(row: AttackRow) -> list[str | Text]:
    return [
        row.policy,
        str(row.reached),
        Text(str(row.goals), style="red" if row.goals else "green"),
        str(row.stopped),
        str(row.useful_attacked),
        str(row.blinded),
        str(row.useful),
        Text(str(row.harmed), style="red" if row.harmed else "dim"),
        str(row.questions),
    ]
