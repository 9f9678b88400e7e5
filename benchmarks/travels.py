"""What travels with each method: the tensors and numbers of its messages, as a table of docs/flower.md.

Two rounds of every method on a small federation in this process; parts of the model are told by their names. With
``--cards``, the cards in docs/methods get what the methods declare of their messages instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kinfed.flower.federation import impossible
from kinfed.methods import METHODS, Message, make_method
from kinfed.methods.travels import told
from kinfed.models import BODY, HEAD
from kinfed.testing import small_runtime, trial_fields

PARTS = {"body": BODY, "head": HEAD}
NOBODY_ASKS = {"samples", "steps", "skipped", "loss", "cross_entropy", "term"}  # every upload has some of them


def parts(messages: Iterable[Message], whole: set[str]) -> str:
    """Return in words which parts of the model and which other tensors and numbers some messages have."""
    names = {name for message in messages for name in message.tensors}
    numbers = {name for message in messages for name in message.numbers} - NOBODY_ASKS
    told = []
    for part, prefixes in PARTS.items():
        own = {name for name in whole if name.startswith(prefixes)}
        if own and own <= names:
            told.append(part)
    rest = sorted({name.split(".")[0].split("/")[0] for name in names if not name.startswith((*BODY, *HEAD))})
    return ", ".join([*told, *(f"`{name}`" for name in rest), *(f"`{name}`" for name in sorted(numbers))]) or "–"


def row(name: str) -> str:
    """Return the row of one method."""
    made = make_method(name)
    fields = trial_fields(type(made.unwrapped)) | trial_fields(type(made))
    runtime = small_runtime(make_method(name, fields), rounds=2)
    method, whole = runtime.method, runtime.tensor_names(0)
    state = method.init(runtime.server(0))
    kept: dict[int, Any] = {}
    downs, ups, keeps = [], [], []
    for round in (1, 2):
        uploads = {}
        for id in range(len(runtime.federation)):
            down = method.download(state, id)
            uploads[id], kept[id] = runtime.update(id, round, down, kept.get(id, Message()))
            downs.append(down)
            ups.append(uploads[id])
            keeps.append(Message(kept[id].tensors, kept[id].numbers))
        state = method.aggregate(runtime.server(round), state, uploads)
    once = ["public images"] if method.requires.public_images_at_clients else []
    once += ["source models"] if method.requires.source_models else []
    columns = [parts(downs, whole), parts(ups, whole), parts(keeps, whole), ", ".join(once) or "–"]
    return f"| `{name}` | {' | '.join(columns)} |"


def write_card(name: str) -> None:
    """Put what a method declares into its card, at its place in the table."""
    method = make_method(name)
    labels = "; ".join(dict.fromkeys(one.labels for one in method.carries_up)) or "nothing"
    rows = {"clients send": told(method.carries_up), "clients receive": told(method.carries_down), "labels": labels}
    path = Path(__file__).parents[1] / "docs" / "methods" / f"{name}.md"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(tuple(f"| {row} |" for row in rows))]
    at = max(i for i, line in enumerate(lines) if line.startswith(("|---|", "| knobs |", "| travels |"))) + 1
    lines[at:at] = [f"| {row} | {value} |" for row, value in rows.items()]
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Print the table, or write the cards."""
    if "--cards" in sys.argv[1:]:
        for name in METHODS:
            write_card(name)
        return
    print("| method | to the site | from the site | stays there between rounds | once |\n|---|---|---|---|---|")
    for name, kind in METHODS.items():
        if not impossible(kind()):
            print(row(name))


if __name__ == "__main__":
    main()
