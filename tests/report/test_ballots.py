from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from kinfed.methods.voting import count
from kinfed.report.ballots import ballot_figure, by_ballot, outcomes, save_ballots, vote_table, voted, votes
from kinfed.report.folders import Run
from kinfed.report.notes import notes
from tests.report.test_table import made

SOURCES = ["kmnist", "mnist", "svhn"]
BALLOTS = {0: [0, 1], 1: [1, 2], 2: [0, 1], 4: [1, 2], 5: [1, 2]}  # client 3 casts none; svhn has votes, kmnist points


def with_vote(
    method: str = "fedvote", seed: int = 0, asked: str | None = None, layers: tuple[int, int] = (8, 8), **own: Any
) -> Run:
    """A vote in round 2 of clients 0 to 6, of whom 6 was refused."""
    ballots = {} if asked else BALLOTS
    counted = count(ballots, 3, 2)
    vote = {
        "round": 2, "sources": SOURCES, "votes": counted.votes, "points": counted.points, "ballots": len(ballots),
        "transferred": asked or SOURCES[counted.ranking[0]], "voted": asked is None, "layers": [*layers],
    }  # fmt: skip
    lines = [
        {"round": 1, "clients": [*range(7)], "refused": {}, "client_acc": {}},
        {"round": 2, "clients": [*range(7)], "refused": {"6": "late"}, "client_acc": {},
         "ballots": {str(id): cast for id, cast in ballots.items()}},
    ]  # fmt: skip
    config = {method: {"ballot": 2, "classifier": "keep", **own}}
    return made(method, 0.5, seed, summary={"vote": vote}, config=config, lines=lines)


def test_the_outcome_is_told_in_a_sentence() -> None:
    assert outcomes([with_vote()]) == [
        "In round 2, 5 of 7 clients cast a ballot; mnist was transferred (8 of 8 layers, the classifier was kept)."
    ]
    assert outcomes([with_vote(asked="svhn", classifier="reinit")]) == [
        "svhn was transferred in round 2, as configured, without a vote (8 of 8 layers, the classifier was "
        "re-initialised)."
    ]
    assert outcomes([with_vote(layers=(5, 8), classifier="source")])[0].endswith("(5 of 8 layers, and the classifier).")
    never = made("fedvote", 0.5, summary={"vote": None})
    assert outcomes([never])[0].startswith("No source was transferred: no client sent a usable update")


def test_several_seeds_have_a_line_each() -> None:
    lines = outcomes([with_vote(), with_vote(seed=1, asked="svhn")])
    assert [line[:14] for line in lines] == ["Seed 0: In rou", "Seed 1: svhn w"]


def test_only_rows_with_a_transfer_have_a_vote_and_variants_are_rows_of_their_own() -> None:
    runs = [made("fedavg", 0.5), with_vote(), with_vote(seed=1), with_vote("fedvote+fedprox"), with_vote(ballot=1)]
    rows = {row: len(group) for row, group in votes(runs).items()}
    assert rows == {"fedvote ballot=2": 2, "fedvote+fedprox": 1, "fedvote ballot=1": 1}
    assert [voted(run) for run in (with_vote(), with_vote(asked="svhn"), made("fedavg", 0.5))] == [True, False, False]


def test_the_sources_stand_in_the_order_of_the_count_and_the_winner_is_marked() -> None:
    table = vote_table(with_vote())
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["mnist", "transferred", "5", "8"], ["svhn", "", "3", "3"], ["kmnist", "", "2", "4"],
    ]  # fmt: skip
    assert [[cell.best for cell in row] for row in table.rows] == [[True, False, True, False], [False] * 4, [False] * 4]


def test_like_ballots_stand_together_and_empty_ones_last() -> None:
    assert by_ballot([[0, 1], [], [1, 2], [2, 1], [1, 0], [1]], ranking=[1, 2, 0]) == [5, 2, 4, 3, 0, 1]


def test_the_picture_has_the_place_of_every_source_on_every_ballot() -> None:
    (heatmap,) = ballot_figure(with_vote()).data
    assert (list(heatmap.y), list(heatmap.x)) == (["mnist", "svhn", "kmnist"], ["1", "4", "5", "0", "2", "3", "6"])
    assert [[None if np.isnan(z) else int(z) for z in row] for row in heatmap.z] == [
        [1, 1, 1, 2, 2, None, None],
        [2, 2, 2, None, None, None, None],
        [None, None, None, 1, 1, None, None],
    ]
    assert list(heatmap.colorbar.ticktext) == ["1st", "2nd"]
    # a hundred clients have their names, hundreds have not
    many = with_vote()
    many.vote_line["clients"].extend(range(7, 100))
    assert ballot_figure(many).layout.xaxis.showticklabels
    many.vote_line["clients"].extend(range(100, 300))
    assert not ballot_figure(many).layout.xaxis.showticklabels


def test_the_png_has_a_shade_a_place(tmp_path: Path) -> None:
    save_ballots(with_vote(), tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3).astype(int)
    colours, counts = np.unique(pixels, axis=0, return_counts=True)
    green = colours[:, 1] > 1.1 * colours[:, [0, 2]].max(axis=1)
    # five first places in the darker one, and five second places in the other
    (light, dark), (few, many) = colours[green & (counts > 1000)][::-1, 1], counts[green & (counts > 1000)]
    assert light > dark + 80
    assert abs(few / many - 1) < 0.15


def test_what_stayed_behind_and_who_had_nothing_to_vote_for_is_noted() -> None:
    assert notes([with_vote(layers=(5, 8))])[:2] == [
        "fedvote, seed 0: 5 of the 8 layers of mnist were transferred; the others do not fit the model, which kept "
        "its own.",
        "fedvote, seed 0: client 3 cast no ballot in round 2: no source could be compared with their models.",
    ]
    said = notes([with_vote(asked="svhn")])
    assert not [note for note in said if "ballot" in note or "layers" in note]


def test_brackets_in_a_name_are_no_markup(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from kinfed.report import terminal

    run = with_vote()
    run.summary["vote"]["sources"][1] = run.summary["vote"]["transferred"] = "mnist[even]"
    run.federation["train"] = [[1, 1]]
    monkeypatch.setattr(terminal, "read_runs", lambda paths, measure: [run])
    console = Console(file=io.StringIO())
    terminal.show([], console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "mnist[even] was transferred" in text
    assert "mnist[even]* transferred" in text
