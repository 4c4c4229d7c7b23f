"""Wrong uses of `wrap` say what to write instead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from typing import Any

import anyio.to_thread
import pytest

from hookline import AgentCall, HookDispatcher, Hooks, ModelResponse, OnComplete, ToolRequest
from hookline.errors import HookDefinitionError, HookUsageError, RunStopped, UnsupportedHookError
from hookline.execution import return_portal
from hookline.loop import wrap
from hookline.runtime import interrupt
from tests.tables import for_each

from .conftest import Way
from .dialects import CHAT
from .stage import entered, settled

HELLO = ModelResponse(content="hello")


@for_each("client", [object(), "openai", None, CHAT, dict])
def test_a_client_that_is_none_is_refused(client: Any) -> None:
    with pytest.raises(HookUsageError, match="AsyncOpenAI"):
        wrap(client)


@pytest.mark.anyio
async def test_the_wrong_kind_of_block_is_told_the_right_one(way: Way) -> None:
    async with way.opened() as client:
        if way.sync:
            with pytest.raises(HookUsageError, match="write `with wrap"):
                async with wrap(client):
                    pass
        else:
            with pytest.raises(HookUsageError, match="write `async with wrap"), wrap(client):
                pass


@pytest.mark.anyio
async def test_a_run_that_has_not_begun_cannot_be_left(way: Way) -> None:
    async with way.opened() as client:
        run: Any = wrap(client)
        if way.sync:
            run.__exit__(None, None, None)
        else:
            with pytest.raises(HookUsageError, match=r"has not begun|is not open"):
                await run.__aexit__(None, None, None)


@pytest.mark.anyio
async def test_wrong_arguments_are_refused(way: Way) -> None:
    async with way.opened() as client:
        with pytest.raises(HookDefinitionError, match="list of bundles"):
            wrap(client, hooks=Hooks("mine"))
        with pytest.raises(HookUsageError, match=r"tools=\[search, pay\]"):
            wrap(client, tools=print)
        with pytest.raises(HookUsageError, match=r"run\.tools"):
            wrap(client, tools=[{"type": "function"}])
        with pytest.raises(HookUsageError, match="Two tools are named"):
            wrap(client, tools=[locals_named(), locals_named()])
        with pytest.raises(HookUsageError, match="`ask` is a function"):
            wrap(client, ask=True)


def locals_named() -> Any:
    def same() -> None: ...

    return same


@pytest.mark.anyio
async def test_hooks_of_a_whole_run_are_refused(way: Way) -> None:
    hooks = Hooks("input")
    hooks.before(AgentCall)(lambda call: None)

    async with way.opened() as client:
        with pytest.raises(UnsupportedHookError, match=r"before\(AgentCall\)"):
            wrap(client, hooks=[hooks])


@pytest.mark.anyio
async def test_the_client_of_a_run_works_in_its_block_alone(way: Way) -> None:
    way.provider.script(way.dialect.says(HELLO))

    async with way.opened() as client:
        run = wrap(client)
        with pytest.raises(HookUsageError, match="has not begun"):
            run.client
        async with entered(run):
            kept = run.client
        with pytest.raises(HookUsageError, match="is not open"):
            await settled(way.dialect.method(kept)(**way.dialect.request("model", [], [])))
        with pytest.raises(HookUsageError, match="opened already"):
            async with entered(run):
                pass


@pytest.mark.anyio
async def test_a_wrapped_client_is_not_wrapped_again(way: Way) -> None:
    async with way.wrapped() as run:
        with pytest.raises(HookUsageError, match="parent=run"):
            wrap(run.client)


@pytest.mark.anyio
async def test_the_client_that_was_given_is_left_alone(way: Way) -> None:
    seen: list[Any] = []
    hooks = Hooks("watch")
    hooks.on(OnComplete)(seen.append)
    way.provider.script(way.dialect.says(HELLO))

    async with way.opened() as client:
        async with entered(wrap(client, hooks=[hooks])) as run:
            assert type(run.client) is type(client)
            assert run.client._client is client._client
            await settled(
                way.dialect.method(client)(**way.dialect.request("model", [{"role": "user", "content": "x"}], []))
            )
            assert run.client.post != client.post
        assert vars(client).keys().isdisjoint({"post", "copy", "with_options"})
    assert seen[0].llm_calls == 0


@pytest.mark.anyio
async def test_derived_clients_go_through_the_hooks_too(way: Way) -> None:
    seen: list[Any] = []
    hooks = Hooks("watch")
    hooks.on(OnComplete)(seen.append)
    way.provider.script(way.dialect.says(HELLO))

    async with way.wrapped([hooks]) as run:
        derived = run.client.with_options(timeout=20)
        request = way.dialect.request("model", [{"role": "user", "content": "x"}], [])
        await settled(way.dialect.method(derived)(**request))
        raw = await settled(way.dialect.method(run.client).__self__.with_raw_response.create(**request))
        assert way.dialect.text(await settled(raw.parse())) == "hello"
    assert seen[0].llm_calls == 2


@pytest.mark.anyio
async def test_a_run_that_is_never_left_is_warned_of(way: Way) -> None:
    async with way.opened() as client:
        run = wrap(client, operation_id="forgotten")
        if way.sync:
            run.__enter__()
            portal = run._surroundings.portal
        else:
            await run.__aenter__()
        adapter = run._adapter
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del run
        if way.sync:
            portal.run(adapter.close)
            return_portal(portal, cancel=False)
        else:
            await adapter.__aexit__(None, None, None)
    assert ["forgotten" in str(each.message) for each in caught if each.category is ResourceWarning] == [True]


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [False], ids=["async"])
async def test_an_async_run_is_refused_in_another_thread(way: Way) -> None:
    async with way.wrapped() as run:

        def ask() -> None:
            anyio.run(way.ask, run)

        with pytest.raises(HookUsageError, match="another thread"):
            await anyio.to_thread.run_sync(ask)


@pytest.mark.anyio
async def test_an_interrupted_run_stops(way: Way) -> None:
    ends: list[Any] = []
    hooks = Hooks("watch")
    hooks.on(OnComplete)(ends.append)
    way.provider.script(way.dialect.says(HELLO))

    with pytest.raises(RunStopped, match="interrupted"):
        async with way.wrapped([hooks], operation_id="stopped") as run:
            await way.ask(run)
            assert interrupt("stopped")
            await way.ask(run)
    assert [event.reason for event in ends] == ["interrupted"]


@pytest.mark.parametrize("threads", [4])
def test_sync_runs_in_several_threads_do_not_meet(provider: Any, threads: int) -> None:
    way, seen, failures = Way(CHAT, provider, sync=True), dict[int, list[Any]](), list[BaseException]()
    provider.script(CHAT.says(HELLO))
    client = CHAT.client(provider.url, sync=True)

    def loop(number: int) -> None:
        hooks, seen[number] = Hooks(f"run {number}"), []
        hooks.on(OnComplete)(seen[number].append)
        try:
            with wrap(client, hooks=[hooks]) as run:
                way.dialect.method(run.client)(**CHAT.request("model", [{"role": "user", "content": "x"}], []))
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=loop, args=(number,)) for number in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    client.close()
    assert failures == []
    assert [event.llm_calls for number in range(threads) for event in seen[number]] == [1] * threads
    assert not [each for each in threading.enumerate() if each.name == "hookline-portal"]


def test_a_thread_whose_run_is_left_meanwhile_is_told_so(provider: Any) -> None:
    running, left = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def wait() -> str:
        running.set()
        assert left.wait(30)
        return "late"

    def call_tool() -> None:
        try:
            run.call_tools()
        except BaseException as error:
            failures.append(error)

    provider.script(CHAT.says(ModelResponse(content="", tool_calls=[ToolRequest("wait", tool_call_id="c1")])))
    client = CHAT.client(provider.url, sync=True)
    with wrap(client, tools=[wait]) as run:
        CHAT.method(run.client)(**CHAT.request("model", [{"role": "user", "content": "x"}], []))
        other = threading.Thread(target=call_tool)
        other.start()
        assert running.wait(30)
    left.set()
    other.join(30)
    client.close()

    assert [type(error) for error in failures] == [HookUsageError]
    assert "is not open" in str(failures[0])


@pytest.mark.anyio
@pytest.mark.parametrize("sync", [True], ids=["sync"])
async def test_a_sync_run_whose_dispatcher_is_left_before_it_is_forgotten(way: Way) -> None:
    async with way.opened() as client:
        dispatcher = HookDispatcher()
        async with dispatcher:
            run: Any = wrap(client, dispatcher=dispatcher, operation_id="alone")
            run.__enter__()
        with pytest.raises(HookUsageError, match="has been left"):
            run.__exit__(None, None, None)

    assert not interrupt("alone")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_told_to_open_a_run_of_its_own(provider: Any) -> None:
    client = CHAT.client(provider.url, sync=True)

    with wrap(client) as run:
        child = os.fork()
        if child == 0:
            try:
                run.call_tools()
            except HookUsageError as error:
                os._exit(7 if "forked" in str(error) else 8)
            os._exit(9)
        _, status = os.waitpid(child, 0)
    client.close()
    assert os.waitstatus_to_exitcode(status) == 7


def test_importing_hookline_loop_imports_no_client() -> None:
    program = "import sys, hookline.loop; print([name for name in ('openai', 'anthropic') if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
