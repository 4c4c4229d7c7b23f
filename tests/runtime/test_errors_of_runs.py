"""A run that ends in error says so: once in the log, and to a caller who asks."""

from __future__ import annotations

import logging
import pickle

import pytest

from hookline import (
    Agent,
    AgentSession,
    Deny,
    Hooks,
    InMemoryStore,
    ModelCall,
    OperationResult,
    ScriptedModel,
    exec_agent,
)
from hookline.errors import RunFailedError
from hookline.runtime import OperationState, interrupt

from .scenes import agent_of, ask, call, calls, says

pytestmark = pytest.mark.anyio


class Unauthorized(Exception):
    """What a provider says to a wrong key."""


def failing(id: str = "failing") -> Agent:  # noqa: A002
    return agent_of(Unauthorized("401 bad key"), id=id)


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_run_that_ends_in_error_is_logged_once_with_its_exception(caplog: pytest.LogCaptureFixture) -> None:
    result = await exec_agent(failing(), "hi", operation_id="op")

    (record,) = errors(caplog)
    assert record.name == "hookline"
    assert record.getMessage() == "Operation op of agent 'failing' ended with an error: Unauthorized: 401 bad key"
    assert record.exc_info is not None
    assert record.exc_info[1] is result.error


async def test_a_run_on_a_store_that_cannot_keep_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(InMemoryStore):
        async def save(self, state: OperationState, *, expected_version: int | None) -> None:
            raise OSError("no disk")

    result = await exec_agent(agent_of(says()), "hi", store=Broken())

    assert result.reason == "error"
    assert len(errors(caplog)) == 1


async def test_each_operation_logs_its_own_error(caplog: pytest.LogCaptureFixture) -> None:
    parent = agent_of(calls(ask("child")), says("sorry"), id="parent", sub_agents=[failing("child")])

    result = await exec_agent(parent, "hi")

    assert result.reason == "done"
    assert ["'child'" in record.getMessage() for record in errors(caplog)] == [True]


async def test_a_task_of_a_session_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with AgentSession(failing()) as session:
        await session.run("hi")

    assert len(errors(caplog)) == 1


async def test_runs_that_end_otherwise_log_no_error(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks("deny")
    hooks.guard(ModelCall)(lambda call: Deny("not today"))
    stopped = Hooks("stop")
    stopped.before(ModelCall)(lambda call: interrupt(call.operation_id) and None)

    reasons = [
        (await exec_agent(agent_of(says()), "hi")).reason,
        (await exec_agent(agent_of(says()), "hi", hooks=[hooks])).reason,
        (await exec_agent(agent_of(says()), "hi", hooks=[stopped])).reason,
        (
            await exec_agent(
                agent_of(calls(call("no_such_tool")), says()),
                "hi",
            )
        ).reason,
    ]

    assert reasons == ["done", "interrupted", "interrupted", "done"]
    assert errors(caplog) == []


async def test_raise_for_error_raises_what_the_run_raised() -> None:
    result = await exec_agent(failing(), "hi")

    with pytest.raises(Unauthorized, match="bad key") as raised:
        result.raise_for_error()
    assert raised.value is result.error


async def test_raise_for_error_returns_every_other_result() -> None:
    hooks = Hooks("deny")
    hooks.guard(ModelCall)(lambda call: Deny("not today"))

    done = await exec_agent(agent_of(says("42")), "hi")
    denied = await exec_agent(agent_of(says("42")), "hi", hooks=[hooks])

    assert done.raise_for_error().output == "42"
    assert denied.raise_for_error() is denied


async def test_an_error_that_is_not_here_is_raised_by_name() -> None:
    result = failed_result(RunFailedError("Unauthorized", "401 bad key"))

    with pytest.raises(RunFailedError, match="Unauthorized: 401 bad key"):
        result.raise_for_error()
    with pytest.raises(RunFailedError, match="another process"):
        failed_result(None).raise_for_error()


def failed_result(error: BaseException | None) -> OperationResult:
    done = says().usage
    return OperationResult(
        operation_id="op", reason="error", output="", messages=[], steps=1, usage=done, tool_calls=0, error=error
    )


def test_the_error_of_a_run_elsewhere_pickles() -> None:
    again = pickle.loads(pickle.dumps(RunFailedError("Unauthorized", "401 bad key")))

    assert (again.error_type, again.message) == ("Unauthorized", "401 bad key")


async def test_a_script_that_is_over_fails_loudly(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(id="once", model=ScriptedModel([says("first")]))
    await exec_agent(agent, "hi")

    result = await exec_agent(agent, "again")

    assert result.output == ""
    assert "ended with an error" in caplog.text
    with pytest.raises(Exception, match="script"):
        result.raise_for_error()
