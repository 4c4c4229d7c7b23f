"""The hooks in a coding agent's settings become definitions that do the same, or are said not to."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hookline.calls import AgentResult, SubAgentCall, ToolCall, ToolResult
from hookline.interceptors import Chain
from hookline.registry import DefinitionFileError, HostSettings, Registry, read_host_settings
from tests.tables import for_each

COMMENTED = """\
{
  // what Claude Code may do: "a comment"
  "permissions": {"allow": ["Bash(ls)", "http://not/a/comment"]},
  "hooks": {
    "PreToolUse": [
      {
        "matcher": "Bash",  /* two
                               lines */
        "hooks": [{"type": "command", "command": "./check.sh --token abc", "timeout": 5}],
      },
    ],
  },
}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my project's folder"
    for name in (".claude", ".gemini", ".codex"):
        (folder / name).mkdir(parents=True)
    return folder


def write(project: Path, hooks: Any, name: str = ".claude/settings.json", **more: Any) -> Path:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(json.dumps({"hooks": hooks, **more}))
    return project / name


def command(text: str, **more: Any) -> dict[str, Any]:
    return {"hooks": [{"type": "command", "command": text, **more}]}


def why(settings: HostSettings) -> list[str]:
    return [each.why for each in settings.skipped]


def test_comments_and_trailing_commas_are_allowed_and_lines_are_known(project: Path) -> None:
    path = project / ".claude/settings.local.json"
    path.write_text(COMMENTED)

    settings = read_host_settings(path)

    assert settings.skipped == []
    [hook] = settings.hooks
    found = hook.definition
    assert (found.point, found.dialect, found.host_event, found.matcher) == (
        "ToolCall.before",
        "claude",
        "PreToolUse",
        "Bash",
    )
    origin = f"{project.name}/.claude/settings.local.json"
    assert (found.on_error, found.timeout, found.name) == ("open", 5.0, f"PreToolUse check.sh Bash ({origin})")
    assert hook.line == 9
    assert found.description == f"From {path}, line 9."
    assert "abc" not in f"{found.name}{found.description}"


@for_each(
    "text, line, words",
    [
        ('{\n  // fine\n  "hooks": {,}\n}', 3, "not JSON"),
        ("{\n\n\"a\": 'b'}", 3, "not JSON"),
        ("", 1, "not JSON"),
        ("[]", 1, "must be a JSON object"),
        ('{"hooks": []}', 1, "`hooks` must be an object"),
        ('{"a":' * 100_000, None, "nested too deeply"),
        ('{\n"a": \ud800}', 2, "UTF-8"),
        ('{"a": 1}\nx', 2, "Extra data"),
        ('{"a": [1,\n,]}', 2, "not JSON"),
        ('{"a": 1}\n/* not closed', 2, "Extra data"),
    ],
)
def test_a_broken_file_says_which_line(project: Path, text: str, line: int | None, words: str) -> None:
    path = project / "settings.json"
    path.write_bytes(text.encode(errors="surrogatepass"))

    with pytest.raises(DefinitionFileError, match=words) as refused:
        read_host_settings(path)

    assert (refused.value.file, refused.value.line) == (str(path), line)


def test_a_file_that_is_not_there_or_no_file_says_so(project: Path) -> None:
    for name in ("none.json", ".claude"):
        with pytest.raises(DefinitionFileError, match="no such file"):
            read_host_settings(project / name)


def test_each_event_of_claude_gets_its_point(project: Path) -> None:
    names = [
        *("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest", "Notification", "UserPromptSubmit"),
        *("SessionStart", "Stop", "SubagentStart", "SubagentStop", "PreCompact", "PostCompact", "SessionEnd"),
    ]
    settings = read_host_settings(write(project, {name: [command("true")] for name in names}))

    points = {hook.definition.host_event: hook.definition.point for hook in settings.hooks if not _is_extra(hook)}
    assert settings.skipped == []
    assert points == {
        "PreToolUse": "ToolCall.before",
        "PostToolUse": "ToolCall.after",
        "PostToolUseFailure": "ToolCall.after",
        "PermissionRequest": "beforeHumanIntervention",
        "Notification": "beforeHumanIntervention",
        "UserPromptSubmit": "AgentCall.before",
        "SessionStart": "AgentCall.before",
        "Stop": "AgentCall.after",
        "SubagentStart": "SubAgentCall.before",
        "SubagentStop": "SubAgentCall.after",
        "PreCompact": "CompactCall.before",
        "PostCompact": "CompactCall.after",
        "SessionEnd": "onComplete",
    }
    assert {hook.definition.host_event for hook in settings.hooks if hook.definition.inherit is False} == {
        "UserPromptSubmit",
        "SessionStart",
        "Stop",
    }


def _is_extra(hook: Any) -> bool:
    return hook.definition.point == "SubAgentCall.before" and hook.definition.host_event == "PreToolUse"


SKIPPED: list[tuple[str, dict[str, Any], str]] = [
    ("an event that we have not", {"WorktreeCreate": [command("x")]}, "no such event"),
    ("an event of models", {"PreModelRequest": [command("x")]}, "use a hook of ModelCall"),
    ("a prompt", {"Stop": [{"hooks": [{"type": "prompt", "prompt": "ok?"}]}]}, "its host asks a model"),
    ("an agent", {"Stop": [{"hooks": [{"type": "agent", "prompt": "ok?"}]}]}, "its host runs an agent"),
    ("an MCP tool", {"Stop": [{"hooks": [{"type": "mcp_tool"}]}]}, "a tool of an MCP server"),
    ("a condition", {"PreToolUse": [command("x", **{"if": "Bash(git *)"})]}, "look into compound commands"),
    ("a condition of several tools", {"PreToolUse": [command("x", **{"if": "Edit"})]}, "no filter here does"),
    ("a condition of another kind", {"PreToolUse": [command("x", **{"if": 7})]}, "no filter here does"),
    ("a condition without a tool", {"Stop": [command("x", **{"if": "Bash"})]}, "not about a tool"),
    ("a condition that never holds", {"PreToolUse": [{"matcher": "Write", **command("x", **{"if": "Bash"})}]}, "leaves out"),
    ("a handler of a type that is none", {"Stop": [{"hooks": [{"type": 7}]}]}, "a type must be text"),
    ("another shell", {"PreToolUse": [command("x", shell="powershell")]}, "shell 'powershell'"),
    ("a broken matcher", {"PreToolUse": [{"matcher": "[", **command("x")}]}, "not a valid regular expression"),
    ("a matcher of another kind", {"PreToolUse": [{"matcher": 1, **command("x")}]}, "must be text"),
    ("a source that never comes", {"SessionStart": [{"matcher": "resume", **command("x")}]}, "always 'startup'"),
    ("a trigger that never comes", {"PreCompact": [{"matcher": "manual", **command("x")}]}, "always 'auto'"),
    ("a notification that never comes", {"Notification": [{"matcher": "idle_prompt", **command("x")}]}, "always"),
    ("no command", {"PreToolUse": [command("")]}, "`command` must be text"),
    ("a command of another kind", {"PreToolUse": [{"hooks": [{"type": "command", "command": 7}]}]}, "must be text"),
    ("half a character", {"PreToolUse": [command("echo \ud800")]}, "half a character"),
    ("a NUL", {"PreToolUse": [command("echo \0")]}, "NUL"),
    ("arguments of another kind", {"PreToolUse": [command("x", args=[1])]}, "`args` must be a list"),
    ("a background hook of a prompt", {"UserPromptSubmit": [command("x", **{"async": True})]}, "leave `async` out"),
    ("an HTTP hook of a prompt", {"UserPromptSubmit": [{"hooks": [{"type": "http", "url": "https://a"}]}]}, "no webhook"),
    ("an HTTP hook without a URL", {"PreToolUse": [{"hooks": [{"type": "http"}]}]}, "`url` must be text"),
    ("an address that is none", {"PreToolUse": [{"hooks": [{"type": "http", "url": "ftp://a"}]}]}, "absolute URL"),
    ("a group that is none", {"PreToolUse": ["x"]}, "must be an object with `hooks`"),
    ("a group without hooks", {"PreToolUse": [{"matcher": "x"}]}, "must have a list `hooks`"),
    ("a handler that is none", {"PreToolUse": [{"hooks": ["x"]}]}, "must be an object"),
    ("an event that is no list", {"PreToolUse": {}}, "must be a list of groups"),
]  # fmt: skip


@for_each("name, hooks, words", SKIPPED)
def test_what_cannot_be_taken_over_is_said_with_its_reason(
    project: Path, name: str, hooks: dict[str, Any], words: str
) -> None:
    settings = read_host_settings(write(project, {**hooks, "SessionEnd": [command("true")]}))

    assert [hook.definition.host_event for hook in settings.hooks] == ["SessionEnd"]
    [skipped] = settings.skipped
    assert words in skipped.why
    assert skipped.file.endswith("settings.json")
    assert skipped.line == 1


def test_what_is_taken_over_in_part_is_said(project: Path) -> None:
    settings = read_host_settings(
        write(
            project,
            {"Stop": [command("x", timeout=9000, shiny=1), command("y", timeout=-1)]},
            env={"TOKEN": "s3cret"},
            disableAllHooks=True,
            allowManagedHooksOnly=True,
        )
    )

    assert [hook.definition.timeout for hook in settings.hooks] == [3600.0, 600.0]
    assert [hook.definition.enabled for hook in settings.hooks] == [False, False]
    said = " | ".join(map(str, settings.skipped))
    for words in ("disabled", "disable the others", "script_env", "'shiny'", "too long", "no positive number"):
        assert words in said
    assert "s3cret" not in said


def test_an_http_hook_becomes_a_webhook_and_the_values_of_headers_stay_variables(project: Path) -> None:
    handler = {
        "type": "http",
        "url": "https://policy.example/check?key=1",
        "headers": {"Authorization": "Bearer $TOKEN"},
        "allowedEnvVars": ["TOKEN"],
    }
    settings = read_host_settings(
        write(project, {"PreToolUse": [{"matcher": "Bash", "hooks": [handler]}], "PostToolUse": [{"hooks": [handler]}]})
    )

    decides, told = (hook.definition for hook in settings.hooks)
    assert decides.point == "beforeToolCall"
    assert decides.webhook is not None
    assert (decides.webhook.control, decides.webhook.on_error, decides.webhook.dialect) == (True, "open", "claude")
    assert (decides.webhook.matcher, decides.webhook.timeout) == ("Bash", 300.0)
    assert decides.webhook.headers == {"Authorization": "Bearer ${TOKEN}"}
    assert "key=1" not in decides.name
    assert told.webhook is not None
    assert (told.point, told.webhook.control) == ("afterToolCall", False)
    assert why(settings) == ["the answer to an HTTP hook of this event has no effect"]


@pytest.mark.parametrize(
    ("condition", "matcher", "left"),
    [
        ("Bash", "", "Bash"),
        ("Bash(*)", "*", "Bash"),
        ("Bash()", "Edit|Bash", "Bash"),
        ("mcp__notes__read", "mcp__.*", "mcp__notes__read"),
        ("Task", "", "Agent|Task"),
        ("", "Write", "Write"),
    ],
)
def test_a_condition_that_means_every_call_of_a_tool_becomes_a_matcher(
    project: Path, condition: str, matcher: str, left: str
) -> None:
    hooks = {"PreToolUse": [{"matcher": matcher, **command("x", **{"if": condition})}]}
    settings = read_host_settings(write(project, hooks))

    assert settings.skipped == []
    assert settings.hooks[0].definition.matcher == left


TOML = """
# the settings of Codex
model = "gpt-5"

[features]
hooks = true

[[hooks.PreToolUse]]
matcher = "Bash"

[[hooks.PreToolUse.hooks]]
type = "command"
command = '''
echo "[[hooks.Stop]]"
'''
timeout = 7

[[hooks.PreToolUse.hooks]]
type = "prompt"
prompt = "ok?"

[[hooks.Stop]]
[[hooks.Stop.hooks]]
type = "command"
command = "y"
if = "Bash"

[hooks.state."a:pre_tool_use:0:0"]
trusted_hash = "sha256:0"
"""


def test_the_toml_of_codex_is_read_with_its_lines(project: Path) -> None:
    path = write_text(project, TOML, ".codex/config.toml")

    settings = read_host_settings(path)

    found = [
        (each.definition.host_event, each.definition.matcher, each.definition.timeout, each.line)
        for each in settings.hooks
    ]
    assert settings.dialect == "codex"
    assert found == [("PreToolUse", "Bash", 7.0, 11), ("Stop", "", 600.0, 23)]
    assert [(each.line, each.why) for each in settings.skipped] == [
        (
            18,
            "a handler of type 'prompt' has no counterpart: its host asks a model; ask one in a script, or in a hook in Python",
        ),
        (23, "Codex ignores `if`, and so does the imported hook"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        'hooks = {PreToolUse = [{hooks = [{type = "command", command = "x"}]}]}',
        '[hooks]\nPreToolUse = [{matcher = "*", hooks = [{type = "command", command = "x"}]}]',
        '["hooks"]\n[[hooks . "PreToolUse"]]\nhooks = [{command = "x"}]',
    ],
)
def test_toml_may_be_written_in_other_ways(project: Path, text: str) -> None:
    settings = read_host_settings(write_text(project, text, ".codex/config.toml"))

    assert settings.hooks[0].definition.host_event == "PreToolUse"
    assert settings.hooks[0].line >= 1


@pytest.mark.parametrize("switch", ["hooks", "codex_hooks"])
def test_hooks_that_codex_does_not_run_are_disabled(project: Path, switch: str) -> None:
    text = TOML.replace("hooks = true", f"{switch} = false") + "\n[tui]\nnotifications = true\n"
    settings = read_host_settings(write_text(project, f'notify = ["say"]\n{text}', ".codex/config.toml"))

    assert not any(each.definition.enabled for each in settings.hooks)
    assert "Codex gives the program another input" in " ".join(why(settings))


@for_each("text, line", [("a = 1\nb = \n", 2), ("hooks = 1\n", 1), ("\n\n[[hooks]]\n", 3), ("a = 1\na = 2", 2)])
def test_toml_that_is_broken_says_which_line(project: Path, text: str, line: int) -> None:
    path = write_text(project, text, ".codex/config.toml")

    with pytest.raises(DefinitionFileError) as caught:
        read_host_settings(path)

    assert (caught.value.file, caught.value.line) == (str(path), line)


def test_the_ids_of_hooks_of_toml_stay_when_lines_change(project: Path) -> None:
    before = read_host_settings(write_text(project, TOML, ".codex/config.toml")).hooks
    after = read_host_settings(write_text(project, f"# more\n\n{TOML}", ".codex/config.toml")).hooks

    assert [each.definition.id for each in before] == [each.definition.id for each in after]
    assert [each.line + 2 for each in before] == [each.line for each in after]


def write_text(project: Path, text: str, name: str) -> Path:
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_settings_of_gemini_count_milliseconds_and_name_events_as_gemini_does(project: Path) -> None:
    hooks = {
        "BeforeTool": [{"matcher": "write_.*", "hooks": [{"type": "command", "command": "x", "timeout": 1500}]}],
        "AfterTool": [command("x")],
        "BeforeModel": [command("x")],
        "disabled": ["off"],
        "AfterAgent": [command("x", name="off")],
    }

    settings = read_host_settings(write(project, hooks, ".gemini/settings.json"))

    found = {hook.definition.point: hook.definition for hook in settings.hooks}
    assert {each.dialect for each in found.values()} == {"gemini"}
    assert (found["ToolCall.before"].timeout, found["ToolCall.after"].timeout) == (1.5, 60.0)
    assert found["ToolCall.after"].host_event == ""
    assert not found["AgentCall.after"].enabled
    assert why(settings) == [
        "calls of a model have another form in this host; use a hook of ModelCall",
    ]


def test_settings_of_codex_and_copilot_are_known_by_their_folder_and_their_events(project: Path) -> None:
    codex = read_host_settings(write(project, {"PostToolUse": [command("x")]}, ".codex/hooks.json"))
    handler = {"type": "command", "bash": "./a.sh", "timeoutSec": 3, "cwd": "sub"}
    copilot = read_host_settings(write(project, {"preToolUse": [handler]}, ".github/hooks/a.json", version=1))
    told = read_host_settings(write(project, {"Stop": [command("x")]}, "other.json"), host="codex")

    assert (codex.dialect, codex.hooks[0].definition.host_event) == ("codex", "")
    assert (copilot.dialect, copilot.hooks[0].definition.timeout) == ("copilot", 3.0)
    assert f"cd -- '{project}/sub'".replace("'s ", "'\"'\"'s ") in copilot.hooks[0].script
    assert told.dialect == "codex"


def test_hooks_keep_their_ids_when_others_come_and_have_names_of_their_own(project: Path) -> None:
    one, two = command("./a.sh 1"), command("./a.sh 2")
    local = write(project, {"Stop": [one]}, ".claude/settings.local.json")

    first = read_host_settings(write(project, {"Stop": [one, one]})).hooks
    again = read_host_settings(write(project, {"Stop": [two, one, one]})).hooks
    other = read_host_settings(local).hooks
    tenant = read_host_settings(write(project, {"Stop": [one]}), tenant_id="acme").hooks

    assert {hook.definition.id for hook in first} < {hook.definition.id for hook in again}
    everything = [*again, *other, *tenant]
    assert len({hook.definition.id for hook in everything}) == len(everything)
    assert len({hook.definition.name for hook in (*again, *other)}) == 4
    assert {hook.definition.tags[-1] for hook in first} == {hook.definition.tags[-1] for hook in again}
    assert first[0].definition.tags[-1] != other[0].definition.tags[-1]


@pytest.mark.anyio
async def test_an_imported_command_runs_in_its_project_and_denies_sub_agents_too(project: Path, tmp_path: Path) -> None:
    (project / "check me.sh").write_text('#!/bin/sh\necho "in $(basename "$PWD") of $CLAUDE_PROJECT_DIR" >&2\nexit 2\n')
    (project / "check me.sh").chmod(0o755)
    hooks = {
        "PreToolUse": [
            {
                "matcher": "Bash|Task",
                "hooks": [
                    {"type": "command", "command": '"$CLAUDE_PROJECT_DIR/check me.sh"'},
                    {"type": "command", "command": "sh", "args": ["check me.sh"], "timeout": 30},
                ],
            }
        ]
    }
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    settings = read_host_settings(write(project, hooks))
    settings.write_scripts(scripts)
    settings.write_scripts(scripts)

    async def run(call: ToolCall) -> ToolResult:
        return ToolResult(content="ran")

    async def delegate(call: SubAgentCall) -> AgentResult:
        return AgentResult(output="did")

    async with Registry(scripts=scripts, files=[_as_file(settings, tmp_path)]) as registry:
        bash = await Chain(registry.hooks()).run(ToolCall(tool_name="Bash"), run)
        read = await Chain(registry.hooks()).run(ToolCall(tool_name="Read"), run)
        coder = await Chain(registry.hooks()).run(SubAgentCall(callee_id="coder", instruction="go"), delegate)

    assert bash.denied is not None
    assert bash.denied.reason == f"in {project.name} of {project}"
    assert read.denied is None
    assert coder.denied is not None
    for path in (scripts / "imported").iterdir():
        assert path.stat().st_mode & stat.S_IXUSR
        assert path.stat().st_mode & 0o022 == 0


def _as_file(settings: HostSettings, folder: Path) -> Path:
    import msgspec

    kept = ("id", "name", "point", "script", "dialect", "hostEvent", "matcher", "onError", "timeout", "tags")
    wires = [msgspec.to_builtins(hook.definition) for hook in settings.hooks]
    path = folder / "hooks.yaml"
    path.write_text(json.dumps({"hooks": [{key: wire[key] for key in kept} for wire in wires]}))
    return path


def test_scripts_are_readable_by_whom_the_settings_are(project: Path, tmp_path: Path) -> None:
    path = write(project, {"Stop": [command("true")]})
    for mode, expected in ((0o600, 0o700), (0o644, 0o755), (0o640, 0o750), (0o666, 0o755)):
        path.chmod(mode)
        read_host_settings(path).write_scripts(tmp_path)
        [script] = (tmp_path / "imported").iterdir()
        assert stat.S_IMODE(os.stat(script).st_mode) == expected


def test_the_name_of_a_file_cannot_write_into_a_script(tmp_path: Path) -> None:
    folder = tmp_path / "a\nrm -rf x; '$(touch y)"
    settings = read_host_settings(write_in(folder, {"Stop": [command("true")]}))

    lines = settings.hooks[0].script.splitlines()
    assert lines[0] == "#!/bin/sh"
    assert lines[1].startswith("# Stop of ")
    assert not any(line.startswith("rm ") for line in lines[:2])


def write_in(folder: Path, hooks: Any) -> Path:
    (folder / ".claude").mkdir(parents=True)
    return write(folder, hooks)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
HANDLERS = st.dictionaries(
    st.sampled_from(
        ["type", "command", "args", "timeout", "url", "headers", "if", "async", "name", "bash", "cwd", "x"]
    ),
    st.sampled_from(["command", "http", "./a.sh", "https://a.example", True, 5]) | VALUES,
    max_size=5,
)
GROUPS = st.dictionaries(
    st.sampled_from(["matcher", "hooks", "type"]), st.lists(HANDLERS, max_size=3) | VALUES, max_size=3
)
HOOKS = st.dictionaries(
    st.sampled_from(["PreToolUse", "BeforeTool", "preToolUse", "Stop", "SessionStart", "enabled", "x"]),
    st.lists(GROUPS | VALUES, max_size=3) | VALUES,
    max_size=4,
)


@example({"Stop": [{"hooks": [{"bash": "x", "command": []}]}], "disabled": ["x", []]}, None)
@given(HOOKS | VALUES, st.sampled_from([None, "claude", "codex", "gemini", "copilot"]))
def test_whatever_stands_in_the_settings_is_read_or_refused(hooks: Any, host: str | None) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "settings.json"
        path.write_text(json.dumps({"hooks": hooks}))
        try:
            settings = read_host_settings(path, host=host)
        except DefinitionFileError:
            return
        for hook in settings.hooks:
            assert hook.definition.on_error == ("closed" if hook.definition.point[0].islower() else "open")
        settings.write_scripts(Path(folder))
