"""Every test of the core runs on both event loops."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import hypothesis.entry_points  # it asks the collector who refers to what, so it comes before the freeze
import pytest
import typer.testing

from tests.browsers import browser, chromium, driver, pytest_collection_finish, pytest_terminal_summary
from tests.forks import end_servers, fork_xdist_workers, servers_folder, share_servers
from tests.temporary import keep_temporary_files_in_memory

__all__ = ["browser", "chromium", "driver", "pytest_collection_finish", "pytest_terminal_summary"]

keep_temporary_files_in_memory()

# The runner of Typer makes all commands anew for each that it runs, which takes longer than most of them.
typer.testing._get_command = functools.cache(typer.main.get_command)

# An example that takes long on a machine that is busy is no failure of what it tests.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

EXAMPLES = int(os.environ.get("HOOKLINE_EXAMPLES", "1"))
"""How many times as many examples as it says each Hypothesis test tries."""


TESTS = Path(__file__).parent


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:  # some tests alone need fewer libraries
        fork_xdist_workers(specs)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["servers"] = str(servers_folder())


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        share_servers(config.workerinput["servers"])


def pytest_unconfigure() -> None:
    end_servers()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker of xdist collect another folder first, so that it finds the other tests rewritten by other workers.

    To rewrite the assertions of all tests takes as long as to collect them, and workers that collect the folders in the
    same order all rewrite the same file at the same time.
    """
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker and collector.path == TESTS:
        first = len(report.result) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # all workers must know the tests in the same order
        items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else "")
    given: set[int] = set()  # functions with several parameters come several times
    for item in items if EXAMPLES > 1 else ():
        test = getattr(item, "obj", None)
        function: Any = getattr(test, "__func__", test)  # the test of a state machine is a method
        settings = getattr(function, "_hypothesis_internal_use_settings", None)  # as Hypothesis' own plugin finds them
        if settings is None or id(function) in given:
            continue
        given.add(id(function))
        more = hypothesis.settings(settings, max_examples=settings.max_examples * EXAMPLES)
        function._hypothesis_internal_use_settings = more
        if isinstance(getattr(getattr(item, "cls", None), "settings", None), hypothesis.settings):
            item.cls.settings = more  # type: ignore[attr-defined]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Captured text that no encoding knows cannot be sent from the process of a test to that of the report."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays, so the collector has nothing to find, and would look for a fourth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000, 20, 50)  # with 700, the collector takes a tenth to a fifth of the time of most tests


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Imports stay, and what others have made: a collector that walks through it stops a test beyond its timeouts."""
    if any(gc.get_count()[1:]):  # at least 10,000 objects are new
        gc.collect()
        gc.freeze()
