"""Tasks run in worker processes as they do in this one, and a process that dies loses only what it was running."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import anyio
import anyio.lowlevel
import pytest

from hookline.errors import HookUsageError
from hookline.evals import SuiteRun, SuiteRunner, WorkerError, cases_of, load_run, stable_fields
from hookline.evals.faults import FailedResult, FaultSpec, RaiseError
from hookline.evals.running import _workers
from hookline.evals.suites import find_suites
from tests.forks import fork_python
from tests.signals import default_signals

PYTHON = '''\
import os, signal, time
from pathlib import Path
from hookline import tool
from hookline.evals.suites import Task, UserSuite, asks, checks, says

HERE = Path(__file__).parent

@tool(in_thread=False)
def price(item: str) -> str:
    """Look up a price."""
    print("a tool may print")
    return f"{item} costs {len(item)} EUR, {sorted({item, 'cup'})}"

@tool(in_thread=False)
async def wait(name: str) -> str:
    """Wait until a file is there."""
    import anyio
    whole = HERE / f"{name}.written"
    whole.write_text(str(os.getpid()))
    whole.rename(HERE / f"{name}.waits")  # whoever sees the file sees the number in it
    while not (HERE / name).exists():
        await anyio.sleep(0.01)
    return "it is there"

@tool(in_thread=False)
def hold_up() -> str:
    """Hold up the process."""
    time.sleep(1000)
    return ""

@tool(in_thread=False)
def die() -> str:
    """End the process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""

TOOLS = [price]

def task(id, tool, **args):
    return Task(id=id, prompt=f"{id}!", script=[asks(tool, **args), says("done")], checks=[checks.called(tool)], tags=["x"])

suite = UserSuite("shop", tools=[price, wait, hold_up, die], tasks=[
    *(task(f"tea-{number}", "price", item="tea" * number) for number in range(6)),
    task("wait", "wait", name="go"), task("hold-up", "hold_up"), task("die", "die"),
])
'''

YAML = """\
suite: yaml
tools: MODULE:TOOLS
tasks:
  - id: tea
    prompt: What does tea cost?
    script: [{tool: price, args: {item: tea}}, {say: 3 EUR}]
    checks: [{output_contains: EUR}]
"""


@pytest.fixture
def forked() -> Iterator[None]:
    """Processes are forks of one that has imported hookline.

    If one is killed, its fork ends a moment later, and so do its pipes: not for tests in which a runner here does that.
    """
    with fork_python("hookline"):
        yield


@pytest.fixture
def targets(tmp_path: Path) -> list[str]:
    """A suite in Python and one in YAML."""
    module = f"shop_{uuid4().hex}"  # Python keeps modules by their names
    (tmp_path / f"{module}.py").write_text(PYTHON)
    (tmp_path / "suite.yaml").write_text(YAML.replace("MODULE", module))
    return [str(tmp_path / f"{module}.py"), str(tmp_path / "suite.yaml")]


def runner(targets: list[str], tasks: list[str], **options: object) -> SuiteRunner:
    cases = [case for target in targets for case in cases_of(find_suites(target)) if case[1] in tasks]
    return SuiteRunner(cases, targets=targets, **options)  # type: ignore[arg-type]


def run(targets: list[str], tasks: list[str], backend: str = "asyncio", **options: object) -> SuiteRun:
    return anyio.run(runner(targets, tasks, **options).run, backend=backend)


TEAS = [f"tea-{number}" for number in range(6)] + ["tea"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_faults_and_cassettes_are_the_same_in_any_number_of_processes(
    targets: list[str], tmp_path: Path, backend: str
) -> None:
    faults = [FaultSpec(tool="*/price", fault=RaiseError(ConnectionError("down")), probability=0.5)]
    here, there = tmp_path / "here", tmp_path / "there"
    go = partial(run, targets, TEAS, backend, mode="record", seed=5, faults=faults)

    one, two = go(cassettes=here), go(cassettes=there, workers=2)

    def without_folder(found: SuiteRun) -> list[object]:
        return [{**stable_fields(each), "cassette": Path(each.cassette or "").name} for each in found.results]

    assert without_folder(one) == without_folder(two)
    assert one.coverage == two.coverage
    assert len(one.faults) == len(two.faults) > 0
    assert set(two.operations) == {each.operation_id for each in two.results}
    files = [sorted(str(each.relative_to(folder)) for each in folder.glob("*/*.yaml")) for folder in (here, there)]
    assert files[0] == files[1] != []


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_process_whose_start_is_cancelled_is_waited_for(
    targets: list[str], monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(_workers, "GRACE", 0)

    async def start(steps: int) -> None:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()

            group.start_soon(cancel)
            await runner(targets, ["tea"], workers=1).run()

    for steps in range(8):
        anyio.run(start, steps, backend=backend)
        gc.collect()  # a process that nobody waited for warns when it is forgotten


def test_a_task_that_ends_or_holds_up_its_process_fails_alone(
    targets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_workers, "GRACE", 0.3)
    monkeypatch.setattr(_workers, "PING", 0.3)

    found = run(targets[:1], ["tea-1", "tea-2", "hold-up", "die"], workers=1, timeout=0.5, save=tmp_path / "run.jsonl")

    by_task = {each.task_id: each for each in found.results}
    assert [each.ok for each in found.results] == [True, True, False, False]
    assert by_task["die"].reason == "crash"
    assert by_task["die"].failure == "the process that ran it alone was killed by SIGKILL"
    assert by_task["hold-up"].reason == "timeout"
    assert by_task["hold-up"].failure == "it took too long and held up its process, which was killed"
    assert by_task["die"].tags == ["x"]
    assert load_run(tmp_path / "run.jsonl").results == found.results


def test_a_suite_that_another_process_cannot_load_is_told(targets: list[str]) -> None:
    made = runner(targets[:1], ["tea-1"], workers=1)
    Path(targets[0]).write_text("1 / 0")

    with pytest.raises(WorkerError, match="division by zero"):
        anyio.run(made.run)


def test_a_task_that_another_process_does_not_have_is_told(targets: list[str]) -> None:
    made = runner(targets[:1], ["tea-1"], workers=1)
    Path(targets[0]).write_text(PYTHON.replace('f"tea-{number}"', 'f"coffee-{number}"'))

    with pytest.raises(WorkerError, match="has no task 'shop/tea-1' in a new process"):
        anyio.run(made.run)


def test_what_cannot_be_sent_to_another_process_is_refused(targets: list[str]) -> None:
    local = FailedResult(content="x")

    class Local(FailedResult, frozen=True, kw_only=True):
        pass

    made = runner(targets[:1], ["tea-1"], workers=1, faults=[FaultSpec(tool="*", fault=Local(content="x"))])

    with pytest.raises(HookUsageError, match="cannot be sent to worker processes"):
        anyio.run(made.run)
    with pytest.raises(HookUsageError, match="Hooks cannot be sent"):
        runner(targets[:1], ["tea-1"], workers=1, hooks=[object()])
    assert local.content == "x"


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("options", [[], ["--workers", "1"]])
def test_a_run_that_is_killed_is_completed_to_the_same_results(
    targets: list[str], tmp_path: Path, options: list[str]
) -> None:
    path, tasks = tmp_path / "run.jsonl", ["tea-0", "tea-1", "tea-2", "wait"]
    names = [word for name in tasks for word in ("--task", name)]
    command = [sys.executable, "-c", "from hookline.cli import main; main()", "eval", targets[0], *names]
    killed = subprocess.Popen(
        [*command, "--save", str(path), "--concurrency", "1", *options],
        stdout=subprocess.DEVNULL,
        preexec_fn=default_signals,
    )
    wait_until(lambda: (tmp_path / "go.waits").exists())
    process = int((tmp_path / "go.waits").read_text())

    killed.kill()
    killed.wait()
    saved = load_run(path)
    (tmp_path / "go").touch()
    wait_until(lambda: not is_running(process))  # a worker does not outlive the run
    resumed = run(targets[:1], tasks, resume=path)
    whole = run(targets[:1], tasks)

    assert [each.task_id for each in saved.results] == ["tea-0", "tea-1", "tea-2"]
    assert [stable_fields(each) for each in resumed.results] == [stable_fields(each) for each in whole.results]
    assert resumed.ok


def wait_until(happens: object) -> None:
    limit = time.monotonic() + 60
    while not happens():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.02)


def is_running(process: int) -> bool:
    """Return whether a thread of a process runs: its files stay open, and locked, until the last one has ended."""
    for thread in Path(f"/proc/{process}/task").glob("*/stat"):
        try:
            state = thread.read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "XZ":  # a process whose parent has not asked for its end is one in name only
            return True
    return False
