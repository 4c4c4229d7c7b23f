"""The code has every name, field, parameter, default and literal of `contract.pyi`, and the laws of the transitions."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import blinker
import msgspec
import pytest

import hookline
from hookline import Event, HookType, json_schema, signals
from hookline.calls import CALLS
from hookline.errors import HooklineError, OperationError
from hookline.events import EVENTS
from hookline.phases import TRANSITIONS, Phase
from tests.tables import for_each

CONTRACT = Path(__file__).with_name("contract.pyi")
ROOT_MODULES = ["events", "hooks", "dispatcher", "calls", "interceptors"]
"""Modules whose names are at the root too, all of them that the contract has."""


class Entry(NamedTuple):
    """One statement of the contract.

    Attributes:
        module: The module that it is in.
        name: What it defines.
        node: The statement.
    """

    module: str
    name: str
    node: Any


def entries() -> Iterator[Entry]:
    module = ""
    for node in ast.parse(CONTRACT.read_text()).body:
        if isinstance(node, ast.Expr):
            module = ast.literal_eval(node.value)
        elif isinstance(node, ast.Assign):
            yield Entry(module, ast.unparse(node.targets[0]), node)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield Entry(module, node.name, node)


ENTRIES = list(entries())
CLASSES = {entry.name: entry for entry in ENTRIES if isinstance(entry.node, ast.ClassDef)}
PUBLIC = [entry for entry in ENTRIES if not entry.name.startswith("_")]


def parts_of(node: ast.ClassDef) -> list[ast.stmt]:
    """Return the statements of a class, those of its private bases first."""
    inherited = [
        part
        for base in node.bases
        if ast.unparse(base).startswith("_")
        for part in parts_of(CLASSES[ast.unparse(base)].node)
    ]
    return [*inherited, *node.body]


def keyword_of(node: ast.ClassDef, name: str) -> Any:
    """Return the value of a keyword of a class, or of its private base."""
    for keyword in node.keywords:
        if keyword.arg == name:
            return ast.literal_eval(keyword.value)
    bases = [ast.unparse(base) for base in node.bases]
    found = [keyword_of(CLASSES[base].node, name) for base in bases if base.startswith("_")]
    return found[0] if found else None


def evaluate(expression: ast.expr) -> Any:
    """Return what an expression of the contract is, with the names of the root."""
    names = {name: getattr(hookline, name) for name in hookline.__all__}
    return eval(ast.unparse(expression), {**names, "Literal": Literal, "Any": Any})


def find_actual(entry: Entry) -> Any:
    return getattr(import_module(entry.module), entry.name)


def params_of(*kinds: type) -> list[Any]:
    return [pytest.param(entry, id=entry.name) for entry in PUBLIC if isinstance(entry.node, kinds)]


def bases_of(entry: Entry) -> list[str]:
    return [ast.unparse(base) for base in entry.node.bases]


def has_fields(entry: Entry) -> bool:
    return "StrEnum" not in bases_of(entry) and any(isinstance(part, ast.AnnAssign) for part in parts_of(entry.node))


STRUCTS = [param for param in params_of(ast.ClassDef) if has_fields(param.values[0])]
METHODS = [
    pytest.param(entry, part, id=f"{entry.name}.{part.name}")
    for entry in PUBLIC
    if isinstance(entry.node, ast.ClassDef)
    for part in parts_of(entry.node)
    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
]


@for_each("entry", PUBLIC)
def test_every_name_is_public_in_its_module(entry: Entry) -> None:
    assert entry.name in import_module(entry.module).__all__


@for_each("entry", PUBLIC)
def test_the_names_of_the_core_are_at_the_root_too(entry: Entry) -> None:
    if entry.module.removeprefix("hookline.") in ROOT_MODULES:
        assert getattr(hookline, entry.name) is find_actual(entry)


@pytest.mark.parametrize("entry", params_of(ast.Assign))
def test_a_literal_has_the_values_of_the_contract(entry: Entry) -> None:
    assert find_actual(entry) == evaluate(entry.node.value)


@pytest.mark.parametrize("entry", [each for each in params_of(ast.ClassDef) if "StrEnum" in bases_of(each.values[0])])
def test_an_enum_has_the_members_of_the_contract(entry: Entry) -> None:
    members = {ast.unparse(part.targets[0]): ast.literal_eval(part.value) for part in entry.node.body}

    assert {member.name: member.value for member in find_actual(entry)} == members


@pytest.mark.parametrize("entry", STRUCTS)
def test_a_record_has_the_fields_of_the_contract(entry: Entry) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(find_actual(entry))}
    wanted = {part.target.id: part for part in parts_of(entry.node) if isinstance(part, ast.AnnAssign)}

    for name, part in wanted.items():
        assert name in fields, f"{entry.name} has no field {name}"
        field, annotation = fields[name], evaluate(part.annotation)
        assert annotation in (Any, field.type), f"{entry.name}.{name} is {field.type}"
        if part.value is None:
            assert field.required, f"{entry.name}.{name} has a default"
        elif not _is_any_default(part.value):
            assert field.default == ast.literal_eval(part.value), f"{entry.name}.{name} = {field.default!r}"
        else:
            assert not field.required, f"{entry.name}.{name} has no default"
    assert [name for name in fields if name not in wanted and fields[name].required] == []


@pytest.mark.parametrize("entry", STRUCTS)
def test_a_record_is_frozen_and_takes_by_position_what_the_contract_says(entry: Entry) -> None:
    parameters = inspect.signature(find_actual(entry)).parameters.values()
    by_position = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    promised = keyword_of(entry.node, "by_position") or 0

    assert find_actual(entry).__struct_config__.frozen
    assert by_position >= promised
    assert promised or not by_position


@pytest.mark.parametrize("entry", [each for each in STRUCTS if keyword_of(each.values[0].node, "tag")])
def test_a_tagged_record_has_its_tag_and_camel_case_on_the_wire(entry: Entry) -> None:
    kind, wire = find_actual(entry), keyword_of(entry.node, "wire") or {}
    names = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}

    assert kind.__struct_config__.tag == keyword_of(entry.node, "tag")
    assert names == {name: wire.get(name, _to_camel_case(name)) for name in names}


def _to_camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _is_any_default(expression: ast.expr | None) -> bool:
    return isinstance(expression, ast.Constant) and expression.value is ...


@pytest.mark.parametrize("entry", params_of(ast.FunctionDef, ast.AsyncFunctionDef))
def test_a_function_takes_what_the_contract_says(entry: Entry) -> None:
    _check_call(entry.name, find_actual(entry), entry.node)


@pytest.mark.parametrize(("entry", "method"), METHODS)
def test_a_method_takes_what_the_contract_says(entry: Entry, method: ast.FunctionDef) -> None:
    kind = find_actual(entry)
    found = inspect.getattr_static(kind, method.name, None)

    if any(ast.unparse(decorator) == "property" for decorator in method.decorator_list):
        # An attribute that every object gets is as good as a property.
        assert not inspect.isfunction(found)
        assert found is not None or method.name in inspect.getsource(kind)
        return
    assert found is not None, f"{entry.name} has no {method.name}"
    _check_call(f"{entry.name}.{method.name}", getattr(found, "__wrapped__", found), method)


def _is_awaited(function: Any) -> bool:
    """Say whether what a function returns is awaited: it is async, or says that it returns a coroutine."""
    returns = str(inspect.signature(function).return_annotation)
    return inspect.iscoroutinefunction(function) or returns.startswith(("Coroutine[", "collections.abc.Coroutine["))


def _check_call(name: str, found: Any, wanted: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Check that whoever calls a function as the contract has it, reaches it."""
    assert _is_awaited(found) is isinstance(wanted, ast.AsyncFunctionDef), f"{name}: async or not"
    parameters = dict(inspect.signature(found).parameters)
    positional = [argument.arg for argument in wanted.args.args]
    given = [each.name for each in parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert given[: len(positional)] == positional, name
    for argument, default in _defaults_of(wanted.args):
        assert argument in parameters, f"{name} takes no {argument}"
        parameter = parameters.pop(argument)
        if _is_any_default(default):
            assert parameter.default is not parameter.empty, f"{name}: {argument} is required"
        elif default is not None:
            assert parameter.default == ast.literal_eval(default), f"{name}: {argument}={parameter.default!r}"
    further = [each for each in parameters.values() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    assert [each.name for each in further if each.default is each.empty] == [], f"{name} requires more"


def _defaults_of(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr | None]]:
    """Return every parameter of a function with its default, `None` where it has none."""
    required = len(arguments.args) - len(arguments.defaults)
    defaults = [*[None] * required, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip([*arguments.args, *arguments.kwonlyargs], defaults, strict=True):
        yield argument.arg, default


# Events.


def test_there_are_sixteen_events_and_each_has_its_hook_type() -> None:
    assert len(get_args(Event)) == len(HookType) == 16
    assert {kind.hook_type: kind for kind in get_args(Event)} == EVENTS
    for kind in get_args(Event):
        assert kind.__struct_config__.tag == kind.hook_type.value
        assert kind.__struct_config__.tag_field == "type"


def test_the_schema_has_every_event_under_its_wire_keys() -> None:
    schema = json_schema()
    by_tag = {
        definition["properties"]["type"]["enum"][0]: definition
        for definition in schema["$defs"].values()
        if "type" in definition.get("properties", {}) and "enum" in definition["properties"]["type"]
    }

    assert sorted(by_tag) == sorted(HookType)
    for hook_type, definition in by_tag.items():
        fields = msgspec.structs.fields(EVENTS[HookType(hook_type)])
        assert list(definition["properties"]) == ["type", *(field.encode_name for field in fields)]


# Calls, signals and errors.


def test_there_are_eight_calls_and_each_has_its_result() -> None:
    assert {call.__name__: result.__name__ for call, result in CALLS.items()} == {
        "AgentCall": "AgentResult",
        "StepCall": "StepResult",
        "ModelCall": "ModelResponse",
        "ToolCall": "ToolResult",
        "CompactCall": "CompactResult",
        "SubAgentCall": "AgentResult",
        "RequestCall": "RequestResult",
        "MemoryCall": "MemoryResult",
    }


@pytest.mark.parametrize("name", ["hook_executed", "operation_registered", "operation_unregistered", "phase_changed"])
def test_a_signal_of_the_contract_is_there(name: str) -> None:
    assert isinstance(getattr(signals, name), blinker.Signal)


@for_each("name", [name for name in import_module("hookline.errors").__all__ if name[0].isupper()])
def test_every_error_derives_from_the_one_error(name: str) -> None:
    assert issubclass(getattr(import_module("hookline.errors"), name), HooklineError)


def test_missing_hooks_are_no_error_of_the_operation() -> None:
    """Workers take such an error for "another was faster"."""
    assert not issubclass(import_module("hookline.errors").MissingHooksError, OperationError)


# Transitions.

P = Phase
PROCESSING = {
    P.PROCESSING_USER_INPUT,
    P.AWAITING_LLM_RESPONSE,
    P.ANALYZING_LLM_RESPONSE,
    P.AWAITING_TOOL_APPROVAL,
    P.TOOL_DENIED,
    P.EXECUTING_TOOL,
    P.PROCESSING_TOOL_RESULT,
}
TERMINAL = {P.SHUTDOWN_COMPLETE, P.ERROR}
AT_LEAST: dict[Phase, set[Phase]] = {
    P.UNINITIALIZED: {P.BOOTSTRAPPING},
    P.BOOTSTRAPPING: {P.IDLE},
    P.IDLE: {P.PROCESSING_USER_INPUT},
    P.PROCESSING_USER_INPUT: {P.AWAITING_LLM_RESPONSE, P.IDLE},
    P.AWAITING_LLM_RESPONSE: {P.ANALYZING_LLM_RESPONSE},
    P.ANALYZING_LLM_RESPONSE: {P.AWAITING_TOOL_APPROVAL, P.EXECUTING_TOOL, P.PROCESSING_USER_INPUT, P.IDLE},
    P.AWAITING_TOOL_APPROVAL: {P.EXECUTING_TOOL, P.TOOL_DENIED},
    P.TOOL_DENIED: {P.PROCESSING_USER_INPUT},
    P.EXECUTING_TOOL: {P.PROCESSING_TOOL_RESULT, P.PROCESSING_USER_INPUT},
    P.PROCESSING_TOOL_RESULT: {P.AWAITING_LLM_RESPONSE, P.PROCESSING_USER_INPUT, P.IDLE},
    P.SHUTTING_DOWN: {P.SHUTDOWN_COMPLETE},
}


def test_the_transitions_are_a_mapping_of_every_phase() -> None:
    assert set(TRANSITIONS) == set(Phase)
    assert all(isinstance(targets, frozenset) for targets in TRANSITIONS.values())


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_has_at_least_the_targets_of_the_contract(phase: Phase) -> None:
    wanted = set(AT_LEAST.get(phase, set()))
    if phase in TERMINAL:
        wanted.add(P.UNINITIALIZED)
    else:
        wanted.add(P.ERROR)
    if phase in PROCESSING:
        wanted.add(P.IDLE)
    if phase in PROCESSING or phase in (P.UNINITIALIZED, P.BOOTSTRAPPING, P.IDLE):
        wanted.add(P.SHUTTING_DOWN)

    assert wanted <= TRANSITIONS[phase]


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_says_what_it_is(phase: Phase) -> None:
    assert phase.is_initializing is (phase is P.BOOTSTRAPPING)
    assert phase.is_processing is (phase in PROCESSING)
    assert phase.is_terminal is (phase in TERMINAL)


@pytest.mark.parametrize("phase", sorted(TERMINAL))
def test_a_terminal_phase_is_left_to_begin_again_alone(phase: Phase) -> None:
    assert TRANSITIONS[phase] == {P.UNINITIALIZED}


def test_only_a_terminal_phase_leads_back_to_the_beginning() -> None:
    assert {phase for phase in Phase if P.UNINITIALIZED in TRANSITIONS[phase]} == TERMINAL
