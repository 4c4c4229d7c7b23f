"""The views of hooks: the list, a hook with its history, the form, and the order."""

from hookline.server.page.hooks._views import ROUTES as ROUTES
