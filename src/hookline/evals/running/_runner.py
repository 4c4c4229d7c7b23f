"""Run the tasks of suites: with real tools, recorded, replayed or strictly mocked, with or without faults."""

from __future__ import annotations

import contextlib
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from time import perf_counter_ns
from typing import get_args

import anyio

from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError
from hookline.evals.cassettes import Cassette, RecordMode
from hookline.evals.errors import CassetteFolderError, RunWriteError, UnknownTagError
from hookline.evals.faults import FaultSpec
from hookline.evals.running._protocol import RunsTasks
from hookline.evals.running._provenance import Provenance
from hookline.evals.running._results import Mode, SuiteRun, TaskKey, TaskResult
from hookline.evals.running._run_files import RunHeader, RunJournal
from hookline.evals.running._tasks import Case, TaskRun, TaskRunner, case_name, failed_result, model_of, tags_of
from hookline.evals.running._workers import WorkerPool, WorkerSetup
from hookline.evals.trajectories import CoverageCount, RecordedOperation
from hookline.hooks import AnyHook

__all__ = ["SuiteRunner", "cases_of", "record", "replay"]

OnResult = Callable[[TaskResult], object]
"""A function that is called after each task, to show progress."""

KEPT_OPERATIONS = 100
"""Operations of which the events are kept, for the waterfalls of a report."""

INTERRUPTED = "the run was interrupted"


def cases_of(suites: Iterable[RunsTasks], tasks: Iterable[str] = (), *, tags: Iterable[str] = ()) -> list[Case]:
    """List the tasks of suites.

    Args:
        suites: The suites.
        tasks: Names of tasks that each suite must have; by default all tasks.
        tags: Only tasks that have at least one of these tags.

    Raises:
        UnknownTaskError: If a suite has no task of a name.
        UnknownTagError: If no task has one of the tags.
    """
    names, wanted = list(tasks), set(tags)
    cases = [(suite, task_id) for suite in suites for task_id in suite.select(names)]
    if not wanted:
        return cases
    tagged = [(case, set(tags_of(case))) for case in cases]
    known = set[str]().union(*(found for _, found in tagged))
    for tag in sorted(wanted - known):
        raise UnknownTagError(tag, sorted(known))
    return [case for case, found in tagged if found & wanted]


async def record(
    cases: Sequence[Case],
    *,
    concurrency: int = 8,
    hooks: Iterable[AnyHook] = (),
    on_result: OnResult | None = None,
) -> SuiteRun:
    """Run tasks with their real tools, and record the answers in memory.

    Args:
        cases: The tasks.
        concurrency: The number of operations that run at the same time.
        hooks: Further hooks of every operation.
        on_result: A function that is called after each task.
    """
    return await SuiteRunner(
        cases,
        mode="real",
        concurrency=concurrency,
        hooks=hooks,
        on_result=on_result,
        made_by="hookline.evals.record()",
    ).run()


async def replay(
    recorded: SuiteRun,
    cases: Sequence[Case],
    *,
    concurrency: int = 8,
    hooks: Iterable[AnyHook] = (),
    on_result: OnResult | None = None,
) -> SuiteRun:
    """Run tasks again, with every tool call answered by the recording. No real tool runs.

    Args:
        recorded: The run that `record` returned.
        cases: The tasks. A task that was not recorded has no answers.
        concurrency: The number of operations that run at the same time.
        hooks: Further hooks of every operation.
        on_result: A function that is called after each task.
    """
    return await SuiteRunner(
        cases,
        mode="replayed",
        recorded=recorded.cassettes,
        concurrency=concurrency,
        hooks=hooks,
        on_result=on_result,
        made_by="hookline.evals.replay()",
    ).run()


class SuiteRunner:
    """Runs tasks, each as one operation with its own rules, faults and cassette.

    A task that raises counts as failed. The result of a task is written to a file as soon as it ends, and nothing of it
    is kept in memory. After an interruption, `so_far` returns the tasks that are done, and another runner can continue
    the file.

    Args:
        cases: The tasks.
        mode: Who answers tool calls. `"spy"` runs the real tools. `"record"` does, too, and writes their answers to
            one cassette file per task. `"replay"` answers from these files only, `"strict"` from the suite's own rules
            and, if `cassettes` is given, from these files; in both, no real tool runs. Recordings of a tool whose
            schema has changed since are named by `CallRow.stale` in a replay, and refused in a strict run.
        cassettes: The folder of the cassette files.
        recorded: Cassettes in memory, by task name, instead of files.
        faults: Faults to inject. Which calls they break depends only on `seed`, the task, its attempt and the call.
        seed: The seed of the run's faults.
        concurrency: The number of operations that run at the same time.
        hooks: Further hooks of every operation.
        on_result: A function that is called after each task.
        made_by: The command line or the function call that reports name as the origin of the run.
        repeat: How often each task is run. All tasks run once before one runs again.
        shuffle: A seed that shuffles the tasks.
        limit: Run only so many tasks, the first ones after they were shuffled.
        timeout: Seconds that a task may take. One that takes longer is cancelled and counts as failed. Time in which
            the provider of its model asked it to wait does not count.
        max_cost: US dollars after which no further task starts. Tasks under way end, so the run may cost more. A model
            without a known price ends the run, too.
        save: The file of the run. A file that exists is replaced, but an unfinished run is renamed to
            `FILE.interrupted`. Without it, results are kept in a temporary file.
        resume: The file of an unfinished run of the same tasks with the same settings. Tasks with a result in it do
            not run again; further results are added to it, or with `save` to a copy of it.
        workers: Run the tasks in so many processes, which load the suites from `targets`. A task that ends its process
            is run once more in a process of its own. Without it, tasks run in this process.
        targets: The names or files of the suites, as `find_suites` takes them.
        tapes: The folder of tapes, which record and replay the calls of models: one file per task, attempt and model.
            In `mode="record"` they are written anew, in `"replay"` and `"strict"` no model is asked, in `"spy"` known
            questions are replayed and others recorded. What a tape answers does not count towards `max_cost`.
        tape_mode: The record mode of the tapes in place of that: see `ModelTape`.
        allow_repeats: Whether tapes and cassettes give the last answer again to a call that is made more often than it
            was recorded.

    Raises:
        HookUsageError: If an argument is invalid.
        CassetteFolderError: If the mode needs cassettes and no folder is given.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        *,
        mode: Mode = "spy",
        cassettes: str | Path | None = None,
        recorded: Mapping[str, Cassette] | None = None,
        faults: Iterable[FaultSpec] = (),
        seed: int = 0,
        concurrency: int = 8,
        hooks: Iterable[AnyHook] = (),
        on_result: OnResult | None = None,
        made_by: str = "hookline.evals.SuiteRunner.run()",
        repeat: int = 1,
        shuffle: int | None = None,
        limit: int | None = None,
        timeout: float | None = None,
        max_cost: float | None = None,
        save: str | Path | None = None,
        resume: str | Path | None = None,
        workers: int | None = None,
        targets: Iterable[str] = (),
        tapes: str | Path | None = None,
        tape_mode: RecordMode | None = None,
        allow_repeats: bool = False,
    ) -> None:
        for name, count in (("concurrency", concurrency), ("repeat", repeat), ("limit", limit), ("workers", workers)):
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise HookUsageError(f"`{name}` is a whole number from 1; got {count!r}.")
        _check_amount("timeout", timeout, "a number of seconds above 0", positive=True)
        _check_amount("max_cost", max_cost, "a number of US dollars from 0")
        if shuffle is not None and (isinstance(shuffle, bool) or not isinstance(shuffle, int)):
            raise HookUsageError(f"`shuffle` is a whole number, the seed of the order; got {shuffle!r}.")
        hooks = list(hooks)
        names = _choose(dict.fromkeys(map(case_name, cases)), shuffle, limit)
        chosen = frozenset(names)
        self.cases = [case for case in cases if case_name(case) in chosen]
        self.mode: Mode = mode
        self.seed = seed
        self.repeat = repeat
        self.max_cost = max_cost
        self.targets = list(targets)
        self._names = names
        self._models = list(dict.fromkeys(filter(None, map(model_of, self.cases))))
        self._by_key = {(case_name(case), model_of(case)): case for case in self.cases}
        if len(self._by_key) < len(self.cases):
            (twice, _), _ = Counter((case_name(case), model_of(case)) for case in self.cases).most_common(1)[0]
            raise HookUsageError(f"The task {twice!r} is given twice; `repeat` runs tasks several times.")
        if tape_mode is not None and tape_mode not in get_args(RecordMode):
            raise HookUsageError(f"`tape_mode` is one of {', '.join(get_args(RecordMode))}; got {tape_mode!r:.60}.")
        if tape_mode is not None and tapes is None:
            raise HookUsageError("`tape_mode` is the mode of tapes; give `tapes`, their folder.")
        if mode == "record" and cassettes is None and (repeat > 1 or len(self._models) > 1):
            raise HookUsageError(
                "A cassette of a task's own holds one recording; give `cassettes`, a folder, to record several "
                "attempts or models."
            )
        self._faults = list(faults)
        if workers is not None:
            _check_workers(mode, hooks=hooks, recorded=recorded, targets=self.targets)
        self._choices = _choices_of(self.cases, in_workers=workers is not None)
        self._tasks = TaskRunner(
            mode=mode,
            cassettes=cassettes,
            recorded=recorded,
            faults=self._faults,
            seed=seed,
            hooks=hooks,
            timeout=timeout,
            tapes=tapes,
            tape_mode=tape_mode,
            allow_repeats=allow_repeats,
        )
        self._tape_options = None if tapes is None else Path(tapes), tape_mode, allow_repeats
        self._folder = folder = None if cassettes is None else Path(cassettes)
        homeless = [case for case in self.cases if self._tasks.path(case) is None]
        if mode in ("record", "replay") and homeless:
            raise CassetteFolderError(mode, f"none is given, and {case_name(homeless[0])} names no cassette of its own")
        if mode == "replay" and folder is not None and not folder.is_dir():
            raise CassetteFolderError(mode, f"there is no folder {folder}")
        if mode == "replay" and tapes is not None and not Path(tapes).is_dir():
            raise CassetteFolderError(mode, f"there is no folder {tapes}")
        self._concurrency = concurrency
        self._on_result = on_result
        self._suites = list(dict.fromkeys(suite for suite, _ in self.cases))
        self._made_by = made_by
        self._save, self._resume = (None if path is None else Path(path).absolute() for path in (save, resume))
        self._seeds = {"faults": seed} | ({} if shuffle is None else {"shuffle": shuffle})
        self._provenance = Provenance.of(self._suites, made_by, seeds=self._seeds)
        self._workers = workers
        self._journal: RunJournal | None = None
        self._pending: deque[TaskKey] = deque()
        self._kept = KeptOperations(KEPT_OPERATIONS)
        self._cassettes: dict[str, Cassette] = {}
        self._coverage = {
            suite.name: CoverageCount(suite.name, getattr(suite, "tool_specs", ())) for suite in self._suites
        }
        self._started = perf_counter_ns()
        self._duration_ms = 0.0
        self._stopped = ""
        self._unpriced: list[str] = []
        self.cost_usd = 0.0
        """The cost of all results so far in US dollars, those of a resumed run included. Replays cost nothing."""

    async def run(self) -> SuiteRun:
        """Run all tasks.

        Raises:
            RunFileError: If the file to resume cannot be read.
            RunResumeError: If it is a run of other tasks or with other settings.
            RunWriteError: If a result cannot be written. The run ends.
            WorkerError: If worker processes cannot load the suites.
        """
        self._started = perf_counter_ns()
        journal = self.open()
        self._pending = deque(journal.missing)
        try:
            if not self._pending:
                pass
            elif self._workers is None:
                await self._run_here()
            else:
                await self._run_in_workers(self._workers)
        except BaseException:
            self._stopped = self._stopped or INTERRUPTED
            with contextlib.suppress(RunWriteError):  # a file without an end can be continued all the same
                self._end(journal)
            raise
        else:
            self._end(journal)
        finally:
            journal.release()
        return self.so_far

    def open(self) -> RunJournal:
        """Open the file of the run. `run` does it, unless it was called before to see what is done already.

        Raises:
            RunFileError: If the file to resume cannot be read.
            RunResumeError: If it is a run of other tasks or with other settings.
            RunWriteError: If the file cannot be written.
        """
        if self._journal is not None:
            return self._journal
        header = RunHeader(
            targets=self.targets or [suite.name for suite in self._suites],
            mode=self.mode,
            seed=self.seed,
            faults=_digest(self._faults),
            cases=self._names,
            repeat=self.repeat,
            models=self._models,
            agent=", ".join(dict.fromkeys(agent for _, agent in self._choices if agent)),
            provenance=self._provenance,
        )
        if self._resume is None:
            self._journal = RunJournal.begin(header, self._save)
        else:
            self._journal = RunJournal.resume(header, self._resume, into=self._save)
        for result in self._journal.results:
            self._count(result)
        return self._journal

    @property
    def done(self) -> int:
        """The number of results so far, those of a resumed run included."""
        return 0 if self._journal is None else len(self._journal.spans)

    @property
    def planned(self) -> int:
        """The number of results of the whole run."""
        return len(self.cases) * self.repeat

    @property
    def so_far(self) -> SuiteRun:
        """Return the results of the tasks that are done, in the order in which they were planned."""
        journal = self._journal
        resumed = None if journal is None else journal.read
        return SuiteRun(
            mode=self.mode,
            results=[] if journal is None else journal.results,
            operations=self._kept.operations,
            cassettes=dict(self._cassettes),
            duration_ms=self._duration_ms if journal is None else journal.elapsed_before + self._duration_ms,
            seed=self.seed,
            coverage=[count.coverage for count in self._coverage.values()],
            not_run=self._names if journal is None else journal.not_run,
            provenance=self._provenance if resumed is None else resumed.header.provenance,
            repeat=self.repeat,
            models=self._models,
            stopped=self._stopped,
            resumed=[] if journal is None else journal.resumed,
        )

    async def _run_here(self) -> None:
        failures: list[RunWriteError] = []

        async def work() -> None:
            while (key := self._next_key()) is not None:
                done = await self._tasks.run(self._by_key[key[0], key[2]], key, dispatcher)
                try:
                    self._take(done)
                except RunWriteError as error:  # alone, and not in the group of exceptions that a task group makes
                    failures.append(error)
                    group.cancel_scope.cancel()

        with self._tasks:
            async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:
                for _ in range(min(self._concurrency, len(self._pending))):
                    group.start_soon(work)
        if failures:
            raise failures[0]

    async def _run_in_workers(self, workers: int) -> None:
        tapes, tape_mode, allow_repeats = self._tape_options
        pool = WorkerPool(
            WorkerSetup(
                targets=self.targets,
                mode=self.mode,
                cassettes=None if self._folder is None else str(self._folder.absolute()),
                seed=self.seed,
                timeout=self._tasks.timeout,
                keep=KEPT_OPERATIONS,
                choices=self._choices,
                tapes=None if tapes is None else str(tapes.absolute()),
                tape_mode=tape_mode,
                allow_repeats=allow_repeats,
            ),
            faults=self._faults,
            workers=min(workers, len(self._pending)),
            concurrency=self._concurrency,
            next_key=self._next_key,
            give_back=lambda keys: self._pending.extendleft(reversed(keys)),
            take=self._take,
            fail=self._take_failure,
        )
        await pool.run()

    def _next_key(self) -> TaskKey | None:
        """Return the next task to run; `None` if there is none, or if the money is spent."""
        if not self._pending:
            return None
        if self.max_cost is not None and self._unpriced:
            self._stopped = (
                f"the price of {', '.join(self._unpriced)} is not known, so that no limit of costs can hold. Give the "
                "model a price, PydanticModel(..., price=...), or run without the limit, --max-cost"
            )
            return None
        if self.max_cost is not None and self.cost_usd >= self.max_cost:
            self._stopped = (
                f"the tasks have cost {self.cost_usd:.4g} USD, and no more than {self.max_cost:g} was to be spent"
            )
            return None
        return self._pending.popleft()

    def _take(self, done: TaskRun) -> None:
        """Write the result of a task, and keep what a report needs of it."""
        self.open().add(done.result, (perf_counter_ns() - self._started) / 1e6)
        self._count(done.result)
        if done.recorded is not None:
            self._kept.add(done.recorded, ok=done.result.ok)
        if done.cassette is not None:
            self._cassettes[done.result.name] = done.cassette
        if self._on_result is not None:
            self._on_result(done.result)

    def _take_failure(self, key: TaskKey, why: str, reason: str, duration_ms: float) -> None:
        """Write the result of a task that has ended its process, or had to be ended with it."""
        self._take(TaskRun(result=failed_result(self._by_key[key[0], key[2]], key, why, duration_ms, reason=reason)))

    def _count(self, result: TaskResult) -> None:
        spent = result.spent_usd
        if spent is None:
            self._unpriced = self._unpriced or list(result.unpriced_models)
        self.cost_usd += spent or 0.0
        self._coverage[result.suite].add(result.calls)

    def _end(self, journal: RunJournal) -> None:
        self._duration_ms = (perf_counter_ns() - self._started) / 1e6
        journal.end(self._duration_ms, [count.coverage for count in self._coverage.values()], self._stopped)


class KeptOperations:
    """Keeps the events of some operations: failed ones first.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._passed: dict[str, RecordedOperation] = {}
        self._failed: dict[str, RecordedOperation] = {}

    @property
    def operations(self) -> dict[str, RecordedOperation]:
        """The operations, by id."""
        return {**self._failed, **self._passed}

    def add(self, recorded: RecordedOperation, *, ok: bool) -> None:
        """Keep an operation if there is room, or if it failed and one that passed can make room."""
        if len(self._passed) + len(self._failed) >= self.most:
            if ok or not self._passed:
                return
            self._passed.popitem()
        (self._passed if ok else self._failed)[recorded.operation_id] = recorded


def _choose(names: Iterable[str], shuffle: int | None, limit: int | None) -> list[str]:
    chosen = list(names)
    if shuffle is not None:
        random.Random(shuffle).shuffle(chosen)
    return chosen[:limit]


def _check_amount(name: str, value: float | None, expected: str, *, positive: bool = False) -> None:
    if value is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not isfinite(value) or value < 0 or (positive and value == 0):
        raise HookUsageError(f"`{name}` is {expected}; got {value!r:.60}.")


def _check_workers(mode: Mode, *, hooks: Sequence[AnyHook], recorded: object, targets: Sequence[str]) -> None:
    """Check that tasks can run in other processes.

    Raises:
        HookUsageError: If they cannot.
    """
    if hooks:
        raise HookUsageError("Hooks cannot be sent to worker processes; leave `workers` out, or `hooks`.")
    if mode in ("real", "replayed") or recorded:
        raise HookUsageError("A recording in memory cannot be shared with worker processes; use files of cassettes.")
    if not targets:
        raise HookUsageError(
            "Worker processes load the suites themselves; name them in `targets`: targets=['suite.py']."
        )


def _choices_of(cases: Iterable[Case], *, in_workers: bool) -> list[tuple[str | None, str | None]]:
    """Return the names of the models and agents that were chosen in place of the suites' own, each once.

    Raises:
        HookUsageError: If worker processes have to make a choice that has no names.
    """
    found: dict[tuple[str | None, str | None], None] = {}
    for suite, _ in cases:
        choice = getattr(suite, "choice", None)
        names = getattr(choice, "names", None)
        if names is not None:
            found[names] = None
        elif choice is not None and in_workers:
            raise HookUsageError(
                "A model or an agent that is an object cannot be sent to worker processes; give its name, "
                "`openai:gpt-5` or `package.module:agent`, or leave `workers` out."
            )
    return list(found)


def _digest(faults: Sequence[FaultSpec]) -> str:
    """Return a text that is the same for the same faults, also in another process."""
    if not faults:
        return ""
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(faults))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
