"""Forms that could not be carried out since their session had ended: what was typed is shown, to be sent again.

Nothing of a form is stored on the server. It goes through the form to sign in, and comes back with the next request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar.exceptions import HTTPException

from hookline.server._callers import Req

__all__ = ["LARGEST_FORM", "LARGEST_KEPT", "KeptForm", "keep_form", "parse_form", "read_kept_form"]

LARGEST_FORM = 256 * 1024
"""Bytes of the largest form that the page takes."""
LARGEST_KEPT = 4 * LARGEST_FORM
"""Bytes of the largest form to sign in: one with another form in it, whose characters are escaped twice."""
WITHHELD = frozenset(("token", "kept"))
"""Fields that are never kept: the token of the old session, and another form. Only the form to sign in has a secret."""
ACTION = re.compile(r"/(?!sign-)[a-z]+(?:/[\w.~%-]+){0,3}", re.ASCII)


class KeptForm(msgspec.Struct, frozen=True, array_like=True):
    """A form that was not carried out.

    Attributes:
        action: The path that it was sent to, below the page's own.
        fields: Its fields, without its token.
    """

    action: str
    fields: list[tuple[str, str]]

    def encode(self) -> str:
        """Encode the form as the value of a field."""
        return msgspec.json.encode(self).decode()


async def read_kept_form(request: Req, prefix: str) -> KeptForm | None:
    """Read the form of a request that is not carried out; `None` if it came from elsewhere, or is none.

    Args:
        request: The request.
        prefix: The path below which the page is served.
    """
    if request.method != "POST" or request.headers.get("sec-fetch-site") != "same-origin":
        return None
    action = request.scope["path"].removeprefix(prefix)
    try:
        form = await request.form()
    except (HTTPException, ValueError):  # it is no form
        return None
    return keep_form(action, [(name, value) for name, value in form.multi_items() if isinstance(value, str)])


def keep_form(action: str, fields: list[tuple[str, str]]) -> KeptForm | None:
    """Return a form without its token; `None` if it was sent to no form of the page, or to that to sign in."""
    if not ACTION.fullmatch(action):
        return None
    return KeptForm(action, [(name, value) for name, value in fields if name not in WITHHELD])


def parse_form(fields: Mapping[str, Any]) -> KeptForm | None:
    """Return the form that went through the form to sign in; `None` if there is none, or it is invalid."""
    text = str(fields.get("kept", ""))
    if not text:
        return None
    try:
        kept = msgspec.json.decode(text, type=KeptForm)
    except msgspec.MsgspecError:
        return None
    return keep_form(kept.action, kept.fields)
