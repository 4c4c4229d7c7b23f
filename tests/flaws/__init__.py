"""Every mistake that was found in four other hook systems, by its number in the fact sheet about them.

Each has one test here, whose docstring begins with system and number.
"""

LISTED: dict[str, tuple[str, ...]] = {
    "Kibana": tuple(str(number) for number in range(1, 16)),
    "AGENT-33": (*(f"F{number}" for number in range(1, 36)), "plugins", "dry run"),
    "philschmid": tuple(str(number) for number in range(1, 17)),
    "AutoByteUs": (*(str(number) for number in range(1, 11)), "replacement"),
}
"""The flaws of each system: those with a number, and by a word those that the sheet only mentions."""
