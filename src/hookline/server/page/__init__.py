"""The web page, for people who sign in with an API key."""

from hookline.server.page._sessions import SHORTEST_KEY as SHORTEST_KEY
