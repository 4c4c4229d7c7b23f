"""The command of a `MissingExtraError` installs the extra from where hookline itself was installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hookline.errors import MissingExtraError

COMMIT = "0" * 40
GIT = {"url": "https://git.example/hookline.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}


@pytest.mark.parametrize(
    ("origin", "installer", "command"),
    [
        (None, "pip", "pip install 'hookline[cli]'"),
        (None, "uv", "uv pip install 'hookline[cli]'"),
        ({"url": "file:///src/hookline", "dir_info": {}}, "pip", "pip install '/src/hookline[cli]'"),
        (
            {"url": "file:///my%20src/h%C3%BCb", "dir_info": {"editable": True}},
            "pip",
            "pip install -e '/my src/hüb[cli]'",
        ),
        (GIT, "pip", f"pip install 'hookline[cli] @ git+https://git.example/hookline.git@{COMMIT}'"),
        (
            {**GIT, "vcs_info": {**GIT["vcs_info"], "requested_revision": "main"}},  # type: ignore[dict-item]
            "uv",
            "uv pip install 'hookline[cli] @ git+https://git.example/hookline.git@main'",
        ),
        (
            {"url": "file:///dist/hookline-0.1.0-py3-none-any.whl", "archive_info": {}},
            "pip",
            "pip install 'hookline[cli] @ file:///dist/hookline-0.1.0-py3-none-any.whl'",
        ),
    ],
)
def test_the_command_names_the_origin_of_hookline(
    origin: dict[str, Any] | None, installer: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_installation(tmp_path, installer, json.dumps(origin) if origin else None)
    monkeypatch.syspath_prepend(tmp_path)

    assert str(MissingExtraError("cli", "It")) == f"It needs an extra that is not installed: {command}"


def test_a_record_that_is_no_json_leaves_the_plain_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_installation(tmp_path, "pip", "{")
    monkeypatch.syspath_prepend(tmp_path)

    assert str(MissingExtraError("cli", "It")).endswith(": pip install 'hookline[cli]'")


def record_installation(folder: Path, installer: str, origin: str | None) -> None:
    """Write what an installer leaves beside the packages that it has installed."""
    record = folder / "hookline-0.1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: hookline\nVersion: 0.1.0\n")
    (record / "INSTALLER").write_text(f"{installer}\n")
    if origin is not None:
        (record / "direct_url.json").write_text(origin)
