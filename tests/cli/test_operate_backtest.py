"""`hookline hooks backtest` judges stored calls with a hook, and says what it would have decided."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hookline.store import SqlStore
from tests.cli.operated import database, lines, on, run
from tests.registry.test_revisions import commit_calls

TWO = """\
[[hooks]]
id = "no-payments"
name = "No payments"
point = "ToolCall.guard"
handler = "deny"
tool = "pay"
config = { reason = "Payments are closed until further notice, so ask somebody of the bank before you try again." }

[[hooks]]
name = "No memory"
point = "MemoryCall.guard"
handler = "deny"
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = database(tmp_path)

    async def fill(store: SqlStore) -> None:
        for nth, tenant in enumerate(("acme", "globex")):
            tools = "bank/pay", "bank/pay", "mail/send"
            await commit_calls(store, f"op{nth}", tenant, *tools, at=time.time_ns())

    on(url, fill)
    return url


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "hooks.toml"
    path.write_text(TWO)
    return str(path)


def test_a_definition_of_a_file_is_judged_and_not_stored(url: str, file: str) -> None:
    shown = run("hooks", "backtest", "No payments", "--file", file, "--since", "7d", "--examples", "1", url=url)
    (found,) = lines(run("hooks", "backtest", "no-payments", "--file", file, "--json", url=url))

    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "No payments at ToolCall.guard\n" in shown.stdout
    assert "judged    4 calls of 2 operations since " in shown.stdout
    assert [line.split() for line in shown.stdout.splitlines() if line.startswith("bank/pay")] == [
        ["bank/pay", "globex", "2", "2"],
        ["bank/pay", "acme", "2", "2"],
    ]
    assert "denied   op1        c0    bank/pay  Payments are closed" in shown.stdout
    assert (found["calls"], found["denied"], found["endedBy"]) == (4, 4, "end")
    assert lines(run("hooks", "list", "--json", url=url)) == []


def test_a_stored_definition_is_judged_on_the_calls_of_a_tenant_and_held_against_labels(
    url: str, file: str, tmp_path: Path
) -> None:
    assert run("hooks", "apply", file, "--yes", url=url).exit_code == 0
    labels = tmp_path / "labels.csv"
    labels.write_text("operation,call,label\nop0,c0,allow\nop0,c1,deny\n")
    options = ["--tenant", "acme", "--labels", str(labels), "--limit", "2"]

    result = run("hooks", "backtest", "no-payments", *options, url=url)

    assert result.exit_code == 0, result.stderr
    assert "labels    2 calls compared, 1 agreed, 1 false alarms, 0 misses\n" in result.stdout
    assert "globex" not in result.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["No memory"], "writes to memory are not stored"),
        ([], "Say which one; the definitions of"),
        (["nobody"], "There is no 'nobody'; the definitions of"),
        (["No payments", "--labels", "hooks.toml"], "hooks.toml"),
    ],
)
def test_what_cannot_be_judged_is_refused(url: str, file: str, args: list[str], told: str) -> None:
    result = run("hooks", "backtest", *args, "--file", file, url=url, width=200)

    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())
