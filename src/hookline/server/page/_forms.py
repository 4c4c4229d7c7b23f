"""Read the forms that a person sends, and refuse those of another site or another session."""

from __future__ import annotations

from hookline.server._callers import Req
from hookline.server._problems import ApiError
from hookline.server.page._context import PREFIX, context_of
from hookline.server.page._kept_forms import read_kept_form
from hookline.server.page._sessions import PageSession

__all__ = ["read_choices", "read_form"]


async def read_form(request: Req) -> dict[str, str]:
    """Read the fields of a form, and check that it belongs to this session and this page.

    Raises:
        ApiError: 403, if it does not.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise ApiError(403, "foreign_form", "The form came from another site.")
    given = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
    session: PageSession | None = request.scope["state"].get("hookline_session")
    if session is None or not context_of(request).sessions.has_token(session, given.pop("token", "")):
        request.scope["state"]["hookline_kept_form"] = await read_kept_form(request, PREFIX)
        raise ApiError(403, "stale_form", "The form is too old, or belongs to another session. Reload the page.")
    return given


async def read_choices(request: Req, name: str) -> list[str]:
    """Read the chosen values of a field of a form that may be given several times."""
    return [value for value in (await request.form()).getall(name, []) if isinstance(value, str)]
