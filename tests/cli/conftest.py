"""Worker processes of `hookline eval` are forked from one that has imported what they need."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.cli.workers import load_models_and_suites
from tests.forked_python import fork_python


@pytest.fixture(scope="session")
def forking_python() -> Iterator[str]:
    with fork_python(load_models_and_suites) as python:
        yield python


@pytest.fixture
def forked_workers(forking_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", forking_python)
