"""Make the files of `tests/stored/by_8ffe382`: run it with the code of that commit, from the root of this repository.

```
git worktree add /tmp/earlier 8ffe382
PYTHONPATH=/tmp/earlier/src python -m tests.stored.make tests/stored/by_8ffe382
```

It needs the extras `server`, `evals` and `agent-hooks`. Ids and times are the same in every run, but for the times that
a database or the calendar gives (`definitions/rows.sql`, `definitions/api.json`, `wire/agent_hooks.json`). Do not make
the files with a later commit: they are what that commit has written. `suite.yaml`, `faults.yaml`, `rules.toml` and
`rules.yaml` are written by hand; this script reads them with that commit's code.
"""

from __future__ import annotations

from tests.stored import clock  # isort: skip # hookline takes these functions over when it is imported

import asyncio
import re
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec

import hookline
from hookline import (
    Agent,
    Approve,
    Hook,
    InMemoryStore,
    OnComplete,
    OperationResult,
    Reject,
    ScriptedModel,
    encode,
    exec_agent,
    json_schema,
    resume_agent,
)
from hookline.adapters.agent_hooks import PolicyHooks
from hookline.delivery import generate_key, sign
from hookline.evals import Cassette, EventRecorder, SuiteRunner, cases_of, load_faults, save_run, write_events
from hookline.evals.suites import load_suite_file
from hookline.registry import ExecutionLog, Registry
from hookline.runtime import JournalEntry, OperationState
from hookline.server import KeyStore
from hookline.store import SqlStore
from tests.runtime.durable import Disk, DyingStore
from tests.stored import bank, samples
from tests.stored.definitions import BODIES, SAMPLES
from tests.stored.scenes import Notes, describe_api, refuse_and_rewrite, run_scripts, send_events

HERE = Path(__file__).parent


class Keeping(InMemoryStore):
    """Keep every state that was saved, as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[bytes] = []

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        self.saved.append(msgspec.json.encode(state))
        await super().save(state, expected_version=expected_version)


class Watched(DyingStore):
    """Keep every state that was committed, as JSON."""

    def __init__(self) -> None:
        super().__init__(Disk())
        self.saved: list[bytes] = []

    async def commit(
        self, state: OperationState, *, expected_version: int | None, entries: Sequence[JournalEntry]
    ) -> None:
        self.saved.append(msgspec.json.encode(state))
        await super().commit(state, expected_version=expected_version, entries=entries)


def format_json(value: Any) -> bytes:
    """Return JSON that people can read."""
    encoded = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return msgspec.json.format(encoded, indent=1) + b"\n"


def without_words(value: Any) -> Any:
    """Return a description of an API without what only people read."""
    if isinstance(value, dict):
        read = ("description", "title", "summary", "examples")
        kept = {key: each for key, each in value.items() if not (key in read and isinstance(each, str | list))}
        return {key: without_words(each) for key, each in kept.items()}
    return [without_words(each) for each in value] if isinstance(value, list) else value


def make_states(folder: Path) -> None:
    """Write the states and the events of a run that pauses, goes on, and ends."""
    folder.mkdir(exist_ok=True)
    recorder, store = EventRecorder(inherit=True), Keeping()

    async def run() -> OperationResult:
        agent = bank.banker(bank.Bank(), bank.PAUSING)
        with recorder:
            return await exec_agent(
                agent,
                "Pay what is due.",
                hooks=[recorder.hooks, *bank.rules()],
                operation_id="op_paused",
                user_id="ann",
                tenant_id="acme",
                store=store,
            )

    async def go_on() -> OperationResult:
        agent = bank.banker(bank.Bank(), [bank.turn("Paid.")])
        decided = [Approve("t3"), Reject("t4", "no", and_continue=True), Approve("t5")]
        with recorder:
            return await resume_agent(agent, "op_paused", decided, hooks=[recorder.hooks, *bank.rules()], store=store)

    assert anyio.run(run).reason == "waiting_for_human"
    paused = [each for each in store.saved if b'"op_paused"' in each][-1]
    (folder / "paused.json").write_bytes(format_json(paused))
    assert anyio.run(go_on).reason == "done"
    (folder / "finished.json").write_bytes(format_json(store.saved[-1]))
    write_events(folder / "events.jsonl", recorder.events)

    clock.restart()
    durable = Watched()

    async def die() -> None:
        agent = bank.banker(bank.Bank(), [bank.PAUSING[0], bank.turn("Nothing is due.")])
        await exec_agent(agent, "What is due?", operation_id="op_died", tenant_id="acme", store=durable)

    anyio.run(die)
    of_parent = [each for each in durable.saved if each.startswith(b'{"operationId":"op_died"')]
    begun = max(of_parent, key=lambda each: len(msgspec.json.decode(each)["begun"]))
    (folder / "died.json").write_bytes(format_json(begun))


def make_cassettes(folder: Path) -> None:
    """Write a cassette in each way of matching."""
    folder.mkdir(exist_ok=True)
    for matching in ("keyed", "sequential"):
        clock.restart()
        with Cassette(matching, path=folder / f"{matching}.yaml", mode="rewrite", matching=matching) as cassette:
            result = anyio.run(play, cassette)
            assert result.output == "done", result
    (folder / ".hookline.lock").unlink(missing_ok=True)


async def play(cassette: Cassette) -> OperationResult:
    """Run the agent whose calls are recorded."""
    return await exec_agent(bank.recorded_agent(real=True), "Read.", hooks=[cassette.hooks()], operation_id="op_tape")


def make_evaluations(folder: Path) -> None:
    """Write a saved run of a suite, and one that went worse because of faults."""
    for name, faults in (("good", []), ("worse", load_faults(folder / "faults.yaml"))):
        clock.restart()
        suite = load_suite_file(folder / "suite.yaml")
        runner = SuiteRunner(cases_of([suite]), faults=faults, seed=3)
        path = save_run(folder / f"{name}.json", anyio.run(runner.run), ["suite.yaml"])
        # The calendar is not part of what is made the same in every run.
        path.write_text(re.sub(r'"savedAt": "[^"]+"', '"savedAt": "2026-11-21T10:00:00+00:00"', path.read_text()))


async def make_rows(database: Path) -> dict[str, Any]:
    """Fill a database with definitions and deliveries; return what the HTTP API shows of the definitions."""
    shown: dict[str, Any] = {"definitions": [], "dryRuns": [], "keys": [], "log": []}
    async with SqlStore(f"sqlite:///{database}") as store:
        async with Registry(store, files=[HERE / "by_8ffe382" / "definitions"]) as registry:
            for body in BODIES:
                made = await registry.create(body, actor="ann")
                shown["definitions"].append(made)
            await registry.set_enabled("disabled", False, tenant_id="acme", actor="ann")
            await registry.set_enabled("switched", False, tenant_id="", actor="ann")
            for id_, sample in SAMPLES:
                tried = await registry.dry_run(id_, sample, tenant_id="acme")
                shown["dryRuns"].append(msgspec.structs.replace(tried, duration_ms=0.0))
        shown["keys"].append(
            await KeyStore(store).create(name="ci", tenant_id="acme", scopes=["hooks:read"], actor="ann")
        )
        async with ExecutionLog(store) as log:
            await refuse_and_rewrite()
            await log.flush()
            shown["log"] = (await log.logs("acme")).items
        url = "https://ledger.example/in"
        hook = Hook(id="ledger", type=OnComplete, webhook={"url": url, "body": {"team": "risk"}})
        agent = Agent(id="sender", model=ScriptedModel([bank.turn("sent")]))
        await exec_agent(agent, "Send.", hooks=[hook], operation_id="op_sent", tenant_id="acme", store=store)
    return shown


def make_registry(folder: Path) -> None:
    """Write the rows of stored definitions and deliveries, without the tables that they are in."""
    clock.restart()
    with tempfile.TemporaryDirectory() as temporary:
        database = Path(temporary) / "rows.db"
        shown = asyncio.run(make_rows(database))
        kept = (
            *("definitions", "revisions", "deliveries", "operations", "events"),
            *("api_keys", "executions", "execution_hooks"),
        )
        with sqlite3.connect(database) as connection:
            lines = [
                line for line in connection.iterdump() if line.startswith(tuple(f'INSERT INTO "{t}"' for t in kept))
            ]
        connection.close()
    (folder / "rows.sql").write_text("\n".join(lines) + "\n")
    (folder / "api.json").write_bytes(format_json(shown))


def make_wire(folder: Path) -> None:
    """Write every kind of JSON that leaves a process."""
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_bytes(b"".join(encode(each) + b"\n" for each in samples.EVENTS_MADE))
    (folder / "records.json").write_bytes(format_json(samples.RECORDS))
    (folder / "schema.json").write_bytes(format_json(json_schema()))
    clock.restart()
    sent = anyio.run(send_events)
    body = b'{"type":"onComplete"}'
    signed = {kind: generate_key(kind) for kind in ("hmac", "ed25519")}
    signatures = {
        kind: {"key": key, "headers": sign("msg_1", clock.START_NANOS // 10**9, body, [key])}
        for kind, key in signed.items()
    }
    (folder / "signatures.json").write_bytes(format_json({"body": body.decode(), "signed": signatures}))
    bodies = {name: {"id": each.id, "payload": msgspec.json.decode(each.payload)} for name, each in sent.items()}
    (folder / "webhooks.json").write_bytes(format_json(bodies))
    clock.restart()
    with tempfile.TemporaryDirectory() as temporary:
        read = asyncio.run(run_scripts(Path(temporary)))
    (folder / "scripts.json").write_bytes(format_json(read))
    (folder / "openapi.json").write_bytes(msgspec.json.encode(without_words(asyncio.run(describe_api()))) + b"\n")
    clock.restart()
    notes = Notes()
    agent = bank.banker(bank.Bank(), [bank.PAUSING[0], bank.turn("Nothing is due.")])
    anyio.run(notes.watch, agent, PolicyHooks(notes))
    (folder / "agent_hooks.json").write_bytes(format_json(notes.contexts))


def main(folder: Path) -> None:
    """Make all files."""
    assert "DECISIONS" not in hookline.calls.__all__, f"{hookline.__file__} is not the code of 8ffe382"
    for make, part in (
        (make_states, "states"),
        (make_cassettes, "cassettes"),
        (make_evaluations, "evaluations"),
        (make_registry, "definitions"),
        (make_wire, "wire"),
    ):
        clock.restart()
        make(folder / part)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
