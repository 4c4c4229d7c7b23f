"""Who is called, for which operation; and what a lane is."""

from hookline.dispatcher._dispatcher import DrainReport, HookDispatcher, Registration
from hookline.dispatcher._webhooks import RequiredDeliveries as RequiredDeliveries
from hookline.dispatcher._webhooks import carried as carried
from hookline.dispatcher._webhooks import has_webhooks as has_webhooks
from hookline.dispatcher._webhooks import local as local

__all__ = ["DrainReport", "HookDispatcher", "Registration"]
