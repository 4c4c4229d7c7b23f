"""Run the real coding agents, each in a home of its own and with an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
SERVER = Path(__file__).with_name("server.py")
"""An MCP server, which all programs call `shop`."""
VERSIONS = {
    "claude": "@anthropic-ai/claude-code@2.1.330",
    "codex": "@openai/codex@0.169.0",
    "gemini": "@google/gemini-cli@0.61.0",
    "copilot": "@github/copilot@1.0.102",
}
SECONDS = 120


class Ran(NamedTuple):
    """How a program ended."""

    code: int
    out: str
    err: str


class Place:
    """A home and a project for one run."""

    def __init__(self, folder: Path, programs: Path, url: str) -> None:
        self.home, self.project, self.programs, self.url = folder / "home", folder / "a project", programs, url
        self.home.mkdir(parents=True)
        self.project.mkdir()
        self.env = {
            "PATH": f"{programs / 'node_modules' / '.bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TMPDIR": str(folder),
            "PYTHONPATH": str(ROOT / "src"),
            "HTTPS_PROXY": "http://127.0.0.1:9",  # nothing leaves this machine
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def serve_words(self) -> list[str]:
        """Return the command of the MCP server, which writes its calls to the file `calls` of the project."""
        return [sys.executable, str(SERVER), str(self.project / "calls")]

    def last_turn(self, text: str) -> object:
        """Return the turn with which a sub-agent gives its answer."""
        return text

    def hookline(self, *words: str, stdin: str = "") -> Ran:
        """Run the command line."""
        code = "from hookline.cli import main; main()"
        return self._run([sys.executable, "-c", code, *words], stdin)

    def _run(self, words: list[str], stdin: str = "", seconds: float = SECONDS) -> Ran:
        process = subprocess.Popen(
            words,
            cwd=self.project,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, err = process.communicate()
            return Ran(-9, out, f"{err}\n(ended by the harness after {seconds} s)")
        return Ran(process.returncode, out, err)


class Claude(Place):
    name, shell = "claude", "Bash"

    def call(self, command: str) -> tuple[str, dict[str, object]]:
        return "Bash", {"command": command, "description": "run"}

    def agent(self, prompt: str) -> list[object]:
        return [("Agent", {"description": "help", "prompt": prompt, "subagent_type": "general-purpose"})]

    def prepare(self) -> None:
        self.env |= {
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "dummy-key-of-the-host",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
            "ENABLE_TOOL_SEARCH": "false",
        }
        command, *args = self.serve_words()
        servers = {"mcpServers": {"shop": {"command": command, "args": args}}}
        (self.home / "servers.json").write_text(json.dumps(servers))

    def pay(self, to: str, amount: int) -> tuple[str, dict[str, object]]:
        return "mcp__shop__pay", {"to": to, "amount": amount}

    def run(self, prompt: str) -> Ran:
        words = [
            "claude",
            "-p",
            prompt,
            "--output-format",
            "stream-json",
            "--verbose",
            "--allowedTools",
            "Bash",
            "Agent",
            "mcp__shop__pay",
            "--mcp-config",
            str(self.home / "servers.json"),
        ]
        return self._run(words)


class Codex(Place):
    name, shell = "codex", "Bash"

    def call(self, command: str) -> tuple[str, dict[str, object]]:
        return "exec_command", {"cmd": command}

    def agent(self, prompt: str) -> list[object]:
        def wait(body: dict[str, object]) -> object:
            import re

            found = re.findall(r'agent_id\\*": *\\*"([-0-9a-f]{8,})', json.dumps(body))
            return ("multi_agent_v1.wait_agent", {"targets": [found[-1] if found else ""], "timeout_ms": 60000})

        return [("multi_agent_v1.spawn_agent", {"message": prompt, "agent_type": "default"}), wait]

    def prepare(self) -> None:
        command, *args = self.serve_words()
        (self.home / ".codex").mkdir()
        (self.home / ".codex" / "config.toml").write_text(
            'model = "gpt-5"\nmodel_provider = "scripted"\ncheck_for_update_on_startup = false\n'
            f'[model_providers.scripted]\nname = "scripted"\nbase_url = "{self.url}/v1"\nwire_api = "responses"\n'
            "[features]\nplugins = false\napps = false\n[analytics]\nenabled = false\n"
            f"[mcp_servers.shop]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n"
        )

    def pay(self, to: str, amount: int) -> tuple[str, dict[str, object]]:
        return "mcp__shop.pay", {"to": to, "amount": amount}

    def run(self, prompt: str) -> Ran:
        words = ["codex", "exec", "--skip-git-repo-check", "--json", "-s", "danger-full-access", prompt]
        return self._run(words)


class Gemini(Place):
    name, shell = "gemini", "run_shell_command"

    def call(self, command: str) -> tuple[str, dict[str, object]]:
        return "run_shell_command", {"command": command, "description": "run"}

    def agent(self, prompt: str) -> list[object]:
        return [("invoke_agent", {"agent_name": "generalist", "prompt": prompt})]

    def prepare(self) -> None:
        self.env |= {
            "GOOGLE_GEMINI_BASE_URL": self.url,
            "GEMINI_API_KEY": "dummy-key-of-the-host",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        command, *args = self.serve_words()
        (self.home / ".gemini").mkdir()
        (self.home / ".gemini" / "settings.json").write_text(
            json.dumps(
                {
                    "security": {"auth": {"selectedType": "gemini-api-key"}},
                    "privacy": {"usageStatisticsEnabled": False},
                    "general": {"enableAutoUpdate": False},
                    "mcpServers": {"shop": {"command": command, "args": args, "trust": True}},
                }
            )
        )

    def pay(self, to: str, amount: int) -> tuple[str, dict[str, object]]:
        return "mcp_shop_pay", {"to": to, "amount": amount}

    def last_turn(self, text: str) -> object:
        return "complete_task", {"result": {"response": text}}

    def run(self, prompt: str) -> Ran:
        words = ["gemini", "-p", prompt, "-m", "gemini-2.5-flash", "-o", "stream-json"]
        return self._run([*words, "--skip-trust", "--approval-mode", "yolo"])


class Copilot(Place):
    """Copilot CLI with a provider of one's own, for which it needs no account."""

    name, shell = "copilot", "bash"

    def call(self, command: str) -> tuple[str, dict[str, object]]:
        return "bash", {"command": command, "description": "run"}

    def agent(self, prompt: str) -> list[object]:
        return [("task", {"description": "help", "prompt": prompt, "agent_type": "general-purpose", "name": "help"})]

    def prepare(self) -> None:
        self.env |= {
            "COPILOT_PROVIDER_BASE_URL": f"{self.url}/v1",
            "COPILOT_PROVIDER_API_KEY": "dummy-key-of-the-host",
            "COPILOT_MODEL": "scripted",
            "COPILOT_OFFLINE": "true",
        }
        command, *args = self.serve_words()
        server = {"type": "local", "command": command, "args": args, "tools": ["*"]}
        (self.home / ".copilot").mkdir()
        (self.home / ".copilot" / "mcp-config.json").write_text(json.dumps({"mcpServers": {"shop": server}}))

    def pay(self, to: str, amount: int) -> tuple[str, dict[str, object]]:
        return "shop-pay", {"to": to, "amount": amount}

    def run(self, prompt: str) -> Ran:
        return self._run(["copilot", "-p", prompt, "--allow-all-tools"])


PROGRAMS = {each.name: each for each in (Claude, Codex, Gemini, Copilot)}
