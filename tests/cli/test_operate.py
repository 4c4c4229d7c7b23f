"""The commands that look after a store: where it is, how they end, and what they show in terminals of any width."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.cli.operated import database, define, denying, leave_dead, lines, log_runs, on, paused, run
from tests.cli.terminals import Terminal

HOOKLINE = str(Path(sys.executable).with_name("hookline"))
LISTS = ("hooks", "operations", "deliveries", "logs", "keys")
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

    assert result.exit_code == 1
    assert result.stderr.startswith(f"hookline: There is no store {database(tmp_path)}; name the one")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("store", "code", "told"),
    [
        ("mysql://root:geheim@host/x", 2, "begins with 'mysql', which is no store"),
        ("postgresql://me:geheim@127.0.0.1:9/x", 1, "The store postgresql://me@127.0.0.1:9/x cannot be used now"),
        ("sqlite:////", 1, "cannot be used now"),
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

    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot be used now" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_extra_is_told_in_one_line() -> None:
    code = "import sys; sys.modules['sqlalchemy'] = None; from hookline.cli import main; main()"

    for args in (["operations"], ["hooks", "list"], ["keys"], ["serve"], ["approve", "op"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *args, "--store", "sqlite:///x.db"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith("needs an extra that is not installed: pip install 'hookline[server]'\n")
        assert done.stderr.count("\n") == 1


def test_the_store_comes_from_the_option_before_the_environment(url: str, tmp_path: Path) -> None:
    assert lines(run("operations", "--json", "--store", url, url=database(tmp_path)))


@pytest.mark.parametrize("group", LISTS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_fits_and_shows_its_ids_whole(url: str, group: str, width: int) -> None:
    result = run(group, url=url, width=width)
    everything = lines(run(group, "--json", url=url))

    assert result.exit_code == 0
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= width
    assert "\x1b" not in result.stdout
    for each in everything if group != "logs" or width == 120 else []:
        name = each["operationId"] if group in ("operations", "logs") else each["id"]
        assert re.search(rf"(^|\s){re.escape(name)}(\s|$)", result.stdout, re.MULTILINE)


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


def test_an_empty_list_prints_nothing_on_stdout(url: str) -> None:
    result = run("operations", "--status", "cancelled", url=url)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "There are no such operations.\n")


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
        (["deliveries", "--status", "lost"], "'lost' is none of"),
        (["deliveries", "--since", "soon"], "'soon' is no time"),
        (["deliveries", "replay"], "Say which"),
        (["logs", "--status", "lost"], "`status` is one of"),
        (["hooks", "test", "id", "--call", "[1]"], "It is an object"),
        (["hooks", "test", "id", "--call", "{"], "It is no JSON"),
        (["keys", "create", "x"], "--scope"),
        (["keys", "create", "x", "--scope", "all"], "'all' is none of"),
        (["keys", "create", "x\x1b", "--scope", "hooks:read"], "printable"),
        (["keys", "create", "x", "--scope", "hooks:read", "--expires", "soon"], "no span of time"),
        (["serve", "--port", "70000"], "--port"),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, list) else "told",
)
def test_what_makes_no_sense_is_a_usage_error(url: str, args: list[str], told: str) -> None:
    result = run(*args, url=url, width=200)

    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


def answered(address: str) -> None:
    """Wait for an answer of a server: from then on it listens to signals too."""
    with pytest.raises(HTTPError, match="401"):
        urlopen(f"{address}/v1/hooks", timeout=20)


def test_the_server_shows_its_first_key_once_and_ends_quietly(tmp_path: Path) -> None:
    environment = {**os.environ, "HOOKLINE_STORE": database(tmp_path)}
    told = []
    for stop in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(
            [HOOKLINE, "serve", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as server:
            assert server.stdout is not None
            first = []
            for line in server.stdout:
                first.append(line)
                if line.startswith("hookline listens at http://127.0.0.1:"):
                    break
            answered(first[-1].split()[-1])
            server.send_signal(stop)
            rest, problems = server.communicate(timeout=30)
            assert (server.returncode, rest, problems) == (0, "", "")
        told.append(first)
    assert re.search(r"hk_[0-9a-f]{16}_\S{43}\n$", told[0][0])
    assert [len(each) for each in told] == [2, 1]


def test_a_broken_file_of_definitions_keeps_the_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "hooks.toml").write_text('[[hooks]]\nname = "x"\npoint = "nowhere"\nhandler = "deny"\n')

    result = run("serve", "--port", "0", "--files", str(tmp_path / "hooks.toml"), url=database(tmp_path))

    assert result.exit_code == 1
    assert f"{tmp_path / 'hooks.toml'}, line 3: 'nowhere' is no point" in result.stderr
