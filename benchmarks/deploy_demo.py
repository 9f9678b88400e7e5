"""The commands of docs/deploy.md, typed as they are written: a server and three sites in four terminals, shown in one.

It needs `kinfed[flower]`, openssl and ssh-keygen. The processes that it starts end with it; it works in a new folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console, Group
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

PAGE = Path(__file__).parents[1] / "docs" / "deploy.md"
START = 20.0  # seconds for what stays in the background
LONGEST = 600.0  # seconds of one block
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def blocks(page: str) -> Iterator[tuple[list[str], str]]:
    """Yield the blocks of commands of the page, each with the terminals that its first line names."""
    for first, commands in re.findall(r"```bash\n# (.*?)\n(.*?)```", page, re.DOTALL):
        yield first.split(", "), commands


class Terminal:
    """A shell of its own, with a file of what it shows.

    Args:
        name: Name of the terminal.
        work: Folder in which it is opened.
        environment: Its environment.
    """

    def __init__(self, name: str, work: Path, environment: Mapping[str, str]) -> None:
        self.name, self._log, self._typed = name, work / f"{name}.log", 0
        with self._log.open("wb") as log:
            self.shell = subprocess.Popen(
                ["bash", "-e"], cwd=work, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def type(self, commands: str) -> None:
        """Type commands, which are shown, and a line by which their end is known."""
        assert self.shell.stdin is not None
        self._typed += 1
        shown = "".join(f"$ {line}\n" for line in commands.strip().split("\n"))
        with self._log.open("a") as log:
            log.write(shown)
        self.shell.stdin.write(f"{commands}\necho 'done {self._typed}' >&2\n".encode())
        self.shell.stdin.flush()

    @property
    def busy(self) -> bool:
        """True while typed commands are at work."""
        return self.shell.poll() is None and f"done {self._typed}\n" not in self._log.read_text(errors="replace")

    def lines(self) -> list[str]:
        """Return what it shows, without colours."""
        text = COLOUR.sub("", self._log.read_text(errors="replace")).replace("\r", "\n")
        return [line for line in text.splitlines() if not re.fullmatch(r"\s*|done \d+|INFO :\s*", line)]

    def end(self) -> None:
        """End the shell and all that it started."""
        for stop in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.shell.pid, stop)
            time.sleep(2)
        self.shell.wait()


def panes(terminals: Mapping[str, Terminal], console: Console) -> Layout:
    """Return the last lines of all terminals, the server above and the sites below."""
    server, *sites = terminals
    height = console.size.height // 2
    layout = Layout()
    layout.split_column(Layout(name=server), Layout(name="sites"))
    layout["sites"].split_row(*(Layout(name=name) for name in sites))
    for name, terminal in terminals.items():
        last = [Text(line, no_wrap=True, overflow="ellipsis") for line in terminal.lines()[-(height - 2) :]]
        layout[name].update(Panel(Group(*last), title=name))
    return layout


def main() -> None:
    """Type all commands of the page, one block after the other, with pauses after those that stay in the background."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="folder to work in; by default a new temporary one")
    work = parser.parse_args().work or Path(tempfile.mkdtemp(prefix="kinfed-deploy-"))
    work.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": paths, "FLWR_HOME": str(work / "flwr")}
    typed = [*blocks(PAGE.read_text())]
    terminals = {name: Terminal(name, work, environment) for name in typed[0][0]}
    console, began = Console(), time.monotonic()
    try:
        with Live(panes(terminals, console), console=console, auto_refresh=False) as live:
            for names, commands in typed:
                for name in names:
                    terminals[name].type(commands)
                end = time.monotonic() + LONGEST
                pause = time.monotonic() + (START if commands.rstrip().endswith("&") else 0)
                while time.monotonic() < pause or any(terminals[name].busy for name in names):
                    if time.monotonic() > end:
                        break
                    if console.is_terminal:
                        live.update(panes(terminals, console), refresh=True)
                    time.sleep(0.5)
                failed = [name for name in names if terminals[name].busy or terminals[name].shell.poll() is not None]
                if failed:
                    break
    finally:
        for terminal in terminals.values():
            terminal.end()
    if failed or not console.is_terminal:
        for name, terminal in terminals.items():
            print(f"--- {name} ---", *terminal.lines(), sep="\n")
    result = f"failed in {', '.join(failed)}" if failed else "all done"
    print(f"{result} after {time.monotonic() - began:.0f} s, in {work}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
