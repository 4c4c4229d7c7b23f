"""Commands have one grammar: what help shows, what a wrong name is answered with, and that looking creates nothing."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from hookline.cli._app import app
from tests.cli.operated import database, run
from tests.cli.terminals import Terminal
from tests.docs.markdown import ROOT, rows

DEFINITION = '[[hooks]]\nname = "A"\npoint = "ToolCall.guard"\nhandler = "deny"\n'

READING = [
    "approvals list",
    "approvals approve op",
    "approvals reject op",
    "audit list",
    "audit export",
    "budgets list",
    "budgets show a",
    "budgets reset a",
    "deliveries list",
    "deliveries retry msg_1",
    "deliveries replay --status dead",
    "endpoints list",
    "endpoints revoke sec_1",
    "endpoints rotate https://acme.example/in",
    "executions list",
    "executions follow",
    "relay status",
    "relay dead-letters",
    "relay retry a",
    "relay replay a --since 1h",
    "executions stats",
    "hooks list",
    "hooks show a",
    "hooks test a",
    "hooks backtest a",
    "hooks enable a",
    "hooks disable a",
    "hooks remove a",
    "hooks history a",
    "hooks alerts",
    "hooks enforce a --percent 5",
    "hooks shadow a",
    "hooks order ToolCall.guard a",
    "hooks revert a",
    "hooks revert a 1",
    "keys list",
    "keys revoke a",
    "keys rotate x",
    "keys rotate-master",
    "operations list",
    "operations show op",
    "operations events op",
]
"""Commands that need a store that is there already."""
REFUSED = [
    "keys create ops --scope nothing",
    "keys create ops --scope hooks:read --expires never",
    "hooks diff broken.toml",
    "hooks apply broken.toml",
    "hooks apply missing.toml",
    "hooks import broken.toml",
    "hooks import missing.json",
    "host install emacs --hooks missing.py",
    "serve --port 0 --files broken.toml",
    "serve --port 0 --trusted-proxy nowhere",
    "serve --port 0 --agent missing.py:agent",
    "relay run --bus gopher://x",
]
"""Commands that create a store, with arguments that are refused."""


def helps(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """The names of all commands and groups."""
    yield path
    for name in getattr(command, "commands", ()):
        below = command.get_command(None, name)
        if not below.hidden:
            yield from helps(below, *path, name)


HELPS = list(helps(typer.main.get_command(app)))


def assert_readable(shown: str) -> None:
    """Assert that a help fits 80 columns, cuts no text and has no type or range in place of a word."""
    usage, *rest = shown.splitlines()
    assert max(len(line) for line in [usage, *rest]) <= 80
    assert not [line for line in rest if "…" in line or line.endswith("...")]
    assert not [noise for noise in ("<bool>", "<str>", "range>", "x>=", "<=x", "[required]") if noise in shown]
    assert not [noise for noise in ("{", "......", "[[") if noise in usage]


@pytest.mark.parametrize("path", HELPS, ids=" ".join)
def test_help_fits_eighty_columns_and_cuts_nothing(path: tuple[str, ...]) -> None:
    shown = run(*path, "--help", width=80)

    assert shown.exit_code == 0
    assert_readable(shown.stdout)


def test_help_shows_the_words_that_an_option_may_have() -> None:
    assert "  --format csv|jsonl " in run("audit", "export", "--help", width=80).stdout


def test_every_command_is_in_the_reference_with_its_verbs() -> None:
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    shown = [row for heading in ("Commands on a store", "Other commands") for row in rows(page, heading)]

    for noun, *verbs in filter(None, HELPS):
        text = " ".join(
            cell for row in shown if f"{row[0].strip('`')} ".startswith(f"hookline {noun} ") for cell in row
        )
        assert text, f"hookline {noun}"
        missing = [verb for verb in verbs if not re.search(rf"[` ]{verb}[` ]", text)]
        assert missing == [], f"hookline {noun}"


@pytest.mark.parametrize("line", ["--help", "serve --help"])
def test_help_fits_a_terminal_of_eighty_columns(tmp_path: Path, line: str) -> None:
    with Terminal(*line.split(), cwd=tmp_path, columns=80) as terminal:
        assert terminal.ended() == 0
        assert_readable(terminal.text)


def test_the_name_alone_shows_the_commands_in_a_dozen_lines() -> None:
    shown = run()

    assert (shown.exit_code, shown.stderr) == (2, "")
    assert len(shown.stdout.splitlines()) <= 12
    for name in (path[0] for path in HELPS if len(path) == 1):
        assert f" {name}" in shown.stdout.replace(",", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("approve op", "approvals approve"),
        ("reject op t1 --continue", "approvals reject"),
        ("logs", "executions"),
        ("logs --json", "executions"),
        ("logs tail -n 3", "executions follow"),
        ("hooks add hooks.toml", "hooks apply"),
        ("hooks toggle no-shell --off", "hooks enable' or 'hookline hooks disable"),
    ],
)
def test_an_old_name_is_answered_with_the_new_one(old: str, new: str) -> None:
    refused = run(*old.split())

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"Did you mean 'hookline {new}'?" in refused.stderr


@pytest.mark.parametrize(
    ("typo", "meant"), [("aproval", "approvals"), ("hooks lst", "list"), ("keys revok", "revoke"), ("servee", "serve")]
)
def test_a_typo_is_answered_with_what_was_meant(typo: str, meant: str) -> None:
    refused = run(*typo.split())

    assert refused.exit_code == 2
    assert f"Did you mean '{meant}'" in refused.stderr


@pytest.mark.parametrize("line", READING)
def test_a_command_that_reads_or_changes_a_store_creates_none(tmp_path: Path, line: str) -> None:
    refused = run(*line.split(), url=database(tmp_path))

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "There is no store" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_command_that_takes_a_store_is_tried_without_one() -> None:
    tried = {line.rpartition(" op")[0] or line for line in READING} | set(REFUSED) | {"serve", "worker", "doctor"}

    for path in HELPS:
        if "--store" in run(*path, "--help").stdout:
            assert any(f"{line} ".startswith(f"{' '.join(path)} ") for line in tried), path


@pytest.mark.parametrize("line", REFUSED)
def test_a_command_that_is_refused_creates_no_store(tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.toml").write_text(DEFINITION.replace('"deny"', '"os:system"'))
    for name in [each for each in os.environ if each.startswith("HOOKLINE")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    done = run(*line.split())

    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["broken.toml"]


@pytest.mark.parametrize("file", ["broken.key", "missing/master.key"])
def test_a_server_without_a_usable_master_key_creates_no_store(tmp_path: Path, file: str) -> None:
    (tmp_path / "broken.key").write_text("not a key")

    refused = run("serve", "--port", "0", "--master-key-file", str(tmp_path / file), url=database(tmp_path))

    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert file in refused.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["broken.key"]


def test_a_command_that_writes_creates_the_store(tmp_path: Path) -> None:
    (tmp_path / "hooks.toml").write_text(DEFINITION)

    for folder, args in (("a", ["keys", "create", "x", "--scope", "hooks:read"]), ("b", ["hooks", "apply", "--yes"])):
        (tmp_path / folder).mkdir()
        file = [str(tmp_path / "hooks.toml")] if "apply" in args else []
        assert run(*args, *file, url=database(tmp_path / folder)).exit_code == 0
        assert (tmp_path / folder / "store.db").exists()


@pytest.mark.parametrize(
    "line", ["keys list", "hooks list", "approvals list", "audit list", "executions list", "doctor"]
)
def test_a_database_of_another_program_is_left_as_it_is(tmp_path: Path, line: str) -> None:
    url = database(tmp_path)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()

    refused = run(*line.split(), url=url)

    assert refused.exit_code == (1 if line == "doctor" else 2)
    assert "no store" in refused.stderr + refused.stdout
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("notes",)]
    connection.close()
