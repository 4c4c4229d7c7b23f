"""People look at operations and decide, on the command line."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from hookline import Agent, Approve, Hooks, ScriptedModel, ToolCall, exec_agent, resume_agent
from hookline.store import SqlStore, Worker
from tests.cli.operated import PAID, database, go_on, lines, on, pause, paused, payer, run
from tests.forks import forking_python

ACCOUNT = f"cli:{pwd.getpwuid(os.getuid()).pw_name}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return database(tmp_path)


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    PAID.clear()


def test_an_approved_call_runs_once_a_worker_takes_its_operation(url: str) -> None:
    paused(url, "op", 5)

    result = run("approvals", "approve", "op", url=url)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Approved t0 (local/pay) of op.\n")
    assert (go_on(url, "op", 5), PAID) == ("done", [5])


def test_a_rejected_call_stops_the_run(url: str) -> None:
    paused(url, "op", 5)

    assert run("approvals", "reject", "op", "t0", "--reason", "too much", url=url).exit_code == 0

    assert (go_on(url, "op", 5), PAID) == ("interrupted", [])


def test_a_run_may_go_on_without_a_rejected_call_and_the_model_is_told_why(url: str) -> None:
    paused(url, "op", 5)

    (told,) = lines(run("approvals", "reject", "op", "--continue", "--reason", "too much", "--json", url=url))

    assert told == {
        "operationId": "op",
        "toolCallId": "t0",
        "decision": "rejectAndContinue",
        "decidedBy": ACCOUNT,
        "pending": [],
    }
    assert (go_on(url, "op", 5), PAID) == ("done", [])
    state = on(url, lambda store: store.load("op"))
    assert state is not None
    assert "too much" in state.last_content


def test_of_several_calls_each_is_named_until_one_is_left(url: str) -> None:
    paused(url, "op", 5, 6)

    unnamed = run("approvals", "approve", "op", url=url)
    first = run("approvals", "approve", "op", "t1", url=url)
    second = run("approvals", "approve", "op", url=url)
    third = run("approvals", "approve", "op", url=url)

    assert (unnamed.exit_code, unnamed.stdout) == (1, "")
    assert "several calls wait; name one. Calls that wait for a decision: 't0', 't1'." in unnamed.stderr
    assert first.stdout.splitlines()[1:] == ['Its arguments: {"amount":6}', "It waits for t0 still."]
    assert second.stdout.startswith("Approved t0 ")
    assert (third.exit_code, "all calls are decided" in third.stderr) == (1, True)
    assert (go_on(url, "op", 5, 6), sorted(PAID)) == ("done", [5, 6])


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["gone"], "`hookline operations` lists those that are; name another store by --store"),
        (["over"], "Operation 'over' does not wait for a person; its status is 'done'."),
        (["op", "t9"], "the call 't9' is not pending. Calls that wait for a decision: 't0'."),
        (["op", "--tenant", "other"], "Operation 'op' is not in the store"),
    ],
    ids=["unknown", "over", "no-such-call", "another-tenant"],
)
@pytest.mark.parametrize("command", ["approve", "reject"])
def test_a_decision_that_cannot_be_taken_is_refused_in_one_line(
    url: str, command: str, args: list[str], told: str
) -> None:
    paused(url, "op", 5, tenant="acme")
    on(url, lambda store: pause(store, "over"))

    result = run("approvals", command, *args, url=url)

    assert (result.exit_code, result.stdout) == (1, "")
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_decision_is_taken_once(url: str) -> None:
    paused(url, "op", 5, 6)
    run("approvals", "approve", "op", "t0", url=url)

    result = run("approvals", "reject", "op", "t0", url=url)

    assert (result.exit_code, "the call 't0' is decided already" in result.stderr) == (1, True)


def test_operations_are_filtered_by_status_and_tenant(url: str) -> None:
    async def arrange(store: SqlStore) -> None:
        for name, amounts, tenant in (("a", [5], "acme"), ("b", [], "acme"), ("c", [5], "other")):
            await pause(store, name, *amounts, tenant=tenant)

    on(url, arrange)

    def names(*args: str) -> list[str]:
        return [each["operationId"] for each in lines(run("operations", *args, "--json", url=url))]

    assert names() == ["c", "b", "a"]
    assert names("--status", "waiting_for_human") == ["c", "a"]
    assert names("--status", "waiting_for_human", "--tenant", "acme") == ["a"]
    assert names("--limit", "1") == ["c"]


def test_operations_are_filtered_by_tag_and_show_their_tags(url: str) -> None:
    async def arrange(store: SqlStore) -> None:
        for name, tags in (("a", ["vip", "eu"]), ("b", ["vip"]), ("c", [])):
            await exec_agent(
                Agent(id="x", model=ScriptedModel(["done"])), "Go", operation_id=name, tags=tags, store=store
            )

    on(url, arrange)

    found = lines(run("operations", "--tag", "vip", "--json", url=url))
    assert [(each["operationId"], each["tags"]) for each in found] == [("b", ["vip"]), ("a", ["vip", "eu"])]
    assert "vip, eu" in run("operations", "--tag", "eu", url=url, width=200).stdout
    assert "vip, eu" in run("operations", "show", "a", url=url).stdout
    assert lines(run("operations", "--tag", "nobody's", "--json", url=url)) == []


def test_an_operation_is_shown_with_the_calls_that_wait(url: str) -> None:
    paused(url, "op", 5, 6, tenant="acme")
    run("approvals", "approve", "op", "t0", url=url)

    shown = run("operations", "show", "op", url=url)
    (told,) = lines(run("operations", "show", "op", "--json", url=url))

    assert told["status"] == "waiting_for_human"
    assert told["pending"] == [{"identifier": "local", "apiName": "pay", "toolCallId": "t1", "args": {"amount": 6}}]
    assert 'args        {"amount":6}\n' in shown.stdout
    assert "\nApprove:             hookline approvals approve op t1\n" in shown.stdout
    assert "\nReject and continue: hookline approvals reject op t1 --continue\n" in shown.stdout
    assert "\nReject and stop:     hookline approvals reject op t1 --stop\n" in shown.stdout
    assert [(each["toolCallId"], each["decidedBy"]) for each in told["decisions"]] == [("t0", ACCOUNT)]
    assert run("operations", "show", "op", "--tenant", "other", url=url).exit_code == 1
    run("approvals", "approve", "op", url=url)
    assert "All calls are decided" in run("operations", "show", "op", url=url).stdout


def test_events_can_be_given_to_trace(url: str, tmp_path: Path) -> None:
    paused(url, "op", 5)

    result = run("operations", "events", "op", "--json", url=url)

    assert [each["type"] for each in lines(result)][0::3] == ["beforeStep", "onComplete"]
    (tmp_path / "run.jsonl").write_text(result.stdout)
    assert "human_intervention" in run("trace", str(tmp_path / "run.jsonl")).stdout


def test_events_are_shown_from_a_number_on(url: str) -> None:
    paused(url, "op", 5)
    whole = lines(run("operations", "events", "op", "--json", url=url))

    assert lines(run("operations", "events", "op", "--after", "2", "--json", url=url)) == whole[2:]
    assert lines(run("operations", "events", "op", "--limit", "2", "--json", url=url)) == whole[:2]
    assert "beforeHumanIntervention" in run("operations", "events", "op", url=url).stdout


def test_events_of_nobody_and_of_other_tenants_are_refused(url: str) -> None:
    paused(url, "op", 5, tenant="acme")

    for args in (["gone"], ["gone", "--tenant", "acme"], ["op", "--tenant", "other"]):
        result = run("operations", "events", *args, url=url)
        assert (result.exit_code, result.stdout) == (1, "")


def test_nothing_that_an_agent_has_written_reaches_the_terminal_as_a_command(url: str) -> None:
    paused(url, "op\x1b]0;owned\x07\n2", 5, tenant="a\x9bc")

    for args in (["list"], ["show", "op\x1b]0;owned\x07\n2"], ["events", "op\x1b]0;owned\x07\n2"]):
        result = run("operations", *args, url=url, width=160)
        assert result.exit_code == 0
        assert not {"\x1b", "\x07", "\x9b"} & set(result.stdout)


@pytest.mark.parametrize(
    ("args", "decided", "action"),
    [
        (["approve"], "Approved", "approve"),
        (["reject"], "Rejected and stopped", "reject"),
        (["reject", "--stop"], "Rejected and stopped", "reject"),
        (["reject", "--continue"], "Rejected and continued", "rejectAndContinue"),
    ],
    ids=" ".join,
)
def test_every_command_says_which_decision_it_was_and_who_made_it(
    url: str, args: list[str], decided: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused(url, "op", 5, tenant="acme")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")

    said = run("approvals", args[0], "op", *args[1:], url=url)
    go_on(url, "op", 5)

    assert said.stdout.splitlines()[:2] == [
        f"{decided} t0 (local/pay) of op, tenant acme.",
        'Its arguments: {"amount":5}',
    ]
    (told,) = lines(run("operations", "show", "op", "--json", url=url))
    [made] = told["decisions"]
    assert (made["decision"], made["decidedBy"], made["args"]) == (action, ACCOUNT, {"amount": 5})
    assert made["eventNumber"] is not None
    shown = run("operations", "show", "op", url=url).stdout
    assert f"{ACCOUNT[4:]} on the command line" in shown
    assert decided.lower() in shown
    events = run("operations", "events", "op", url=url, width=160).stdout
    assert f"t0 {decided.lower()} by {ACCOUNT}" in events


def test_what_python_decided_names_nobody(url: str) -> None:
    paused(url, "op", 5)
    on(url, lambda store: resume_agent(payer(5), "op", [Approve("t0")], store=store))

    (told,) = lines(run("operations", "show", "op", "--json", url=url))

    [made] = told["decisions"]
    assert (made["decision"], made["decidedBy"], made["args"]) == ("approve", "", {"amount": 5})
    assert "somebody who was not named" in run("operations", "show", "op", url=url).stdout


def test_who_was_later_is_told_who_was_first(url: str) -> None:
    paused(url, "op", 5, 6)
    run("approvals", "reject", "op", "t0", url=url)

    result = run("approvals", "approve", "op", "t0", url=url)

    assert f"the call 't0' is decided already: rejected and stopped by {ACCOUNT}" in result.stderr


def test_no_help_has_a_reject_that_does_not_say_what_becomes_of_the_run() -> None:
    told = " ".join(run("approvals", "reject", "--help", width=200).stdout.split())

    assert "Reject a tool call, and stop the run or --continue it." in told
    assert "Reject and stop: the run ends. Reject and continue: the model is told, and the run goes on." in told


def test_an_account_without_a_name_is_named_by_its_number() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become an account without a name")
    code = "from hookline.cli.operate._store import actor; import os; os.setuid(54321); print(actor())"

    done = subprocess.run([forking_python("hookline"), "-c", code], capture_output=True, text=True)

    assert done.stdout == "cli:54321\n", done.stderr


async def lacking(store: SqlStore) -> None:
    """An operation whose hooks a worker has not."""
    rules = Hooks("rules")
    for name in ("no_wire", "\x1b[31mred"):
        rules.guard(ToolCall, id=f"rules.{name}")(lambda call: None)
    await pause(store, "op", 5, hooks=[rules])
    await store.decide("op", Approve("t0"))
    async with Worker(store, [payer(5)], poll_seconds=0.02), asyncio.timeout(20):
        while not (await store.missing_hooks()):
            await asyncio.sleep(0.01)


def test_an_operation_that_waits_for_hooks_names_them(url: str) -> None:
    on(url, lacking)

    listed = run("operations", url=url, width=120)
    one = run("operations", "show", "op", url=url)
    (told,) = lines(run("operations", "show", "op", "--json", url=url))
    (in_list,) = lines(run("operations", "--json", url=url))

    assert "waiting for hooks" in listed.stdout
    assert "rules.no_wire" in listed.stdout
    assert "waiting for hooks  rules.no_wire, rules." in one.stdout
    assert "No worker that tried to resume it has these hooks." in one.stdout
    assert "\x1b" not in listed.stdout + one.stdout
    assert told["missingHooks"] == in_list["missingHooks"] == ["rules.no_wire", "rules.\x1b[31mred"]


def test_the_column_is_there_only_where_something_waits(url: str) -> None:
    paused(url, "op", 5)

    assert "waiting for hooks" not in run("operations", url=url, width=200).stdout
