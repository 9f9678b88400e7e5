"""Fields that are given and that nothing reads (case 330)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import kinfed
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.configure import configure
from kinfed.experiment.uses import OF_CLIENTS, OF_METHODS
from kinfed.methods import METHODS, method_fields
from tests.builders import small
from tests.test_cli import kinfed as command  # noqa: F401 - the fixture

NET = "tests.experiment.test_predictor:net"


def asked(methods: Any, **given: Any) -> Config:
    return configure({"methods": methods, **given})


@pytest.mark.parametrize(
    ("methods", "given", "told", "of"),
    [
        ("fedavg", {"alpha": "0.1"}, "alpha: 0.1", "the partitions dirichlet, dirichlet_clients and quantity"),
        ("fedavg", {"alpha": 0.5, "partition": "iid"}, "alpha: 0.5", "the partitions"),
        ("fedavg", {"shards": 5, "partition": "dirichlet"}, "shards: 5", "partition shards"),
        ("fedavg", {"classes_per_client": 2}, "classes_per_client: 2", "partition disjoint"),
        ("fedavg", {"head": "fc"}, "head: 'fc'", "a model of your own"),
        ("local", {"head": "fc", "models": "mlp:0.5,tiny_cnn:0.5"}, "head: 'fc'", "a model of your own"),
        ("fedavg", {"sources": "."}, "sources: '.'", "fedvote and"),
        ("local", {"participation": 0.5}, "participation: 0.5", "methods that draw"),
        ("central", {"participation": 0.5}, "participation: 0.5", "methods that draw"),
        ("fedrep", {"local_epochs": 7}, "local_epochs: 7", "methods that have no epochs of their own (fedrep has"),
        ("fedvote+fedrep", {"local_epochs": 7, "sources": "."}, "local_epochs: 7", "methods that have no epochs"),
        (("fedbyol", "local_ssl"), {"augment": "crop_flip"}, "augment: 'crop_flip'", "methods that read labels"),
        ("central", {"feature_cache_mb": 10}, "feature_cache_mb: 10.0", "what stores activations"),
        ("fedbyol", {"feature_cache_mb": 10}, "feature_cache_mb: 10.0", "what stores"),
        ("fedbyol", {"ft_epochs": 2}, "ft_epochs: 2", "methods whose clients have labels"),
        ("central", {"ft_epochs": 2}, "ft_epochs: 2", "methods whose clients have labels"),
        ("fedavg", {"ft_lr": 0.1, "ft_epochs": 0}, "ft_lr: 0.1", "the fine-tuning: ft_epochs above 0"),
        ("fedavg", {"ft_part": "full", "ft_epochs": 0}, "ft_part: 'full'", "the fine-tuning"),
        ("central", {"ft_lr": 0.1}, "ft_lr: 0.1", "the fine-tuning"),
        ("fedavg", {"linear_probe_images": 50}, "linear_probe_images: 50", "linear probes and knn"),
        ("fedavg", {"knn_every": 2}, "knn_every: 2", "methods that read no labels"),
        ("fedbyol", {"evaluate_every": 2}, "evaluate_every: 2", "methods that read labels; knn_every is"),
        (("fedper", "local"), {"target_acc": 0.5}, "target_acc: 0.5", "methods that have a global model"),
        ("fedper", {"save_local": True}, "save_local: True", "methods whose clients send whole models"),
        ("scaffold", {"save_local": "true"}, "save_local: True", "methods whose clients send whole models"),
    ],
)
def test_what_would_do_nothing_is_refused_with_what_it_is_of(
    methods: Any, given: dict[str, Any], told: str, of: str
) -> None:
    with pytest.raises(InputError) as error:
        asked(methods, **given)
    assert str(error.value).startswith(f"{told} would do nothing; it is of {of}")


@pytest.mark.parametrize(
    ("method", "own", "told", "of"),
    [
        ("fedshibu", {"temperature": 9, "norm": "distance"}, "temperature: 9.0", "norm=softmax"),
        ("fedshibu", {"reach": 9, "norm": "sum"}, "reach: 9.0", "norm=distance"),
        ("fedavg_crsm", {"gamma": 2}, "gamma: 2.0", "norm=power"),
        ("fedavg_crsm", {"k": "3"}, "k: 3", "norm=topk"),
        ("fedshibu", {"samples": 9}, "samples: 9", "a rep_source of the clients' own samples"),
        ("fedshibu", {"layers": "each", "compared": "prediction"}, "layers: 'each'", "rep_source=probe with compared="),
        ("moon", {"mu": 0, "tau": 1}, "tau: 1.0", "mu above 0"),
        ("fedcka", {"mu": 0, "layers": 1}, "layers: 1", "mu above 0"),
        ("fedcka", {"mu": 0, "prev_init": "random"}, "prev_init: 'random'", "mu above 0"),
        ("scaffold", {"mode": "paper", "denom": "steps"}, "denom: 'steps'", "mode=niid"),
        ("fedcrc", {"tau": 1, "kl": "reverse"}, "kl: 'reverse'", "tau below 1"),
        ("fedema", {"scale": 2}, "scale: 2.0", "autoscale=false"),
        ("fedema", {"tau": 0.5, "autoscale": False}, "tau: 0.5", "autoscale=true"),
        ("hetero_ssfl", {"rad_batch": 8, "rad_full": True}, "rad_batch: 8", "mu above 0 with rad_full=false"),
        ("hetero_ssfl", {"mu": 0, "start": 2}, "start: 2", "mu above 0"),
        ("hetero_ssfl", {"mu": 0, "clean": "colour"}, "clean: 'colour'", "mu above 0"),
        (
            "hetero_ssfl",
            {"start": 2, "views": True, "initial": "clients"},
            "initial: 'clients'",
            "mu above 0 with start=1",
        ),
        ("fedvote", {"source": "x", "ballot": 2}, "ballot: 2", "a vote; source names"),
        ("fedvote+moon", {"source": "x", "images": 9}, "images: 9", "a vote; source names"),
    ],
)
def test_so_is_a_field_of_a_method(method: str, own: dict[str, Any], told: str, of: str) -> None:
    with pytest.raises(InputError) as error:
        asked(method, settings={method: own}, **({"sources": "."} if "vote" in method else {}))
    assert str(error.value).startswith(f"{method}.{told} would do nothing; it is of {of}")


def test_what_a_method_is_set_to_counts() -> None:
    paper = {"settings": {"scaffold": {"mode": "paper"}}}
    assert asked("scaffold", momentum=0.5, ft_epochs=0, **paper)  # of the re-fitted heads
    assert asked("moon", feature_cache_mb=10, settings={"moon": {"mu": 0}})  # of these, too
    with pytest.raises(InputError, match="linear_probe_images"):
        asked("fedbyol", linear_probe_images=50, linear_probe=False, knn_every=0)


@pytest.mark.parametrize(
    ("methods", "given"),
    [
        (("fedavg", "fedrep"), {"local_epochs": 7}),
        (("local", "fedper"), {"participation": 0.5}),
        (("fedavg", "fedbyol"), {"knn_every": 2, "evaluate_every": 2, "augment": "crop_flip", "ft_epochs": 3}),
        ("fedper", {"feature_cache_mb": 10}),
        ("fedavg", {"feature_cache_mb": 10, "augment": "crop_flip"}),  # re-fitted heads see nothing augmented
        ("central", {"feature_cache_mb": 10, "new_clients": 2}),
        ("fedavg", {"linear_probe_images": 50, "linear_probe": True}),
        ("fedbyol", {"linear_probe_images": 50}),
        ("scaffold", {"momentum": 0.5}),
        ("ditto", {"target_acc": 0.5, "save_local": True}),
        ("fedvote", {"sources": ".", "settings": {"fedvote": {"ballot": 2}}}),
        ("fedavg", {"model": NET, "head": "fc"}),
        # what asks for nothing is granted
        ("fedbyol", {"ft_epochs": 0, "augment": "none", "save_local": False}),
        ("local", {"participation": 1}),
        ("fedavg", {"knn_every": 0, "sources": None, "linear_probe": False}),
        ("fedshibu", {"settings": {"fedshibu": {"layers": "last", "compared": "prediction"}}}),
    ],
)
def test_what_one_method_reads_may_be_given(methods: Any, given: dict[str, Any]) -> None:
    assert asked(methods, **given)


def test_a_default_that_nobody_gives_is_no_fault() -> None:
    for name in METHODS:
        needed = {"fedvote": {"sources": "."}, "oracle_groups": {"shift": "rotate:2"}}
        assert asked(name, **needed.get(name, {}))


def test_training_alone_that_joins_reads_as_well() -> None:
    assert configure({"methods": "fedrep", "local_epochs": 7}, alone=True).methods == ("fedrep", "local")


def test_every_use_is_of_a_field_and_has_a_default_that_its_method_knows() -> None:
    assert {*OF_CLIENTS, *OF_METHODS} <= {*Config.model_fields}


@pytest.mark.parametrize("name", [*METHODS, "fedvote+fedshibu"])
def test_what_a_method_calls_idle_is_a_field_of_it(name: str) -> None:
    assert {*small(name).idle} <= {*method_fields(name)}


def test_of_a_file_the_fields_are_as_given_but_not_of_one_that_kinfed_wrote(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("alpha = 0.3\n[fedper]\n[fedshibu]\ntemperature = 2.0\n")
    with pytest.raises(InputError, match=r"alpha: 0\.3 would do nothing"):
        configure({"methods": "fedper"}, own)
    own.write_text(own.read_text().replace("alpha", "lr"))
    assert configure({"methods": "fedper"}, own).lr == 0.3
    with pytest.raises(InputError, match=r"fedshibu\.temperature: 2\.0 would do nothing"):
        configure({"methods": "fedshibu"}, own)

    written = tmp_path / "config.toml"
    written.write_text(asked(("fedavg", "fedbyol"), knn_every=3).of("fedavg", 0).toml())
    assert configure({"methods": "fedavg"}, written).knn_every == 3
    with pytest.raises(InputError, match=r"knn_every: 4 would do nothing"):
        configure({"methods": "fedavg", "knn_every": 4}, written)


def test_the_config_of_a_run_makes_the_same_run_and_it_goes_on(command: Any, tmp_path: Path) -> None:  # noqa: F811
    first = kinfed.run("fedavg", out=tmp_path / "one", clients=5, rounds=1, ft_epochs=0, quiet=True)
    assert command("run", "fedavg", "--config", str(first.path / "config.toml"), "--out", "two")[0] == 0
    assert (tmp_path / "two" / "metrics.jsonl").read_bytes() == (first.path / "metrics.jsonl").read_bytes()
    # a folder from a time when nobody looked goes on
    config = first.path / "config.toml"
    config.write_text(config.read_text().replace("alpha = 0.5", "alpha = 0.1"))
    (first.path / "summary.json").unlink()
    assert kinfed.open_result(first.path).path == first.path


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "fedavg", "--alpha", "0.1"),
        ("compare", "fedavg", "--alpha", "0.1"),
        ("partition", "--alpha", "0.1"),
        ("vote", "--sources", ".", "--alpha", "0.1"),
        ("reproduce", "fedcka-table2", "--shards", "3"),
    ],
)
def test_every_command_refuses_it_in_one_line(command: Any, tmp_path: Path, arguments: tuple[str, ...]) -> None:  # noqa: F811
    code, out, err = command(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "would do nothing; it is of" in err
    assert not [*tmp_path.iterdir()]


def test_partition_takes_what_only_methods_read(command: Any) -> None:  # noqa: F811
    arguments = ("--participation", "0.1", "--target-acc", "0.9", "--knn-every", "3", "--out", "o")
    assert command("partition", *arguments)[0] == 0


def test_numbers_of_methods_are_finite() -> None:
    for text, value in (("inf", float("inf")), ("-inf", float("-inf")), ("nan", float("nan"))):
        for given in (text, value):
            with pytest.raises(InputError, match=r"^fedprox\.mu: '?-?(inf|nan)'? is not allowed; must be "):
                asked("fedprox", settings={"fedprox": {"mu": given}})
    with pytest.raises(InputError, match=r"^fedshibu\.reach: inf is not allowed; must be a finite number$"):
        asked("fedshibu", settings={"fedshibu": {"reach": "inf"}})


def test_values_in_messages_are_short() -> None:
    for given in ({"rounds": torch.zeros(99, 99)}, {"settings": {"fedavg": [0] * 999}}, {"partition": "x" * 999}):
        with pytest.raises(InputError) as told:
            asked("fedavg", **given)
        assert len(str(told.value)) < 300
