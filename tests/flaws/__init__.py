"""Every mistake that was found in four other hook systems, by its number in the fact sheet about them.

Each has one test here, whose docstring begins with system and number, or it stands below with the reason.
"""

LISTED: dict[str, tuple[str, ...]] = {
    "Kibana": tuple(str(number) for number in range(1, 16)),
    "AGENT-33": (*(f"F{number}" for number in range(1, 36)), "plugins", "dry run"),
    "philschmid": tuple(str(number) for number in range(1, 17)),
    "AutoByteUs": (*(str(number) for number in range(1, 11)), "replacement"),
}
"""The flaws of each system: those with a number, and by a word those that the sheet only mentions."""

NOT_HERE_YET: tuple[tuple[str, str, str], ...] = (
    (
        "AGENT-33",
        "dry run",
        "hooks are not stored and nothing tries one out: a test runs a `Chain` with its own terminal",
    ),
)
"""System, flaw, and why there is nothing here that could have it."""
