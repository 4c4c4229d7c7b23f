"""`--fence`: a command changes a hook in operations that are running, and waits for the processes that take part."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from hookline.registry import Registry
from hookline.store import SqlStore
from tests.cli.operated import run

pytestmark = pytest.mark.anyio

DEFINITION = {"id": "stop", "name": "stop", "point": "ToolCall.guard", "handler": "deny"}
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
                ("apply", str(file), "--yes"),
            ):
                before = registry._fence.generation
                done = await asyncio.to_thread(run, "hooks", *words, "--fence", "--json", url=url)
                assert done.exit_code == 0, done.stderr
                revision = json.loads(done.stdout.splitlines()[-1])["revision"]
                assert (registry._fence.generation, registry._fence.revision) == (before + 1, revision)
            done = await asyncio.to_thread(run, "hooks", "remove", "stop", "--fence", url=url)
            assert done.exit_code == 0, done.stderr
            assert registry.hooks()[1:] == []
