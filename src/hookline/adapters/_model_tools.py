"""Names of tools as providers take them: letters, digits, `_` and `-`, at most 64, each of them once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache

from pydantic_ai.tools import ToolDefinition

from hookline.calls import Message, ToolSpec

__all__ = ["WireNames", "definitions"]

LONGEST = 64
TAIL = 9
"""Characters of `_` and the digest that makes a changed name unique."""

_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_LOCAL = "local"


class WireNames:
    """What the tools of one call are named towards the provider.

    A local tool keeps its name, any other is `identifier__name`. What providers would refuse is replaced, and told
    apart by a digest, so that a tool has the same name in every call.

    Args:
        tools: The tools that are offered.
        messages: The conversation; it may hold calls of tools that are not offered any more.
    """

    def __init__(self, tools: Iterable[ToolSpec], messages: Iterable[Message]) -> None:
        pairs = {(spec.identifier, spec.name) for spec in tools}
        for message in messages:
            for calling in message.tool_calls:
                pairs.add((calling.identifier, calling.api_name))
        self._wire: dict[tuple[str, str], str] = {}
        self._tool: dict[str, tuple[str, str]] = {}
        for pair in sorted(pairs, key=_plain_names_first):
            name = _wire_name(*pair)
            if name in self._tool:
                name = _with_digest(name, *pair)
            self._wire[pair] = name
            self._tool[name] = pair

    def of(self, identifier: str, name: str) -> str:
        """What the provider calls a tool."""
        return self._wire[identifier, name]

    def tool(self, name: str) -> tuple[str, str]:
        """The identifier and name of the tool that a model asked for; a name that it made up is a local one."""
        return self._tool.get(name) or (_LOCAL, name)


def definitions(tools: Iterable[ToolSpec], names: WireNames) -> list[ToolDefinition]:
    """The offered tools, as the provider's library takes them."""
    return [
        ToolDefinition(
            name=names.of(spec.identifier, spec.name),
            description=spec.description or None,
            parameters_json_schema={"type": "object", "properties": {}, **spec.schema},
        )
        for spec in tools
    ]


def _plain_names_first(pair: tuple[str, str]) -> tuple[bool, bool, tuple[str, str]]:
    identifier, name = pair
    return identifier != _LOCAL, bool(_UNFIT.search(name)), pair


@lru_cache(maxsize=4096)
def _wire_name(identifier: str, name: str) -> str:
    full = name if identifier == _LOCAL else f"{identifier}__{name}"
    fit = _UNFIT.sub("_", full)
    return fit if fit and fit == full and len(fit) <= LONGEST else _with_digest(fit, identifier, name)


def _with_digest(fit: str, identifier: str, name: str) -> str:
    digest = hashlib.sha256(f"{identifier}\0{name}".encode(errors="backslashreplace")).hexdigest()[: TAIL - 1]
    return f"{fit[: LONGEST - TAIL]}_{digest}"
