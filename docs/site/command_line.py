"""Describes the command line in Markdown, from the code of the commands."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from kinfed.cli import app


def commands() -> str:
    """Return a section for each command: what it does, its arguments, and its options in groups.

    >>> "`--alpha FLOAT`" in commands()
    True
    """
    return "\n".join(_sections(typer.main.get_command(app), "kinfed"))


def _sections(command: Any, name: str) -> Iterator[str]:
    """Yield the lines about a command, or about those of a group of commands."""
    if hasattr(command, "commands"):
        for of, inner in command.commands.items():
            yield from _sections(inner, f"{name} {of}")
        return
    context = command.context_class(command, info_name=name)
    yield f"\n## {name}\n\n```text\n{command.get_usage(context)}\n```\n\n{_text(command.help)}\n"
    groups: dict[str, list[str]] = {}
    for parameter in command.params:
        of = "Arguments" if parameter.param_type_name == "argument" else "Options"
        names, meaning = parameter.get_help_record(context)
        entry = f"`{names}`\n: {_text(meaning)}\n"
        groups.setdefault(getattr(parameter, "rich_help_panel", None) or of, []).append(entry)
    for heading, entries in groups.items():
        yield f"### {heading} of {name}\n\n" + "\n".join(entries)


def _text(text: str) -> str:
    """Return a help text so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_<>\[\]|{}$])", r"\\\1", text)
