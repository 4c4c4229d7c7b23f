"""Write the files of a chat: its events, for `hookline trace`, and a cassette of its tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from hookline.cli._outputs import resolve_output
from hookline.cli.errors import ChatArgumentError, TraceTargetError
from hookline.cli.trace import EventRecording, Tracing, replay_events, show_spans
from hookline.evals.cassettes import Cassette, CassetteError
from hookline.evals.trajectories import write_events
from hookline.hooks import Hooks

__all__ = ["ChatFiles"]


class ChatFiles:
    """Records a chat, and writes its files after each answer: a terminal may be closed at any time.

    Args:
        trace: The file for events.
        cassette: The file for answers of tools. Recordings that it has already are replaced call by call.

    Raises:
        OutputFileError: If a file cannot be written.
        ChatArgumentError: If the file is not a cassette.
        MissingExtraError: If a cassette needs what is not installed.
    """

    def __init__(self, trace: Path | None, cassette: Path | None) -> None:
        self._path = resolve_output(trace)
        self._recording = EventRecording()
        self._begun = 0
        self._cassette = None if cassette is None else _cassette(cassette)

    def hooks(self) -> Iterator[Hooks]:
        """Return the bundles that record, to give to the session."""
        if self._cassette is not None:
            yield self._cassette.hooks()
        yield self._recording.hooks

    def begin(self) -> None:
        """Mark the start of an answer, which `show` shows."""
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
            raise TraceTargetError("The chat", "it has no answer yet")
        tracing = Tracing(None, content=True)
        replay_events(tracing.hooks, events)
        tracing.hooks.close()
        show_spans(console, tracing.spans, {})

    def files(self) -> Iterator[str]:
        """Return a line for each file that was written."""
        if self._path is not None and self._path.exists():
            yield f"Recorded chat: {self._path}"
        if self._cassette is not None and len(self._cassette):
            yield f"Cassette: {self._cassette.path} ({len(self._cassette)} recordings)"


def _cassette(path: Path) -> Cassette:
    try:
        return Cassette(path=resolve_output(path), mode="all")
    except CassetteError as error:
        raise ChatArgumentError(f"--cassette {path}", str(error)) from error
