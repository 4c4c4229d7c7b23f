"""A Rego policy decides about a run, through the policy engine `agent-control-spec` in an environment of its own."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import pytest

import hookline

ENGINE = "agent-control-spec==0.4.0b1"
"""Wants `agent-hooks-sdk==0.1.0b2`, one release before the one of the tests."""

SCENE = pathlib.Path(__file__).parent / "rego" / "scene.py"


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> pathlib.Path:
    """A folder with the engine and the SDK that it wants; kept beside what pytest keeps between runs."""
    folder = request.config.rootpath / ".pytest_cache" / "d" / "hookline-engines"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / ENGINE
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=kept.parent) as fresh:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]
            done = subprocess.run(
                [*pip, f"{fresh}/site", ENGINE], capture_output=True, text=True, timeout=100, check=False
            )
            assert done.returncode == 0, f"{ENGINE} could not be installed from the package registry: {done.stderr}"
            if not kept.exists():
                pathlib.Path(fresh, "site").rename(kept)
    return kept


@pytest.fixture(scope="module")
def told(engine: pathlib.Path) -> dict[str, Any]:
    """What the runs of the scene came to."""
    source = pathlib.Path(hookline.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(engine), str(source)])}
    done = subprocess.run(
        [sys.executable, SCENE], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["plain", "async"])
class TestARegoPolicy:
    def test_denies(self, told: dict[str, Any], kind: str) -> None:
        run = told[kind]["stranger"]

        assert (run["paid"], run["reason"]) == ([], "done")
        assert run["told"] == ["unknown_receiver: Pay friends only."]

    def test_allows(self, told: dict[str, Any], kind: str) -> None:
        assert told[kind]["friend"]["paid"] == [["Grace", 5]]

    def test_transforms(self, told: dict[str, Any], kind: str) -> None:
        run = told[kind]["capped"]

        assert (run["paid"], run["told"]) == ([["Ada", 100]], ["paid 100 to Ada"])
        assert run["output"] == "That is all for A.."

    def test_asks(self, told: dict[str, Any], kind: str) -> None:
        run = told[kind]["asked"]

        assert run["asked"] == ["large_sum: More than 1000: may it be paid?"]
        assert (run["paid"], run["reason"]) == ([["Ada", 5000]], "done")

    def test_leaves_a_record_of_everything(self, told: dict[str, Any], kind: str) -> None:
        assert told[kind]["records"] == 9


def test_the_engine_has_the_sdk_that_it_wants(told: dict[str, Any]) -> None:
    assert told["sdk"] == "0.1.0b2"
