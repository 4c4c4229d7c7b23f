"""Compares the rows of two source trees: `python -m benchmarks.trees ../other dispatch special`.

Both trees are loaded into this process, each with its own `hookline` and its own benchmarks. Where both measure a case
of the same name, the two take turns: a pair of samples per round, in random order. A row's ratio is the median of its
pairs, this tree divided by the other; its interval is a bootstrap over the pairs. A row whose interval is wider than
5 % on either side gets more pairs.

The tree that builds its objects first has them elsewhere in memory. Two copies of one tree differ by 3 to 4 % in rows
that wait for memory (`scale` with 100,000 and more operations), so those are compared with `--other-first` too.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

from benchmarks import harness
from benchmarks.harness import Row, Samples, Timer

HERE = Path(__file__).parents[1]
PAIRS, MORE_PAIRS, WIDE = 15, 60, 0.05
LIMIT = 1.05
DRAWS = 2000


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One case in both trees.

    Attributes:
        case: Its name.
        other_ns: Median of the other tree.
        own_ns: Median of this tree.
        ratio: Median of the pairs' ratios, this tree divided by the other.
        low: Lower end of its 95 % interval.
        high: Upper end.
        pairs: How many there were.
    """

    case: str
    other_ns: float
    own_ns: float
    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> str:
        """`SLOWER` if the whole interval is above the limit."""
        return "SLOWER" if self.low > LIMIT else ""


class Tree:
    """The modules of one source tree, which stand in `sys.modules` only while it is the current one."""

    current: Tree | None = None

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, ModuleType] = {}

    def enter(self) -> None:
        """Make this tree's modules those that an import finds."""
        if Tree.current is self:
            return
        if Tree.current is not None:
            Tree.current.modules = {name: sys.modules.pop(name) for name in _loaded()}
            sys.path[:] = sys.path[2:]
        sys.modules.update(self.modules)
        sys.path[:0] = [str(self.root / "src"), str(self.root)]
        importlib.invalidate_caches()
        Tree.current = self

    def group(self, name: str, interleave: Callable) -> ModuleType:
        """Return the module of a group, whose cases go to `interleave`."""
        self.enter()
        importlib.import_module("benchmarks")
        sys.modules["benchmarks.harness"] = harness  # the same method for both
        module = importlib.import_module(f"benchmarks.{name}" if name == "compare" else f"benchmarks.bench_{name}")
        for name in _loaded():
            loaded = sys.modules[name]
            if name.startswith("benchmarks.") and loaded is not harness and hasattr(loaded, "interleave"):
                loaded.interleave = interleave
        return module


def _loaded() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("hookline", "benchmarks")]


class Meeting:
    """Lets the benchmarks of two trees meet: each waits where it measures until the other measures the same."""

    def __init__(self, own: Tree, other: Tree, most: int, only: str, *, other_first: bool = False) -> None:
        self.trees = own, other
        self.other_first = other_first
        self.most = most
        self.only = only
        self.waiting: dict[Tree, tuple[Mapping[str, Timer], int | None, asyncio.Future]] = {}
        self.ended: set[Tree] = set()
        self.changed = asyncio.Event()
        self.rows: list[Compared] = []

    async def run(self, group: str) -> list[Compared]:
        """Run a group in both trees, and compare what both measure."""
        order = reversed(self.trees) if self.other_first else self.trees
        running = [asyncio.create_task(self._bench(tree, group)) for tree in order]
        await self._pair()
        await asyncio.gather(*running)
        return self.rows

    async def _bench(self, tree: Tree, group: str) -> list[Row]:
        async def interleave(cases: Mapping[str, Timer], rounds: int, *, times: int | None = None) -> Samples:
            answer = asyncio.get_running_loop().create_future()
            self.waiting[tree] = cases, times, answer
            self.changed.set()
            samples = await answer
            tree.enter()
            return samples

        try:
            return await tree.group(group, interleave).bench(PAIRS)
        finally:
            self.ended.add(tree)
            self.changed.set()

    async def _pair(self) -> None:
        own, other = self.trees
        while len(self.ended) < 2:
            await self.changed.wait()
            self.changed.clear()
            if not self.waiting or len(self.waiting) + len(self.ended) < 2:
                continue
            names = [set(self.waiting[tree][0]) if tree in self.waiting else set() for tree in self.trees]
            common = names[0] & names[1]
            if 2 * len(common) > min(map(len, names)):
                cases = [name for name in self.waiting[own][0] if name in common and self.only in name]
                await self._measure(cases)
                skipped = list(self.trees)
            else:  # only one tree measures this; the other one waits for what comes next
                skipped = [own if own in self.waiting else other]
            for tree in skipped:
                present, _, answer = self.waiting.pop(tree)
                # What the group makes of these is not shown. They differ, since it may divide by their differences.
                answer.set_result(Samples({name: [random.random() for _ in range(PAIRS)] for name in present}))

    async def _measure(self, cases: list[str]) -> None:
        timers = {name: [self.waiting[tree][0][name] for tree in self.trees] for name in cases}
        plan = {}
        for name in cases:
            fixed = self.waiting[self.trees[0]][1]
            counts = []
            for tree, timer in zip(self.trees, timers[name], strict=True):
                tree.enter()
                counts.append(fixed or await harness._calibrated(timer))
            plan[name] = min(counts)
        pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        wanted = list(cases)
        while wanted:
            gc.collect()
            for number in range(PAIRS + 1):
                random.shuffle(wanted)
                for name in wanted:
                    taken = {}
                    for index in random.sample((0, 1), 2):
                        self.trees[index].enter()
                        taken[index] = await harness._run(timers[name][index], plan[name]) / plan[name]
                    if number:
                        pairs[name].append((taken[0], taken[1]))
            wanted = [name for name in wanted if len(pairs[name]) < self.most and _is_wide(compared(name, pairs[name]))]
        self.rows += [compared(name, pairs[name]) for name in cases]


def compared(case: str, pairs: list[tuple[float, float]]) -> Compared:
    """Return the row of a case from its pairs."""
    ratios = [own / other for own, other in pairs]
    draw = random.Random(1)
    drawn = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return Compared(
        case=case,
        other_ns=statistics.median(other for _, other in pairs),
        own_ns=statistics.median(own for own, _ in pairs),
        ratio=statistics.median(ratios),
        low=drawn[int(DRAWS * 0.025)],
        high=drawn[int(DRAWS * 0.975)],
        pairs=len(pairs),
    )


def _is_wide(row: Compared) -> bool:
    return row.high / row.ratio > 1 + WIDE or row.low / row.ratio < 1 - WIDE


def table(rows: list[Compared]) -> str:
    """Rows as aligned text."""
    width = max((len(row.case) for row in rows), default=4)
    lines = [f"{'case':<{width}}  {'other µs':>10}  {'own µs':>10}  {'ratio':>5}  {'95 % interval':<13}  pairs"]
    for row in rows:
        interval = f"{row.low:.3f}-{row.high:.3f}"
        lines.append(
            f"{row.case:<{width}}  {row.other_ns / 1e3:>10.3f}  {row.own_ns / 1e3:>10.3f}  {row.ratio:>5.2f}  "
            f"{interval:<13}  {row.pairs:>5}  {row.verdict}".rstrip()
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees", description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="the other source tree, a checkout of an older commit")
    parser.add_argument("names", nargs="+", metavar="group", help="groups, as `python -m benchmarks` names them")
    parser.add_argument("--pairs", type=int, default=MORE_PAIRS, help="most pairs of a row (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains TEXT")
    parser.add_argument("--other-first", action="store_true", help="let the other tree build its objects first")
    parser.add_argument("--wall", action="store_true", help="measure time that passes, not time of the processor")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    options = parser.parse_args()
    logging.getLogger("hookline").addHandler(logging.NullHandler())
    own, other = Tree(HERE), Tree(options.other.resolve())
    Tree.current = own
    # A process that a group spawns runs this file again, by its path, since the other tree may have no such module.
    sys.modules["__main__"].__spec__ = None
    sys.path[:0] = [str(HERE / "src"), str(HERE)]
    if not options.wall:
        harness.perf_counter_ns = time.thread_time_ns
        harness.statement.__kwdefaults__["clock"] = time.thread_time_ns
    groups = {name: name.replace("-", "_") for name in options.names}
    for name, group in groups.items():
        module = own.group(group, harness.interleave)
        if group != "compare" and not hasattr(module, "interleave"):
            parser.error(
                f"{name} cannot be compared: it measures processes that it starts, and those are of this tree."
            )
    done: dict[str, list[Compared]] = {}
    for name, group in groups.items():
        meeting = Meeting(own, other, options.pairs, options.only, other_first=options.other_first)
        done[name] = asyncio.run(meeting.run(group))
        print(f"\n## {name}\n\n{table(done[name])}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({group: [asdict(row) for row in rows] for group, rows in done.items()}))
    return 1 if any(row.verdict for rows in done.values() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
