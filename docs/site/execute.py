"""Runs the commands and the Python programs of a page, and puts the output of each below it."""

import os
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def executed(page: str, folder: Path) -> str:
    """Run the blocks ``sh`` and ``python`` of a page from top to bottom in one folder.

    Every block is a process of its own. The commands of this environment are found first.

    Args:
        page: Text of the page, in Markdown.
        folder: Folder in which the blocks run, and where their files stay.

    Returns:
        The page, with the output below each block that prints something.

    Raises:
        RuntimeError: If a block ends with an error. The message has the block and its output.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "COLUMNS": "80"}
    starts = {"sh": ["bash", "-euc"], "python": [sys.executable, "-W", "error", "-c"]}

    def with_output(block: re.Match[str]) -> str:
        done = subprocess.run(
            [*starts[block[1]], block[2]],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"this block ended with exit code {done.returncode}:\n{block[2]}\n{done.stdout}")
        shown = "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())
        return f"{block[0]}\n```text\n{shown}\n```\n" if shown else block[0]

    return BLOCK.sub(with_output, page)
