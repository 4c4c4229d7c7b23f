"""The coding agents in which a policy can be installed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from hookline.evals.verdicts import ForcedDifference, Form, Path
from tests.adapters.differences import named, read_otherwise, stop_is_read, wait_together
from tests.adapters.hookline_itself.scripts import write_dialect_script, write_script
from tests.hosts.played import (
    CodingAgentStage,
    Played,
    PlayedClaude,
    PlayedCodex,
    PlayedCopilot,
    PlayedCursor,
    PlayedGemini,
    bundle_form,
    definition_form,
)

__all__ = ["PATHS"]

ANSWERS = read_otherwise("No hook can answer in a tool's place: the model reads the answer as a refusal.", "answer")
TOLD_ON = {
    **ANSWERS,
    **stop_is_read(
        "A hook cannot end the turn before a tool: the model reads the reason, and its further calls are denied."
    ),
}
ERRORS = {**ANSWERS, **read_otherwise("The model reads the text as an error of the tool.", "replace the result")}

INSIDE = {
    **wait_together("The coding agent waits with its sub-agent, and continues with it."),
    **read_otherwise(
        "A coding agent calls its hooks in sub-agents too, and so all of them hold there.", "not inherited"
    ),
}

GEMINI_INSIDE = {
    **INSIDE,
    **stop_is_read(
        "Gemini CLI cannot end a sub-agent: its model reads the reason, and its further calls are denied.",
    ),
}

CLAUDE_SCRIPT = {
    **named("No hook of a coding agent can answer in a tool's place.", "answer"),
    **named("A coding agent does not tell its hooks for whom it works.", "by user", "by user, another one"),
}


def path_of(
    kind: type[Played],
    differs: Mapping[str, ForcedDifference],
    *,
    depth: int = 0,
    form: Form = bundle_form,
    name: str = "",
) -> Path:
    title = f"{kind.title}{name}{', sub-agent' * depth}"
    return Path(title, CodingAgentStage(kind), depth=depth, form=form, differs=differs)


PATHS = [
    path_of(PlayedClaude, ANSWERS),
    path_of(PlayedClaude, {**ANSWERS, **INSIDE}, depth=1),
    path_of(PlayedCodex, TOLD_ON),
    path_of(PlayedCodex, {**TOLD_ON, **INSIDE}, depth=1),
    path_of(PlayedGemini, ERRORS),
    path_of(PlayedGemini, {**ERRORS, **GEMINI_INSIDE}, depth=1),
    path_of(PlayedCopilot, TOLD_ON),
    path_of(PlayedCopilot, {**TOLD_ON, **INSIDE}, depth=1),
    path_of(PlayedCursor, TOLD_ON),
    path_of(PlayedClaude, ANSWERS, form=definition_form(write_script), name=", script"),
    path_of(
        PlayedGemini,
        {**ERRORS, **GEMINI_INSIDE, **CLAUDE_SCRIPT},
        depth=1,
        form=definition_form(partial(write_dialect_script, dialect="claude")),
        name=", script for Claude Code",
    ),
]
