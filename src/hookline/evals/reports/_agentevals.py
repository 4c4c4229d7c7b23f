"""Export runs for agentevals, as lists of messages in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from hookline.calls import Message, ToolRequest
from hookline.errors import HookUsageError
from hookline.evals._canonical import canonical
from hookline.evals.matching import format_value, path_of
from hookline.evals.running import TaskResult
from hookline.evals.trajectories import RecordedOperation, Trajectory, TrajectoryStep
from hookline.runtime import OperationResult

__all__ = ["agentevals_messages"]


def agentevals_messages(
    run: OperationResult | TaskResult | RecordedOperation | Trajectory, *, paths: bool = False, prompt: str = ""
) -> list[dict[str, Any]]:
    """Convert a run to agentevals' `outputs` or `reference_outputs`: messages as in OpenAI's chat API.

    The messages of an `OperationResult` or a `TaskResult` are all there, the user's too. A recorded operation or a
    trajectory knows what the model answered and read, but not the user's prompt, which `prompt` adds. agentevals'
    `strict` mode compares messages one by one, so take both sides from the same kind of thing.

    Args:
        run: The result of a run or of a task, a recorded operation, or an expected trajectory.
        paths: Whether tools are named `toolset/tool_name`; by default only their names.
        prompt: The user's prompt, which a judge needs, for a recorded operation or a trajectory.

    Returns:
        A list that can be changed and written as JSON.

    Raises:
        HookUsageError: If an expected call has arguments that cannot be written: any at all, or an object that
            compares itself with them.
    """
    if isinstance(run, OperationResult):
        return [_message(message, paths) for message in run.messages]
    if isinstance(run, TaskResult):
        turns = run.conversation
        return [
            message
            for number, (said, steps) in enumerate(turns, start=1)
            for message in agentevals_messages(
                msgspec.structs.replace(
                    run.trajectory, steps=steps, reason=run.trajectory.reason if number == len(turns) else ""
                ),
                paths=paths,
                prompt=said,
            )
        ]
    trajectory = run if isinstance(run, Trajectory) else run.trajectory
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}] if prompt else []
    for number, step in enumerate(trajectory.steps):
        messages += _of_step(step, number, paths)
    # Only an expected trajectory may end with calls; the run of an agent ends with an answer.
    if trajectory.reason == "done" and (not trajectory.steps or trajectory.steps[-1].calls):
        messages.append({"role": "assistant", "content": trajectory.output})
    return messages


def _message(message: Message, paths: bool) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        written["tool_calls"] = [_call(call, call.tool_call_id, paths) for call in message.tool_calls]
    if message.role == "tool":
        written["tool_call_id"] = message.tool_call_id or ""
    return written


def _of_step(step: TrajectoryStep, number: int, paths: bool) -> list[dict[str, Any]]:
    if not step.calls:
        return [{"role": "assistant", "content": step.content}]
    contents = {result.tool_call_id: result.content for result in step.results}
    ids = _ids(step.calls, number)
    calls = [_call(call, name, paths) for call, name in zip(step.calls, ids, strict=True)]
    return [
        {"role": "assistant", "content": step.content, "tool_calls": calls},
        *({"role": "tool", "content": contents.get(name, ""), "tool_call_id": name} for name in ids),
    ]


def _ids(calls: Sequence[ToolRequest], number: int) -> list[str]:
    return [call.tool_call_id or f"call_{number}_{place}" for place, call in enumerate(calls)]


def _call(call: ToolRequest, name: str, paths: bool) -> dict[str, Any]:
    tool = path_of(call).removeprefix("*/") if paths else call.tool_name
    return {"id": name, "type": "function", "function": {"name": tool, "arguments": _arguments(call)}}


def _arguments(call: ToolRequest) -> str:
    args: object = call.args
    if isinstance(args, str):
        return args if _is_json(args) else json.dumps(args)
    try:
        return json.dumps(args) if isinstance(args, dict) else _refuse(call)
    except (TypeError, ValueError, RecursionError):
        return canonical(args) if call.tool_call_id else _refuse(call)


def _refuse(call: ToolRequest) -> str:
    raise HookUsageError(
        f"The arguments of {path_of(call).removeprefix('*/')} cannot be written into a message: "
        f"{format_value(call.args)}. Give plain values in an expected trajectory that is to be exported."
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
