"""`hookline trace` on real runs: what it prints and writes, what it refuses, and how it behaves in a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from cli.receiver import parsed, spans_of
from cli.scenes import SPANS, Tape, a_recorded_run, run
from hookline import BeforeToolCall
from hookline.cli import _trace_command
from hookline.cli.trace._recorded import EventRecording
from hookline.errors import install_command
from hookline.evals import write_events
from tests.commands import Command, run_command
from tests.signals import hearing_ctrl_c


def launched(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(args, capture_output=True, text=True, timeout=60, check=False)


def names_in(document: str) -> set[str]:
    return {span.name for span in spans_of(parsed(document))}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return a_recorded_run(tmp_path)


def test_the_first_task_of_a_suite_is_run_and_shown() -> None:
    result = run("trace", "agentdojo:banking")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("banking/user_task_0  ")
    assert [re.sub(r"^[│├└─✓ ]+", "", line).split("  ")[0] for line in result.stdout.splitlines()[1:10]] == [
        "invoke_agent agentdojo-banking",
        "agent_step 0",
        "chat ground-truth",
        "execute_tool read_file",
        "agent_step 1",
        "chat ground-truth",
        "execute_tool send_money",
        "agent_step 2",
        "chat ground-truth",
    ]
    assert "9 spans, " in result.stdout


def test_the_chosen_tasks_are_run_and_shown_in_the_order_of_their_beginnings() -> None:
    result = run("trace", "agentdojo:banking", "--task", "user_task_3", "--task", "user_task_1")

    titles = [line.split("  ")[0] for line in result.stdout.splitlines() if "banking/" in line]
    assert titles == ["[1] banking/user_task_3", "[2] banking/user_task_1"]


def test_nothing_of_the_content_is_shown_or_written_unless_it_is_asked_for(tmp_path: Path) -> None:
    target, iban = tmp_path / "spans.json", "UK12345678901234567890"

    without = run("trace", "agentdojo:banking", "--otlp-json", str(target))
    assert iban not in without.stdout + target.read_text(encoding="utf-8")

    with_content = run("trace", "agentdojo:banking", "--otlp-json", str(target), "--content", width=200)
    assert f'"recipient":"{iban}"' in with_content.stdout
    assert iban in target.read_text(encoding="utf-8")


def test_hooks_are_shown_if_they_are_asked_for() -> None:
    without, with_hooks = run("trace", "agentdojo:banking"), run("trace", "agentdojo:banking", "--hooks")

    assert "hook observer" not in without.stdout
    assert "✓ hook observer.beforeToolCall" in with_hooks.stdout
    assert "✓ hook observer.onComplete  after the end" in with_hooks.stdout


def test_json_is_one_document_and_nothing_else() -> None:
    result = run("trace", "agentdojo:banking", "--json")

    assert (result.exit_code, result.stderr) == (0, "")
    assert names_in(result.stdout) == SPANS


def test_the_spans_are_written_as_otlp_json(tmp_path: Path) -> None:
    target = tmp_path / "spans.json"

    result = run("trace", "agentdojo:banking", "--otlp-json", str(target), width=300)

    assert f"OTLP/JSON: {target}" in result.stdout
    assert names_in(target.read_text(encoding="utf-8")) == SPANS


def test_with_json_what_else_is_told_goes_to_stderr(tmp_path: Path) -> None:
    target = tmp_path / "spans.json"

    result = run("trace", "agentdojo:banking", "--json", "--otlp-json", str(target))

    assert json.loads(result.stdout) == json.loads(target.read_text(encoding="utf-8"))
    assert result.stderr == f"OTLP/JSON: {target}\n"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["nothing.jsonl"], "nothing.jsonl cannot be traced: there is no such file, and a suite is written agentdojo:"),
        (["/tmp"], "/tmp cannot be read: Is a directory."),
        (["agentdojo:bank"], "There is no suite 'agentdojo:bank'. Suites: agentdojo:banking, "),
        (["agentdojo:banking", "--task", "user_task_99"], "no task 'user_task_99'"),
        (["agentdojo:banking", "--otlp-endpoint", "nowhere"], "'nowhere' is not an OTLP/HTTP endpoint:"),
        (["agentdojo:banking", "--otlp-json", "/no/such/file"], "Nothing can be written to /no/such/file: "),
        (["agentdojo:banking", "--record", "/"], "Nothing can be written to /: it is a folder."),
    ],
)
def test_a_command_that_makes_no_sense_is_told_in_one_line_before_anything_runs(args: list[str], told: str) -> None:
    result = run("trace", *args)

    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr
    assert result.stderr.startswith("hookline: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("option", [["--task", "user_task_0"], ["--hooks"], ["--record", "x.jsonl"]])
def test_what_is_for_runs_is_refused_for_recorded_ones(option: list[str], recorded: Path) -> None:
    result = run("trace", str(recorded), *option)

    assert result.exit_code == 2
    assert "do not apply to a recorded run" in result.stderr


def test_a_sdk_that_is_turned_off_is_told() -> None:
    result = run("trace", "agentdojo:banking", OTEL_SDK_DISABLED="true")

    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        result.stderr
        == "hookline: Nothing can be traced while OTEL_SDK_DISABLED is set in the environment. Unset it.\n"
    )


@pytest.mark.parametrize("package", ["opentelemetry.sdk", "opentelemetry.exporter"])
def test_without_the_extra_it_says_what_to_install(package: str, recorded: Path) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from hookline.cli import main; main()"

    done = launched(sys.executable, "-c", code, "trace", str(recorded))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert install_command("otel") in done.stderr


def test_what_traces_nothing_needs_no_sdk() -> None:
    code = "import hookline.cli._app, sys; print([name for name in sys.modules if 'opentelemetry.sdk' in name])"

    done = launched(sys.executable, "-c", code)

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_what_is_piped_has_no_colours_and_eighty_columns(recorded: Path) -> None:
    done = run_command("trace", str(recorded), environment={**os.environ, "COLUMNS": ""})

    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) == 80


def test_a_terminal_that_knows_only_ascii_gets_ascii(recorded: Path) -> None:
    done = run_command("trace", str(recorded), environment={**os.environ, "PYTHONIOENCODING": "ascii"})

    assert (done.returncode, done.stderr) == (0, "")
    assert "x execute_tool fetch  OSError" in done.stdout


@pytest.mark.parametrize("option", ["", "--json"])
def test_a_pipe_that_is_closed_early_is_no_trouble(option: str, tmp_path: Path) -> None:
    tape = Tape()
    for index in range(300):
        tape.step(index, index).tool("search", index, index, step=index).stepped(index, index)
    path = write_events(tmp_path / "run.jsonl", tape.done(300).events)

    with Command("trace", str(path), *option.split()) as command:
        assert len(command.stdout.buffer.read(20)) == 20
        command.stdout.close()
        command.wait()

        assert command.said() == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])  # the write fails in the command, or only at its end
@pytest.mark.parametrize("option", ["", "--json"])
def test_a_full_disk_behind_stdout_is_told_in_one_line(option: str, unbuffered: str, recorded: Path) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = run_command("trace", str(recorded), *option.split(), stdout=full.fileno(), environment=environment)

    assert done.returncode == 1
    assert done.stderr == "hookline: the output cannot be written: No space left on device\n"


def test_a_recorded_run_may_come_through_a_pipe(recorded: Path) -> None:
    with Command("trace", "/dev/stdin") as command:
        shown, said = command.communicate(recorded.read_text())

        assert (command.wait(), said) == (0, "")
    assert "4 spans" in shown


def test_ctrl_c_shows_what_the_run_was_in(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(EventRecording):
        """Its observer of tool calls stands for a person who presses Ctrl-C while a tool hangs."""

        def __init__(self) -> None:
            super().__init__()
            self.hooks.on(BeforeToolCall)(self.press)

        async def press(self, event: BeforeToolCall) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep_forever()

    monkeypatch.setattr(_trace_command, "EventRecording", Interrupting)

    with hearing_ctrl_c():
        result = run("trace", "agentdojo:banking", "--record", os.devnull)

    assert result.exit_code == 128 + signal.SIGINT
    assert result.stderr == "hookline: interrupted\n"
    assert "■ invoke_agent agentdojo-banking  interrupted" in result.stdout
    assert "■ agent_step 0" in result.stdout


def test_help_tells_of_exit_codes_and_of_what_recordings_lack() -> None:
    text = " ".join(run("trace", "--help", width=200).stdout.split())

    assert "with 4 if spans did not arrive" in text
    assert "It shows no model calls and no hooks, because they have no events." in text
