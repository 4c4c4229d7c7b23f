"""Run async code for threads that have no event loop: sync loops, the LangChain adapter, and the chat."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import queue
import signal
import sys
import threading
import types
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from contextvars import ContextVar, copy_context
from types import FrameType
from typing import Any, TypeVar, cast

from hookline._deadlines import runs_on_trio
from hookline.errors import HookUsageError

__all__ = [
    "EndedPortalError",
    "LoopPortal",
    "Portal",
    "calling_thread",
    "open_portal",
    "return_portal",
    "run_in_caller",
    "take_portal",
    "task_starter",
]

T = TypeVar("T")

THREAD_NAME = "hookline-portal"
MOST_EXITS = 100
"""Exceptions that end an event loop, after which its remaining tasks are left as they are."""

MOST_IDLE = 4
"""Event loops that are kept for later runs; to make and close one takes longer than to run a tool."""


_process = os.getpid()
"""The present process; to ask the operating system at each call takes as long as to run a callback."""


class EndedPortalError(RuntimeError):
    """The event loop of a portal has ended, or is about to."""

    def __init__(self) -> None:
        super().__init__("The event loop of this portal has ended.")


class Portal:
    """Runs coroutines in an event loop of another thread.

    Args:
        loop: The event loop, which runs in the present thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._process = _process
        self._runner: int | None = threading.get_ident()
        """The thread that runs the event loop."""

    @property
    def is_own_thread(self) -> bool:
        """Whether the present thread runs the event loop, and so must not wait for it."""
        return threading.get_ident() == self._runner

    def start(self, function: Callable[..., Awaitable[T]], *args: Any) -> Future[T]:
        """Start to run an async function with the context variables of the caller; does not wait.

        Raises:
            RuntimeError: If the event loop has ended.
        """

        async def run() -> T:
            return await function(*args)

        coroutine = run()
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function, and wait for its end; meanwhile this thread runs what `run_in_caller` gives it.

        An exception that no other code can hold back, such as a `KeyboardInterrupt`, cancels the function first.

        Raises:
            HookUsageError: If this thread runs the event loop, or the process was forked from that of the event loop.
        """
        self.check_process()
        if self.is_own_thread:
            raise HookUsageError(
                "A sync call here would block the event loop that the hooks need, for ever. Inside of a hook, or of an "
                "async function, use the async client."
            )
        caller = _Caller(self, self._loop, function, args)
        result: T = caller.serve(drives=self._begin(caller))
        return result

    def check_process(self) -> None:
        """Raise unless the event loop belongs to the present process.

        Raises:
            HookUsageError: If the process was forked from that of the event loop.
        """
        if self._process != _process:
            raise HookUsageError(
                "This process was forked while a run was open, and what its hooks need is not in it. Open a run in "
                "each process."
            )

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a plain function in the event loop: at once in its own thread, otherwise when it runs next."""
        if self.is_own_thread:
            function()
        else:
            self._loop.call_soon_threadsafe(function)

    def _begin(self, caller: _Caller) -> bool:
        """Start a caller's coroutine; return whether the present thread is to run the event loop."""
        self._loop.call_soon_threadsafe(caller.start)
        return False

    def _deliver(self, caller: _Caller, wake: Callable[[], None]) -> None:
        """Tell the event loop that a job of a caller is done."""
        caller.open_jobs -= 1
        self._loop.call_soon_threadsafe(wake)

    def _take(self) -> bool:
        """Return whether the present thread is to run the event loop."""
        return False

    def _run_ready(self) -> None:
        """Run what is ready in the event loop, and wait for nothing."""

    def _release(self) -> None:
        """Stop to run the event loop in the present thread."""

    def _note_change(self, caller: _Caller) -> None:
        """In the event loop: note that a caller has a job to do, or its result."""

    def _end(self, caller: _Caller) -> None:
        """Note that a caller has left."""


class LoopPortal(Portal):
    """Runs coroutines in an event loop of its own.

    The thread that waits for a result runs the event loop meanwhile: waking up another thread would take longer than
    most of what is run here. Only if tasks are left when nobody waits, a thread of the portal's own runs it.
    """

    def __init__(self) -> None:
        super().__init__(asyncio.new_event_loop())
        self._runner = None
        self._ready: deque[asyncio.Handle] | None = getattr(self._loop, "_ready", None)
        """The callbacks that the event loop is to run next; `None` for one that is not asyncio's own."""
        self._is_ending = False
        """Whether it takes no further callers and tasks."""
        self._in_turn = False
        """Whether `_run_ready` runs it, which ends by itself."""
        self._tasks = TrackedTasks(self._stop_if_idle)
        self._loop.set_task_factory(self._tasks)
        self._lock = threading.Lock()
        self._callers: set[_Caller] = set()
        self._arriving = 0
        """Tasks that other threads have asked for, and that do not exist yet."""
        self._started: set[Future[Any]] = set()
        self._taskless: set[TasklessCall] = set()
        """What runs without a task now."""
        self._substitute: _SubstituteTask | None = None
        """What code that runs without a task sees as its task."""
        self._background: threading.Thread | None = None
        self._turns: queue.SimpleQueue[object | None] = queue.SimpleQueue()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a plain function as a callback of the event loop would be called, and return its result.

        Waits for nothing, unless another thread runs the event loop.
        """
        if not self._take_unused():
            return self.run(_as_async(function), *args)
        asyncio._set_running_loop(self._loop)
        try:
            return copy_context().run(function, *args)
        finally:
            asyncio._set_running_loop(None)
            self._release()

    def call_outside(self, function: Callable[..., T], *args: Any) -> T:
        """Call a plain function that needs no event loop, at a moment at which nothing runs in it."""
        if not self._take_unused():
            return self.run(_as_async(function), *args)
        try:
            return function(*args)
        finally:
            self._release()

    def run_at_once(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run an async function that waits for nothing."""
        return TasklessCall(self).run(function, *args)

    def start(self, function: Callable[..., Awaitable[T]], *args: Any) -> Future[T]:
        with self._lock:
            if self._is_ending:
                raise EndedPortalError
            self._arriving += 1
            if self._runner is None:
                self._hand_over()
            started = super().start(function, *args)  # under the lock, so that the event loop cannot end before
            self._loop.call_soon_threadsafe(self._arrive)
            self._started.add(started)
        started.add_done_callback(self._started.discard)
        return started

    def _arrive(self) -> None:
        with self._lock:
            self._arriving -= 1
        self._stop_if_idle()

    @contextmanager
    def open(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter and leave an async context manager in the event loop, in one task."""
        entered: Future[tuple[T, asyncio.Event]] = Future()
        raised: tuple[Any, Any, Any] = (None, None, None)

        async def hold() -> bool | None:
            try:
                value = await context.__aenter__()
            except BaseException as error:
                entered.set_exception(error)
                raise
            left = asyncio.Event()
            entered.set_result((value, left))
            try:
                await left.wait()
            finally:
                swallows = await context.__aexit__(*raised)
            return swallows

        holding = self.start(hold)
        value, left = entered.result()
        try:
            yield value
        except BaseException:
            raised = sys.exc_info()
            self._leave(left)
            if not holding.result():
                raise
        else:
            self._leave(left)
            holding.result()

    def _leave(self, left: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the event loop has ended, and has left the context
            self._loop.call_soon_threadsafe(left.set)

    def close(self, *, cancel: bool) -> None:
        """End the event loop and its thread.

        Args:
            cancel: Whether to cancel what `start` has started, rather than wait for it.
        """
        if self._process != _process:
            return
        try:
            if not cancel:
                wait(list(self._started))
        finally:
            if not self._loop.is_closed():
                try:
                    self.run(self._shut_down)
                except (RuntimeError, asyncio.CancelledError):
                    if not self._is_ending:  # or its own thread has closed it
                        raise
            self._abandon_callers()
            if self._background is not None:
                self._turns.put(None)
                self._background.join()
            self._loop.close()

    def _abandon_callers(self) -> None:
        """Have the threads raise whose functions were cancelled before they began, which no function notices."""
        with self._lock:
            for each in self._callers:
                each.abandon()
            if self._background is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stop_if_idle)

    @property
    def is_reusable(self) -> bool:
        """Whether nothing of its use is left, so that another run may use its event loop."""
        if self._process != _process or self._loop.is_closed():
            return False
        if self._background is not None or self._callers or self._taskless or not self._tasks.unused:
            return False
        if self._ready is None:
            return False  # the rest is known of asyncio's own event loops only
        loop: Any = self._loop
        return not (self._ready or loop._scheduled or loop._asyncgens or loop._default_executor)

    async def _shut_down(self) -> None:
        """Cancel every task, and end what belongs to the event loop."""
        with self._lock:
            self._is_ending = True
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for each in left:
            each.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    # Who runs the event loop.

    def _begin(self, caller: _Caller) -> bool:
        with self._lock:
            if self._is_ending:
                raise EndedPortalError
            self._callers.add(caller)
            if not self._take_if_free():
                return super()._begin(caller)
        caller.start()
        return True

    def _deliver(self, caller: _Caller, wake: Callable[[], None]) -> None:
        with self._lock:
            caller.open_jobs -= 1
            if self._runner is None:  # and nobody begins to run it before this lock is released
                wake()
                return
        self._loop.call_soon_threadsafe(wake)

    def _end(self, caller: _Caller) -> None:
        with self._lock:
            self._callers.discard(caller)
            if not caller.has_ended:
                self._tasks.unused = False
            is_runner = self._runner == caller.thread
        if is_runner:
            self._release()

    def _take(self) -> bool:
        with self._lock:
            return self._take_if_free()

    def _take_unused(self) -> bool:
        """Have the present thread run the event loop, if it may and no thread does; return whether it is to."""
        if self._process != _process or asyncio._get_running_loop() is not None or runs_on_trio():
            return False
        with self._lock:
            if self._runner is not None or self._is_ending:
                return False
            self._runner = threading.get_ident()
            return True

    def _take_if_free(self) -> bool:
        if self._runner is not None:
            return self._runner == threading.get_ident()
        if asyncio._get_running_loop() is not None or runs_on_trio():  # a thread cannot run two
            self._hand_over()
            return False
        self._runner = threading.get_ident()
        return True

    def _run_ready(self) -> None:
        # A turn of `run_forever` does the same in more than twice the time, as it also asks the operating system what
        # has happened. Most of what runs here waits for nothing.
        loop: Any = self._loop
        ready = self._ready
        if ready is None:
            loop.stop()
            loop.run_forever()
            return
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(loop._asyncgen_firstiter_hook, loop._asyncgen_finalizer_hook)
        asyncio._set_running_loop(loop)
        loop._thread_id = threading.get_ident()
        self._in_turn = True
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            self._in_turn = False
            loop._thread_id = None
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _make_substitute(self) -> _SubstituteTask:
        """Make the task that code without a task sees, in a thread that has taken the event loop."""
        self._substitute = _SubstituteTask(_do_nothing(), loop=self._loop)
        self._run_ready()
        return self._substitute

    def _release(self) -> None:
        with self._lock:
            if not (self._arriving or self._tasks.alive or self._callers):
                self._runner = None
                return
        try:
            for _ in range(2):
                if not self._tasks.any_alive():
                    break
                self._run_ready()  # most tasks that are left end with their first step
        finally:
            with self._lock:
                if self._has_work():
                    self._hand_over()
                else:
                    self._runner = None

    def _has_work(self) -> bool:
        return bool(self._arriving) or self._tasks.any_alive() or any(each.needs_loop for each in self._callers)

    def _hand_over(self) -> None:
        """Have the thread of the portal's own run the event loop."""
        if self._background is None:
            self._background = threading.Thread(target=self._run_in_background, name=THREAD_NAME, daemon=True)
            self._background.start()
        assert self._background.ident is not None
        self._runner = self._background.ident
        self._turns.put(self)

    def _run_in_background(self) -> None:
        while self._turns.get() is not None:
            while self._keeps_turn():
                try:
                    self._loop.run_forever()
                except BaseException:  # such as the SystemExit of a task
                    self._fail()
                    return

    def _keeps_turn(self) -> bool:
        """Return whether the background thread has anything to run; if not, it no longer runs the event loop.

        A caller that looked before its result was there, and hands over after it, gives a turn in which nothing runs.
        """
        with self._lock:
            if self._has_work():
                return True
            self._runner = None
            return False

    def _fail(self) -> None:
        """End the event loop, which an exception has torn, and what waits for it."""
        for _ in range(MOST_EXITS):
            try:
                self._loop.run_until_complete(self._shut_down())
                break
            except BaseException:  # of another task, such as that of a task group in which the first one was
                continue
        with self._lock:
            self._is_ending = True
            self._loop.close()
            self._runner = None
            for each in self._callers:
                each.abandon()
            unfinished = list(self._started)
        for started in unfinished:
            started.cancel()

    def _note_change(self, caller: _Caller) -> None:
        if self._runner == caller.thread:
            if not self._in_turn:
                self._loop.stop()
        else:
            self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        """In the event loop: have the background thread stop to run it, if nothing is left to run."""
        if self._background is None or self._runner != self._background.ident:
            return
        with self._lock:
            if not self._has_work():
                self._loop.stop()


class TrackedTasks:
    """The task factory of an event loop, which knows its tasks.

    Args:
        on_end: Called in the event loop when one has ended.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.unused = True
        """Whether it has made no task."""
        self.alive: set[asyncio.Task[Any]] = set()
        """Those that have not ended, and those that have and whose callbacks have not run."""
        self._on_end = on_end
        self.waiting: set[asyncio.Task[Any]] = set()
        """Those that wait for a job of their caller."""

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return self.start(coroutine, loop=loop, **options)

    def start(self, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """Start a task, with the options of `asyncio.Task`."""
        task = asyncio.Task(coroutine, **options)
        self.unused = False
        self.alive.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        self.alive.discard(task)
        self._on_end()

    def any_alive(self) -> bool:
        """Return whether any task has something to do in the event loop."""
        return bool(self.alive) and any(not each.done() and each not in self.waiting for each in self.alive)


def task_starter(loop: asyncio.AbstractEventLoop) -> Callable[..., asyncio.Task[Any]]:
    """Return what starts a task in an event loop, with the arguments of `asyncio.Task`.

    It never starts one eagerly, even where the event loop has a task factory that does so.
    """
    tracked = loop.get_task_factory()
    return tracked.start if isinstance(tracked, TrackedTasks) else asyncio.Task


_idle: list[LoopPortal] = []
_inherited: list[LoopPortal] = []
"""Those of the process that this one was forked from. To close one would end that of the other process too."""


def take_portal() -> LoopPortal:
    """Return an event loop for threads that have none; the caller gives it to `return_portal` in the end."""
    try:
        return _idle.pop()
    except IndexError:
        return LoopPortal()


def return_portal(portal: LoopPortal, *, cancel: bool) -> None:
    """Keep an event loop for a later run, or close it if anything of its use is left.

    Args:
        portal: What `take_portal` returned.
        cancel: Whether to cancel what it has started and not finished, rather than wait for it.
    """
    if portal.is_reusable and len(_idle) < MOST_IDLE:
        _idle.append(portal)
    else:
        portal.close(cancel=cancel)


@contextmanager
def open_portal() -> Iterator[LoopPortal]:
    """Make an event loop for threads that have none, for as long as the block runs."""
    portal, cancel = take_portal(), True
    try:
        yield portal
        cancel = False
    finally:
        return_portal(portal, cancel=cancel)


def _close_idle_portals() -> None:
    while _idle:
        _idle.pop().close(cancel=True)


def _leave_inherited_portals() -> None:
    global _process
    _process = os.getpid()
    _inherited.extend(_idle)
    _idle.clear()


atexit.register(_close_idle_portals)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_inherited_portals)


def _as_async(function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    async def run(*args: Any) -> T:
        return function(*args)

    return run


class _Caller:
    """A thread that waits for a coroutine, and runs functions for it.

    Args:
        portal: Where the coroutine runs.
        loop: The event loop.
        function: Makes the coroutine.
        args: Its arguments.

    Attributes:
        thread: The thread.
        open_jobs: How many functions it has been given whose outcome the coroutine does not have.
        has_ended: Whether the coroutine has ended, which the thread may not have waited for.
    """

    open_jobs = 0
    has_ended = _begun = _left = False
    _task: asyncio.Task[None] | None = None
    _result: object = None
    _error: BaseException | None = None
    _interrupt: BaseException | None = None

    def __init__(
        self,
        portal: Portal,
        loop: asyncio.AbstractEventLoop,
        function: Callable[..., Awaitable[object]],
        args: tuple[Any, ...],
    ) -> None:
        self.thread = threading.get_ident()
        self._portal, self._loop, self._function, self._args = portal, loop, function, args
        # Its `get` is interrupted by Ctrl-C, and its `put` may come from a signal handler.
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()

    @property
    def needs_loop(self) -> bool:
        """Whether the coroutine waits for the event loop, and not for this thread."""
        return not self.has_ended and not self.open_jobs

    def start(self) -> None:
        """Start to run the function, in the event loop, unless the event loop has ended meanwhile."""
        if not self.has_ended:
            self._task = asyncio.Task(self._work(), loop=self._loop)

    async def _work(self) -> None:
        self._begun = True
        _present_caller.set(self)
        try:
            if self._left:
                raise asyncio.CancelledError
            self._result = await self._function(*self._args)
        except BaseException as error:  # for the caller; some of them would end the event loop
            self._error = error
        self.has_ended = True
        # The context of the task refers to this object, and what has run may refer to the task: without this, both
        # would wait for the collector.
        self._task = None
        del self._function, self._args
        self._tell(None)

    def _tell(self, job: Callable[[], object] | None) -> None:
        self._jobs.put(job)
        self._portal._note_change(self)

    def serve(self, *, drives: bool) -> Any:
        """Run functions, and the event loop if nobody else does, until the coroutine has ended; return its result.

        Args:
            drives: Whether the present thread has already taken the event loop.
        """
        try:
            while not self.has_ended:
                try:
                    has_taken, drives = drives, False
                    job = self._next_job(has_taken)
                    if job is not None:
                        job()
                except BaseException as error:
                    if self._interrupt is not None:
                        raise
                    self._interrupt, self._left = error, True
                    self._cancel_in_loop()
        finally:
            self._portal._end(self)
        if self._interrupt is not None:
            raise self._interrupt
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # or it and this frame would keep each other
        result, self._result = self._result, None
        return result

    def _next_job(self, has_taken: bool) -> Callable[[], object] | None:
        """Run the event loop until it has something for this thread, unless another one runs it; return a job of it."""
        if has_taken or self._portal._take():
            try:
                # Most of what runs here waits for nothing; and what follows one job comes before the next.
                self._portal._run_ready()
                if self.has_ended:
                    return None
                if self._jobs.empty():
                    self._drive_and_wait()
            finally:
                if not self.has_ended:  # else `_end` does it
                    self._portal._release()
        elif not self.has_ended:
            return self._jobs.get()
        try:
            return self._jobs.get_nowait()
        except queue.Empty:  # somebody else has stopped the event loop
            return None

    def _drive_and_wait(self) -> None:
        caught = self.thread == _main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if caught:  # a KeyboardInterrupt that is raised in a hook ends it as a failure of its own
            signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            self._loop.run_forever()
        finally:
            if caught:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._interrupt is not None:
            raise KeyboardInterrupt
        self._interrupt, self._left = KeyboardInterrupt(), True
        self._cancel()
        self._loop.call_soon_threadsafe(bool)  # wakes it up

    def abandon(self) -> None:
        """Have the thread raise that the coroutine was cancelled, unless it has ended."""
        if not self.has_ended:
            self._error, self.has_ended = self._error or asyncio.CancelledError(), True
            if self._task is not None and not self._begun:
                self._task.get_coro().close()  # or Python would warn that nobody has awaited it
            self._jobs.put(None)

    def _cancel_in_loop(self) -> None:
        if self._portal._take():
            self._cancel()
        else:
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and self._begun:
            self._task.cancel()

    async def give(self, function: Callable[[], T]) -> T:
        """Have the thread run a function, and wait for it."""
        context = copy_context()
        outcome: list[tuple[Any, BaseException | None]] = []
        waiting = self._loop.create_future()

        def wake() -> None:
            if not waiting.done():
                waiting.set_result(None)

        def job() -> None:
            try:
                if self._left:
                    raise asyncio.CancelledError
                outcome.append((context.run(function), None))
            except (Exception, asyncio.CancelledError) as error:
                outcome.append((None, error))  # a future cannot carry StopIteration
            except BaseException as interrupt:
                outcome.append((None, interrupt))
                raise
            finally:
                self._portal._deliver(self, wake)

        tracked = self._loop.get_task_factory()
        task = cast("asyncio.Task[Any]", asyncio.current_task(self._loop))
        others = tracked.waiting if isinstance(tracked, TrackedTasks) else set()
        others.add(task)
        self.open_jobs += 1
        self._tell(job)
        cancellation: asyncio.CancelledError | None = None
        try:
            while True:
                try:
                    await waiting
                except asyncio.CancelledError as raised:  # nobody can stop the function
                    cancellation = raised
                if outcome:
                    break
                waiting = self._loop.create_future()
        finally:
            others.discard(task)
        if cancellation is not None:
            try:
                raise cancellation  # this one, as it says which scope it comes from
            finally:
                del cancellation
        value, error = outcome[0]
        if error is not None and not isinstance(error, Exception | asyncio.CancelledError):
            task.cancel()  # so that what it runs can tell this from a tool that raises a CancelledError
            raise asyncio.CancelledError
        if error is not None:
            raise error
        return cast(T, value)


class TasklessCall:
    """An async function that the calling thread runs without a task, in an event loop that it has taken.

    It is to wait for nothing but functions that `run_in_caller` gives to the thread; the event loop is free while one
    of these runs. To start a task, and to wait for it, takes longer than the plain hooks of a tool call. If another
    thread runs the event loop, or if the function waits for something else after all, the rest runs in a task.

    Args:
        portal: The event loop.

    Attributes:
        thread: The thread.
        is_cancelled: Whether `cancel` was called.
    """

    def __init__(self, portal: LoopPortal) -> None:
        self.thread = threading.get_ident()
        self.is_cancelled = False
        self._portal = portal
        self._holds = False
        """Whether the thread has taken the event loop."""
        self._cancels = 0
        """How many times the code has cancelled its own task."""
        self._given: Callable[[], Any] = bool
        self._task: asyncio.Task[Any] | None = None

    def cancel(self) -> None:
        """Have the function raise a cancellation where it waits, from any thread."""
        self.is_cancelled = True
        task = self._task
        if task is not None:
            self._portal._loop.call_soon_threadsafe(task.cancel)

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run an async function.

        Raises:
            HookUsageError: As `Portal.run`.
            EndedPortalError: If the event loop has ended.
            CancelledError: If it ends while the function waits, or the function was cancelled.
        """
        portal = self._portal
        portal._taskless.add(self)
        self._context = copy_context()
        self._context.run(_present_caller.set, self)
        self._coroutine: Coroutine[Any, Any, Any] = function(*args)
        try:
            result: T = self._drive()
        except BaseException:
            if inspect.getcoroutinestate(self._coroutine) != inspect.CORO_CLOSED:  # it still waits: an interrupt
                self._cancel_rest()
            raise
        finally:
            portal._taskless.discard(self)
            if self._holds:
                portal._release()
            del self._coroutine, self._context, self._given  # the context refers to this object
        return result

    def _drive(self) -> Any:
        portal = self._portal
        found: object = None
        value: object = None
        error: BaseException | None = None
        cancels = 0
        while self._holds or self._take():
            try:
                found = self._step(value, error)
            except StopIteration as stop:
                return stop.value
            value = error = None
            if self.is_cancelled or self._cancels > cancels:
                error, cancels = asyncio.CancelledError(), self._cancels
                continue
            self._holds = False
            portal._release()
            if found is not self:
                return portal.run(self._go_on, found)
            try:
                value = self._run_given()
            except (Exception, asyncio.CancelledError) as raised:
                error = raised
        if found is self and portal._is_ending:
            raise asyncio.CancelledError
        return portal.run(self._go_on, self, value, error)

    def _take(self) -> bool:
        self._holds = self._portal._take_unused()
        return self._holds

    def _step(self, value: object, error: BaseException | None) -> object:
        """Run the function until it waits, and return for what.

        Raises:
            StopIteration: With its result, if it has ended.
        """
        portal = self._portal
        if portal._ready is None or portal._ready:
            portal._run_ready()
        substitute, loop = portal._substitute or portal._make_substitute(), cast(Any, portal._loop)
        if portal._ready is not None:
            loop._thread_id = self.thread  # or it would say that it does not run
        asyncio._set_running_loop(loop)
        _enter_task(loop, substitute)
        substitute.cancels = self._cancels
        try:
            if error is None:
                return self._context.run(self._coroutine.send, value)
            return self._context.run(self._coroutine.throw, error)
        finally:
            self._cancels, substitute.cancels = substitute.cancels, 0
            _leave_task(loop, substitute)
            asyncio._set_running_loop(None)
            if portal._ready is not None:
                loop._thread_id = None

    @types.coroutine
    def give(self, function: Callable[[], T]) -> Generator[TasklessCall, T, T]:
        """Have the thread run a function, and wait for it."""
        self._given = function
        return (yield self)

    def _run_given(self) -> Any:
        return self._context.copy().run(self._given)

    async def _go_on(self, found: object, value: object = None, error: BaseException | None = None) -> Any:
        """Run the rest of the function in the present task.

        Args:
            found: What it waits for; this object if its outcome is there already.
            value: The result of that.
            error: What that raised.
        """
        has_outcome, self._task = found is self, asyncio.current_task()
        if self.is_cancelled and error is None:
            has_outcome, error = True, asyncio.CancelledError()
        try:
            while True:
                if not has_outcome:
                    value = error = None
                    try:
                        value = await (run_in_caller(self._run_given) if found is self else _pass_on(found))
                    except BaseException as raised:
                        error = raised
                has_outcome = False
                if error is None:
                    found = self._context.run(self._coroutine.send, value)
                else:
                    found = self._context.run(self._coroutine.throw, error)
        except StopIteration as stop:
            return stop.value
        finally:
            self._task = None

    def _cancel_rest(self) -> None:
        """Have the function end as cancelled; what it raises is dropped."""
        portal = self._portal
        if inspect.getcoroutinestate(self._coroutine) == inspect.CORO_CREATED:
            self._coroutine.close()
            return
        self._cancels += 1
        with suppress(Exception, asyncio.CancelledError):
            if not (self._holds or self._take() or portal._is_ending):
                portal.run(self._go_on, self, None, asyncio.CancelledError())
                return
            for _ in range(MOST_EXITS):
                if self._holds:
                    self._step(None, asyncio.CancelledError())
                else:
                    self._context.run(self._coroutine.throw, asyncio.CancelledError())


@types.coroutine
def _pass_on(found: object) -> Generator[object, Any, Any]:
    """Wait for what another coroutine has asked its event loop for."""
    return (yield found)


class _SubstituteTask(asyncio.Task[None]):
    """What code that runs without a task sees as its task. It has ended; who cancels it cancels that code.

    Attributes:
        cancels: How many times it was cancelled, and not taken back.
    """

    cancels = 0

    def cancelling(self) -> int:
        return self.cancels

    def cancel(self, msg: object = None) -> bool:
        self.cancels += 1
        return True

    def uncancel(self) -> int:
        self.cancels = max(self.cancels - 1, 0)
        return self.cancels


async def _do_nothing() -> None:
    """End at once."""


_main_thread = threading.main_thread().ident
_present_caller: ContextVar[_Caller | TasklessCall] = ContextVar("hookline_caller")


async def run_in_caller(function: Callable[[], T]) -> T:
    """Run a function in the thread that waits for the present coroutine, with the context variables of the coroutine.

    The thread waits in `Portal.run` or `TasklessCall.run`.

    Args:
        function: A plain function.
    """
    return await _present_caller.get().give(function)


def calling_thread() -> int:
    """Return the id of the thread that waits for the present coroutine; see `run_in_caller`."""
    return _present_caller.get().thread
