"""Models by name: `"openai:gpt-5"` is looked up by the adapters that are installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points

from hookline.errors import AgentDefinitionError, MissingExtraError
from hookline.runtime._models import Model

__all__ = ["GROUP", "model_named"]

GROUP = "hookline.models"
"""The group of entry points that make models of names: functions `(name) -> Model | None`. Each is asked, in the order
of their own names, until one knows the model."""


def model_named(name: str, where: str) -> Model:
    """The model of a name.

    Args:
        name: `provider:model`.
        where: Who wants it, for the error.

    Raises:
        AgentDefinitionError: If no adapter that is installed knows it.
        MissingExtraError: If its adapter, or the provider's package, is not installed.
    """
    for find in _finders() if ":" in name else ():
        model = find(name)
        if model is not None:
            return model
    raise AgentDefinitionError(
        where,
        f"no adapter that is installed knows the model {name!r}; a name is `provider:model`, as in `openai:gpt-5`",
    )


@cache
def _finders() -> tuple[Callable[[str], Model | None], ...]:
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    if not found:
        raise MissingExtraError("models", "A model by its name")
    return tuple(entry.load() for entry in found)
