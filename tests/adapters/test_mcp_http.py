"""Servers that are reached over HTTP: a proper one, and one that does everything wrong."""

from __future__ import annotations

import logging
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from adapters.mcp_servers import HERE
from adapters.mcp_servers.web import Web, serving
from hookline.adapters.mcp import McpServer, McpStartError, mcp_server
from tests.forks import forking_python

pytestmark = pytest.mark.anyio

SECRETS = {
    "user": "reader",
    "password": "pa%20ssword",
    "path": "a-token-in-the-path",
    "query": "t0ken-in-query",
    "header": "sk-in-a-header",
}


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as web:
        yield web


@pytest.fixture(scope="module")
def shop_url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [forking_python("hookline"), HERE / "shop.py", str(port)], stderr=subprocess.DEVNULL
    ) as process:
        try:
            while True:
                assert process.poll() is None
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


def at(web: Web, **options: Any) -> McpServer:
    return mcp_server("web", url=web.url, **{"stop_timeout": 0.1, **options})


# httpx2 leaves generators to the collector when the client has its answer, and trio says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_real_server_answers_over_http(shop_url: str) -> None:
    server = mcp_server("shop", url=shop_url, timeout=20)
    async with server.open() as tools:
        by_name = {tool.name: tool for tool in tools}
        echoed = await by_name["echo"].run({"value": 2**70})
        with anyio.move_on_after(0.2):
            await by_name["hang"].run({"name": f"of {id(server)}"})
        with anyio.fail_after(10):
            while f"of {id(server)}" not in (await by_name["were_cancelled"].run({})).content:
                pass
        results: list[str] = []

        async def order(number: int) -> None:
            results.append((await by_name["order"].run({"item": "pear", "amount": number})).content)

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(order, number)

    assert echoed.content == str(2**70)
    assert sorted(results) == [f"ordered {number} pear" for number in range(10)]


@pytest.mark.parametrize(
    ("mode", "kind", "said"),
    [
        (401, "refused", "HTTP status 401"),
        (500, "refused", "HTTP status 500"),
        ("html", "refused", "text/html"),
        ("accepts", "refused", "202 Accepted"),
        ("echoes", "invalid", "not a JSON-RPC response"),
        ("cut", "ended", "lost during the call"),
        ("hangs", "timeout", "did not answer within"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_call_that_goes_wrong_over_http_is_a_failed_result(
    web: Web, mode: str | int, kind: str, said: str
) -> None:
    async with at(web, timeout=1.0 if mode == "hangs" else 20).open() as (act,):
        web.mode = mode
        failed = await act.run({})
        web.mode = "hangs still" if mode == "hangs" else "good"
        web.release.set()
        then = await act.run({"a": 1})

    assert not failed.success
    assert failed.metadata == {"mcp_fault": kind}
    assert said in failed.content
    assert then.content == 'did {"a": 1}'


@pytest.mark.parametrize(("mode", "said"), [(401, "HTTP status 401"), (404, "HTTP status 404")])
async def test_an_endpoint_that_refuses_us_cannot_be_opened(web: Web, mode: int, said: str) -> None:
    web.mode = mode
    with pytest.raises(McpStartError, match=f"could not be reached: .*{said}"):
        async with at(web).open():
            pass


async def test_an_endpoint_that_is_not_there_cannot_be_opened() -> None:
    with serving() as web:
        server = at(web)
    with pytest.raises(McpStartError, match="could not be reached"):
        async with server.open():
            pass


async def test_a_server_that_was_started_anew_gets_the_call_in_a_new_session(web: Web) -> None:
    async with at(web).open() as (act,):
        web.session += 1
        result = await act.run({"a": 1})

    assert result.success
    assert [method for method, *_ in web.seen].count("initialize") == 2
    assert [method for method, *_ in web.seen][-1] == "DELETE"


async def test_a_server_that_hangs_holds_nobody_up_at_the_end(web: Web) -> None:
    with anyio.fail_after(5):
        async with at(web, timeout=0.1).open() as (act,):
            web.mode = "hangs"
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(act.run, {})
        with anyio.move_on_after(0.1):
            web.mode = "good"
            async with at(web).open() as (act,):
                web.mode = "hangs"
                await act.run({})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_ten_megabytes_over_http_are_a_result(web: Web) -> None:
    async with at(web).open() as (act,):
        web.mode = "large events"
        result = await act.run({})

    assert len(result.content) == 10_000_000


async def test_headers_arrive_and_secrets_are_neither_logged_nor_told(
    web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    user, password, path, query, header = SECRETS.values()
    url = f"{web.url}/{path}?key={query}".replace("//", f"//{user}:{password}@")
    server = mcp_server("web", url=url, headers={"Authorization": f"Bearer {header}"})

    async with server.open() as (act,):
        web.mode = "echoes"
        failed = await act.run({})
        web.mode = 401
        refused = await act.run({})
    with pytest.raises(McpStartError) as caught:
        async with server.open():
            pass

    assert web.seen[-1][1]["authorization" if "authorization" in web.seen[-1][1] else "Authorization"]
    assert "HTTP Request" in caplog.text
    told = caplog.text + repr(server) + str(caught.value) + repr(caught.value) + failed.content + refused.content
    assert not [secret for secret in (*SECRETS.values(), "pa ssword", "hijk") if secret in told]


async def test_the_logs_of_others_are_as_they_were(web: Web) -> None:
    async with at(web).open():
        pass

    assert logging.getLogger("httpx2").filters == []
