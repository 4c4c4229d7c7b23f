"""Files of hook definitions are checked, compared with what is stored, and stored as they were shown."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from tests.cli.operated import database, define, lines, on, run
from tests.cli.terminals import Terminal

HOOKS = """\
[[hooks]]
id = "shell"
name = "No shell"
point = "ToolCall.guard"
handler = "deny-tools"
config = { tools = ["bash"] }

[[hooks]]
id = "pay"
name = "Ask before paying"
point = "ToolCall.guard"
handler = "require-approval"
config = { tools = ["pay"] }
"""
PASSES = """
[[tests]]
name = "A shell is refused"
call = { tool_name = "bash" }
expect = { verdict = "denied", by = "No shell" }
"""
FAILS = """
[[tests]]
name = "Paying is free"
call = { tool_name = "pay" }
expect = "allowed"
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return database(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "hooks.toml"
    file.write_text(HOOKS + PASSES)
    return file


def names(url: str) -> list[str]:
    return [each["name"] for each in lines(run("hooks", "--json", url=url))]


def test_a_check_tells_of_each_test(tmp_path: Path, file: Path) -> None:
    file.write_text(HOOKS + PASSES + FAILS)

    result = run("hooks", "check", str(file), url="nowhere")

    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.splitlines() == [
        f"{file}: 2 hooks, 2 tests",
        "  passed  A shell is refused",
        "  failed  Paying is free (line 20)",
        "          expected allowed; got asked by 'Ask before paying': May local/pay be",
        "          called with {}?",
        "2 tests: 1 passed, 1 failed.",
    ]
    assert [each.name for each in tmp_path.iterdir()] == ["hooks.toml"]


def test_a_check_as_json_has_the_verdicts(file: Path) -> None:
    file.write_text(HOOKS + FAILS)

    result = run("hooks", "check", str(file), "--json")

    (told,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert (result.exit_code, told["name"], told["passed"], told["line"]) == (1, "Paying is free", False, 15)
    assert (told["calls"][0]["verdict"], told["calls"][0]["by"]) == ("asked", ["pay"])


def test_a_broken_file_does_not_hide_the_tests_of_others(tmp_path: Path, file: Path) -> None:
    (tmp_path / "broken.toml").write_text("[[hooks]\n")
    (tmp_path / "none.toml").write_text(HOOKS.replace("deny-tools", "nobody:knows"))

    result = run("hooks", "check", str(tmp_path / "broken.toml"), str(tmp_path / "none.toml"), str(file), width=300)

    assert result.exit_code == 2
    assert "  passed  A shell is refused" in result.stdout
    problems = result.stderr.splitlines()
    assert len(problems) == 2
    assert problems[0].startswith(f"hookline: {tmp_path / 'broken.toml'}, line 1: not TOML")
    assert problems[1].startswith(f"hookline: {tmp_path / 'none.toml'}, line 5: there is no handler")


def test_a_folder_is_checked_as_a_whole(tmp_path: Path, file: Path) -> None:
    (tmp_path / "more.yaml").write_text(
        "hooks: [{name: Y, point: ToolCall.guard, handler: deny}]\n"
        "tests: [{name: y, call: {tool_name: x}, expect: denied}]\n"
    )
    whole = run("hooks", "check", str(tmp_path))
    (tmp_path / "twice.toml").write_text(HOOKS)
    twice = run("hooks", "check", str(tmp_path), width=300)

    assert (whole.exit_code, "2 tests: 2 passed, 0 failed." in whole.stdout) == (0, True)
    assert (twice.exit_code, "'No shell' at ToolCall.guard is defined twice" in twice.stderr) == (2, True)


def test_junit_has_a_case_for_each_test_and_an_error_for_a_broken_file(tmp_path: Path, file: Path) -> None:
    file.write_text(HOOKS + PASSES + FAILS)
    (tmp_path / "broken.toml").write_text("[[hooks]\n")

    result = run("hooks", "check", str(file), str(tmp_path / "broken.toml"), "--junit", str(tmp_path / "out.xml"))

    root = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert result.exit_code == 2
    assert [root.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    cases = {case.get("name"): [node.tag for node in case] for case in root.iter("testcase")}
    assert cases == {"A shell is refused": [], "Paying is free": ["failure"], "definitions": ["error"]}


REMOTE = """\
[[hooks]]
id = "payments"
name = "Payments"
point = "ToolCall.before"
tool = "pay"
remote = { name = "payments" }

[[tests]]
name = "A large payment is refused"
call = { tool_name = "pay", args = { amount = 2000 } }
expect = "denied"

[[tests]]
name = "Reading is free"
call = { tool_name = "read" }
expect = "allowed"
"""


def test_without_a_bus_a_test_that_asks_is_not_run_and_said_to_be(tmp_path: Path, file: Path) -> None:
    file.write_text(REMOTE)
    junit = tmp_path / "junit.xml"

    result = run("hooks", "check", str(file), "--junit", str(junit), url="nowhere")

    assert result.exit_code == 3
    assert result.stdout.splitlines() == [
        f"{file}: 1 hook, 2 tests",
        "  not run  A large payment is refused (line 8)",
        "          it asks 'payments' over a bus, and there is none",
        "  passed  Reading is free",
        "2 tests: 1 passed, 0 failed, 1 not run.",
    ]
    assert "1 test was not run, for lack of a bus; give --bus, or --allow-not-run" in result.stderr
    suite = ElementTree.parse(junit).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "0", "1")
    assert run("hooks", "check", str(file), "--allow-not-run", url="nowhere").exit_code == 0


def test_as_json_a_test_that_is_not_run_has_not_passed(file: Path) -> None:
    file.write_text(REMOTE)

    result = run("hooks", "check", str(file), "--json")

    [first, second] = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 3
    assert (first["passed"], second["passed"], second["notRun"]) == (False, True, "")
    assert "payments" in first["notRun"]


def test_a_test_that_fails_counts_more_than_one_that_is_not_run(file: Path) -> None:
    file.write_text(REMOTE + FAILS.replace('"pay"', '"read"').replace('"allowed"', '"denied"'))

    assert run("hooks", "check", str(file), "--allow-not-run").exit_code == 1


def test_a_definition_with_a_remote_hook_is_validated_without_a_bus(file: Path) -> None:
    file.write_text(REMOTE.replace('name = "payments" }', 'name = "pay.ments" }'))

    result = run("hooks", "check", str(file))

    assert result.exit_code == 2
    assert "line 6" in result.stderr


def test_remote_hooks_are_stored_without_a_bus_if_that_is_accepted(url: str, tmp_path: Path, file: Path) -> None:
    file.write_text(REMOTE)

    refused = run("hooks", "apply", str(file), "--yes", url=url)
    assert (refused.exit_code, "nothing was stored" in refused.stderr) == (3, True)
    assert not (tmp_path / "store.db").exists()
    applied = run("hooks", "apply", str(file), "--yes", "--allow-not-run", url=url)

    assert applied.exit_code == 0, applied.stderr
    assert "1 test was not run, for lack of a bus." in applied.stdout
    assert names(url) == ["Payments"]
    assert run("hooks", "diff", str(file), url=url).exit_code == 0
    file.write_text(REMOTE.replace('"payments" }', '"payments", deadline = 1 }'))
    assert run("hooks", "diff", str(file), url=url).exit_code == 6


def test_a_diff_names_what_apply_would_change_and_changes_nothing(url: str, file: Path) -> None:
    assert run("hooks", "apply", str(file), "--yes", url=url).exit_code == 0
    on(url, lambda store: define(store, {"id": "old", "name": "Old", "point": "ToolCall.guard"}))
    file.write_text(HOOKS.replace('"bash"', '"bash", "sh"').replace('name = "Ask', 'enabled = false\nname = "Ask'))
    before = run("hooks", "--json", url=url).stdout

    result = run("hooks", "diff", str(file), "--prune", url=url)

    assert (result.exit_code, result.stderr) == (6, "")
    assert result.stdout.splitlines() == [
        "remove   old: Old at ToolCall.guard",
        "change   shell: No shell at ToolCall.guard",
        '          config.tools: ["bash"] → ["bash","sh"]',
        "disable  pay: Ask before paying at ToolCall.guard",
        "3 changes: 1 to change, 1 to disable, 1 to remove.",
    ]
    changes = [json.loads(line) for line in run("hooks", "diff", str(file), "--json", url=url).stdout.splitlines()]
    assert [(each["action"], [field["field"] for field in each["changes"]]) for each in changes] == [
        ("update", ["config.tools"]),
        ("disable", ["enabled"]),
    ]
    assert run("hooks", "--json", url=url).stdout == before


def test_a_file_that_is_stored_has_no_difference(url: str, file: Path) -> None:
    run("hooks", "apply", str(file), "--yes", "--tenant", "acme", url=url)

    same = run("hooks", "diff", str(file), "--tenant", "acme", url=url)
    other = run("hooks", "diff", str(file), "--tenant", "initech", url=url)

    assert (same.exit_code, same.stdout) == (0, "No changes: 2 definitions stored as in the file.\n")
    assert other.exit_code == 6


def test_a_file_whose_tests_fail_is_not_stored(url: str, tmp_path: Path, file: Path) -> None:
    file.write_text(HOOKS + PASSES + FAILS)

    result = run("hooks", "apply", str(file), "--yes", url=url)

    assert (result.exit_code, result.stdout) == (1, "")
    assert "failed  Paying is free (line 20)" in result.stderr
    assert "nothing was stored, since tests of the file failed" in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["hooks.toml"]


def test_without_a_terminal_nothing_is_stored_unless_it_is_confirmed(url: str, tmp_path: Path, file: Path) -> None:
    result = run("hooks", "apply", str(file), url=url)

    assert (result.exit_code, "Add --yes" in result.stderr) == (2, True)
    assert "2 changes: 2 to create." in result.stdout
    assert [each.name for each in tmp_path.iterdir()] == ["hooks.toml"]


def test_applying_again_changes_nothing_and_asks_nothing(url: str, file: Path) -> None:
    run("hooks", "apply", str(file), "--yes", url=url)
    before = run("hooks", "--json", url=url).stdout

    again = run("hooks", "apply", str(file), url=url)

    assert (again.exit_code, again.stderr) == (0, "")
    assert again.stdout.splitlines()[-1] == "No changes: 2 definitions stored as in the file."
    assert run("hooks", "--json", url=url).stdout == before
    assert len(lines(run("hooks", "history", "shell", "--json", url=url))) == 1


@pytest.mark.parametrize(("keys", "code"), [("n\n", 1), ("\n", 1), ("\x04", 1), ("\x03", 130)])
def test_a_person_is_asked_and_may_refuse(url: str, tmp_path: Path, file: Path, keys: str, code: int) -> None:
    with Terminal("hooks", "apply", str(file), "--store", url, cwd=tmp_path) as terminal:
        terminal.until("Make these changes? [y/N]:")
        while psutil.Process(terminal.process.pid).status() != psutil.STATUS_SLEEPING:
            assert terminal.process.returncode is None  # a signal is seen only where the answer is already read for
        terminal.press(keys)
        assert terminal.ended() == code

    assert "Nothing was stored." in terminal.text
    assert [each.name for each in tmp_path.iterdir()] == ["hooks.toml"]


def test_what_was_shown_is_stored_though_the_file_changes(url: str, tmp_path: Path, file: Path) -> None:
    with Terminal("hooks", "apply", str(file), "--store", url, cwd=tmp_path) as terminal:
        terminal.until("Make these changes? [y/N]:")
        file.write_text(HOOKS.replace("No shell", "Something else"))
        terminal.press("y\n")
        assert terminal.ended() == 0, terminal.text

    assert names(url) == ["No shell", "Ask before paying"]


def test_a_change_by_somebody_else_after_the_plan_is_a_conflict(url: str, tmp_path: Path, file: Path) -> None:
    run("hooks", "apply", str(file), "--yes", url=url)
    file.write_text(HOOKS.replace('"bash"', '"sh"'))

    with Terminal("hooks", "apply", str(file), "--store", url, cwd=tmp_path, columns=200) as terminal:
        terminal.until("Make these changes? [y/N]:")
        assert run("hooks", "disable", "pay", url=url).exit_code == 0
        terminal.press("y\n")
        assert terminal.ended() == 1

    assert "it was changed since the plan was made, so nothing was stored; look at the new plan" in terminal.text
    assert lines(run("hooks", "show", "shell", "--json", url=url))[0]["config"] == {"tools": ["bash"]}


def test_a_handler_that_is_not_here_is_told_with_its_line(url: str, file: Path) -> None:
    file.write_text(HOOKS.replace("require-approval", "nobody:knows"))
    run("keys", "create", "x", "--scope", "hooks:read", url=url)

    for command in ("check", "diff", "apply"):
        result = run("hooks", command, str(file), url=url)

        assert (result.exit_code, result.stdout.replace(f"{file}: 0 hooks, 0 tests\n", "")) == (2, "")
        assert result.stderr.startswith(f"hookline: {file}, line 12: there is no handler 'nobody:knows'")
