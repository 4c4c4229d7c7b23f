"""Error texts and reprs of hooks name a class as users import it."""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from hookline import Agent, AgentSession, Chain, HookDispatcher, Hooks, ToolCall, exec_agent
from hookline._checks import public_name
from hookline.dispatcher._lanes import LaneHost
from hookline.errors import HooklineError, MissingExtraError
from hookline.events import AfterStep
from hookline.hooks import Hook, Interceptor
from tests.tables import for_each

from .describe import NAMES, public_names


def public_classes() -> Iterator[tuple[str, str, type]]:
    """Return every public class of hookline with a module that has it."""
    for path in NAMES:
        try:
            module = import_module(path)
        except MissingExtraError:
            continue
        for name in public_names(module):
            value = getattr(module, name)
            own = str(getattr(value, "__module__", "")).partition(".")[0] == "hookline"
            if own and isinstance(value, type) and not isinstance(value, types.GenericAlias):
                yield path, name, value


CLASSES = list(public_classes())


@for_each("path, name, kind", CLASSES)
def test_the_name_of_a_public_class_can_be_imported(path: str, name: str, kind: type) -> None:
    home, _, found = public_name(kind).rpartition(".")

    assert getattr(import_module(home), found) is kind
    assert "._" not in home
    assert found in import_module(home).__all__
    assert home.count(".") <= path.count(".")


def test_a_class_of_the_root_is_named_there() -> None:
    assert {public_name(kind) for kind in (Hooks, ToolCall, Agent, AfterStep)} == {
        "hookline.Hooks",
        "hookline.ToolCall",
        "hookline.Agent",
        "hookline.AfterStep",
    }


def test_a_class_that_is_not_public_is_named_by_its_package() -> None:
    assert public_name(LaneHost) == "hookline.dispatcher.LaneHost"


def test_classes_of_others_have_the_names_of_their_modules() -> None:
    class Local:
        pass

    assert public_name(int) == "int"
    assert public_name(functools.partial) == "functools.partial"
    assert public_name(Local).endswith("test_classes_of_others_have_the_names_of_their_modules.<locals>.Local")


def test_a_class_with_a_public_name_that_is_another_class_does_not_take_it() -> None:
    fake = type("Hooks", (), {"__module__": "hookline.hooks._fake"})

    assert public_name(fake) == "hookline.hooks.Hooks"
    assert public_name(type("Chain", (), {"__module__": "hookline._chain"})) == "hookline.Chain"


def refuse(register: Callable[[], object]) -> str:
    with pytest.raises(HooklineError) as refused:
        register()
    return str(refused.value)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a call in place of an event": (lambda: Hooks().on(ToolCall)(print), "the class hookline.ToolCall is a call"),  # type: ignore[type-var]
    "an event in place of a call": (
        lambda: Hooks().guard(AfterStep)(print),
        "the class hookline.AfterStep is an event",
    ),  # type: ignore[type-var]
    "a class in place of a bundle": (lambda: Chain([Hooks]), "got the class hookline.Hooks"),  # type: ignore[list-item]
    "a dispatcher in place of a bundle": (lambda: Chain([HookDispatcher()]), "got <hookline.HookDispatcher object>"),  # type: ignore[list-item]
    "a bundle in place of an id": (lambda: Hooks(id=Chain), "got the class hookline.Chain"),  # type: ignore[arg-type]
    "a class in place of an agent": (
        lambda: asyncio.run(exec_agent(Agent, "go")),  # type: ignore[arg-type]
        "got the class hookline.Agent",
    ),
    "a chain in place of an agent": (lambda: AgentSession(Chain()), "got <hookline.Chain object>"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("register", "text"), WRONG.values(), ids=WRONG)
def test_an_error_text_names_a_class_by_its_public_import(register: Callable[[], Any], text: str) -> None:
    said = refuse(register)

    assert text in said
    assert "._" not in said


@pytest.mark.parametrize(
    "value", [type("Odd", (), {"__module__": None}), type("Odd", (), {"__module__": None})()], ids=["class", "object"]
)
def test_a_class_that_says_no_module_is_refused_with_a_text_all_the_same(value: Any) -> None:
    assert "hooks[0]" in refuse(lambda: Chain([value]))


def test_the_repr_of_a_hook_names_its_event_and_its_call_by_their_public_imports() -> None:
    hook = Hook(id="h", type=AfterStep, handler=print)
    interceptor = Interceptor(id="i", call=ToolCall, kind="guard", handler=print)

    assert repr(hook).startswith("Hook(id='h', type=hookline.AfterStep, handler=<built-in function print>, tool=None")
    assert repr(interceptor).startswith("Interceptor(id='i', call=hookline.ToolCall, kind='guard'")
