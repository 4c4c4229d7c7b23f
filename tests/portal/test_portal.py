"""The event loop of sync callers: who runs it, and what is left of it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial

import anyio
import pytest
import trio

from hookline.execution import EndedPortalError, LoopPortal, TasklessCall, calling_thread, open_portal, run_in_caller

BACKGROUND = "hookline-portal"


def names() -> set[str]:
    return {each.name for each in threading.enumerate()}


async def thread_name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


def test_the_caller_runs_the_event_loop_itself() -> None:
    with open_portal() as portal:
        assert portal.run(thread_name) == threading.current_thread().name
        assert BACKGROUND not in names()


def test_a_caller_that_runs_an_event_loop_waits_for_a_thread() -> None:
    async def main() -> str:
        with open_portal() as portal:
            return portal.run(thread_name)

    assert asyncio.run(main()) == BACKGROUND
    assert BACKGROUND not in names()


def test_a_caller_that_runs_trio_waits_for_a_thread() -> None:
    async def main() -> str:
        with open_portal() as portal:
            return portal.run(thread_name)

    assert trio.run(main) == BACKGROUND
    assert BACKGROUND not in names()


def test_tasks_that_are_left_go_on_while_nobody_waits() -> None:
    done = threading.Event()

    async def work() -> None:
        await asyncio.sleep(0.05)
        done.set()

    async def begin() -> None:
        begin.task = asyncio.create_task(work())  # type: ignore[attr-defined]

    with open_portal() as portal:
        portal.run(begin)

        assert done.wait(30)
        assert portal.run(thread_name)
    assert BACKGROUND not in names()


def test_jobs_run_in_the_thread_that_waits_and_without_an_event_loop() -> None:
    def job() -> tuple[int, int]:
        return threading.get_ident(), asyncio.run(asyncio.sleep(0, 7))

    async def work() -> tuple[int, tuple[int, int]]:
        return calling_thread(), await run_in_caller(job)

    with open_portal() as portal:
        assert portal.run(work) == (threading.get_ident(), (threading.get_ident(), 7))


def test_what_follows_one_job_comes_before_the_next_one() -> None:
    told: list[str] = []

    async def each(name: str) -> None:
        await run_in_caller(lambda: told.append(name))
        told.append(f"after {name}")

    async def work() -> None:
        await asyncio.gather(each("a"), each("b"))

    with open_portal() as portal:
        portal.run(work)

    assert told == ["a", "after a", "b", "after b"]


@pytest.mark.parametrize("threads", [2, 20])
def test_many_threads_use_one_portal_at_once(threads: int) -> None:
    found: list[int] = []

    async def work(number: int) -> int:
        await asyncio.sleep(0.001)
        value: int = await run_in_caller(lambda: number)
        await asyncio.sleep(0)
        return value

    with open_portal() as portal:
        workers = [
            threading.Thread(target=lambda number=number: found.append(portal.run(work, number)))
            for number in range(threads)
        ]
        for each in workers:
            each.start()
        for each in workers:
            each.join(30)

    assert sorted(found) == list(range(threads))


def test_what_runs_at_once_may_wait_and_fail() -> None:
    async def wait_for(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return threading.current_thread().name

    async def fail() -> None:
        raise LookupError("no")

    async def in_event_loop() -> str:
        return portal.run_at_once(wait_for, 0)

    with open_portal() as portal:
        assert portal.run_at_once(wait_for, 0) == threading.current_thread().name
        assert portal.run_at_once(wait_for, 0.01) == threading.current_thread().name
        with pytest.raises(LookupError):
            portal.run_at_once(fail)
        assert portal.is_reusable
        assert asyncio.run(in_event_loop()) == BACKGROUND


def test_hooks_see_an_event_loop_that_runs() -> None:
    async def look() -> tuple[bool, bool]:
        loop = asyncio.get_running_loop()
        first = loop.is_running()
        await asyncio.sleep(0)
        return first, loop.is_running()

    with open_portal() as portal:
        assert portal.run(look) == (True, True)
        assert portal.run_at_once(look) == (True, True)
        assert not portal._loop.is_running()


def test_a_function_without_a_task_sees_a_task_and_its_own_thread() -> None:
    def job() -> tuple[int, int]:
        return threading.get_ident(), asyncio.run(asyncio.sleep(0, 7))

    async def work() -> tuple[bool, int, tuple[int, int], bool]:
        before = asyncio.current_task()
        given = await run_in_caller(job)
        return isinstance(before, asyncio.Task), calling_thread(), given, asyncio.current_task() is before

    with open_portal() as portal:
        here = threading.get_ident()
        assert TasklessCall(portal).run(work) == (True, here, (here, 7), True)
        assert portal._tasks.unused
        assert portal.is_reusable


def test_the_event_loop_is_free_while_the_thread_runs_a_function() -> None:
    def job() -> tuple[str, bool]:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(portal.run, thread_name).result(30), portal.is_reusable

    async def work() -> tuple[str, bool]:
        return await run_in_caller(job)

    with open_portal() as portal:
        name, is_reusable = TasklessCall(portal).run(work)

    assert name.startswith("ThreadPoolExecutor")
    assert not is_reusable


@pytest.mark.parametrize("waits", [False, True], ids=["plain", "waits"])
def test_the_rest_runs_in_a_task_if_another_thread_runs_the_event_loop(waits: bool) -> None:
    running, done = threading.Event(), threading.Event()
    where: list[threading.Thread] = []

    async def hold() -> None:
        running.set()
        while not done.is_set():
            await asyncio.sleep(0)

    def job(told: str) -> str:
        if not holder.is_alive():
            holder.start()
            assert running.wait(30)
        return variable.get() + told

    async def work() -> list[str]:
        token = variable.set("set ")
        first = await run_in_caller(lambda: job("one"))
        if waits:
            await asyncio.sleep(0.001)
        second = await run_in_caller(lambda: job("two"))
        where.append(threading.current_thread())
        variable.reset(token)
        return [first, second, variable.get()]

    variable = ContextVar("variable", default="unset")
    with open_portal() as portal:
        holder = threading.Thread(target=portal.run, args=(hold,))
        try:
            found = TasklessCall(portal).run(work)
        finally:
            done.set()
            holder.join(30)

    assert found == ["set one", "set two", "unset"]
    assert where == [holder]


def test_a_function_without_a_task_may_wait_after_all() -> None:
    async def fail_late() -> None:
        await asyncio.sleep(0.001)
        raise LookupError("no")

    with open_portal() as portal:
        assert TasklessCall(portal).run(thread_name) == threading.current_thread().name
        with pytest.raises(LookupError):
            TasklessCall(portal).run(fail_late)


@pytest.mark.parametrize("waits", [False, True], ids=["plain", "waits"])
def test_a_cancelled_call_waits_for_nothing_more(waits: bool) -> None:
    told: list[str] = []

    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        try:
            await run_in_caller(lambda: (call.cancel(), told.append("ended")))
            await run_in_caller(lambda: told.append("went on"))
        finally:
            told.append("cancelled")

    with open_portal() as portal:
        call = TasklessCall(portal)
        with pytest.raises(asyncio.CancelledError):
            call.run(work)

    assert told == ["ended", "cancelled"]


def test_another_thread_cancels_what_waits_after_all() -> None:
    waiting = threading.Event()

    async def work() -> None:
        await asyncio.sleep(0)
        waiting.set()
        await asyncio.sleep(60)

    def cancel() -> None:
        assert waiting.wait(30)
        call.cancel()

    with open_portal() as portal:
        call = TasklessCall(portal)
        other = threading.Thread(target=cancel)
        other.start()
        with pytest.raises(asyncio.CancelledError):
            call.run(work)
        other.join(30)


def test_code_cancels_its_task_once_and_takes_it_back() -> None:
    async def work(*, takes_back: bool) -> list[str]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        found = [str(task.cancelling())]
        if takes_back:
            found.append(str(task.uncancel()))
        for name in ("first", "second"):
            try:
                found.append(await run_in_caller(lambda name=name: name))  # type: ignore[misc]
            except asyncio.CancelledError:
                found.append("cancelled")
        return found

    with open_portal() as portal:
        assert TasklessCall(portal).run(partial(work, takes_back=False)) == ["1", "cancelled", "second"]
        assert TasklessCall(portal).run(partial(work, takes_back=True)) == ["1", "0", "first", "second"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_an_interrupt_of_a_function_cancels_what_waits_for_it(error: type[BaseException], held: bool) -> None:
    running, done = threading.Event(), threading.Event()
    told: list[str] = []

    async def hold() -> None:
        running.set()
        while not done.is_set():
            await asyncio.sleep(0)

    def interrupt() -> None:
        if held:
            holder.start()
            assert running.wait(30)
        raise error

    async def work() -> None:
        try:
            await run_in_caller(interrupt)
        except BaseException as raised:
            told.append(type(raised).__name__)
            await run_in_caller(lambda: told.append("again"))

    with open_portal() as portal:
        holder = threading.Thread(target=portal.run, args=(hold,))
        try:
            with pytest.raises(error):
                TasklessCall(portal).run(work)
        finally:
            done.set()
            if held:
                holder.join(30)
        assert portal.run(thread_name)

    assert told[0] == "CancelledError"


def test_a_call_whose_event_loop_ends_meanwhile_is_cancelled() -> None:
    told: list[str] = []

    async def work() -> None:
        try:
            await run_in_caller(lambda: portal.close(cancel=True))
        finally:
            told.append("cancelled")

    portal = LoopPortal()
    with pytest.raises(asyncio.CancelledError):
        TasklessCall(portal).run(work)

    assert told == ["cancelled"]


def test_nothing_of_a_call_without_a_task_waits_for_the_collector() -> None:
    async def work() -> None:
        await run_in_caller(bool)

    with open_portal() as portal:
        gc.collect()
        gc.disable()
        try:
            call = TasklessCall(portal)
            kept = weakref.ref(call)
            call.run(work)
            del call
            assert kept() is None
        finally:
            gc.enable()


def test_an_async_generator_that_is_left_ends_with_the_event_loop() -> None:
    ended: list[str] = []

    async def count() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            ended.append(threading.current_thread().name)

    async def take_one() -> AsyncIterator[int]:
        numbers = count()
        await anext(numbers)
        return numbers

    portal = LoopPortal()
    left = portal.run(take_one)
    assert not portal.is_reusable
    portal.close(cancel=True)

    assert ended == [threading.current_thread().name]
    del left


def test_an_event_loop_is_used_again_only_if_nothing_is_left_in_it() -> None:
    async def leave_a_timer() -> None:
        asyncio.get_running_loop().call_later(3600, print)

    with open_portal() as first:
        first.run(thread_name)
    with open_portal() as second:
        second.run(leave_a_timer)
    with open_portal() as third:
        pass

    assert second is first
    assert third is not second


class LateTaker(LoopPortal):
    """Takes the event loop only after what the caller waits for has ended, and its thread has stopped."""

    def _take(self) -> bool:
        while self._runner is not None or any(each.needs_loop for each in self._callers):
            time.sleep(0)
        return super()._take()


def test_a_caller_that_takes_the_event_loop_too_late_does_not_leave_it_running() -> None:
    closed = threading.Event()

    async def main() -> None:
        portal = LateTaker()
        assert portal.run(thread_name) == BACKGROUND
        portal.close(cancel=True)
        closed.set()

    caller = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    caller.start()
    caller.join(30)
    assert closed.is_set()
    assert BACKGROUND not in names()


def test_a_portal_that_was_closed_refuses_work() -> None:
    portal = LoopPortal()
    portal.close(cancel=False)

    with pytest.raises(RuntimeError, match="has ended"):
        portal.run(thread_name)
    with pytest.raises(RuntimeError, match="has ended"):
        portal.start(thread_name)
    with pytest.raises(RuntimeError, match="has ended"):
        portal.run_at_once(thread_name)
    with pytest.raises(RuntimeError, match="has ended"):
        portal.call(threading.get_ident)


def test_a_caller_that_comes_while_the_portal_closes_does_not_wait_for_ever() -> None:
    running, done = threading.Event(), threading.Event()
    found: list[BaseException | str] = []

    async def hold() -> None:
        running.set()
        done.wait(30)

    def call() -> None:
        try:
            found.append(portal.run(thread_name))
        except (EndedPortalError, asyncio.CancelledError) as error:
            found.append(error)

    def wait_for_callers(number: int) -> None:
        while len(portal._callers) < number:
            time.sleep(0)

    portal = LoopPortal()
    threads = [
        threading.Thread(target=work, daemon=True)
        for work in (lambda: portal.run(hold), lambda: portal.close(cancel=True), call)
    ]
    for number, each in enumerate(threads, 1):
        each.start()
        wait_for_callers(number)
    assert running.wait(30)
    done.set()
    for each in threads:
        each.join(30)

    assert not [each for each in threads if each.is_alive()]
    assert [isinstance(each, BaseException) for each in found] == [True]


def test_a_scope_that_is_cancelled_while_a_function_runs_takes_its_cancellation_back() -> None:
    cancelled = threading.Event()

    async def work() -> bool:
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            scope.cancel()
            loop.call_soon(cancelled.set)

        other = asyncio.create_task(asyncio.sleep(60))  # so that the event loop runs beside the function
        with anyio.CancelScope() as scope:
            loop.call_soon(cancel)
            await run_in_caller(lambda: cancelled.wait(30))
        other.cancel()
        return scope.cancelled_caught

    async def main() -> bool:
        with open_portal() as portal:
            return portal.run(work)

    assert asyncio.run(main())


def test_an_exit_of_a_task_ends_what_waits_for_the_portal(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "asyncio")  # it logs the exit once the task is collected

    async def leave() -> None:
        raise SystemExit(3)

    async def begin() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(leave())
            group.create_task(asyncio.sleep(60))

    portal = LoopPortal()

    with pytest.raises((CancelledError, asyncio.CancelledError, SystemExit)):
        portal.start(begin).result(30)
    portal.close(cancel=True)
    gc.collect()
    assert BACKGROUND not in names()


def test_an_interrupt_of_another_task_gives_the_event_loop_back_before_it_is_taken_again() -> None:
    taken: list[bool] = []

    async def interrupt() -> None:
        raise KeyboardInterrupt

    async def work() -> None:
        other = asyncio.Task(interrupt())
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(60)
        finally:
            taken.append(portal.is_own_thread)
            other.cancel()

    portal = LoopPortal()
    with pytest.raises(KeyboardInterrupt):
        portal.run(work)
    portal.close(cancel=True)

    assert taken == [True]


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals need the main thread")
def test_ctrl_c_cancels_what_the_caller_waits_for() -> None:
    told: list[str] = []

    async def work() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            await asyncio.sleep(60)
        finally:
            told.append("cancelled")

    # A shell starts what runs in the background of a script with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with open_portal() as portal, pytest.raises(KeyboardInterrupt):
            portal.run(work)

        assert told == ["cancelled"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_leaves_the_idle_event_loops_of_its_parent_alone() -> None:
    with open_portal() as portal:
        portal.run(thread_name)
    child = os.fork()
    if child == 0:
        with open_portal() as own:
            os._exit(0 if own is not portal and own.run(thread_name) else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    with open_portal() as again:
        started = time.monotonic()
        again.run(asyncio.sleep, 0.01)
        assert again is portal
        assert time.monotonic() > started
