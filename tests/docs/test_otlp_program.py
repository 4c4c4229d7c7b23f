"""The program that the page on traces shows sends what the page says, to where its command says."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from otel.receiver import Receiver

from .markdown import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "trace-runs.md"


def test_the_program_sends_spans_and_metrics_to_the_endpoint_of_the_environment(tmp_path: pathlib.Path) -> None:
    found = list(blocks(PAGE.read_text()))
    program = next(block.code for block in found if block.marker == "file: app.py")
    command = next(block.code.split() for block in found if block.code.endswith("python app.py\n"))
    variables = dict(word.split("=", 1) for word in command[:-2])
    (tmp_path / "app.py").write_text(program)

    with Receiver() as receiver:
        variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.url
        done = subprocess.run(
            [sys.executable, "-W", "error", "app.py"],
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello!\n", "")
    assert [received.item.name for received in receiver.spans] == [
        "chat scripted",
        "agent_step",
        "invoke_agent greeter",
    ]
    assert "gen_ai.invoke_agent.duration" in {received.item.name for received in receiver.metrics}
    assert {received.resource["service.name"] for received in receiver.spans + receiver.metrics} == {"greeter"}
