"""People see on the command line which calls wait for them, and with which question."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookline import Ask, Hooks, ToolCall
from hookline.store import SqlStore
from tests.cli.operated import database, lines, on, pause, paused, run


@pytest.fixture
def url(tmp_path: Path) -> str:
    return database(tmp_path)


def asking(prompt: str) -> Hooks:
    """Hooks that ask before each call."""
    hooks = Hooks("asking")
    hooks.guard(ToolCall)(lambda call: Ask(prompt))
    return hooks


def names(url: str, *args: str) -> list[tuple[str, str]]:
    """The operation and the call of each row."""
    return [(each["operationId"], each["toolCallId"]) for each in lines(run("approvals", *args, "--json", url=url))]


def test_a_call_is_listed_with_its_question_until_somebody_has_decided(url: str) -> None:
    async def arrange(store: SqlStore) -> None:
        await pause(store, "op", 5, tenant="acme", hooks=[asking("Is Ann in the budget?")])

    on(url, arrange)

    shown = run("approvals", url=url, width=120)
    (told,) = lines(run("approvals", "--json", url=url))

    heading, _, row = shown.stdout.splitlines()
    assert heading.split() == ["operation", "call", "tool", "arguments", "waits", "tenant", "prompt", "agent"]
    assert row.split()[:4] == ["op", "t0", "local/pay", '{"amount":5}']
    assert "Is Ann in the budget?" in row
    assert (told["prompt"], told["tenantId"], told["args"]) == ("Is Ann in the budget?", "acme", {"amount": 5})
    run("approvals", "approve", "op", url=url)
    empty = run("approvals", url=url)
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", "No call waits for a person.\n")


def test_approvals_are_filtered(url: str) -> None:
    paused(url, "a", 5, tenant="acme")
    paused(url, "b", 6, 7, tenant="other")

    assert names(url) == [("b", "t0"), ("b", "t1"), ("a", "t0")]
    assert names(url, "--tenant", "acme") == [("a", "t0")]
    assert (
        names(url, "--agent", "payer") == names(url, "--tool", "pay") == names(url, "--tool", "local/*") == names(url)
    )
    assert names(url, "--agent", "other") == names(url, "--tool", "wire") == []
    assert names(url, "--limit", "2") == [("b", "t0"), ("b", "t1")]
    assert names(url, "--limit", "1") == [("b", "t0")]
    assert "1 is shown; there are more" in run("approvals", "--limit", "1", url=url).stderr


def test_long_arguments_are_cut_in_the_table_and_whole_in_json(url: str) -> None:
    async def arrange(store: SqlStore) -> None:
        await pause(store, "op", int("9" * 200))

    on(url, arrange)

    shown = run("approvals", url=url, width=80)
    (told,) = lines(run("approvals", "--json", url=url))

    assert max(len(line.rstrip()) for line in shown.stdout.splitlines()) <= 80
    assert "…" in shown.stdout
    assert told["args"] == {"amount": int("9" * 200)}
