"""Runs of the OpenAI Agents SDK whose output has a type, and hooks that change it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

import pytest
from agents import Agent, AgentOutputSchema, handoff
from pydantic import BaseModel

from hookline import AgentCall, AgentResult, Hooks, OnComplete, Respond
from hookline.adapters.openai_agents import HooklineRunner
from hookline.errors import HookUsageError
from tests.tables import for_each

from .stage import QUIET, Script
from .test_openai_agents import Recorder, calls, says

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Found(BaseModel):
    price: int


@dataclasses.dataclass
class Place:
    city: str


CASES = [
    (Found, '{"price": 3}', '{"price":3}', '{"price":4}', Found(price=4)),
    (AgentOutputSchema(Found, strict_json_schema=False), '{"price": 3}', '{"price":3}', '{"price":4}', Found(price=4)),
    (Place, '{"response": {"city": "Oslo"}}', '{"city":"Oslo"}', '{"city":"Rome"}', Place("Rome")),
    (list[int], '{"response": [3]}', "[3]", "[4]", [4]),
    (list[int], '{"response": [3]}', "[3]", '{"response": [4]}', [4]),
    (Literal["no", "yes"], '{"response": "no"}', "no", "yes", "yes"),
    (str, "3", "3", "4", "4"),
    (None, "3", "3", "4", "4"),
]


@for_each(("kind", "said", "shown", "changed", "expected"), CASES)
@for_each("streams", [False, True])
async def test_an_output_that_a_hook_changes_keeps_its_type(
    kind: Any, said: str, shown: str, changed: str, expected: object, *, streams: bool
) -> None:
    hooks, seen = Hooks("changes"), list[str]()

    @hooks.after(AgentCall)
    def change(call: AgentCall, result: AgentResult) -> AgentResult:
        seen.append(result.output)
        return AgentResult(output=changed)

    agent, runner = Agent(name="finder", model=Script([says(said)]), output_type=kind), HooklineRunner([hooks])
    if not streams:
        result: Any = await runner.run(agent, "go", run_config=QUIET)
    else:
        async with runner.stream(agent, "go", run_config=QUIET) as result:
            async for _ in result.stream_events():
                pass

    assert (seen, result.final_output) == ([shown], expected)


async def test_an_output_that_no_hook_changes_is_what_the_sdk_made() -> None:
    hooks, recorder = Hooks("looks"), Recorder()
    hooks.after(AgentCall)(lambda call, result: None)
    agent = Agent(name="finder", model=Script([says('{"price": 3}')]), output_type=Found)

    result = await HooklineRunner([hooks, recorder.hooks]).run(agent, "go", run_config=QUIET)

    assert result.final_output == Found(price=3)
    assert [json.loads(event.last_assistant_content) for event in recorder.of(OnComplete)] == [{"price": 3}]


async def test_a_hook_that_answers_for_a_run_gives_its_type() -> None:
    hooks = Hooks("answers")
    hooks.before(AgentCall)(lambda call: Respond('{"price":4}'))
    agent = Agent(name="finder", model=Script([]), output_type=Found)

    assert (await HooklineRunner([hooks]).run(agent, "go", run_config=QUIET)).final_output == Found(price=4)


@pytest.mark.parametrize("answers", [False, True])
async def test_an_output_that_does_not_fit_its_type_is_an_error_of_the_hook(*, answers: bool) -> None:
    hooks, recorder = Hooks("wrong"), Recorder()
    if answers:
        hooks.before(AgentCall)(lambda call: Respond("cheap"))
    else:
        hooks.after(AgentCall)(lambda call, result: AgentResult(output="cheap"))
    agent = Agent(name="finder", model=Script([says('{"price": 3}')]), output_type=Found)

    with pytest.raises(HookUsageError, match="output type is Found"):
        await HooklineRunner([hooks, recorder.hooks]).run(agent, "go", run_config=QUIET)

    assert [(event.reason, event.error_type) for event in recorder.of(OnComplete)] == [("error", "HookUsageError")]


async def test_the_type_is_that_of_the_agent_that_took_over() -> None:
    hooks = Hooks("changes")
    hooks.after(AgentCall)(lambda call, result: AgentResult(output='{"price":4}'))
    finder = Agent(name="finder", model=Script([says('{"price": 3}')]), output_type=Found)
    agent = Agent(name="boss", model=Script([calls("transfer_to_finder")]), handoffs=[handoff(finder)])

    assert (await HooklineRunner([hooks]).run(agent, "go", run_config=QUIET)).final_output == Found(price=4)
