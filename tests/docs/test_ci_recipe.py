"""The workflow for CI that the cookbook shows is run: it passes an equal agent, and stops one that got worse."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from .markdown import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "cookbook" / "gate-ci.md"
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")


def workflow_steps() -> list[dict[str, object]]:
    (block,) = [block for block in blocks(PAGE.read_text()) if block.marker == "workflow"]
    steps = yaml.safe_load(block.code)["jobs"]["agent"]["steps"]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    return list(steps)


def git(folder: Path, *arguments: str) -> None:
    subprocess.run([*GIT, *arguments], cwd=folder, check=True, capture_output=True)


def environment(**more: str) -> Mapping[str, str]:
    bin_folder = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", **more}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files of the page and the baseline of its main branch."""
    origin = tmp_path_factory.mktemp("repository") / "origin"
    origin.mkdir()
    for block in blocks(PAGE.read_text()):
        if block.marker.startswith("file:"):
            (origin / block.marker.removeprefix("file:").strip()).write_text(block.code)
    (baseline,) = [block.code for block in blocks(PAGE.read_text()) if "--save baseline.jsonl" in block.code]
    subprocess.run(["bash", "-ec", baseline], cwd=origin, check=True, capture_output=True, env=environment())
    git(origin, "init", "-q", "-b", "main")
    git(origin, "add", "shop.yaml", "shop_tools.py", "baseline.jsonl")
    git(origin, "commit", "-qm", "Add the suite and its baseline")
    return origin


@pytest.mark.parametrize(
    ("answer", "code", "summary"),
    [
        ("Tea costs 3 EUR.", 0, "### ✓ Nothing got worse, 0 better."),
        ("I do not know.", 1, "### ✗ 1 task got worse, 0 better."),
    ],
)
def test_the_workflow_of_the_page_stops_a_change_that_makes_the_agent_worse(
    origin: Path, tmp_path: Path, answer: str, code: int, summary: str
) -> None:
    clone, shown = tmp_path / "clone", tmp_path / "summary.md"
    git(tmp_path, "clone", "-q", str(origin), "clone")
    suite = clone / "shop.yaml"
    suite.write_text(suite.read_text().replace("Tea costs 3 EUR.", answer))
    git(clone, "checkout", "-qb", "change")
    git(clone, "commit", "-q", "--allow-empty", "-am", "Change the agent")

    commands = [str(step["run"]) for step in workflow_steps() if "run" in step]
    assert [command.split()[0] for command in commands] == ["pip", "hookline"]
    done = subprocess.run(
        ["bash", "-ec", commands[1]],
        cwd=clone,
        env=environment(GITHUB_BASE_REF="main", GITHUB_STEP_SUMMARY=str(shown)),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code, done.stdout + done.stderr
    assert shown.read_text().splitlines()[0] == summary
    assert {path.name for path in clone.glob("*.jsonl")} == {"baseline.jsonl", "change.jsonl"}
    assert (clone / "results.xml").exists()
