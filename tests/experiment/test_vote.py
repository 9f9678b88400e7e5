"""`kinfed vote`, and the votes of fedvote runs from the config to the report (specification E; cases 88 and 89)."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

import kinfed
from kinfed import cli
from kinfed.data import Federation, Samples, load
from kinfed.engine import save_model
from kinfed.errors import InputError
from kinfed.experiment.vote import Electorate
from kinfed.methods import voting
from kinfed.methods.fedvote import Vote
from kinfed.models import Model, build, open_pool
from kinfed.report.page import write_report
from kinfed.similarity import sketched_cka
from tests import builders

FIELDS: dict[str, Any] = {"clients": 10, "rounds": 2, "train_images": 600, "ft_epochs": 0, "quiet": True}
SHAPE, WIDTHS = (1, 8, 8), {"tiny_cnn": 64, "mlp": 200, "mcmahan_cnn": 512}

Call = Callable[..., tuple[int, str, str]]


def write_pool(path: Path, names: Iterable[str], model: str = "tiny_cnn", seed: int = 11) -> Path:
    """Untrained sources of these names, each from a seed of its own."""
    path.mkdir(exist_ok=True)
    data = load("digits")
    card = builders.card_of(data, model).model_dump(mode="json")
    for i, name in enumerate(names, start=seed):
        tensors = build(model, data.shape, len(data.classes), i).tensors()
        save_model(path / f"{name}.safetensors", tensors, {}, card, durable=False)
    return path


def numpy_of(samples: Samples) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels."""
    assert samples.labels is not None
    return samples.inputs.numpy(), samples.labels.numpy()


def ranked(path: Path) -> dict[str, Any]:
    """What is in a vote.json but for where the models come from."""
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "about"}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pool(tmp_path_factory.mktemp("pool"), "abcd")


@pytest.fixture(scope="module")
def held(pool: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a vote after two rounds, and the vote; only 8 images of each client are looked at."""
    out = tmp_path_factory.mktemp("held") / "o"
    return out, kinfed.vote(sources=pool, out=out, images=8, **FIELDS)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kinfed", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return call


# -- kinfed vote ------------------------------------------------------------------------------------------------------


def test_it_is_the_vote_that_fedvote_holds_in_the_same_round(held: tuple[Path, Any], pool: Path, out: Path) -> None:
    _, vote = held
    own = {"fedvote": {"round": 2, "images": 8}}
    (summary,) = kinfed.run("fedvote", sources=str(pool), out=out, settings=own, **FIELDS).summaries
    line = json.loads((out / "metrics.jsonl").read_text().splitlines()[1])
    assert line["ballots"] == dict(zip(vote.clients, vote.ballots, strict=True))
    told = summary["vote"]
    assert [told[name] for name in ("sources", "votes", "points")] == [vote.sources, vote.votes, vote.points]
    assert told["transferred"] == vote.ranking[0]
    assert (told["round"], told["ballots"], told["voted"], told["layers"]) == (2, 10, True, [3, 3])


def activations(model: Model, images: NDArray[Any]) -> torch.Tensor:
    """Of the body, from uint8 images, normalised as digits are."""
    told = load("digits").train.normalise
    mean, std = (torch.tensor(of)[:, None, None] for of in (told.mean, told.std))
    with torch.no_grad():
        read: torch.Tensor = model.eval().body((torch.as_tensor(images).float() - mean) / std)
    return read.flatten(1)


def linear_cka(x: torch.Tensor, y: torch.Tensor) -> float:
    a, b = ((m - m.mean(0)).double().numpy() for m in (x, y))
    return float(np.linalg.norm(a.T @ b) ** 2 / np.linalg.norm(a.T @ a) / np.linalg.norm(b.T @ b))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::kinfed.similarity.BiasedSimilarityWarning")
def test_the_scores_are_those_computed_from_the_saved_models_by_hand(
    held: tuple[Path, Any], pool: Path, out: Path
) -> None:
    run, _ = held
    federation = Electorate.of(run, pool).runtime.federation
    images = federation.dataset.train.inputs.numpy()
    sources = [build("tiny_cnn", SHAPE, 10, seed) for seed in range(11, 15)]
    own = build("tiny_cnn", SHAPE, 10, 0)
    measures: dict[str, Callable[..., Any]] = {"sketched_cka": sketched_cka, "cka": linear_cka}
    for name, measure in measures.items():
        vote = kinfed.vote(run, sources=pool, out=out, measure=name, quiet=True)
        for client, rows in enumerate(federation.partition.train):
            own.load(load_file(run / "models" / f"client-{client:05d}-local.safetensors"))
            seen = images[rows]
            expected = [float(measure(activations(own, seen), activations(of, seen))) for of in sources]
            assert vote.scores[client] == pytest.approx(expected, abs=1e-5)
            assert vote.ballots[client] == np.argsort(expected)[::-1][:3].tolist()


@pytest.mark.slow
def test_neither_test_images_nor_test_labels_change_the_vote(pool: Path, tmp_path: Path) -> None:  # case 88
    data = load("digits")
    train, test = ((x[:600], y[:600]) for x, y in map(numpy_of, (data.train, data.test)))
    turned = (test[0][::-1].copy(), (test[1] + 1) % 10)
    fields = {**FIELDS, "model": "tiny_cnn", "partition": "iid"}
    for name, other in (("a", test), ("b", turned)):
        kinfed.vote(sources=pool, out=tmp_path / name, data=(*train, *other), **fields)
    accuracies = [json.loads((tmp_path / name / "summary.json").read_text())["metrics"]["global_acc"] for name in "ab"]
    assert accuracies[0] != accuracies[1]
    assert ranked(tmp_path / "a" / "vote.json") == ranked(tmp_path / "b" / "vote.json")


def test_training_labels_are_not_used_by_the_scores(held: tuple[Path, Any], pool: Path) -> None:
    run, vote = held
    voters = Electorate.of(run, pool)
    federation = voters.runtime.federation
    train = federation.dataset.train
    assert train.labels is not None
    data = replace(federation.dataset, train=replace(train, labels=train.labels.flip(0)))
    other = replace(voters.runtime, federation=Federation(data, federation.partition, federation.public_rows))
    told = replace(voters, runtime=other).scores(Vote(images=8), ["sketched_cka"])["sketched_cka"]
    assert [row.tolist() for row in told] == vote.scores


def test_sources_of_any_width_are_ranked(held: tuple[Path, Any], tmp_path: Path) -> None:  # case 89
    run, _ = held
    for model in WIDTHS:
        write_pool(tmp_path / "pool", [model], model)
    assert {s.name: s.model.head.in_features for s in open_pool(tmp_path / "pool")} == WIDTHS
    vote = kinfed.vote(run, sources=tmp_path / "pool", out=tmp_path / "o", ballot=1, quiet=True)
    assert {*vote.ranking} == {*WIDTHS}
    assert all(score is not None and 0 <= score <= 1 for row in vote.scores for score in row)
    assert sum(vote.votes) == 10
    # what another source is does not bear on a score
    alone = kinfed.vote(run, sources=write_pool(tmp_path / "one", ["mlp"], "mlp"), out=tmp_path / "p", quiet=True)
    at = vote.sources.index("mlp")
    assert [row[at] for row in vote.scores] == pytest.approx([row[0] for row in alone.scores], abs=1e-9)


def test_a_measure_that_is_named_in_the_call_is_imported_though_the_runs_files_name_no_code(
    held: tuple[Path, Any], pool: Path, tmp_path: Path
) -> None:
    vote = kinfed.vote(held[0], sources=pool, measure="tests.outside.rv2:rv2", out=tmp_path / "o", quiet=True)
    assert {*vote.ranking} == {*"abcd"}


def test_a_vote_on_a_run_is_the_same_each_time_and_from_the_command_line(
    held: tuple[Path, Any], pool: Path, call: Call, tmp_path: Path
) -> None:
    run, vote = held
    first = (run / "vote.json").read_bytes()
    code, out, _ = call("vote", run, "--sources", pool, "--images", "8", "--out", "again")
    assert code == 0
    assert (tmp_path / "again" / "vote.json").read_bytes() == first
    assert (tmp_path / "again" / "vote.png").read_bytes()[:4] == b"\x89PNG"
    assert "10 clients of digits" in out
    assert "a ballot names 3 sources." in " ".join(out.split())
    assert out.index(f"{vote.ranking[0]}*") < out.index("again/vote.json")


WIDE = {"narrow": "tiny_cnn", "wide": "mcmahan_cnn"}  # 64 and 512 features


@pytest.fixture
def of_two_widths(tmp_path: Path) -> Path:
    for seed, (name, model) in enumerate(WIDE.items(), start=11):
        write_pool(tmp_path / "two widths", [name], model, seed)
    return tmp_path / "two widths"


@pytest.mark.parametrize("measure", ["sketched_cka", "cka", "rbf_cka"])
def test_a_ranking_by_a_biased_measure_says_what_the_debiased_one_is(
    held: tuple[Path, Any], of_two_widths: Path, call: Call, tmp_path: Path, measure: str
) -> None:  # case 328
    arguments = ("vote", held[0], "--sources", of_two_widths, "--images", "8", "--measure", measure, "--out", "o")
    code, out, err = call(*arguments)
    assert (code, err) == (0, "")
    told = json.loads((tmp_path / "o" / "vote.json").read_text())
    unbiased = "debiased_rbf_cka" if measure == "rbf_cka" else "debiased_cka"
    other = kinfed.vote(held[0], sources=of_two_widths, out=tmp_path / "p", images=8, measure=unbiased, quiet=True)
    assert other.debiased is None
    assert told["debiased"] == {
        "measure": unbiased, "scores": other.scores, "ranking": other.ranking, "images": [8] * 10, "features": 512,
    }  # fmt: skip
    shown = " ".join(out.split())
    assert f"With n = 8 images per client and up to p = 512 features, {measure} is up to 0." in shown
    first = other.ranking[0]
    said = f"{first} is first, too" if first == told["ranking"][0] else f"{first} would be first"
    assert f"By {unbiased}, {said}." in shown
    for name in WIDE:
        mean = np.mean([row[told["sources"].index(name)] for row in other.scores])
        rows = [line for line in out.splitlines() if line.rstrip()[-1:].isdigit()]
        (line,) = (line for line in rows if line.split()[0] in (name, f"{name}*"))
        assert line.split()[-1] == f"{mean:.3f}"


@pytest.mark.slow
def test_enough_images_need_no_word_of_a_bias(pool: Path, call: Call, tmp_path: Path) -> None:  # case 328
    """With every image of the data, the biased value of 64 features is the debiased one, nearly."""
    fields = {**FIELDS, "clients": 1, "partition": "iid", "train_images": 1400, "rounds": 1}
    run = kinfed.run("fedavg", out=tmp_path / "run", save_local=True, **fields).path
    for measure in ("cka", "debiased_cka"):
        code, out, _ = call("vote", run, "--sources", pool, "--images", "1400", "--measure", measure, "--out", measure)
        assert code == 0
        assert "this excess comes from having few images" not in " ".join(out.split())
        (heading,) = (line for line in out.splitlines() if "lowest" in line)
        assert ("debiased" in heading) is (measure == "cka")


def test_a_client_of_three_images_has_no_debiased_score(pool: Path) -> None:  # case 328
    model = open_pool(pool)[0].model
    few = voting.seen(model, open_pool(pool), load("digits").train.take([0, 1, 2]), [("body", "body")])
    assert voting.scores(few, "debiased_cka").isnan().all()
    assert voting.scores(few, "cka").isfinite().all()


@pytest.mark.slow
def test_a_run_with_a_vote_notes_what_its_measure_may_mistake(pool: Path, tmp_path: Path) -> None:  # case 328
    for own, noted in (
        ({"images": 8}, True),
        ({"images": 100, "measure": "cka"}, False),
        ({"images": 8, "measure": "debiased_cka"}, False),
        ({"source": "a"}, False),
    ):
        fields = {**FIELDS, "clients": 4, "partition": "iid", "rounds": 1, "sources": str(pool)}
        run = kinfed.run("fedvote", out=tmp_path / str(own), settings={"fedvote": {"round": 1, **own}}, **fields)
        vote = run.summaries[0]["vote"]
        assert ("bias" in vote) is noted
        if noted:
            assert vote["bias"].startswith(
                "sketched_cka of n = 8 images (median client) and p = 64 features is biased upwards"
            )
            assert vote["bias"].endswith("debiased_cka is not.")
            assert vote["bias"] in " ".join(run.report().read_text().split())


def refused(call: Call, *arguments: str | Path) -> str:
    """The one line that wrong input gets; nothing is written."""
    before = {*Path.cwd().iterdir()}
    code, out, err = call("vote", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("kinfed: ")
    assert {*Path.cwd().iterdir()} == before
    return err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "sources: must be given, a folder of source models; kinfed sources train creates one"),
        (["--sources", "nowhere"], "sources: 'nowhere' is no folder"),
        (["--sources", "POOL", "--measure", "sketchd_cka"], "measure: 'sketchd_cka' is not known; allowed: cka, "),
        (["--sources", "POOL", "--measure", "sketchd_cka"], "did you mean sketched_cka?"),
        (["--sources", "POOL", "--ballot", "0"], "ballot"),
        (["--sources", "POOL", "--taps", "conv9"], "taps: 'conv9' is not a tap point of the model; it has conv1"),
        (["--sources", "POOL", "--taps", "conv1=c"], "taps: 'c' is not a tap point of a; it has conv1"),
        (["--sources", "POOL", "--data", "DATA"], "'a' takes inputs of shape 1×8×8, but the data have the shape 3×8×8"),
        (["--sources", "WIDE", "--measure", "emd"],
         "measure: emd needs equal numbers of features; body of the model has 64, but body of 'mlp' has 200"),
        (["nowhere", "--sources", "POOL"], "run: 'nowhere' is not a run folder"),
        (["PLAIN", "--sources", "POOL"], "has no saved client models of the last round"),
        (["RUN", "--sources", "POOL", "--lr", "0.3"], "lr: is for a new run, but"),
        (["RUN", "--sources", "WIDE", "--measure", "cosine"], "measure: cosine needs equal numbers of features"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_in_one_line_before_anything_is_trained(
    arguments: list[str], message: str, held: tuple[Path, Any], pool: Path, call: Call, tmp_path_factory: Any
) -> None:
    beside = tmp_path_factory.mktemp("beside")
    known: dict[str, Callable[[], Path]] = {
        "POOL": lambda: pool,
        "WIDE": lambda: write_pool(beside, ["mlp"], "mlp"),
        "RUN": lambda: held[0],
        "PLAIN": lambda: kinfed.run("fedavg", out=beside / "o", **FIELDS).path,
        "DATA": lambda: colour(beside / "colour.npz"),
    }
    assert message in refused(call, *(known[a]() if a in known else a for a in arguments))


def colour(path: Path) -> Path:
    images, labels = np.random.default_rng(0).integers(0, 255, (200, 8, 8, 3), np.uint8), np.arange(200) % 10
    np.savez(path, x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])
    return path


def test_a_run_whose_data_changed_does_not_vote(pool: Path, tmp_path: Path) -> None:
    (images, labels), file = numpy_of(load("digits").train), tmp_path / "d.npz"
    np.savez(file, x_train=images[:400], y_train=labels[:400], x_test=images[:100], y_test=labels[:100])
    fields = {**FIELDS, "train_images": None, "partition": "iid", "data": str(file)}
    kinfed.vote(sources=pool, out=tmp_path / "o", **fields)
    np.savez(file, x_train=images[400:800], y_train=labels[400:800], x_test=images[:100], y_test=labels[:100])
    with pytest.raises(InputError, match=r"data: the clients have changed since the run in .* was started"):
        kinfed.vote(tmp_path / "o", sources=pool)


def test_clients_of_a_fedvote_run_can_vote_for_other_sources(pool: Path, tmp_path: Path) -> None:
    own = {"fedvote": {"round": 1, "source": "a"}}
    run = kinfed.run("fedvote", sources=str(pool), out=tmp_path / "o", settings=own, save_local=True, **FIELDS).path
    vote = kinfed.vote(run, sources=write_pool(tmp_path / "others", ["mlp"], "mlp"), quiet=True)
    assert vote.ranking == ["mlp"]
    assert vote.about["method"] == "fedvote"


# -- runs with a vote -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg and FedProx, with and without the transfer of one of two models of the same data."""
    root = tmp_path_factory.mktemp("compared")
    (root / "pool").mkdir()
    for seed, name in enumerate(("a", "b")):
        of_seed = kinfed.train_sources(["digits"], out=root / name, model="tiny_cnn", epochs=15, seed=seed, quiet=True)
        for path in of_seed.iterdir():
            shutil.copy(path, root / "pool" / f"{name}{path.suffix}")
    kinfed.compare(
        ["fedavg", "fedprox", "fedvote", "fedvote+fedprox"],
        out=root / "o",
        sources=str(root / "pool"),
        seeds=2,
        target_acc=0.3,
        settings={"fedvote": {"round": 2}, "fedvote+fedprox": {"round": 1, "source": "b"}},
        **{**FIELDS, "rounds": 6, "partition": "iid"},
    )
    return root / "o"


@pytest.mark.slow
def test_the_summary_tells_of_a_vote_and_of_a_source_that_was_asked_for(compared: Path) -> None:
    told = {s["method"]: s["vote"] for s in json.loads((compared / "comparison.json").read_text())}
    assert told["fedavg"] is told["fedprox"] is None
    voted, asked = told["fedvote"], told["fedvote+fedprox"]
    assert (voted["round"], voted["ballots"], voted["voted"], voted["votes"]) == (2, 10, True, [10, 10])
    assert asked == {
        "round": 1, "sources": ["a", "b"], "votes": [0, 0], "points": [0, 0], "ballots": 0,
        "transferred": "b", "voted": False, "layers": [3, 3],
    }  # fmt: skip


@pytest.mark.slow
def test_a_transfer_shows_its_speed_up(compared: Path, call: Call) -> None:
    code, out, _ = call("report", compared)
    assert code == 0
    table = out[out.index("speed-up") : out.index("The vote of")]
    rows = {line.split()[0]: line for line in table.splitlines() if line.split()}
    for transfer, without in (("fedvote", "fedavg"), ("fedvote+fedprox", "fedprox")):
        assert "×" in rows[transfer]
        assert "×" not in rows[without]
    assert "In round 2, 10 of 10 clients cast a ballot" in out
    assert (
        "b was transferred in round 1, as configured, without a vote (3 of 3 layers, the classifier was kept)." in out
    )


@pytest.mark.slow
def test_every_row_of_the_page_has_its_vote(pool: Path, tmp_path: Path) -> None:
    fields = {**FIELDS, "sources": str(pool)}
    runs = [
        kinfed.run("fedvote", out=tmp_path / f"m{size}", settings={"fedvote": {"round": 1, "ballot": size}}, **fields)
        for size in (1, 2)
    ]
    page = write_report([run.path for run in runs], tmp_path / "both.html")
    text = page.read_text()
    for size, run in zip((1, 2), runs, strict=True):
        section = text[text.index(f"<h2>The vote: fedvote ballot={size}</h2>") :].split("<h2>")[1]
        vote = run.summaries[0]["vote"]
        assert f"In round 1, 10 of 10 clients cast a ballot; {vote['transferred']} was transferred" in section
        rows = re.findall(r"<tr><td[^>]*>(\w)</td><td>(\w*)</td><td[^>]*>(\d+)</td><td>(\d+)</td></tr>", section)
        counted = dict(zip(vote["sources"], zip(vote["votes"], vote["points"], strict=True), strict=True))
        assert {name: (int(votes), int(points)) for name, _, votes, points in rows} == counted
        assert [name for name, told, _, _ in rows if told == "transferred"] == [vote["transferred"]]
        assert section.count('class="figure"') == 1
        assert (tmp_path / f"both-vote-m{size}.png").is_file()
    assert "The vote" not in kinfed.run("fedavg", out=tmp_path / "f", **FIELDS).report().read_text()


@pytest.mark.slow
def test_resume_with_other_sources_is_refused(pool: Path, call: Call, tmp_path: Path) -> None:
    shutil.copytree(pool, tmp_path / "pool")
    fields = {**FIELDS, "sources": str(tmp_path / "pool"), "settings": {"fedvote": {"round": 1}}}
    kinfed.run("fedvote", out=tmp_path / "o", **fields)
    (tmp_path / "o" / "summary.json").unlink()
    assert call("resume", "o")[0] == 0
    (tmp_path / "o" / "summary.json").unlink()
    write_pool(tmp_path / "pool", ["a"], seed=99)
    code, _, err = call("resume", "o")
    assert code == 2
    told = "data, sources: the clients or source models have changed since the run in 'o' was started"
    assert err == f"kinfed: {told}\n"


@pytest.mark.slow
def test_with_workers_the_same_bits(pool: Path, tmp_path: Path) -> None:
    fields = {**FIELDS, "rounds": 3, "sources": str(pool), "settings": {"fedvote": {"round": 2}}}
    for workers in (0, 2):
        kinfed.run("fedvote", out=tmp_path / str(workers), workers=workers, **fields)
    for file in ("metrics.jsonl", "models/global.safetensors"):
        assert (tmp_path / "0" / file).read_bytes() == (tmp_path / "2" / file).read_bytes()


@pytest.mark.slow
def test_the_config_of_a_run_leaves_out_the_source_that_nobody_asked_for(pool: Path, compared: Path) -> None:
    texts = {name: (compared / f"{name}-seed0" / "config.toml").read_text() for name in ("fedvote", "fedvote+fedprox")}
    assert "\nsource = " not in texts["fedvote"]
    assert '\nsource = "b"\n' in texts["fedvote+fedprox"]
