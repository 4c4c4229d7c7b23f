"""Compaction by Claude: what is known of it, and that each one that began is told to have ended."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

import msgspec

from hookline import interrupt
from hookline.adapters.claude_agent_sdk import query
from hookline.errors import RunStopped
from hookline.evals.adapter_contract._scenes import COMPACTING
from hookline.events import AfterCompact, AfterStep, BeforeCompact, OnCompactError, OnComplete

from .cli import FakeCli
from .played import Heard, play
from .stage import options_of

pytestmark = pytest.mark.anyio


class Stuck(FakeCli):
    """Begins to compact, and says no more of it."""

    def __init__(self, *given: Any, last: dict[str, Any] | None = None) -> None:
        super().__init__(*given)
        self._last = last

    async def _compact(self, scene: Any) -> None:
        await self._hook("PreCompact", None, {"trigger": "auto", "custom_instructions": None})
        if self._last is not None:
            self._system("status", **self._last)
        else:
            interrupt("claude-stuck")


async def test_what_was_heard_of_the_conversation_is_counted() -> None:
    heard = Heard()

    await play(COMPACTING, heard.hooks)

    (before,), (after,) = heard.of(BeforeCompact), heard.of(AfterCompact)
    assert (before.message_count, before.token_count) == (3, 10)
    assert (after.messages_before, after.messages_after, after.summary) == (3, 1, "summary")


async def test_a_compaction_that_only_messages_tell_of_has_no_summary() -> None:
    heard = Heard()

    await play(COMPACTING, heard.hooks, cli=FakeCli(COMPACTING, summary=None))

    assert [event.summary for event in heard.of(AfterCompact)] == [""]
    assert heard.of(OnCompactError) == []


async def test_a_compaction_that_fails_says_why_if_claude_does() -> None:
    heard, why = Heard(), {"status": None, "compact_result": "failed", "compact_error": "too long"}

    await play(COMPACTING, heard.hooks, cli=Stuck(COMPACTING, last=why))

    assert [event.error for event in heard.of(OnCompactError)] == ["too long"]
    assert heard.of(AfterCompact) == []


async def test_a_compaction_that_fails_without_a_word_is_told_in_its_step() -> None:
    heard = Heard()

    await play(msgspec.structs.replace(COMPACTING, summary_fails=True), heard.hooks)

    assert [event.error for event in heard.of(OnCompactError)] == ["Claude went on without a summary."]
    assert len(heard.of(AfterStep)) == 2


async def test_a_compaction_in_which_the_run_ends_has_failed() -> None:
    heard = Heard()

    options, cli = options_of(COMPACTING), Stuck(COMPACTING)
    given = {"options": options, "transport": cli, "operation_id": "claude-stuck"}
    with pytest.raises(RunStopped, match="interrupted"):
        async for _ in query(prompt="go", hooks=[heard.hooks], **given):
            ...

    assert [event.error for event in heard.of(OnCompactError)] == [
        "The run ended before the conversation was compacted."
    ]
    assert [event.reason for event in heard.of(OnComplete)] == ["interrupted"]
