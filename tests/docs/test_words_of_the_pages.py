"""Links lead somewhere, and every name in the text exists."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pathlib
import re
import typing
from xml.etree import ElementTree

import pytest

import hookline
from hookline import HookDispatcher, Hooks, HookType, MissingExtraError, Phase
from hookline.otel import _attributes
from tests.tables import for_each

from .markdown import PAGES, ROOT, anchors, blocks, code_spans, links, title

PLACES = (
    "hookline",
    "hookline.calls",
    "hookline.errors",
    "hookline.evals.faults",
    "hookline.events",
    "hookline.hooks",
    "hookline.interceptors",
    "hookline.phases",
    "hookline.asgi",
    "hookline.bus",
    "hookline.delivery",
    "hookline.otel",
    "hookline.builtin",
    "hookline.registry",
    "hookline.runtime",
    "hookline.loop",
    "hookline.runtime._state",
    "hookline.server",
    "hookline.store",
    "hookline.wakeups",
    "hookline.budgets",
    "hookline.evals.adapter_contract",
    "hookline.evals",
    "hookline.evals.errors",
    "hookline.evals.suites",
    "hookline.evals.verdicts",
    "builtins",
    "typing",
    "hookline.adapters.agent_framework",
    "hookline.adapters.agent_hooks",
    "hookline.adapters.fastmcp",
    "hookline.adapters.langchain",
    "hookline.adapters.mcp",
    "hookline.adapters.models",
    "hookline.adapters.openai_agents",
    "hookline.adapters.pydantic_ai",
)
"""Modules in which a name is looked for; those of adapters last, as they import their frameworks."""
OWNERS = {"hooks": Hooks, "dispatcher": HookDispatcher, "hookline": hookline}
ELSEWHERE = {
    "AgentTool",
    "ClaudeSDKClient",
    "HookedClient",
    "SequentialAgent",
    "HostRegistry",
    "CompositionConfig",
    "ModelSettings",
    "RequestUsage",
    "TaskGroup",
    "CancelScope",
    "CancelledError",
    "StrEnum",
    "HookRunner",
    "AsyncOpenAI",
    "Anthropic",
    "OpenAI",
}
"""Names of others that the pages may mention."""
THEIRS = {
    "claude-agent-sdk": ["claude_agent_sdk"],
    "langchain": ["langchain.agents", "langchain.agents.middleware", "langchain_core.callbacks", "langgraph.types"],
    "openai-agents": ["agents"],
    "pydantic-ai": ["pydantic_ai", "pydantic_ai.capabilities", "pydantic_ai.exceptions"],
    "strands": ["strands", "strands.hooks", "strands.interrupt", "strands.interventions", "strands.middleware"],
}
"""Modules whose names the page about the move from that framework may mention too."""
MOVES = [path for path in PAGES if path.parent.name == "migrate" and path.stem in THEIRS]
TELEMETRY = set(re.findall(r'"((?:gen_ai|hookline)\.[\w.]+)"', inspect.getsource(_attributes)))
"""Names of attributes, events and metrics; a page may also name what several begin with."""


@for_each("path", PAGES, ids=title)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(path: pathlib.Path) -> None:
    for link in links(path.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, fragment = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{title(path)} links to {link}"
        if fragment:
            # A method has an anchor where its class is documented.
            known = anchors_of(target)
            assert {fragment, fragment.rpartition(".")[0]} & known, f"{title(path)} links to {link}"


def test_every_page_of_the_docs_can_be_reached_from_the_index() -> None:
    index = next(path for path in PAGES if path.match("docs/index.md"))
    reached, waiting = {index}, [index]
    while waiting:
        page = waiting.pop()
        for link in links(page.read_text()):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target in PAGES and target not in reached:
                reached.add(target)
                waiting.append(target)

    assert {path for path in PAGES if path.is_relative_to(index.parent)} <= reached


@for_each("path", [path for path in PAGES if path not in MOVES], ids=title)
def test_every_class_that_a_page_names_exists(path: pathlib.Path) -> None:
    find_classes_of(path, ELSEWHERE)


@pytest.mark.parametrize("path", MOVES, ids=title)
def test_every_class_that_a_page_about_a_move_names_exists(path: pathlib.Path) -> None:
    names = {name for module in THEIRS[path.stem] for name in dir(pytest.importorskip(module))}

    find_classes_of(path, ELSEWHERE | names)


def find_classes_of(path: pathlib.Path, others: set[str]) -> None:
    """Look for each class that a page names, unless it is one of others."""
    text = path.read_text()
    known = others | names_defined_on(text)
    for span in code_spans(text):
        name = re.match(r"([A-Z]+[a-z]+[A-Z]\w*|[A-Z]\w*(?=\())", span)
        if name and name[1] not in known:
            assert find(name[1]) is not None, f"{title(path)} names `{span}`"


@for_each("path", PAGES, ids=title)
def test_every_attribute_that_a_page_names_exists(path: pathlib.Path) -> None:
    for span in code_spans(path.read_text()):
        dotted = re.match(r"@?(\w+)((?:\.\w+)+)", span)
        if not dotted or any(name.startswith(span) for name in TELEMETRY):
            continue
        assert dotted[1] != "gen_ai", f"{title(path)} names `{span}`"
        owner = OWNERS.get(dotted[1]) or (find(dotted[1]) if dotted[1][0].isupper() else None)
        if owner is not None and not span.startswith("hookline.dev"):
            assert resolves(owner, dotted[2][1:]), f"{title(path)} names `{span}`"


@for_each("path", PAGES, ids=title)
def test_a_page_says_nothing_of_the_machine_it_was_written_on(path: pathlib.Path) -> None:
    assert not re.search(r"/work/|/root/|/home/|/tmp/", path.read_text())


@functools.cache
def anchors_of(path: pathlib.Path) -> set[str]:
    return anchors(path.read_text())


@functools.cache
def find(name: str) -> object:
    places = map(importlib.import_module, PLACES)
    return next((getattr(place, name) for place in places if hasattr(place, name)), None)


def resolves(owner: object, path: str) -> bool:
    for name in path.split("."):
        if isinstance(owner, type(hookline)) and not hasattr(owner, name):
            try:
                owner = importlib.import_module(f"{owner.__name__}.{name}")
            except MissingExtraError:
                return True  # the adapter of a framework that is not installed here
            except ImportError:
                return False
            continue
        if not hasattr(owner, name) and not (isinstance(owner, type) and is_of_instances(owner, name)):
            return False
        owner = getattr(owner, name, None)
    return True


def is_of_instances(kind: type, name: str) -> bool:
    return name in typing.get_type_hints(kind) or f"self.{name}" in _source(kind)


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def names_defined_on(text: str) -> set[str]:
    found = set()
    for block in blocks(text):
        if block.language == "python":
            for node in ast.walk(ast.parse(block.code)):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(node.name)
                elif isinstance(node, ast.ImportFrom | ast.Import):
                    found.update(alias.asname or alias.name for alias in node.names)
    return found


def test_the_picture_of_the_order_names_all_sixteen_events() -> None:
    assert {kind.value for kind in HookType} <= texts_of("order-of-events.svg")


def test_the_picture_of_the_phases_names_all_thirteen() -> None:
    assert {phase.value for phase in Phase} <= texts_of("phases.svg")


def test_the_picture_of_a_trace_names_every_kind_of_span_but_that_of_hooks() -> None:
    drawn = {(text or "").partition(" ")[0] for text in texts_of("trace.svg")}

    assert set(_attributes.OPENINFERENCE_KINDS) - {_attributes.HOOK} <= drawn


def test_the_picture_of_the_onion_names_every_kind_of_interceptor() -> None:
    assert {"before", "guard", "after", "around"} <= texts_of("onion.svg")


def texts_of(name: str) -> set[str | None]:
    """What a picture says, line by line; of a line in several fonts, each part."""
    picture = ElementTree.parse(ROOT / "docs" / "explanation" / name)
    return {
        element.text for kind in ("text", "tspan") for element in picture.iter(f"{{http://www.w3.org/2000/svg}}{kind}")
    }
