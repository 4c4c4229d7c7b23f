"""`PortalLoop`: an event loop that runs what is ready without a turn, while nothing in it waits."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, TypeVarTuple

__all__ = ["PortalLoop", "make_portal_loop"]

Ts = TypeVarTuple("Ts")
Ready = tuple[asyncio.Handle, Callable[..., object], tuple[Any, ...], Context]
"""A callback that is ready: its handle, which may be cancelled, and what to call."""


class PortalLoop(asyncio.SelectorEventLoop):
    """An event loop whose callbacks can run without a turn, as long as nothing in it has waited.

    A turn asks the operating system for events, and costs as much as four callbacks. After `reset` it is left out while
    callbacks are all that the event loop is asked for: the first timer, file, signal, call of another thread, async
    generator or turn ends that.

    Attributes:
        is_turnless: Whether callbacks are all that the event loop was asked for since `reset`.
    """

    def __init__(self) -> None:
        self.is_turnless = False
        self._at_hand: deque[Ready] = deque()
        self._runs_at_hand = False
        self._asyncgen_hooks: tuple[Any, Any] | None = None
        """Those of asyncio, which are installed while the event loop runs."""
        super().__init__()

    @property
    def has_ready(self) -> bool:
        """Whether a callback is ready that no turn has taken over."""
        return bool(self._at_hand)

    def reset(self) -> None:
        """Forget that the event loop has waited, once nothing is left in it."""
        self.is_turnless = self._asyncgen_hooks is not None and not self.get_debug()

    def run_at_hand(self) -> None:
        """Run the callbacks that are ready, as one turn does."""
        assert self._asyncgen_hooks is not None
        at_hand, count = self._at_hand, len(self._at_hand)
        present = sys.get_asyncgen_hooks()
        self._runs_at_hand = True
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(self._note_asyncgen, self._asyncgen_hooks[1])
        try:
            while count and at_hand:
                count -= 1
                handle, callback, args, context = at_hand.popleft()
                if handle.cancelled():
                    continue
                try:
                    context.run(callback, *args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # as a turn reports it
                    message = f"Exception in callback {callback!r}"
                    self.call_exception_handler({"message": message, "exception": error, "handle": handle})
        finally:
            sys.set_asyncgen_hooks(*present)
            asyncio._set_running_loop(None)
            self._runs_at_hand = False

    def _wait(self) -> None:
        """Leave the callbacks that are ready to the next turn, in their order."""
        self.is_turnless = False
        while self._at_hand:
            handle, callback, args, context = self._at_hand.popleft()
            super().call_soon(_call_unless_cancelled, handle, callback, args, context=context)

    def _note_asyncgen(self, generator: Any) -> None:
        assert self._asyncgen_hooks is not None
        self._wait()
        self._asyncgen_hooks[0](generator)

    def _note_hooks(self) -> None:
        hooks = sys.get_asyncgen_hooks()
        self._asyncgen_hooks = hooks.firstiter, hooks.finalizer

    # What an event loop is asked for.

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self.is_turnless:
            context = copy_context() if context is None else context  # one without variables is false
            handle = asyncio.Handle(callback, args, self, context)
            self._at_hand.append((handle, callback, args, context))
            return handle
        if self._at_hand:
            self._wait()
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.is_turnless = False  # what is at hand belongs to the thread that runs the event loop
        return super().call_soon_threadsafe(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._wait()
        return super().call_at(when, callback, *args, context=context)

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        self._wait()
        super().add_reader(fd, callback, *args)

    def add_writer(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        self._wait()
        super().add_writer(fd, callback, *args)

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        self._wait()
        super().add_signal_handler(sig, callback, *args)

    def run_forever(self) -> None:
        self._wait()
        if self._asyncgen_hooks is None:
            super().call_soon(self._note_hooks)
        super().run_forever()

    def is_running(self) -> bool:
        return self._runs_at_hand or super().is_running()

    def stop(self) -> None:
        if not self._runs_at_hand:  # it is about to end, and what comes next is to go on
            super().stop()


def make_portal_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of the kind that the process has chosen; a `PortalLoop` if that is asyncio's own."""
    made = asyncio.new_event_loop()
    if type(made) is not asyncio.SelectorEventLoop:
        return made
    made.close()
    return PortalLoop()


def _call_unless_cancelled(handle: asyncio.Handle, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
    if not handle.cancelled():
        callback(*args)
