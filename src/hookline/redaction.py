"""Find secrets by the names of fields and by patterns, and replace them, in recordings, logs and texts."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, cast

import msgspec

from hookline.errors import HookUsageError

__all__ = ["SECRET_KEYS", "SECRET_PATTERNS", "Redacting", "Redaction"]

SECRET_KEYS: Final = (
    *("password", "passwords", "passwd", "passphrase", "pwd", "password hash", "password confirmation"),
    *("secret", "secrets", "client secret", "token", "credential", "credentials", "authorization"),
    *("cookie", "cookies", "api key", "access key", "access key id", "private key", "secret key", "encryption key"),
    *("auth token", "access token", "refresh token", "id token", "session token", "bearer token", "connection string"),
)
"""Names of fields that hold secrets. A field is one if its name ends with one of them, however it is spelt: `api key`
also stands for `apiKey`, `API-KEY`, `openai_api_key` and `MYAPIKEY`, and not for `api_keys_count`."""

UNMISTAKABLE = 6
"""Letters of a name that is known at the end of a word too: `PGPASSWORD` holds a password, `spin` is no `pin`."""

ORDINARY_TOKENS = frozenset(
    (
        *("page", "next", "prev", "previous", "continuation", "sync", "cursor", "per"),
        *("pad", "eos", "bos", "unk", "mask", "sep", "cls", "stop", "first", "last", "special"),
    )
)
"""What a token is of when it is no secret: a place in a list, or a piece of a text."""

SECRET_PATTERNS: Final = (
    # Linear in the length of any text: what repeats without end starts where a word starts, and what follows it cannot
    # begin with what it repeats. Not possessive, which CPython 3.11.0 to 3.11.4 gets wrong (gh-100061, gh-106052).
    re.compile(
        r"(?<![\w-])(?:sk-(?=[\w-]*\d)[\w-]{16,}|(?:sk|rk)_(?:live|test)_\w{10,}|gh[pousr]_\w{20,}"
        r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{10,}|A(?:KIA|SIA)[0-9A-Z]{16}"
        r"|AIza[\w-]{35}|ya29\.[\w-]{20,}|hf_[A-Za-z0-9]{30,}|gsk_\w{20,}|SG\.[\w-]{16,}\.[\w-]{16,}"
        r"|npm_\w{36}|pypi-[\w-]{50,}|eyJ[\w-]+\.[\w-]+\.[\w-]*)"
    ),
    re.compile(r"(?<![\w-])(?i:bearer)\s+(?:(?=\S*\d)[\w.~+/=-]{8,}|[\w.~+/=-]{24,})"),
    re.compile(r"(?<![\w-])(?i:basic)\s+(?:[A-Za-z0-9+/]{6,}={1,2}|(?=[A-Za-z+/]*\d)[A-Za-z0-9+/]{16,})"),
    re.compile(
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-]*(?:-(?!----)[^-]*)*"
        r"(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
    ),
    re.compile(r"(?<=://)[^\s/@:?#\"']{0,200}:[^\s/@\"']{1,200}(?=@)"),
)
"""What secrets look like in any text: keys and tokens of well-known providers, JSON Web Tokens, `Bearer` and `Basic`
credentials, private keys in PEM, and `user:password@` in URLs."""

SUSPICIOUS = re.compile(
    r"sk|rk_|gh[pousr_]|github|glpat|xox|xapp|A(?:KIA|SIA|Iza)|ya29|hf_|SG\.|npm_|pypi|eyJ|(?i:earer|asic)|----|://"
)
"""A text in which this is not found has none of those: most texts are looked through once, and not five times."""

NAMED_VALUE = r"""
(?P<before>
  (?P<start> ^[ \t>*-]{0,40} )?
  (?<! [\w/-] )                                     # what stands behind a slash is part of a path
  (?P<name> [\w-]{0,40}? (?i:NAMES) \d{0,3} ) (?! [\w-] )
  \\{0,15} ["'*`]{0,2} [ \t]*
  (?: (?P<colon> : ) (?! [:=] ) | (?: := | =>? ) (?! = ) )
  [ \t*]* (?! [ \t*] )
  (?: [bBfFrRuU]{1,2} (?= ["'] ) )?                  # as Python writes bytes
)
(?! https?:// )                                     # "to reset your password: https://..." tells none
(?:
  (?P<quoted>                                       # what was cut off has no second quote
      "{3} [^"\\]* (?: (?: \\. | "(?!"") ) [^"\\]* )* (?: "{3} )?
    | " [^"\\\n]* (?: \\. [^"\\\n]* )* "?
    | ' [^'\\\n]* (?: \\. [^'\\\n]* )* '?
    | (?P<escape> \\{1,15} ) " [^"\\\n]* (?: (?: \\+ (?!["\\]) | (?P=escape) \\+ " ) [^"\\\n]* )* (?: (?P=escape) " )?
  )
  | (?P<open> [\[{] )                                # its end is found by counting
  | (?(start) (?(colon) (?:                         # `name: value` is all of its line, or a block of YAML
      (?P<block> [|>][-+\d]{0,2} [ \t]* (?: \n (?P=start) [ \t]+ [^\n]* )+ )
      | (?P<line> [^\s"'{\[|>] [^\n\r]* )
    ) | (?!) ) | (?!) )
  | (?P<word> (?: (?i: bearer | basic | digest | token ) [ \t]+ )? [^\s,;&"'{}\[\]|<>)]+ )
)
"""
"""Where a text gives a field a value. Linear in the length of any text: every repetition is bounded, or nothing that
follows it can begin with what it repeats, or the match ends with it."""

QUOTE = re.compile(r"""\\*(?:\"{3}|["'])""")
"""How a value in quotes begins."""

HARMLESS = ("true", "false", "null", "none", "True", "False", "None")
"""What a field with a secret's name may say without telling it."""

BRACKETS = re.compile(r"""[\[{(\]})]|\\+["']?|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'""")
"""What opens and closes a list or a mapping, and texts, in which it does not.

An escaped quote begins no text, or a line with many of them would be searched to its end from each of them.
"""

NAME = re.compile(r"\S{1,200}")
"""What names a header or a variable, and is no title such as "Reset my password"."""

KNOWN_NAMES = 4_096
LONGEST_NAME = 200
"""Bounds of what is remembered of names, and read of one."""

WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_]+|\d+")


class Redacting(Protocol):
    """The interface of a redaction, which changes what a cassette records and looks up."""

    def value(self, value: Any) -> Any:
        """Return a JSON-like value, such as the arguments of a call, without secrets."""
        ...

    def text(self, text: str) -> str:
        """Return a text, such as a tool's result, without secrets."""
        ...


class Redaction(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Rules for secrets: names of fields, patterns of texts, and the replacement.

    Attributes:
        keys: Names of fields, as words: `("api key",)`. Their values are replaced in arguments, in results that are
            JSON, and in texts with `name: value` or `name=value`.
        patterns: Regular expressions. Matches are replaced in every text.
        replacement: The text that replaces a secret.
        also: A function that is called with every text after that, and returns it without further secrets.
    """

    keys: tuple[str, ...] = SECRET_KEYS
    patterns: tuple[str | re.Pattern[str], ...] = SECRET_PATTERNS
    replacement: str = "[redacted]"
    also: Callable[[str], str] | None = None

    def __post_init__(self) -> None:
        for name in ("keys", "patterns"):
            given = getattr(self, name)
            if isinstance(given, str | re.Pattern):
                raise HookUsageError(f"`{name}` of a Redaction must be a list; got {given!r}.")
            msgspec.structs.force_setattr(self, name, tuple(given))
        for key in self.keys:
            if not isinstance(key, str) or not WORDS.search(key):
                raise HookUsageError(f"`keys` of a Redaction must be names of fields; got {key!r}.")
        self._compiled  # noqa: B018  # so that a pattern that cannot work is refused here

    # Made once: every text and every field of every call is looked at.

    @functools.cached_property
    def _compiled(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(_compile_pattern, self.patterns))

    @functools.cached_property
    def _secret_names(self) -> re.Pattern[str] | None:
        return _secret_name_pattern(self.keys) if self.keys else None

    @functools.cached_property
    def _stems(self) -> list[str]:
        words = {max(WORDS.findall(key), key=len).lower() for key in self.keys}
        return [word for word in words if not any(other != word and other in word for other in words)]

    @functools.cached_property
    def _secrets(self) -> frozenset[str]:
        return frozenset("".join(WORDS.findall(key)).lower() for key in self.keys)

    @functools.cached_property
    def _unmistakable(self) -> tuple[str, ...]:
        return tuple(secret for secret in self._secrets if len(secret) >= UNMISTAKABLE)

    @functools.cached_property
    def _known(self) -> dict[str, bool]:
        return {}

    def is_secret(self, name: str) -> bool:
        """Return whether a field with this name has a secret."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= KNOWN_NAMES:
                self._known.clear()
            known = self._known[name] = _is_secret(name, self._secrets, self._unmistakable)
        return known

    def value(self, value: Any) -> Any:
        """Return a JSON-like value without its secrets; the same object if it has none."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            named = self._names_a_secret(value)
            return {
                self._patterns(key): self._hidden(item) if named and key.lower() == "value" else self._field(key, item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.value(item) for item in value]
        return value

    def text(self, text: str) -> str:
        """Return a text without its secrets; a JSON text is redacted as a value."""
        named = self._secret_names
        if named is not None and self._may_name(text):
            whole = self._json(text) if text.lstrip()[:1] in ("{", "[") else None
            text = whole if whole is not None else "".join(self._assigned(text, named))
        return self._patterns(text)

    def _may_name(self, text: str) -> bool:
        """Whether a text may have names of secrets; to search for them takes a hundred times as long."""
        if ":" not in text and "=" not in text:
            return False
        lowered = text.lower()
        return any(stem in lowered for stem in self._stems)

    def _patterns(self, text: str) -> str:
        if self.patterns is SECRET_PATTERNS and self.also is None and not SUSPICIOUS.search(text):
            return text
        for pattern in self._compiled:
            if pattern.search(text):
                text = pattern.sub(self._mark, text)
        return text if self.also is None else self.also(text)

    def _mark(self, found: re.Match[str]) -> str:
        return self.replacement if found[0] else ""

    def _field(self, name: str, value: Any) -> Any:
        return self._hidden(value) if self.is_secret(name) else self.value(value)

    def _names_a_secret(self, value: dict[str, Any]) -> bool:
        """Whether a mapping is a header or a variable with a secret's name: `{"name": "DB_PASSWORD", "value": ...}`."""
        for key, item in value.items():
            if (
                key.lower() in ("name", "key")
                and isinstance(item, str)
                and NAME.fullmatch(item)
                and self.is_secret(item)
            ):
                return True
        return False

    def _hidden(self, value: Any) -> Any:
        """Return the value of a secret field with everything in it replaced."""
        if isinstance(value, dict):
            return {self._patterns(key): self._hidden(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._hidden(item) for item in value]
        return value if value is None or isinstance(value, bool) or value == "" else self.replacement

    def _json(self, text: str) -> str | None:
        try:
            held = json.loads(text)
        except (ValueError, RecursionError):
            return None
        clean = self.value(held)
        if clean == held:
            return text
        indent = 2 if "\n" in text.strip() else None
        separators = None if indent or ": " in text else (",", ":")
        return json.dumps(clean, indent=indent, separators=separators, ensure_ascii=text.isascii())

    def _assigned(self, text: str, named: re.Pattern[str]) -> Iterator[str]:
        """Return the pieces of a text, with the values of secret names replaced."""
        done = place = 0
        while found := named.search(text, place):
            place = found.end("before")
            if not self.is_secret(found["name"]):
                continue
            end = _closing(text, place) if found["open"] else found.end()
            value = text[place:end]
            if value not in HARMLESS and value != self.replacement:
                quote = QUOTE.match(value)[0] if found["quoted"] else ""  # type: ignore[index]
                yield f"{text[done:place]}{quote}{self.replacement}{quote}"
                done = place = end
        yield text[done:]


class Unredacted:
    """A redaction that changes nothing."""

    def value(self, value: Any) -> Any:
        """Return the value as it is."""
        return value

    def text(self, text: str) -> str:
        """Return the text as it is."""
        return text


def as_redaction(given: object) -> Redacting:
    """Return the redaction that `redact=` of a cassette means.

    Args:
        given: A `Redaction` or anything like it, `None` for no redaction, or a function that takes further secrets out
            of a text.

    Raises:
        HookUsageError: If it is anything else.
    """
    if given is None:
        return Unredacted()
    if callable(getattr(given, "value", None)) and callable(getattr(given, "text", None)):
        return cast("Redacting", given)
    if callable(given):
        return Redaction(also=given)
    raise HookUsageError(f"`redact` must be a Redaction, a function from text to text, or None; got {given!r}.")


def _compile_pattern(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    try:
        return re.compile(pattern)
    except (TypeError, re.error) as error:
        raise HookUsageError(f"`patterns` of a Redaction must be regular expressions; {pattern!r}: {error}.") from None


def _closing(text: str, place: int) -> int:
    """Return the end of a list or a mapping in a text: the end of the text if it was cut off."""
    depth = 0
    for found in BRACKETS.finditer(text, place):
        depth += (found[0] in "[{(") - (found[0] in ")}]")
        if depth == 0:
            return found.end()
    return len(text)


def _is_secret(name: str, secrets: frozenset[str], unmistakable: tuple[str, ...]) -> bool:
    words = [word.lower() for word in WORDS.findall(name[-LONGEST_NAME:])]
    while words and words[-1].isdigit():
        words.pop()
    for length in range(1, min(len(words), 4) + 1):
        if "".join(words[-length:]) in secrets:
            return not (words[-1] == "token" and len(words) > 1 and words[-2] in ORDINARY_TOKENS)
    return "".join(words).endswith(unmistakable)


def _secret_name_pattern(keys: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern of the places in a text where a field with a secret's name gets a value."""
    names = {r"[\ _-]?".join(map(re.escape, WORDS.findall(key))) for key in keys}
    every = "|".join(sorted(names, key=len, reverse=True))
    return re.compile(NAMED_VALUE.replace("NAMES", every), re.VERBOSE | re.MULTILINE)
