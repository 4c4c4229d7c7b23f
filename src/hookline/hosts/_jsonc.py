"""Change one place of a JSON file, and leave the rest of its text as a person wrote it: comments, order, indentation.

Comments and commas before a closing bracket are allowed, as the coding agents allow them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["JsonDocument", "JsonSyntaxError"]

SPACE = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
WORD = re.compile(r"[-+.\w]+")
DEEPEST = 200


class JsonSyntaxError(ValueError):
    """A text is no JSON, or not the JSON that was expected.

    Attributes:
        problem: What is wrong.
        line: The line, from 1.
    """

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(f"line {line}: {problem}")
        self.problem, self.line = problem, line


class Node(msgspec.Struct, eq=False):
    """A value in the text.

    Attributes:
        value: The value.
        start: Where it begins.
        end: Where it ends.
        members: The values of an object, by key, or of an array, by position.
        starts: Where each member begins, its key included.
    """

    value: Any
    start: int
    end: int
    members: dict[Any, Node] = {}
    starts: dict[Any, int] = {}


class JsonDocument:
    """A JSON text that is changed in place.

    Args:
        text: The text; an empty one is an empty object.

    Raises:
        JsonSyntaxError: If it is no JSON object.
    """

    def __init__(self, text: str) -> None:
        self.text = text if text.strip() else "{}\n"
        self._read()

    @property
    def value(self) -> dict[str, Any]:
        """The value of the whole text."""
        found: dict[str, Any] = self._root.value
        return found

    def find(self, *path: Any) -> Any:
        """Return the value at a path; `None` if there is none."""
        node = self._node(path)
        return None if node is None else node.value

    def line_of(self, *path: Any) -> int:
        """Return the line of the value at a path, or of the last part of it that exists."""
        node = self._root
        for key in path:
            node = node.members.get(key, node)
        return self._line(node.start)

    def add(self, value: Any, *path: Any) -> None:
        """Append a value to the array at a path, or add it to the object at a path under the path's last key.

        Arrays and objects on the way that do not exist are made.

        Args:
            value: The value.
            path: The keys; the last one is `None` to append to an array.

        Raises:
            JsonSyntaxError: If something else stands on the way.
        """
        for length in range(1, len(path)):
            node, wants = self._node(path[:length]), list if path[length] is None else dict
            if node is None:
                for key in reversed(path[length:]):
                    value = [value] if key is None else {key: value}
                self._insert(path[: length - 1], path[length - 1], value)
                return
            if not isinstance(node.value, wants):
                name = ".".join(map(str, path[:length]))
                kind = "an array" if wants is list else "an object"
                raise JsonSyntaxError(f"`{name}` must be {kind}", self._line(node.start))
        self._insert(path[:-1], path[-1], value)

    def remove(self, *path: Any) -> None:
        """Remove the value at a path, and arrays and objects around it that become empty by that."""
        while path:
            parent = self._node(path[:-1])
            if parent is None or path[-1] not in parent.members:
                return
            self._cut(parent, path[-1])
            path = path[:-1]
            node = self._node(path)
            if node is None or node.value or not path:
                return

    def _node(self, path: tuple[Any, ...]) -> Node | None:
        node: Node | None = self._root
        for key in path:
            if node is None:
                return None
            node = node.members.get(key)
        return node

    def _insert(self, path: tuple[Any, ...], key: Any, value: Any) -> None:
        node = self._node(path)
        assert node is not None
        indent = self._indent(node.start)
        if node.members:
            first = min(node.starts.values())
            if "\n" in self.text[node.start : first]:
                indent = self._indent(first)
            else:
                indent += "  "
        else:
            indent += "  "
        body = json.dumps(value, indent=2, ensure_ascii=False).replace("\n", f"\n{indent}")
        member = body if key is None else f"{json.dumps(key, ensure_ascii=False)}: {body}"
        if not node.members:
            inner = self.text[node.start + 1 : node.end - 1].rstrip()
            outer = self._indent(node.start)
            self._replace(node.start + 1, node.end - 1, f"{inner}\n{indent}{member}\n{outer}")
            return
        last = max(each.end for each in node.members.values())
        after = _skip(self.text, last)
        if self.text[after] == ",":  # a comma that nothing follows
            self._replace(after + 1, after + 1, f"\n{indent}{member}")
        else:
            self._replace(last, last, f",\n{indent}{member}")

    def _cut(self, parent: Node, key: Any) -> None:
        start, end = parent.starts[key], parent.members[key].end
        after = _skip(self.text, end)
        if self.text[after] == ",":
            end = after + 1
            following = re.compile(r"[ \t]*\n?").match(self.text, end)
            assert following is not None
            end = following.end()
            start = self.text.rfind("\n", 0, start) + 1 if not self.text[:start].rpartition("\n")[2].strip() else start
        else:
            before = start
            for other, node in parent.members.items():
                if other != key and node.end <= start:
                    before = node.end if before == start else max(before, node.end)
            start = before if before != start else start
            if start == parent.starts[key]:
                start, end = parent.start + 1, _trim(self.text, end, parent.end - 1)
        self._replace(start, end, "")

    def _replace(self, start: int, end: int, text: str) -> None:
        self.text = self.text[:start] + text + self.text[end:]
        self._read()

    def _indent(self, place: int) -> str:
        line = self.text[self.text.rfind("\n", 0, place) + 1 : place]
        return line[: len(line) - len(line.lstrip())]

    def _line(self, place: int) -> int:
        return self.text.count("\n", 0, place) + 1

    def _read(self) -> None:
        start = 1 if self.text.startswith("\ufeff") else 0
        self._root = self._read_value(_skip(self.text, start), 0)
        after = _skip(self.text, self._root.end)
        if after < len(self.text):
            raise JsonSyntaxError("something follows the end of the JSON", self._line(after))
        if not isinstance(self._root.value, dict):
            raise JsonSyntaxError("expected a JSON object", self._line(self._root.start))

    def _read_value(self, place: int, depth: int) -> Node:
        if depth > DEEPEST:
            raise JsonSyntaxError("nested too deeply", self._line(place))
        sign = self.text[place : place + 1]
        if sign == "{":
            return self._read_members(place, "}", depth, self._read_key)
        if sign == "[":
            return self._read_members(place, "]", depth, None)
        found = (STRING if sign == '"' else WORD).match(self.text, place)
        if found is None:
            raise JsonSyntaxError("the text ends too early" if not sign else f"unexpected {sign!r}", self._line(place))
        try:
            return Node(json.loads(found[0]), place, found.end())
        except ValueError:
            raise JsonSyntaxError(f"{found[0][:40]!r} is no JSON value", self._line(place)) from None

    def _read_members(
        self, start: int, closing: str, depth: int, read_key: Callable[[int], tuple[str, int]] | None
    ) -> Node:
        members: dict[Any, Node] = {}
        starts: dict[Any, int] = {}
        place = _skip(self.text, start + 1)
        while self.text[place : place + 1] != closing:
            begin: int = place
            key: Any = len(members)
            if read_key is not None:
                key, place = read_key(place)
            node = members[key] = self._read_value(place, depth + 1)
            starts[key] = begin
            place = _skip(self.text, node.end)
            if self.text[place : place + 1] == ",":
                place = _skip(self.text, place + 1)
            elif self.text[place : place + 1] != closing:
                raise JsonSyntaxError(f"expected ',' or {closing!r}", self._line(place))
        values = {key: node.value for key, node in members.items()}
        return Node(values if closing == "}" else list(values.values()), start, place + 1, members, starts)

    def _read_key(self, place: int) -> tuple[str, int]:
        found = STRING.match(self.text, place)
        if found is None:
            raise JsonSyntaxError("expected a key in double quotes", self._line(place))
        place = _skip(self.text, found.end())
        if self.text[place : place + 1] != ":":
            raise JsonSyntaxError("expected ':'", self._line(place))
        return json.loads(found[0]), _skip(self.text, place + 1)


def _skip(text: str, place: int) -> int:
    found = SPACE.match(text, place)
    assert found is not None
    return found.end()


def _trim(text: str, start: int, end: int) -> int:
    """Return the end of the blank text from a place on, up to another one at most."""
    while start < end and text[start].isspace():
        start += 1
    return start
