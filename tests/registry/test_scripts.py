"""A script is asked as JSON and answers as JSON, sees next to nothing of its surroundings, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from textwrap import dedent
from typing import Any

import msgspec
import psutil
import pytest

from hookline import Agent, ScriptedModel, exec_agent, tool
from hookline.calls import AgentCall, AgentResult, Message, ToolResult
from hookline.delivery import KeyRing
from hookline.events import BeforeStep
from hookline.hooks import Hooks
from hookline.interceptors import Chain, Outcome
from hookline.registry import DefinitionError, HandlerCatalog, Registry, ScriptError
from hookline.registry._build import Builder
from hookline.registry._definition import read_definition
from hookline.registry._scripts import Scripts
from tests.tables import for_each

from .scenes import PAY, definition, pay, until

pytestmark = pytest.mark.anyio

Write = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    return folder


@pytest.fixture
def write(folder: Path) -> Write:
    def write(text: str, name: str = "hook.py") -> str:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))
        return name

    return write


def hook(folder: Path, script: str, *, environment: tuple[str, ...] = (), **fields: Any) -> Hooks:
    builder = Builder(HandlerCatalog(), Scripts(folder, environment), KeyRing())
    made = builder.build_new(read_definition(definition(id="hook_1", script=script, **fields)))
    assert isinstance(made, Hooks)
    return made


async def cause(hooks: Hooks) -> ScriptError:
    outcome = await pay([hooks])
    assert outcome.refusal is not None
    failure: BaseException | None = outcome.refusal
    while failure is not None and not isinstance(failure, ScriptError):
        failure = failure.__cause__
    assert failure is not None
    return failure


async def test_a_script_reads_the_point_the_call_and_its_config(folder: Path, write: Write) -> None:
    script = write(
        """
        import json, sys
        told = json.load(sys.stdin)
        json.dump({"decision": "deny", "reason": json.dumps(told, sort_keys=True)}, sys.stdout)
        """
    )

    outcome = await pay([hook(folder, script, config={"most": 7})])

    assert outcome.denied is not None
    told = msgspec.json.decode(outcome.denied.reason)
    assert (told["point"], told["hookId"], told["config"]) == ("ToolCall.guard", "hook_1", {"most": 7})
    assert (told["call"]["apiName"], told["call"]["args"], told["call"]["operationId"]) == ("pay", {"amount": 3}, "op")


async def test_a_script_is_told_of_tools_what_a_model_is_told(folder: Path, write: Write) -> None:
    script = write(
        """
        import json, sys
        tools = json.load(sys.stdin)["call"]["tools"]
        json.dump({"decision": "deny", "reason": json.dumps(tools)}, sys.stdout)
        """
    )
    hooks = hook(folder, script, point="ModelCall.guard")

    @tool
    async def price(item: str) -> str:
        """Look up a price."""
        return item

    result = await exec_agent(Agent(id="shop", model=ScriptedModel(["x"]), tools=[price]), "Go", hooks=[hooks])

    assert result.denied is not None
    (told,) = msgspec.json.decode(result.denied.reason)
    assert sorted(told) == ["description", "identifier", "name", "schema"]
    assert (told["identifier"], told["name"], told["description"]) == ("local", "price", "Look up a price.")


ANSWERS: list[tuple[str, str, Callable[[Outcome], bool]]] = [
    ("before", "", lambda it: it.denied is None),
    ("before", " \n", lambda it: it.denied is None),
    ("before", "{}", lambda it: it.denied is None),
    ("before", '{"decision": "allow", "args": {"amount": 1}}', lambda it: it.call.args == {"amount": 1}),
    ("before", '{"decision": "answer", "result": "mocked"}', lambda it: it.result == ToolResult(content="mocked")),
    (
        "before",
        '{"decision": "answer", "result": {"content": "c", "success": false}}',
        lambda it: not it.result.success,
    ),
    ("before", '{"decision": "ask", "reason": "may it?"}', lambda it: it.asked.prompt == "may it?"),
    ("guard", '{"decision": "ask", "reason": "may it?"}', lambda it: it.asked.prompt == "may it?"),
    ("guard", '{"decision": "deny", "reason": "no", "stop": true}', lambda it: it.stop and it.denied.reason == "no"),
    ("after", '{"decision": "deny", "reason": "no"}', lambda it: it.denied.reason == "no"),
    ("after", '{"decision": "answer", "result": "cleaned"}', lambda it: it.result.content == "cleaned"),
    ("after", "{}", lambda it: it.result.content == "paid"),
    ("guard", " {} ", lambda it: it.denied is None),
    ("before", '{"decision": "allow", "additionalContext": "EUR"}', lambda it: texts(it) == ["EUR"]),
    ("guard", '{"decision": "deny", "additionalContext": "EUR"}', lambda it: texts(it) == ["EUR"] and it.denied),
    ("after", '{"decision": "answer", "result": "x", "additionalContext": "EUR"}', lambda it: texts(it) == ["EUR"]),
]


def texts(outcome: Outcome) -> list[str]:
    assert {each.hook_id for each in outcome.context} <= {"hook_1"}
    return [each.text for each in outcome.context]


@for_each("kind, said, holds", ANSWERS)
async def test_what_a_script_answers_decides(
    folder: Path, write: Write, kind: str, said: str, holds: Callable[[Outcome], bool]
) -> None:
    script = write(f"printf '%s' {quote(said)}", "hook.sh")

    assert holds(await pay([hook(folder, script, point=f"ToolCall.{kind}")]))


async def test_a_script_is_told_the_result_and_answers_calls_of_every_class(folder: Path, write: Write) -> None:
    script = write(
        """
        import json, sys
        told = json.load(sys.stdin)
        print(json.dumps({"decision": "answer", "result": told["result"]["output"].upper() + told["call"]["agentId"]}))
        """
    )
    call = AgentCall(input=[Message(role="user", content="hi")], agent_id="me")

    async def run(call: AgentCall) -> AgentResult:
        return AgentResult(output="done")

    outcome = await Chain([hook(folder, script, point="AgentCall.after")]).run(call, run)

    assert outcome.result.output == "DONEme"


async def test_a_script_sends_an_answer_of_the_model_back(folder: Path, write: Write) -> None:
    script = write(
        """
        import json, sys
        rude = json.load(sys.stdin)["result"]["content"] == "rude"
        print(json.dumps({"decision": "guide", "reason": "be kind"} if rude else {}))
        """
    )

    hooks = hook(folder, script, point="ModelCall.after")
    result = await exec_agent(Agent(id="shop", model=ScriptedModel(["rude", "kind"])), "Go", hooks=[hooks])

    assert [message.content for message in result.messages] == ["Go", "be kind", "kind"]


async def test_a_script_adds_context_to_the_prompt_of_a_run(folder: Path, write: Write) -> None:
    script = write("""print('{"decision": "allow", "additionalContext": "it is Tuesday"}')""")

    hooks = hook(folder, script, point="AgentCall.before")
    result = await exec_agent(Agent(id="shop", model=ScriptedModel(["kind"])), "Go", hooks=[hooks])

    assert [message.content for message in result.messages] == [
        "Go",
        "Context from hook 'hook_1': it is Tuesday",
        "kind",
    ]


@pytest.mark.parametrize(
    ("point", "said", "problem"),
    [
        ("ModelCall.after", {"decision": "allow", "additionalContext": "x"}, "additionalContext"),
        ("ModelCall.after", {"decision": "guide"}, "needs a `reason`"),
        ("AgentCall.after", {"decision": "guide", "reason": "x"}, "must be one of allow, deny, answer"),
    ],
)
async def test_a_script_cannot_guide_or_add_context_elsewhere(
    folder: Path, write: Write, point: str, said: dict[str, Any], problem: str
) -> None:
    script = write(f"import json; print(json.dumps({said!r}))")

    hooks = hook(folder, script, point=point)
    result = await exec_agent(Agent(id="shop", model=ScriptedModel(["kind"])), "Go", hooks=[hooks])

    assert result.denied is not None
    assert problem in result.denied.reason


async def test_a_script_is_told_events(folder: Path, write: Write, tmp_path: Path) -> None:
    script = write(
        f"""
        import sys
        open({str(tmp_path / "told")!r}, "w").write(sys.stdin.read())
        """
    )
    bundle = hook(folder, script, point="beforeStep")

    assert bundle.observers[0].handler is not None
    await bundle.observers[0].handler(BeforeStep(operation_id="op", step_index=2))  # type: ignore[misc]

    told = msgspec.json.decode((tmp_path / "told").read_bytes())
    assert told["event"]["type"] == "beforeStep"
    assert (told["event"]["stepIndex"], told["point"]) == (2, "beforeStep")


@for_each(
    "body, code",
    [
        ("exit 3", "exit_code"),
        ("kill -TERM $$", "exit_code"),
        ("echo 'no json'", "invalid_answer"),
        ("echo '[]'", "invalid_answer"),
        ("""echo '{"decison": "deny"}'""", "invalid_answer"),
        ("""echo '{"decision": "perhaps"}'""", "invalid_answer"),
        ("""echo '{"reason": "no way"}'""", "invalid_answer"),
        ("""echo '{"args": {"amount": 1}}'""", "invalid_answer"),
        ("""echo '{"decision": "deny", "decision": "allow"}'""", "invalid_answer"),
        ("""echo '{"decision": "deny", "reason": "no", "reason": "yes"}'""", "invalid_answer"),
        ("""echo '{"decision": "answer", "result": "x"}'""", "invalid_answer"),
        ("""echo '{"decision": "allow", "args": {}}'""", "invalid_answer"),
        ("""echo '{"decision": "deny", "result": "x"}'""", "invalid_answer"),
        ("""echo '{"decision": "allow", "additionalContext": 3}'""", "invalid_answer"),
        ("""echo '{"additionalContext": "EUR"}'""", "invalid_answer"),
        ("""echo '{"decision": "guide", "reason": "again"}'""", "invalid_answer"),
        ("head -c 60000 /dev/zero | tr '\\0' '['", "invalid_answer"),
        ("printf '\\377\\376'", "invalid_answer"),
        ("head -c 70000 /dev/zero | tr '\\0' x", "too_much_output"),
        ("tr '\\0' x < /dev/zero", "too_much_output"),
        ("sleep 60", "timeout"),
        ("while :; do :; done", "timeout"),
        ("trap '' TERM; sleep 60", "timeout"),
    ],
)
async def test_a_script_that_gives_no_valid_answer_follows_on_error(
    folder: Path, write: Write, body: str, code: str
) -> None:
    script, timeout = write(body, "hook.sh"), 0.2 if code == "timeout" else 30

    failure = await cause(hook(folder, script, timeout=timeout))

    assert failure.code == code
    assert failure.hook_id == "hook_1"
    opened = await pay([hook(folder, script, timeout=timeout, on_error="open")])
    assert opened.denied is None
    assert opened.result == ToolResult(content="paid")


async def test_the_complaints_of_a_script_are_logged_and_not_told_to_the_model(
    folder: Path, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    script = write("import sys; sys.stderr.write('the inner secret' + 'x' * 1_000_000); sys.exit(1)")

    outcome = await pay([hook(folder, script, timeout=30)])

    assert outcome.denied is not None
    assert "secret" not in outcome.denied.reason
    told = [each for each in caplog.messages if "the inner secret" in each]
    assert len(told) == 1
    assert len(told[0]) < 3000


async def test_a_script_sees_a_minimal_environment_and_an_empty_folder(
    folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    monkeypatch.setenv("REGION", "eu")
    monkeypatch.setenv("LANG", "C.UTF-8")
    script = write(
        """
        import json, os
        seen = {"environment": sorted(os.environ), "files": os.listdir("."), "folder": os.getcwd()}
        open("left", "w").write("x")
        print(json.dumps({"decision": "deny", "reason": json.dumps(seen)}))
        """
    )

    outcome = await pay([hook(folder, script, environment=("REGION",), timeout=30)])

    assert outcome.denied is not None
    seen = msgspec.json.decode(outcome.denied.reason)
    assert set(seen["environment"]) - {"LC_CTYPE"} == {"HOOKLINE_SCRIPT_RUN", "LANG", "PATH", "REGION"}
    assert seen["files"] == []
    assert seen["folder"] != os.getcwd()
    assert not Path(seen["folder"]).exists()


def starting(pids: Path, *, leaves: bool = False) -> str:
    """A script that starts children and grandchildren in every way it can, and notes the ids of all."""
    return f"""
    import os, subprocess, sys, time
    HOLD = "import time; time.sleep(300)"
    note = lambda: os.write(os.open({str(pids)!r}, os.O_CREAT | os.O_APPEND | os.O_WRONLY), b"%d\\n" % os.getpid())
    note()
    for detached in (False, True):
        for silent in (False, True):
            pid = os.fork()
            if pid == 0:
                if detached:
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                if silent:
                    for fd in (0, 1, 2):
                        os.close(fd)
                note()
                time.sleep(300)
                os._exit(0)
    child = subprocess.Popen([sys.executable, "-c", HOLD], start_new_session=True)
    os.write(os.open({str(pids)!r}, os.O_APPEND | os.O_WRONLY), b"%d\\n" % child.pid)
    while len(open({str(pids)!r}).read().split()) < 6:
        time.sleep(0.01)
    {"sys.exit(0)" if leaves else "time.sleep(300)"}
    """


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.Error:
            pass
    return found


async def test_a_script_that_forks_and_hangs_is_ended_with_all_that_it_started(
    folder: Path, write: Write, tmp_path: Path
) -> None:
    script = write(starting(tmp_path / "pids"))

    failure = await cause(hook(folder, script, timeout=5))

    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert failure.code == "timeout"
    assert len(pids) == 6
    assert alive(pids) == []


async def test_a_script_that_ends_leaves_no_process_behind_and_is_not_waited_for(
    folder: Path, write: Write, tmp_path: Path
) -> None:
    script = write(starting(tmp_path / "pids", leaves=True))

    assert (await pay([hook(folder, script, timeout=60)])).denied is None

    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 6
    assert alive(pids) == []


async def test_a_script_is_ended_when_its_run_is_cancelled(folder: Path, write: Write, tmp_path: Path) -> None:
    script = write(starting(tmp_path / "pids"))
    run = asyncio.create_task(pay([hook(folder, script, timeout=300)]))
    await until(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 6)

    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert alive([int(pid) for pid in (tmp_path / "pids").read_text().split()]) == []


async def test_a_script_that_multiplies_itself_is_ended(folder: Path, write: Write, tmp_path: Path) -> None:
    script = write(
        f"""
        import os, time
        for _ in range(6):
            os.fork()
        open({str(tmp_path / "pids")!r}, "a").write(f"{{os.getpid()}}\\n")
        while True:
            if os.fork() == 0:
                os._exit(0)
            os.wait()
            time.sleep(0.01)
        """
    )

    assert (await cause(hook(folder, script, timeout=3))).code == "timeout"

    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) > 8
    assert alive(pids) == []


async def test_a_script_that_reads_nothing_or_everything_at_leisure_is_served(folder: Path, write: Write) -> None:
    large = msgspec.structs.replace(PAY, args={"text": "x" * 5_000_000})

    for body in (
        "print('{}')",
        "import sys; sys.stdin.close(); print('{}')",
        "import sys; print('{}'); sys.stdin.read()",
    ):
        assert (await pay([hook(folder, write(body), timeout=30)], large)).denied is None


async def test_many_scripts_run_at_the_same_time(folder: Path, write: Write) -> None:
    bundle = hook(folder, write('print(\'{"decision": "deny", "reason": "no"}\')'), timeout=60)

    outcomes = await asyncio.gather(*(pay([bundle]) for _ in range(20)))

    assert {outcome.denied.reason for outcome in outcomes if outcome.denied} == {"no"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", 'printf \'{"decision":"deny","reason":"sh"}\''),
        ("a.js", "console.log(JSON.stringify({decision: 'deny', reason: 'js'}))"),
        ("sub/deeper/a.py", 'print(\'{"decision":"deny","reason":"py"}\')'),
        ("started", '#!/bin/sh\nprintf \'{"decision":"deny","reason":"started"}\''),
    ],
)
async def test_a_script_is_run_by_its_first_line_or_its_ending(
    folder: Path, write: Write, name: str, text: str
) -> None:
    if name.endswith(".js") and shutil.which("node") is None:
        pytest.skip("node is not installed")
    script = write(text, name)
    if "." not in name:
        (folder / name).chmod(0o755)

    outcome = await pay([hook(folder, script, timeout=30)])

    assert outcome.denied is not None
    assert outcome.denied.reason == name.rpartition(".")[2].removeprefix("/")


@pytest.mark.parametrize(
    "name",
    [
        *("../outside.py", "/etc/passwd", "a/../../outside.py", "link.py", "linked/outside.py", "missing.py", "sub"),
        *("plain.txt", ".hidden.py", "a\x00.py", "..", "-rf", "a//b.py", "hook.py/", "x" * 299 + ".py"),
    ],
    ids=str,
)
def test_what_is_not_in_the_folder_is_no_script(folder: Path, write: Write, name: str) -> None:
    write("print()", "../outside.py")
    write("print()", "sub/inner.py")
    write("print()", "plain.txt")
    write("print()", ".hidden.py")
    (folder / "link.py").symlink_to(folder.parent / "outside.py")
    (folder / "linked").symlink_to(folder.parent)

    with pytest.raises(DefinitionError) as refused:
        hook(folder, name)

    assert refused.value.code in ("script_refused", "invalid")
    assert refused.value.path == "$.script"


def test_a_script_cannot_surround_a_call_and_needs_a_folder(folder: Path, write: Write) -> None:
    with pytest.raises(DefinitionError, match="cannot be an `around`"):
        hook(folder, write("print()"), point="ToolCall.around")
    with pytest.raises(DefinitionError, match="no folder"):
        Builder(HandlerCatalog(), None, KeyRing()).build_new(definition(id="hook_1", script="hook.py"))


async def test_a_script_that_vanishes_or_leads_away_later_is_shown_and_follows_on_error(
    folder: Path, write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "hooks.yaml"
    file.write_text("hooks: [{id: one, name: one, point: ToolCall.guard, script: hook.py, timeout: 30}]")
    write("print('{}')")
    async with Registry(files=[file], scripts=folder) as registry:
        assert (await pay(registry.hooks())).denied is None
        assert (await registry.get("one")).problem == ""

        (folder / "hook.py").rename(tmp_path / "moved.py")
        assert (await pay(registry.hooks())).denied is not None
        assert "no script" in (await registry.get("one")).problem
        (folder / "hook.py").symlink_to(tmp_path / "moved.py")
        assert (await pay(registry.hooks())).denied is not None


async def test_a_script_that_passes_its_time_by_a_little_says_so_itself(folder: Path, write: Write) -> None:
    failure = await cause(hook(folder, write("import time; time.sleep(30)"), timeout=0.3))

    assert str(failure) == ("The script of hook 'hook_1' failed (timeout): it was killed after its timeout of 0.3 s")


def test_scripts_are_started_by_the_python_that_runs(folder: Path, write: Write) -> None:
    name = write("print()")

    assert Scripts(folder).build_command(name) == [sys.executable, str(folder / name)]
