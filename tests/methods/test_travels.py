"""What methods say that their messages carry is what real messages carry."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinfed.methods import METHODS, Message, make_method
from kinfed.methods.method import NamedTensors
from kinfed.methods.travels import NUMBERS, Sent, told
from kinfed.testing import small_runtime, trial_fields

ROOT = Path(__file__).parents[2]


def in_messages(name: str) -> tuple[list[NamedTensors], list[NamedTensors], tuple[list[Sent], list[Sent]]]:
    """The uploads and downloads of all clients in the rounds of a short run, and what the method says of them."""
    kind = METHODS[name]
    fields = trial_fields(type(make_method(name).unwrapped)) | trial_fields(kind)
    runtime = small_runtime(make_method(name, fields), rounds=3, model="tiny_cnn")
    method, kept = runtime.method, {}
    state = method.init(runtime.server(0))
    ups: list[NamedTensors] = []
    downs: list[NamedTensors] = []
    for round in (1, 2, 3):
        uploads = {}
        for id in range(len(runtime.trained)):
            down = method.download(state, id)
            uploads[id], kept[id] = runtime.update(id, round, down, kept.get(id, Message()))  # type: ignore[arg-type]
            downs.append(down)
            ups.append(uploads[id])
        state = method.aggregate(runtime.server(round), state, uploads)
    return ups, downs, ([*method.carries_up], [*method.carries_down])


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.trains != "pooled"])
def test_messages_carry_what_the_method_says_and_nothing_else(name: str) -> None:
    ups, downs, declared = in_messages(name)
    for way, messages, sent, known in (("sends", ups, declared[0], NUMBERS), ("receives", downs, declared[1], ())):
        there = {n for message in messages for n in (*message.tensors, *message.numbers)} - {*known}
        unsaid = {n for n in there if not any(n.startswith(one.names) for one in sent if one.names)}
        assert not unsaid, f"{name} does not say that a client {way} {sorted(unsaid)}"
        for one in sent:
            always = one.names and not one.when
            assert not always or any(n.startswith(one.names) for n in there), f"{name} never {way} {one.what}"


@pytest.mark.parametrize("name", METHODS)
def test_a_card_has_what_the_method_says_of_its_messages(name: str) -> None:
    method = make_method(name)
    card = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    for way, sent in (("clients send", method.carries_up), ("clients receive", method.carries_down)):
        assert f"\n| {way} | {told(sent)} |\n" in card, (
            f"python benchmarks/travels.py --cards writes docs/methods/{name}.md"
        )
    labels = "; ".join(dict.fromkeys(one.labels for one in method.carries_up)) or "nothing"
    assert f"\n| labels | {labels} |\n" in card
