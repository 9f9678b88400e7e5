"""What travels with each method: the tensors and numbers of its messages, as a table of docs/flower.md.

Two rounds of every method on a small federation in this process; parts of the model are told by their names.
"""

from __future__ import annotations

from collections.abc import Iterable

from kinfed.flower.federation import impossible
from kinfed.methods import METHODS, Message, make_method
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
    state, kept = method.init(runtime.server(0)), {}
    downs, ups, keeps = [], [], []
    for round in (1, 2):
        uploads = {}
        for id in range(len(runtime.federation)):
            down = method.download(state, id)
            uploads[id], kept[id] = runtime.update(id, round, down, kept.get(id, Message()))  # type: ignore[arg-type]
            downs.append(down)
            ups.append(uploads[id])
            keeps.append(Message(kept[id].tensors, kept[id].numbers))
        state = method.aggregate(runtime.server(round), state, uploads)
    once = ["public images"] if method.requires.public_images_at_clients else []
    once += ["source models"] if method.requires.source_models else []
    columns = [parts(downs, whole), parts(ups, whole), parts(keeps, whole), ", ".join(once) or "–"]
    return f"| `{name}` | {' | '.join(columns)} |"


def main() -> None:
    """Print the table."""
    print("| method | to the site | from the site | stays there between rounds | once |\n|---|---|---|---|---|")
    for name, kind in METHODS.items():
        if not impossible(kind()):
            print(row(name))


if __name__ == "__main__":
    main()
