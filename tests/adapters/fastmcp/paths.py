"""The ways to call the tools of a FastMCP server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastmcp import FastMCP

from hookline.adapters import hooked
from hookline.evals.adapter_contract import Ran, Scene
from hookline.evals.verdicts import ForcedDifference, Path, Record, Verdict
from hookline.hooks import AnyHook

from ..differences import deny_questions
from .stage import IDS, FastMCPStage, as_client, server_of

__all__ = ["PATHS"]


class MountedStage(FastMCPStage):
    """Gives the policy to a server in which the server with the tools is mounted."""

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        ids = {name: attach.pop(name) for name in IDS if name in attach}
        outer = FastMCP("outer")
        outer.mount(server_of(scene))
        return await as_client(hooked(outer, hooks, identify=lambda context: ids, **attach), scene)


class InnerStage(FastMCPStage):
    """Gives the policy to a server that is mounted in another one, which clients call."""

    async def play(self, scene: Scene, hooks: Iterable[AnyHook], **attach: Any) -> Ran:
        ids = {name: attach.pop(name) for name in IDS if name in attach}
        outer = FastMCP("outer")
        outer.mount(hooked(server_of(scene), hooks, identify=lambda context: ids, **attach))
        return await as_client(outer, scene)


SERVER = {
    **deny_questions("A server has nobody to ask, so a hook that asks denies the call."),
    "deny and stop": ForcedDifference(
        reason="A server has no run to end: the client reads the reason, and further calls are refused.",
        verdict=Verdict(read=("not that",), records=(Record(tool="pay", success=False, answered_by="policy"),)),
    ),
}

PATHS = [
    Path("tool call", FastMCPStage(), differs=SERVER),
    Path("tool of a mounted server", MountedStage(), differs=SERVER),
    Path("mounted server with hooks", InnerStage(), differs=SERVER),
]
