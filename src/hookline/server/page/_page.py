"""The web page: an application of its own over the same parts as the API, for people who sign in with a key."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hookline.errors import MissingExtraError

try:
    for needed in ("jinja2", "litestar"):
        import_module(needed)
except ImportError as error:
    raise MissingExtraError("server", "The web page") from error

from litestar import Litestar, MediaType, Response, get, post
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp, Receive, Send
from litestar.types import Scope as AsgiScope

from hookline.asgi import App
from hookline.server._callers import Req, caller_of, check_scope, not_found
from hookline.server._parts import Parts
from hookline.server._problems import ApiError, as_api_error, note_code, unexpected
from hookline.server._rates import RateLimits
from hookline.server._text import TextRequest
from hookline.server.page import _approvals, _deliveries, _hooks, _logs, _operations
from hookline.server.page._assets import Assets
from hookline.server.page._door import Door
from hookline.server.page._frame import PREFIX, Frame, frame_of, own_place
from hookline.server.page._sessions import Sessions
from hookline.server.page._sign_outs import SignOuts
from hookline.server.routes import Id

__all__ = ["create_page"]

LARGEST_FORM = 256 * 1024
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "Cross-Origin-Opener-Policy": "same-origin"}
PUBLIC = {"public": True}


def create_page(parts: Parts, *, rates: RateLimits, session_key: bytes | None = None) -> App:
    """The page, behind the gate of the API. Its paths begin with `/page`.

    Args:
        parts: What the server is made of.
        rates: How many requests somebody may send.
        session_key: Signs sessions; 32 random bytes or more, the same in all processes that serve the same people.
            Unless given, people have to sign in again after a restart.

    Raises:
        HookUsageError: If the key is too short.
    """
    sessions, sign_outs = Sessions(session_key), SignOuts(parts.store)
    frame = Frame(parts=parts, sessions=sessions, sign_outs=sign_outs, assets=Assets())
    views = (_operations, _approvals, _hooks, _logs, _deliveries)
    page = Litestar(
        [
            *(home, sign_in_form, sign_in, sign_out, static, elsewhere),
            *(route for view in views for route in view.ROUTES),
        ],
        path=PREFIX,
        state=State({"frame": frame, "parts": parts}),
        middleware=[_Admission],
        guards=[check_scope],
        after_request=_with_headers,
        exception_handlers={Exception: _refused},
        openapi_config=None,
        request_class=TextRequest,
        request_max_body_size=LARGEST_FORM,
        logging_config=None,
    )
    return Door(page, frame, rates=rates)  # type: ignore[arg-type]


@get("/")
async def home(request: Req) -> Response[str]:
    """Go to the first view that the key allows to see."""
    scopes = caller_of(request).scopes
    return frame_of(request).to(request, "/operations" if "operations:read" in scopes else "/hooks")


@get("/sign-in", opt=PUBLIC)
async def sign_in_form(request: Req) -> Response[Any]:
    """Ask for a key."""
    place = own_place(request.query_params.get("place", ""))
    if "hookline_caller" in request.scope["state"]:
        return frame_of(request).to(request, place or "/")
    return _ask_for_key(request, status=200, place=place)


@post("/sign-in", opt=PUBLIC)
async def sign_in(request: Req) -> Response[Any]:
    """Sign in with a key, and go on to what was asked for before."""
    frame = frame_of(request)
    fields = await frame.fields(request)
    place = own_place(fields.get("place", ""))
    caller = await frame.parts.keys.authenticate(fields.get("key", "").strip())
    if caller is None:
        request.scope["state"]["hookline_codes"].append("key")
        return _ask_for_key(request, status=401, place=place, problem="The API key is not known, or it has ended.")
    answer = frame.to(request, place or "/")
    answer.cookies.append(frame.cookie(request, frame.sessions.begin(caller)))
    return answer


@post("/sign-out")
async def sign_out(request: Req) -> Response[str]:
    """End the session: copies of its cookie, too, open nothing any more."""
    frame = frame_of(request)
    await frame.fields(request)
    await frame.sign_outs.end(request.scope["state"]["hookline_session"])
    answer = frame.to(request, "/sign-in")
    answer.cookies.append(frame.cookie(request, None))
    return answer


@get("/static/{name:str}", opt=PUBLIC)
async def static(request: Req, name: Id) -> Response[bytes]:
    """A file of the page."""
    return frame_of(request).assets.answer(request, name)


@get("/{rest:path}")
async def elsewhere(request: Req) -> None:
    """Tell that there is nothing."""
    raise not_found()


class _Admission:
    """Lets nobody pass whom the door has not let in, before the guards of the API ask for the scope of a view."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        if "hookline_refused" in state:
            raise state["hookline_refused"]
        if "hookline_caller" not in state and not scope["route_handler"].opt.get("public"):
            raise ApiError(401, "no_session", "Sign in first.")
        await self._app(scope, receive, send)


def _ask_for_key(request: Req, *, status: int, place: str, problem: str = "") -> Response[str]:
    frame = frame_of(request)
    session = frame.sessions.begin(None)
    request.scope["state"]["hookline_session"] = session
    answer = frame.page(request, "sign_in.html", status=status, place=place, problem=problem)
    answer.cookies.append(frame.cookie(request, session))
    return answer


def _with_headers(response: Response[Any]) -> Response[Any]:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def _refused(request: Req, error: Exception) -> Response[Any]:
    """Tell of an error on the page itself."""
    told = as_api_error(error) or unexpected(error, str(request.scope["state"].get("hookline_request_id", "")))
    if isinstance(error, HTTPException) and told.status == 500:
        told = ApiError(error.status_code, "refused", error.detail)
    note_code(request.scope, told)
    if request.scope["path"].endswith((".json", "/live")):
        body = {"code": told.code, "detail": told.detail}
        answer: Response[Any] = Response(body, status_code=told.status, media_type=MediaType.JSON)
    elif told.code == "no_session":
        answer = _to_sign_in(request)
    else:
        answer = frame_of(request).page(request, "problem.html", status=told.status, told=told)
    answer.headers.update(told.headers)
    return _with_headers(answer)


def _to_sign_in(request: Req) -> Response[Any]:
    frame = frame_of(request)
    # A browser that follows a link of another site holds a strict cookie back. It sends it once it is here.
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site") and request.method == "GET":
        return frame.page(request, "again.html", status=200)
    if request.headers.get("hx-request") == "true":
        return Response(None, status_code=401, headers={"HX-Redirect": f"{frame.root(request)}/sign-in"})
    place = frame.place(request) if request.method == "GET" else ""
    return frame.to(request, "/sign-in", **({"place": place} if place else {}))
