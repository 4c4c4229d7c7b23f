"""Settings of coding agents: the hook is named and taken out again, and what others wrote stays as it was."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.hosts import (
    HOSTS,
    Installation,
    InstallationError,
    Scope,
    SettingsError,
    find_hook,
    install_hook,
    make_installation,
    read_installation,
    uninstall_hook,
)
from hookline.hosts._jsonc import JsonDocument, JsonSyntaxError

HOOKS = "from hookline import Hooks\n\nhooks = Hooks('nothing')\n"
OTHERS = """{
  // what I like
  "model": "opus", /* for now */
  "hooks": {
    "PreToolUse": [
      {"matcher": "Bash", "hooks": [{"type": "command", "command": "./mine.sh"}]} // mine
    ]
  },
  "permissions": {"allow": ["Bash(ls *)"]}
}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / "policy_of_nobody.py").write_text(HOOKS)
    monkeypatch.delitem(sys.modules, "policy_of_nobody", raising=False)
    return folder


def make(host: str, project: Path, **options: Any) -> Installation:
    return make_installation(host, project=project, hooks=["policy_of_nobody.py"], **options)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("host", HOSTS)
def test_every_installed_event_is_named_once_however_often_it_is_installed(
    host: str, scope: Scope, project: Path
) -> None:
    made = make(host, project, scope=scope)

    install_hook(made)
    install_hook(made)

    settings = json.loads(Path(made.settings).read_text())
    assert list(settings["hooks"]) == list(HOSTS[host].installed)
    assert {len(entries) for entries in settings["hooks"].values()} == {1}
    assert find_hook(made) == list(HOSTS[host].installed)
    assert read_installation(made.path) == made


@pytest.mark.parametrize("host", HOSTS)
def test_taking_it_out_leaves_nothing_behind(host: str, project: Path) -> None:
    made = make(host, project)
    install_hook(made)

    assert uninstall_hook(made)

    assert not Path(made.settings).exists()
    assert not made.path.exists()
    assert not uninstall_hook(made)


@pytest.mark.parametrize("host", ["claude", "gemini", "codex"])
def test_entries_of_others_and_comments_stay_byte_for_byte(host: str, project: Path) -> None:
    made = make(host, project)
    settings = Path(made.settings)
    settings.parent.mkdir()
    settings.write_text(OTHERS)
    settings.chmod(0o600)

    install_hook(made)
    between = settings.read_text()
    uninstall_hook(made)

    assert "// what I like" in between
    assert "./mine.sh" in between
    assert settings.read_text() == OTHERS
    assert settings.stat().st_mode & 0o777 == 0o600


def test_a_handler_that_somebody_added_beside_the_hook_stays(project: Path) -> None:
    made = make("claude", project)
    install_hook(made)
    settings = Path(made.settings)
    value = json.loads(settings.read_text())
    value["hooks"]["Stop"][0]["hooks"].append({"type": "command", "command": "./mine.sh"})
    settings.write_text(json.dumps(value))

    uninstall_hook(made)

    assert json.loads(settings.read_text()) == {
        "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "./mine.sh"}]}]}
    }


def test_a_link_to_the_settings_goes_on_leading_to_them(project: Path, tmp_path: Path) -> None:
    made = make("claude", project)
    settings = Path(made.settings)
    settings.parent.mkdir()
    (tmp_path / "dotfiles.json").write_text("{}\n")
    settings.symlink_to(tmp_path / "dotfiles.json")

    install_hook(made)

    assert settings.is_symlink()
    assert "PreToolUse" in (tmp_path / "dotfiles.json").read_text()


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ('{\n  "hooks": {\n    "Stop": [,]\n  }\n}', 3, "unexpected ','"),
        ('{\n  "hooks": []\n}', 2, "`hooks` must be an object"),
        ('{\n  "hooks": {\n    "Stop": {}\n  }\n}', 3, "`hooks.Stop` must be an array"),
        ('{"a": 1}\n}', 2, "something follows"),
        ('{"a": 1,\n "b": tru}', 2, "no JSON value"),
        ('{"a": "\n"}', 1, "unexpected"),
        ("[]", 1, "expected a JSON object"),
        ("{" + '"a": {' * 300, 1, "nested too deeply"),
    ],
)
def test_broken_settings_are_refused_with_their_line_and_not_touched(
    text: str, line: int, problem: str, project: Path
) -> None:
    made = make("claude", project)
    settings = Path(made.settings)
    settings.parent.mkdir()
    settings.write_text(text)

    with pytest.raises(SettingsError) as refused:
        install_hook(made)

    assert (refused.value.path, refused.value.line) == (str(settings), line)
    assert problem in str(refused.value)
    assert settings.read_text() == text
    assert not made.path.exists()


def test_settings_that_are_no_text_are_refused(project: Path) -> None:
    made = make("claude", project)
    Path(made.settings).parent.mkdir()
    Path(made.settings).write_bytes(b"\xff\xfe{}")

    with pytest.raises(SettingsError, match="no UTF-8"):
        install_hook(made)


def test_changed_settings_are_noticed(project: Path) -> None:
    made = make("claude", project)
    install_hook(made)
    settings = Path(made.settings)

    settings.write_text(settings.read_text().replace(" judge PreToolUse", " tell PreToolUse"))

    assert "PreToolUse" not in find_hook(made)
    assert "Stop" in find_hook(made)


def test_the_users_settings_are_where_the_host_looks_for_them(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEX_HOME", "/elsewhere/codex")

    assert make("codex", project, scope=Scope.USER).settings == "/elsewhere/codex/hooks.json"
    assert make("gemini", project, scope=Scope.USER).settings == f"{os.environ['HOME']}/.gemini/settings.json"


def test_the_command_survives_a_shell_of_another_grammar(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")

    assert make("codex", project).command("PreToolUse").startswith("/bin/sh -c '")
    assert not make("claude", project).command("PreToolUse").startswith("/bin/sh")


def test_hooks_that_the_host_would_never_call_are_refused(project: Path) -> None:
    from hookline.errors import HookUsageError, UnsupportedHookError

    (project / "policy_of_nobody.py").write_text(
        f"{HOOKS}from hookline import ModelCall\n\nhooks.guard(ModelCall)(lambda call: None)\n"
    )

    with pytest.raises(UnsupportedHookError, match="Claude Code"):
        install_hook(make("claude", project))
    with pytest.raises(HookUsageError, match="there is no file"):
        install_hook(make_installation("claude", project=project, hooks=["nowhere.py"]))
    with pytest.raises(HookUsageError, match="not a coding agent"):
        make("emacs", project)
    assert not (project / ".claude").exists()


def test_an_installation_of_a_newer_version_is_refused(project: Path) -> None:
    made = make("claude", project)
    install_hook(made)
    made.path.write_text(made.path.read_text().replace('"format": 1', '"format": 2'))

    with pytest.raises(InstallationError, match="newer version"):
        read_installation(made.path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(max_size=4).filter(lambda key: key != "hooks"), JSON, max_size=4),
    st.dictionaries(st.sampled_from(["Stop", "PreToolUse", "Other"]), st.lists(JSON, max_size=3), max_size=3),
    st.sampled_from([None, 1, 2, 4]),
)
def test_what_is_added_and_removed_leaves_the_rest_as_it_was(
    others: dict[str, Any], events: dict[str, list[Any]], indent: int | None
) -> None:
    before = {**others, "hooks": events}
    document = JsonDocument(json.dumps(before, indent=indent))

    document.add({"ours": [1, {"deep": True}]}, "hooks", "Stop", None)
    document.add("alone", "hooks", "New", None)
    added = json.loads(document.text)
    document.remove("hooks", "New", 0)
    document.remove("hooks", "Stop", len(events.get("Stop", [])))

    assert added["hooks"]["Stop"] == [*events.get("Stop", []), {"ours": [1, {"deep": True}]}]
    assert added["hooks"]["New"] == ["alone"]
    after = json.loads(document.text)
    assert after.get("hooks", {}) == {name: found for name, found in events.items() if found or name != "Stop"}
    assert {key: value for key, value in after.items() if key != "hooks"} == others


@given(st.text(alphabet='{}[]",:/*\\ \n1aé', max_size=30))
def test_no_text_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(JsonSyntaxError):
        assert isinstance(JsonDocument(text).value, dict)
