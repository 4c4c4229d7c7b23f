"""`hookline serve`: what its options make of the server, how it says that it cannot serve, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import httpx
import pytest
from sqlalchemy import insert

from hookline import Approve, Hooks, ToolCall
from hookline.registry import ExecutionRow, HookRun
from hookline.registry._log_rows import execution_row, make_key
from hookline.store import SqlStore
from hookline.store._tables import executions
from tests.cli.operated import database, lines, on, pause, paused, run
from tests.commands import Command

ORIGIN = "https://ops.example.com"
OPTIONS = (
    *("--quota", "1", "--retention-hours", "0.5", "--observers", "--no-page", "--allow-origin", ORIGIN),
    *(
        "--allow-origin",
        "http://localhost:3000",
        "--rate-limit",
        "500",
        "--max-body",
        "1000",
        "--max-headers",
        "2000",
        "--header-timeout",
        "0.3",
        "--body-timeout",
        "0.4",
        "--max-connections",
        "50",
        "--tenant-rate-limit",
        "400",
        "--trusted-proxy",
        "127.0.0.1",
        "--trusted-proxy",
        "10.0.0.0/8",
        "--agent",
        "agents.py:payer",
    ),
)
AGENTS = """
from hookline import Agent, BeforeStep, Hooks, ModelResponse, ScriptedModel, tool

hooks = Hooks("seen")
hooks.on(BeforeStep, id="watch")(lambda event: None)


@tool(in_thread=False, needs_approval=True)
async def pay(amount: int) -> str:
    return "paid"


payer = Agent(id="payer", model=ScriptedModel([ModelResponse(content="done")]), tools=[pay], hooks=[hooks])
"""


@contextmanager
def serving(
    url: str, *options: str, cwd: Path, warns: str = "", **env: str
) -> Iterator[tuple[Command, dict[str, Any]]]:
    """The command as a process, and what it says once it listens; it is ended by Ctrl-C.

    Args:
        url: The store.
        options: What the command is given.
        cwd: Where it runs.
        warns: What it writes to stderr, which else is nothing.
        env: Variables of its environment.
    """
    environment = {**os.environ, "HOOKLINE_STORE": url, **env}
    with Command("serve", "--port", "0", "--json", *options, cwd=cwd, environment=environment) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGINT)
            rest, problems = process.communicate()
        assert (process.returncode, rest) == (0, "")
        assert (warns in problems) if warns else not problems, problems


async def leave_row(store: SqlStore, operation_id: str, *, hours_ago: float) -> None:
    """A row of the log."""
    at = time() - hours_ago * 3600
    row = ExecutionRow(
        id=f"{make_key(int(at * 1e6)):016x}",
        operation_id=operation_id,
        tenant_id="",
        request_id="",
        point="ToolCall",
        status="ok",
        duration_ms=1.0,
        created_at=at,
        executions=[HookRun(hook_id="h", status="ok", duration_ms=1.0)],
    )
    async with store.writing() as connection:
        await connection.execute(insert(executions).values(execution_row(row)))


def approve_guarded(url: str, operation_id: str) -> None:
    """An operation that was started with a guard, which no server has, and whose call is approved."""
    rules = Hooks("rules")
    rules.guard(ToolCall, id="rules.no_wire")(lambda call: None)
    on(url, lambda store: pause(store, operation_id, 5, hooks=[rules]))
    on(url, lambda store: store.decide(operation_id, Approve("t0")))


def wait_for_state(url: str, operation_id: str, wanted: tuple[str, list[str]]) -> None:
    """Wait until an operation has a status, and hooks that are missing."""
    end = monotonic() + 20
    while True:
        (told,) = lines(run("operations", "show", operation_id, "--json", url=url))
        if (told["status"], told["missingHooks"]) == wanted:
            return
        assert monotonic() < end
        sleep(0.02)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, httpx.Client]]:
    """A server with every option, and somebody who may do everything."""
    folder = tmp_path_factory.mktemp("served")
    url = database(folder)
    paused(url, "op-1", 5)
    approve_guarded(url, "guarded")
    on(url, lambda store: leave_row(store, "forgotten", hours_ago=0.6))
    on(url, lambda store: leave_row(store, "kept", hours_ago=0.4))
    (folder / "agents.py").write_text(AGENTS)
    with serving(url, *OPTIONS, cwd=folder, warns="waits for hooks") as (_, said):
        headers = {"authorization": f"Bearer {said['firstKey']}"}
        with httpx.Client(base_url=said["address"], headers=headers, timeout=20) as client:
            yield url, client


Served = tuple[str, httpx.Client]


def test_a_tenant_may_store_as_many_definitions_as_the_option_says(served: Served) -> None:
    hook = {"point": "ToolCall.guard", "handler": "deny", "tenantId": "acme"}

    answers = [served[1].post("/v1/hooks", json={**hook, "name": name}) for name in ("a", "b")]

    assert [answer.status_code for answer in answers] == [201, 409]
    assert answers[1].json()["code"] == "quota"


def test_pages_of_the_origins_that_are_named_may_ask(served: Served) -> None:
    def allowed(origin: str) -> str | None:
        return served[1].get("/health", headers={"origin": origin}).headers.get("access-control-allow-origin")

    assert [allowed(each) for each in (ORIGIN, "http://localhost:3000", "https://evil.example")] == [
        ORIGIN,
        "http://localhost:3000",
        None,
    ]


def test_requests_bodies_and_the_page_are_as_the_options_say(served: Served) -> None:
    _, client = served

    assert client.get("/v1/hooks").headers["ratelimit-limit"] == "400"  # of the tenant, since that is less
    assert client.post("/v1/hooks", json={"name": "x" * 1000}).json()["code"] == "too_large"
    assert client.get("/page/sign-in").status_code == 404


def test_connections_are_bounded_as_the_options_say(served: Served) -> None:
    client = served[1]
    where = (client.base_url.host, client.base_url.port or 0)

    def answers(sent: bytes) -> bytes:
        with socket.create_connection(where, timeout=20) as wire:
            wire.sendall(sent)
            return b"".join(iter(lambda: wire.recv(65_536), b""))

    key = client.headers["authorization"].encode()
    post = b"POST /v1/hooks HTTP/1.1\r\nauthorization: " + key + b"\r\ncontent-length: 9\r\n\r\n"

    assert b"larger than 2000 bytes" in answers(b"GET / HTTP/1.1\r\nx: " + b"a" * 5000)
    assert b"not complete within 0.3 s" in answers(b"GET / HTTP/1.1\r\n")
    assert b"arrived for 0.4 s" in answers(post)


def test_refused_attempts_have_the_address_that_a_trusted_proxy_names(served: Served) -> None:
    client = served[1]
    client.get("/v1/keys", headers={"authorization": "Bearer hk_no", "x-forwarded-for": "203.0.113.9"})

    end = monotonic() + 20
    while not (found := [row for row in client.get("/v1/audit").json()["items"] if row["action"] == "request.refused"]):
        assert monotonic() < end
        sleep(0.05)

    assert found[0]["actor"] == "address:203.0.113.9"
    assert found[0]["detail"]["code"] == "key"


def test_the_log_is_kept_for_as_long_as_the_option_says(served: Served) -> None:
    def logged() -> set[str]:
        return {row["operationId"] for row in served[1].get("/v1/hooks/logs?point=ToolCall").json()["items"]}

    end = monotonic() + 20
    while "forgotten" in (found := logged()):
        assert monotonic() < end
        sleep(0.02)
    assert "kept" in found


def test_the_log_has_what_observers_of_its_agents_do(served: Served) -> None:
    url, client = served
    decided = client.post("/v1/operations/op-1/decisions", json={"toolCallId": "t0", "decision": "approve"})
    assert decided.status_code == 200

    end = monotonic() + 20
    while not (rows := client.get("/v1/hooks/logs?point=beforeStep").json()["items"]):
        assert monotonic() < end
        sleep(0.02)

    assert {run["hookId"] for row in rows for run in row["executions"]} == {"watch"}
    (counted, *_) = lines(run("executions", "stats", "--by", "point", "--point", "beforeStep", "--json", url=url))
    assert (counted["point"], counted["errors"]) == ("beforeStep", 0)


def test_the_server_shows_its_first_key_once_and_ends_quietly(tmp_path: Path) -> None:
    """Unless told otherwise it has a page; 0 is any number of requests; without TLS it warns who serves everybody."""
    told = []
    for stop, options, warning in (
        (signal.SIGINT, ("--rate-limit", "0"), ""),
        (signal.SIGTERM, ("--host", "0.0.0.0"), "hookline listens on 0.0.0.0 without TLS"),
    ):
        with Command("serve", "--port", "0", "--store", database(tmp_path), *options) as server:
            first = []
            for line in server.stdout:
                first.append(line)
                if line.startswith("hookline listens on http://"):
                    break
            answers = ask_as_administrator(first) if not told else []
            server.send_signal(stop)
            rest, problems = server.communicate()
            assert (server.returncode, rest, problems.count("\n")) == (0, "", bool(warning))
            assert problems.startswith(warning)
        told.append(first)
        if answers:
            assert [answer.status_code for answer in answers] == [200, 200]
            assert "ratelimit-limit" not in answers[0].headers
    assert re.search(r"hk_[0-9a-f]{16}_\S{43}\n$", told[0][0])
    assert [len(each) for each in told] == [2, 1]


def ask_as_administrator(said: list[str]) -> list[httpx.Response]:
    """Ask the API and the page of a server that has shown its first key and its address."""
    key, address = (line.split()[-1] for line in said)
    headers = {"authorization": f"Bearer {key}"}
    return [httpx.get(f"{address}{path}", headers=headers) for path in ("/v1/hooks", "/page/sign-in")]


def refused(folder: Path, *options: str, **env: str) -> tuple[int, str]:
    """The exit code of a server that does not start, and the one line that it says; it leaves nothing behind."""
    done = run("serve", *options, url=database(folder), **env)
    assert (done.stdout, done.stderr.count("\n"), list(folder.iterdir())) == ("", 1, [])
    return done.exit_code, done.stderr


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, told = refused(tmp_path, "--port", port)

    assert code == 2
    assert told == (
        f"hookline: Cannot listen on 127.0.0.1:{port}: Address already in use. "
        "Choose another host or port; port 0 uses any free port.\n"
    )


def test_an_origin_with_a_path_is_told_in_one_line(tmp_path: Path) -> None:
    code, told = refused(tmp_path, "--port", "0", "--allow-origin", f"{ORIGIN}/app")

    assert (code, told) == (2, f"hookline: `allow_origins` must be origins such as '{ORIGIN}'; got '{ORIGIN}/app'.\n")


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--trusted-proxy", "*", "`trusted_proxies` must be addresses or networks, as '10.0.0.7' or '10.0.0.0/8'"),
        ("--trusted-proxy", "localhost", "`trusted_proxies` must be addresses or networks"),
        ("--header-timeout", "inf", "`header_timeout` must be a number of seconds above 0; got inf"),
    ],
)
def test_a_limit_that_makes_no_sense_is_told_in_one_line(tmp_path: Path, option: str, value: str, told: str) -> None:
    code, line = refused(tmp_path, "--port", "0", option, value)

    assert (code, told in line) == (2, True)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-headers", "10"),
        ("--header-timeout", "0"),
        ("--body-timeout", "-1"),
        ("--max-connections", "0"),
        ("--tenant-rate-limit", "-1"),
    ],
)
def test_a_limit_out_of_its_range_is_wrong_use(tmp_path: Path, option: str, value: str) -> None:
    done = run("serve", "--port", "0", option, value, url=database(tmp_path))

    assert done.exit_code == 2
    assert option in done.stderr


def test_a_session_key_that_is_too_short_is_told_without_what_it_is(tmp_path: Path) -> None:
    code, told = refused(tmp_path, "--port", "0", HOOKLINE_SESSION_KEY="geheim")

    assert code == 2
    assert told.startswith("hookline: HOOKLINE_SESSION_KEY must have 32 random bytes or more")
    assert "geheim" not in told


def test_a_broken_file_of_definitions_keeps_the_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "hooks.toml").write_text('[[hooks]]\nname = "x"\npoint = "nowhere"\nhandler = "deny"\n')

    result = run("serve", "--port", "0", "--files", str(tmp_path / "hooks.toml"), url=database(tmp_path))

    assert result.exit_code == 2
    assert f"{tmp_path / 'hooks.toml'}, line 3: 'nowhere' is not a point" in result.stderr


def test_an_operation_waits_for_its_hooks(served: Served) -> None:
    wait_for_state(served[0], "guarded", ("waiting_for_human", ["rules.no_wire"]))


def test_an_operation_goes_on_without_its_hooks_where_the_option_says_so(tmp_path: Path) -> None:
    url = database(tmp_path)
    approve_guarded(url, "op")
    (tmp_path / "agents.py").write_text(AGENTS)

    options = ("--agent", "agents.py:payer", "--allow-missing-hooks")
    with serving(url, *options, cwd=tmp_path, warns="continues without"):
        wait_for_state(url, "op", ("done", []))
