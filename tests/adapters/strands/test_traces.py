"""Where spans are in traces of Strands: ours, those of a model's library and of tools, and what is left to others."""

from __future__ import annotations

from typing import Any

import pytest
from strands.telemetry import tracer

from hookline.otel import TracingHooks
from tests.adapters.traces import (
    BUNDLES,
    SCENES,
    Library,
    check_beside,
    check_every_subset,
    global_provider,
    play_of,
    replaced,
)

from . import stage

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("bundles", BUNDLES)
@pytest.mark.parametrize("scene", SCENES)
async def test_spans_that_are_left_to_others_leave_the_tree_as_it_was(scene: str, bundles: str) -> None:
    library = Library()

    with replaced(stage, "suspend", library.around(stage.suspend)):
        await check_every_subset(play_of(stage.StrandsStage()), library, bundles, SCENES[scene])


@pytest.mark.parametrize("scene", SCENES)
async def test_beside_the_frameworks_own_telemetry_each_tells_its_part_once(scene: str) -> None:
    library = Library()

    with global_provider(library.provider), replaced(tracer, "_tracer_instance", None):
        await check_beside(play_of(stage.StrandsStage()), library, SCENES[scene], inside=())


async def test_the_span_of_a_model_call_says_when_its_answer_began_to_arrive() -> None:
    library = Library()

    await play_of(stage.StrandsStage())(SCENES["plain"], [TracingHooks(library.provider)])

    chats = [span for span in library.kept.get_finished_spans() if span.name.startswith("chat")]
    assert chats
    for chat in chats:
        attributes = dict(chat.attributes or {})
        assert attributes["gen_ai.request.stream"] is True
        assert chat.start_time is not None
        assert chat.end_time is not None
        first: Any = attributes["gen_ai.response.time_to_first_chunk"]
        assert 0 < first <= (chat.end_time - chat.start_time) / 1e9
