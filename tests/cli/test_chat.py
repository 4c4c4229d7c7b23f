"""`hookline chat` in a real terminal: what is shown, what is asked, and how it is interrupted and left."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from cli.scenes import run
from cli.terminals import Terminal
from hookline import AfterHumanIntervention, AfterToolCall
from hookline.evals import Cassette, read_events

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "docs" / "examples"
ACTOR = str(HERE / "chat_agents.py")
LEAVE = "\x04"
CTRL_C = "\x03"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Where the actor waits, until it is opened."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def open_gate(gate: Path) -> None:
    gate.write_bytes(b"")


def test_a_whole_conversation_with_tools_and_decisions(tmp_path: Path) -> None:
    trace, cassette = tmp_path / "chat.jsonl", tmp_path / "tools.yaml"
    options = ["--trace", str(trace), "--cassette", str(cassette)]

    with Terminal("chat", str(EXAMPLES / "chat_agent.py"), *options, cwd=tmp_path) as terminal:
        assert "clerk · scripted · 3 tools · /help" in terminal.until("/help")

        terminal.say("balance")
        shown = terminal.until("- Ada: 20 EUR\n")
        assert re.search(r'→ balance\(account="Ada"\)\n✓ balance  [\d.]+ (µs|ms|s)  Ada: 20 EUR\n· step 2\n', shown)
        assert "2 tool calls · " in terminal.until("s\n\n")

        terminal.say("pay Ada 600")
        asked = terminal.until("y/n/s? ")
        assert '‖ pay needs your approval\n  to      "Ada"\n  amount  600\n' in asked
        assert "  That is more than half of what you have. Really?\n" in asked
        terminal.type("y")
        assert '→ pay(to="Ada", amount=600)\n✓ pay  ' in terminal.until("- paid 600 EUR to Ada\n")

        terminal.say("pay Bob 100")
        terminal.until("y/n/s? ")
        terminal.type("n not before Friday")
        assert "→ pay" not in terminal.until("- A person refused this call: not before Friday\n")

        terminal.say("rob the bank")
        shown = terminal.until("- this is a respectable bank\n")
        assert "⊘ rob  denied by rules.no_robbery: this is a respectable bank\n" in shown

        terminal.say("/trace")
        assert "⊘ execute_tool rob  denied by rules.no_robbery" in terminal.until("1 denied")

        terminal.until("> ")
        terminal.press(LEAVE)
        assert terminal.ended() == 0
        assert f"Recorded chat: {trace}\nCassette: {cassette} (3 recordings)\n" in terminal.text

    events = read_events(trace)
    assert [event.action for event in events if isinstance(event, AfterHumanIntervention)] == [
        "approve",
        "rejectAndContinue",
    ]
    assert [event.content for event in events if isinstance(event, AfterToolCall)][2] == "paid 600 EUR to Ada"
    assert "execute_tool pay" in run("trace", str(trace)).stdout
    assert [recording.tool for recording in Cassette.load(cassette).recordings] == [
        "local/balance",
        "local/balance",
        "local/pay",
    ]


def test_text_is_shown_as_it_comes_and_ctrl_c_interrupts_it(tmp_path: Path, gate: Path) -> None:
    with Terminal("chat", ACTOR, cwd=tmp_path) as terminal:
        terminal.say("story")
        terminal.until("Once upon ")  # the model cannot go on yet
        open_gate(gate)
        assert terminal.until("s\n\n").startswith("a time.\n")

        terminal.say("story")
        terminal.until("Once upon ")
        terminal.press(CTRL_C)
        assert "■ interrupted\n" in terminal.until("interrupted\n")

        terminal.say("how many")
        terminal.until("3 messages\n")

        terminal.until("> ")
        terminal.press("no, wait")
        terminal.until("no, wait")
        terminal.press(CTRL_C)  # drops the line
        terminal.say("how many")
        terminal.until("4 messages\n")
        terminal.until("> ")
        terminal.press(CTRL_C)
        assert terminal.ended() == 0
        assert "Traceback" not in terminal.text


@pytest.mark.parametrize("typed", ["", "half a line"])
def test_sigterm_ends_a_chat_at_its_prompt_whatever_is_typed_there(tmp_path: Path, typed: str) -> None:
    with Terminal("chat", ACTOR, cwd=tmp_path) as terminal:
        terminal.until("> ")
        terminal.press(typed)
        terminal.until(typed)
        terminal.process.send_signal(signal.SIGTERM)

        assert terminal.ended() == 143


def test_sigterm_ends_a_chat_that_asks_for_a_decision(tmp_path: Path) -> None:
    with Terminal("chat", str(EXAMPLES / "chat_agent.py"), cwd=tmp_path) as terminal:
        terminal.say("pay Ada 600")
        terminal.until("y/n/s? ")
        terminal.press("y, but")
        terminal.until("y, but")
        terminal.process.send_signal(signal.SIGTERM)

        assert terminal.ended() == 143
        assert "paid" not in terminal.text


def test_a_tool_that_nobody_can_stop_holds_nobody_up(tmp_path: Path, gate: Path) -> None:
    with Terminal("chat", ACTOR, cwd=tmp_path) as terminal:
        terminal.say("wait")
        terminal.until("→ wait()")
        terminal.press(CTRL_C)
        terminal.until("■ wait  interrupted")

        terminal.until("> ")
        terminal.press(LEAVE)
        assert terminal.ended() == 0  # although its thread still waits


def test_what_will_not_end_is_left_by_a_second_ctrl_c(tmp_path: Path, gate: Path) -> None:
    with Terminal("chat", ACTOR, "--trace", "chat.jsonl", cwd=tmp_path) as terminal:
        terminal.say("note")
        terminal.until("Done: noted")
        terminal.say("cling")
        terminal.until("→ cling()")
        terminal.press(CTRL_C)
        terminal.until("Press Ctrl-C again to exit now.\n")
        terminal.press(CTRL_C)

        assert terminal.ended() == 130
        assert f"Recorded chat: {tmp_path / 'chat.jsonl'}\n" in terminal.text
    assert "execute_tool note" in run("trace", str(tmp_path / "chat.jsonl")).stdout


def test_errors_and_hostile_texts_end_no_chat_and_reach_no_terminal(tmp_path: Path) -> None:
    with Terminal("chat", ACTOR, "--hooks", f"{ACTOR}:made_hooks", cwd=tmp_path, NO_COLOR="1") as terminal:
        terminal.say("fail")
        assert "✗ no such ␛[2J␛]0;owned␇�31mred␍␈�gpj.exe model\n" in terminal.until("model\n")

        terminal.say("hostile")
        assert "before␛[2J␛]0;owned␇�31mred␍␈�gpj.exeafter\n" in terminal.until("after\n")

        terminal.say("hostile call")
        assert "→ no␛[2J␛]0;owned␇�31mred␍␈�gpj.exete(" in terminal.until("✗ no")

        terminal.say("log")
        assert "! Something went wrong: ValueError: a cause\nlogged\n" in terminal.until("logged\n")

        terminal.say("note")
        shown = terminal.until("s\n\n")
        assert "xxxx…)\n" in shown
        assert re.search(r"✓ note  mocked by stand-in.answers, rule no notes  [\d.]+ µs  noted by nobody\n", shown)
        assert "1 tool call · 3,000→50 tokens · $0.0300 · " in shown

        terminal.say("delegate")
        shown = terminal.until("✓ agent/helper\n")
        assert "→ agent/helper  note it\n  → note(" in shown
        terminal.say("leave")
        terminal.until("✗ The agent's code raised SystemExit: no arguments, which ends the chat. ")
        assert terminal.ended() == 1

        assert "Traceback" not in terminal.text
        assert not set(re.findall(rb"\x1b.", terminal.raw)) - {b"\x1b["}
        assert b"\x1b[2J" not in terminal.raw
        assert b"\x9b" not in terminal.raw.decode().encode("latin-1", "replace")


def test_several_calls_are_asked_about_one_by_one_until_one_stops_the_answer(tmp_path: Path) -> None:
    with Terminal("chat", ACTOR, cwd=tmp_path, columns=30) as terminal:
        terminal.say("send two")
        asked = terminal.until("y/n/s? ")
        assert "␛[2J" not in asked  # JSON has written it as ASCII
        assert "\\u001b[2J" in asked.replace("\n    ", "")
        terminal.type("what?")
        terminal.until("y/n/s? ")
        terminal.type("y")
        assert '"second"' in terminal.until("y/n/s? ")
        terminal.press(CTRL_C)
        shown = terminal.until("> ")

        assert "■ interrupted" in shown
        assert "sent" not in shown
        assert max(len(line) for line in asked.splitlines()) <= 30
        terminal.press(LEAVE)
        assert terminal.ended() == 0


def test_what_was_typed_before_a_question_is_no_answer_to_it(tmp_path: Path, gate: Path) -> None:
    with Terminal("chat", ACTOR, cwd=tmp_path) as terminal:
        terminal.say("send late")
        terminal.press("y\r")
        open_gate(gate)
        terminal.until("y/n/s? ")
        terminal.type("n")

        assert "sent" not in terminal.until("Done: A person refused this call")


def test_an_mcp_server_of_the_command_line_survives_ctrl_c(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    shop = HERE.parent / "adapters" / "mcp_servers" / "shop.py"

    with Terminal(
        "chat",
        f"{HERE / 'chat_shop.py'}:shopper",
        "--mcp",
        f"shop={shlex.join([sys.executable, str(shop)])}",
        cwd=tmp_path,
    ) as t:
        t.say("hang")
        t.until('→ shop/hang(name="hang")')
        t.press(CTRL_C)
        t.until("■ interrupted")

        t.say("echo")
        shown = t.until("It said 'echo'")
        assert re.search(r"✓ shop/echo  [\d.]+ ms  'echo'\n", shown)
        t.say("/tools")
        t.until("shop/remove  Remove something for good.")
        t.until("> ")
        t.press(LEAVE)
        assert t.ended() == 0
