"""Where spans are in traces of Pydantic AI: ours, those of a model's library and of tools, and what is left to others."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent, InstrumentationSettings

from tests.adapters.traces import (
    BUNDLES,
    SCENES,
    Library,
    check_beside,
    check_every_subset,
    play_of,
    replaced,
)
from tests.tables import for_each

from .stage import PydanticAIStage, Scripted

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@for_each("bundles", BUNDLES)
@for_each("scene", SCENES)
async def test_spans_that_are_left_to_others_leave_the_tree_as_it_was(scene: str, bundles: str) -> None:
    library = Library()

    with replaced(Scripted, "answer", library.around(Scripted.answer)):
        await check_every_subset(play_of(PydanticAIStage()), library, bundles, SCENES[scene])


@pytest.mark.parametrize("scene", SCENES)
async def test_beside_the_frameworks_own_telemetry_each_tells_its_part_once(scene: str) -> None:
    library = Library()

    Agent.instrument_all(InstrumentationSettings(tracer_provider=library.provider))
    try:
        await check_beside(play_of(PydanticAIStage()), library, SCENES[scene], inside=())
    finally:
        Agent.instrument_all(False)
