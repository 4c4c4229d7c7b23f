"""Load the run that another one is compared with: from a file, or from a commit of git."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hookline.evals.errors import RunFileError
from hookline.evals.reports import SavedRun, load_run

__all__ = ["open_baseline"]

GIT_SECONDS = 60.0
"""Seconds that git has to read the file; with Git LFS it may have to download it."""


@contextlib.contextmanager
def open_baseline(name: str) -> Iterator[SavedRun]:
    """Load a saved run whose results can be read inside of the context.

    Args:
        name: A file, or `REVISION:PATH` as git writes it: `main:evals/run.jsonl` from the root of the repository,
            `main:./run.jsonl` from the working directory. A file of that very name comes first.

    Raises:
        RunFileError: If there is no such file or commit, or if it is not a saved run.
    """
    revision, colon, path = name.partition(":")
    if not (colon and revision and path) or os.path.exists(name):
        yield load_run(name)
        return
    with tempfile.TemporaryDirectory(prefix="hookline-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "baseline"
        with open(file, "wb") as target:
            _copy_from_git(name, target)
        try:
            found = load_run(file)
        except RunFileError as error:
            raise RunFileError(name, error.reason) from error
        yield found


def _copy_from_git(name: str, target: IO[bytes]) -> None:
    if name.startswith("-"):
        raise RunFileError(name, "a revision of git does not begin with '-'")
    # `--filters`, unlike `git show`, replaces the pointers of Git LFS by the files.
    command = ["git", "cat-file", "--filters", name]
    quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}  # a download of Git LFS fails rather than ask for a password
    try:
        done = subprocess.run(
            command, env=quiet, stdout=target, stderr=subprocess.PIPE, timeout=GIT_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise RunFileError(name, "there is no such file, and no git to read it from a commit") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise RunFileError(name, f"git did not read it: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split()).removeprefix("fatal: ").removesuffix(".")
        hint = "A clone in CI may lack the commit; actions/checkout fetches all with `fetch-depth: 0`"
        raise RunFileError(name, f"there is no such file, and git says: {said}. {hint}")
