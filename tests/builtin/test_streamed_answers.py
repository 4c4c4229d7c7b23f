"""Ready-made hooks that judge an answer while the model writes it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    Agent,
    Hooks,
    ModelCall,
    ModelResponse,
    OperationResult,
    ScriptedModel,
    TextParts,
    ToolRequest,
    Usage,
    exec_agent,
    tool,
)
from hookline.budgets import InMemoryBudgets
from hookline.builtin import budget, deny_phrases, redact
from hookline.errors import HookDefinitionError

pytestmark = pytest.mark.anyio


class Streamed:
    """A model that streams its answer in given pieces."""

    name = provider = "streamed"

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    async def respond(self, call: ModelCall) -> ModelResponse:
        return ModelResponse(content="".join(self.pieces))

    async def stream(self, call: ModelCall) -> Any:
        for piece in self.pieces:
            yield piece
        yield ModelResponse(content="".join(self.pieces))


async def read(pieces: list[str], hooks: Hooks) -> tuple[list[str], OperationResult]:
    got: list[str] = []
    result = await exec_agent(Agent(id="a", model=Streamed(pieces)), "hi", hooks=[hooks], on_token=got.append)
    return got, result


async def test_no_character_of_a_banned_phrase_is_given() -> None:
    got, result = await read(["We launch Project", " ZE", "US in May."], deny_phrases(["project zeus"], max_chars=1))

    assert "".join(got) == "We launch"
    assert result.denied is not None
    assert result.denied.reason == "the answer contains the banned phrase 'Project ZEUS'"


async def test_an_answer_without_the_phrase_is_given_whole() -> None:
    got, result = await read(["We launch ", "nothing ", "in May."], deny_phrases(["project zeus"], max_chars=1))

    assert "".join(got) == result.output == "We launch nothing in May."
    assert len(got) > 1


async def test_case_can_count() -> None:
    _, result = await read(["project zeus"], deny_phrases(["ZEUS"], ignore_case=False))

    assert result.denied is None


async def test_the_whole_answer_is_judged_where_nobody_reads() -> None:
    result = await exec_agent(Agent(id="a", model=Streamed(["ze", "us"])), "hi", hooks=[deny_phrases(["zeus"])])

    assert result.denied is not None


@pytest.mark.parametrize("phrases", [[], [""], "zeus", [7], None])
def test_phrases_that_cannot_be_searched_for_are_refused(phrases: Any) -> None:
    with pytest.raises(HookDefinitionError):
        deny_phrases(phrases)


async def test_secrets_are_redacted_while_the_answer_is_written() -> None:
    hooks = redact(["email"], parts=TextParts(hold=30, max_chars=1))

    got, result = await read(["Please write to ada@ex", "ample.org as soon as you ", "can, she waits for you."], hooks)

    assert "".join(got) == result.output == "Please write to [redacted] as soon as you can, she waits for you."
    assert len(got) > 1


@given(
    pieces=st.lists(st.sampled_from(["ze", "us", "zeus", "Z", "e", " ", "a b", "uszeu"]), max_size=12),
    most=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_law_readers_get_no_character_of_a_phrase(pieces: list[str], most: int) -> None:
    got, result = anyio.run(read, pieces, deny_phrases(["zeus", "zz"], max_chars=most))

    text = "".join(pieces)
    found = re.search("zeus|zz", text, re.IGNORECASE)
    assert text[: found.start() if found else len(text)].startswith("".join(got))
    assert (result.denied is not None) == (found is not None)
    assert found or "".join(got) == text


class Written:
    """A model that writes these pieces, and says at the end what they took."""

    provider = "written"

    def __init__(self, *pieces: str, name: str = "written") -> None:
        self.pieces, self.name = pieces, name

    async def respond(self, call: ModelCall) -> ModelResponse:
        return ModelResponse(content="".join(self.pieces), usage=Usage(input_tokens=20, output_tokens=5))

    async def stream(self, call: ModelCall) -> AsyncIterator[str | ModelResponse]:
        for piece in self.pieces:
            yield piece
        yield await self.respond(call)


@pytest.mark.parametrize("text", ["We work on Zeus.", "We work in Rome."])
async def test_a_budget_across_runs_holds_no_text_and_counts_an_answer_that_was_cut_with_what_it_reserved(
    text: str,
) -> None:
    store, got = InMemoryBudgets(), list[str]()
    spending = budget(tokens=1000, reserve_tokens=300, per="user", store=store)
    agent = Agent(id="a", model=Written(*re.findall(r"\S+\s*", text)))
    hooks = [deny_phrases(["zeus"], max_chars=1), spending]

    result = await exec_agent(agent, "go", hooks=hooks, on_token=got.append)

    [figures] = await store.budgets()
    assert figures.used.tokens == (300 if "Zeus" in text else 25)
    assert figures.reserved.tokens == 0
    assert len(got) > 1
    assert (result.denied is not None) is ("Zeus" in text)


async def test_a_budget_of_one_run_holds_no_text() -> None:
    got = list[str]()

    await exec_agent(
        Agent(id="a", model=Written("We ", "work ", "in ", "Rome.")),
        "go",
        hooks=[deny_phrases(["zeus"], max_chars=1), budget(tokens=1000)],
        on_token=got.append,
    )

    assert "".join(got) == "We work in Rome."
    assert len(got) > 1


async def reason_after_a_cut_answer(model: str, **limits: Any) -> str:
    """Run an agent whose helper's answer is cut; return why its next model call is denied, or an empty text."""
    spending = budget(**limits)
    helper = Agent(id="helper", model=Written("We ", "work ", "on " * 400, "Zeus.", "And ", "more.", name=model))

    @tool
    async def ask() -> str:
        """Ask the helper."""
        hooks = [deny_phrases(["zeus"], max_chars=1), spending]
        cut = await exec_agent(helper, "go", hooks=hooks, parent_operation_id="op", on_token=lambda piece: None)
        return cut.reason

    agent = Agent(id="a", model=ScriptedModel([ToolRequest("ask"), "Done."]), tools=[ask])
    result = await exec_agent(agent, "go", hooks=[spending], operation_id="op")
    assert [message.content for message in result.messages if message.role == "tool"] == ["interrupted"]
    return result.denied.reason if result.denied is not None else ""


async def test_a_budget_of_one_run_counts_the_text_of_a_cut_answer_whose_tokens_are_not_reported() -> None:
    spent = await reason_after_a_cut_answer("written", tokens=300)

    found = re.fullmatch(r"the budget of 300 tokens is used up: (\d+) spent", spent)
    assert found is not None
    assert 300 < int(found[1]) < 400  # 1,213 characters, and the prompt
    assert await reason_after_a_cut_answer("written", tokens=400) == ""


async def test_a_budget_of_one_run_counts_the_price_of_a_cut_answer_if_it_is_known() -> None:
    assert "is used up" in await reason_after_a_cut_answer("gpt-5", cost_usd=0.002)  # about 300 tokens at $10 a million
    assert await reason_after_a_cut_answer("gpt-5", cost_usd=0.02) == ""
    assert await reason_after_a_cut_answer("unknown", cost_usd=0.000001) == ""
