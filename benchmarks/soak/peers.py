"""Asks the tools that our exporters write for: agentevals judges the same trajectories, Inspect AI reads the same log.

Needs an environment of its own, with hookline, `agentevals==0.0.9` and `inspect-ai==0.3.285`; exits 0 if both agree.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.calls import ToolRequest
from hookline.evals import agentevals_messages, write_inspect_log
from hookline.evals.running import TaskResult
from hookline.evals.trajectories import MatchType, Trajectory
from hookline.evals.trajectories._trajectory import ArgumentMode

# agentevals compares arguments the other way round where it looks for our calls among the expected ones: modes of its
# own in which subset and superset change places. There the two are not comparable.
COMPARED: list[tuple[MatchType, ArgumentMode]] = [
    *((mode, args) for mode in ("strict", "unordered", "subset", "superset") for args in ("exact", "ignore")),
    *((mode, args) for mode in ("strict", "superset") for args in ("subset", "superset")),
]


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """As much of a run as a log needs."""

    results: list[TaskResult]
    mode: str = "real"
    duration_ms: float = 1_000.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak.peers", description=__doc__)
    parser.add_argument("--cases", type=int, default=2_000, help="pairs of trajectories to judge")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    cases = [(_trajectory(draw), _trajectory(draw)) for _ in range(options.cases)]
    cases += [(one, _shuffled(one, draw)) for one, _ in cases[: options.cases // 4]]
    wrong = compare_verdicts(cases) + read_log([one for one, _ in cases[:100]])
    for line in wrong[:20]:
        print(line)
    print(f"{len(wrong)} disagreements")
    return 1 if wrong else 0


def compare_verdicts(cases: list[tuple[Trajectory, Trajectory]]) -> list[str]:
    """Where agentevals judges a pair of trajectories in another way."""
    create = _peer("agentevals.trajectory.match").create_trajectory_match_evaluator
    wrong: list[str] = []
    for mode, args in COMPARED:
        evaluate = create(trajectory_match_mode=mode, tool_args_match_mode=args)
        verdicts: Counter[str] = Counter()
        for actual, expected in cases:
            ours = actual.match(expected, mode=mode, args=args)
            theirs = evaluate(
                outputs=agentevals_messages(actual, paths=True),
                reference_outputs=agentevals_messages(expected, paths=True),
            )["score"]
            # It takes the first partner that fits, and may so take it from a call that has no other.
            greedy = ours.ok and not theirs and args in ("subset", "superset") and mode == "superset"
            verdicts["ok" if ours.ok and theirs else "other pairs" if greedy else "not ok"] += 1
            if ours.ok != theirs and not greedy:
                wrong.append(f"{mode}, {args}: agentevals says {theirs}\n{ours}")
        print(f"agentevals, {mode}, arguments {args}: {dict(verdicts)}")
    return wrong


def read_log(trajectories: list[Trajectory]) -> list[str]:
    """What Inspect AI does not find in a log of ours."""
    rows = [_row(number, trajectory) for number, trajectory in enumerate(trajectories)]
    with tempfile.TemporaryDirectory() as folder:
        path = write_inspect_log(Path(folder) / "log.json", LoggedRun(results=rows))
        log = _peer("inspect_ai.log").read_eval_log(str(path))
    wrong: list[str] = []
    for row, sample in zip(rows, log.samples, strict=True):
        calls = [call for message in sample.messages for call in getattr(message, "tool_calls", None) or []]
        found = (sample.id, [(call.function, call.arguments) for call in calls], sample.scores["utility"].value)
        wanted = (row.name, [(call.tool_name, call.args) for call in row.trajectory.calls], float(bool(row.utility)))
        if found != wanted:
            wrong.append(f"inspect: {found}\nnot {wanted}")
    print(f"inspect: {len(log.samples)} samples, mean utility {log.results.scores[0].metrics['mean'].value:.2f}")
    return wrong


def _peer(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SystemExit(f"{module} is not installed here: {error}. Make an environment as described above.") from error


def _trajectory(draw: random.Random) -> Trajectory:
    calls = [
        (f"shop/{draw.choice('abc')}", {key: draw.choice([1, "x"]) for key in "pq" if draw.random() < 0.6})
        for _ in range(draw.randrange(5))
    ]
    return Trajectory.of_calls(calls)


def _shuffled(trajectory: Trajectory, draw: random.Random) -> Trajectory:
    calls: list[ToolRequest] = draw.sample(trajectory.calls, len(trajectory.calls))
    return Trajectory.of_calls(calls)


def _row(number: int, trajectory: Trajectory) -> TaskResult:
    return TaskResult(
        suite="peers",
        task_id=f"task_{number}",
        prompt="go",
        operation_id=f"op_{number}",
        utility=number % 3 > 0,
        reason="done",
        error=None,
        steps=len(trajectory.steps),
        tool_calls=len(trajectory.calls),
        mocked=0,
        failed=0,
        tools_run=0,
        forbidden=0,
        hook_executions=0,
        hook_time_ms=0.0,
        duration_ms=1.0,
        tool_results=[],
        output="done",
        trajectory=trajectory,
    )


if __name__ == "__main__":
    sys.exit(main())
