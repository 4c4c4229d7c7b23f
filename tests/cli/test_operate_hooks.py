"""Hooks that are stored as data, on the command line."""

from __future__ import annotations

import fcntl
import json
import signal
import sys
import termios
from pathlib import Path

import psutil
import pytest

from hookline.registry import Registry
from hookline.store import SqlStore
from tests.cli.operated import database, define, lines, on, run
from tests.commands import Command
from tests.registry.test_policy_alerts import fallback_alert, put, rate_alert

FACTORIES = "tests.registry.factories"
TWO = """\
[[hooks]]
name = "No shell"
point = "ToolCall.guard"
handler = "deny-tools"
config = { tools = ["bash"] }

[[hooks]]
name = "No more"
point = "ToolCall.guard"
handler = "%s"
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return database(tmp_path)


def audited(url: str) -> list[tuple[str, str]]:
    """What was done, and whether it was by the command line."""
    from sqlalchemy import select

    from hookline.store._tables import audit

    async def read(store: SqlStore) -> list[tuple[str, str]]:
        async with store.reading() as connection:
            rows = await connection.execute(select(audit.c.action, audit.c.actor).order_by(audit.c.seq))
            return [(row.action, row.actor.partition(":")[0]) for row in rows]

    return on(url, read)


def test_a_file_of_definitions_is_stored_as_a_whole(url: str, tmp_path: Path) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text(TWO % "deny")

    result = run("hooks", "apply", str(file), "--yes", "--tenant", "acme", url=url)

    assert result.exit_code == 0
    found = lines(run("hooks", "--json", url=url))
    assert {(each["name"], each["tenantId"], each["source"]) for each in found} == {
        ("No shell", "acme", f"apply:{file}"),
        ("No more", "acme", f"apply:{file}"),
    }
    told = {line.split()[1].rstrip(":") for line in result.stdout.splitlines() if line.startswith("Stored ")}
    assert told == {each["id"] for each in found}
    assert audited(url) == [("definition.create", "cli")] * 2


def test_a_definition_that_is_refused_leaves_nothing_behind_and_its_line_is_told(url: str, tmp_path: Path) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text(TWO % "os:system")

    result = run("hooks", "apply", str(file), "--yes", url=url)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"hookline: {file}, line 10: there is no handler 'os:system' in this process")
    assert result.stderr.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == ["hooks.toml"]


def test_adding_a_file_again_changes_what_it_has_changed(url: str, tmp_path: Path) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text(TWO % "deny")
    first = lines(run("hooks", "apply", str(file), "--yes", "--json", url=url))
    file.write_text(file.read_text().replace('"bash"', '"bash", "python"'))

    second = lines(run("hooks", "apply", str(file), "--yes", "--json", url=url))

    assert [each["id"] for each in second] == [each["id"] for each in first]
    assert [now["revision"] > before["revision"] for now, before in zip(second, first, strict=True)] == [True, False]


def test_what_is_not_in_the_file_is_deleted_only_if_asked(url: str, tmp_path: Path) -> None:
    on(url, lambda store: define(store, {"name": "Old", "point": "ToolCall.guard"}))
    file = tmp_path / "hooks.toml"
    file.write_text(TWO % "deny")

    run("hooks", "apply", str(file), "--yes", url=url)
    assert len(lines(run("hooks", "--json", url=url))) == 3
    run("hooks", "apply", str(file), "--yes", "--prune", url=url)

    assert {each["name"] for each in lines(run("hooks", "--json", url=url))} == {"No shell", "No more"}


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_definitions_come_in_other_formats(url: str, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"hooks{suffix}"
    file.write_text(json.dumps({"hooks": [{"name": "J", "point": "ToolCall.guard", "handler": "deny"}]}))

    assert [each["name"] for each in lines(run("hooks", "apply", str(file), "--yes", "--json", url=url))] == ["J"]


def test_what_is_shown_as_json_can_be_stored_again(url: str) -> None:
    (name,) = on(url, lambda store: define(store, {"name": "A", "point": "ToolCall.guard", "priority": 7}))
    shown = run("hooks", "show", name, "--json", url=url).stdout

    (again,) = lines(
        run("hooks", "apply", "-", "--yes", "--json", url=url, stdin=shown.replace('"priority":7', '"priority":8'))
    )

    assert (again["id"], again["priority"]) == (name, 8)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.toml", None, "it cannot be read"),
        ("a.json", None, "it cannot be read"),
        ("a.toml", "[[hooks]]\nname = \n", "line 2: not TOML"),
        ("a.json", "{", "it is not JSON"),
        ("a.json", "3", "it must be a definition, a list of definitions, or an object"),
        ("a.json", "[3]", "a definition must be a mapping"),
        ("a.json", '{"name": "x", "point": "afterStep", "handler": "deny", "what": 1}', "unknown field"),
    ],
    ids=["no-toml", "no-json", "broken-toml", "broken-json", "a-number", "a-list-of-numbers", "unknown-field"],
)
def test_a_file_that_cannot_be_used_is_told_with_its_name(
    url: str, tmp_path: Path, name: str, text: str | None, told: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)

    result = run("hooks", "apply", str(tmp_path / name), "--yes", url=url)

    assert (result.exit_code, result.stdout) == (2, "")
    assert str(tmp_path / name) in result.stderr
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_hook_is_tried_out_and_leaves_no_trace(url: str, tmp_path: Path) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text(TWO % "deny")
    name = lines(run("hooks", "apply", str(file), "--yes", "--json", url=url))[0]["id"]

    (denied,) = lines(run("hooks", "test", name, "--call", '{"apiName": "bash"}', "--json", url=url))
    passed = run("hooks", "test", name, "--call", "-", url=url, stdin='{"apiName": "look"}')

    assert (denied["outcome"], denied["hookId"]) == ("denied", name)
    assert (passed.exit_code, "outcome  passed\n" in passed.stdout) == (0, True)
    assert lines(run("executions", "--json", url=url)) == []


def test_a_handler_of_a_module_is_allowed_by_naming_the_module(url: str) -> None:
    given = {"name": "Mine", "point": "ToolCall.guard", "handler": f"{FACTORIES}:say", "config": {"text": "nope"}}
    allowed = ["--modules", FACTORIES]

    refused = run("hooks", "apply", "-", "--yes", url=url, stdin=json.dumps(given))
    (stored,) = lines(run("hooks", "apply", "-", "--yes", *allowed, "--json", url=url, stdin=json.dumps(given)))

    assert (refused.exit_code, "there is no handler " in refused.stderr) == (2, True)
    (tried,) = lines(run("hooks", "test", stored["id"], *allowed, "--json", url=url))
    assert (tried["outcome"], tried["reason"]) == ("denied", "nope")
    elsewhere = run("hooks", url=url)
    assert (elsewhere.exit_code, elsewhere.stderr) == (0, "")
    assert "not here" in elsewhere.stdout


@pytest.mark.parametrize(
    ("sample", "told"), [({"apiName": 5}, "Expected `str`, got `int`"), ({"nope": 1}, "a ToolCall has no field 'nope'")]
)
def test_a_sample_that_is_no_call_is_a_usage_error(url: str, sample: dict[str, object], told: str) -> None:
    on(url, lambda store: define(store, {"id": "h", "name": "No", "point": "ToolCall.guard"}))

    result = run("hooks", "test", "h", "--call", json.dumps(sample), url=url, width=200)

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"'--call': {told}" in result.stderr


def unread(pipe: int) -> int:
    """Bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_file_without_definitions_is_told(url: str, tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text("")

    result = run("hooks", "apply", str(tmp_path / "none.toml"), "--yes", url=url, width=200)

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"There are no hook definitions in {tmp_path / 'none.toml'}.\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_that_waits_for_its_input(url: str, number: signal.Signals, code: int) -> None:
    with Command("hooks", "apply", "-", "--yes", "--store", url) as command:
        command.stdin.write(" " * 100_000)  # more than a pipe takes before somebody reads
        command.stdin.flush()
        while unread(command.stdin.fileno()) or psutil.Process(command.pid).status() != psutil.STATUS_SLEEPING:
            assert command.returncode is None
        command.send_signal(number)
        command.wait(timeout=100)
        said, problems = command.communicate()

        assert (command.returncode, said, problems) == (code, "", "")


def test_a_hook_that_fails_on_a_sample_is_a_failure(url: str) -> None:
    given = {"name": "Slow", "point": "ToolCall.guard", "handler": f"{FACTORIES}:late"}
    (stored,) = lines(
        run("hooks", "apply", "-", "--yes", "--modules", FACTORIES, "--json", url=url, stdin=json.dumps(given))
    )

    result = run("hooks", "test", stored["id"], "--modules", FACTORIES, "--timeout", "0.05", url=url)

    assert result.exit_code == 1
    assert "it took longer than its timeout of 0.05 s" in result.stdout


def test_a_switched_off_hook_runs_nowhere_until_it_is_switched_on(url: str) -> None:
    (name,) = on(url, lambda store: define(store, {"name": "A", "point": "ToolCall.guard"}))

    async def running(store: SqlStore) -> int:
        async with Registry(store) as registry:
            return len(registry.hooks())

    seen = [on(url, running)]
    for command, told in (
        ("disable", "off"),
        ("enable", "on"),
        ("enable", "on"),
        ("disable", "off"),
        ("disable", "off"),
    ):
        assert run("hooks", command, name, url=url).stdout == f"{name} is {told}: A\n"
        seen.append(on(url, running))

    assert seen == [1, 0, 1, 1, 0, 0]
    assert lines(run("hooks", "--enabled", "--json", url=url)) == []


def test_a_hook_of_a_file_can_be_switched_but_not_removed(url: str, tmp_path: Path) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text(TWO % "deny")
    on(url, lambda store: define(store))
    found = lines(run("hooks", "--files", str(file), "--json", url=url))
    name = next(each["id"] for each in found if each["name"] == "No shell")

    assert run("hooks", "remove", name, url=url).exit_code == 1
    assert run("hooks", "disable", name, "--files", str(file), url=url).stdout == f"{name} is off: No shell\n"
    states = {each["name"]: each["enabled"] for each in lines(run("hooks", "--files", str(file), "--json", url=url))}
    assert states == {"No shell": False, "No more": True}


def test_a_hook_of_a_file_that_needs_a_module_is_switched_by_naming_the_module(url: str, tmp_path: Path) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text((TWO % f"{FACTORIES}:say").replace('name = "No more"', 'name = "No more"\nid = "no-more"'))
    on(url, lambda store: define(store))

    alone = run("hooks", "disable", "no-more", "--files", str(file), url=url)
    named = run("hooks", "disable", "no-more", "--files", str(file), "--modules", FACTORIES, url=url)

    assert alone.stderr.startswith(f"hookline: {file}, line 11: ")
    assert named.stdout == "no-more is off: No more\n"


def test_a_tenant_sees_the_system_s_hooks_and_changes_only_its_own(url: str) -> None:
    async def arrange(store: SqlStore) -> list[str]:
        at = {"point": "ToolCall.guard", "name": "A"}
        return await define(store, at, {**at, "tenantId": "acme"}, {**at, "tenantId": "other"})

    system, own, other = on(url, arrange)

    seen = [each["id"] for each in lines(run("hooks", "--tenant", "acme", "--json", url=url))]
    refused = [
        run("hooks", command, each, "--tenant", "acme", url=url)
        for command in ("enable", "disable", "remove")
        for each in (system, other)
    ]

    assert seen == [system, own]
    assert [each.exit_code for each in refused] == [1] * 6
    assert "it belongs to the system, so a tenant cannot change it" in refused[0].stderr
    assert f"There is no hook definition '{other}'" in refused[1].stderr
    assert run("hooks", "remove", own, "--tenant", "acme", url=url).stdout == f"Removed {own}: A\n"
    assert [each["id"] for each in lines(run("hooks", "--json", url=url))] == [system, other]


def test_a_removed_hook_keeps_its_history_and_is_brought_back(url: str) -> None:
    [made] = on(url, lambda store: define(store, {"point": "ToolCall.guard", "name": "A", "tenantId": "acme"}))
    assert run("hooks", "disable", made, url=url).exit_code == 0
    assert run("hooks", "remove", made, url=url).exit_code == 0

    history = lines(run("hooks", "history", made, "--json", url=url))
    of_another = run("hooks", "revert", made, str(history[-1]["revision"]), "--tenant", "other", url=url)
    back = run("hooks", "revert", made, str(history[-1]["revision"]), url=url)

    assert [each["action"] for each in history] == ["delete", "disable", "create"]
    assert history[0]["actor"].startswith("cli:")
    assert history[1]["changes"] == [{"field": "enabled", "old": True, "new": False}]
    assert of_another.exit_code == 1
    assert back.stdout == f"{made} is again what it was at revision {history[-1]['revision']}: A\n"
    [found] = lines(run("hooks", "--json", url=url))
    assert (found["id"], found["enabled"]) == (made, True)


def test_alerts_are_listed_with_their_figures_newest_first(url: str) -> None:
    on(url, lambda store: put(store, rate_alert("a", "acme"), ago=3600))
    on(url, lambda store: put(store, fallback_alert("b")))

    found = lines(run("hooks", "alerts", "--json", url=url))
    one = run("hooks", "alerts", "a", url=url, width=200)
    recent = lines(run("hooks", "alerts", "--since", "10m", "--json", url=url))

    assert [(each["kind"], each["alert"]["definitionId"]) for each in found] == [("fallback", "b"), ("rate", "a")]  # type: ignore[index]
    assert [each["kind"] for each in recent] == ["fallback"]
    assert "It would have denied 50.00% of calls (50 of 100) within 900 s" in one.stdout
    assert run("hooks", "alerts", "other", url=url).stderr == "There are no alerts.\n"
    assert lines(run("hooks", "alerts", "--tenant", "acme", "--json", url=url)) == found[1:]


def stored(url: str, **fields: object) -> str:
    """The id of a stored definition."""
    [made] = on(url, lambda store: define(store, {"point": "ToolCall.guard", **fields}))
    return made


def test_a_hook_is_enforced_by_degrees_and_taken_back_in_one_step(url: str) -> None:
    made = stored(url, name="A", mode="shadow", percent=1.0)

    first = run("hooks", "enforce", made, "--percent", "0.01", "--agent", "refund*", "--agent", "pay", url=url)
    listed = run("hooks", url=url, width=200).stdout
    second = run("hooks", "enforce", made, "--percent", "100", "--everywhere", url=url)
    back = run("hooks", "revert", made, url=url)
    shadow = run("hooks", "shadow", made, "--environment", "staging", "--operation-tag", "vip*", url=url)

    assert first.stdout == f"{made} is enforced for 0.01 % of operations of agents refund*, pay: A\n"
    assert "0.01 % of operations of agents refund*, pay" in listed
    assert second.stdout == f"{made} is enforced for all operations: A\n"
    assert back.exit_code == 0
    assert (
        shadow.stdout
        == f"{made} is in shadow for 0.01 % of operations of agents refund*, pay tagged vip* in staging: A\n"
    )
    history = lines(run("hooks", "history", made, "--json", url=url))
    assert [each["action"] for each in history] == ["update", "revert", "update", "update", "create"]
    assert {each["field"] for each in history[3]["changes"]} == {"mode", "percent", "agents"}  # type: ignore[index]
    assert all(str(each["actor"]).startswith("cli:") for each in history[:4])
    assert ("definition.update", "cli") in audited(url)


@pytest.mark.parametrize("percent", ["101", "-1", "nan", "0.001"])
def test_a_percentage_that_is_none_is_refused(url: str, percent: str) -> None:
    made = stored(url, name="A", mode="shadow")

    refused = run("hooks", "enforce", made, f"--percent={percent}", url=url)

    assert refused.exit_code == 2
    assert "two decimals" in refused.stderr
    assert lines(run("hooks", "show", made, "--json", url=url))[0]["mode"] == "shadow"


def test_what_was_never_changed_cannot_be_taken_back(url: str) -> None:
    made = stored(url, name="A")

    refused = run("hooks", "revert", made, url=url)

    assert refused.exit_code == 2
    assert "never changed" in refused.stderr


def test_what_was_removed_is_brought_back_in_one_step(url: str) -> None:
    made = stored(url, name="A", percent=5.0)
    run("hooks", "remove", made, url=url)

    assert run("hooks", "revert", made, url=url).exit_code == 0
    assert lines(run("hooks", "show", made, "--json", url=url))[0]["percent"] == 5.0
