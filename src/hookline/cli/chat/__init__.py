"""The command `hookline chat`."""

from hookline.cli.chat._agent import Wanted as Wanted
from hookline.cli.chat._agent import agent_of as agent_of
from hookline.cli.chat._chat import chat as chat
from hookline.cli.chat._lines import harmless as harmless
