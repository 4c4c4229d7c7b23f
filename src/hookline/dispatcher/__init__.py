"""Call the observers of each operation; queue events for async ones in lanes."""

from hookline.dispatcher._dispatcher import DrainReport, HookDispatcher, Registration
from hookline.dispatcher._lanes import compile_queue as compile_queue
from hookline.dispatcher._webhooks import RequiredDeliveries as RequiredDeliveries
from hookline.dispatcher._webhooks import before_tool_call_of as before_tool_call_of
from hookline.dispatcher._webhooks import has_webhooks as has_webhooks
from hookline.dispatcher._webhooks import hooks_of_this_process as hooks_of_this_process
from hookline.dispatcher._webhooks import with_delivering_observers as with_delivering_observers

__all__ = ["DrainReport", "HookDispatcher", "Registration"]
