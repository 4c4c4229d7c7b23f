"""`hooked`: attach hooks to an agent of any supported framework."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from hookline._checks import public_name
from hookline.errors import HookUsageError
from hookline.hooks import AnyHook

if TYPE_CHECKING:
    # Where a framework is not installed, a type checker takes its classes for `Any` and these overloads for one.
    from agents import Agent as OpenAIAgent
    from fastmcp import FastMCP
    from langgraph.pregel import Pregel
    from pydantic_ai.agent import AbstractAgent

    from hookline.adapters import langchain, openai_agents, pydantic_ai

__all__ = ["hooked"]


class Attachment(NamedTuple):
    """One kind of object that `hooked` takes.

    Attributes:
        package: The package whose class it is.
        names: The names of the class, or of a base class.
        adapter: The module that attaches hooks to it.
        attach: The name of the function in that module.
        shown: How errors name it.
    """

    package: str
    names: tuple[str, ...]
    adapter: str
    shown: str
    attach: str = "hooked"


ATTACHMENTS = (
    Attachment("pydantic_ai", ("AbstractAgent",), "hookline.adapters.pydantic_ai", "an `Agent` of Pydantic AI"),
    Attachment("agents", ("Agent",), "hookline.adapters.openai_agents", "an `Agent` of the OpenAI Agents SDK"),
    Attachment(
        "langgraph",
        ("Pregel",),
        "hookline.adapters.langchain",
        "an agent of LangChain's `create_agent`, or a compiled graph",
    ),
    Attachment(
        "strands", ("Agent", "MultiAgentBase"), "hookline.adapters.strands", "an `Agent`, graph or swarm of Strands"
    ),
    Attachment(
        "agent_framework",
        ("Agent", "BaseAgent"),
        "hookline.adapters.agent_framework",
        "an `Agent` of Microsoft Agent Framework",
    ),
    Attachment("google.adk", ("Runner",), "hookline.adapters.google_adk", "a `Runner` of Google ADK"),
    Attachment("fastmcp", ("FastMCP",), "hookline.adapters.fastmcp", "a `FastMCP` server"),
    Attachment(
        "claude_agent_sdk",
        ("ClaudeAgentOptions",),
        "hookline.adapters.claude_agent_sdk",
        "the `ClaudeAgentOptions` of the Claude Agent SDK",
    ),
    Attachment("openai", ("OpenAI", "AsyncOpenAI"), "hookline.loop", "a client of `openai`", "wrap"),
    Attachment("anthropic", ("Anthropic", "AsyncAnthropic"), "hookline.loop", "a client of `anthropic`", "wrap"),
)
"""The objects that `hooked` takes. Classes are compared by name, to avoid importing frameworks that are not used."""


if TYPE_CHECKING:

    @overload
    def hooked(
        thing: AbstractAgent[Any, Any], hooks: Iterable[AnyHook] = (), **options: Any
    ) -> pydantic_ai.HookedAgent[Any, Any]: ...
    @overload
    def hooked(thing: OpenAIAgent[Any], hooks: Iterable[AnyHook] = (), **options: Any) -> openai_agents.HookedAgent: ...
    @overload
    def hooked(
        thing: Pregel[Any, Any, Any, Any], hooks: Iterable[AnyHook] = (), **options: Any
    ) -> langchain.HookedAgent: ...
    @overload
    def hooked(thing: FastMCP, hooks: Iterable[AnyHook] = (), **options: Any) -> FastMCP: ...
    @overload
    def hooked(thing: Any, hooks: Iterable[AnyHook] = (), **options: Any) -> Any: ...


def hooked(thing: Any, hooks: Iterable[AnyHook] = (), **options: Any) -> Any:
    """Attach hooks to an agent that you already have, in any supported framework.

    Args:
        thing: An agent of Pydantic AI, the OpenAI Agents SDK, LangChain, Strands or Microsoft Agent Framework; a
            `Runner` of Google ADK; a `FastMCP` server; the `ClaudeAgentOptions` of the Claude Agent SDK; a client of
            `openai` or `anthropic`. A server is changed; everything else is not.
        hooks: The hooks of each run.
        options: Options of the runs: `operation_id`, `user_id`, `tenant_id`, `tags`, `dispatcher`, `store`,
            `drain_timeout`, `best_effort`, `allow_missing_hooks`; and options of the framework's own `hooked`.

    Returns:
        An object with the framework's own run methods: `run` of Pydantic AI, `ainvoke` of LangChain, and so on. If the
        framework can pause for a person, `resume(result, decisions)` continues a paused run.

    Raises:
        HookUsageError: If hooks cannot be attached to this object; the error lists the supported objects.
        UnsupportedHookError: If a hook would never be called.
        HookDefinitionError: If a hook is invalid.
        MissingExtraError: If the adapter needs an extra that is not installed.
    """
    found = find_attachment(type(thing))
    if found is None:
        raise _not_understood_error(thing)
    return getattr(import_module(found.adapter), found.attach)(thing, hooks=hooks, **options)


def find_attachment(kind: type) -> Attachment | None:
    """Return the attachment for objects of a class; `None` if hooks cannot be attached to them."""
    return next(
        (
            each
            for base in kind.__mro__
            for each in ATTACHMENTS
            if base.__name__ in each.names and _is_from(base, each.package)
        ),
        None,
    )


def _is_from(kind: type, package: str) -> bool:
    return f"{kind.__module__}.".startswith(f"{package}.")


def _not_understood_error(thing: Any) -> HookUsageError:
    hint = _hint(thing)
    understood = "; ".join(each.shown for each in ATTACHMENTS)
    kind = thing if isinstance(thing, type) else type(thing)
    got = f"the class {kind.__qualname__}" if thing is kind else f"an object of class {public_name(kind)}"
    return HookUsageError(f"hooked(...) cannot attach hooks to {got}.{hint} It takes {understood}.")


def _hint(thing: Any) -> str:
    """Return a sentence that suggests the right argument; `""` if there is no suggestion."""
    if isinstance(thing, type):
        if _is_from(thing, "agents") and thing.__name__ == "Runner":
            return " Pass the agent that you run with it: `await hooked(agent, hooks=[...]).run(input)`."
        if find_attachment(thing) is not None:
            return f" Create an object of it first: hooked({thing.__name__}(...), hooks=[...])."
        return " Pass an object, not a class."
    if inspect.isawaitable(thing):
        return " It is a coroutine that was not awaited: pass the agent to hooked(...) and await the run."
    if isinstance(thing, list | tuple | set | dict):
        return " Attach hooks to one agent at a time: [hooked(agent, hooks=[...]) for agent in agents]."
    if isinstance(thing, str):
        return " Create the agent with your framework first."
    for base in type(thing).__mro__:
        if _is_from(base, "hookline.adapters"):
            return " It already has hooks: pass the original agent, with all hooks in one list."
        if _is_from(base, "hookline"):
            return " For agents of hookline, use exec_agent(agent, prompt, hooks=[...])."
        near = next((each for each in _by_package(base)), None)
        if near is not None:
            return f" From this package, pass {near.shown}."
    if callable(thing):
        return " It is a function: call it, and pass the result."
    return ""


def _by_package(kind: type) -> Iterator[Attachment]:
    """Yield the attachments from the package of a class; the packages of LangChain all count as one."""
    package = "langgraph" if kind.__module__.startswith(("langchain", "langgraph")) else kind.__module__
    for each in ATTACHMENTS:
        if f"{package}.".startswith(f"{each.package}."):
            yield each
