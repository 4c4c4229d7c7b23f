"""`HandlerCatalog`: find and load the handlers that definitions may name, and the built-in handlers."""

from __future__ import annotations

import contextlib
import inspect
import logging
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from time import monotonic
from typing import Any, Literal, Unpack, get_origin, get_type_hints

import msgspec

from hookline import builtin
from hookline.budgets import BudgetStore
from hookline.builtin import PATTERNS, BundleOptions
from hookline.calls import AgentCall, Call, Deny, MemoryCall, ModelCall, RequestCall, SubAgentCall, ToolCall
from hookline.errors import HookDefinitionError, HookUsageError, message_of
from hookline.hooks import Hooks, TextParts
from hookline.registry._definition import HookDefinition
from hookline.registry._errors import DefinitionError
from hookline.runtime import parse_docstring

__all__ = [
    "ENTRY_POINT_GROUP",
    "HandlerCatalog",
    "HandlerEntry",
    "allow_tools",
    "deny",
    "deny_phrases",
    "deny_text",
    "deny_tools",
    "limit_calls",
    "log",
    "redact",
    "require_approval",
    "scan_injections",
]

logger = logging.getLogger("hookline")

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def log(
    *,
    id: str,  # noqa: A002
    point: str,
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO",
    message: str = "",
) -> Callable[..., None]:
    """Write a line to the log of the process. It names the run, never its content.

    Args:
        id: The id of the definition.
        point: The point of the definition.
        level: How important the line is.
        message: A text at the end of the line. Example: refund checked
    """
    if point.endswith(".around"):
        raise HookDefinitionError(
            id, "it only observes, so it cannot be an `around`; use the `before` or the `after` of the call"
        )
    if level not in LEVELS:
        raise HookDefinitionError(id, f"`level` must be one of {', '.join(LEVELS)}; got {level!r}")
    _check_text(id, "message", message)
    number = logging.getLevelName(level)

    def note(subject: Any, result: object = None) -> None:
        logger.log(number, "%s at %s of operation %s%s", id, point, subject.operation_id, message and f": {message}")

    return note


def deny(*, point: str, reason: str = "These calls are disabled.", stop: bool = False) -> Callable[[Call], Deny]:
    """Refuse every call, or with `tool` the calls of some tools: an emergency switch.

    Args:
        point: The point of the definition.
        reason: What the model is told. Example: Refunds are closed until Monday.
        stop: Whether the run ends too.
    """
    _check_point("deny", point)
    _check_text("deny", "reason", reason)
    if not isinstance(stop, bool):
        raise HookDefinitionError("deny", f"`stop` must be true or false; got {stop!r}")
    answer = Deny(reason, stop=stop)

    def refuse(call: Call) -> Deny:
        return answer

    return refuse


def deny_text(
    *, point: str, texts: list[str] | None = None, patterns: list[str] | None = None, reason: str = ""
) -> Callable[[Call], Deny | None]:
    """Refuse calls that contain a text or match a named pattern: in arguments, messages, instructions or memory.

    Args:
        point: The point of the definition.
        texts: Texts to look for, in upper or lower case. Example: rm -rf
        patterns: Names of patterns to look for: email, card, key.
        reason: What the model is told instead of naming what was found.
    """
    _check_point("deny-text", point)
    words = [each.casefold() for each in _check_texts("deny-text", "texts", texts)]
    names = _check_texts("deny-text", "patterns", patterns)
    _check_names("deny-text", names)
    _check_text("deny-text", "reason", reason)
    if not words and not names:
        raise HookDefinitionError("deny-text", "give `texts`, or `patterns` by name")

    def judge(call: Call) -> Deny | None:
        for text in _iterate_texts(call):
            found = next((name for name in names if PATTERNS[name].search(text)), None)
            folded = text.casefold()
            if found is not None or any(word in folded for word in words):
                return Deny(reason or f"it contains {found or 'a text'} that is not allowed")
        return None

    return judge


def allow_tools(*, tools: list[str], hide: bool = True, **options: Unpack[BundleOptions]) -> Hooks:
    """Let the model call these tools and sub-agents, and no others.

    Args:
        tools: Names of tools, with or without their toolset. Example: bank/pay or bank/*
        hide: Whether the other tools are not even offered to the model.
        **options: Options of the bundle.
    """
    return builtin.allow_tools(*_check_texts("allow-tools", "tools", tools), hide=hide, **options)


def deny_tools(*, tools: list[str], hide: bool = True, **options: Unpack[BundleOptions]) -> Hooks:
    """Refuse calls of these tools and sub-agents, and do not even offer them to the model.

    Args:
        tools: Names of tools, with or without their toolset. Example: bank/pay or bank/*
        hide: Whether these tools are not even offered to the model.
        **options: Options of the bundle.
    """
    return builtin.deny_tools(*_check_texts("deny-tools", "tools", tools), hide=hide, **options)


def require_approval(*, tools: list[str], prompt: str | None = None, **options: Unpack[BundleOptions]) -> Hooks:
    """Ask a person before these tools are called.

    Args:
        tools: Names of tools, with or without their toolset. Example: bank/pay or bank/*
        prompt: The question to the person. Example: Pay this back?
        **options: Options of the bundle.
    """
    return builtin.require_approval(*_check_texts("require-approval", "tools", tools), prompt=prompt, **options)


def limit_calls(
    *,
    n: int,
    tool: str = "*",
    per: Literal["operation", "tool", "tenant"] | float = "operation",
    clock: Callable[[], float] = monotonic,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Refuse calls of tools beyond the first `n` per operation, tool or tenant, or within that many seconds.

    Args:
        n: How many calls are allowed.
        tool: The tool to count, as a glob. Example: search or web/*
        per: Which calls are counted together: operation, tool (each of an operation), tenant, or a number of seconds.
        clock: Returns the time in seconds.
        **options: Options of the bundle.
    """
    return builtin.limit_calls(n, tool=tool, per=per, clock=clock, **options)


def redact(
    *,
    patterns: list[str],
    replacement: str = "[redacted]",
    tool_results: bool = True,
    output: bool = True,
    messages: bool = True,
    args: bool = False,
    parts: TextParts | None = None,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Replace what matches a named pattern (email, card, key) before the model or the reader sees it.

    Args:
        patterns: Names of patterns: email, card, key.
        replacement: The text to insert instead.
        tool_results: Whether to redact results of tools and sub-agents.
        output: Whether to redact the model's answers and the agent's output.
        messages: Whether to redact messages sent to the model. The run's own messages stay as they are.
        args: Whether to redact arguments of tool calls. A tool that needs the secret does not get it.
        parts: Redacts an answer while the model writes it, and releases it in parts. Its `hold` must be at least as
            long as what the patterns match.
        **options: Options of the bundle.
    """
    names = _check_texts("redact", "patterns", patterns)
    _check_names("redact", names)
    try:
        checked_parts = msgspec.convert(parts, TextParts | None)
    except msgspec.ValidationError as error:
        raise HookDefinitionError("redact", f"`parts` has hold, max_chars and max_seconds: {error}") from None
    return builtin.redact(
        names,
        replacement=replacement,
        tool_results=tool_results,
        output=output,
        messages=messages,
        args=args,
        parts=checked_parts,
        **options,
    )


def deny_phrases(
    *,
    phrases: list[str],
    ignore_case: bool = True,
    max_chars: int = 80,
    max_seconds: float | None = None,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Deny an answer of the model that contains a phrase, while the model writes it.

    Args:
        phrases: The phrases. They match anywhere in the text, also inside of words. Example: project zeus
        ignore_case: Whether upper and lower case are the same.
        max_chars: New characters with which the text is searched again.
        max_seconds: Seconds after which it is searched also if there are fewer. Example: 0.5
        **options: Options of the bundle.
    """
    return builtin.deny_phrases(
        _check_texts("deny-phrases", "phrases", phrases),
        ignore_case=ignore_case,
        max_chars=max_chars,
        max_seconds=max_seconds,
        **options,
    )


def scan_injections(
    *,
    action: Literal["deny", "flag", "redact"] = "deny",
    inputs: bool = True,
    tool_results: bool = True,
    **options: Unpack[BundleOptions],
) -> Hooks:
    """Look for common prompt injections in the input and in results of tools. It is no security boundary.

    Args:
        action: What to do with what was found: deny the call, only note it, or replace it.
        inputs: Whether to look at the input of the run.
        tool_results: Whether to look at the results of tools.
        **options: Options of the bundle.
    """
    return builtin.PromptInjectionScan(action=action, inputs=inputs, tool_results=tool_results, **options)


def _check_point(where: str, point: str) -> None:
    if not point.endswith((".before", ".guard")):
        raise HookDefinitionError(
            where, f"it decides about calls before they run, so its point must be a `before` or a `guard`, not {point}"
        )


def _check_texts(where: str, name: str, given: object) -> list[str]:
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(each, str) and each for each in given):
        raise HookDefinitionError(where, f"`{name}` must be a list of texts; got {given!r:.200}")
    return list(given)


def _check_text(where: str, name: str, given: object) -> None:
    if not isinstance(given, str):
        raise HookDefinitionError(where, f"`{name}` must be text; got {given!r:.200}")


def _check_names(where: str, names: list[str]) -> None:
    unknown = sorted(set(names) - set(PATTERNS))
    if unknown:
        raise HookDefinitionError(where, f"`patterns` must be among {', '.join(PATTERNS)}; got {unknown[0]!r:.100}")


def _iterate_texts(call: Call) -> Iterator[str]:
    """Yield every text in a call."""
    match call:
        case ToolCall():
            yield from _iterate_leaves(call.args)
        case AgentCall():
            yield call.instructions
            yield from (message.content for message in call.input)
        case ModelCall():
            yield from (message.content for message in call.messages)
        case SubAgentCall():
            yield call.instruction
        case RequestCall():
            yield call.path
            yield from call.headers.values()
        case MemoryCall():
            yield from _iterate_leaves(msgspec.to_builtins(call.value, enc_hook=str))


def _iterate_leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _iterate_leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iterate_leaves(item)


ENTRY_POINT_GROUP = "hookline.handlers"
BUILT_IN = {
    name: f"hookline.registry._catalog:{name.replace('-', '_')}"
    for name in (
        *("allow-tools", "deny", "deny-phrases", "deny-text", "deny-tools", "limit-calls", "log"),
        *("redact", "require-approval", "scan-injections"),
    )
} | {"budget": "hookline.builtin:budget"}
"""The built-in handlers by name; entry points of other packages cannot take these names."""
DEFINITION_ARGUMENTS = ("id", "point", "priority", "tenant_id", "inherit")
"""Parameters of a factory that are filled from the definition's own fields, never from its `config`."""
REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z]\w*)", re.ASCII)

Factory = Callable[..., Any]


class HandlerEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A handler that definitions may name.

    Attributes:
        name: The name of the handler.
        provided_by: The package that provides it.
        description: What it does: the first line of its docstring; `""` if it cannot be loaded.
        parameters: The keys that `config` may have.
        required: The keys that `config` must have.
        schema: The JSON schema of `config`; `{}` if the handler cannot be loaded.
        problem: Why the handler cannot be loaded; `""` if it can.
    """

    name: str
    provided_by: str
    description: str = ""
    parameters: list[str] = []
    required: list[str] = []
    schema: dict[str, Any] = {}
    problem: str = ""


class HandlerCatalog:
    """The handlers that definitions may name. A handler that is not in the catalog is refused, and never imported.

    A handler is made by a factory: a function that is called with the `config` of the definition as keyword arguments,
    and returns the function for the definition's point, or a whole `Hooks` bundle. Its parameters `id`, `point`,
    `priority`, `tenant_id` and `inherit` come from the definition; `**options` receives all of them but `point`.

    Args:
        modules: Modules whose public functions may be named as `module:function`. A function that a module only
            imports from elsewhere may not be named, unless it is in the module's `__all__`.

    Raises:
        HookUsageError: If a module is no dotted name.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        if isinstance(modules, str) or not all(REFERENCE.fullmatch(f"{module}:x") for module in modules):
            raise HookUsageError(f"`modules` must be dotted names of modules; got {modules!r:.200}.")
        self._modules = frozenset(modules)
        self._loaded: dict[str, Factory] = {}
        self._signatures: dict[str, tuple[inspect.Signature, list[str]]] = {}
        self._entries: dict[str, bytes] = {}

    @cached_property
    def _installed(self) -> dict[str, list[EntryPoint]]:
        """The handlers of other packages, by name; looking for them takes longer than all else that a registry does."""
        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=ENTRY_POINT_GROUP):
            if entry.name not in BUILT_IN:
                found.setdefault(entry.name, []).append(entry)
        return found

    def __contains__(self, reference: str) -> bool:
        """Return whether a definition may name a handler; nothing is imported to find out."""
        match = REFERENCE.fullmatch(reference)
        if match is not None:
            return match[1] in self._modules
        return reference in BUILT_IN or len(self._installed.get(reference, ())) == 1

    def entries(self) -> list[HandlerEntry]:
        """List the built-in and installed handlers by name, loading all of them."""
        return [self._describe(name) for name in sorted({*BUILT_IN, *self._installed})]

    def describe(self, reference: str) -> HandlerEntry:
        """Describe a handler, loading it.

        Args:
            reference: Its name, or `module:function`.
        """
        return self._describe(reference)

    def build(
        self,
        definition: HookDefinition,
        *,
        budgets: BudgetStore | None = None,
        clock: Callable[[], float] | None = None,
    ) -> Any:
        """Call the factory of a definition's handler, and return the function or the bundle that it makes.

        Args:
            definition: A checked definition with a `handler`.
            budgets: Keeps the counts of budgets; `None` for counts that only the made hook knows.
            clock: The clock of hooks that take one; `None` for the time of now.

        Raises:
            DefinitionError: If the handler may not be named, cannot be loaded, or refuses the `config`.
        """
        reference = definition.handler or ""
        factory = self._get_factory(reference)
        arguments = self._bind_arguments(factory, reference, definition)
        if _takes_store(reference) and arguments.get("per") is not None:
            arguments["store"] = budgets
        if _takes_clock(reference) and clock is not None:
            arguments["clock"] = clock
        try:
            built = factory(**arguments)
        except Exception as error:
            raise DefinitionError(
                "config_refused", "$.config", f"the handler {reference!r} rejects it: {message_of(error)}"
            ) from error
        if inspect.iscoroutine(built):
            built.close()
            raise DefinitionError(
                "handler_broken", "$.handler", f"{reference!r} is async; a factory must be a plain function"
            )
        return built

    def _get_factory(self, reference: str) -> Factory:
        if reference not in self:
            raise DefinitionError("handler_not_allowed", "$.handler", self._explain_refusal(reference))
        factory = self._loaded.get(reference)
        if factory is None:
            try:
                factory = self._load(reference)
            except DefinitionError:
                raise
            except Exception as error:
                raise DefinitionError(
                    "handler_broken", "$.handler", f"{reference!r} cannot be loaded: {message_of(error)}"
                ) from error
            if not callable(factory):
                raise DefinitionError("handler_broken", "$.handler", f"{reference!r} is not a function")
            self._loaded[reference] = factory
        return factory

    def _load(self, reference: str) -> Factory:
        match = REFERENCE.fullmatch(BUILT_IN.get(reference, reference))
        if match is None:
            loaded: Factory = self._installed[reference][0].load()
            return loaded
        module = import_module(match[1])
        factory: Factory = getattr(module, match[2])
        public = getattr(module, "__all__", ())
        if match[2] not in public and getattr(factory, "__module__", None) != match[1]:
            raise DefinitionError(
                "handler_not_allowed",
                "$.handler",
                f"{match[2]!r} is not defined in {match[1]}; define it there, or add it to its `__all__`",
            )
        return factory

    def _explain_refusal(self, reference: str) -> str:
        if len(self._installed.get(reference, ())) > 1:
            return f"several installed packages have an entry point {reference!r}; uninstall all but one"
        names = ", ".join(sorted({*BUILT_IN, *self._installed}))
        modules = f", or a function in {', '.join(sorted(self._modules))}" if self._modules else ""
        return f"there is no handler {reference!r:.200} in this process; available: {names}{modules}"

    def _bind_arguments(self, factory: Factory, reference: str, definition: HookDefinition) -> dict[str, Any]:
        """Return the keyword arguments for a factory: a copy of the `config`, and fields of the definition."""
        config: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(definition.config))
        signature, wanted = self._get_signature(factory, reference)
        taken = sorted(set(config) & {*wanted, *_arguments_of_registry(reference)})
        if taken:
            raise DefinitionError(
                "config_refused", f"$.config.{taken[0]}", f"`{taken[0]}` comes from the definition itself; leave it out"
            )
        own = {name: definition.inherits if name == "inherit" else getattr(definition, name) for name in wanted}
        arguments = config | own
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise DefinitionError(
                "config_refused", "$.config", f"it does not match the arguments of the handler {reference!r}: {error}"
            ) from None
        return arguments

    def _get_signature(self, factory: Factory, reference: str) -> tuple[inspect.Signature, list[str]]:
        """Return the signature of a factory, and its parameters that are filled from the definition's own fields."""
        known = self._signatures.get(reference)
        if known is None:
            try:
                signature = inspect.signature(factory)
            except (TypeError, ValueError):
                raise DefinitionError(
                    "handler_broken", "$.handler", f"the signature of {reference!r} cannot be read"
                ) from None
            known = self._signatures[reference] = signature, _definition_arguments(signature)
        return known

    def _describe(self, name: str) -> HandlerEntry:
        """Describe a handler; one that cannot be loaded is tried again the next time."""
        known = self._entries.get(name)
        if known is None:
            entry = self._read_entry(name)
            if entry.problem:
                return entry
            known = self._entries[name] = pickle.dumps(entry)
        copy: HandlerEntry = pickle.loads(known)  # callers may change it; `deepcopy` takes several times as long
        return copy

    def _read_entry(self, name: str) -> HandlerEntry:
        installed = self._installed.get(name, ())
        package = installed[0].dist.name if installed and installed[0].dist is not None else "hookline"
        try:
            factory = self._get_factory(name)
            parameters = inspect.signature(factory).parameters
        except (DefinitionError, TypeError, ValueError) as error:
            return HandlerEntry(name=name, provided_by=package, problem=getattr(error, "problem", str(error)))
        own = {*_definition_arguments(inspect.signature(factory)), *_arguments_of_registry(name)}
        named = {
            key: parameter
            for key, parameter in parameters.items()
            if key not in own and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        }
        return HandlerEntry(
            name=name,
            provided_by=package,
            description=(inspect.getdoc(factory) or "").partition("\n")[0],
            parameters=list(named),
            required=[key for key, parameter in named.items() if parameter.default is parameter.empty],
            schema=_build_schema(factory, named, is_open=_is_open(factory, parameters.values())),
        )


def _takes_store(reference: str) -> bool:
    """Return whether a handler gets the store of the registry; other packages may use the name as they like."""
    return reference == "budget"


def _takes_clock(reference: str) -> bool:
    """Return whether a handler takes the clock by which it counts."""
    return reference == "limit-calls"


def _arguments_of_registry(reference: str) -> tuple[str, ...]:
    """Return the parameters that the registry sets: the store of a handler, its clock, the definition's `onError`."""
    if _takes_store(reference):
        return ("store", "on_error")
    return ("clock",) if _takes_clock(reference) else ()


def _definition_arguments(signature: inspect.Signature) -> list[str]:
    """Return the names of a factory's parameters that are filled from the definition's own fields."""
    parameters: Mapping[str, inspect.Parameter] = signature.parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return [name for name in DEFINITION_ARGUMENTS if name in parameters or (anything and name != "point")]


def _build_schema(factory: Factory, named: Mapping[str, inspect.Parameter], *, is_open: bool) -> dict[str, Any]:
    """Build the JSON schema of a handler's `config` from the annotations and the docstring of its factory.

    A parameter without an annotation, or with one that JSON has no schema for, may have any value.
    """
    annotations, (_, notes) = _read_annotations(factory), parse_docstring(inspect.getdoc(factory) or "")
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for name, parameter in named.items():
        found: dict[str, Any] = {}
        if name in annotations:
            with contextlib.suppress(TypeError, ValueError):
                kinds = [annotations[name]]
                (found,), components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
                definitions |= {key: _describe_fields(component) for key, component in components.items()}
        if parameter.default is not parameter.empty:
            with contextlib.suppress(TypeError, ValueError):
                found = found | {"default": msgspec.json.decode(msgspec.json.encode(parameter.default))}
        if name in notes:
            found = {"description": notes[name]} | found
        properties[name] = found
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = [name for name, parameter in named.items() if parameter.default is parameter.empty]
    if required:
        schema["required"] = required
    if not is_open:
        schema["additionalProperties"] = False
    return schema | ({"$defs": definitions} if definitions else {})


def _describe_fields(component: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a struct with a description of each field that its docstring describes."""
    _, notes = parse_docstring(inspect.cleandoc(component.get("description", "")))
    fields = component.get("properties", {})
    described = {
        name: {"description": notes[name]} | field if name in notes else field for name, field in fields.items()
    }
    return component | ({"properties": described} if fields else {})


def _read_annotations(factory: Factory) -> dict[str, Any]:
    try:
        return get_type_hints(factory, include_extras=True)
    except Exception:  # whatever the annotations of other packages raise, the handler can be used
        return {}


def _is_open(factory: Factory, parameters: Iterable[inspect.Parameter]) -> bool:
    """Return whether a factory takes arguments that it does not name."""
    anything = next((each for each in parameters if each.kind is each.VAR_KEYWORD), None)
    return anything is not None and get_origin(_read_annotations(factory).get(anything.name)) is not Unpack
