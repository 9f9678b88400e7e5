"""Sites in one process, behind a grid that answers at once: the same bits as without Flower, and nothing private."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from kinfed.data import Federation, Normalisation, Partition
from kinfed.data.samples import ChannelSums
from kinfed.engine.folder import save_model
from kinfed.errors import InputError
from kinfed.experiment.run import folder_of, run
from kinfed.flower.federation import impossible
from kinfed.flower.server_app import secret_in
from kinfed.methods import METHODS
from kinfed.models import read_tensors
from kinfed.testing import same, untrained_sources
from tests.flower.sites import at_sites, config_of, named_federation, run_at_sites, site_states

POSSIBLE = [name for name, kind in METHODS.items() if not impossible(kind())]


def pool(fed: Federation, path: Path) -> str:
    """A folder of source models with random weights."""
    for source in untrained_sources(fed.dataset):
        card = source.card.model_dump(exclude_none=True)
        save_model(path / f"{source.name}.safetensors", source.model.tensors(), {}, card, durable=False)
    return str(path)


@pytest.fixture
def fed() -> Federation:
    return named_federation()


@pytest.mark.slow
@pytest.mark.parametrize("method", POSSIBLE)
def test_sites_give_the_same_bits_as_one_process(method: str, fed: Federation, tmp_path: Path) -> None:
    sources = {"sources": pool(fed, tmp_path / "pool")} if METHODS[method]().requires.source_models else {}
    config = config_of(method, fed, **sources)
    run(config, tmp_path / "here")
    sites = run_at_sites(at_sites(fed, tmp_path), config, fed, tmp_path / "there")
    here = folder_of(config, tmp_path / "here")
    one, other = here.last_checkpoint(), sites.last_checkpoint()
    assert one is not None
    assert other is not None
    assert same(one.state, other.state)
    assert one.stored == other.stored
    kept = site_states(tmp_path)  # a site deletes what is not needed before its next task
    of_run = {file.name: file.read_bytes() for file in (tmp_path / "here" / "memories").rglob("*.safetensors")}
    assert of_run.items() <= kept.items()
    for line, told in zip(here.lines("metrics.jsonl"), sites.lines("metrics.jsonl"), strict=True):
        line["global_auroc"] = told.get("global_auroc")  # scores of all sites would have to be at one place
        assert {key: value for key, value in line.items() if value != told.get(key)} == {}
    models = {file.name: file for file in (tmp_path / "here" / "models").glob("client-*.safetensors")}
    at_site = {file.name: file for file in tmp_path.glob("site-*/state/runs/*/models/*.safetensors")}
    assert models.keys() == at_site.keys()
    assert all(same(read_tensors(models[name])[0], read_tensors(at_site[name])[0]) for name in models)
    assert not [*(tmp_path / "there").rglob("client-*")]


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_server_that_is_resumed_ends_with_the_same_bits(method: str, fed: Federation, tmp_path: Path) -> None:
    config = config_of(method, fed)
    whole = run_at_sites(at_sites(fed, tmp_path / "a"), config, fed, tmp_path / "whole")
    grid = at_sites(fed, tmp_path / "b")
    answered, left = grid.answered, 6

    def killing(message):  # type: ignore[no-untyped-def]
        nonlocal left
        left -= message.metadata.message_type == "train.update"
        if left < 0:
            raise KeyboardInterrupt
        return answered(message)

    grid.answered = killing  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run_at_sites(grid, config, fed, tmp_path / "out")
    grid.answered = answered  # type: ignore[method-assign]
    again = run_at_sites(grid, config, fed, tmp_path / "out", again=True)
    assert again.lines("metrics.jsonl") == whole.lines("metrics.jsonl")
    assert same(again.last_checkpoint().state, whole.last_checkpoint().state)  # type: ignore[union-attr]


def test_nothing_private_travels(fed: Federation, tmp_path: Path) -> None:
    grid = at_sites(fed, tmp_path)
    run_at_sites(grid, config_of("fedper", fed), fed, tmp_path / "out")
    travelled = b"\n".join(grid.travelled)
    assert b"body.conv1" in travelled
    private = [*tmp_path.glob("site-*/state/**/client-*.safetensors")]
    assert private
    for path in private:
        for name, tensor in read_tensors(path)[0].items():
            if name.startswith("head."):
                assert tensor.numpy().tobytes() not in travelled
    for id in range(4):
        for samples in (fed.train(id), fed.test(id)):
            assert not any(image.numpy().tobytes() in travelled for image in samples.inputs)
            assert samples.labels is not None
            assert samples.labels.numpy().tobytes() not in travelled
            assert json.dumps(samples.labels.tolist())[1:-1].encode() not in travelled
        assert str(tmp_path / f"site-{id}").encode() not in travelled


def test_sites_that_add_their_sums_of_pixels_get_the_bits_of_all_pixels() -> None:
    inputs = torch.randint(0, 256, (500, 3, 7, 5), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    parts = [ChannelSums.of(part) for part in inputs.split([7, 300, 193])]
    assert (parts[0] + parts[1] + parts[2]).normalisation() == Normalisation.of(inputs)


def test_class_counts_that_a_site_does_not_tell_do_not_travel(fed: Federation, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("class_counts = false\n")
    grid = at_sites(replace(fed), tmp_path, policy=str(policy))
    folder = run_at_sites(grid, config_of("fedavg", fed, rounds=1), fed, tmp_path / "out")
    told = json.loads((tmp_path / "out" / "federation.json").read_text())
    sizes = [len(fed.train(id)) for id in range(4)]
    assert [sum(row) for row in told["train"]] == sizes
    assert all(max(row) - min(row) <= 1 for row in told["train"])  # spread evenly
    assert "site-0 does not tell its class counts" in told["remarks"][0]
    (line,) = folder.lines("metrics.jsonl")
    assert line["global_acc"] is not None
    assert line.get("global_macro_f1") is None
    assert not any(b'"by_class": [' in part for part in grid.travelled)


def test_sites_without_labels_are_tested_with_labelled_data_of_the_server(fed: Federation, tmp_path: Path) -> None:
    whole, test = fed.dataset, fed.dataset.test
    assert test.labels is not None
    np.savez(tmp_path / "labelled.npz", x_train=whole.train.inputs, y_train=whole.train.labels,
             x_test=test.inputs, y_test=test.labels)  # fmt: skip
    nothing = replace(test, inputs=test.inputs[:0], labels=None)
    unlabelled = replace(whole, train=whole.train.without_labels(), test=nothing, classes=())
    cut = Partition(fed.partition.train, [np.arange(0)] * len(fed), names=fed.partition.names)
    own = Federation(unlabelled, cut, fed.public_rows)
    told = {"labelled": str(tmp_path / "labelled.npz"), "linear_probe": None, "knn_every": 1}
    config = config_of("fedbyol", own, rounds=1, **told)
    run(config, tmp_path / "here")
    sites = run_at_sites(at_sites(own, tmp_path), config, own, tmp_path / "there")
    (line,) = folder_of(config, tmp_path / "here").lines("metrics.jsonl")
    assert line["global_acc"] is not None
    assert sites.lines("metrics.jsonl") == [line]


def test_the_secret_of_a_server_is_written_once_for_its_eyes_only(tmp_path: Path) -> None:
    path = tmp_path / "results.secret"
    first = secret_in(str(path), anew=True)
    assert secret_in(str(path), anew=False) == first
    assert path.stat().st_mode & 0o077 == 0
    assert first is not None
    assert first.bit_length() > 64
    assert secret_in(str(path), anew=True) not in (first, None)
    assert secret_in("", anew=True) is None
    path.write_text("my notes")
    with pytest.raises(InputError, match="is no file of kinfed"):
        secret_in(str(path), anew=True)
    assert path.read_text() == "my notes"
