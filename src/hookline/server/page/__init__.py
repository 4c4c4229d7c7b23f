"""The web page: an application over the same parts as the API, for people who sign in with a key."""

from hookline.server.page._sessions import SHORTEST_KEY as SHORTEST_KEY
