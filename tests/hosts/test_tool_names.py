"""The tools of MCP servers have the server as their toolset, however a coding agent spells them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookline.hosts import HOSTS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without settings."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COPILOT_HOME", raising=False)
    return tmp_path / "home"


def name_server(file: Path, *servers: str, key: str = "mcpServers") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    named = json.dumps({key: {each: {"command": "serve"} for each in servers}})
    file.write_text(f"// servers\n{named}\n")


@pytest.mark.parametrize(
    ("host", "name", "expected"),
    [
        ("claude", "mcp__notes__read", ("notes", "read")),
        ("codex", "mcp__notes__read_all", ("notes", "read_all")),
        ("cursor", "MCP:read", ("mcp", "read")),
        ("cursor", "MCP:read:all", ("mcp", "read:all")),
        ("cursor", "MCP:", ("cursor", "MCP:")),
        ("copilot", "notes-read", ("notes", "read")),
        ("copilot", "my-notes-read_all", ("my-notes", "read_all")),
        ("copilot", "bash", ("copilot", "Bash")),
        ("copilot", "-", ("copilot", "-")),
    ],
)
def test_a_tool_is_told_from_its_server(host: str, name: str, expected: tuple[str, str], tmp_path: Path) -> None:
    assert HOSTS[host].split_tool(name, folder=str(tmp_path)) == expected


def test_a_tool_with_hyphens_is_told_from_a_server_that_the_users_settings_name(home: Path, tmp_path: Path) -> None:
    name_server(home / ".copilot" / "mcp-config.json", "my", "my-notes", "other")

    assert HOSTS["copilot"].split_tool("my-notes-read-all", folder=str(tmp_path)) == ("my-notes", "read-all")
    assert HOSTS["copilot"].split_tool("my-files-read-all", folder=str(tmp_path)) == ("my", "files-read-all")
    assert HOSTS["copilot"].split_tool("files-read-all", folder=str(tmp_path)) == ("files-read", "all")


def test_settings_that_the_variable_of_the_host_moves_are_read_there(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPILOT_HOME", str(tmp_path / "moved"))
    name_server(tmp_path / "moved" / "mcp-config.json", "notes")

    assert HOSTS["copilot"].split_tool("notes-read-all") == ("notes", "read-all")


@pytest.mark.parametrize(("file", "key"), [(".mcp.json", "mcpServers"), (".vscode/mcp.json", "servers")])
def test_a_project_names_servers_too(file: str, key: str, tmp_path: Path) -> None:
    name_server(tmp_path / file, "notes", key=key)

    assert HOSTS["copilot"].split_tool("notes-read-all", folder=str(tmp_path)) == ("notes", "read-all")
    assert HOSTS["copilot"].split_tool("notes-read-all") == ("notes-read", "all")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"mcpServers": [1]}', '{"mcpServers": {"": 1}}', "\x00\xff"])
def test_settings_that_cannot_be_read_name_no_server(text: str, home: Path) -> None:
    file = home / ".copilot" / "mcp-config.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode("latin-1"))

    assert HOSTS["copilot"].split_tool("notes-read") == ("notes", "read")
