"""The commands that look after a store: where it is, how they end, and what they show in terminals of any width."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.errors import install_command
from tests.cli.operated import database, define, denying, leave_dead, lines, log_runs, on, paused, run
from tests.cli.terminals import Terminal
from tests.commands import run_command

LISTS = ("hooks", "operations", "deliveries", "executions", "keys", "approvals", "audit")
LONG = "op_" + "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with something in every list."""
    found = database(tmp_path_factory.mktemp("store"))
    on(found, lambda store: define(store, *({"name": f"Rule {n}", "point": "ToolCall.guard"} for n in range(3))))
    paused(found, LONG, 5, tenant="acme")
    on(found, lambda store: log_runs(store, LONG[:-1], hooks=[denying("never", "We do not pay anybody")]))
    on(found, lambda store: leave_dead(store, "told"))
    assert run("keys", "create", "ops", "--scope", "hooks:read", url=found).exit_code == 0
    return found


@pytest.mark.parametrize("group", LISTS)
def test_a_store_that_is_not_there_is_not_made_by_looking_into_it(tmp_path: Path, group: str) -> None:
    result = run(group, "--store", database(tmp_path))

    assert result.exit_code == 2
    assert result.stderr.startswith(f"hookline: There is no store {database(tmp_path)}; name the one")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("store", "code", "told"),
    [
        ("mysql://root:geheim@host/x", 2, "begins with 'mysql', which is not supported"),
        ("postgresql://me:geheim@127.0.0.1:9/x", 1, "The store postgresql://me@127.0.0.1:9/x cannot be used now"),
        ("sqlite:////", 2, "is not a store: it is something other than an SQLite database"),
    ],
    ids=["no-store", "nobody-listens", "a-folder"],
)
def test_a_store_that_cannot_be_used_is_told_in_one_line_without_its_password(store: str, code: int, told: str) -> None:
    result = run("operations", url=store)

    assert (result.exit_code, result.stdout) == (code, "")
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
    assert "geheim" not in result.stderr


def test_a_file_that_is_no_database_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, " * 500)

    result = run("hooks", url=f"sqlite:///{tmp_path / 'notes.txt'}")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "is not a store: it is something other than an SQLite database" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_extra_is_told_in_one_line() -> None:
    code = (
        "import sys\n"
        "sys.modules['sqlalchemy'] = None\n"
        "from hookline.cli import main\n"
        "for line in sys.argv[1:]:\n"
        "    sys.argv = ['hookline', *line.split(), '--store', 'sqlite:///x.db']\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as ended:\n"
        "        sys.stderr.write(f'{ended.code}\\n')\n"
    )
    commands = ["operations", "hooks list", "keys", "serve", "approvals approve op"]

    done = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=True)

    told, codes = done.stderr.splitlines()[::2], done.stderr.splitlines()[1::2]
    assert (done.stdout, codes) == ("", ["1"] * len(commands))
    for line in told:
        assert line.endswith(f"needs an extra that is not installed: {install_command('server')}")


@pytest.mark.parametrize("store", ["sqlite://", "sqlite:///:memory:"])
def test_a_store_in_memory_is_none_that_could_be_looked_into(store: str) -> None:
    result = run("operations", url=store)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("hookline: There is no store sqlite:///:memory:")


def test_the_store_comes_from_the_option_before_the_environment(url: str, tmp_path: Path) -> None:
    assert lines(run("operations", "--json", "--store", url, url=database(tmp_path)))


@pytest.mark.parametrize("group", LISTS)
def test_a_table_fits_and_shows_its_ids_whole(url: str, group: str) -> None:
    everything = lines(run(group, "--json", url=url))

    for width in (60, 80, 120):
        result = run(group, url=url, width=width)

        assert result.exit_code == 0
        assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= width
        assert "\x1b" not in result.stdout, width
        for each in everything if group != "executions" or width == 120 else []:
            name = each[{"audit": "action", "deliveries": "id", "hooks": "id", "keys": "id"}.get(group, "operationId")]
            assert re.search(rf"(^|\s){re.escape(name)}(\s|$)", result.stdout, re.MULTILINE), width


def test_an_id_that_is_wider_than_the_terminal_is_shown_whole(url: str) -> None:
    assert LONG in run("operations", url=url, width=20).stdout


@pytest.mark.parametrize("group", LISTS)
def test_a_group_lists_where_no_command_is_named(url: str, group: str) -> None:
    assert run(group, "--json", url=url).stdout == run(group, "list", "--json", url=url).stdout != ""


def test_a_list_says_that_there_is_more_but_not_on_stdout(url: str) -> None:
    result = run("hooks", "--limit", "2", url=url)

    assert "2 are shown; there are more: --limit" in result.stderr
    assert len(result.stdout.splitlines()) == 4
    assert len(lines(run("hooks", "--limit", "2", "--json", url=url))) == 2
    assert "1 is shown; there are more" in run("hooks", "--limit", "1", url=url).stderr


@pytest.mark.parametrize(
    "args", [["executions", "follow", "-n", "1000"], ["operations", "events", LONG[:-1], "--json"]]
)
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(url: str, args: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    done = run_command(*args, "--store", url, stdout=writing)

    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_empty_list_prints_nothing_on_stdout(url: str) -> None:
    result = run("operations", "--status", "max_steps", url=url)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No operations match.\n")


def test_colours_are_for_terminals_that_want_them(url: str, tmp_path: Path) -> None:
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with Terminal("operations", cwd=tmp_path, HOOKLINE_STORE=url, **environment) as terminal:
            assert terminal.ended() == 0
            assert LONG in terminal.text
            assert (b"\x1b[1;33m" in terminal.raw) is coloured


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["operations", "--limit", "0"], "--limit"),
        (["operations", "show"], "OPERATION"),
        (["operations", "--status", "lost"], "'lost' is not one of running"),
        (["deliveries", "--status", "lost"], "'lost' is not one of"),
        (["deliveries", "--since", "soon"], "'soon' is not a time"),
        (["deliveries", "replay"], "Select deliveries"),
        (["executions", "--status", "lost"], "`status` must be one of"),
        (["executions", "--point", "ToolCall.guard"], "is not a point, such as ToolCall or onComplete"),
        (["executions", "stats", "--point", "nowhere"], "'nowhere' is not a point"),
        (
            ["executions", "stats", "--by", "day"],
            "`by` must be one of hook, point, tenant, agent, tool, agent,tool, minute, hour; got 'day'",
        ),
        (["executions", "stats", "--since", "soon"], "'soon' is not a time"),
        (["hooks", "--point", "ToolCall"], "is not a point, such as ToolCall.guard or onComplete"),
        (["hooks", "test", "id", "--call", "[1]"], "It must be an object"),
        (["hooks", "test", "id", "--call", "{"], "It is not JSON"),
        (["keys", "create", "x"], "--scope"),
        (["keys", "create", "x", "--scope", "all"], "'all' is not one of"),
        (["keys", "create", "x\x1b", "--scope", "hooks:read"], "printable"),
        (["keys", "create", "x", "--scope", "hooks:read", "--expires", "soon"], "not a span of time"),
        (["serve", "--port", "70000"], "--port"),
        (["serve", "--quota", "-1"], "--quota"),
        (["serve", "--retention-hours", "0"], "--retention-hours"),
        (["serve", "--retention-hours", "nan"], "--retention-hours"),
        (["serve", "--rate-limit", "-1"], "--rate-limit"),
        (["serve", "--max-body", "0"], "--max-body"),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, list) else "told",
)
def test_what_makes_no_sense_is_a_usage_error(url: str, args: list[str], told: str) -> None:
    result = run(*args, url=url, width=200)

    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr
