"""Where spans are in traces of Google ADK: ours, those of a model's library and of tools, and what is left to others."""

from __future__ import annotations

import pytest
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.telemetry import node_tracing, tracing

from hookline import ModelResponse
from hookline.adapters.google_adk import hooked
from hookline.evals.adapter_contract import Scene
from hookline.otel import TracingHooks
from tests.adapters.traces import (
    BUNDLES,
    SCENES,
    Library,
    check_beside,
    check_every_subset,
    play_of,
    replaced,
)

from . import stage

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("bundles", BUNDLES)
@pytest.mark.parametrize("scene", SCENES)
async def test_spans_that_are_left_to_others_leave_the_tree_as_it_was(scene: str, bundles: str) -> None:
    library = Library()

    with replaced(stage, "suspend", library.around(stage.suspend)):
        await check_every_subset(play_of(stage.GoogleAdkStage()), library, bundles, SCENES[scene])


@pytest.mark.parametrize("scene", SCENES)
async def test_beside_the_frameworks_own_telemetry_each_tells_its_part_once(scene: str) -> None:
    library = Library()

    theirs = library.provider.get_tracer("gcp.vertex.agent")
    with replaced(tracing, "tracer", theirs), replaced(node_tracing, "tracer", theirs):
        await check_beside(play_of(stage.GoogleAdkStage()), library, SCENES[scene], inside={"generate_content"})


@pytest.mark.parametrize("mode", [StreamingMode.NONE, StreamingMode.SSE])
async def test_the_span_of_a_model_call_says_when_a_streamed_answer_began_to_arrive(mode: StreamingMode) -> None:
    library = Library()
    runner = stage.runner_of(Scene(turns=[ModelResponse(content="word by word")]), [])

    events = hooked(runner, hooks=[TracingHooks(library.provider)]).run_async(
        user_id="ann", session_id="s", new_message=stage.user("go"), run_config=RunConfig(streaming_mode=mode)
    )
    async for _ in events:
        pass

    (chat,) = [span for span in library.kept.get_finished_spans() if span.name.startswith("chat")]
    attributes = dict(chat.attributes or {})
    streamed = mode is StreamingMode.SSE
    assert attributes.get("gen_ai.request.stream", False) is streamed
    assert ("gen_ai.response.time_to_first_chunk" in attributes) is streamed
