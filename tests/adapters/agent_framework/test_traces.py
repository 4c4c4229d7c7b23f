"""Where spans are in traces of Agent Framework: ours, those of a model's library and of tools, and what is left to others."""

from __future__ import annotations

import pytest

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
from tests.tables import for_each

from . import stage

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@for_each("bundles", BUNDLES)
@for_each("scene", SCENES)
async def test_spans_that_are_left_to_others_leave_the_tree_as_it_was(scene: str, bundles: str) -> None:
    library = Library()

    with replaced(stage, "suspend", library.around(stage.suspend)):
        await check_every_subset(play_of(stage.AgentFrameworkStage()), library, bundles, SCENES[scene])


@pytest.mark.parametrize("scene", SCENES)
async def test_beside_the_frameworks_own_telemetry_each_tells_its_part_once(scene: str) -> None:
    library = Library()

    with global_provider(library.provider):
        await check_beside(
            play_of(stage.AgentFrameworkStage()), library, SCENES[scene], inside={"chat", "execute_tool"}
        )
