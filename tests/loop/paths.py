"""The ways to write a loop of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from hookline.evals.adapter_contract import Ran, Scene
from hookline.evals.verdicts import Path
from hookline.hooks import AnyHook
from hookline.loop import DRIVES
from hookline.runtime import Approve, Reject
from tests.adapters.provider import Provider

from .dialects import CHAT, MESSAGES, RESPONSES, Dialect
from .stage import LoopStage, settled

__all__ = ["PATHS"]


class StreamingStage(LoopStage):
    """Streams each answer of the model."""

    async def ask(self, run: Any, request: dict[str, Any]) -> Any:
        stream = await settled(self.dialect.method(run.client)(**request, stream=True))
        if hasattr(stream, "__aiter__"):
            async for _ in stream:
                pass
        else:
            for _ in stream:
                pass
        return run.response


class ServedStage:
    """Plays each scene with a provider and a client of its own.

    Args:
        dialect: The protocol.
        sync: Whether the client is sync.
        streamed: Whether the answers are streamed.
    """

    capabilities = DRIVES
    toolset = "local"

    def __init__(self, dialect: Dialect, *, sync: bool = False, streamed: bool = False) -> None:
        self.dialect, self.sync, self.kind = dialect, sync, StreamingStage if streamed else LoopStage

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        async with AsyncExitStack() as stack:
            provider = stack.enter_context(Provider())
            stage = self.kind(self.dialect, provider, sync=self.sync)
            if self.sync:
                stack.callback(stage.client.close)
            else:
                stack.push_async_callback(stage.client.close)
            ran = await stage.play(scene, hooks, **attach)
            if ran.resume is None:
                return ran
            open_parts, resume_run = stack.pop_all(), ran.resume

        async def resume(decisions: Sequence[Approve | Reject], hooks: Iterable[AnyHook]) -> Ran:
            async with open_parts:
                return await resume_run(decisions, hooks)

        return msgspec.structs.replace(ran, resume=resume)

    async def play_many(self, scene: Scene, bundles: Sequence[Iterable[AnyHook]]) -> Sequence[Ran]:
        return [await self.play(scene, hooks) for hooks in bundles]


PATHS = [
    Path("OpenAI chat", ServedStage(CHAT)),
    Path("OpenAI chat, sync", ServedStage(CHAT, sync=True)),
    Path("OpenAI chat, streamed", ServedStage(CHAT, streamed=True)),
    Path("OpenAI Responses", ServedStage(RESPONSES)),
    Path("OpenAI Responses, sync and streamed", ServedStage(RESPONSES, sync=True, streamed=True)),
    Path("Anthropic", ServedStage(MESSAGES)),
    Path("Anthropic, sync", ServedStage(MESSAGES, sync=True)),
    Path("Anthropic, streamed", ServedStage(MESSAGES, streamed=True)),
    Path("sub-agent", ServedStage(CHAT), depth=1),
    Path("sub-agent of a sub-agent", ServedStage(CHAT), depth=2),
    Path("sub-agent, streamed", ServedStage(MESSAGES, streamed=True), depth=1),
]
