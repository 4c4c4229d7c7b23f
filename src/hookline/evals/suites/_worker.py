"""The main program of a worker process: load suites, and run the tasks that the first process names."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO

import anyio
import anyio.from_thread

from hookline.dispatcher import HookDispatcher
from hookline.errors import message_of
from hookline.evals.running import (
    Case,
    Reply,
    Request,
    TaskKey,
    TaskRunner,
    WorkerSetup,
    case_name,
    cases_of,
    format_line,
    model_of,
    pack,
    parse_line,
    unpack,
)
from hookline.evals.suites._agent_choice import choose_agents
from hookline.evals.suites._files import find_suites
from hookline.runtime import ModelPause

__all__ = ["serve_worker"]


def serve_worker() -> None:
    """Run tasks until the first process says that there are no more, or is gone."""
    requests, replies = _take_over_streams()
    # The first process reports failed runs as results.
    logging.getLogger("hookline").addFilter(lambda record: not hasattr(record, "failed_operation_id"))
    setup = parse_line(requests.readline(), WorkerSetup)
    worker = _WorkerProcess(setup, requests, replies)
    try:
        worker.load()
    except BaseException as error:
        worker.reply(Reply(failed=f"{type(error).__name__}: {message_of(error).rstrip('.')}"))
        return
    worker.reply(Reply(ready=True))
    anyio.run(worker.serve, backend=setup.backend)


def _take_over_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Return the streams to the first process, and give others to the tasks, which may print and read."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


class _WorkerProcess:
    def __init__(self, setup: WorkerSetup, requests: IO[bytes], replies: IO[bytes]) -> None:
        self._setup, self._requests, self._replies = setup, requests, replies
        self._writing = threading.Lock()
        self._cases: Mapping[tuple[str, str], Case] = {}
        self._kept = {True: 0, False: 0}

    def load(self) -> None:
        """Load the suites."""
        suites = [suite for target in self._setup.targets for suite in find_suites(target)]
        own = cases_of(suites)
        chosen = [
            case
            for model, agent in self._setup.choices or [(None, None)]
            for case in choose_agents(own, models=[] if model is None else [model], agent=agent)
        ]
        self._cases = {(case_name(case), model_of(case)): case for case in chosen}

    def reply(self, reply: Reply) -> None:
        """Send a line to the first process."""
        line = memoryview(format_line(reply))
        with self._writing:
            while line:
                line = line[self._replies.write(line) :]

    async def serve(self) -> None:
        """Run the tasks that are asked for, each as soon as it is."""
        setup = self._setup
        tasks = TaskRunner(
            mode=setup.mode,
            cassettes=setup.cassettes,
            faults=unpack(setup.faults),
            seed=setup.seed,
            timeout=setup.timeout,
            tapes=setup.tapes,
            tape_mode=setup.tape_mode,
            allow_repeats=setup.allow_repeats,
            detach=False,  # the first process kills this one if a task does not stop
            pause=ModelPause(lambda model, seconds: self.reply(Reply(limited=(model, seconds)))),
        )
        send, receive = anyio.create_memory_object_stream[Request](math.inf)
        with tasks:
            async with (
                HookDispatcher() as dispatcher,
                anyio.from_thread.BlockingPortal() as portal,
                anyio.create_task_group() as group,
            ):
                reader = partial(self._read, lambda request: portal.call(send.send_nowait, request))
                threading.Thread(target=reader, daemon=True).start()
                async for request in receive:
                    if request.run is not None:
                        group.start_soon(self._run, tasks, request.run, dispatcher)
                    elif request.pause is not None:
                        tasks.pause.extend(*request.pause)
                    elif request.ping:
                        self.reply(Reply(pong=True))
                    elif request.stop:
                        break

    def _read(self, hand_over: Callable[[Request], object]) -> None:
        for line in self._requests:
            request = parse_line(line, Request)
            hand_over(request)
            if request.stop:
                return
        os._exit(1)  # the first process is gone, and a task may hold the event loop

    async def _run(self, tasks: TaskRunner, key: TaskKey, dispatcher: HookDispatcher) -> None:
        case = self._cases.get((key[0], key[2]))
        if case is None:
            self.reply(Reply(failed=f"{', '.join(self._setup.targets)} has no task {key[0]!r} in a new process"))
            return
        done = await tasks.run(case, key, dispatcher)
        recorded = ""
        if done.recorded is not None and self._kept[done.result.ok] < self._setup.keep:
            try:
                recorded = pack(done.recorded)
            except Exception:  # something in an event cannot leave this process
                recorded = ""
            self._kept[done.result.ok] += 1
        self.reply(Reply(result=done.result, recorded=recorded))
