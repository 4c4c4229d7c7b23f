"""The coding agents in which a policy can be installed."""

from __future__ import annotations

from hookline.evals.verdicts import Path
from tests.adapters.differences import read_otherwise, stop_is_read, wait_together
from tests.hosts.played import (
    CodingAgentStage,
    PlayedClaude,
    PlayedCodex,
    PlayedCopilot,
    PlayedCursor,
    PlayedGemini,
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

PATHS = [
    Path("Claude Code", CodingAgentStage(PlayedClaude), differs=ANSWERS),
    Path("Claude Code, sub-agent", CodingAgentStage(PlayedClaude), depth=1, differs={**ANSWERS, **INSIDE}),
    Path("Codex", CodingAgentStage(PlayedCodex), differs=TOLD_ON),
    Path("Codex, sub-agent", CodingAgentStage(PlayedCodex), depth=1, differs={**TOLD_ON, **INSIDE}),
    Path("Gemini CLI", CodingAgentStage(PlayedGemini), differs=ERRORS),
    Path("Gemini CLI, sub-agent", CodingAgentStage(PlayedGemini), depth=1, differs={**ERRORS, **GEMINI_INSIDE}),
    Path("Copilot CLI", CodingAgentStage(PlayedCopilot), differs=TOLD_ON),
    Path("Copilot CLI, sub-agent", CodingAgentStage(PlayedCopilot), depth=1, differs={**TOLD_ON, **INSIDE}),
    Path("Cursor", CodingAgentStage(PlayedCursor), differs=TOLD_ON),
]
