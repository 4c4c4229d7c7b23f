"""A script that was written for a coding agent runs unchanged, and a closed one lets nothing through when it fails."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import psutil
import pytest

from hookline import Agent, ModelCall, ModelResponse, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.calls import (
    AgentResult,
    CompactCall,
    CompactResult,
    Message,
    SubAgentCall,
    ToolCall,
    ToolResult,
)
from hookline.delivery import KeyRing
from hookline.events import BeforeHumanIntervention, OnComplete, PendingTool
from hookline.hooks import Hooks
from hookline.interceptors import Chain, Outcome
from hookline.registry import DefinitionError, HandlerCatalog, Registry
from hookline.registry._build import Builder
from hookline.registry._definition import read_definition
from hookline.registry._revisions import encode_definition
from hookline.registry._scripts import Scripts
from hookline.runtime import OperationResult
from tests.tables import for_each

from .scenes import definition

pytestmark = pytest.mark.anyio

READ = 'command=$(sed -n \'s/.*"command":"\\([^"]*\\)".*/\\1/p\'); [ "$command" = "rm -rf /" ] || exit 0\n'
"""A shell script that reads `tool_input.command`, and has something to say about one command only."""
BASH = ToolCall(tool_name="Bash", args={"command": "rm -rf /"}, operation_id="op", tool_call_id="t1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my scripts"
    folder.mkdir()
    return folder


Hook = Callable[..., Hooks]


@pytest.fixture
def hook(folder: Path) -> Hook:
    def hook(body: str, *, name: str = "hook.sh", environment: tuple[str, ...] = (), **fields: Any) -> Hooks:
        (folder / name).write_text(dedent(body))
        given = {"id": "hook_1", "point": "ToolCall.before", "dialect": "claude", "on_error": "open", "timeout": 30}
        made = Builder(HandlerCatalog(), Scripts(folder, environment), KeyRing()).build_new(
            read_definition(definition(**(given | {"script": name} | fields)))
        )
        assert isinstance(made, Hooks)
        return made

    return hook


async def judge(hooks: Hooks, call: ToolCall = BASH, result: ToolResult | None = None) -> Outcome:
    async def run(call: ToolCall) -> ToolResult:
        return result or ToolResult(content=f"ran {call.args.get('command')}")

    return await Chain([hooks]).run(call, run)


async def run_agent(hooks: Hooks) -> tuple[OperationResult, list[str]]:
    """Run an agent that calls `Bash` with a bad command, and return its result and the commands that ran."""
    ran: list[str] = []

    @tool(name="Bash")
    async def bash(command: str) -> str:
        """Run a command."""
        ran.append(command)
        return f"ran {command}"

    def answer(call: ModelCall) -> ModelResponse:
        if call.messages[-1].role == "tool":
            return ModelResponse(content=f"done: {call.messages[-1].content}")
        return ModelResponse(tool_calls=[ToolRequest("Bash", {"command": "rm -rf /"}, tool_call_id="t1")])

    agent = Agent(id="shell", model=ScriptedModel(answer), tools=[bash])
    return await exec_agent(agent, "Clean up", hooks=[hooks]), ran


def specific(**fields: Any) -> str:
    return json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", **fields}})


def says(text: str) -> str:
    return f"{READ}printf '%s' {json.dumps(text)!s}" if "'" in text else f"{READ}printf '%s' '{text}'"


REASON = "too dangerous"
SHAPES: list[tuple[str, str, list[str], str, str]] = [
    ("exit 2", f"{READ}echo '{REASON}' >&2; exit 2", [], "done", REASON),
    ("silent exit 0", f"{READ}exit 0", ["rm -rf /"], "done", "ran rm"),
    ("exit 1", f"{READ}echo 'no jq here' >&2; exit 1", ["rm -rf /"], "done", "ran rm"),
    ("deny", says(specific(permissionDecision="deny", permissionDecisionReason=REASON)), [], "done", REASON),
    ("allow", says(specific(permissionDecision="allow")), ["rm -rf /"], "done", "ran rm"),
    (
        "allow and rewrite",
        says(specific(permissionDecision="allow", updatedInput={"command": "ls"})),
        ["ls"],
        "done",
        "ran ls",
    ),
    ("ask", says(specific(permissionDecision="ask", permissionDecisionReason=REASON)), [], "waiting_for_human", REASON),
    ("block", says(json.dumps({"decision": "block", "reason": REASON})), [], "done", REASON),
    ("stop", says(json.dumps({"continue": False, "stopReason": REASON})), [], "interrupted", REASON),
    ("text", says("nothing to say"), ["rm -rf /"], "done", "ran rm"),
    ("empty object", says("{}"), ["rm -rf /"], "done", "ran rm"),
    ("decision deny", says(json.dumps({"decision": "deny", "reason": REASON})), [], "done", REASON),
]


@for_each("name, body, runs, reason, told", SHAPES, ids=[shape[0] for shape in SHAPES])
async def test_each_shape_of_script_does_in_a_run_what_its_author_meant(
    hook: Hook, name: str, body: str, runs: list[str], reason: str, told: str
) -> None:
    result, ran = await run_agent(hook(body))

    assert ran == runs
    assert result.reason == reason
    shown = result.pending[0].prompt if result.pending else result.output
    if reason == "interrupted":
        shown = result.denied.reason if result.denied else next(each.content for each in result.messages[::-1])
    assert told in shown


async def test_a_script_that_exits_with_1_is_a_warning_when_it_is_open_and_a_denial_when_it_is_closed(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    body = f"{READ}echo 'no jq here' >&2; exit 1"

    opened, ran = await run_agent(hook(body))
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    closed, not_ran = await run_agent(hook(body, on_error="closed"))

    assert (ran, not_ran) == (["rm -rf /"], [])
    assert opened.output == "done: ran rm -rf /"
    assert any("exited with 1: no jq here" in each for each in warnings)
    assert "exited with 1: no jq here" in closed.output


BROKEN: dict[str, str] = {
    "exit 1": "exit 1",
    "exit 3": "echo no >&2; exit 3",
    "exit 127": "no-such-program",
    "killed": "kill -9 $$",
    "terminated": "kill -TERM $$",
    "segfault": "kill -SEGV $$",
    "hangs": "sleep 60",
    "hangs after an answer": 'echo \'{"decision": "approve"}\'; sleep 60',
    "forks and hangs": "sleep 60 & sleep 60",
    "ignores signals": "trap '' TERM INT HUP; sleep 60",
    "floods": "yes 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'",
    "floods stderr": "yes 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' >&2",
    "text": "echo everything is fine",
    "text before JSON": 'echo checking; echo \'{"decision": "approve"}\'',
    "text after JSON": 'echo \'{"decision": "approve"}\'; echo checked',
    "half an object": 'printf \'{"decision": "app\'',
    "a list": "echo '[]'",
    "a number": "echo 1",
    "python's spelling": "echo \"{'decision': 'approve'}\"",
    "two objects": "echo '{}{}'",
    "an unknown decision": 'echo \'{"decision": "perhaps"}\'',
    "a decision that is no text": "echo '{\"decision\": 1}'",
    "a repeated key": 'echo \'{"decision": "deny", "decision": "approve"}\'',
    "deep": "printf '{\"a\": '; head -c 200000 /dev/zero | tr '\\0' '['",
    "bytes": "head -c 300 /dev/urandom; printf '\\377'",
    "not a number": 'echo \'{"hookSpecificOutput": {"updatedInput": {"n": NaN}}}\'',
    "input that is a text": 'echo \'{"hookSpecificOutput": {"updatedInput": "ls", "tool_input": "ls"}}\'',
    "an infinite number": 'echo \'{"hookSpecificOutput": {"updatedInput": {"n": 1e999}}}\'',
}


@for_each("name", BROKEN)
async def test_no_call_gets_past_a_closed_script_that_is_broken(hook: Hook, name: str) -> None:
    slow = "hang" in name or "ignore" in name or name == "floods stderr"
    dialects = ("claude", "codex", "gemini", "copilot")
    hooks = [hook(BROKEN[name], dialect=each, on_error="closed", timeout=0.5 if slow else 30) for each in dialects]
    outcomes = await asyncio.gather(*map(judge, hooks))

    for dialect, outcome in zip(dialects, outcomes, strict=True):
        assert outcome.denied is not None, dialect
        assert outcome.result is None, dialect


@for_each("name", [name for name in BROKEN if not name.startswith("floods")])
async def test_an_open_script_that_is_broken_lets_the_call_run_with_a_warning(
    hook: Hook, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    slow = "hang" in name or "ignore" in name
    outcome = await judge(hook(BROKEN[name], timeout=0.5 if slow else 30))

    assert outcome.denied is None
    assert outcome.result == ToolResult(content="ran rm -rf /")
    silent = name in ("text", "a list", "a number", "bytes")  # hosts tolerate what is no JSON
    assert silent or any(each.levelno == logging.WARNING for each in caplog.records)


async def test_a_denial_counts_whatever_else_is_wrong_with_the_answer(hook: Hook) -> None:
    for body in (
        'echo \'{"decision": "block", "reason": "no", "suppressOutput": 7}\'',
        'echo \'{"decision": "block", "reason": "no"}\'; exit 1',
        'printf \'{"decision": "block", "reason": "no \\\\ud800"}\'',
        'printf \'{"decision": "block", "reason": "no \\351"}\'',
        'printf \'\\357\\273\\277{"decision": "block", "reason": "no"}\'',
        'echo \'{"decision": "block", "reason": "no", "shiny": {"new": 1}}\'',
        'echo \'{"decision": "approve", "hookSpecificOutput": {"permissionDecision": "deny"}, "reason": "no"}\'',
        "echo '{}'; echo no >&2; exit 2",
    ):
        outcome = await judge(hook(body))
        assert outcome.denied is not None, body
        assert outcome.denied.reason.startswith("no"), body


async def test_a_denial_of_8_megabytes_is_obeyed_and_its_reason_is_cut(hook: Hook) -> None:
    body = """
    import json
    print(json.dumps({"decision": "block", "reason": "no " + "x" * 8_000_000}))
    """

    outcome = await judge(hook(body, name="large.py"))

    assert outcome.denied is not None
    assert 9_000 < len(outcome.denied.reason) <= 10_000


async def test_a_script_reads_what_claude_code_sends(hook: Hook, folder: Path) -> None:
    outcome = await judge(hook("cat > ../asked.json; pwd > ../where", name="where.sh"))

    assert outcome.denied is None
    # The working directory is an empty folder of its own, which is gone now.
    body = f'cat > {str(folder / "asked.json")!r}; echo "$CLAUDE_PROJECT_DIR" > {str(folder / "project")!r}'
    await judge(hook(body))
    asked = json.loads((folder / "asked.json").read_text())
    assert asked == {
        "session_id": "op",
        "transcript_path": "",
        "cwd": str(Path.cwd()),
        "hook_event_name": "PreToolUse",
        "permission_mode": "default",
        "tool_name": "Bash",
        "tool_input": {"command": "rm -rf /"},
        "tool_use_id": "t1",
    }
    assert (folder / "project").read_text().strip() == str(Path.cwd())


async def test_a_matcher_chooses_tools_by_the_names_that_the_host_gives_them(hook: Hook) -> None:
    body = "echo no >&2; exit 2"
    note = msgspec.structs.replace(BASH, toolset="memory", tool_name="create_note")

    assert (await judge(hook(body, matcher="Bash|Write"))).denied is not None
    assert (await judge(hook(body, matcher="Bas"))).denied is None
    assert (await judge(hook(body, matcher="mcp__memory__.*"), note)).denied is not None
    assert (await judge(hook(body, matcher="mcp__memory__.*"))).denied is None
    assert (await judge(hook(body, matcher="create_note"), note)).denied is None
    assert (await judge(hook(body, dialect="gemini", matcher="memory_create"), note)).denied is not None


async def test_what_a_guard_cannot_change_fails(hook: Hook) -> None:
    body = says(specific(permissionDecision="allow", updatedInput={"command": "ls"}))

    closed = await judge(hook(body, point="ToolCall.guard", on_error="closed"))
    opened = await judge(hook(body, point="ToolCall.guard"))

    assert closed.denied is not None
    assert "a hook at ToolCall.guard cannot change the call" in closed.denied.reason
    assert opened.result == ToolResult(content="ran rm -rf /")


async def test_a_person_decides_about_the_arguments_as_they_are(hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    body = says(specific(permissionDecision="ask", updatedInput={"command": "ls"}))

    outcome = await judge(hook(body))

    assert outcome.asked is not None
    assert outcome.asked.prompt == "hook_1 wants a person to decide."
    assert outcome.call.args == {"command": "rm -rf /"}
    assert "its changes are ignored" in caplog.text


async def test_a_block_after_a_tool_adds_its_reason_and_in_gemini_replaces_the_result(hook: Hook) -> None:
    body = "echo 'lint failed' >&2; exit 2"
    read = ToolResult(content="text of the file")

    added = await judge(hook(body, point="ToolCall.after"), result=read)
    replaced = await judge(hook(body, point="ToolCall.after", dialect="gemini"), result=read)
    stopped = await judge(
        hook('echo \'{"continue": false, "stopReason": "enough"}\'', point="ToolCall.after"), result=read
    )
    changed = await judge(
        hook('echo \'{"hookSpecificOutput": {"updatedToolOutput": "clean"}}\'', point="ToolCall.after"),
        result=read,
    )

    assert added.result == ToolResult(content="text of the file\n\nlint failed")
    assert replaced.denied is not None
    assert replaced.denied.reason == "lint failed"
    assert (stopped.stop, stopped.denied and stopped.denied.reason) == (True, "enough")
    assert changed.result == ToolResult(content="clean")


async def test_a_failed_call_is_another_event_where_the_host_has_one(hook: Hook) -> None:
    body = """
    import json, sys
    asked = json.load(sys.stdin)
    print(json.dumps({"decision": "block", "reason": asked["hook_event_name"] + asked.get("error", "")}))
    """
    failed = ToolResult(content="boom", success=False)

    async def told(result: ToolResult, **fields: Any) -> str:
        outcome = await judge(hook(body, name="hook.py", point="ToolCall.after", **fields), result=result)
        return outcome.result.content if outcome.denied is None else outcome.denied.reason

    assert await told(ToolResult(content="ok")) == "ok\n\nPostToolUse"
    assert await told(failed) == "boom\n\nPostToolUseFailureboom"
    assert await told(failed, host_event="PostToolUse") == "boom"
    assert await told(ToolResult(content="ok"), host_event="PostToolUseFailure") == "ok"
    assert await told(failed, dialect="codex") == "PostToolUse"
    assert await told(failed, dialect="gemini") == "AfterTool"


async def test_a_prompt_can_be_blocked_and_a_stop_goes_on_until_the_run_ends(hook: Hook, folder: Path) -> None:
    agent = Agent(id="a", model=ScriptedModel(["one", "two", "three"]))
    log = folder / "log"
    stop = f"""
    import json, sys
    asked = json.load(sys.stdin)
    open({str(log)!r}, "a").write(f"{{asked['stop_hook_active']}} {{asked['last_assistant_message']}}\\n")
    if not asked["stop_hook_active"]:
        print(json.dumps({{"decision": "block", "reason": "run the tests"}}))
    """

    blocked = await exec_agent(
        agent, "secret plans", hooks=[hook("echo 'not this' >&2; exit 2", point="AgentCall.before")]
    )
    goes_on = await exec_agent(agent, "work", hooks=[hook(stop, name="stop.py", point="AgentCall.after")])

    assert (blocked.reason, blocked.denied and blocked.denied.reason) == ("interrupted", "not this")
    assert goes_on.output == "two"
    assert [each.content for each in goes_on.messages if each.role == "user"] == ["work", "run the tests"]
    assert log.read_text().splitlines() == ["False one", "True two"]


async def test_a_session_starts_once_although_the_run_goes_on(hook: Hook, folder: Path) -> None:
    log = folder / "log"
    start = hook(f"cat >> {str(log)!r}", name="start.sh", point="AgentCall.before", host_event="SessionStart")
    again = hook("grep -q '\"stop_hook_active\":true' || { echo more >&2; exit 2; }", point="AgentCall.after")

    result = await exec_agent(Agent(id="a", model=ScriptedModel(["one", "two"])), "work", hooks=[start, again])

    assert result.output == "two"
    assert log.read_text().count('"hook_event_name":"SessionStart"') == 1


async def test_sub_agents_and_compactions_are_judged(hook: Hook) -> None:
    body = """
    import json, sys
    asked = json.load(sys.stdin)
    print(json.dumps({"decision": "block", "reason": json.dumps(asked, sort_keys=True)}))
    """

    async def sub_agent(call: SubAgentCall) -> AgentResult:
        return AgentResult(output=f"did {call.instruction}")

    async def compact(call: CompactCall) -> CompactResult:
        return CompactResult(summary="short")

    async def reason(hooks: Hooks, call: Any, run: Any) -> dict[str, Any]:
        outcome = await Chain([hooks]).run(call, run)
        assert outcome.denied is not None
        found: dict[str, Any] = json.loads(outcome.denied.reason)
        return found

    delegate = SubAgentCall(callee_id="coder", instruction="write it", operation_id="op")
    summarise = CompactCall(messages=[Message(role="user", content="hi")], token_count=9, operation_id="op")

    started = await reason(hook(body, name="h.py", point="SubAgentCall.before"), delegate, sub_agent)
    spawned = await reason(
        hook(body, name="h.py", point="SubAgentCall.before", host_event="PreToolUse"), delegate, sub_agent
    )
    compacted = await reason(hook(body, name="h.py", point="CompactCall.before"), summarise, compact)
    context = 'echo \'{"hookSpecificOutput": {"additionalContext": "be brief"}}\''
    told = await Chain([hook(context, point="SubAgentCall.before")]).run(delegate, sub_agent)

    assert (started["hook_event_name"], started["agent_type"]) == ("SubagentStart", "coder")
    assert (spawned["tool_name"], spawned["tool_input"]["prompt"]) == ("Agent", "write it")
    assert (compacted["hook_event_name"], compacted["trigger"]) == ("PreCompact", "auto")
    assert told.result.output == "did write it\n\nbe brief"


async def test_an_observer_is_told_of_events_once_for_each_call_that_waits(hook: Hook, folder: Path) -> None:
    log = folder / "log"
    body = f"cat >> {str(log)!r}; echo >> {str(log)!r}"
    pending = [
        PendingTool(toolset="local", tool_name=name, tool_call_id=name, args={"command": name}) for name in ("a", "b")
    ]

    async def tell(event: Any, **fields: Any) -> list[dict[str, Any]]:
        log.unlink(missing_ok=True)
        bundle = hook(body, on_error="closed", **fields)
        handler = bundle.observers[0].handler
        assert handler is not None
        await handler(event)  # type: ignore[misc]
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    waiting = BeforeHumanIntervention(operation_id="op", step_index=0, pending_tools=pending)
    asked = await tell(waiting, point="beforeHumanIntervention", host_event="PermissionRequest")
    (noticed,) = await tell(waiting, point="beforeHumanIntervention")
    ended = {
        "operation_id": "op", "steps": 1, "llm_calls": 1, "tool_calls": 0, "total_tokens": 1, "cost_usd": 0.0,
        "duration_ms": 1.0, "last_assistant_content": "bye",
    }  # fmt: skip
    (over,) = await tell(OnComplete(reason="done", **ended), point="onComplete", host_event="SessionEnd")
    paused = await tell(OnComplete(reason="waiting_for_human", **ended), point="onComplete", host_event="SessionEnd")

    assert [each["tool_input"]["command"] for each in asked] == ["a", "b"]
    assert (noticed["notification_type"], noticed["message"][-4:]) == ("permission_prompt", "a, b")
    assert (over["hook_event_name"], over["reason"]) == ("SessionEnd", "other")
    assert paused == []


async def test_secrets_of_the_environment_reach_neither_the_log_nor_the_model(
    hook: Hook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BANK_TOKEN", "tok-5417-secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-1234567")
    caplog.set_level(logging.DEBUG, "hookline")

    for ending in ("exit 1", "exit 2", "sleep 60", "kill -9 $$"):
        for on_error in ("open", "closed"):
            made = hook(f"env >&2; {ending}", environment=("BANK_TOKEN",), on_error=on_error, timeout=1)
            outcome = await judge(made)
            assert outcome.denied is None or "5417" not in outcome.denied.reason

    assert "5417" not in caplog.text
    assert "sk-ant" not in caplog.text


async def test_processes_of_a_script_are_ended_with_it(hook: Hook, folder: Path) -> None:
    pids = folder / "pids"
    body = f"sleep 300 & echo $! >> {str(pids)!r}; sleep 300 & echo $! >> {str(pids)!r}; echo no >&2; exit 2"

    assert (await judge(hook(body))).denied is not None

    for pid in pids.read_text().split():
        assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


async def test_unknown_keys_pass_and_are_counted(hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    made = hook('echo \'{"shiny": "a secret", "hookSpecificOutput": {"newKey": 1}}\'', id="hook_counting")

    for _ in range(10):
        assert (await judge(made)).denied is None

    told = [each for each in caplog.messages if "unknown key" in each]
    assert [each[-10:] for each in told if "shiny" in each] == ["(1 so far)", "10 so far)"]
    assert any("hookSpecificOutput.newKey" in each for each in told)
    assert "a secret" not in caplog.text


async def test_a_message_for_the_user_and_a_denial_that_the_host_would_not_obey_are_logged(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookline")

    outcome = await judge(hook('echo \'{"decision": "deny", "reason": "no", "systemMessage": "look out"}\''))

    assert outcome.denied is not None
    assert "look out" in caplog.text
    assert "would let the call run" in caplog.text


@for_each(
    "fields, path",
    [
        ({"point": "StepCall.before"}, "$.dialect"),
        ({"point": "ModelCall.guard"}, "$.dialect"),
        ({"host_event": "Stop"}, "$.hostEvent"),
        ({"host_event": "SubagentStart", "dialect": "gemini"}, "$.hostEvent"),
        ({"matcher": "["}, "$.matcher"),
        ({"matcher": "(a+)+$"}, "$.matcher"),
        ({"matcher": ".*.*.*.*x"}, "$.matcher"),
        ({"dialect": "hookline", "matcher": "Bash"}, "$.matcher"),
        ({"dialect": "hookline", "host_event": "Stop"}, "$.hostEvent"),
        ({"dialect": "cursor"}, "$.dialect"),
        ({"point": "ToolCall.around"}, "$.point"),
    ],
)
def test_a_definition_that_could_never_work_is_refused(hook: Hook, fields: dict[str, Any], path: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        read_definition({"name": "a", "point": "ToolCall.before", "script": "a.sh", "dialect": "claude"} | fields)
        hook("", **fields)

    assert refused.value.path in (path, "$.point" if fields.get("point") == "ToolCall.around" else path, "$.dialect")


async def test_context_of_a_script_reaches_the_model_with_the_result_and_with_a_denial(hook: Hook) -> None:
    told, ran = await run_agent(hook(says(specific(additionalContext="be brief"))))
    denied, never = await run_agent(
        hook(says(specific(permissionDecision="deny", permissionDecisionReason="no", additionalContext="ask Ann")))
    )
    after = await judge(hook(says(specific(additionalContext="lint passed")), point="ToolCall.after"))

    assert (ran, never) == (["rm -rf /"], [])
    assert "ran rm -rf /" in told.output
    assert "be brief" in told.output
    assert "ask Ann" in denied.output
    assert [(each.hook_id, each.text) for each in after.context] == [("hook_1", "lint passed")]


async def test_a_dry_run_shows_the_context_of_a_script_of_another_dialect(folder: Path) -> None:
    (folder / "tells.sh").write_text(f"cat > /dev/null; printf '%s' '{specific(additionalContext='be brief')}'")
    given = {"name": "tells", "point": "ToolCall.before", "script": "tells.sh", "dialect": "claude"}

    async with Registry(scripts=folder) as registry:
        passed = await registry.dry_run(given, {"apiName": "Bash"}, timeout=30)

    assert (passed.outcome, passed.context) == ("passed", "be brief")


async def test_a_dry_run_of_a_script_of_another_dialect_says_what_it_decides(folder: Path) -> None:
    (folder / "no.sh").write_text("echo no >&2; exit 2")
    given = {"name": "no", "point": "ToolCall.before", "script": "no.sh", "dialect": "claude", "matcher": "Bash"}

    async with Registry(scripts=folder) as registry:
        denied = await registry.dry_run(given, {"apiName": "Bash"}, timeout=30)
        passed = await registry.dry_run(given, {"apiName": "Read"}, timeout=30)

    assert (denied.outcome, denied.reason) == ("denied", "no")
    assert passed.outcome == "passed"


def test_what_earlier_versions_do_not_know_is_not_written_where_it_is_not_used() -> None:
    plain = read_definition({"name": "a", "point": "ToolCall.guard", "handler": "deny"})
    spoken = read_definition({"name": "a", "point": "ToolCall.guard", "script": "a.sh", "dialect": "claude"})

    assert {"dialect", "hostEvent", "matcher", "exceptTenants"}.isdisjoint(json.loads(encode_definition(plain)))
    assert json.loads(encode_definition(spoken))["dialect"] == "claude"
