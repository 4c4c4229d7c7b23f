"""Policies of AGENT-HOOKS judge text while it is written: the vectors of §12.1 that the kit's own runner cannot drive.

The kit's runner does not pass on the chunks of a vector's stream, nor does it look at what was released and stored. So
these tests give the chunks to the model themselves, let the kit assert all it can, and assert the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from agent_hooks import Verdict
from agent_hooks.ctk import Capability, RunOutcome, RunRecord, load_vectors, run_vectors

from hookline import Agent, InMemoryStore, Message, ModelCall, ModelResponse, TextParts, TransientModelError, exec_agent
from hookline.adapters.agent_hooks import CtkHarness, PolicyHooks
from hookline.errors import HookDefinitionError
from hookline.runtime import ModelRetry

from .policies import transform

VECTORS = {vector["id"]: vector for vector in load_vectors() if vector.get("part") == "streaming/incremental"}


class StreamedModel:
    """A model that streams the chunks of a vector.

    Args:
        answer: The answer as the vector scripts it.
    """

    name = provider = "ctk"

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    async def respond(self, call: ModelCall) -> ModelResponse:
        raise AssertionError("the host did not stream")

    async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        for chunk in self._answer["stream"]:
            yield chunk
        if self._answer.get("stream_truncated"):
            raise TransientModelError("the connection was lost")
        yield ModelResponse(content=self._answer["content"], finish_reason=self._answer["finish_reason"])


class StreamingHarness(CtkHarness):
    """Drives one vector with its stream.

    Args:
        vector: The vector.
    """

    capabilities = CtkHarness.capabilities | {Capability.INCREMENTAL_OUTPUT}

    def __init__(self, vector: dict[str, Any]) -> None:
        super().__init__()
        self._answer = vector["scenario"]["model_script"][0]["respond"]
        self.released = ""
        self.persisted = ""

    def setup(self, scenario: Any, interceptors: Any, *rest: Any) -> None:
        super().setup(scenario, interceptors, *rest)
        # The bound at which each chunk is a part of its own, but for the last one, which the end of the stream covers.
        bound = min(map(len, self._answer["stream"][:-1]))
        self._policies = PolicyHooks(*interceptors, parts=TextParts(max_chars=bound))

    async def run(self) -> RunRecord:
        assert self._scenario is not None
        assert self._policies is not None
        pieces, store = list[str](), InMemoryStore()
        agent = Agent(id="ctk", model=StreamedModel(self._answer), retry=ModelRetry(first_wait=0.0))
        prompt = [Message(role="user", content=self._scenario.input["content"])]
        result = await exec_agent(
            agent, prompt, hooks=[self._policies], on_token=pieces.append, store=store, operation_id="ctk"
        )
        self.released, self.persisted = "".join(pieces), repr(await store.load("ctk"))
        outcome = RunOutcome.BLOCKED if result.denied is not None else RunOutcome.COMPLETED
        records = self._policies.records
        return RunRecord(
            outcome=outcome if result.error is None else RunOutcome.ERROR,
            final_output=result.output if outcome is RunOutcome.COMPLETED else None,
            identities=[(record.input_identity, record.enforced_identity) for record in records],
            records=[record.to_wire() for record in records],
        )


def test_the_kit_has_the_four_vectors() -> None:
    assert sorted(VECTORS) == ["AH-CTK-110", "AH-CTK-111", "AH-CTK-112", "AH-CTK-113"]


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_a_vector_of_incremental_output_passes(name: str) -> None:
    vector = VECTORS[name]
    harness = StreamingHarness(vector)

    [result] = run_vectors(lambda: harness, [vector])

    assert (result.status, result.failures) == ("pass", [])
    assert harness.released == vector["expect"]["released_output"]
    for text in vector["expect"].get("persisted_must_not_contain", []):
        assert text not in harness.persisted


@pytest.mark.parametrize("name", ["AH-CTK-111", "AH-CTK-112"])
def test_the_kit_would_notice_a_host_that_judges_no_parts(name: str) -> None:
    class Whole(StreamingHarness):
        def setup(self, scenario: Any, interceptors: Any, *rest: Any) -> None:
            super().setup(scenario, interceptors, *rest)
            self._policies = PolicyHooks(*interceptors)

    [result] = run_vectors(lambda: Whole(VECTORS[name]), [VECTORS[name]])

    assert result.status == "fail"


@pytest.mark.anyio
async def test_a_transform_of_a_part_is_what_readers_get() -> None:
    class Masking:
        def intercept(self, context: dict[str, Any]) -> Verdict:
            target = context["target"]
            if context["interception_point"] != "post_model_call" or "4711" not in target["content"]:
                return Verdict.allow()
            return transform("$target.content", target["content"].replace("4711", "****"))

    answer = {"stream": ["it is 47", "11, really", " so"], "content": "it is 4711, really so", "finish_reason": "stop"}
    got: list[str] = []

    hooks = [PolicyHooks(Masking(), parts=TextParts(hold=3, max_chars=1))]
    result = await exec_agent(Agent(id="a", model=StreamedModel(answer)), "hi", hooks=hooks, on_token=got.append)

    assert "".join(got) == result.output == "it is ****, really so"
    assert len(got) > 1


def test_parts_and_guidance_exclude_each_other() -> None:
    with pytest.raises(HookDefinitionError, match="cannot be discarded"):
        PolicyHooks(parts=TextParts(), guide=True)
