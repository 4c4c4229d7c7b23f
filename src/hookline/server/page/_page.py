"""The web page: a Litestar application over the same parts as the API, for people who sign in with an API key."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hookline.errors import MissingExtraError

try:
    for needed in ("jinja2", "litestar"):
        import_module(needed)
except ImportError as error:
    raise MissingExtraError("server", "The web page") from error

from litestar import HttpMethod, Litestar, MediaType, Request, Response, get, post, route
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp, Receive, Send
from litestar.types import Scope as AsgiScope

from hookline.asgi import App
from hookline.errors import StoreUnavailableError
from hookline.server._callers import Req, caller_of, not_found_error, require_scope
from hookline.server._parts import ServerParts
from hookline.server._problems import ApiError, add_refusal_code, as_api_error, unexpected_error
from hookline.server._rates import RateLimits
from hookline.server._text import TextRequest
from hookline.server.page import (
    _approvals,
    _audit,
    _budgets,
    _dashboard,
    _deliveries,
    _endpoints,
    _keys,
    _logs,
    _operation,
    _operations,
    _settings,
    hooks,
)
from hookline.server.page._assets import Assets
from hookline.server.page._context import PREFIX, VIEWS, PageContext, context_of, validate_place
from hookline.server.page._forms import read_form
from hookline.server.page._gate import PageGate
from hookline.server.page._kept_forms import LARGEST_FORM, LARGEST_KEPT, KeptForm, parse_form, read_kept_form
from hookline.server.page._sessions import SessionCookies
from hookline.server.page._sign_outs import SignOuts
from hookline.server.routes import Id, parse_signatures

__all__ = ["create_page"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "Cross-Origin-Opener-Policy": "same-origin"}
PUBLIC = {"public": True}


def create_page(parts: ServerParts, *, rates: RateLimits, session_key: bytes | None = None) -> App:
    """Build the web page, which runs behind the gate of the API. Its paths begin with `/page`.

    Args:
        parts: The parts of the server.
        rates: The rate limits.
        session_key: Signs sessions: 32 random bytes or more, the same in all processes that serve the same people.
            Without a key, people have to sign in again after a restart.

    Raises:
        HookUsageError: If the key is too short.
    """
    sessions, sign_outs = SessionCookies(session_key), SignOuts(parts.store)
    context = PageContext(parts=parts, sessions=sessions, sign_outs=sign_outs, assets=Assets())
    views = (
        *(_dashboard, _operations, _operation, _approvals, hooks, _logs, _budgets, _deliveries, _endpoints),
        *(_keys, _audit, _settings),
    )
    handlers = [
        *(redirect_home, show_sign_in, sign_in, sign_out, send_asset, answer_not_found),
        *(each for view in views for each in view.ROUTES),
    ]
    parse_signatures(handlers)
    page = Litestar(
        handlers,
        path=PREFIX,
        state=State({"context": context, "parts": parts}),
        middleware=[_AdmissionMiddleware],
        before_request=require_scope,
        after_request=_finish_response,
        exception_handlers={Exception: _render_error},
        openapi_config=None,
        request_class=TextRequest,
        request_max_body_size=LARGEST_FORM,
        logging_config=None,
    )
    return PageGate(page, context, rates=rates)  # type: ignore[arg-type]


@get("/")
async def redirect_home(request: Req) -> Response[str]:
    """Redirect to the first view that the key may see."""
    scopes = caller_of(request).scopes
    first = next((view for view in VIEWS if view.scope in scopes), None)
    if first is None:
        raise ApiError(
            403,
            "scope",
            f"Your key has no scope that lets it see a view; it has {', '.join(sorted(scopes))}. Sign out, and sign in "
            "with a key that has operations:read, hooks:read or hooks:admin.",
        )
    return context_of(request).redirect(request, f"/{first.name}")


@get("/sign-in", opt=PUBLIC)
async def show_sign_in(request: Req) -> Response[Any]:
    """Show the form to sign in."""
    place = validate_place(request.query_params.get("place", ""))
    if "hookline_caller" in request.scope["state"]:
        return context_of(request).redirect(request, place or "/")
    return _render_sign_in(request, status=200, place=place)


@post("/sign-in", opt=PUBLIC, request_max_body_size=LARGEST_KEPT)
async def sign_in(request: Req) -> Response[Any]:
    """Sign in with a key, and redirect to the page that was asked for before."""
    context = context_of(request)
    fields = await read_form(request)
    place = validate_place(fields.get("place", ""))
    caller = await context.parts.keys.authenticate(fields.get("key", "").strip())
    kept = parse_form(fields)
    if caller is None:
        request.scope["state"]["hookline_codes"].append("key")
        problem = "This API key is invalid or expired."
        return _render_sign_in(request, status=401, place=place, problem=problem, kept=kept)
    session = context.sessions.create(caller)
    if kept is None:
        answer = context.redirect(request, place or "/")
    else:
        request.scope["state"]["hookline_session"] = session
        answer = context.render_page(request, "kept_form.html", kept=kept)
    answer.cookies.append(context.cookie(request, session))
    return answer


@post("/sign-out")
async def sign_out(request: Req) -> Response[str]:
    """End the session, so that copies of its cookie are refused too."""
    context = context_of(request)
    await read_form(request)
    await context.sign_outs.end(request.scope["state"]["hookline_session"])
    answer = context.redirect(request, "/sign-in")
    answer.cookies.append(context.cookie(request, None))
    return answer


@get("/static/{name:str}", opt=PUBLIC)
async def send_asset(request: Req, name: Id) -> Response[bytes]:
    """Send a static file of the page."""
    return context_of(request).assets.answer(request, name)


@route("/{rest:path}", http_method=[HttpMethod.GET, HttpMethod.POST], status_code=404)
async def answer_not_found(request: Req) -> None:
    """Answer 404 for any other path. Requests that the gate of the API has refused come here too, to be shown."""
    raise not_found_error()


class _AdmissionMiddleware:
    """Refuses requests that `PageGate` has not admitted, before the scope of a view is checked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        if "hookline_refused" in state:
            raise state["hookline_refused"]
        if "hookline_caller" not in state and not scope["route_handler"].opt.get("public"):
            state["hookline_kept_form"] = await read_kept_form(Request(scope, receive, send), PREFIX)
            raise ApiError(401, "no_session", "Sign in first.")
        await self._app(scope, receive, send)


def _render_sign_in(
    request: Req, *, status: int, place: str, problem: str = "", kept: KeptForm | None = None
) -> Response[str]:
    context = context_of(request)
    session = context.sessions.create(None)
    request.scope["state"]["hookline_session"] = session
    typed = None if kept is None else kept.encode()
    answer = context.render_page(request, "sign_in.html", status=status, place=place, problem=problem, kept=typed)
    answer.cookies.append(context.cookie(request, session))
    return answer


async def _finish_response(response: Response[Any]) -> Response[Any]:
    """Add the headers of the page as a Litestar hook: async, since Litestar would call a plain function in a thread."""
    return _add_headers(response)


def _add_headers(response: Response[Any]) -> Response[Any]:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def _render_error(request: Req, error: Exception) -> Response[Any]:
    """Render an error as a page, or as JSON for scripts."""
    request_id = str(request.scope["state"].get("hookline_request_id", ""))
    refusal = as_api_error(error) or unexpected_error(error, request_id)
    if isinstance(error, HTTPException) and refusal.status == 500:
        refusal = ApiError(error.status_code, "refused", error.detail)
    add_refusal_code(request.scope, refusal)
    outage, kept = context_of(request).outage, request.scope["state"].get("hookline_kept_form")
    if isinstance(error, StoreUnavailableError):
        outage.begin()
    if request.scope["path"].endswith((".json", "/live")):
        body = {"code": refusal.code, "detail": refusal.detail}
        answer: Response[Any] = Response(body, status_code=refusal.status, media_type=MediaType.JSON)
    elif refusal.code == "no_session":
        answer = _redirect_to_sign_in(request) if kept is None else _ask_to_sign_in(request, kept)
    elif refusal.code == "stale_form" and kept is not None:
        answer = _render_in_place(request, context_of(request).render_page(request, "kept_form.html", kept=kept))
    else:
        since = outage.since if isinstance(error, StoreUnavailableError) else None
        is_part = request.method == "POST" and _is_from_htmx(request)
        answer = context_of(request).render_page(
            request,
            "problem.html",
            status=refusal.status,
            refusal=refusal,
            request_id=request_id,
            since=since,
            method=request.method,
            is_part=is_part,
        )
        if is_part:  # the form stays there, with what was typed
            answer.headers |= {"HX-Retarget": "#refused", "HX-Reswap": "innerHTML", "HX-Reselect": ".outcome"}
    answer.headers.update(refusal.headers)
    return _add_headers(answer)


def _ask_to_sign_in(request: Req, kept: KeptForm) -> Response[Any]:
    """Ask a person whose session ended in the middle of a form to sign in, and keep what was typed."""
    problem = "Your session has ended, and nothing was changed. Sign in again: what you have typed is kept."
    return _render_in_place(request, _render_sign_in(request, status=401, place="", problem=problem, kept=kept))


def _render_in_place(request: Req, answer: Response[Any]) -> Response[Any]:
    """Have htmx show a whole page, where it has asked for a part of one."""
    if _is_from_htmx(request):
        answer.headers |= {"HX-Retarget": "body", "HX-Reswap": "innerHTML", "HX-Reselect": "body > *"}
    return answer


def _is_from_htmx(request: Req) -> bool:
    return request.headers.get("hx-request") == "true"


def _redirect_to_sign_in(request: Req) -> Response[Any]:
    context = context_of(request)
    # A browser that follows a link from another site does not send a strict cookie; it does on the next request.
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site") and request.method == "GET":
        return context.render_page(request, "again.html", status=200)
    if _is_from_htmx(request):
        return Response(None, status_code=401, headers={"HX-Redirect": f"{context.root(request)}/sign-in"})
    place = context.current_place(request) if request.method == "GET" else ""
    return context.redirect(request, "/sign-in", **({"place": place} if place else {}))
