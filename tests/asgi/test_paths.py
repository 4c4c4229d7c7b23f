"""Hooks and the application are shown the same path, whatever its router makes of it."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Deny, Hooks, RequestCall
from hookline.asgi import HookMiddleware
from hookline.errors import HookUsageError

pytestmark = pytest.mark.anyio


class Exchange:
    """A request for a path, with what hooks and application were shown of it."""

    def __init__(self, *hooks: Hooks, **options: Any) -> None:
        self.judged = self.served = self.raw = None
        guard = Hooks("guard")
        guard.guard(RequestCall)(self.judge)
        self.app = HookMiddleware(self.serve, [*hooks, guard], **options)
        self.sent: list[Any] = []

    def judge(self, call: RequestCall) -> Deny | None:
        self.judged = call.path
        return None

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        self.served, self.raw = scope["path"], scope["raw_path"]
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask(self, path: str) -> int:
        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            self.sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": b"as sent", "headers": []}
        await self.app(scope, receive, send)
        return int(self.sent[0]["status"])


@given(path=st.text(st.sampled_from("/.aé b"), max_size=12).map(lambda rest: f"/{rest}"), merge=st.booleans())
def test_the_application_is_shown_the_path_that_hooks_have_judged(path: str, merge: bool) -> None:
    exchange = Exchange(merge_slashes=merge)

    status = anyio.run(exchange.ask, path)

    assert exchange.served == exchange.judged
    assert (status == 400) == (exchange.served is None) == bool({".", ".."} & set(path.split("/")))
    if exchange.served is not None:
        assert exchange.served == path or (merge and "//" in path and "//" not in exchange.served)
        assert (exchange.raw == b"as sent") == (exchange.served == path)


async def test_slashes_are_kept_where_the_application_tells_them_apart() -> None:
    exchange = Exchange(merge_slashes=False)

    await exchange.ask("/proxy/http://example.org/")

    assert exchange.served == exchange.judged == "/proxy/http://example.org/"


async def test_a_slash_at_the_end_is_kept() -> None:
    exchange = Exchange()

    await exchange.ask("/admin//")

    assert exchange.served == exchange.judged == "/admin/"


async def test_dot_segments_are_refused_with_a_problem_and_without_asking_hooks() -> None:
    exchange = Exchange()

    status = await exchange.ask("/public/../admin")

    assert (status, exchange.judged) == (400, None)
    assert (b"content-type", b"application/problem+json") in exchange.sent[0]["headers"]
    assert msgspec.json.decode(exchange.sent[1]["body"])["status"] == 400


@pytest.mark.parametrize("other", ["//admin", "/x/../admin", "/."])
async def test_a_hook_that_changes_the_path_to_an_ambiguous_one_fails(other: str) -> None:
    hooks = Hooks("lead")
    hooks.before(RequestCall)(lambda call: msgspec.structs.replace(call, path=other))
    exchange = Exchange(hooks)

    with pytest.raises(HookUsageError, match="changed the path"):
        await exchange.ask("/a")

    assert exchange.served is None
