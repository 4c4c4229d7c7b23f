"""Hooks in Google's Agent Development Kit, per run: `hooked(runner, hooks=[...]).run_async(...)`."""

from hookline.adapters.google_adk._api import DRIVES, hooked

__all__ = ["DRIVES", "hooked"]
