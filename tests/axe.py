"""What axe finds wrong with a page in a browser."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe

__all__ = ["SCRIPT", "find_serious"]

READ_COLORS_ONCE = """(() => {
  const colors = axe.commons.color.Color.prototype, read = colors.parseString, known = new Map();
  colors.parseString = function (text) {
    if (known.has(text)) return Object.assign(this, known.get(text));
    const { r, g, b, alpha } = read.call(this, text);
    known.set(text, { r, g, b, alpha });
    return this;
  };
})()"""
"""Has axe remember what a text says of a color: it reads the dozen colors of a view thousands of times."""
SCRIPT = f"{Axe().axe_script};{READ_COLORS_ONCE}"
"""What a page must have run before it is judged."""
JUDGE = "axe.run({resultTypes: ['violations'], selectors: false}).then((found) => found.violations)"
"""Sends what axe has found, without what it has found to be right: a view has hundreds of elements."""
SERIOUS = {"serious", "critical"}


def find_serious(page: Any) -> list[tuple[str, str, str]]:
    """Return what axe finds that is serious: the rule, the element, and what is wrong with it."""
    return [
        (rule["id"], node["html"][:200], node["failureSummary"][:200])
        for rule in page.evaluate(JUDGE)
        if rule["impact"] in SERIOUS
        for node in rule["nodes"]
    ]
