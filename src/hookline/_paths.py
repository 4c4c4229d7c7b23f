"""Normalize request paths, so that hooks and routers see the same one."""

from __future__ import annotations

import re

__all__ = ["has_dot_segment", "merge_slashes"]

REPEATED_SLASHES = re.compile("//+")
DOT_SEGMENT = re.compile(r"(?:^|/)\.\.?(?:/|$)")


def merge_slashes(path: str) -> str:
    """Return a path with one slash where there are several, as nginx does with `merge_slashes`."""
    return REPEATED_SLASHES.sub("/", path) if "//" in path else path


def has_dot_segment(path: str) -> bool:
    """Return whether a path has a segment `.` or `..`.

    Clients resolve these before they send a request (RFC 3986, 5.2.4; the URL standard also takes `%2e` for a dot), so
    only somebody who wants a proxy, a hook and a router to disagree sends one.
    """
    return ("/." in path or path[:1] == ".") and DOT_SEGMENT.search(path) is not None
