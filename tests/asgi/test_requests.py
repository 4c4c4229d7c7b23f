"""What hooks see of a request, what they may change of it, and who decides whether it happens."""

from __future__ import annotations

import contextvars
from typing import Any

import anyio
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from hookline import Ask, Deny, Hook, Hooks, OnComplete, RequestCall, RequestResult, Respond
from hookline.asgi import HookMiddleware
from hookline.errors import HookDefinitionError, HookUsageError

from .scenes import Answer, Message, Receive, Send, call, hello, hooked, scope

pytestmark = pytest.mark.anyio

replace = msgspec.structs.replace


def seen_by(app_hooks: Hooks) -> list[RequestCall]:
    calls: list[RequestCall] = []
    app_hooks.before(RequestCall, id="spy")(calls.append)
    return calls


# What a hook sees.


async def test_a_hook_sees_method_path_and_headers_by_lower_case_name() -> None:
    hooks = Hooks("h")
    calls = seen_by(hooks)

    await call(hooked(hello(), hooks), "/a b", method="POST", headers=[("X-One", "1"), ("host", "example.org")])

    (seen,) = calls
    assert (seen.method, seen.path) == ("POST", "/a b")
    assert seen.headers == {"x-one": "1", "host": "example.org"}


async def test_several_headers_of_one_name_are_joined_and_cookies_with_semicolons() -> None:
    hooks = Hooks("h")
    calls = seen_by(hooks)

    await call(hooked(hello(), hooks), headers=[("accept", "a"), ("cookie", "x=1"), ("accept", "b"), ("cookie", "y=2")])

    assert calls[0].headers == {"accept": "a, b", "cookie": "x=1; y=2"}


async def test_header_bytes_beyond_ascii_come_and_go_as_latin_1() -> None:
    hooks = Hooks("h")
    app = hello()

    @hooks.before(RequestCall)
    def change(call: RequestCall) -> RequestCall:
        assert call.headers["x-name"] == "Zoë"
        return replace(call, headers={**call.headers, "x-other": "José"})

    await call(hooked(app, hooks), headers=[("x-name", "Zoë")])

    assert app.scopes[0]["headers"] == [(b"x-name", b"Zo\xeb"), (b"x-other", b"Jos\xe9")]  # type: ignore[attr-defined]


async def test_every_request_has_an_operation_id_of_its_own() -> None:
    hooks = Hooks("h")
    calls = seen_by(hooks)
    app = hooked(hello(), hooks)

    for _ in range(3):
        await call(app)

    assert len({seen.operation_id for seen in calls}) == 3
    assert all(seen.operation_id for seen in calls)


async def test_a_sane_request_id_of_the_caller_is_the_operation_id() -> None:
    hooks = Hooks("h")
    calls = seen_by(hooks)

    await call(hooked(hello(), hooks), headers=[("x-request-id", "trace-17/4 b")])

    assert calls[0].operation_id == "trace-17/4 b"


@pytest.mark.parametrize("given", ["", "x" * 129, "tab\tin it", "Zoë", "line\nbreak", "end\n"])
async def test_a_request_id_that_is_not_sane_is_replaced(given: str) -> None:
    hooks = Hooks("h")
    calls = seen_by(hooks)

    await call(hooked(hello(), hooks), headers=[("x-request-id", given)])

    assert calls[0].operation_id not in ("", given)


async def test_the_tenant_is_read_off_the_scope_and_only_its_hooks_and_those_of_the_system_run() -> None:
    ran: list[str] = []
    bundles = [Hooks("system"), Hooks("acme", tenant_id="acme"), Hooks("globex", tenant_id="globex")]
    for bundle in bundles:
        bundle.before(RequestCall, id=bundle.id)(lambda call, name=bundle.id: ran.append(f"{name}:{call.tenant_id}"))
    app = HookMiddleware(hello(), bundles, tenant=lambda scope: scope["user"])

    await call(app, user="acme")

    assert ran == ["system:acme", "acme:acme"]


async def test_a_tenant_that_is_no_text_stops_the_request() -> None:
    app = hello()

    with pytest.raises(HookUsageError, match="None"):
        await call(HookMiddleware(app, [], tenant=lambda scope: None))  # type: ignore[arg-type,return-value]

    assert app.scopes == []  # type: ignore[attr-defined]


async def test_the_application_finds_the_final_call_in_its_state() -> None:
    hooks = Hooks("h")

    @hooks.before(RequestCall)
    def note(call: RequestCall) -> RequestCall:
        call.metadata["budget"] = 3
        return replace(call, path="/final")

    async def endpoint(request: Request) -> JSONResponse:
        found: RequestCall = request.state.hookline
        return JSONResponse([found.path, found.operation_id, found.metadata])

    app = Starlette(routes=[Route("/final", endpoint)])
    app.add_middleware(HookMiddleware, hooks=[hooks])
    answer = await call(app, headers=[("x-request-id", "r1")])

    assert msgspec.json.decode(answer.body) == ["/final", "r1", {"budget": 3}]


async def test_the_application_finds_the_call_also_where_no_hook_is_for_requests() -> None:
    app = hello()

    await call(hooked(app, Hooks("empty")))

    assert isinstance(app.scopes[0]["state"]["hookline"], RequestCall)  # type: ignore[attr-defined]


# What a hook changes.


async def test_the_application_sees_a_changed_method_path_and_raw_path() -> None:
    hooks = Hooks("h")
    app = hello()

    @hooks.before(RequestCall)
    def change(call: RequestCall) -> RequestCall:
        return replace(call, method="PUT", path="/né w/100%?")

    await call(hooked(app, hooks))

    (changed,) = app.scopes  # type: ignore[attr-defined]
    assert (changed["method"], changed["path"]) == ("PUT", "/né w/100%?")
    assert changed["raw_path"] == b"/n%C3%A9%20w/100%25%3F"


async def test_the_raw_path_stays_as_it_was_sent_while_the_path_is_unchanged() -> None:
    hooks = Hooks("h")
    app = hello()
    hooks.before(RequestCall, id="change")(lambda call: replace(call, method="PUT"))

    await call(hooked(app, hooks), "/a b", raw_path=b"/a%20b")

    assert app.scopes[0]["raw_path"] == b"/a%20b"  # type: ignore[attr-defined]


async def test_changed_headers_replace_their_lines_removed_ones_vanish_and_the_others_stay_separate() -> None:
    hooks = Hooks("h")
    app = hello()
    lines = [("accept", "a"), ("secret", "s"), ("X-Was", "1"), ("accept", "b"), ("x-was", "2")]

    @hooks.before(RequestCall)
    def change(call: RequestCall) -> RequestCall:
        kept = {name: value for name, value in call.headers.items() if name != "secret"}
        return replace(call, headers={**kept, "x-was": "3", "X-New": "n"})

    await call(hooked(app, hooks), headers=lines)

    assert app.scopes[0]["headers"] == [(b"accept", b"a"), (b"accept", b"b"), (b"x-was", b"3"), (b"x-new", b"n")]  # type: ignore[attr-defined]


async def test_an_unchanged_request_reaches_the_application_in_the_very_scope_of_the_server() -> None:
    hooks = Hooks("h")
    seen_by(hooks)
    given: list[Any] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        given.append(scope)
        await hello()(scope, receive, send)

    async def outer(scope: Any, receive: Receive, send: Send) -> None:
        given.append(scope)
        await hooked(app, hooks)(scope, receive, send)

    await call(outer)

    assert given[0] is given[1]


async def test_a_changed_request_leaves_the_scope_of_the_server_alone() -> None:
    hooks = Hooks("h")
    hooks.before(RequestCall, id="change")(lambda call: replace(call, path="/other"))
    request = scope("/")

    async def send(message: Message) -> None: ...

    await hooked(hello(), hooks)(request, send, send)  # type: ignore[arg-type]

    assert (request["path"], request["raw_path"]) == ("/", b"/")


@pytest.mark.parametrize(
    "headers", [{"x-euro": "€"}, {"x-split": "a\r\nset-cookie: b=1"}, {"bad name": "x"}, {"": "x"}]
)
async def test_a_header_that_http_cannot_carry_never_reaches_the_application(headers: dict[str, str]) -> None:
    hooks = Hooks("h")
    app = hello()
    hooks.before(RequestCall, id="change")(lambda call: replace(call, headers=headers))
    answer = Answer()

    with pytest.raises(HookUsageError, match="not valid in HTTP"):
        await call(hooked(app, hooks), answer=answer)

    assert app.scopes == answer.messages == []  # type: ignore[attr-defined]


async def test_the_body_of_a_request_is_left_to_the_application() -> None:
    hooks = Hooks("h")
    seen_by(hooks)

    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    app = Starlette(routes=[Route("/", endpoint, methods=["POST"])])
    answer = await call(hooked(app, hooks), method="POST", body=[b"one ", b"two"])

    assert answer.body == b"one two"


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.mark.parametrize("kind", ["before", "around"])
async def test_the_application_sees_the_context_variables_that_a_hook_has_set(kind: str) -> None:
    hooks = Hooks("h")
    found: list[str] = []

    if kind == "around":

        @hooks.around(RequestCall)
        async def around(call: RequestCall, call_next: Any) -> Any:
            VARIABLE.set("by a hook")
            return await call_next(call)
    else:

        @hooks.before(RequestCall)
        async def before(call: RequestCall) -> None:
            VARIABLE.set("by a hook")

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        found.append(VARIABLE.get())
        await hello()(scope, receive, send)

    await call(hooked(app, hooks))

    assert found == ["by a hook"]


# Who decides.


@pytest.mark.parametrize("decision", [Deny("not today"), Ask("not today")], ids=["Deny", "Ask"])
@pytest.mark.parametrize("kind", ["before", "guard", "around"])
async def test_a_denied_request_gets_problem_details_and_the_application_never_sees_it(
    kind: str, decision: object
) -> None:
    hooks = Hooks("h")
    app = hello()
    handler = (lambda call, call_next: decision) if kind == "around" else (lambda call: decision)
    getattr(hooks, kind)(RequestCall, id="the door")(handler)

    answer = await call(hooked(app, hooks), headers=[("x-request-id", "r1")])

    assert answer.status == 403
    assert answer.problem == {
        "type": "about:blank",
        "title": "Forbidden",
        "status": 403,
        "detail": "not today",
        "hook": "the door",
        "operation_id": "r1",
    }
    assert app.scopes == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["before", "guard", "around", "after"])
async def test_a_hook_that_fails_closed_is_a_fault_of_the_server_and_says_nothing_of_its_exception(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = Hooks("h")

    @getattr(hooks, kind)(RequestCall, id="broken")
    def fails(*args: object) -> None:
        raise ValueError("password=hunter2")

    answer = await call(hooked(hello(), hooks))

    assert answer.status == 500
    assert answer.problem["title"] == "Internal Server Error"
    assert answer.problem["hook"] == "broken"
    assert b"hunter2" not in answer.body
    assert b"ValueError" not in answer.body
    assert "ValueError: password=[redacted]" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_hook_that_takes_too_long_is_a_fault_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks("h")

    @hooks.before(RequestCall)
    async def hangs(call: RequestCall) -> None:
        await anyio.sleep_forever()

    answer = await call(hooked(hello(), hooks, hook_timeout=0.01))

    assert answer.status == 500
    assert len(caplog.records) == 1


async def test_a_hook_that_fails_open_lets_the_request_pass(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks("h")

    @hooks.before(RequestCall, on_error="open")
    def fails(call: RequestCall) -> None:
        raise ValueError("no matter")

    answer = await call(hooked(hello(), hooks))

    assert (answer.status, answer.body) == (200, b"hello")


@pytest.mark.parametrize(
    "answer_given",
    [
        RequestResult(status=202, headers={"X-From": "hook"}, body=b"cached"),
        {"status": 202, "headers": {"X-From": "hook"}, "body": b"cached"},
    ],
    ids=["RequestResult", "mapping"],
)
async def test_a_hook_answers_without_the_application(answer_given: object) -> None:
    hooks = Hooks("h")
    app = hello()
    hooks.before(RequestCall, id="cache")(lambda call: Respond(answer_given))

    answer = await call(hooked(app, hooks))

    assert (answer.status, answer.body) == (202, b"cached")
    assert answer.headers == {"x-from": "hook", "content-length": "6"}
    assert app.scopes == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(("status", "headers"), [(200, {"content-length": "0"}), (204, {}), (304, {})])
async def test_an_empty_answer_of_a_hook_says_so_where_http_allows_it(status: int, headers: dict[str, str]) -> None:
    hooks = Hooks("h")
    hooks.before(RequestCall, id="empty")(lambda call: Respond(RequestResult(status=status)))

    answer = await call(hooked(hello(), hooks))

    assert (answer.status, answer.headers, answer.body) == (status, headers, b"")


async def test_an_exception_that_a_hook_answers_with_is_raised_to_the_server() -> None:
    hooks = Hooks("h")
    error = KeyError("gone")
    hooks.before(RequestCall, id="raise")(lambda call: Respond(error))

    with pytest.raises(KeyError) as caught:
        await call(hooked(hello(), hooks))

    assert caught.value is error


# What cannot work.


@pytest.mark.parametrize("hooks", [Hooks("alone"), [print], "hooks", 3])
def test_hooks_that_are_no_list_of_hooks_are_refused_at_once(hooks: Any) -> None:
    with pytest.raises(HookDefinitionError):
        HookMiddleware(hello(), hooks)


@pytest.mark.parametrize(
    "options", [{"app": None}, {"tenant": "acme"}, {"budget": -1}, {"hook_timeout": None}, {"hook_timeout": "soon"}]
)
def test_arguments_that_cannot_work_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(HookDefinitionError):
        HookMiddleware(**{"app": hello(), "hooks": [], **options})


def test_a_bundle_with_other_hooks_is_taken_for_what_it_has_for_requests() -> None:
    hooks = Hooks("h")
    hooks.on(OnComplete)(lambda event: None)

    assert HookMiddleware(hello(), [hooks, Hook(id="o", type=OnComplete, handler=lambda event: None)])


# What is no request.


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
async def test_what_is_no_request_passes_untouched(kind: str) -> None:
    hooks = Hooks("h")
    hooks.before(RequestCall, id="no")(lambda call: Deny("no"))
    got: list[tuple[Any, ...]] = []

    async def app(*given: Any) -> None:
        got.append(given)

    async def receive() -> Message:
        return {}

    async def send(message: Message) -> None: ...

    given: dict[str, Any] = {"type": kind}
    await hooked(app, hooks)(given, receive, send)

    assert got == [(given, receive, send)]
    assert given == {"type": kind}
