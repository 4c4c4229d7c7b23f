"""Validate hooks when they are registered, and format values and classes for error texts."""

import fnmatch
import functools
import inspect
import math
import re
import sys
import types
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache
from types import BuiltinMethodType, FunctionType, MethodDescriptorType, MethodType
from typing import Annotated, Any, TypeGuard, Union, get_args, get_origin

import msgspec

from hookline.calls import DECISIONS
from hookline.errors import HookDefinitionError

__all__ = [
    "check_decides_nothing",
    "check_id",
    "check_priority",
    "check_signature",
    "check_tenant",
    "check_timeout",
    "check_tool",
    "format_record",
    "has_wildcard",
    "is_plain_function",
    "module_of",
    "name_of",
    "names_in",
    "public_name",
    "quote",
    "tool_matcher",
    "tool_test",
]


def public_name(kind: type) -> str:
    """Return the name by which users import a class, such as `hookline.ToolCall`.

    A class of hookline is looked up in the `__all__` of the public modules that are loaded; the root is named where it
    has the class, else the shortest path. Any other class has the name of the module that defines it.
    """
    name = kind.__qualname__
    if kind.__module__ == "builtins":
        return name
    if kind.__module__.partition(".")[0] != "hookline":
        return f"{kind.__module__}.{name}"
    homes = [
        path
        for path, module in list(sys.modules.items())
        if path.startswith("hookline.")
        and "._" not in path
        and name in getattr(module, "__all__", ())
        and vars(module).get(name) is kind
    ]
    root = sys.modules["hookline"]
    # The root imports a name when it is first used: it is asked only where a module has the class already.
    if homes and name in root.__all__ and getattr(root, name) is kind:
        return f"hookline.{name}"
    home = min(homes, key=lambda path: (path.count("."), path), default=kind.__module__.partition("._")[0])
    return f"{home}.{name}"


def quote(value: object) -> str:
    """Return a value as an error text shows it: cut if it is long, a class by its public name, never failing."""
    try:
        if isinstance(value, type):
            text = f"the class {public_name(value)}"
        elif type(value).__repr__ is object.__repr__:
            text = f"<{public_name(type(value))} object>"
        else:
            text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 200 else f"{text[:199]}…"


def format_record(record: msgspec.Struct) -> str:
    """Return the `repr` of a hook, with classes by their public names."""
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    texts = {name: public_name(value) if isinstance(value, type) else repr(value) for name, value in values.items()}
    return f"{type(record).__name__}({', '.join(f'{name}={text}' for name, text in texts.items())})"


def check_id(id: object, where: str) -> None:  # noqa: A002
    """Refuse an id that is not a non-empty string."""
    if not isinstance(id, str) or not id:
        raise HookDefinitionError(where, f"`id` must be a non-empty string; got {quote(id)}")


def check_priority(priority: object, where: str) -> None:
    """Refuse a priority that is out of range."""
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= 1000:
        raise HookDefinitionError(
            where, f"`priority` must be an integer from 0 (outermost) to 1000 (innermost); got {quote(priority)}"
        )


def check_tenant(tenant_id: object, where: str) -> None:
    """Refuse a tenant that is not a string."""
    if not isinstance(tenant_id, str):
        raise HookDefinitionError(where, f"`tenant_id` must be a string; got {quote(tenant_id)}")


def check_timeout(timeout: object, where: str, *, name: str = "timeout") -> None:
    """Refuse a timeout that is not a positive number of seconds.

    Args:
        timeout: The timeout.
        where: How the error names its owner.
        name: The name of the parameter.

    Raises:
        HookDefinitionError: If it is neither `None` nor a positive number.
    """
    if timeout is None or (timeout.__class__ is float and timeout > 0):
        return
    try:
        seconds = float(timeout) if isinstance(timeout, int | float) and not isinstance(timeout, bool) else math.nan
    except OverflowError:
        seconds = math.nan
    if not seconds > 0:
        raise HookDefinitionError(
            where, f"`{name}` must be a positive number of seconds, math.inf or None; got {quote(timeout)}"
        )


def tool_matcher(pattern: str | None) -> Callable[[str], object] | None:
    """Return a test on `toolset/tool_name` for a tool pattern; `None` when every tool matches."""
    return None if pattern is None or pattern == "*" else tool_test(pattern)


@lru_cache(1000)
def tool_test(pattern: str) -> Callable[[str], object]:
    """Return the test for a tool pattern. All filters of tools in hookline use it.

    Args:
        pattern: A glob over `toolset/tool_name`, in which `*` also matches `/`. One without a `/` means
            `*/<pattern>`: that tool, wherever it comes from. A sub-agent is `agent/<id>`.

    Returns:
        `(path) -> object`, true where the tool of that path is meant.
    """
    anywhere = "/" not in pattern
    if has_wildcard(pattern):
        return re.compile(fnmatch.translate(f"*/{pattern}" if anywhere else pattern)).match
    if not anywhere:
        return pattern.__eq__
    suffix = f"/{pattern}"
    return lambda path: path.endswith(suffix)


def has_wildcard(pattern: str) -> bool:
    """Return whether a tool pattern may mean several names."""
    return any(char in pattern for char in "*?[")


def check_tool(tool: object, name: str, *, has_tool: bool, where: str) -> None:
    """Refuse a tool pattern that could never match.

    Args:
        tool: The glob.
        name: The event or call that it filters.
        has_tool: Whether that has a tool at all.
        where: How the error names the hook.
    """
    if not isinstance(tool, str) or not tool:
        raise HookDefinitionError(
            where, f"`tool` must be a glob over 'toolset/tool_name' or over a tool's name; got {quote(tool)}"
        )
    if not has_tool:
        raise HookDefinitionError(where, f"{name} has no tool, so `tool={tool!r}` can never match; leave it out")


def is_plain_function(handler: object) -> TypeGuard[FunctionType]:
    """Return whether a handler is a function as `def` made it, which no decorator has wrapped or marked.

    Its code object then says what `inspect` takes ten microseconds to find out, and most handlers are such functions.
    """
    return handler.__class__ is FunctionType and not handler.__dict__


def _method_function(handler: object) -> object:
    """Return the function of a method that is bound to an object, and any other handler as it is."""
    return handler.__func__ if isinstance(handler, MethodType) else handler


def _accepts(function: FunctionType, count: int) -> bool:
    """Return whether a plain function is surely no generator and takes so many positional arguments."""
    code = function.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR) or code.co_kwonlyargcount:
        return False
    required = code.co_argcount - len(function.__defaults__ or ())
    return required <= count and (count <= code.co_argcount or bool(code.co_flags & inspect.CO_VARARGS))


def check_signature(handler: object, arguments: str, where: str) -> None:
    """Refuse a handler that cannot be called with what it will be called with.

    Args:
        handler: What was given.
        arguments: What it is called with, in words: `"the event"`, `"the call and the result"`.
        where: How the error names the hook.
    """
    if not callable(handler):
        raise HookDefinitionError(where, f"`handler` must be callable; got {quote(handler)}")
    function = _method_function(handler)
    itself = function is not handler
    if is_plain_function(function) and _accepts(function, itself + 1 + arguments.count(" and ")):
        return
    inner = _unwrap(handler)
    for body in (inner, type(inner).__call__):
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise HookDefinitionError(where, "`handler` is a generator function, which would never run; remove `yield`")
    given, method = arguments.split(" and "), _builtin_method(handler)
    try:
        if method is None:
            signature = inspect.signature(handler, follow_wrapped=False)
        else:
            signature, given = _method_signature(method), ["self", *given]
    except (TypeError, ValueError):
        return  # a builtin that does not say what it takes
    try:
        signature.bind(*given)
    except TypeError as error:
        raise HookDefinitionError(where, f"`handler` is called with {arguments}, but {error}") from None


def _builtin_method(handler: object) -> MethodDescriptorType | None:
    """Return the method of a builtin class that a handler is, bound to an object; `None` if it is something else."""
    if handler.__class__ is not BuiltinMethodType:
        return None
    bound: Any = handler
    method = getattr(type(bound.__self__), bound.__name__, None)
    return method if isinstance(method, MethodDescriptorType) else None


@lru_cache(maxsize=64)
def _method_signature(method: MethodDescriptorType) -> inspect.Signature:
    """Return the signature of a builtin method, with `self`.

    `inspect` parses its text anew each time, which takes 90 microseconds: half the time to register `list.append`.
    """
    return inspect.signature(method)


def check_decides_nothing(handler: object, what: str, where: str) -> None:
    """Refuse a handler whose return annotation names a decision, if its return value has no effect.

    Args:
        handler: The handler; an annotation that cannot be resolved is left to the check of what it returns.
        what: What the hook is, for the error: `"an observer"`.
        where: How the error names the hook.

    Raises:
        HookDefinitionError: If the annotation names a decision, in a union or under `Awaitable` too.
    """
    annotation = _return_annotation(handler)
    promised = None if annotation is None else _decision_in(annotation)
    if promised is not None:
        raise HookDefinitionError(
            where,
            f"its handler is annotated to return {promised.__name__}, but the return value of {what} has no effect. To "
            "deny a tool call or ask a person, use hooks.guard(ToolCall). To answer instead of the tool, call "
            "event.mock(...) on a BeforeToolCall and return None",
        )


def _return_annotation(handler: object) -> object:
    """Return what a handler is annotated to return, resolved; `None` where that cannot be known."""
    function: Any = _method_function(handler)
    if not is_plain_function(function):
        function = _innermost_function(handler)
    annotation = getattr(function, "__annotations__", {}).get("return")
    if not isinstance(annotation, str):
        return annotation
    if annotation == "None":  # the commonest of all; to evaluate it takes as long as the whole check of a signature
        return None
    try:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        enclosed = {name: cell.cell_contents for name, cell in cells}
        return eval(annotation, function.__globals__, enclosed)  # the annotation is the caller's own code
    except Exception:
        return None


def _innermost_function(handler: object) -> Any:
    """Return the function inside of decorators, partials, methods and callable objects."""
    inner: Any = inspect.unwrap(handler) if callable(handler) else handler
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    function: Any = inner if hasattr(inner, "__code__") else type(inner).__call__
    return getattr(function, "__func__", function)


def names_in(handler: object) -> frozenset[str]:
    """Return the names that a handler's code reads, and those in its return annotation; none of a compiled function."""
    function = _innermost_function(handler)
    codes, names = [getattr(function, "__code__", None)], set[str]()
    while codes:
        code = codes.pop()
        if isinstance(code, types.CodeType):
            names.update(code.co_names, code.co_freevars)
            codes.extend(code.co_consts)
    names.update(re.findall(r"\w+", str(getattr(function, "__annotations__", {}).get("return", ""))))
    return frozenset(names)


def _decision_in(annotation: object) -> type | None:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation if issubclass(annotation, DECISIONS) else None
    if hasattr(annotation, "__value__"):  # `type X = ...` of Python 3.12
        return _decision_in(annotation.__value__)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        parts = parts[:1]
    elif isinstance(origin, type) and issubclass(origin, Coroutine):
        parts = parts[2:]
    elif origin not in (Union, types.UnionType) and not (isinstance(origin, type) and issubclass(origin, Awaitable)):
        return None
    return next((found for part in parts if (found := _decision_in(part)) is not None), None)


def module_of(handler: object) -> str:
    """Return the module in which a handler was defined."""
    inner = _unwrap(handler)
    return str(getattr(inner, "__module__", None) or type(inner).__module__)


def name_of(handler: object) -> str:
    """Return the name of a handler."""
    inner = _unwrap(handler)
    return getattr(inner, "__name__", type(inner).__name__)


def _unwrap(handler: object) -> Any:
    """Return the function inside of a decorated one or of a partial."""
    if is_plain_function(handler):
        return handler
    inner: Any = inspect.unwrap(handler) if callable(handler) else handler
    return getattr(inner, "func", inner)
