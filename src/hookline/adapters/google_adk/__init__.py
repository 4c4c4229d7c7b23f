"""Hooks in Google's Agent Development Kit: `hooked(runner, hooks=[hooks]).run_async(...)`."""

from hookline.adapters.google_adk._api import DRIVES, HookedRunner, answers, hooked

__all__ = ["DRIVES", "HookedRunner", "answers", "hooked"]
