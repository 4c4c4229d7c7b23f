"""What stays of a chat: its events for `hookline trace`, and a cassette of what tools answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from hookline.cli._outputs import checked
from hookline.cli.errors import ChatArgumentError, TraceTargetError
from hookline.cli.trace import Recording, Tracing, replay_events, show_spans
from hookline.evals.cassettes import Cassette, CassetteError
from hookline.evals.trajectories import write_events
from hookline.hooks import Hooks

__all__ = ["Kept"]


class Kept:
    """Keeps what happens in a chat. Files are written after each answer: a terminal may be closed at any time.

    Args:
        trace: Where the events go.
        cassette: Where the answers of tools go. What is in that file already is replaced call by call.

    Raises:
        OutputFileError: If a file cannot be written.
        ChatArgumentError: If there is a file that is no cassette.
        MissingExtraError: If a cassette needs what is not installed.
    """

    def __init__(self, trace: Path | None, cassette: Path | None) -> None:
        self._path = checked(trace)
        self._recording = Recording()
        self._begun = 0
        self._cassette = None if cassette is None else _cassette(cassette)

    def hooks(self) -> Iterator[Hooks]:
        """What to give to the session."""
        if self._cassette is not None:
            yield self._cassette.hooks()
        yield self._recording.hooks

    def begin(self) -> None:
        """An answer begins."""
        if self._path is None:
            self._recording.events.clear()
        self._begun = len(self._recording.events)

    def save(self) -> None:
        """Write the files that were asked for.

        Raises:
            HooklineError: If one cannot be written.
        """
        try:
            if self._path is not None:
                write_events(self._path, self._recording.events)
        finally:
            if self._cassette is not None:
                self._cassette.save()

    def show(self, console: Console) -> None:
        """Show the latest answer as a tree of spans.

        Raises:
            MissingExtraError: If the SDK is not installed.
            TraceTargetError: If there is no answer yet.
        """
        events = self._recording.events[self._begun :]
        if not events:
            raise TraceTargetError("The chat", "nothing was answered yet")
        tracing = Tracing(None, content=True)
        replay_events(tracing.hooks, events)
        tracing.hooks.close()
        show_spans(console, tracing.spans, {})

    def files(self) -> Iterator[str]:
        """What was written, and where."""
        if self._path is not None and self._path.exists():
            yield f"Recorded chat: {self._path}"
        if self._cassette is not None and len(self._cassette):
            yield f"Cassette: {self._cassette.path} ({len(self._cassette)} recordings)"


def _cassette(path: Path) -> Cassette:
    try:
        return Cassette(path=checked(path), mode="all")
    except CassetteError as error:
        raise ChatArgumentError(f"--cassette {path}", str(error)) from error
