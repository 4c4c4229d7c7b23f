"""Where spans are in traces of OpenAI Agents: ours, those of a model's library and of tools, and what is left to others."""

from __future__ import annotations

import pytest

from tests.adapters.traces import BUNDLES, SCENES, Library, check_every_subset, play_of, replaced
from tests.tables import for_each

from .stage import OpenAIStage, Script

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@for_each("bundles", BUNDLES)
@for_each("scene", SCENES)
async def test_spans_that_are_left_to_others_leave_the_tree_as_it_was(scene: str, bundles: str) -> None:
    library = Library()

    with replaced(Script, "get_response", library.around(Script.get_response)):
        await check_every_subset(play_of(OpenAIStage()), library, bundles, SCENES[scene])
