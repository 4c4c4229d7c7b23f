"""A table of fields for each struct and dataclass in the API reference, with types and defaults.

mkdocstrings shows the `Attributes` of a docstring with their types. It does not know msgspec, so it would leave out the
defaults, and the fields that a struct inherits. `zensical.toml` names this extension of Griffe.
"""

from collections.abc import Iterable, Iterator

import griffe

FROZEN = {"NO_DICT": "{}", "NO_LIST": "[]"}
"""Read-only values that stand in for an empty default."""
QUOTES = "\"'"


class FieldTables(griffe.Extension):
    """Turn the `Attributes` sections of structs and dataclasses into tables with defaults and inherited fields."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Go through a package that has been loaded.

        Args:
            pkg: The package.
        """
        tables = {found: field_table(found) for found in classes_of(pkg) if is_data(found)}
        for found, table in tables.items():
            if found.docstring is not None and table.value:
                sections = found.docstring.parsed
                kept = [section for section in sections if section.kind is not griffe.DocstringSectionKind.attributes]
                found.docstring.parsed = [*kept[:1], table, *kept[1:]]


def classes_of(module: griffe.Module) -> Iterator[griffe.Class]:
    """Find the classes of a package and of what is in it."""
    for member in module.members.values():
        if isinstance(member, griffe.Module):
            yield from classes_of(member)
        elif isinstance(member, griffe.Class):
            yield member


def lineage_of(kind: griffe.Class) -> Iterable[griffe.Class]:
    """Return a class and those that it is made from, the oldest first."""
    return reversed([kind, *kind.mro()])


def is_data(kind: griffe.Class) -> bool:
    """Return whether a class is a struct of msgspec or a dataclass."""
    bases = {base.canonical_path for each in lineage_of(kind) for base in each.bases if isinstance(base, griffe.Expr)}
    return "msgspec.Struct" in bases or "dataclass" in kind.labels


def field_table(kind: griffe.Class) -> griffe.DocstringSectionParameters:
    """Describe the fields of a class: name, type, meaning, default."""
    fields: dict[str, griffe.DocstringParameter] = {}
    for each in lineage_of(kind):
        for name, note in notes_of(each).items():
            member = each.members.get(name)
            if isinstance(member, griffe.Attribute):
                wire = field_arguments(member).get("name")
                fields[name] = griffe.DocstringParameter(
                    name,
                    annotation=member.annotation,
                    description=f"{note} On the wire: `{wire.strip(QUOTES)}`." if wire else note,
                    value=default_of(member),
                )
    return griffe.DocstringSectionParameters(list(fields.values()), title="Fields:")


def notes_of(kind: griffe.Class) -> dict[str, str]:
    """Return what a docstring says about each field."""
    sections = kind.docstring.parsed if kind.docstring is not None else []
    return {
        each.name: each.description
        for section in sections
        if isinstance(section, griffe.DocstringSectionAttributes | griffe.DocstringSectionParameters)
        for each in section.value
    }


def default_of(member: griffe.Attribute) -> str | None:
    """Return the default of a field as a reader would write it."""
    if given := field_arguments(member):
        return f"{given['default_factory']}()" if "default_factory" in given else given.get("default")
    return None if member.value is None else FROZEN.get(str(member.value), str(member.value))


def field_arguments(member: griffe.Attribute) -> dict[str, str]:
    """Return what `msgspec.field` or `dataclasses.field` is given, as it is written; `{}` for a plain default."""
    value = member.value
    if not isinstance(value, griffe.ExprCall) or value.canonical_path not in ("msgspec.field", "dataclasses.field"):
        return {}
    return {each.name: str(each.value) for each in value.arguments if isinstance(each, griffe.ExprKeyword)}
