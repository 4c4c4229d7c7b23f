"""`hookline hooks import`: the hooks of a coding agent's settings, stored, with what was not taken over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hookline.calls import ToolCall, ToolResult
from hookline.interceptors import Chain
from hookline.registry import Registry
from hookline.store import SqlStore
from tests.cli.operated import database, define, lines, on, run

CHECK = """\
#!/bin/sh
grep -q 'rm -rf' && { echo "no, says $0" >&2; exit 2; }
exit 0
"""
SETTINGS = """\
{
  "hooks": {
    // the shell
    "PreToolUse": [
      {"matcher": "Bash", "hooks": [
        {"type": "command", "command": "\\"$CLAUDE_PROJECT_DIR\\"/.claude/hooks/check.sh"},
        {"type": "prompt", "prompt": "Is this fine?"},
        {"type": "http", "url": "https://a.example", "headers": {"X": "$TOKEN"}, "allowedEnvVars": ["TOKEN"]}
      ]}
    ],
    "FileChanged": [{"hooks": []}],
  }
}
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return database(tmp_path)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    folder = tmp_path / "a project"
    (folder / ".claude/hooks").mkdir(parents=True)
    (folder / ".claude/hooks/check.sh").write_text(CHECK)
    (folder / ".claude/hooks/check.sh").chmod(0o755)
    (folder / ".claude/settings.json").write_text(SETTINGS)
    return folder / ".claude/settings.json"


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    return tmp_path / "scripts"


def judged(url: str, scripts: Path, command: str) -> str:
    """What becomes of a command in a run with the stored hooks."""

    async def tool(call: ToolCall) -> ToolResult:
        return ToolResult(content="ran")

    async def judge(store: SqlStore) -> str:
        async with Registry(store, scripts=scripts) as registry:
            outcome = await Chain(registry.hooks()).run(ToolCall(tool_name="Bash", args={"command": command}), tool)
            return outcome.result.content if outcome.denied is None else outcome.denied.reason

    return on(url, judge)


def test_settings_are_stored_and_their_scripts_judge_runs(url: str, settings: Path, scripts: Path) -> None:
    result = run("hooks", "import", str(settings), "--scripts", str(scripts), url=url)

    assert result.exit_code == 0
    [stored] = lines(run("hooks", "--json", "--scripts", str(scripts), url=url))
    name = "PreToolUse check.sh Bash (a project/.claude/settings.json)"
    assert result.stdout == f"Stored {stored['id']}: {name} at ToolCall.before, on.\n"
    assert (stored["dialect"], stored["matcher"], stored["onError"]) == ("claude", "Bash", "open")
    assert judged(url, scripts, "ls") == "ran"
    assert judged(url, scripts, "rm -rf /") == f"no, says {settings.parent}/hooks/check.sh"


def test_what_was_not_taken_over_is_said_with_file_line_and_reason(url: str, settings: Path, scripts: Path) -> None:
    said = run("hooks", "import", str(settings), "--scripts", str(scripts), url=url).stderr.splitlines()

    assert [each.partition(": ")[0] for each in said] == ["Not taken over"] * 3
    for line, words in ((7, "type 'prompt'"), (11, "FileChanged: hookline has no such event"), (8, "webhook_env")):
        assert any(f"{settings}, line {line}: " in each and words in each for each in said)


def test_a_second_import_replaces_the_first_and_removes_what_is_gone(url: str, settings: Path, scripts: Path) -> None:
    on(url, lambda store: define(store, {"name": "Own", "point": "ToolCall.guard"}))
    run("hooks", "import", str(settings), "--scripts", str(scripts), url=url)
    settings.write_text(SETTINGS.replace('"matcher": "Bash"', '"matcher": "Bash|Write"'))

    run("hooks", "import", str(settings), "--scripts", str(scripts), url=url)
    assert [each["matcher"] for each in lines(run("hooks", "--json", url=url)) if each["script"]] == ["Bash|Write"]

    settings.write_text("{}")
    gone = run("hooks", "import", str(settings), url=url)
    assert gone.stdout.startswith("Removed hook_")
    assert [each["name"] for each in lines(run("hooks", "--json", url=url))] == ["Own"]


def test_a_second_import_keeps_what_was_set_for_a_hook(url: str, settings: Path, scripts: Path) -> None:
    first = run("hooks", "import", str(settings), "--scripts", str(scripts), "--json", url=url)
    [stored] = lines(first)
    closed = {"onError": "closed", "priority": 7}

    async def close(store: SqlStore) -> None:
        async with Registry(store, scripts=scripts) as registry:
            await registry.update(stored["id"], closed)

    on(url, close)
    settings.write_text(SETTINGS.replace('"matcher": "Bash"', '"matcher": "Bash|Write"'))

    [again] = lines(run("hooks", "import", str(settings), "--scripts", str(scripts), "--json", url=url))

    assert (again["id"], again["matcher"], again["onError"], again["priority"]) == (
        stored["id"],
        "Bash|Write",
        "closed",
        7,
    )


def test_the_same_hook_of_two_projects_is_two_hooks(url: str, settings: Path, scripts: Path, tmp_path: Path) -> None:
    other = tmp_path / "b/.claude/settings.json"
    other.parent.mkdir(parents=True)
    other.write_text(SETTINGS)

    for file in (settings, other):
        assert run("hooks", "import", str(file), "--scripts", str(scripts), url=url).exit_code == 0

    assert len(lines(run("hooks", "--json", url=url))) == 2


def test_a_trial_stores_and_writes_nothing(url: str, settings: Path, scripts: Path) -> None:
    result = run("hooks", "import", str(settings), "--dry-run", url=url)

    assert result.exit_code == 0
    assert result.stdout.startswith("Would store hook_")
    assert sorted(each.name for each in scripts.parent.iterdir()) == ["a project", "scripts"]
    assert list(scripts.iterdir()) == []


def test_commands_need_a_folder_for_their_scripts(url: str, settings: Path) -> None:
    result = run("hooks", "import", str(settings), url=url)

    assert result.exit_code == 2
    assert "--scripts" in result.stderr
    assert not list(settings.parent.parent.parent.glob("*.db"))


def test_several_files_become_definitions_of_a_tenant(url: str, settings: Path, scripts: Path) -> None:
    local = settings.with_name("settings.local.json")
    local.write_text(json.dumps({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}))

    run("hooks", "import", str(settings), str(local), "--scripts", str(scripts), "--tenant", "acme", url=url)

    found: list[dict[str, Any]] = lines(run("hooks", "--json", url=url))
    assert {(each["point"], each["tenantId"]) for each in found} == {
        ("ToolCall.before", "acme"),
        ("AgentCall.after", "acme"),
    }


def test_a_broken_file_says_where_and_stores_nothing(url: str, settings: Path, scripts: Path) -> None:
    settings.write_text(SETTINGS.replace('"hooks": [\n', '"hooks": [[\n'))

    result = run("hooks", "import", str(settings), "--scripts", str(scripts), url=url)

    assert result.exit_code == 2
    assert result.stderr.startswith(f"hookline: {settings}, line ")
    assert "not JSON" in result.stderr
    assert list(scripts.iterdir()) == []


def test_settings_without_hooks_say_so(url: str, settings: Path) -> None:
    settings.write_text('{"permissions": {}}')

    result = run("hooks", "import", str(settings), url=url)

    assert (result.exit_code, result.stdout) == (0, "")
    assert "no hooks to import" in result.stderr
