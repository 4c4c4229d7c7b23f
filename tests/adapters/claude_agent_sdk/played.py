"""What the tests of this folder share: scenes, a bundle that hears everything, and a way to play."""

from __future__ import annotations

from typing import Any

from hookline import Hooks
from hookline.adapters.claude_agent_sdk import query
from hookline.evals.adapter_contract import Scene
from hookline.evals.adapter_contract._scenes import DONE, ask_for, tool_call
from hookline.events import EVENTS

from .cli import FakeCli
from .stage import DRIVES, options_of

BASH = Scene(turns=[ask_for(tool_call("Bash", command="ls")), DONE])
READ = Scene(turns=[ask_for(tool_call("Read", file_path="a")), DONE])
OWN = {"Bash": {"stdout": "a b", "stderr": "", "interrupted": False}, "Read": "text"}


class Heard:
    """Every event of a run that Claude can drive.

    Args:
        inherit: Whether those of sub-agents too.
    """

    def __init__(self, *, inherit: bool = False) -> None:
        self.events: list[Any] = []
        self.hooks = Hooks("heard", inherit=inherit)
        for kind, event in EVENTS.items():
            if kind in DRIVES.events:
                self.hooks.on(event)(self.events.append)

    def names(self) -> list[str]:
        return [str(event.hook_type) for event in self.events]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


async def play(
    scene: Scene, *hooks: Hooks, own: Any = OWN, cli: FakeCli | None = None, **given: Any
) -> tuple[FakeCli, list[Any]]:
    cli = cli or FakeCli(scene, own=own)
    given = {"options": options_of(scene), **given}
    return cli, [message async for message in query(prompt="go", transport=cli, hooks=hooks, **given)]
