"""`RunBase`: the part of a run that async and sync loops share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Generic, NoReturn, TypeVar

from hookline.errors import HookUsageError
from hookline.events import PendingTool
from hookline.loop._binding import Decide, LoopBinding, Surroundings
from hookline.loop._client import Exchange, drop_resources, format_named, hook_client, kind_of
from hookline.loop._names import ToolNames
from hookline.runtime import AdapterRun

__all__ = ["RunBase"]

C = TypeVar("C")


class RunBase(Generic[C]):
    """The run of a loop; created by `wrap`.

    Args:
        client: The client passed to `wrap`.
        adapter: The run that calls the hooks.
        names: The tools of the run.
        decide: Asks a person about a tool call.
    """

    def __init__(self, client: C, adapter: AdapterRun, names: ToolNames, decide: Decide | None) -> None:
        self._given_client, self._adapter, self._names, self._decide = client, adapter, names, decide
        self._kind = kind_of(client)
        self._is_open = self._has_begun = False
        self.operation_id = adapter.operation_id

    # Set when the run begins. Properties would be one call more wherever they are read.
    @cached_property
    def _binding(self) -> LoopBinding:
        self._raise_not_begun()

    @cached_property
    def client(self) -> C:
        """A copy of your client whose model calls go through the hooks."""
        self._raise_not_begun()

    def _raise_not_begun(self) -> NoReturn:
        raise HookUsageError(
            f"Run {self.operation_id!r} has not begun: use it inside of `async with wrap(client, ...) as run:`, "
            "or `with` for a sync client."
        )

    def _begin(self, surroundings: Surroundings) -> LoopBinding:
        if self._has_begun:
            raise HookUsageError(
                f"Run {self.operation_id!r} was opened already; each run has one block. Call `wrap` again for the "
                "next run."
            )
        kind = self._kind
        self._has_begun = True
        self._binding = LoopBinding(
            self._adapter, self._names, surroundings, self._decide, native=kind.native, provider=kind.provider
        )
        return self._binding

    def _open_client(self, ask: Callable[[Exchange], Any]) -> None:
        """Create the client of the run, with no reference to this object, so that `__del__` notices a forgotten run."""
        self.client = hook_client(self._given_client, self.operation_id, ask)
        self._is_open = True

    def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            drop_resources(self.client)  # so that the client dies with the run, without the collector

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            warnings.warn(
                f"Run {self.operation_id!r} was never left, so its end was not announced and its hooks are still "
                "registered. Open it with `async with wrap(...) as run:`, or `with` for a sync client.",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The JSON Schemas of the tools, for chat completions or Anthropic's messages."""
        native = self._kind.native
        return [native.write_tool(tool, self._names) for tool in self._names.tools.values()]

    @property
    def response_tools(self) -> list[dict[str, Any]]:
        """The JSON Schemas of the tools, for OpenAI's Responses API."""
        format_ = format_named("responses")
        assert format_ is not None
        return [format_.write_tool(tool, self._names) for tool in self._names.tools.values()]

    @property
    def response(self) -> Any:
        """The last answer of the model as an object of the client; also after a stream was read."""
        last = self._binding.last
        if last is None or not isinstance(last.answer, Mapping):
            return last.answer if last is not None else None
        return last.exchange.parse(last.answer)

    @property
    def messages(self) -> list[Any]:
        """In a resumed run, the conversation so far in the client's own JSON."""
        stored = self._binding.stored()
        return list(stored.entries) if stored is not None else []

    @property
    def pending(self) -> list[PendingTool]:
        """In a resumed run, the calls that wait for a decision."""
        return self._binding.run.run.undecided()
