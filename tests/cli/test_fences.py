"""`--fence`: a command changes a hook in operations that are running, and waits for the processes that take part."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from sqlalchemy import insert

from hookline.registry import Registry
from hookline.store import SqlStore, registry_members
from tests.cli.operated import run

pytestmark = pytest.mark.anyio

DEFINITION = {"id": "stop", "name": "stop", "point": "ToolCall.guard", "handler": "deny"}
OTHER = {**DEFINITION, "id": "other", "name": "other"}
FILE = '[[hooks]]\nid = "stop"\nname = "stop"\npoint = "ToolCall.guard"\nhandler = "deny"\npriority = 7\n'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_commands_change_hooks_with_a_fence_if_a_process_takes_part(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    file = tmp_path / "hooks.toml"
    file.write_text(FILE)
    async with SqlStore(url) as store:
        async with Registry(store) as registry:
            await registry.create(DEFINITION)
            await registry.create(OTHER)
        refused = await asyncio.to_thread(run, "hooks", "disable", "stop", "--fence", url=url)
        assert refused.exit_code != 0
        assert "lease_seconds" in refused.stderr

        async with Registry(store, lease_seconds=60) as registry:
            for words in (
                ("disable", "stop"),
                ("enable", "stop"),
                ("shadow", "stop"),
                ("enforce", "stop", "--percent", "50"),
                ("revert", "stop"),
                ("order", "ToolCall.guard", "other", "stop"),
                ("order", "ToolCall.guard", "stop", "other"),
                ("apply", str(file), "--yes"),
            ):
                before = registry._fence.generation
                done = await asyncio.to_thread(run, "hooks", *words, "--fence", "--json", url=url)
                assert done.exit_code == 0, done.stderr
                revision = max(json.loads(line)["revision"] for line in done.stdout.splitlines())
                assert (registry._fence.generation, registry._fence.revision) == (before + 1, revision)
            done = await asyncio.to_thread(run, "hooks", "remove", "stop", "--fence", url=url)
            assert done.exit_code == 0, done.stderr
            assert [each.id for each in registry.hooks()[1:]] == ["other"]  # type: ignore[union-attr]


async def test_a_fence_that_is_not_confirmed_fails_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registry.__init__, "__kwdefaults__", Registry.__init__.__kwdefaults__ | {"fence_timeout": 0.3})
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with SqlStore(url) as store:
        async with Registry(store) as registry:
            await registry.create(DEFINITION)
        async with store.writing() as connection:
            silent = {"member_id": "host-7-a", "lease_seconds": 600.0, "renewals": 0, "confirmed": -1, "started_at": 0}
            await connection.execute(insert(registry_members).values(silent))

        failed = await asyncio.to_thread(run, "hooks", "disable", "stop", "--fence", url=url)

        assert failed.exit_code == 1
        assert "host-7-a" in failed.stderr
        assert "repeat the change" in failed.stderr
        async with Registry(store) as registry:
            assert not (await registry.get("stop")).enabled


def test_hooks_are_put_into_an_order(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    file = tmp_path / "hooks.toml"
    file.write_text("".join(FILE.replace('"stop"', f'"{name}"') for name in ("a", "b", "c")))
    assert run("hooks", "apply", str(file), "--yes", url=url).exit_code == 0

    ordered = run("hooks", "order", "ToolCall.guard", "c", "a", "b", "--json", url=url)
    left_out = run("hooks", "order", "ToolCall.guard", "c", "a", url=url)

    assert [json.loads(line)["id"] for line in ordered.stdout.splitlines()] == ["c", "a", "b"]
    priorities = [json.loads(line)["priority"] for line in ordered.stdout.splitlines()]
    assert priorities == sorted(priorities)
    assert left_out.exit_code == 1
    assert "'b' stands at this point too" in left_out.stderr
