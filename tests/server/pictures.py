"""Take pictures of the page with a day of agents at work: `make images`.

`python -m tests.server.pictures --to FOLDER --all --dark --width 390` takes other ones, to look at.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from playwright.async_api import Page, async_playwright
from sqlalchemy import select

from hookline.server import Server
from hookline.store import SqlStore, operations
from tests.browsers import FLAGS, find_chromium
from tests.server.day import fill, support_of

IMAGES = Path(__file__).parents[2] / "docs" / "images"
HEIGHT = 800
PICTURES = {
    "page-overview": "overview",
    "page-operations": "operations",
    "page-operation": "operations/{decided}",
    "page-waterfall": "operations/{decided} hook-waterfall",
    "page-approvals": "approvals",
    "page-hook": "hooks/new",
    "page-statistics": "statistics",
}
"""The view of each picture of the docs, and the part of it. In braces is an operation: see `find_operations`."""
OTHERS = {
    "denied": "operations/{denied}",
    "nested": "operations/{nested}",
    "failed": "operations/{failed}",
    "decided": "approvals/decisions",
    "hooks": "hooks",
    "logs": "logs",
    "deliveries": "deliveries",
    "endpoints": "endpoints",
    "keys": "keys",
    "audit": "audit",
    "settings": "settings",
}


async def take(
    folder: Path, views: Mapping[str, str], *, url: str, key: str, dark: bool, width: int, whole: bool
) -> None:
    """Take pictures.

    Args:
        folder: Where they are written.
        views: The address of each view, by the name of its picture.
        url: The URL of the database.
        key: The API key of an administrator.
        dark: Whether the page is shown in dark colours.
        width: The width of the window in pixels.
        whole: Whether a picture shows what is below the window too.
    """
    browser_path = find_chromium(os.environ, is_root=os.geteuid() == 0, folder=Path(".cache")).path
    async with Server(url, port=0, agents=[support_of("8812", 0)]) as server, async_playwright() as playwright:
        named = await find_operations(server.store)
        browser = await playwright.chromium.launch(executable_path=browser_path, args=list(FLAGS))
        page = await browser.new_page(
            base_url=f"{server.address}/page/",
            viewport={"width": width, "height": HEIGHT},
            color_scheme="dark" if dark else "light",
            device_scale_factor=1.5,
        )
        await sign_in(page, key)
        for name, view in views.items():
            address, _, part = view.format_map(named).partition(" ")
            await page.goto(address)
            await page.wait_for_timeout(300)  # the live views connect, and the waterfall is drawn
            path = folder / f"{name}.png"
            if part:
                await page.locator(part).screenshot(path=path, animations="disabled")
            else:
                await page.screenshot(path=path, animations="disabled", full_page=whole)
        await browser.close()


async def sign_in(page: Page, key: str) -> None:
    """Sign in on the page."""
    await page.goto("sign-in")
    await page.locator("input[name=key]").fill(key)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(lambda address: "sign-in" not in address)


async def find_operations(store: SqlStore) -> dict[str, str]:
    """Find the newest operations of some kinds: decided by a person, denied, with a sub-agent, and failed."""
    async with store.reading() as connection:
        newest = select(operations.c.operation_id).order_by(operations.c.created_at.desc()).limit(1)
        kinds = {
            "decided": (operations.c.agent_id == "support") & (operations.c.llm_calls == 3),
            "denied": operations.c.agent_id == "coder",
            "nested": operations.c.agent_id == "researcher",
            "failed": operations.c.agent_id == "biller",
        }
        return {name: (await connection.execute(newest.where(kind))).scalar_one() for name, kind in kinds.items()}


async def main() -> None:
    """Take what the command line asks for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--to", type=Path, default=IMAGES, help="the folder for the pictures")
    options.add_argument("--all", action="store_true", help="take every view, whole")
    options.add_argument("--dark", action="store_true")
    options.add_argument("--width", type=int, default=1280)
    options.add_argument("--url", help="a database that is filled already; needs --key")
    options.add_argument("--key")
    given = options.parse_args()
    logging.disable(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{folder}/day.db"
        key = given.key or await fill(url)
        views = PICTURES | OTHERS if given.all else PICTURES
        given.to.mkdir(parents=True, exist_ok=True)
        await take(given.to, views, url=url, key=key, dark=given.dark, width=given.width, whole=given.all)


if __name__ == "__main__":
    asyncio.run(main())
