"""Add hooks to a loop of your own on the OpenAI or Anthropic client."""

from hookline.loop._api import wrap
from hookline.loop._async import LoopRun
from hookline.loop._binding import DRIVES
from hookline.loop._prices import cost_of as cost_of
from hookline.loop._prices import highest_cost_of as highest_cost_of
from hookline.loop._sync import SyncLoopRun

__all__ = ["DRIVES", "LoopRun", "SyncLoopRun", "wrap"]
