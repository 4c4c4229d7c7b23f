"""Show that the statistics of evaluations keep their promises: `python -m benchmarks.calibration`.

    coverage   how often a 95 % interval contains the truth: exactly for pass rates, simulated for repeats and scores
    alarms     how often the gate finds a difference between equal runs
    power      how often it finds a fall, and docs/explanation/power.svg
    needed     how often it finds a fall with the repeats that it asked for

Exits with 1 if a promise is broken. Each simulation has its own fixed seed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from html import escape
from pathlib import Path
from time import perf_counter

from hookline.evals import SavedRun, TaskResult, Trajectory, diff_runs, estimate_mean, paired_test

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "power.svg"

COUNTS = (10, 20, 50, 100, 200)
SHARES = [0.02 + 0.001 * step for step in range(961)]
"""True pass rates, from 0.02 to 0.98."""

MEAN_RATE, SPREAD = 0.8, 4.0
"""The pass rates of simulated tasks: a beta distribution with this mean, and this sum of its two parameters."""

Score = Callable[[random.Random, float], float]


# Intervals.


def exact_coverage(count: int, shares: Iterable[float] | None = None) -> tuple[float, float, float]:
    """Return the mean and the least coverage of the interval of a pass rate, and where the least is.

    Between the ends of two intervals the coverage has no local minimum, so that it is least next to an end.

    Args:
        count: The number of tasks.
        shares: True pass rates for the mean; by default all of `SHARES`.
    """
    ends: list[tuple[float, float]] = []
    for passes in range(count + 1):
        found = estimate_mean([1.0] * passes + [0.0] * (count - passes))
        assert found is not None
        ends.append((found.low, found.high))
    grid = list(SHARES if shares is None else shares)
    near = [end + shift for pair in ends for end in pair for shift in (-1e-9, 1e-9)]
    least = min((_coverage(ends, share), share) for share in [*grid, *near] if 0.02 <= share <= 0.98)
    return math.fsum(_coverage(ends, share) for share in grid) / len(grid), *least


def _coverage(ends: Sequence[tuple[float, float]], share: float) -> float:
    count = len(ends) - 1
    covering = [passes for passes, (low, high) in enumerate(ends) if low <= share <= high]
    chance = math.exp(
        math.lgamma(count + 1)
        - math.lgamma(covering[0] + 1)
        - math.lgamma(count - covering[0] + 1)
        + covering[0] * math.log(share)
        + (count - covering[0]) * math.log1p(-share)
    )
    total = 0.0
    for passes in covering:  # which follow one another
        total += chance
        chance *= (count - passes) / (passes + 1) * share / (1 - share)
    return total


def pass_or_fail(source: random.Random, rate: float) -> float:
    """Return the score of an attempt with one check."""
    return float(source.random() < rate)


def of_three_checks(source: random.Random, rate: float) -> float:
    """Return the score of an attempt with three checks."""
    return sum(source.random() < rate for _ in range(3)) / 3


def graded(source: random.Random, rate: float) -> float:
    """Return a score that a judge gives."""
    return source.betavariate(4 * rate + 0.01, 4 * (1 - rate) + 0.01)


@dataclass(frozen=True)
class Workload:
    """Simulated tasks.

    Attributes:
        name: Their name in tables.
        attempts: The attempts of each.
        score: Returns the score of an attempt of a task with this rate.
        heaviest: The weight of the last task. Weights rise from 1 in even steps.
    """

    name: str
    attempts: int
    score: Score
    heaviest: float = 1.0

    def weights(self, tasks: int) -> list[float]:
        """Return the weights of so many tasks."""
        return [1 + (self.heaviest - 1) * place / max(tasks - 1, 1) for place in range(tasks)]


WORKLOADS = (
    Workload("pass or fail, 1 attempt", 1, pass_or_fail),
    Workload("pass or fail, 5 attempts", 5, pass_or_fail),
    Workload("pass or fail, 10 attempts", 10, pass_or_fail),
    Workload("three checks, 1 attempt", 1, of_three_checks),
    Workload("judged scores, 3 attempts", 3, graded),
    Workload("pass or fail, 1 attempt, weights 1 to 10", 1, pass_or_fail, heaviest=10),
)


def draw_rate(source: random.Random, mean: float = MEAN_RATE) -> float:
    """Return the pass rate of a task."""
    return source.betavariate(mean * SPREAD, (1 - mean) * SPREAD)


def simulated_coverage(job: tuple[Workload, int, int]) -> tuple[float, float]:
    """Return the mean and the least coverage, over true means, of the interval for tasks like these."""
    workload, tasks, rounds = job
    source = random.Random(f"coverage {workload.name} {tasks}")
    found = []
    for mean in (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95):
        truth, hits = _true_mean(workload, mean, source), 0
        for _ in range(rounds):
            values = []
            for _ in range(tasks):
                rate = draw_rate(source, mean)
                values.append(sum(workload.score(source, rate) for _ in range(workload.attempts)) / workload.attempts)
            estimate = estimate_mean(values, workload.weights(tasks))
            assert estimate is not None
            hits += estimate.low - 1e-12 <= truth <= estimate.high + 1e-12
        found.append(hits / rounds)
    return sum(found) / len(found), min(found)


def _true_mean(workload: Workload, mean: float, source: random.Random) -> float:
    if workload.score is not graded:
        return mean
    return sum(graded(source, draw_rate(source, mean)) for _ in range(200_000)) / 200_000


def show_coverage(pool: ProcessPoolExecutor, pairs: int) -> bool:
    """Print the coverage of intervals; return whether it is what the documentation promises."""
    print("Coverage of the 95 % interval of a pass rate, exact, for true rates from 0.02 to 0.98\n")
    print("| tasks | mean | least | at |\n|---|---|---|---|")
    kept = True
    for count, (mean, least, share) in zip(COUNTS, pool.map(exact_coverage, COUNTS), strict=True):
        print(f"| {count} | {mean:.2%} | {least:.2%} | {share:.4f} |")
        kept = kept and abs(mean - 0.95) <= 0.015 and (count < 20 or least >= 0.89)
    others = range(20, 201)
    least, count = min((found[1], count) for count, found in zip(others, pool.map(exact_coverage, others), strict=True))
    print(f"\nThe least coverage for any number of tasks from 20 to 200 is {least:.2%}, at {count} tasks.\n")
    kept = kept and least >= 0.89
    print("Coverage for tasks like these, simulated: mean over true means from 0.05 to 0.95, and the least\n")
    sizes = (10, 20, 50, 100)
    print(f"| attempts | {' | '.join(f'{size} tasks' for size in sizes)} |\n|---|{'---|' * len(sizes)}")
    jobs = [(workload, size, max(pairs // 4, 50)) for workload in WORKLOADS for size in sizes]
    found = pool.map(simulated_coverage, jobs)
    for workload in WORKLOADS:
        row = [next(found) for _ in sizes]
        print(f"| {workload.name} | {' | '.join(f'{mean:.1%} ({low:.1%})' for mean, low in row)} |", flush=True)
    return kept


# The gate.


def saved_run(scores: Sequence[Sequence[float]], weights: Sequence[float]) -> SavedRun:
    """Return a saved run with these scores, for each task those of its attempts, and these weights of the tasks."""
    results = [
        TaskResult(
            suite="simulated",
            task_id=str(task),
            prompt="",
            operation_id="",
            utility=score == 1,
            reason="done",
            error=None,
            steps=1,
            tool_calls=0,
            mocked=0,
            failed=0,
            tools_run=0,
            forbidden=0,
            hook_executions=0,
            hook_time_ms=0.0,
            duration_ms=0.0,
            tool_results=[],
            output="",
            trajectory=NO_TRAJECTORY,
            score=score,
            attempt=attempt,
            weight=weights[task],
        )
        for task, attempts in enumerate(scores)
        for attempt, score in enumerate(attempts, start=1)
    ]
    return SavedRun(
        format="hookline-run",
        version=2,
        hookline="",
        saved_at="",
        targets=[],
        mode="spy",
        seed=0,
        duration_ms=0.0,
        results=results,
        repeat=max(result.attempt for result in results),
    )


NO_TRAJECTORY = Trajectory(steps=[], output="", reason="done")


def draw_scores(
    source: random.Random, workload: Workload, tasks: int, fall: float = 0.0
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the scores of two runs of the same tasks, of which the second passes less often.

    Args:
        source: Random numbers.
        workload: The tasks.
        tasks: How many.
        fall: How much lower the pass rate of each task is in the second run, but not below 0.
    """
    before, after = [], []
    for _ in range(tasks):
        rate = draw_rate(source)
        for scores, own in ((before, rate), (after, max(rate - fall, 0.0))):
            scores.append([workload.score(source, own) for _ in range(workload.attempts)])
    return before, after


def count_alarms(job: tuple[Workload, int, int]) -> tuple[float, float, float]:
    """Return how often equal runs are found to differ, how often B is called worse, and how often the gate fails."""
    workload, tasks, pairs = job
    source = random.Random(f"alarms {workload.name} {tasks}")
    weights = workload.weights(tasks)
    differ = worse = failed = 0
    for _ in range(pairs):
        before, after = draw_scores(source, workload, tasks)
        diff = diff_runs(saved_run(before, weights), saved_run(after, weights), paired=True)
        assert diff.test is not None
        differ += diff.test.verdict in ("better", "worse")
        worse += diff.test.verdict == "worse"
        failed += not diff.ok
    return differ / pairs, worse / pairs, failed / pairs


def show_alarms(pool: ProcessPoolExecutor, pairs: int) -> bool:
    """Print how often equal runs raise an alarm; return whether it is at most 6 %."""
    print(f"Equal runs, {pairs:,} pairs each: the paired test finds a difference (calls B worse; the gate fails)\n")
    sizes = (10, 30, 100)
    print(f"| attempts | {' | '.join(f'{size} tasks' for size in sizes)} |\n|---|{'---|' * len(sizes)}")
    found = pool.map(count_alarms, [(workload, size, pairs) for workload in WORKLOADS for size in sizes])
    kept = True
    for workload in WORKLOADS:
        row = [next(found) for _ in sizes]
        kept = kept and all(differ <= 0.06 and failed <= 0.06 for differ, _, failed in row)
        print(f"| {workload.name} | {' | '.join(f'{a:.1%} ({b:.1%}; {c:.1%})' for a, b, c in row)} |", flush=True)
    return kept


SIZES, REPEATS = (10, 30, 100), (1, 3, 10)
FALLS = (0.0, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)


def power_at(job: tuple[int, int, float, int]) -> float:
    """Return how often a fall is found: how often the paired test says worse."""
    tasks, repeats, fall, pairs = job
    workload = Workload("power", repeats, pass_or_fail)
    source = random.Random(f"power {tasks} {repeats} {fall}")
    worse = 0
    for _ in range(pairs):
        before, after = draw_scores(source, workload, tasks, fall)
        worse += paired_test(zip(before, after, strict=True)).verdict == "worse"
    return worse / pairs


def show_power(pool: ProcessPoolExecutor, pairs: int) -> bool:
    """Print how often a fall is found, and draw it."""
    pairs = max(pairs // 4, 50)
    print(f"How often a fall of every task's pass rate is found, {pairs:,} pairs each\n")
    print(f"| tasks | attempts | {' | '.join(f'{fall:g}' for fall in FALLS)} |\n|---|---|{'---|' * len(FALLS)}")
    cases = [(tasks, repeats) for tasks in SIZES for repeats in REPEATS]
    found = pool.map(power_at, [(*case, fall, pairs) for case in cases for fall in FALLS])
    curves = {}
    for case in cases:
        curves[case] = [next(found) for _ in FALLS]
        print(f"| {case[0]} | {case[1]} | {' | '.join(f'{power:.0%}' for power in curves[case])} |", flush=True)
    PICTURE.write_text(draw_power(curves), encoding="utf-8")
    print(f"\nDrawn in {PICTURE}")
    return True


def power_of_advice(job: tuple[int, float, int]) -> float:
    """Return how often a fall is found with the repeats that a run of one attempt each would need for it."""
    tasks, fall, pairs = job
    source = random.Random(f"needed {tasks} {fall}")
    once = Workload("once", 1, pass_or_fail)
    found = 0
    for _ in range(pairs):
        rates = [draw_rate(source) for _ in range(tasks)]
        truth = [(rate, max(rate - fall, 0.0)) for rate in rates]
        # What the advice would be if the run had seen the true difference and the true variances.
        difference = sum(a - b for a, b in truth) / tasks
        noise = sum((a + b) / 2 * (1 - (a + b) / 2) for a, b in truth) / tasks
        repeats = max(1, math.ceil(2 * noise / tasks * ((1.96 + 0.8416) / difference) ** 2))
        pairs_of_scores = [
            ([once.score(source, a) for _ in range(repeats)], [once.score(source, b) for _ in range(repeats)])
            for a, b in truth
        ]
        found += paired_test(pairs_of_scores).verdict == "worse"
    return found / pairs


def show_needed(pool: ProcessPoolExecutor, pairs: int) -> bool:
    """Print how often a fall is found with the repeats that the formula of `repeats_needed` gives for it."""
    pairs = max(pairs // 4, 50)
    print(f"How often a fall is found with as many repeats as it needs; 80 % is the aim; {pairs:,} pairs each\n")
    falls = (0.05, 0.1, 0.2)
    print(f"| tasks | {' | '.join(f'{fall:g}' for fall in falls)} |\n|---|{'---|' * len(falls)}")
    found = pool.map(power_of_advice, [(tasks, fall, pairs) for tasks in SIZES for fall in falls])
    kept = True
    for tasks in SIZES:
        row = [next(found) for _ in falls]
        kept = kept and all(0.7 <= power <= 0.92 for power in row)
        print(f"| {tasks} | {' | '.join(f'{power:.0%}' for power in row)} |", flush=True)
    return kept


# The picture.

WIDTH, HEIGHT = 270, 300
LEFT, TOP = 64, 56
PLOT_WIDTH, PLOT_HEIGHT = 214, 220
STYLES = {1: ("#8250df", "2 5"), 3: ("#0969da", "8 4"), 10: ("#1a7f37", "")}


def draw_power(curves: dict[tuple[int, int], list[float]]) -> str:
    """Return the picture of the power: a panel for each number of tasks, and a line for each number of attempts."""
    described = "; ".join(
        f"{tasks} tasks with {repeats} attempt{'s' if repeats > 1 else ''}: "
        + ", ".join(f"{power:.0%} at {fall:g}" for fall, power in zip(FALLS, curve, strict=True))
        for (tasks, repeats), curve in curves.items()
    )
    sizes = list(dict.fromkeys(tasks for tasks, _ in curves))
    width = LEFT + WIDTH * len(sizes)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 372" role="img" aria-labelledby="title desc" '
        'font-family="system-ui, \'Segoe UI\', Helvetica, Arial, sans-serif" font-size="14">',
        '  <title id="title">How often the paired test finds that a run got worse</title>',
        f'  <desc id="desc">{escape(described)}.</desc>',
        "  <style>",
        "    .page { fill: #ffffff; }",
        "    .axis { stroke: #57606a; fill: none; }",
        "    .grid { stroke: #d0d7de; fill: none; }",
        "    .aim { stroke: #57606a; stroke-dasharray: 3 3; fill: none; }",
        "    .curve { fill: none; stroke-width: 2.2; }",
        "    text { fill: #1f2328; }",
        "    .soft { fill: #57606a; }",
        "    .middle { text-anchor: middle; }",
        "    .end { text-anchor: end; }",
        "  </style>",
        f'  <rect class="page" width="{width}" height="372"/>',
        '  <text x="16" y="24" font-weight="600">Chance that a fall is found</text>',
    ]
    for place, tasks in enumerate(sizes):
        lines += _draw_panel(LEFT + WIDTH * place, tasks, {r: c for (t, r), c in curves.items() if t == tasks}, place)
    middle = LEFT + (WIDTH * len(sizes) - (WIDTH - PLOT_WIDTH)) / 2
    lines.append(
        f'  <text class="middle" x="{middle:.0f}" y="{TOP + PLOT_HEIGHT + 46}">fall of every task\'s pass rate</text>'
    )
    at = LEFT
    for repeats, (colour, dashes) in STYLES.items():
        lines.append(
            f'  <path class="curve" d="M{at} 350 h34" stroke="{colour}" stroke-dasharray="{dashes}"/>'
            f'<text x="{at + 42}" y="355">{repeats} attempt{"s" if repeats > 1 else ""} of each task</text>'
        )
        at += 240
    return "\n".join([*lines, "</svg>"]) + "\n"


def _draw_panel(x: int, tasks: int, curves: dict[int, list[float]], place: int) -> Iterator[str]:
    def across(fall: float) -> float:
        return x + PLOT_WIDTH * fall / FALLS[-1]

    def down(power: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - power)

    yield f'  <text class="middle" x="{x + PLOT_WIDTH / 2:.0f}" y="{TOP - 10}">{tasks} tasks</text>'
    for power in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        yield f'  <path class="grid" d="M{x} {down(power):.1f} h{PLOT_WIDTH}"/>'
        if place == 0:
            yield f'  <text class="soft end" x="{x - 8}" y="{down(power) + 5:.1f}">{power:.0%}</text>'
    yield f'  <path class="aim" d="M{x} {down(0.8):.1f} h{PLOT_WIDTH}"/>'
    for fall in (0.0, 0.1, 0.2, 0.3, 0.4):
        yield f'  <text class="soft middle" x="{across(fall):.1f}" y="{TOP + PLOT_HEIGHT + 20}">{fall:g}</text>'
    yield f'  <path class="axis" d="M{x} {TOP} v{PLOT_HEIGHT} h{PLOT_WIDTH}"/>'
    for repeats, curve in curves.items():
        colour, dashes = STYLES[repeats]
        points = " ".join(f"{across(fall):.1f},{down(power):.1f}" for fall, power in zip(FALLS, curve, strict=True))
        yield (f'  <polyline class="curve" stroke="{colour}" stroke-dasharray="{dashes}" points="{points}"/>')


PARTS = {"coverage": show_coverage, "alarms": show_alarms, "power": show_power, "needed": show_needed}


def main() -> int:
    """Run the parts that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="coverage, alarms, power, needed; all by default")
    parser.add_argument("--pairs", type=int, default=2000, help="simulated pairs of runs (2000)")
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    kept = True
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name in given.parts or PARTS:
            started = perf_counter()
            good = PARTS[name](pool, given.pairs)
            print(f"\n{name}: {'as promised' if good else 'NOT as promised'} ({perf_counter() - started:.0f} s)\n")
            kept = kept and good
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
