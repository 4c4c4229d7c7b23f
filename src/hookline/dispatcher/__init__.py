"""Who is called, for which operation; and what a lane is."""

from hookline.dispatcher._dispatcher import DrainReport, HookDispatcher, Registration

__all__ = ["DrainReport", "HookDispatcher", "Registration"]
