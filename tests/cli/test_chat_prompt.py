"""`hookline chat` without a terminal: one answer for a script, lines from a pipe, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.receiver import Receiver
from hookline.cli._app import app

HERE = Path(__file__).parent
CLERK = str(HERE.parents[1] / "docs" / "examples" / "chat_agent.py")
ACTOR = str(HERE / "chat_agents.py")


def chat(*args: str, said: str = "", **environment: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", **environment}).invoke(app, ["chat", *args], input=said)


def ask(prompt: str, *args: str) -> Result:
    return chat(ACTOR, "--prompt", prompt, *args)


def test_stdout_has_the_answer_alone() -> None:
    result = chat(CLERK, "--prompt", "balance")

    assert (result.exit_code, result.stdout) == (0, "Here is what came of it:\n- you: 1000 EUR\n- Ada: 20 EUR\n")
    assert "→ balance()\n" in result.stderr


def test_nobody_approves_without_a_terminal_unless_it_is_said() -> None:
    refused = ask("send two")
    approved = ask("send two", "--yes")

    assert (refused.exit_code, approved.exit_code) == (1, 0)
    assert refused.stdout == "Done: A person refused this call: Nobody is available to approve this call.\n"
    assert "⊘ send  rejected and continued: nobody can approve it here; pass --yes to approve calls\n" in refused.stderr
    assert approved.stdout == "Done: sent second to Ada\n"
    assert "✓ send  approved by --yes\n" in approved.stderr


def test_a_model_that_fails_is_told_in_one_line() -> None:
    result = ask("fail")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "✗ no such ␛[2J" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_script_gets_the_answer_as_it_is() -> None:
    assert "\x1b[2J" in ask("hostile").stdout


def test_an_agent_and_its_hooks_are_found_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "chat_package"
    package.mkdir()
    (package / "parts.py").write_text(
        "from hookline import Agent, Deny, Hooks, ModelCall, ModelResponse, ScriptedModel\n"
        "def greeter():\n"
        "    return Agent(id='greeter', model=ScriptedModel(lambda call: ModelResponse(content=call.messages[0].content)))\n"
        "rude = Hooks('rude')\n"
        "@rude.guard(ModelCall)\n"
        "def no(call):\n"
        "    return Deny('not today')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    found = chat("chat_package.parts:greeter", "--prompt", "hi", "--instructions", "Be brief.")
    denied = chat("chat_package.parts:greeter", "--prompt", "hi", "--hooks", "chat_package.parts:rude")

    assert (found.exit_code, found.stdout) == (0, "Be brief.\n")
    assert denied.exit_code == 1
    assert "not today" in denied.stderr


def test_lines_of_a_pipe_are_one_conversation() -> None:
    result = chat(ACTOR, said="hello\n\nhow many\n/usage\n")

    assert result.exit_code == 0
    assert "> hello\nYou said hello\n" in result.stdout
    assert "> how many\n2 messages\n" in result.stdout
    assert "> /usage\n2 answers\n" in result.stdout
    assert "\x1b" not in result.stdout


def test_commands_tell_of_the_agent_and_of_what_was_said() -> None:
    result = chat(ACTOR, said="/tools\nnote\n/history\n/reset\nhow many\n/nothing\n/trace\n/quit\nno more\n")

    assert "send  asks first  Send something.\n" in result.stdout
    assert "agent/helper  Ask the agent 'helper' to do something, and get its answer.\n" in result.stdout
    assert re.search(r"user +note\nassistant +→ note\ntool +noted x+…\nassistant +Done: noted", result.stdout)
    assert "Conversation cleared.\n" in result.stdout
    assert "\n1 messages\n" in result.stdout
    assert "Unknown command /nothing. Commands: /help" in result.stdout
    assert "✓ invoke_agent actor" in result.stdout
    assert "no more" not in result.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "hookline chat cannot be used: name an agent (agent.py:name) or a model (--model openai:gpt-5)."),
        (["nothing.py"], "agent nothing.py cannot be used: there is no file nothing.py."),
        (["no_such_package.agents:agent"], "there is no module 'no_such_package.agents' in "),
        ([f"{ACTOR}:nobody"], "'chat_agents' has no 'nobody'."),
        ([f"{ACTOR}:HOSTILE"], "it must be an Agent or a function that returns one; got '\\x1b[2J"),
        ([f"{ACTOR}:broken"], "calling it raised OSError: no disk."),
        ([ACTOR, "--hooks", f"{ACTOR}:note"], "calling it raised TypeError: note() missing"),
        ([ACTOR, "--hooks", f"{ACTOR}:agent"], "expected a `Hooks` bundle"),
        (["--model", "nobody:model"], "--model nobody:model cannot be used: "),
        (["--model", "gpt-5"], "use `provider:model`, such as `openai:gpt-5`."),
        ([ACTOR, "--mcp", "python server.py --token s3cret"], "--mcp cannot be used: write name='command"),
        ([ACTOR, "--mcp", "shop=python 's3cret"], "--mcp shop cannot be used: No closing quotation."),
        ([ACTOR, "--mcp", "shop=http://:s3cret"], "--mcp shop cannot be used: "),
        ([ACTOR, "--trace", "/no/such/folder/x"], "Nothing can be written to /no/such/folder/x: "),
        ([ACTOR, "--cassette", ACTOR], f"--cassette {ACTOR} cannot be used: "),
        ([ACTOR, "--otlp-endpoint", "nowhere"], "'nowhere' is not an OTLP/HTTP endpoint:"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line_before_anything_runs(args: list[str], told: str) -> None:
    result = chat(*args, "--prompt", "hello")

    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr
    assert result.stderr.startswith("hookline: ")
    assert result.stderr.count("\n") == 1
    assert "s3cret" not in result.stderr


def test_a_server_that_does_not_start_is_told_in_one_line() -> None:
    pytest.importorskip("mcp")

    result = chat(ACTOR, "--prompt", "hello", "--mcp", "shop=/no/such/program --token s3cret")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "\nhookline: MCP server 'shop' " in result.stderr
    assert "s3cret" not in result.stderr


def test_a_model_is_named_on_the_command_line_and_its_key_is_told_to_nobody(tmp_path: Path) -> None:
    provider = pytest.importorskip("adapters.provider")
    options = ["--model", "openai-chat:gpt-4o", "--prompt", "hello", "--trace", str(tmp_path / "chat.jsonl")]

    with provider.Provider() as server:
        given = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": provider.KEY}
        server.script(provider.says("Hi."), provider.refuses(401, f"wrong key {provider.KEY}"))
        answered, refused = (chat(*options, **given) for _ in range(2))

    assert (answered.exit_code, answered.stdout) == (0, "Hi.\n")
    assert "11→7 tokens · " in answered.stderr
    assert refused.exit_code == 1
    assert "✗ Model 'gpt-4o' gave no answer, but status 401: " in refused.stderr
    assert provider.KEY not in refused.output + (tmp_path / "chat.jsonl").read_text()


def test_spans_are_sent_where_they_are_wanted() -> None:
    with Receiver() as receiver:
        result = ask("note", "--otlp-endpoint", receiver.url)

    assert result.exit_code == 0
    assert "Sent " in result.stderr
