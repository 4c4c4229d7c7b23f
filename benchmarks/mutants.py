"""Break modules on purpose, one small change at a time, and count the changes that their tests notice.

The changes are those of Cosmic Ray. A sample of them is drawn by a printed seed; each runs the modules' own tests in a
copy of the source. Exits 0 if at least 90 % of every sample are noticed.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    "dispatcher": (
        ("src/hookline/dispatcher/_dispatcher.py",),
        ("tests/dispatcher", "tests/runtime/test_heard_committed.py", "tests/loop/test_wrong_uses.py"),
    ),
    "lanes": (("src/hookline/dispatcher/_lanes.py",), ("tests/dispatcher",)),
    "events": (("src/hookline/events.py",), ("tests/events",)),
    "interceptors": (
        tuple(
            f"src/hookline/interceptors/{name}.py"
            for name in ("_chain", "_clock", "_failures", "_fold", "_return_values", "_traversal", "_validate")
        ),
        (
            "tests/interceptors",
            "tests/runtime/test_approval.py",
            "tests/runtime/test_asking_a_person.py",
            "tests/runtime/test_guides.py",
            "tests/runtime/test_interceptors_in_a_run.py",
            "tests/runtime/test_text_parts.py",
            "tests/webhooks/test_controls_on_resume.py",
        ),
    ),
}
"""By name: the modules from which a sample is drawn, and their own tests."""

NO_CHANGE = {f"core/ReplaceComparisonOperator_{before}_{after}" for before, after in (("Is", "Eq"), ("IsNot", "NotEq"))}
"""Operators left out: `is` stands between classes, `None` and sentinels here, for which equality is identity."""

GOAL = 0.9

TEST_SECONDS = 30
"""After which a test hangs; those of these folders take a second at most."""


@dataclass(frozen=True)
class Mutant:
    """One small change of a module."""

    module: str
    operator: str
    occurrence: int
    line: int
    source: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="module", help=f"of {', '.join(MODULES)} (default: all)")
    parser.add_argument("--sample", type=int, default=300, help="mutants of each module, at most (default: 300)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="draws the sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at once (default: one per processor)")
    options = parser.parse_args()
    if unknown := sorted(set(options.modules) - set(MODULES)):
        parser.error(f"no module {', '.join(unknown)}; there are {', '.join(MODULES)}")
    print(f"seed {options.seed}", flush=True)
    fine = True
    for name in options.modules or MODULES:
        fine = judge(name, options.sample, options.seed, options.jobs) and fine
    return 0 if fine else 1


def judge(name: str, sample: int, seed: int, jobs: int) -> bool:
    """Test a sample of the mutants of some modules, and print each that survives."""
    modules, tests = MODULES[name]
    every = [mutant for module in modules for mutant in mutants_of(module)]
    drawn = random.Random(f"{seed} {name}").sample(every, min(sample, len(every)))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hookline-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copies.put(copy_of_the_source(Path(folder) / str(number)))
        unchanged = run_tests(copies, None, tests, limit=1800.0)
        if unchanged.survived is False:
            print(f"{name}: the tests fail without any change:\n{unchanged.output[-3000:]}")
            return False
        limit = 60.0 + 4 * unchanged.seconds
        runs: list[TestRun] = []
        with ThreadPoolExecutor(jobs) as pool:
            for run in pool.map(lambda mutant: run_tests(copies, mutant, tests, limit), drawn):
                if run.survived:
                    show(drawn[len(runs)])
                runs.append(run)
                if len(runs) % 20 == 0:
                    gone = f"{sum(run.survived for run in runs)} survived, {time.monotonic() - began:.0f} s"
                    print(f"{name}: {len(runs)} of {len(drawn)} tried, {gone}", flush=True)
    killed = sum(not run.survived for run in runs)
    share = killed / len(drawn)
    print(
        f"{name}: {killed} of {len(drawn)} killed, {share:.1%} (goal {GOAL:.0%}); there are {len(every)} mutants; "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    return share >= GOAL


def show(mutant: Mutant) -> None:
    """Print a mutant that no test noticed."""
    print(f"\nsurvived: {mutant.module}:{mutant.line}  {mutant.operator}#{mutant.occurrence}")
    original = (ROOT / mutant.module).read_text()
    print("\n".join(changed_lines(original, mutant.source)), flush=True)


def mutants_of(module: str) -> Iterator[Mutant]:
    """Make every mutant of a module that Python would run otherwise."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    original = (ROOT / module).read_text()
    postponed = "from __future__ import annotations" in original
    same = meaning(original, postponed=postponed)
    for name in operator_names():
        operator_class = get_operator(name)
        if name == "core/NoOp" or name in NO_CHANGE or operator_class.arguments():
            continue
        operator = operator_class()
        positions = [start for node in ast_nodes(get_ast(original)) for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, _) in enumerate(positions):
            try:
                source = mutate_code(original, operator_class(), occurrence)
            except AttributeError:  # Cosmic Ray cannot replace an exception that is not given by a plain name
                continue
            if source is not None and meaning(source, postponed=postponed) not in (same, None):
                yield Mutant(module=module, operator=name, occurrence=occurrence, line=line, source=source)


def meaning(source: str, *, postponed: bool) -> str | None:
    """What Python makes of a source, but for what it never runs: annotations and protocols; `None` for no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases):
            node.body = [ast.Pass()]
    if postponed:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.returns = None
            elif isinstance(node, ast.arg):
                node.annotation = None
            elif isinstance(node, ast.AnnAssign):
                node.annotation = ast.Constant(None)
    return ast.dump(tree)


def copy_of_the_source(folder: Path) -> Path:
    """A tree of its own to break: the source is copied, the tests are not."""
    folder.mkdir()
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "docs", "benchmarks", "pyproject.toml", "README.md"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@dataclass(frozen=True)
class TestRun:
    """What the tests said of a source."""

    survived: bool
    seconds: float
    output: str


def run_tests(copies: SimpleQueue[Path], mutant: Mutant | None, tests: tuple[str, ...], limit: float) -> TestRun:
    """Run tests against a mutant, in one of the copies of the source; a hang is noticed too."""
    folder = copies.get()
    began = time.monotonic()
    try:
        if mutant is not None:
            (folder / mutant.module).write_text(mutant.source)
        alone = ["-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", str(TEST_SECONDS)]
        command = [sys.executable, "-m", "pytest", "-x", "-q", *alone, *tests]
        environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        return TestRun(survived=process.returncode == 0, seconds=time.monotonic() - began, output=output)
    finally:
        if mutant is not None:
            (folder / mutant.module).write_text((ROOT / mutant.module).read_text())
        copies.put(folder)


def changed_lines(original: str, source: str) -> Iterator[str]:
    """The lines that a mutant changes, before and after."""
    for line in difflib.unified_diff(original.splitlines(), source.splitlines(), n=0, lineterm=""):
        if line[:1] in "+-" and line[:3] not in ("+++", "---"):
            yield f"    {line}"


if __name__ == "__main__":
    sys.exit(main())
