"""The four suites are loaded and run once for all tests of this folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import pytest

from hookline.evals import SuiteRun, cases_of, record, replay
from hookline.evals.running import Case, SuiteRunner
from hookline.evals.suites.agentdojo import SUITES, AgentDojoSuite, load_suite


@pytest.fixture(scope="session")
def suites() -> list[AgentDojoSuite]:
    return [load_suite(name) for name in SUITES]


@pytest.fixture(scope="session")
def cases(suites: list[AgentDojoSuite]) -> list[Case]:
    return cases_of(suites)


@pytest.fixture(scope="session")
def real(cases: list[Case]) -> SuiteRun:
    return anyio.run(partial(record, cases))


@pytest.fixture(scope="session")
def replayed(real: SuiteRun, cases: list[Case]) -> SuiteRun:
    return anyio.run(partial(replay, real, cases))


@pytest.fixture(scope="session")
def tapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tapes")


@pytest.fixture(scope="session")
def recorded(cases: list[Case], tapes: Path) -> SuiteRun:
    """Every task with its real tools, a cassette file each."""
    return anyio.run(SuiteRunner(cases, mode="record", cassettes=tapes).run)
