"""CPU seconds of scoring source models at a client, as a share of the forward passes that they need anyhow.

``python benchmarks/vote.py [--repeats R] [--sources P] [--images N] [--model NAME] [--measures A,B]``

P sources and the client's own model look at N images of 28×28, one thread; then each measure compares what they see.
Passes and measures are timed in turns, and the shares are medians of the repeats. As in `learning.activations`,
every model sees every image once, however many measures there are.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from kinfed.data import Normalisation, Samples
from kinfed.methods.voting import scores, seen
from kinfed.models import Card, Source, build
from kinfed.settings import own_settings
from kinfed.similarity import MEASURES

SIDE, CLASSES = 28, 10


def images(count: int) -> Samples:
    """Smooth noise, so that representations are related as those of real images are."""
    stream = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 1, 7, 7, generator=stream)
    pixels = (torch.nn.functional.interpolate(coarse, SIDE, mode="bilinear") * 255).to(torch.uint8)
    return Samples(pixels, None, Normalisation.of(pixels))


def pool(model: str, count: int) -> list[Source]:
    """Untrained models: what they weigh is what trained ones weigh."""
    about = {"version": 1, "architecture": model, "bn": "track", "shape": (1, SIDE, SIDE), "classes": ["0"] * CLASSES}
    card = Card.model_validate({**about, "normalisation": {"mean": [0.0], "std": [1.0]}})
    built = [build(model, (1, SIDE, SIDE), CLASSES, seed).eval().requires_grad_(False) for seed in range(count)]
    for of in built:
        of.prefer_channels_last()
    return [Source(str(seed), of, card) for seed, of in enumerate(built)]


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of one call, and what it gives."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sources", type=int, default=20)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--model", default="mcmahan_cnn")
    parser.add_argument(
        "--measures", default=",".join(n for n, measure in MEASURES.items() if not measure.needs_labels)
    )
    given = parser.parse_args()
    measures = given.measures.split(",")
    client, *sources = pool(given.model, given.sources + 1)
    samples = images(given.images)
    passes: list[float] = []
    told: dict[str, list[tuple[float, float]]] = {measure: [] for measure in measures}
    with own_settings():
        for repeat in range(given.repeats + 1):
            taken, looked = seconds(functools.partial(seen, client.model, sources, samples, [("body", "body")]))
            shares = {}
            for measure in measures:
                scored, _ = seconds(functools.partial(scores, looked, measure))
                shares[measure] = (scored, scored / taken)
            if repeat:  # the first one warms up
                passes.append(taken)
                for measure, share in shares.items():
                    told[measure].append(share)
    print(f"{given.sources} sources of {given.model}, {given.images} images: passes {statistics.median(passes):.2f} s")
    print(f"{'measure':<14}{'s':>8}{'share':>8}  lowest to highest")
    for measure, pairs in told.items():
        scored_in, parts = zip(*pairs, strict=True)
        print(
            f"{measure:<14}{statistics.median(scored_in):>8.3f}{statistics.median(parts):>8.3f}"
            f"  {min(parts):.3f} to {max(parts):.3f}"
        )


if __name__ == "__main__":
    main()
