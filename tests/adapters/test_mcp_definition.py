"""What `mcp_server` is given: refused at once where it cannot work, and shown to nobody where it may be secret."""

from __future__ import annotations

from typing import Any

import pytest

from hookline.adapters.mcp import mcp_server
from hookline.errors import AgentDefinitionError
from tests.tables import for_each


@for_each(
    ("given", "said"),
    [
        ({}, "pass either `command`"),
        ({"command": "x", "url": "http://x"}, "pass either `command`"),
        ({"name": "", "command": "x"}, "its name"),
        ({"command": ""}, "`command`"),
        ({"command": []}, "`command`"),
        ({"command": 7}, "`command`"),
        ({"command": "x", "args": "-v"}, "`args` must be a list"),
        ({"command": "x", "args": [1]}, "`args` strings"),
        ({"command": "x\0"}, "NUL"),
        ({"command": "x", "headers": {"a": "b"}}, "`headers` cannot be used"),
        ({"command": "x", "env": {"KEY": 5}}, "'KEY' cannot be used"),
        ({"command": "x", "env": ["KEY=5"]}, "`env` must be a mapping"),
        ({"command": "x", "env": {"A=B": "c"}}, "'A=B' cannot be used"),
        ({"command": "x", "cwd": 5}, "`cwd`"),
        ({"url": "ftp://x"}, "`url`"),
        ({"url": "http://x:port/"}, "`url`"),
        ({"url": "/mcp"}, "`url`"),
        ({"url": 5}, "`url`"),
        ({"url": "http://x", "env": {"a": "b"}}, "`env` cannot be used"),
        ({"url": "http://x", "headers": {"a": "b\n"}}, "header 'a'"),
        ({"command": "x", "timeout": 0}, "`timeout`"),
        ({"command": "x", "start_timeout": "1"}, "`start_timeout`"),
        ({"command": "x", "timeout": True}, "`timeout`"),
        ({"command": "x", "tools": "a*"}, "`tools` must be a list of globs"),
        ({"command": "x", "tools": []}, "`tools` must be a list of globs"),
        ({"command": "x", "needs_approval": "yes"}, "`needs_approval` must be a list of globs"),
        ({"command": "x", "needs_approval": [None]}, "`needs_approval` must be a list of globs"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_started(given: dict[str, Any], said: str) -> None:
    given = {"name": "files", **given}
    with pytest.raises(AgentDefinitionError) as caught:
        mcp_server(given.pop("name"), **given)

    assert said in str(caught.value)


def test_no_value_of_env_and_headers_is_shown() -> None:
    local = mcp_server("files", command=["node", "--token=secret-argument"], env={"KEY": "secret-value"})
    remote = mcp_server("web", url="https://me:secret@host:8080/secret-path?key=secret", headers={"Key": "secret"})

    assert repr(local) == "mcp_server('files', command='node')"
    assert repr(remote) == "mcp_server('web', url='https://host:8080')"
    with pytest.raises(AgentDefinitionError) as caught:
        mcp_server("web", url="https://x", headers={"Key": "secret\n"})
    assert "secret" not in str(caught.value)
