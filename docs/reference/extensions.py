"""What mkdocstrings shows of types and fields: two extensions of Griffe, which `zensical.toml` names.

It shows the `Attributes` of a docstring with their types. It does not know msgspec, so it would leave out the defaults
of fields, and the fields that a struct inherits; and it would show a type as `OnError` where a caller needs to know
`Literal["open", "closed"]`.
"""

import dataclasses
from collections.abc import Iterable, Iterator

import griffe

FROZEN = {"NO_DICT": "{}", "NO_LIST": "[]"}
"""Read-only values that stand in for an empty default."""
QUOTES = "\"'"


class SpelledAliases(griffe.Extension):
    """Write out types that have a name of their own, where readers do not know the name."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Go through a package that has been loaded.

        Args:
            pkg: The package.
        """
        for member in members_of(pkg):
            if isinstance(member, griffe.Attribute):
                member.annotation = spell_out(member.annotation, pkg)
            else:
                member.returns = spell_out(member.returns, pkg)
                for signature in (member, *(member.overloads or ())):
                    for parameter in signature.parameters:
                        parameter.annotation = spell_out(parameter.annotation, pkg)


def members_of(owner: griffe.Module | griffe.Class) -> Iterator[griffe.Attribute | griffe.Function]:
    """Find the attributes and functions of a package or class and of what is in it."""
    for member in owner.members.values():
        if isinstance(member, griffe.Module | griffe.Class):
            yield from members_of(member)
        elif isinstance(member, griffe.Attribute | griffe.Function):
            yield member


def spell_out(annotation: str | griffe.Expr | None, pkg: griffe.Module) -> str | griffe.Expr | None:
    """Replace the aliases in a type by what they stand for: those of literals, and all of private modules."""
    if isinstance(annotation, griffe.ExprName):
        return meaning_of(annotation, pkg) or annotation
    if isinstance(annotation, griffe.Expr):
        for field in dataclasses.fields(annotation):
            value = getattr(annotation, field.name)
            if isinstance(value, griffe.Expr):
                setattr(annotation, field.name, spell_out(value, pkg))
            elif isinstance(value, list):
                setattr(annotation, field.name, [spell_out(each, pkg) for each in value])
    return annotation


def meaning_of(name: griffe.ExprName, pkg: griffe.Module) -> griffe.Expr | None:
    """Return what an alias stands for; `None` for every other name."""
    try:
        found = pkg.modules_collection[name.canonical_path]
    except (KeyError, griffe.AliasResolutionError):
        return None
    if not isinstance(found, griffe.Attribute) or not isinstance(found.parent, griffe.Module):
        return None
    is_literal = isinstance(found.value, griffe.ExprSubscript) and found.value.canonical_path == "typing.Literal"
    is_private = found.parent.name.startswith("_") and isinstance(found.value, griffe.ExprSubscript | griffe.ExprBinOp)
    return found.value if is_literal or is_private else None


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
