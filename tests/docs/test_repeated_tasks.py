"""The page on repeats shows the figures that its command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hookline.cli._app import app

from .markdown import ROOT, blocks
from .test_code_of_the_pages import forget_modules_of

PAGE = ROOT / "docs" / "how-to" / "repeat-tasks.md"
TIME = re.compile(r"[\d.]+ (ms|µs|s)\b")


def figures(text: str) -> list[str]:
    """The lines of a text, without times and the blanks between columns."""
    return [" ".join(TIME.sub("time", line).split()) for line in text.splitlines() if line.strip("─ ")]


def test_the_page_shows_the_figures_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = list(blocks(PAGE.read_text()))
    for block in page:
        if block.marker.startswith("file:"):
            Path(block.marker.removeprefix("file:").strip()).write_text(block.code)

    try:
        result = CliRunner().invoke(app, ["eval", "greeter.yaml", "--repeat", "4"])
    finally:
        forget_modules_of(tmp_path)

    (shown,) = [block.code for block in page if block.language == "text" and block.code.startswith("task")]
    assert set(figures(shown)) <= {"task passed score steps calls cost time", *figures(result.stdout)}
