"""Every command and every way in which it ends: the exit codes that scripts and CI servers go by."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cli.receiver import closed_port
from cli.scenes import a_recorded_run
from hookline import Deny, Hooks, ModelCall
from hookline.cli import _demo
from hookline.cli._app import app
from hookline.cli._exit_codes import (
    CANNOT_TELL,
    DIFFERS,
    DONE,
    FAILED,
    INTERRUPTED,
    MEANINGS,
    MISUSED,
    NOT_JUDGED,
    SPANS_LOST,
    TERMINATED,
    exit_code_of,
)
from hookline.cli.eval import _attacks
from hookline.cli.eval._attacks import attack_policies
from hookline.cli.operate import _store
from hookline.evals import load_run
from hookline.evals.suites.agentdojo import AttackPolicy
from hookline.hosts import HOSTS
from tests.cli.operated import define, denying, leave_dead, log_runs, on, paused
from tests.commands import Command
from tests.docs.markdown import ROOT
from tests.forks import fork_python

AGENTS = """
from pathlib import Path
import anyio
from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, tool

def agent(*calls):
    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    @tool
    async def hang() -> str:
        Path("hangs").touch()
        await anyio.sleep_forever()

    turns = [
        ModelResponse(tool_calls=[ToolRequest(tool_name=name, args=args, tool_call_id=f"t{number}")])
        for number, (name, args) in enumerate(calls)
    ]
    return Agent(id="agent", model=ScriptedModel([*turns, ModelResponse(content="done")]), tools=[pay, hang])

def plain(): return agent()
def payer(): return agent(("pay", {"amount": 5}))
def hanger(): return agent(("hang", {}))
def broken(): return Agent(id="broken", model=ScriptedModel([]))
def tools(): return agent().tools
def judge(): return ScriptedModel(lambda call: '{"grade": 5}')
"""
SUITE = """\
suite: shop
tools: exit_agents:tools
tasks:
  - id: first
    prompt: Say hello.
    script: [{say: hello}]
    CHECK
"""
TAPED = """
suite: taped
tools: taped_tools:tools
tasks:
  - {id: a, prompt: hi, script: [{tool: price, args: {item: tea}}, {say: hello}], checks: [{called: price}]}
"""

HANGING = """\
  - id: second
    prompt: Hang.
    script: [{tool: hang, args: {}}, {say: hello}]
    checks: [{output_contains: hello}]
"""
JUDGED = """\
suite: shop
judge: {model: [exit_agents:judge, exit_agents:judge]}
checks: [{judge: Is it polite?}]
tasks: [{id: first, prompt: Say hello., script: [{say: hello}]}]
"""
DEFINITION = '[[hooks]]\nid = "added"\nname = "Added"\npoint = "ToolCall.guard"\nhandler = "deny"\n'
NOBODY = "postgresql://me@127.0.0.1:9/x"
"""A database that nobody answers for."""

IDS = ("kept", "removed")

ATTACK = "agentdojo:banking --task user_task_0 --processes 1"
"""The least that can be attacked, in this process: `stopping` is known here only."""

ROWS: dict[str, list[tuple[int, str]]] = {
    "chat": [
        (DONE, "exit_agents.py:plain --prompt hi"),
        (DONE, "exit_agents.py:payer --prompt hi --yes"),
        (FAILED, "exit_agents.py:payer --prompt hi"),
        (FAILED, "exit_agents.py:payer"),
        (FAILED, "exit_agents.py:broken --prompt hi"),
        (MISUSED, "exit_agents.py:nobody --prompt hi"),
        (MISUSED, "--prompt hi"),
        (MISUSED, "missing.py:plain --prompt hi"),
        (MISUSED, "exit_agents.py:plain --prompt hi --hooks missing.py:hooks"),
        (MISUSED, "exit_agents.py:plain --prompt hi --trace missing/trace.jsonl"),
        (SPANS_LOST, "exit_agents.py:plain --prompt hi --otlp-endpoint CLOSED"),
        (FAILED, "exit_agents.py:broken --prompt hi --otlp-endpoint CLOSED"),
    ],
    "serve": [
        (MISUSED, "--port 70000"),
        (MISUSED, "--port 0 --rate-limit some"),
        (MISUSED, "--port 0 --files missing.toml"),
        (MISUSED, "--port 0 --files broken.toml"),
        (MISUSED, "--port 0 --scripts missing"),
        (MISUSED, "--port 0 --agent missing.py:agent"),
        (MISUSED, "--port 0 --store sqlite:///exit_agents.py"),
        (MISUSED, "--port 0 --store nowhere:///x"),
    ],
    "relay run": [
        (MISUSED, ""),
        (MISUSED, "--bus gopher://x"),
        (MISUSED, "--bus nats://127.0.0.1:1 --store nowhere:///x"),
        (FAILED, "--bus nats://127.0.0.1:1"),
    ],
    "relay status": [
        (DONE, ""),
        (MISUSED, "--store sqlite:///missing.db"),
        (FAILED, f"--store {NOBODY}"),
    ],
    "relay dead-letters": [
        (DONE, ""),
        (MISUSED, "--limit 0"),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "relay retry": [
        (DONE, "--name ledger"),
        (DONE, "unknown"),
        (MISUSED, ""),
        (MISUSED, "--name ledger --store sqlite:///missing.db"),
    ],
    "relay replay": [
        (DONE, "ledger --since 1h"),
        (MISUSED, "ledger"),
        (MISUSED, "ledger --since never"),
        (MISUSED, "ledger --since 1h --store sqlite:///missing.db"),
    ],
    "worker": [
        (MISUSED, ""),
        (MISUSED, "missing.py:agent"),
        (MISUSED, "exit_agents.py:plain --hooks missing.py:hooks"),
        (MISUSED, "exit_agents.py:plain --concurrency 0"),
        (MISUSED, "exit_agents.py:plain --store nowhere:///x"),
        (MISUSED, "exit_agents.py:plain --bus gopher://x"),
        (MISUSED, "exit_agents.py:plain --dbos gopher://x"),
        (MISUSED, "exit_agents.py:plain --dbos-name payments"),
        (FAILED, "exit_agents.py:plain --bus nats://127.0.0.1:1"),
    ],
    "approvals approve": [
        (DONE, "op-approve"),
        (FAILED, "op-unknown"),
        (FAILED, "op-ended"),
        (MISUSED, ""),
        (MISUSED, "op-reject --store sqlite:///missing.db"),
        (FAILED, f"op-reject --store {NOBODY}"),
    ],
    "approvals list": [
        (DONE, ""),
        (MISUSED, "--limit 0"),
        (MISUSED, "--store sqlite:///missing.db"),
        (FAILED, f"--store {NOBODY}"),
    ],
    "approvals reject": [
        (DONE, "op-reject"),
        (FAILED, "op-reject t9"),
        (FAILED, "op-unknown"),
        (MISUSED, ""),
        (MISUSED, "op-reject --store sqlite:///missing.db"),
    ],
    "audit export": [
        (DONE, ""),
        (MISUSED, "--since never"),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "audit list": [
        (DONE, ""),
        (MISUSED, "--since never"),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "doctor": [
        (DONE, ""),
        (FAILED, f"--store {NOBODY}"),
        (FAILED, "--store sqlite:///missing.db"),
        (FAILED, "--store sqlite:///exit_agents.py"),
        (MISUSED, "--store nowhere:///x"),
    ],
    "init": [
        (DONE, "project"),
        (MISUSED, "exit_agents.py/project"),
        (MISUSED, "project again"),
    ],
    "demo": [
        (DONE, ""),
        (SPANS_LOST, "--otlp-endpoint CLOSED"),
        (MISUSED, "--concurrency 0"),
        (MISUSED, "--report missing/report.html"),
        (MISUSED, "--otlp-endpoint nowhere"),
    ],
    "trace": [
        (DONE, "RECORDED"),
        (SPANS_LOST, "RECORDED --otlp-endpoint CLOSED"),
        (MISUSED, "agentdojo:nothing"),
        (MISUSED, "missing.jsonl"),
        (MISUSED, "exit_agents.py"),
        (MISUSED, "RECORDED --hooks"),
        (MISUSED, "RECORDED --otlp-json missing/spans.json"),
    ],
    "eval suite": [
        (DONE, "good.yaml"),
        (FAILED, "bad.yaml"),
        (NOT_JUDGED, "vacuous.yaml"),
        (NOT_JUDGED, "empty.yaml"),
        (NOT_JUDGED, "vacuous.yaml --json"),
        (NOT_JUDGED, "vacuous.yaml --otlp-endpoint CLOSED"),
        (DONE, "vacuous.yaml --mocked"),
        (FAILED, "bad.yaml --otlp-endpoint CLOSED"),
        (SPANS_LOST, "good.yaml --otlp-endpoint CLOSED"),
        (MISUSED, "good.yaml --task nothing"),
        (MISUSED, "good.yaml --mode often"),
        (MISUSED, "good.yaml --mode record"),
        (MISUSED, "good.yaml --mode replay --cassettes missing"),
        (MISUSED, "good.yaml --save missing/run.json"),
        (MISUSED, "good.yaml --faults missing.yaml"),
        (MISUSED, "missing.yaml"),
        (MISUSED, "broken.yaml"),
        (MISUSED, "nothing"),
        (MISUSED, ""),
    ],
    "eval diff": [
        (DONE, "good.json good.json"),
        (FAILED, "good.json bad.json"),
        (FAILED, "good.json none.json"),
        (NOT_JUDGED, "none.json good.json"),
        (MISUSED, "good.json"),
        (MISUSED, "good.json missing.json"),
        (MISUSED, "good.json half.json"),
        (MISUSED, "good.json good.json --min-score 2"),
        (CANNOT_TELL, "good.json bad.json --paired-test --fail-on-cannot-tell"),
        (DONE, "good.json bad.json --paired-test"),
        (DONE, "--baseline good.json good.json --fail-on-cannot-tell"),
        (MISUSED, "--baseline HEAD:missing.json good.json"),
    ],
    "eval judges agreement": [
        (DONE, "judged.json"),
        (NOT_JUDGED, "good.json"),
        (MISUSED, "missing.json"),
        (MISUSED, ""),
    ],
    "eval judges calibrate": [
        (DONE, "judged.json labels.csv"),
        (NOT_JUDGED, "judged.json nobody.csv"),
        (MISUSED, "good.json labels.csv"),
        (MISUSED, "judged.json missing.csv"),
        (MISUSED, "judged.json labels.csv --check unknown"),
    ],
    "eval judges sheet": [
        (DONE, "judged.json sheet.csv"),
        (MISUSED, "judged.json labels.csv"),
        (MISUSED, "missing.json sheet.csv"),
        (MISUSED, "judged.json sheet.csv --sample 0"),
    ],
    "eval schema": [
        (DONE, ""),
        (DONE, "schema.json"),
        (MISUSED, "missing/schema.json"),
    ],
    "eval attack": [
        (DONE, f"{ATTACK} --policy scan"),
        (FAILED, f"{ATTACK} --policy stopping"),
        (MISUSED, "agentdojo:nothing"),
        (MISUSED, "agentdojo:banking --policy nothing"),
        (MISUSED, "agentdojo:banking --wording nothing"),
        (MISUSED, "missing.yaml"),
        (MISUSED, ""),
    ],
    "eval cassettes check": [
        (DONE, "taped.yaml --cassettes tapes"),
        (DONE, "taped.yaml --cassettes tapes --live"),
        (FAILED, "taped.yaml --cassettes stale"),
        (NOT_JUDGED, "good.yaml --cassettes tapes"),
        (MISUSED, "taped.yaml"),
        (MISUSED, "taped.yaml --cassettes missing"),
        (MISUSED, "taped.yaml --cassettes tapes --tool price"),
        (MISUSED, "missing.yaml --cassettes tapes"),
        (MISUSED, ""),
    ],
    "hooks list": [
        (DONE, ""),
        (DONE, "--json"),
        (MISUSED, "--point nowhere"),
        (MISUSED, "--files missing.toml"),
        (MISUSED, "--files broken.toml"),
        (MISUSED, "--store sqlite:///missing.db"),
        (MISUSED, "--store sqlite:///exit_agents.py"),
        (MISUSED, "--store nowhere:///x"),
        (FAILED, f"--store {NOBODY}"),
    ],
    "hooks show": [
        (DONE, "kept"),
        (FAILED, "unknown"),
        (MISUSED, ""),
        (MISUSED, "kept --store sqlite:///missing.db"),
    ],
    "hooks apply": [
        (DONE, "hooks.toml --yes"),
        (FAILED, f"hooks.toml --store {NOBODY}"),
        (FAILED, "failing.toml --yes"),
        (NOT_JUDGED, "remote.toml --yes"),
        (MISUSED, "other.toml"),
        (MISUSED, "missing.toml"),
        (MISUSED, "missing.json"),
        (MISUSED, "broken.toml"),
        (MISUSED, "broken.json"),
        (MISUSED, "wrong.json"),
        (MISUSED, "."),
        (MISUSED, "hooks.toml --store sqlite:///exit_agents.py"),
    ],
    "hooks check": [
        (DONE, "hooks.toml"),
        (FAILED, "failing.toml"),
        (MISUSED, "missing.toml"),
        (MISUSED, "hooks.toml broken.toml failing.toml"),
        (MISUSED, "hooks.toml --junit missing/junit.xml"),
        (NOT_JUDGED, "empty.toml"),
        (NOT_JUDGED, "remote.toml"),
        (DONE, "remote.toml --allow-not-run"),
    ],
    "hooks diff": [
        (DIFFERS, "other.toml"),
        (FAILED, f"hooks.toml --store {NOBODY}"),
        (MISUSED, "missing.toml"),
        (MISUSED, "broken.toml"),
        (MISUSED, "hooks.toml --store sqlite:///missing.db"),
    ],
    "hooks import": [
        (DONE, "settings.json --scripts ."),
        (DONE, "settings.json --dry-run"),
        (FAILED, f"settings.json --scripts . --store {NOBODY}"),
        (MISUSED, "settings.json"),
        (MISUSED, "settings.json --scripts missing"),
        (MISUSED, "settings.json --scripts . --host cursor"),
        (MISUSED, "missing.json"),
        (MISUSED, "broken.json --scripts ."),
        (MISUSED, "."),
    ],
    "hooks test": [
        (DONE, "kept"),
        (FAILED, "unknown"),
        (MISUSED, "kept --call nonsense"),
        (MISUSED, "kept --timeout 0"),
        (MISUSED, "kept --store sqlite:///missing.db"),
    ],
    "hooks backtest": [
        (DONE, "kept"),
        (FAILED, "unknown"),
        (MISUSED, ""),
        (MISUSED, "kept --limit 0"),
        (MISUSED, "kept --labels missing.csv"),
        (MISUSED, "--file missing.toml"),
        (MISUSED, "kept --store sqlite:///missing.db"),
    ],
    "hooks enforce": [
        (DONE, "kept"),
        (FAILED, "unknown"),
        (MISUSED, "kept --percent 101"),
        (MISUSED, ""),
        (MISUSED, "kept --store sqlite:///missing.db"),
    ],
    "hooks shadow": [
        (DONE, "kept"),
        (FAILED, "unknown"),
        (MISUSED, "kept --percent many"),
        (MISUSED, ""),
        (MISUSED, "kept --store sqlite:///missing.db"),
    ],
    "hooks enable": [
        (DONE, "kept"),
        (FAILED, "unknown"),
        (MISUSED, ""),
        (MISUSED, "kept --store sqlite:///missing.db"),
    ],
    "hooks disable": [
        (DONE, "kept"),
        (FAILED, "unknown"),
        (MISUSED, ""),
        (MISUSED, "kept --store sqlite:///missing.db"),
    ],
    "hooks remove": [
        (DONE, "removed"),
        (FAILED, "unknown"),
        (MISUSED, ""),
        (MISUSED, "kept --store sqlite:///missing.db"),
    ],
    "hooks history": [
        (DONE, "kept"),
        (FAILED, "unknown"),
        (MISUSED, ""),
        (MISUSED, "kept --store sqlite:///missing.db"),
    ],
    "hooks alerts": [
        (DONE, "kept"),
        (DONE, "--since 1h"),
        (MISUSED, "--since never"),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "hooks revert": [
        (FAILED, "unknown 1"),
        (MISUSED, "kept 0"),
        (MISUSED, ""),
        (MISUSED, "kept 1 --store sqlite:///missing.db"),
    ],
    "hooks order": [
        (FAILED, "ToolCall.guard unknown"),  # not `kept` alone: another case may have removed all the others
        (MISUSED, "ToolCall.nothing kept"),
        (MISUSED, "ToolCall.guard"),
        (MISUSED, "ToolCall.guard kept --store sqlite:///missing.db"),
    ],
    "hooks serve": [
        (MISUSED, "missing.py:hooks --bus nats://127.0.0.1:1"),
        (MISUSED, "missing.py:hooks"),
        (MISUSED, ""),
    ],
    "operations list": [
        (DONE, ""),
        (MISUSED, "--status often"),
        (MISUSED, "--limit 0"),
        (MISUSED, "--store sqlite:///missing.db"),
        (FAILED, f"--store {NOBODY}"),
    ],
    "operations show": [
        (DONE, "op-approve"),
        (FAILED, "op-unknown"),
        (MISUSED, ""),
        (MISUSED, "op-approve --store sqlite:///missing.db"),
    ],
    "operations events": [
        (DONE, "op-approve"),
        (FAILED, "op-unknown"),
        (MISUSED, "op-approve --after x"),
        (MISUSED, "op-approve --store sqlite:///missing.db"),
    ],
    "deliveries list": [
        (DONE, ""),
        (MISUSED, "--status often"),
        (MISUSED, "--since never"),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "deliveries retry": [
        (DONE, "DEAD"),
        (FAILED, "msg_unknown"),
        (MISUSED, ""),
        (MISUSED, "DEAD --store sqlite:///missing.db"),
    ],
    "deliveries replay": [
        (DONE, "--status dead"),
        (MISUSED, ""),
        (MISUSED, "--status often"),
        (MISUSED, "--status dead --store sqlite:///missing.db"),
    ],
    "executions list": [
        (DONE, ""),
        (MISUSED, "--point nowhere"),
        (MISUSED, "--since never"),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "executions follow": [
        (MISUSED, "--lines -1"),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "executions stats": [
        (DONE, ""),
        (MISUSED, "--by weather"),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "endpoints list": [
        (DONE, ""),
        (MISUSED, "--limit x"),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "endpoints rotate": [
        (DONE, "https://acme.example/in --tenant acme"),
        (FAILED, f"https://acme.example/in --master-key-file new.key --store {NOBODY}"),
        (MISUSED, "ftp://acme.example"),
        (MISUSED, "https://acme.example/in --overlap soon"),
        (MISUSED, ""),
        (MISUSED, "https://acme.example/in --store sqlite:///missing.db"),
    ],
    "endpoints revoke": [
        (FAILED, "unknown"),
        (MISUSED, ""),
        (MISUSED, "unknown --store sqlite:///missing.db"),
    ],
    "keys rotate-master": [
        (DONE, ""),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "keys create": [
        (DONE, "ops --scope hooks:read"),
        (FAILED, f"ops --scope hooks:read --store {NOBODY}"),
        (MISUSED, "ops"),
        (MISUSED, "ops --scope hooks:nothing"),
        (MISUSED, "ops --scope hooks:read --expires never"),
        (MISUSED, "ops --scope hooks:read --store sqlite:///exit_agents.py"),
    ],
    "budgets list": [
        (DONE, ""),
        (MISUSED, "--limit 0"),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "budgets show": [
        (FAILED, "unknown"),
        (MISUSED, ""),
        (MISUSED, "unknown --store sqlite:///missing.db"),
    ],
    "budgets reset": [
        (FAILED, "unknown"),
        (MISUSED, ""),
        (MISUSED, "unknown --store sqlite:///missing.db"),
    ],
    "keys list": [
        (DONE, ""),
        (MISUSED, "--limit 0"),
        (MISUSED, "--store sqlite:///missing.db"),
    ],
    "keys rotate": [
        (FAILED, "unknown"),
        (MISUSED, ""),
        (MISUSED, "unknown --store sqlite:///missing.db"),
    ],
    "keys revoke": [
        (FAILED, "unknown"),
        (MISUSED, ""),
        (MISUSED, "unknown --store sqlite:///missing.db"),
    ],
    "host install": [
        (MISUSED, ""),
        (MISUSED, "emacs --hooks exit_agents.py"),
    ],
    "host uninstall": [
        (MISUSED, ""),
        (MISUSED, "emacs"),
    ],
    "host status": [
        (MISUSED, "emacs"),
    ],
    "host stop": [
        (MISUSED, "emacs"),
    ],
    **{f"host {name}": [(MISUSED, ""), (MISUSED, "Nothing")] for name in HOSTS},
}
"""What each command is given, and how it then ends. `eval suite` is what `hookline eval` alone means."""


def stops(tools: object) -> list[Hooks]:
    """Hooks under which no attempt runs to its end."""
    hooks = Hooks("stopping")
    hooks.guard(ModelCall)(lambda call: Deny("no model today"))
    return [hooks]


STOPPING = AttackPolicy(name="stopping", hooks=stops)

CASES = [
    pytest.param(command, args, code, id=f"{command} {args} -> {code}")
    for command, rows in ROWS.items()
    for code, args in rows
]


def commands(group: Any, *path: str) -> Iterator[str]:
    """The names of all commands of the command line."""
    for name in group.commands:
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield " ".join([*path, name])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something for every command; its store is the default one."""
    found = tmp_path_factory.mktemp("exit codes ü")
    sys.modules.pop("taped_tools", None)  # of the folder before, if a worker comes back to this module
    texts = {
        "exit_agents.py": AGENTS,
        "good.yaml": SUITE.replace("CHECK", "checks: [{output_contains: hello}]"),
        "bad.yaml": SUITE.replace("CHECK", "checks: [{output_contains: bye}]"),
        "vacuous.yaml": SUITE.replace("CHECK", ""),
        "hanging.yaml": SUITE.replace("CHECK", "checks: [{output_contains: hello}]") + HANGING,
        "taped.yaml": TAPED,
        "taped_tools.py": "def price(item: str) -> str:\n    return 'free'\n\n\ntools = [price]\n",
        "empty.yaml": "suite: shop\ntasks: []\n",
        "broken.yaml": "suite: [\n",
        "broken.toml": '[[hooks]]\nname = "x"\npoint = "nowhere"\nhandler = "deny"\n',
        "broken.json": "[",
        "settings.json": '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}',
        "wrong.json": '{"name": "x", "point": "nowhere", "handler": "deny"}',
        "hooks.toml": DEFINITION,
        "other.toml": DEFINITION.replace('name = "', 'name = "other '),
        "failing.toml": DEFINITION + '[[tests]]\nname = "t"\ncall = { tool_name = "x" }\nexpect = "asked"\n',
        "empty.toml": "",
        "remote.toml": '[[hooks]]\nname = "r"\npoint = "ToolCall.before"\nremote = { name = "r" }\n'
        '[[tests]]\nname = "t"\ncall = { tool_name = "x" }\nexpect = "asked"\n',
        "judged.yaml": JUDGED,
        "labels.csv": "task,label\nshop/first,pass\n",
        "nobody.csv": "task,label\n",
        "half.json": '{"format": "hookline-run", "resu',
    }
    for name, text in texts.items():
        (found / name).write_text(text)
    url = f"sqlite:///{found / 'hookline.db'}"
    for name in ("op-approve", "op-reject"):
        paused(url, name, 5)
    on(url, lambda store: leave_dead(store, "op-ended"))
    on(url, lambda store: log_runs(store, "op-logged", hooks=[denying("never", "no")]))
    on(url, lambda store: define(store, *({"id": each, "name": each, "point": "ToolCall.guard"} for each in IDS)))
    runner = CliRunner()
    before = Path.cwd()
    os.chdir(found)
    try:
        for name in ("good", "bad", "judged"):
            runner.invoke(app, ["eval", f"{name}.yaml", "--save", f"{name}.json"])
        runner.invoke(app, ["eval", "empty.yaml", "--save", "none.json"])
        runner.invoke(app, ["eval", "taped.yaml", "--mode", "record", "--cassettes", "tapes"])
        stale = (found / "tapes" / "taped" / "a.yaml").read_text().replace("blake2b:", "blake2b:0")
        (found / "stale" / "taped").mkdir(parents=True)
        (found / "stale" / "taped" / "a.yaml").write_text(stale)
        told = runner.invoke(app, ["deliveries", "list", "--json", "--store", url]).stdout
    finally:
        os.chdir(before)
    a_recorded_run(found)
    (found / "dead").write_text(json.loads(told.splitlines()[0])["id"])
    return found


@pytest.fixture
def words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What stands for something that is known only now.

    The folder is the current one, the demo runs a small suite, and processes that a command starts are forked.
    """
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HOOKLINE_STORE", raising=False)
    monkeypatch.setattr(_demo, "DEMO_SUITES", ("good.yaml",))
    monkeypatch.setattr(_attacks, "attack_policies", lambda: [*attack_policies(), STOPPING])
    monkeypatch.setattr(_store, "RETRY_SECONDS", 0.05)
    with fork_python("hookline"):
        yield {
            "CLOSED": f"http://127.0.0.1:{closed_port()}",
            "RECORDED": "run.jsonl",
            "DEAD": (folder / "dead").read_text(),
        }


@pytest.mark.parametrize(("command", "args", "code"), CASES)
def test_every_command_ends_with_the_code_of_what_happened(
    words: dict[str, str], command: str, args: str, code: int
) -> None:
    line = [*command.removesuffix(" suite").split(), *(words.get(word, word) for word in args.split())]

    done = CliRunner().invoke(app, line, input="hi\n")

    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), "a traceback is no message"
    assert done.output or code == DONE
    assert done.stderr or code != MISUSED
    assert "Traceback" not in done.output


def test_no_command_is_left_out() -> None:
    assert set(ROWS) == set(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("command", ROWS)
def test_every_command_can_be_misused_and_says_so(command: str) -> None:
    codes = {code for code, _ in ROWS[command]}

    assert MISUSED in codes
    assert codes <= set(MEANINGS)


@pytest.mark.parametrize("line", [["nothing"], ["--nothing"], ["hooks", "nothing"], ["keys", "--nothing"]])
def test_a_command_that_there_is_not_is_a_wrong_use(line: list[str]) -> None:
    assert CliRunner().invoke(app, line).exit_code == MISUSED


@pytest.mark.parametrize(
    ("ok", "judged", "arrived", "code"),
    [
        (True, True, True, DONE),
        (False, False, False, FAILED),
        (False, True, True, FAILED),
        (True, False, False, NOT_JUDGED),
        (True, True, False, SPANS_LOST),
    ],
)
def test_the_worst_that_happened_decides(ok: bool, judged: bool, arrived: bool, code: int) -> None:
    assert exit_code_of(ok=ok, judged=judged, arrived=arrived) == code


def test_a_demo_whose_replay_fails_is_a_failure(words: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_demo, "DEMO_SUITES", ("bad.yaml",))

    assert CliRunner().invoke(app, ["demo", "--otlp-endpoint", words["CLOSED"]]).exit_code == FAILED


def test_the_help_and_the_page_have_the_table_of_codes() -> None:
    shown = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout.split())
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()

    for code, meaning in MEANINGS.items():
        assert f"{code} {meaning}" in shown
        assert f"| {code} | {meaning} |" in page


def test_every_code_that_a_command_tells_of_is_one_of_the_table() -> None:
    for command in ROWS:
        line = [word for word in command.split() if word != "suite"]
        shown = CliRunner().invoke(app, [*line, "--help"], env={"COLUMNS": "200"}).stdout
        told = {int(number) for number in re.findall(r"\b(?:with|and|or) (\d+) (?:if|for|after)", shown)}

        assert told <= set(MEANINGS), command


STOPPED = [
    "eval hanging.yaml --concurrency 1 --save stopped.json",
    "chat exit_agents.py:hanger --prompt hi",
    "executions follow --lines 1",
]
"""Commands that go on until they are stopped."""


def stopped(line: str, folder: Path, number: signal.Signals, *, ignored: bool = False) -> tuple[int, str]:
    """Start a command, and send it a signal once it waits.

    Args:
        line: The command.
        folder: Where it runs.
        number: The signal.
        ignored: Whether it is started with SIGINT ignored, as a script starts what is to run in the background.

    Returns:
        Its exit code, and what it said on stderr.
    """
    hangs = folder / "hangs"
    hangs.unlink(missing_ok=True)

    environment = {key: value for key, value in os.environ.items() if key != "HOOKLINE_STORE"}
    with Command(*line.split(), hears_ctrl_c=not ignored, cwd=folder, environment=environment) as process:
        if "hang" in line:
            while not hangs.exists():
                assert process.returncode is None, process.communicate()
                sleep(0.01)
        else:
            process.stdout.readline()
        process.send_signal(number)
        _, said = process.communicate()
        return process.wait(), said


@pytest.mark.parametrize("line", STOPPED)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)])
def test_a_command_that_is_stopped_says_by_what(folder: Path, line: str, number: signal.Signals, code: int) -> None:
    ended, said = stopped(line, folder, number)

    assert ended == code, said
    assert "Traceback" not in said


def test_sigterm_keeps_what_was_done_also_where_ctrl_c_is_ignored(folder: Path) -> None:
    code, said = stopped(STOPPED[0], folder, signal.SIGTERM, ignored=True)

    saved = load_run(folder / "stopped.json")
    assert (code, said.splitlines()[-1]) == (TERMINATED, "hookline: interrupted")
    assert ([each.task_id for each in saved.results], saved.not_run) == (["first"], ["shop/second"])


def test_sigterm_ends_a_chat_that_waits_for_a_person(folder: Path) -> None:
    code, said = stopped("chat exit_agents.py:plain", folder, signal.SIGTERM)

    assert (code, said) == (TERMINATED, "")
