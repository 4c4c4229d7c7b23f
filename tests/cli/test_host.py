"""`hookline host`: the hook of a coding agent on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookline.hosts import Scope, find_installation, list_installations
from tests.cli.operated import run
from tests.hosts.installed import POLICY, end_resident, frames

CODEX = """#!{python}
# Stands in for `codex app-server`: lists the hooks of its hooks.json, and keeps which of them are trusted.
import json, os, sys

home = os.environ["CODEX_HOME"]
state = os.path.join(home, "trusted.json")


def hooks():
    with open(os.path.join(home, "hooks.json")) as file:
        events = json.load(file)["hooks"]
    trusted = json.load(open(state)) if os.path.exists(state) else {{}}
    for event, entries in events.items():
        for nth, entry in enumerate(entries):
            for at, handler in enumerate(entry["hooks"]):
                key = f"{{home}}/hooks.json:{{event}}:{{nth}}:{{at}}"
                digest = "sha256:" + handler["command"]
                status = "trusted" if trusted.get(key) == digest else "untrusted"
                yield {{"key": key, "command": handler["command"], "currentHash": digest, "trustStatus": status}}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    print(json.dumps({{"method": "configWarning", "params": {{}}}}), flush=True)
    result = {{}}
    if asked["method"] == "hooks/list":
        result = {{"data": [{{"cwd": each, "hooks": list(hooks())}} for each in asked["params"]["cwds"]]}}
    elif asked["method"] == "config/batchWrite" and not os.environ.get("CODEX_KEEPS_NOTHING"):
        edit = asked["params"]["edits"][0]
        assert (edit["keyPath"], edit["mergeStrategy"]) == ("hooks.state", "upsert")
        with open(state, "w") as file:
            json.dump({{key: value["trusted_hash"] for key, value in edit["value"].items()}}, file)
    print(json.dumps({{"id": asked["id"], "result": result}}), flush=True)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("XDG_CONFIG_HOME", "HOME", "CODEX_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    for name in ("HOOKLINE_STORE", "OTEL_EXPORTER_OTLP_ENDPOINT", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / "policy.py").write_text(POLICY)
    (tmp_path / "codex").write_text(CODEX.format(python=sys.executable))
    (tmp_path / "codex").chmod(0o755)
    monkeypatch.chdir(folder)
    yield folder
    sys.modules.pop("policy", None)
    for made in list_installations():
        end_resident(made)


def test_a_hook_is_installed_asked_looked_at_and_taken_out_again(project: Path) -> None:
    installed = run("host", "install", "claude", "--hooks", "policy.py:hooks", "--env", "PYTHONPATH")
    frame = next(frame for event, frame in frames("claude") if event == "PreToolUse")
    frame = {**frame, "tool_input": {"command": "deny it"}}

    # `host claude` becomes the installed command, so it needs a process of its own.
    words = [sys.executable, "-c", "from hookline.cli import main; main()", "host", "claude", "PreToolUse"]
    asked = subprocess.run(words, input=json.dumps(frame), capture_output=True, text=True, timeout=60)
    shown = run("host", "status")
    as_json = json.loads(run("host", "status", "--json").stdout)
    removed = run("host", "uninstall", "claude")

    assert installed.exit_code == 0, installed.output
    assert "for 11 events" in installed.stdout
    assert json.loads(asked.stdout)["hookSpecificOutput"]["permissionDecisionReason"] == "not on my machine"
    assert "not on my machine" in shown.stdout
    assert "running" in shown.stdout
    assert (as_json["host"], as_json["process"], as_json["problem"]) == ("claude", "running", "")
    assert as_json["status"]["questions"] == 1
    assert removed.exit_code == 0
    assert not (project / ".claude" / "settings.local.json").exists()
    assert run("host", "status").exit_code == 0


def test_status_says_what_is_missing_in_the_settings(project: Path) -> None:
    run("host", "install", "gemini", "--hooks", "policy.py:hooks")
    settings = project / ".gemini" / "settings.json"
    settings.write_text(settings.read_text().replace('"BeforeTool"', '"Elsewhere"'))

    shown = run("host", "status", "gemini")

    assert shown.exit_code == 1
    assert "do not name the hook for BeforeTool" in shown.stdout


def test_broken_settings_are_named_with_their_line(project: Path) -> None:
    (project / ".claude").mkdir()
    (project / ".claude" / "settings.local.json").write_text('{\n  "model": }\n')

    refused = run("host", "install", "claude", "--hooks", "policy.py:hooks")

    assert refused.exit_code == 1
    assert "settings.local.json, line 2: it is no valid JSON" in refused.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["install", "claude"], "Say which hooks"),
        (["install", "emacs", "--hooks", "policy.py:hooks"], "not a coding agent"),
        (["install", "claude", "--hooks", "policy.py:nothing"], "has no 'nothing'"),
        (["uninstall", "claude"], "is not installed"),
        (["claude", "PreToolUse"], "is not installed"),
        (["stop", "claude", "--user"], "is not installed for this user"),
    ],
)
def test_wrong_use_is_explained(words: list[str], problem: str, project: Path) -> None:
    refused = run("host", *words)

    assert refused.exit_code == 2
    assert problem in refused.stderr
    assert not list(project.glob(".*"))


def test_codex_is_asked_for_trust_only_with_consent(project: Path, tmp_path: Path) -> None:
    words = ["host", "install", "codex", "--user", "--hooks", "policy.py:hooks", "--codex", str(tmp_path / "codex")]

    refused = run(*words, stdin="n\n")
    agreed = run(*words, stdin="y\n")

    assert refused.exit_code == 1
    assert "Codex does not run the hook" in refused.stderr
    assert agreed.exit_code == 0, agreed.output
    assert "Codex trusts the hook for 10 events" in agreed.stdout
    assert len(json.loads((tmp_path / "CODEX_HOME" / "trusted.json").read_text())) == 10


def test_a_codex_that_does_not_trust_the_hook_after_all_is_an_error(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEX_KEEPS_NOTHING", "1")
    words = ["host", "install", "codex", "--user", "--yes", "--hooks", "policy.py:hooks", "--codex"]

    untrusted, missing = run(*words, str(tmp_path / "codex")), run(*words, str(tmp_path / "nowhere"))

    assert (untrusted.exit_code, missing.exit_code) == (1, 1)
    assert "Codex does not trust" in untrusted.stderr
    assert "there is no program" in missing.stderr


def test_installing_again_replaces_what_was_installed(project: Path) -> None:
    run("host", "install", "claude", "--hooks", "policy.py:hooks", "--timeout", "5")
    run("host", "install", "claude", "--hooks", "policy.py:hooks", "--timeout", "7", "--ask-timeout", "60")

    made = find_installation("claude", Scope.PROJECT, project)

    assert made is not None
    assert (made.seconds, made.deadline, len(list_installations())) == (7.0, 67.0, 1)
    settings = json.loads(Path(made.settings).read_text())
    assert settings["hooks"]["PreToolUse"][0]["hooks"][0]["timeout"] == 77
    assert os.stat(made.path).st_mode & 0o077 == 0
