"""Where spans are in traces of own runs: ours, those of a model's library and of tools, and what is left to others."""

from __future__ import annotations

import pytest

from tests.adapters.traces import BUNDLES, SCENES, Library, check_every_subset, play_of, replaced
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
        await check_every_subset(play_of(stage.HooklineStage()), library, bundles, SCENES[scene])
