"""What hooks did is seen on the command line, and followed as it comes; keys are made, shown once and ended."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from hookline.registry import Registry
from hookline.server import KeyStore
from hookline.store import SqlStore
from tests.cli.operated import database, denying, lines, log_runs, on, run
from tests.commands import Command


@pytest.fixture
def url(tmp_path: Path) -> str:
    return database(tmp_path)


def test_the_log_is_filtered(url: str) -> None:
    on(url, lambda store: log_runs(store, "a", "b", hooks=[denying("never", "we do not pay")], tenant="acme"))

    def rows(*args: str) -> list[dict[str, object]]:
        return lines(run("executions", *args, "--json", url=url))

    denied = rows("--status", "denied", "--hook", "never")
    assert {each["operationId"] for each in denied} == {"a", "b"}
    assert {(each["deniedBy"], each["reason"]) for each in denied} == {("never", "we do not pay")}
    assert rows("--operation", "a", "--point", "ToolCall") == [each for each in denied if each["operationId"] == "a"]
    assert (rows("--tenant", "other"), rows("--until", "1h"), rows("--hook", "other")) == ([], [], [])
    assert "we do not pay" in run("executions", "--status", "denied", url=url, width=120).stdout


def test_what_hooks_did_is_added_up(url: str) -> None:
    on(url, lambda store: log_runs(store, "a", "b", hooks=[denying("never", "no")], tenant="acme"))
    on(url, lambda store: log_runs(store, "c", hooks=[denying("also", "no"), denying("late", "no")]))

    def sums(*args: str) -> list[dict[str, object]]:
        return lines(run("executions", "stats", *args, "--json", url=url))

    def shown(*args: str) -> list[list[str]]:
        result = run("executions", "stats", *args, url=url)
        assert (result.exit_code, result.stderr) == (0, "")
        return [line.split() for line in result.stdout.splitlines()]

    assert [(each["hookId"], each["count"], each["denied"]) for each in sums()] == [("never", 2, 2), ("also", 1, 1)]
    assert [(each["tenantId"], each["count"]) for each in sums("--by", "tenant")] == [("acme", 2), ("", 1)]
    assert [(each["point"], each["count"]) for each in sums("--by", "point", "--tenant", "acme")] == [("ToolCall", 2)]
    assert sum(int(str(each["count"])) for each in sums("--by", "minute")) == 3
    assert sum(int(str(each["count"])) for each in sums("--by", "hour")) == 3
    assert [(each["tool"], each["count"]) for each in sums("--by", "tool")] == [("local/pay", 3)]
    assert [(each["agentId"], each["count"]) for each in sums("--by", "agent", "--hook", "never")] == [("payer", 2)]
    assert (sums("--hook", "other"), sums("--point", "ModelCall")) == ([], [])
    assert [each["hookId"] for each in sums("--since", "1h", "--hook", "also")] == ["also"]
    heading, _, first, second = shown()
    assert " ".join(heading) == "hook count errors p50 ms p95 ms p99 ms denied timeouts dropped"
    assert (first[:3], first[-3:], second[:3]) == (["never", "2", "0"], ["2", "0", "0"], ["also", "1", "0"])
    assert [line[0] for line in shown("--by", "tenant")[2:]] == ["acme", "—"]
    assert [line[:2] for line in shown("--by", "tool")[2:]] == [["local/pay", "3"]]
    heading, _, pair = shown("--by", "agent,tool")
    assert (heading[:3], pair[:3]) == (["agent", "tool", "count"], ["payer", "local/pay", "3"])
    assert [each["tool"] for each in sums("--by", "agent,tool") if each["agentId"] == "payer"] == ["local/pay"]


def test_sums_fit_a_narrow_terminal_and_where_there_are_none_it_is_told(url: str) -> None:
    on(url, lambda store: log_runs(store, "a", hooks=[denying("never", "no")]))

    narrow = run("executions", "stats", url=url, width=40).stdout.splitlines()
    nothing = run("executions", "stats", "--hook", "other", url=url)

    assert narrow[0].split() == ["hook", "count", "errors", "p50", "ms", "p95", "ms"]
    assert max(len(line.rstrip()) for line in narrow) <= 40
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "No executions match.\n")


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_the_tail_shows_older_rows_then_each_new_one_once_and_ends_quietly(url: str, as_json: bool) -> None:
    hooks = [denying("never", "no")]
    on(url, lambda store: log_runs(store, "a", "b", "c", hooks=hooks))
    args = ["executions", "follow", "--hook", "never", "-n", "1", *(["--json"] if as_json else [])]
    environment = {**os.environ, "HOOKLINE_STORE": url}

    with Command(*args, environment=environment) as tail:
        shown = [tail.stdout.readline()]
        on(url, lambda store: log_runs(store, "d", "e", hooks=hooks))
        shown += [tail.stdout.readline() for _ in range(2)]
        tail.send_signal(signal.SIGINT)
        rest, problems = tail.communicate()

        assert (tail.wait(), rest, problems) == (130, "", "")
    names = [json.loads(line)["operationId"] if as_json else line.split()[-1] for line in shown]
    assert names == ["c", "d", "e"]


def test_a_row_that_comes_late_is_shown_too(url: str) -> None:
    from sqlalchemy import insert

    from hookline.cli.operate._executions import LogFilter, Tail
    from hookline.registry import ExecutionLog, ExecutionRow, HookRun
    from hookline.registry._log_rows import execution_row, make_key
    from hookline.store._tables import executions

    def row(at: float) -> ExecutionRow:
        return ExecutionRow(
            id=f"{make_key(int(at * 1e6)):016x}",
            operation_id=f"at {at:g}",
            tenant_id="",
            request_id="",
            point="ToolCall",
            status="ok",
            duration_ms=1.0,
            created_at=at,
            executions=[HookRun(hook_id="h", status="ok", duration_ms=1.0)],
        )

    async def follow(store: SqlStore) -> list[list[str]]:
        log, tail, seen = ExecutionLog(store), Tail(LogFilter(None, None, None, None, None, None)), []

        async def comes(*times: float) -> None:
            async with store.writing() as connection:
                await connection.execute(insert(executions), [execution_row(row(at)) for at in times])

        async def look() -> None:
            seen.append([each.operation_id for each in await tail.more(log)])

        seen.append([each.operation_id for each in await tail.first(log, 2)])
        await comes(100.0, 101.0)
        await look()
        await comes(99.5, 102.0)
        await look()
        await comes(95.0)
        await look()
        await look()
        return seen

    assert on(url, follow) == [[], ["at 100", "at 101"], ["at 99.5", "at 102"], ["at 95"], []]


def test_a_key_works_until_it_is_revoked(url: str) -> None:
    (made,) = lines(run("keys", "create", "ops", "--scope", "hooks:read", "--tenant", "acme", "--json", url=url))

    async def caller(store: SqlStore) -> tuple[str, list[str]] | None:
        found = await KeyStore(store).authenticate(made["key"])
        return None if found is None else (found.tenant_id, sorted(found.scopes))

    assert on(url, caller) == ("acme", ["hooks:read"])
    assert run("keys", "revoke", made["id"], url=url).stdout == f"Revoked {made['id']}.\n"
    assert on(url, caller) is None
    (listed,) = lines(run("keys", "--json", url=url))
    assert (listed["id"], listed["revokedAt"] is not None, "key" in listed) == (made["id"], True, False)
    assert "revoked" in run("keys", url=url).stdout


def test_a_key_is_shown_once_on_stdout(url: str) -> None:
    made = run("keys", "create", "ops", "--scope", "hooks:read", "--scope", "operations:read", url=url)

    assert "scopes  hooks:read operations:read\n" in made.stdout
    assert "key     hk_" in made.stdout
    assert made.stderr == "Copy it now. It is not shown again.\n"
    assert "hk_" not in run("keys", url=url, width=200).stdout


def test_a_key_ends_by_itself(url: str) -> None:
    (made,) = lines(run("keys", "create", "ops", "--scope", "hooks:read", "--expires", "2d", "--json", url=url))

    assert made["expiresAt"] - made["createdAt"] == pytest.approx(2 * 86400)


def test_a_key_of_another_tenant_cannot_be_revoked(url: str) -> None:
    (made,) = lines(run("keys", "create", "ops", "--scope", "hooks:read", "--tenant", "acme", "--json", url=url))

    result = run("keys", "revoke", made["id"], "--tenant", "other", url=url)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"hookline: There is no API key '{made['id']}'")
    assert lines(run("keys", "--json", url=url))[0]["revokedAt"] is None


def test_the_executions_of_a_stored_hook_name_its_revision(url: str) -> None:
    async def log_stored(store: SqlStore) -> int:
        async with Registry(store) as registry:
            made = await registry.create({"id": "never", "name": "A", "point": "ToolCall.guard", "handler": "deny"})
            await log_runs(store, "a", hooks=registry.hooks())
        return made.revision

    revision = on(url, log_stored)

    assert f"never@{revision}" in run("executions", url=url, width=160).stdout
    [row] = lines(run("executions", "--json", url=url))
    assert [each["revision"] for each in row["executions"]] == [revision]
    assert lines(run("executions", "--revision", str(revision), "--json", url=url)) == [row]
    assert lines(run("executions", "--revision", str(revision + 1), "--json", url=url)) == []
    assert run("executions", "--revision", "0", url=url).exit_code == 2
