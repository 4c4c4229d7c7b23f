"""The command `hookline chat`."""

from hookline.cli.chat._agent import AgentArguments as AgentArguments
from hookline.cli.chat._agent import load_hooks as load_hooks
from hookline.cli.chat._agent import make_agent as make_agent
from hookline.cli.chat._chat import chat as chat
