"""The page of verdicts is what its generator writes."""

from __future__ import annotations

from hookline.evals.adapter_contract import Stage
from hookline.evals.verdicts import DECISIONS, ForcedDifference, Path, Verdict

from .verdicts import PAGE, load_generator

generator = load_generator()


def test_the_page_is_what_the_generator_writes() -> None:
    written = PAGE.read_text()

    assert generator.render(generator.read(written)) == written


def test_every_group_has_a_section_without_faults() -> None:
    sections = generator.read(PAGE.read_text())

    assert [*sections] == [*generator.GROUPS]
    assert [group for group, text in sections.items() if "| fault" in text] == []


def test_a_policy_that_denies_in_one_way_to_run_an_agent_denies_in_all() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| deny | ")][1:]

    cells = {cell.strip(" |").partition(" (")[0] for _, *row in rows for cell in row}
    assert len(rows) == len(generator.GROUPS)
    assert cells == {"equal", "refused"}


def test_each_kind_of_cell_has_its_word_and_its_note() -> None:
    stage: Stage = object()  # type: ignore[assignment]
    differs = {
        "allow": ForcedDifference(reason="Because.", verdict=Verdict()),
        "deny": ForcedDifference(reason="It cannot be said."),
        "rewrite": ForcedDifference(reason="Broken.", verdict=Verdict(), fault=True),
    }
    text = generator.section("loop", [Path("a", stage, differs=differs), Path("b", stage, refused="No hooks.")])

    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert rows["allow"] == "| allow | differs (1) | refused (2) |"
    assert rows["deny"] == "| deny | not possible (3) | refused (2) |"
    assert rows["rewrite"] == "| rewrite | fault (4) | refused (2) |"
    assert rows["answer"] == "| answer | equal | refused (2) |"
    assert len(rows) == len(DECISIONS) + 2
    assert "4. Broken." in text
