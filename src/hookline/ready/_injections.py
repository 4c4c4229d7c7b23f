r"""How a passage looks that tries to give a model orders: phrases, markers, blobs, hidden characters, images.

Every expression is linear in the length of any text: what repeats without end is possessive, the rest is bounded.
"""

import base64
import binascii
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import msgspec

__all__ = ["Finding", "find_injections"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A passage that looks like a prompt injection.

    Attributes:
        rule: Which heuristic it met: `"override"`, `"reveal"`, `"persona"`, `"secrecy"`, `"marker"`, `"blob"`,
            `"hidden"` or `"image"`.
        start: Where it starts, in characters from 0.
        end: Where it ends.
    """

    rule: str
    start: int
    end: int


# The whole gap, and the whole word. Not possessive, which CPython 3.11.0 to 3.11.4 gets wrong (gh-100061, gh-106052).
_GAP = r"[\W_]+(?![\W_])"
_WORDS = rf"(?:\w+(?!\w){_GAP}){{0,3}}?"
_ORDERS = r"(?:instructions?|prompts?|rules|guidelines|directives?|directions|orders|commands)\b"

_PHRASES = {
    "override": re.compile(
        rf"\b(?:ignore|disregard|forget|override|overrule|bypass){_GAP}(?:{_WORDS}"
        rf"(?:previous|prior|above|earlier|preceding|foregoing|former|original|your|system){_GAP}{_WORDS}{_ORDERS}"
        rf"|(?:all|any){_GAP}(?:other{_GAP})?(?:instructions|prompts)\b)"
        rf"|\bnew{_GAP}(?:system{_GAP})?(?:instructions?|prompt)[^\S\n]*:"
    ),
    "reveal": re.compile(
        rf"\b(?:reveal|print|show|repeat|output|display|leak|expose|give|tell|what{_GAP}(?:is|are|was|were)){_GAP}"
        rf"(?:{_WORDS}your{_GAP}{_WORDS}(?:system|initial|hidden|secret){_GAP}(?:prompts?|instructions?)"
        rf"|{_WORDS}(?:the|your){_GAP}system{_GAP}(?:prompt|message))\b"
    ),
    "persona": re.compile(
        rf"\b(?:you{_GAP}are{_GAP}now|act{_GAP}as|pretend{_GAP}to{_GAP}be){_GAP}{_WORDS}"
        rf"(?:dan|jailbroken|unrestricted|unfiltered|uncensored|developer{_GAP}mode)\b"
        rf"|\bdo{_GAP}anything{_GAP}now\b"
    ),
    "secrecy": re.compile(
        rf"\b(?:do{_GAP}not|don{_GAP}t|dont|never|without){_GAP}(?:tell(?:ing)?|inform(?:ing)?|alert(?:ing)?|notify(?:ing)?)"
        rf"{_GAP}(?:the|your){_GAP}(?:user|human|operator)\b"
    ),
    "marker": re.compile(
        r"<\|(?:im_start|im_end|im_sep|system|user|assistant|endoftext|eot_id|begin_of_text|start_header_id|"
        r"end_header_id)\|>|\[/?inst\]|<</?sys>>|<start_of_turn>"
        r"|^[^\S\n]{0,8}#{3,6}[^\S\n]{0,4}(?:system(?:[^\S\n]prompt|[^\S\n]message)?[^\S\n]{0,4}:?"
        r"|(?:instruction|response)[^\S\n]{0,4}:)[^\S\n]{0,8}$",
        re.MULTILINE,
    ),
}
_HIDDEN = re.compile("[\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f\U000e0100-\U000e01ef]{8,}")
# An image whose address is to be filled in by the model: a placeholder in its query.
_IMAGE = re.compile(
    r"!\[[^\[\]\n]{0,200}\]\(\s{0,4}https?://[^\s()?]{1,300}\?[^\s(){}<>\[\]$]{0,300}[{<\[$][^()\n]{0,300}\)?"
)
_BLOB = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{24,}={0,2}")


def find_injections(text: str) -> list[Finding]:
    """The passages of a text that look like a prompt injection, rule by rule."""
    found = [Finding(rule="hidden", start=each.start(), end=each.end()) for each in _HIDDEN.finditer(text)]
    found += [Finding(rule="image", start=each.start(), end=each.end()) for each in _IMAGE.finditer(text)]
    found += _in_words(text)
    for blob in _BLOB.finditer(text):
        inner = _decoded(blob[0])
        if inner and any(rule.search(_folded(inner)[0]) for rule in _PHRASES.values()):
            found.append(Finding(rule="blob", start=blob.start(), end=blob.end()))
    return found


def _in_words(text: str) -> Iterator[Finding]:
    plain, folds = _folded(text)
    ends: list[int] = []
    for rule, pattern in _PHRASES.items():
        for each in pattern.finditer(plain):
            start, end = each.span()
            if folds is not None:
                ends = ends or list(accumulate(len(folds[code]) for code in map(ord, text)))
                start, end = bisect_right(ends, start), bisect_right(ends, end - 1) + 1
            yield Finding(rule=rule, start=start, end=end)


class _Folds(dict[int, str]):
    """What each character is compared as: NFKC, small letters; invisible ones as nothing, tags as what they hide."""

    def __missing__(self, code: int) -> str:
        if 0xE0020 <= code <= 0xE007E:
            folded = chr(code - 0xE0000).lower()
        elif unicodedata.category(chr(code)) == "Cf" or 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF:
            folded = ""
        else:
            folded = unicodedata.normalize("NFKC", chr(code)).casefold()
        self[code] = folded
        return folded


def _folded(text: str) -> tuple[str, _Folds | None]:
    """The text as it is compared; the folds are `None` where every character stays in its place."""
    if text.isascii():
        return text.lower(), None
    folds = _Folds()
    return text.translate(folds), folds


def _decoded(blob: str) -> str:
    """What is in a base64 blob; `""` if it is none."""
    body = blob.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(body[: len(body) - len(body) % 4]).decode("latin-1")
    except (binascii.Error, ValueError):
        return ""
