"""Worker processes of `hookline eval` are forked from one that has imported what they need."""

from __future__ import annotations

import sys

import pytest

from tests.forks import forking_python


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", forking_python("models"))
