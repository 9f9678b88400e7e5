"""Example data on disk, made of the data sets that come with scikit-learn: the command ``kinfed example``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinfed.data.federation import Federation
from kinfed.data.formats.digits import read_digits
from kinfed.data.images import Decoding
from kinfed.data.partitioning import make_federation
from kinfed.data.partitions.dirichlet import Dirichlet
from kinfed.data.samples import Samples, labels_of
from kinfed.errors import InputError
from kinfed.streams import numpy_stream

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["write_example"]

SITES, CLINICS = ("east", "north", "south", "west"), ("ash", "birch", "cedar")
TRAIN, TEST = 60, 20  # largest number of images of a site
WARDS = ("A1", "A2", "B1", "B2")
SEED = 0

README = """\
# Example data for kinfed

`kinfed example` wrote these files; it writes the same ones every time. Run the commands in this folder; their results
are in its folder `runs`.

## sites: images, one folder a site

Four sites have images of handwritten digits, `sites/SITE/train/DIGIT/*.png` and `sites/SITE/test/DIGIT/*.png`; every
site has its own mix of digits. Look at the clients first, then compare methods:

```sh
kinfed partition --data sites
kinfed compare fedavg fedper --data sites --rounds 5
```

Keep a site as a new one that does not train:

```sh
kinfed run fedavg --data sites --hold-out west --rounds 5
```

`sites/north/train` has images by class and no test set; hold out a fifth:

```sh
kinfed run fedavg --data sites/north/train --test-fraction 0.2 --partition iid --clients 3 --rounds 5
```

## wards.csv: a table

Measurements of breast tumours: one row a sample, with the `ward`, the `patient`, the `device` and the `diagnosis`.
Wards differ in how large the tumours are. The wards are the clients, and all samples of a patient are for training, or
all are for the test:

```sh
kinfed partition --data wards.csv --label diagnosis --client ward --group patient --test-fraction 0.2
kinfed compare fedavg fedper --data wards.csv --label diagnosis --client ward --group patient --test-fraction 0.2 \\
  --rounds 5
```

Wards, patients and devices are invented; the measurements and diagnoses are real.

## scans: images and a table

The table `scans/metadata.csv` says for each image of the folder which `digit` it shows, and its `clinic` and `writer`:

```sh
kinfed run fedavg --data scans --label digit --client clinic --group writer --test-fraction 0.2 --rounds 5
```

## unlabelled: images without labels

Three clinics have images of digits, `unlabelled/CLINIC/*.png`, and nobody has said which digits. The prefix
`unlabelled:` says that the folders are clients and no classes. A method without labels learns from the images; the
labelled ones of one site serve only to test it:

```sh
kinfed run fedsimsiam --data unlabelled:unlabelled --labelled sites/north --rounds 5
```

The images and the table are parts of the data sets `digits` and `breast_cancer` of scikit-learn.
"""


def write_example(folder: Path) -> None:
    """Write example data: image folders of four sites, a table of wards, images with and without a table, a README.md.

    Args:
        folder: Folder that is created; it may exist if it is empty.

    Raises:
        InputError: If the folder is not empty, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"folder: {str(folder)!r} is not an empty folder; choose a new one")
        _write_images(_federation(), folder)
        _wards().to_csv(folder / "wards.csv", index=False)
        (folder / "README.md").write_text(README)
    except OSError as error:
        raise InputError(f"folder: {str(folder)!r} cannot be written: {error.strerror or error}") from error


def _federation() -> Federation:
    """Divide the digits among the sites and the clinics."""
    clients = len(SITES) + len(CLINICS)
    return make_federation(read_digits(Decoding()), Dirichlet(alpha=1.0), clients=clients, seed=SEED, public=0)


def _write_images(federation: Federation, folder: Path) -> None:
    for client, site in enumerate(SITES):
        train, test = federation.train(client), federation.test(client)
        train = train.take(range(min(TRAIN, len(train))))
        known = np.flatnonzero(np.isin(labels_of(test), labels_of(train)))  # so that each site is a data set of its own
        for split, samples in (("train", train), ("test", test.take(known[:TEST]))):
            for number, digit in enumerate(labels_of(samples)):
                _save(samples, number, folder / "sites" / site / split / str(digit))
    for client, clinic in enumerate(CLINICS, start=len(SITES)):
        samples = federation.train(client)
        for number in range(min(TRAIN, len(samples))):
            _save(samples, number, folder / "unlabelled" / clinic)
    _write_scans(federation, folder / "scans")


def _write_scans(federation: Federation, folder: Path) -> None:
    """Write images that a table beside them describes; a writer has three of them."""
    import pandas as pd

    rows = []
    for client, clinic in enumerate(CLINICS, start=len(SITES)):
        samples = federation.test(client)
        for number, digit in enumerate(labels_of(samples)):
            path = _save(samples, number, folder, f"{clinic}-")
            rows.append((path.name, digit, clinic, f"{clinic}{number // 3:02d}"))
    pd.DataFrame(rows, columns=["file_name", "digit", "clinic", "writer"]).to_csv(folder / "metadata.csv", index=False)


def _save(samples: Samples, number: int, folder: Path, prefix: str = "") -> Path:
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{prefix}{number:03d}.png"
    Image.fromarray(samples.inputs[number, 0].numpy()).save(path)
    return path


def _wards() -> pd.DataFrame:
    """Make the table: tumours are in wards by their size and by chance, and a patient has one sample or some."""
    import pandas as pd
    from sklearn.datasets import load_breast_cancer

    bunch, rng = load_breast_cancer(as_frame=True), numpy_stream(SEED, "example")
    table = bunch.data.rename(columns=lambda name: name.replace(" ", "_"))
    size = table["mean_radius"].rank(pct=True) + rng.normal(0, 0.3, len(table))
    ward = np.empty(len(table), dtype="U2")
    for name, rows in zip(WARDS, np.array_split(np.argsort(size.to_numpy()), len(WARDS)), strict=True):
        ward[rows] = name
    diagnosis = bunch.target_names[bunch.target]
    kind = np.char.add(ward, diagnosis)
    order = np.lexsort((rng.random(len(table)), kind))
    begins = rng.random(len(table)) < 0.6  # a patient's samples follow one another, in one ward with one diagnosis
    begins[1:] |= kind[order][1:] != kind[order][:-1]
    patient = np.empty(len(table), dtype="U4")
    patient[order] = [f"P{number:03d}" for number in begins.cumsum()]
    device = np.where(np.char.startswith(ward, "A"), "alpha", "beta")
    return pd.concat([pd.DataFrame({"patient": patient, "ward": ward, "device": device}), table], axis=1).assign(
        diagnosis=diagnosis
    )
