"""Fill the parameters of a template, such as `{item}`, with the values of a case."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

__all__ = ["MissingParameterError", "fill_text", "fill_value", "parameters_in"]

PARAMETER = re.compile(r"\{\{(?P<literal>[A-Za-z_]\w*)\}\}|\{(?P<name>[A-Za-z_]\w*)\}")
"""`{name}`, or `{{name}}` for a name in braces that is no parameter. Other braces are left alone, such as `{2}` in an
expression or `{"a": 1}`."""


class MissingParameterError(Exception):
    """A case has no value for a parameter.

    Attributes:
        name: The parameter.
        known: The names that the case has.
    """

    def __init__(self, name: str, known: Collection[str]) -> None:
        super().__init__(name, tuple(known))
        self.name, self.known = name, tuple(known)

    def __str__(self) -> str:
        near = difflib.get_close_matches(self.name, self.known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(self.known) or 'no values'}"
        return f"the case has no {self.name!r}, which the task uses as {{{self.name}}}{hint}"


def parameters_in(text: str) -> list[str]:
    """Return the names of the parameters of a text, each as often as it is there."""
    return [found["name"] for found in PARAMETER.finditer(text) if found["name"]]


def fill_text(text: str, values: Mapping[str, Any]) -> str:
    """Fill the parameters of a text.

    Args:
        text: The text. `{{name}}` becomes `{name}`.
        values: The value of each parameter. Numbers, `true`, `false`, lists and objects are written as JSON.

    Raises:
        MissingParameterError: If a parameter has no value.
    """

    def value_of(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return found[0][1:-1]
        if name not in values:
            raise MissingParameterError(name, values)
        value = values[name]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return PARAMETER.sub(value_of, text) if "{" in text else text


def fill_value(text: str, values: Mapping[str, Any]) -> Any:
    """Fill the parameters of a text that may stand for any value.

    A text that is nothing but one parameter becomes its value, of whatever type; see `fill_text` for others.

    Raises:
        MissingParameterError: If a parameter has no value.
    """
    whole = PARAMETER.fullmatch(text)
    if whole is None or not whole["name"]:
        return fill_text(text, values)
    if whole["name"] not in values:
        raise MissingParameterError(whole["name"], values)
    return values[whole["name"]]
