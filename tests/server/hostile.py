"""Texts that somebody sends who means no good, or whose keyboard, tool or language nobody has thought of."""

from __future__ import annotations

__all__ = ["ACTING", "FOR_DATABASES", "HOSTILE", "MARKS", "encode"]

HOSTILE = (
    "<script>alert('hookline')</script>",
    "<img src=x onerror=alert(1)>",
    '" onfocus=alert(1) autofocus="',
    "' autofocus onfocus='alert(1)",
    "</textarea><svg onload=alert(1)>",
    "'; DROP TABLE definitions; --",
    "\0",
    "a\0b",
    "\u202egnp.exe",
    "\u200b\u2060\ufeff",
    "\u00a0\u2003\u3000",
    "\ud800",
    "\U000e0041\U000e0042",
    "\N{PILE OF POO}" * 50,
    "Z\u0351\u036b\u0343" * 100,
    "x" * 5000,
    '=HYPERLINK("http://evil.example")',
    "@SUM(1+1)",
    "a\r\nSet-Cookie: hookline_session=evil\r\n\r\n",
    "../../../../etc/passwd",
    "//evil.example/",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "%s%n%00%ff",
    "\\x00\\u0000\\",
    "9" * 400,
    "-1e400",
    "nan",
    '[[[[{"a":',
    "\x1b[31m\x07\x7f",
    "\n",
)
"""They are all sent in each field of each form, and in each parameter of each address."""
ACTING = (
    "<script>alert('hookline')</script>",
    '" onfocus=alert(1) autofocus="',
    "a\r\nSet-Cookie: hookline_session=evil\r\n\r\n",
    "//evil.example/",
)
"""One of each kind that would act: in the text of a page, in an attribute, in a header, and as an address."""
FOR_DATABASES = ("\0", "a\0b", "\ud800", "9" * 400, "'; DROP TABLE definitions; --")
"""What a database may mind."""
MARKS = ("<script>alert", "<img src=x", "<svg onload", '" onfocus=', "' autofocus", "\u202e", "\u200b", "49{%", "\0")
"""What of them must never be in a page outside of the value of a field, since it would act, or hide something."""


def encode(text: str) -> str:
    """Encode a text as UTF-8, with lone surrogates as a careless program would send them; as Latin-1, for URLs."""
    return text.encode("utf-8", "surrogatepass").decode("latin-1")
