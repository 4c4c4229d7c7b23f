"""The files of the pages about deployment: they can be read, and each of their commands exists with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser

import pytest
import yaml
from typer.testing import CliRunner

from hookline.cli._app import app

from .markdown import ROOT, Block, blocks

PAGES = ("docs/how-to/deploy.md", "docs/how-to/deploy-on-several-machines.md")


def blocks_in(page: str, language: str) -> list[Block]:
    return [block for block in blocks((ROOT / page).read_text()) if block.language == language]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each command of a container or a unit, without the program, and where it is."""
    for page in PAGES:
        for block in blocks_in(page, "yaml"):
            for name, service in yaml.safe_load(block.code)["services"].items():
                if service["image"] == "hookline":
                    yield f"{page}: {name}", service["command"]
        for block in blocks_in(page, "ini"):
            for line in re.findall(r"^ExecStart=\S+/hookline (.*)$", block.code, re.MULTILINE):
                yield f"{page}: {line[:20]}", shlex.split(line.replace("%i", "1"))


@pytest.mark.parametrize("command", [pytest.param(command, id=where) for where, command in commands()])
def test_a_command_of_a_deployment_exists_with_its_options(command: list[str]) -> None:
    words = 2 if command[0] == "hooks" else 1
    shown = CliRunner().invoke(app, [*command[:words], "--help"])
    assert shown.exit_code == 0, shown.output
    for option in (each for each in command[words:] if each.startswith("--")):
        assert re.search(rf"{re.escape(option)}\b", shown.output), option


def test_a_unit_can_be_read() -> None:
    for page in PAGES:
        for block in blocks_in(page, "ini"):
            if "[Unit]" in block.code:
                unit = ConfigParser(interpolation=None, strict=True)
                unit.optionxform = str  # type: ignore[assignment,method-assign]
                unit.read_string(block.code)
                assert unit["Service"]["User"] == "hookline"
