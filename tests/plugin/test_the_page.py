"""The page about the plugin shows tests that pass, and what pytest prints for them."""

from __future__ import annotations

import shlex

import pytest
from docs.markdown import ROOT, blocks

from .conftest import Project


def test_what_the_page_shows_is_what_pytest_prints(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project.path))
    printed, runs = "", 0

    for block in blocks((ROOT / "docs" / "how-to" / "test-with-pytest.md").read_text()):
        if block.marker.startswith("file:"):
            project.write(block.marker.removeprefix("file:").strip(), block.code)
        elif block.language == "sh" and block.code.startswith("pytest"):
            result = project.run(*shlex.split(block.code)[1:])
            printed, runs = result.stdout.str(), runs + 1
            assert result.ret == 0, block.code
        elif block.language == "text":
            for line in block.code.splitlines():
                assert line in printed, f"line {block.line}"

    assert runs == 6
    assert (project.path / "report.html").exists()
