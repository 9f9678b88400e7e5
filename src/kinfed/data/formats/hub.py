"""Data sets of the Hugging Face hub, loaded with the package ``datasets`` (the extra ``hub``)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kinfed.errors import InputError

if TYPE_CHECKING:
    from kinfed.data.splits import Split

__all__ = ["HUB", "Fetched", "HubSet"]

PREFIX = "hub:"
FORM = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:/([\w.-]+))?")


@dataclass(frozen=True)
class HubSet:
    """A data set of the hub: OWNER/NAME, and the name of a configuration if it has several."""

    repository: str
    config: str | None = None

    @classmethod
    def parse(cls, data: str) -> Self | None:
        """Parse ``hub:OWNER/NAME`` or ``hub:OWNER/NAME/CONFIG``; return None for text without the prefix.

        Raises:
            InputError: If the text has the prefix but another form.
        """
        if not data.startswith(PREFIX):
            return None
        form = FORM.fullmatch(data)
        if form is None:
            raise InputError(f"data: {data!r} must have the form hub:OWNER/NAME or hub:OWNER/NAME/CONFIG")
        return cls(form[1], form[2])

    def __str__(self) -> str:
        return PREFIX + "/".join(filter(None, (self.repository, self.config)))

    def fetch(self) -> Fetched:
        """Load both splits; `datasets` downloads them unless it has done so before.

        Raises:
            InputError: If `datasets` is not installed, the hub does not answer, or there is no such data set or split.
        """
        from kinfed.data.splits import TEST_NAMES

        try:
            import datasets
        except ImportError as error:
            raise InputError(f"data: {self} needs the package datasets: pip install 'kinfed[hub]'") from error
        try:
            splits = datasets.load_dataset(self.repository, self.config)
        except Exception as error:  # many types: no network, no such data set, several configurations, no access
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"data: {self} cannot be loaded from the Hugging Face hub: {reason}") from error
        test = next((name for name in TEST_NAMES if name in splits), None)
        if "train" not in splits or test is None:
            raise InputError(
                f"data: {self} has the splits {', '.join(splits)}; must have train and test (or "
                f"{', '.join(TEST_NAMES[1:])})"
            )
        return Fetched(str(self), splits["train"], splits[test])


@dataclass(frozen=True)
class Fetched:
    """Training and test split of a data set of the hub that was downloaded, as objects of the package `datasets`."""

    name: str
    train: Any
    test: Any

    def fingerprints(self) -> tuple[str, str]:
        """Return the fingerprints that `datasets` gives the content of both splits."""
        return self.train._fingerprint, self.test._fingerprint

    def read(self) -> tuple[list[Split], list[Split]]:
        """Return the training split and the test split, each as a list of one `Split`; images stay encoded bytes."""
        from kinfed.data.formats.parquet import readable, split_of

        with readable(self.name):
            train, test = (
                split_of(split.with_format("arrow")[:], f"{self.name}, {name}", _downloads())  # images stay encoded
                for name, split in (("train", self.train), ("test", self.test))
            )
        return [train], [test]


def _downloads() -> list[Path]:
    """Return the folders to which `datasets` and `huggingface_hub` download."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = os.environ.get("HF_HOME") or caches / "huggingface"
    own = (os.environ.get(name) for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE"))
    return [Path(home), *(Path(folder) for folder in own if folder)]


HUB = {
    "mnist": HubSet("ylecun/mnist"),
    "fashion_mnist": HubSet("zalando-datasets/fashion_mnist"),
    "kmnist": HubSet("tanganke/kmnist"),
    "emnist": HubSet("tanganke/emnist_letters"),
    "usps": HubSet("flwrlabs/usps"),
    "svhn": HubSet("ufldl-stanford/svhn", "cropped_digits"),
    "stl10": HubSet("tanganke/stl10"),
    "cifar10": HubSet("uoft-cs/cifar10"),
    "cifar100": HubSet("uoft-cs/cifar100"),
    "tiny_imagenet": HubSet("zh-plus/tiny-imagenet"),
}
