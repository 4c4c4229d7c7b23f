"""Try a hook on a sample event or call, without side effects in hookline.

A new hook is built and called directly. No chain and no dispatcher is involved, so that no record of it reaches logs,
statistics or signals, and the counters of the running hook stay as they are.
"""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Literal, get_args, get_origin

import msgspec

from hookline._checks import check_timeout, tool_matcher
from hookline.calls import (
    CALLS,
    AddedContext,
    Ask,
    Call,
    Continue,
    Deny,
    Guide,
    Respond,
    context_takers,
    put_context,
)
from hookline.errors import HookDefinitionError, HookUsageError, message_of
from hookline.events import EventFields, encode
from hookline.hooks import Hook, Hooks
from hookline.interceptors import check_changed, check_fields, check_result, result_of
from hookline.registry._build import Builder
from hookline.registry._definition import HookDefinition, Point, point_of
from hookline.registry._errors import DefinitionError
from hookline.store import OperationLineage
from hookline.webhooks import payload_of

__all__ = ["DryRun", "DryRunSample", "build_sample", "dry_run", "find_operation_id", "snake_key", "to_plain"]

WIRE_NAMES = {"apiName": "tool_name", "api_name": "tool_name", "identifier": "toolset"}
"""Fields whose wire name is another word than their Python name."""

EMPTY: dict[object, Any] = {str: "", int: 0, float: 0.0, bool: False, bytes: b"", dict: {}, list: []}
TEXTS = {
    "operation_id": "op_sample",
    "tool_name": "sample",
    "tool_call_id": "call_sample",
    "method": "GET",
    "path": "/",
}
"""Default texts of fields for which an empty text would be misleading."""


class DryRunSample(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a dry run.

    Attributes:
        subject: The event or the call.
        result: The result of the call, for a hook after the call.
    """

    subject: Any
    result: Any = None


def build_sample(point: Point, given: object, tenant_id: str) -> DryRunSample:
    """Build a sample, filling in the fields that are missing.

    Args:
        point: The point of the hook.
        given: An event or a call, or a mapping with some of its fields, and `result` with some fields of the result.
        tenant_id: The tenant of the sample, unless it has one.

    Raises:
        DefinitionError: If the sample does not fit the point.
    """
    kind = point.event or point.call
    assert kind is not None
    if isinstance(given, EventFields | Call):
        if not isinstance(given, kind):
            raise _sample_error("$.sample", f"{point.name} takes a {kind.__name__}; got a {type(given).__name__}")
        return DryRunSample(
            subject=given, result=_fill_struct(CALLS[type(given)], {}) if isinstance(given, Call) else None
        )
    if not isinstance(given, Mapping):
        raise _sample_error(
            "$.sample", f"a sample must be a mapping with fields of a {kind.__name__}; got {type(given).__name__}"
        )
    fields = {snake_key(str(key)): value for key, value in given.items()}
    kind_of_result = CALLS[point.call] if point.call is not None else None
    result = _build_result(kind_of_result, fields.pop("result", {})) if kind_of_result is not None else None
    if point.event is not None:
        fields.pop("type", None)
    fields.setdefault("tenant_id", tenant_id)
    subject = _fill_struct(kind, fields)
    problem = check_fields(subject) if isinstance(subject, Call) else None
    if problem is not None:
        raise _sample_error("$.sample", problem)
    return DryRunSample(subject=subject, result=result)


def _build_result(kind: type[msgspec.Struct], given: object) -> Any:
    if isinstance(given, Mapping):
        return _fill_struct(kind, {snake_key(str(key)): value for key, value in given.items()}, "$.sample.result")
    try:
        return result_of(kind, given)
    except HookUsageError as error:
        raise _sample_error("$.sample.result", str(error)) from None


def _fill_struct(kind: type[Any], fields: dict[str, Any], path: str = "$.sample") -> Any:
    """Build a struct from some of its fields, with defaults for the others."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise _sample_error(f"{path}.{unknown[0]}", f"a {kind.__name__} has no field {unknown[0]!r:.100}")
    wire: dict[str, Any] = {}
    for name, field in known.items():
        if name in fields:
            wire[field.encode_name] = fields[name]
        elif name in TEXTS or field.required:
            wire[field.encode_name] = TEXTS.get(name, _default_value(field.type))
    config = kind.__struct_config__
    if config.tag is not None:
        wire[config.tag_field] = config.tag
    try:
        return msgspec.convert(wire, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).rpartition(" - at `")
        where = place.rstrip("`").removeprefix("$") if reason else ""
        raise _sample_error(f"{path}{where}", reason or str(error)) from None


def _default_value(kind: Any) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        return get_args(kind)[0]
    if origin in (types.UnionType, typing.Union):
        return None if type(None) in get_args(kind) else _default_value(get_args(kind)[0])
    return EMPTY.get(origin or kind)


def snake_key(key: str) -> str:
    """Return the field that a key of a sample names, in either spelling."""
    if key in WIRE_NAMES:
        return WIRE_NAMES[key]
    return "".join(f"_{character.lower()}" if character.isupper() else character for character in key)


def _sample_error(path: str, problem: str) -> DefinitionError:
    return DefinitionError("invalid", path, problem)


Verdict = Literal[
    "passed", "changed", "denied", "asked", "answered", "continued", "guided", "failed", "skipped", "shown"
]


class DryRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of a dry run.

    Attributes:
        hook_id: The id of the hook; `""` if it is not stored.
        point: The point at which the hook stands.
        outcome: `"passed"`: the hook changed nothing. `"changed"`: it changed the call or the result. `"denied"`: it
            denied the call. `"asked"`: it asked for a person's approval. `"answered"`: it answered in the call's place.
            `"continued"`: it continued the run. `"guided"`: it had the model asked again. `"failed"`: see `error`.
            `"skipped"`: the hook is not for the sample, see `reason`. `"shown"`: the hook is a webhook or a
            remote observer, see `payload`.
        reason: The reason of a denial, the prompt for the person, the next input, the feedback for the model, or why
            the hook is not for the sample.
        error: The error; in a run, `on_error` would decide about the call.
        call: The changed call.
        result: The changed result, or the answer.
        payload: The body that the webhook would send, or the event that the remote observer would hear.
        context: The text that the hook added to the call for the model; left out if there is none.
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
    context: str | msgspec.UnsetType = msgspec.UNSET
    duration_ms: float = 0.0


async def dry_run(
    builder: Builder,
    definition: HookDefinition,
    given: object,
    *,
    timeout: float,
    lineage: OperationLineage | None = None,
) -> DryRun:
    """Try a definition out on a sample.

    Args:
        builder: Builds a new hook.
        definition: The definition, enabled or not.
        given: The event or call, or a mapping with some of its fields.
        timeout: Seconds that the hook may take.
        lineage: The operation of the sample among those that called it, if it is stored.

    Raises:
        DefinitionError: If the definition is invalid, or the sample does not fit its point.
        HookUsageError: If the timeout is no valid number of seconds.
    """
    try:
        check_timeout(timeout, "dry_run")
    except HookDefinitionError as error:
        raise HookUsageError(f"{error.problem}.") from None
    point = point_of(definition)
    sample = build_sample(point, given, definition.tenant_id)
    hook = builder.build_new(msgspec.structs.replace(definition, id=definition.id or "hook_new"))
    if point.has_tool:
        matches = tool_matcher(definition.tool)
        if matches is not None and not matches(f"{sample.subject.toolset}/{sample.subject.tool_name}"):
            return _report(definition, "skipped", reason=f"it is for the tools {definition.tool}")
    if reason := _explain_scope(definition, given, lineage):
        return _report(definition, "skipped", reason=reason)
    if isinstance(hook, Hook):
        data = hook.data()
        assert data is not None
        sent = msgspec.json.decode(payload_of(data, msgspec.to_builtins(sample.subject, enc_hook=str)))
        return _report(definition, "shown", payload=sent)
    assert isinstance(hook, Hooks)
    if hook.hearer:
        return _report(definition, "shown", payload=msgspec.json.decode(encode(sample.subject)))
    started = perf_counter()
    taker = _ContextTaker(definition.id)
    if isinstance(sample.subject, Call):
        context_takers[id(sample.subject.metadata)] = taker
    try:
        async with asyncio.timeout(timeout):
            report = await _run_handlers(definition, point, _select_handlers(hook, point), sample)
    except TimeoutError:
        report = _report(definition, "failed", error=f"it took longer than its timeout of {timeout:g} s")
    except DefinitionError:
        raise
    except Exception as error:
        report = _report(definition, "failed", error=f"{type(error).__name__}: {message_of(error)}")
    finally:
        if isinstance(sample.subject, Call):
            context_takers.pop(id(sample.subject.metadata), None)
    context = "\n\n".join(each.text for each in taker.context)
    return msgspec.structs.replace(
        report, context=context or msgspec.UNSET, duration_ms=(perf_counter() - started) * 1e3
    )


def find_operation_id(given: object) -> str:
    """Return the id of the operation that a sample names; `""` if it names none."""
    return _find_text(given, "operation_id")


def _explain_scope(definition: HookDefinition, given: object, lineage: OperationLineage | None) -> str:
    """Return why a hook is not for the tenant, the agent, the tags or the operation of a sample; `""` if it is."""
    tenant, agent = _find_text(given, "tenant_id"), _find_text(given, "agent_id")
    if tenant and tenant in definition.except_tenants:
        return f"it leaves out the tenant {tenant}"
    if tenant and definition.tenants and tenant not in definition.tenants:
        return f"it is for the tenants {', '.join(definition.tenants)}, and not for {tenant}"
    scope, operation_id = definition.scope, find_operation_id(given)
    if scope is None:
        return ""
    root = _find_text(given, "parent_operation_id") or operation_id
    agents, tags = [agent] if agent else [], _find_tags(given)
    if lineage is not None:
        root, agents = lineage.root_operation_id, [*agents, *lineage.agent_ids]
        tags = lineage.tags if tags is None else tags
    if agents and not scope.has_agent(agents):
        return f"it is for the agents {', '.join(scope.agents)}, and not for {' or '.join(agents)}"
    if tags is not None and not scope.has_tag(tags):
        theirs = f"has the tags {', '.join(tags)}" if tags else "has no tags"
        return f"it is for operations tagged {' or '.join(scope.tags)}, and the operation {theirs}"
    if root and not scope.has_operation(root):
        return f"it is for {scope.percent:g} % of operations, and {root} is not one of them"
    return ""


def _find_text(given: object, name: str) -> str:
    """Return the text that a sample has in a field; `""` if it has none."""
    if isinstance(given, Mapping):
        value = next((each for key, each in given.items() if snake_key(str(key)) == name), "")
    else:
        value = getattr(given, name, "")
    return value if isinstance(value, str) else ""


def _find_tags(given: object) -> Sequence[str] | None:
    """Return the tags that a sample has; `None` if it does not say."""
    value = given.get("tags") if isinstance(given, Mapping) else getattr(given, "tags", None)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list | tuple) else None


class _ContextTaker:
    """Takes the text that a hook adds to the call of a dry run."""

    def __init__(self, hook_id: str) -> None:
        self._hook_id = hook_id
        self.context: tuple[AddedContext, ...] = ()

    def take_context(self, text: str) -> None:
        self.context = put_context(self.context, AddedContext(hook_id=self._hook_id, text=text))


def _select_handlers(bundle: Hooks, point: Point) -> list[Callable[..., Any]]:
    """Return the handlers of a bundle at a point; a factory's bundle may have several."""
    if point.event is not None:
        return [each.handler for each in bundle.observers if each.event is point.event and each.handler is not None]
    placed = [each for each in bundle.interceptors if each.call is point.call and each.kind == point.kind]
    return [each.handler for each in sorted(placed, key=lambda each: each.priority)]


async def _run_handlers(
    definition: HookDefinition, point: Point, handlers: list[Callable[..., Any]], sample: DryRunSample
) -> DryRun:
    """Call the handlers one after another, up to the first that does something."""
    for handler in handlers:
        if point.event is not None:
            await _call_handler(handler, sample.subject)
            continue
        report = await _run_interceptor(definition, point, handler, sample)
        if report.outcome != "passed":
            return report
    return _report(definition, "passed")


async def _run_interceptor(
    definition: HookDefinition, point: Point, handler: Callable[..., Any], sample: DryRunSample
) -> DryRun:
    call, result = sample.subject, sample.result
    if point.kind == "after":
        returned = await _call_handler(handler, call, result)
    elif point.kind == "around":
        inner: list[Call] = []

        async def call_next(changed: Call) -> Any:
            inner.append(changed)
            return result

        returned = await _call_handler(handler, call, call_next)
        if returned is None and not inner:
            raise HookUsageError("it returned None without an outcome of `call_next`")
        if inner and (returned is None or returned is result):
            return _interpret_answer(definition, point, call, inner[0], result)
    else:
        returned = await _call_handler(handler, call)
    return _interpret_answer(definition, point, call, returned, result)


def _interpret_answer(definition: HookDefinition, point: Point, call: Call, returned: Any, result: Any) -> DryRun:
    """Convert the return value of an interceptor into a report.

    Raises:
        HookUsageError: If an interceptor of that kind may not return such a value.
    """
    before, after = point.kind in ("before", "around"), point.kind in ("after", "around")
    kind = CALLS[type(call)]
    if returned is None or returned is call or (after and returned is result):
        return _report(definition, "passed")
    if isinstance(returned, Deny):
        return _report(definition, "denied", reason=returned.reason)
    if isinstance(returned, Ask) and point.kind != "after":
        return _report(definition, "asked", reason=returned.prompt)
    if isinstance(returned, Respond) and before:
        return _report(definition, "answered", result=to_plain(result_of(kind, returned.answer)))
    if isinstance(returned, type(call)) and before:
        problem = check_changed(returned, call)
        if problem is None:
            return _report(definition, "changed", call=to_plain(returned))
    elif isinstance(returned, kind) and after:
        problem = check_result(returned)
        if problem is None:
            return _report(definition, "changed", result=to_plain(returned))
    elif isinstance(returned, Guide) and point.name == "ModelCall.after":
        return _report(definition, "guided", reason=returned.feedback)
    elif isinstance(returned, Continue) and point.name == "AgentCall.after":
        return _report(definition, "continued", reason=returned.input)
    else:
        problem = (
            f"returned a {type(returned).__name__}, which is not allowed for a {point.kind} of a {type(call).__name__}"
        )
    raise HookUsageError(f"it {problem}")


async def _call_handler(handler: Callable[..., Any], *arguments: Any) -> Any:
    """Call a handler. A plain function runs in a thread, so that it cannot block the event loop."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return await handler(*arguments)
    returned = await asyncio.to_thread(handler, *arguments)
    return await returned if inspect.isawaitable(returned) else returned


def to_plain(value: Any) -> Any:
    """Return a call, a result or an answer as JSON has it; an exception as its text."""
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {message_of(value)}"
    return msgspec.to_builtins(value, enc_hook=str)


def _report(
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
