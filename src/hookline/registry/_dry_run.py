"""Trying a hook out: on a sample, alone, once, and without a trace.

The hook is made anew and called by itself. No chain and no dispatcher is involved, so no record of it reaches a log, a
statistic or whoever watches hooks; and what the running hook has counted stays as it is.
"""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Literal, get_args, get_origin

import msgspec

from hookline._checks import check_timeout, tool_matcher
from hookline.calls import CALLS, Ask, Call, Continue, Deny, Respond
from hookline.errors import HookDefinitionError, HookUsageError, message_of
from hookline.events import EventFields
from hookline.hooks import Hook, Hooks
from hookline.interceptors import check_changed, check_fields, check_result, result_of
from hookline.registry._build import Builder
from hookline.registry._definition import HookDefinition, Point, point_of
from hookline.registry._errors import DefinitionError
from hookline.webhooks import payload_of

__all__ = ["DryRun", "Sample", "dry_run", "sample_of"]

WIRE_NAMES = {"apiName": "tool_name", "api_name": "tool_name", "identifier": "toolset"}
"""Fields whose JSON name is another word."""

EMPTY: dict[object, Any] = {str: "", int: 0, float: 0.0, bool: False, bytes: b"", dict: {}, list: []}
TEXTS = {
    "operation_id": "op_sample",
    "tool_name": "sample",
    "tool_call_id": "call_sample",
    "method": "GET",
    "path": "/",
}
"""What stands for a text that is not given, where an empty one would be misleading."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook is tried out on.

    Attributes:
        subject: The event or the call.
        result: The result of the call.
    """

    subject: Any
    result: Any = None


def sample_of(point: Point, given: object, tenant_id: str) -> Sample:
    """The sample of what was given; fields that are missing are filled in.

    Args:
        point: Where the hook stands.
        given: An event or a call, or a mapping with some of its fields, and `result` with some of the result's.
        tenant_id: Whose it is, unless it says so.

    Raises:
        DefinitionError: If it is no sample for that point.
    """
    kind = point.event or point.call
    assert kind is not None
    if isinstance(given, EventFields | Call):
        if not isinstance(given, kind):
            raise _bad("$.sample", f"{point.name} takes a {kind.__name__}; got a {type(given).__name__}")
        return Sample(subject=given, result=_filled(CALLS[type(given)], {}) if isinstance(given, Call) else None)
    if not isinstance(given, Mapping):
        raise _bad("$.sample", f"a sample is a mapping with fields of a {kind.__name__}; got {type(given).__name__}")
    fields = {_snake(str(key)): value for key, value in given.items()}
    kind_of_result = CALLS[point.call] if point.call is not None else None
    result = _result(kind_of_result, fields.pop("result", {})) if kind_of_result is not None else None
    if point.event is not None:
        fields.pop("type", None)
    fields.setdefault("tenant_id", tenant_id)
    subject = _filled(kind, fields)
    problem = check_fields(subject) if isinstance(subject, Call) else None
    if problem is not None:
        raise _bad("$.sample", problem)
    return Sample(subject=subject, result=result)


def _result(kind: type[msgspec.Struct], given: object) -> Any:
    if isinstance(given, Mapping):
        return _filled(kind, {_snake(str(key)): value for key, value in given.items()}, "$.sample.result")
    try:
        return result_of(kind, given)
    except HookUsageError as error:
        raise _bad("$.sample.result", str(error)) from None


def _filled(kind: type[Any], fields: dict[str, Any], path: str = "$.sample") -> Any:
    """A struct of some of its fields."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise _bad(f"{path}.{unknown[0]}", f"a {kind.__name__} has no field {unknown[0]!r:.100}")
    wire: dict[str, Any] = {}
    for name, field in known.items():
        if name in fields:
            wire[field.encode_name] = fields[name]
        elif name in TEXTS or field.required:
            wire[field.encode_name] = TEXTS.get(name, _empty(field.type))
    config = kind.__struct_config__
    if config.tag is not None:
        wire[config.tag_field] = config.tag
    try:
        return msgspec.convert(wire, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).rpartition(" - at `")
        where = place.rstrip("`").removeprefix("$") if reason else ""
        raise _bad(f"{path}{where}", reason or str(error)) from None


def _empty(kind: Any) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        return get_args(kind)[0]
    if origin in (types.UnionType, typing.Union):
        return None if type(None) in get_args(kind) else _empty(get_args(kind)[0])
    return EMPTY.get(origin or kind)


def _snake(key: str) -> str:
    """Return the field that a key of a sample names, in either spelling."""
    if key in WIRE_NAMES:
        return WIRE_NAMES[key]
    return "".join(f"_{character.lower()}" if character.isupper() else character for character in key)


def _bad(path: str, problem: str) -> DefinitionError:
    return DefinitionError("invalid", path, problem)


Verdict = Literal["passed", "changed", "denied", "asked", "answered", "continued", "failed", "skipped", "shown"]


class DryRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a hook did with a sample.

    Attributes:
        hook_id: The hook; `""` if it is not stored.
        point: Where it was asked.
        outcome: `"passed"`: it had nothing to say. `"changed"`: the call or the result. `"denied"`, `"asked"` a person,
            `"answered"` in the call's place, `"continued"` the run. `"failed"`: see `error`. `"skipped"`: the sample is
            of another tool. `"shown"`: a webhook, see `payload`.
        reason: Of a denial; or what the person is asked.
        error: What went wrong; in a run, `on_error` would say what becomes of the call.
        call: The call as it goes on.
        result: The result as it goes on, or the answer.
        payload: What the webhook would be sent.
        duration_ms: How long the hook took.
    """

    hook_id: str
    point: str
    outcome: Verdict
    reason: str = ""
    error: str = ""
    call: dict[str, Any] | None = None
    result: Any = None
    payload: dict[str, Any] | None = None
    duration_ms: float = 0.0


async def dry_run(builder: Builder, definition: HookDefinition, given: object, *, timeout: float) -> DryRun:
    """Try a definition out on a sample.

    Args:
        builder: Makes the hook, anew.
        definition: The definition, enabled or not.
        given: The sample, or what it is made of.
        timeout: Seconds that it may take.

    Raises:
        DefinitionError: If the definition cannot work, or the sample is none for it.
        HookUsageError: If the timeout is no number of seconds.
    """
    try:
        check_timeout(timeout, "dry_run")
    except HookDefinitionError as error:
        raise HookUsageError(f"{error.problem}.") from None
    point = point_of(definition)
    sample = sample_of(point, given, definition.tenant_id)
    hook = builder.fresh(msgspec.structs.replace(definition, id=definition.id or "hook_new"))
    if point.has_tool:
        matches = tool_matcher(definition.tool)
        if matches is not None and not matches(f"{sample.subject.toolset}/{sample.subject.tool_name}"):
            return _of(definition, "skipped")
    if isinstance(hook, Hook):
        data = hook.data()
        assert data is not None
        sent = msgspec.json.decode(payload_of(data, msgspec.to_builtins(sample.subject, enc_hook=str)))
        return _of(definition, "shown", payload=sent)
    assert isinstance(hook, Hooks)
    started = perf_counter()
    try:
        async with asyncio.timeout(timeout):
            report = await _tried(definition, point, _handlers(hook, point), sample)
    except TimeoutError:
        report = _of(definition, "failed", error=f"it took more than the {timeout:g} s that it had")
    except DefinitionError:
        raise
    except Exception as error:
        report = _of(definition, "failed", error=f"{type(error).__name__}: {message_of(error)}")
    return msgspec.structs.replace(report, duration_ms=(perf_counter() - started) * 1e3)


def _handlers(bundle: Hooks, point: Point) -> list[Callable[..., Any]]:
    """What a bundle would call at a point; a factory's may have more than one hook there."""
    if point.event is not None:
        return [each.handler for each in bundle.observers if each.event is point.event and each.handler is not None]
    placed = [each for each in bundle.interceptors if each.call is point.call and each.kind == point.kind]
    return [each.handler for each in sorted(placed, key=lambda each: each.priority)]


async def _tried(
    definition: HookDefinition, point: Point, handlers: list[Callable[..., Any]], sample: Sample
) -> DryRun:
    """What the handlers do with the sample; the first one with something to say has the word."""
    for handler in handlers:
        if point.event is not None:
            await _called(handler, sample.subject)
            continue
        report = await _asked(definition, point, handler, sample)
        if report.outcome != "passed":
            return report
    return _of(definition, "passed")


async def _asked(definition: HookDefinition, point: Point, handler: Callable[..., Any], sample: Sample) -> DryRun:
    call, result = sample.subject, sample.result
    if point.kind == "after":
        said = await _called(handler, call, result)
    elif point.kind == "around":
        inner: list[Call] = []

        async def call_next(changed: Call) -> Any:
            inner.append(changed)
            return result

        said = await _called(handler, call, call_next)
        if said is None and not inner:
            raise HookUsageError("it returned None without an outcome of `call_next`")
        if inner and (said is None or said is result):
            return _report(definition, point, call, inner[0], result)
    else:
        said = await _called(handler, call)
    return _report(definition, point, call, said, result)


def _report(definition: HookDefinition, point: Point, call: Call, said: Any, result: Any) -> DryRun:
    """What a hook said, as far as it may say that where it stands."""
    before, after = point.kind in ("before", "around"), point.kind in ("after", "around")
    kind = CALLS[type(call)]
    if said is None or said is call or (after and said is result):
        return _of(definition, "passed")
    if isinstance(said, Deny):
        return _of(definition, "denied", reason=said.reason)
    if isinstance(said, Ask) and point.kind != "after":
        return _of(definition, "asked", reason=said.prompt)
    if isinstance(said, Respond) and before:
        return _of(definition, "answered", result=_plain(result_of(kind, said.answer)))
    if isinstance(said, type(call)) and before:
        problem = check_changed(said, call)
        if problem is None:
            return _of(definition, "changed", call=_plain(said))
    elif isinstance(said, kind) and after:
        problem = check_result(said)
        if problem is None:
            return _of(definition, "changed", result=_plain(said))
    elif isinstance(said, Continue) and point.name == "AgentCall.after":
        return _of(definition, "continued", reason=said.input)
    else:
        problem = f"returned a {type(said).__name__}, which a {point.kind} of a {type(call).__name__} may not"
    raise HookUsageError(f"it {problem}")


async def _called(handler: Callable[..., Any], *arguments: Any) -> Any:
    """What a handler returns. A plain one runs in a thread, so that it cannot hold up the process that tries it out."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return await handler(*arguments)
    said = await asyncio.to_thread(handler, *arguments)
    return await said if inspect.isawaitable(said) else said


def _plain(value: Any) -> Any:
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {message_of(value)}"
    return msgspec.to_builtins(value, enc_hook=str)


def _of(
    definition: HookDefinition,
    outcome: Verdict,
    *,
    reason: str = "",
    error: str = "",
    call: dict[str, Any] | None = None,
    result: Any = None,
    payload: dict[str, Any] | None = None,
) -> DryRun:
    return DryRun(
        hook_id=definition.id,
        point=definition.point,
        outcome=outcome,
        reason=reason,
        error=error,
        call=call,
        result=result,
        payload=payload,
    )
