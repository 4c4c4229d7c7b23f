"""The store that the how-to shows keeps what the protocol promises."""

from __future__ import annotations

import pathlib
from typing import Any

import anyio
import pytest

from hookline import Agent, Approve, ModelCall, ModelResponse, OperationStore, ScriptedModel, ToolRequest, tool
from hookline.errors import OperationBusyError, OperationFinishedError, StaleStateError
from hookline.runtime import OperationState, exec_agent, resume_agent

from .markdown import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "write-a-store.md"

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path: pathlib.Path) -> OperationStore:
    code = next(block.code for block in blocks(PAGE.read_text()) if block.marker == "file: json_store.py")
    namespace: dict[str, Any] = {"__name__": "json_store"}
    exec(compile(code, str(PAGE), "exec"), namespace)
    return namespace["JsonStore"](str(tmp_path / "operations"))


def state(version: int, operation_id: str = "op") -> OperationState:
    return OperationState(operation_id=operation_id, agent_id="a", version=version)


async def test_what_was_saved_last_is_what_is_loaded(store: OperationStore) -> None:
    await store.save(state(1), expected_version=None)
    await store.save(state(2), expected_version=1)

    assert await store.load("op") == state(2)
    assert await store.load("another") is None


@pytest.mark.parametrize("expected", [None, 1, 3])
async def test_nothing_is_written_over_a_version_that_was_not_expected(
    store: OperationStore, expected: int | None
) -> None:
    await store.save(state(1), expected_version=None)
    await store.save(state(2), expected_version=1)

    with pytest.raises(StaleStateError):
        await store.save(state((expected or 0) + 1), expected_version=expected)
    assert await store.load("op") == state(2)


async def test_of_many_writers_at_once_exactly_one_wins(store: OperationStore) -> None:
    outcomes: list[bool] = []

    async def write() -> None:
        try:
            await store.save(state(2), expected_version=1)
        except StaleStateError:
            outcomes.append(False)
        else:
            outcomes.append(True)

    await store.save(state(1), expected_version=None)
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(write)

    assert sorted(outcomes) == [False] * 19 + [True]


@pytest.mark.parametrize("operation_id", ["../up", "a/b", "..", "*", "ä ö", "a%2Fb"])
async def test_any_operation_id_is_a_name_of_its_own_inside_of_the_folder(
    store: OperationStore, operation_id: str, tmp_path: pathlib.Path
) -> None:
    await store.save(state(1, operation_id), expected_version=None)

    assert await store.load(operation_id) == state(1, operation_id)
    assert [path.name for path in tmp_path.iterdir()] == ["operations"]
    assert all(path.is_relative_to(tmp_path / "operations") for path in tmp_path.rglob("*.json"))


async def test_of_two_people_who_approve_at_once_one_is_served_and_the_tool_runs_once(store: OperationStore) -> None:
    paid: list[int] = []

    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    def answer(call: ModelCall) -> ModelResponse:
        if call.messages[-1].role == "tool":
            return ModelResponse(content="done")
        return ModelResponse(tool_calls=[ToolRequest(tool_name="pay", args={"amount": 5}, tool_call_id="p")])

    agent = Agent(id="a", model=ScriptedModel(answer), tools=[pay])
    reasons: list[str] = []

    async def approve() -> None:
        try:
            result = await resume_agent(agent, "op", [Approve("p")], store=store)
        except (OperationBusyError, OperationFinishedError):
            reasons.append("refused")
        else:
            reasons.append(result.reason)

    await exec_agent(agent, "Pay", operation_id="op", store=store)
    async with anyio.create_task_group() as group:
        group.start_soon(approve)
        group.start_soon(approve)

    assert sorted(reasons) == ["done", "refused"]
    assert paid == [5]
