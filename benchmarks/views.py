"""CPU seconds of making two views of a batch, as a share of the training step that they are made for.

``python benchmarks/views.py [--repeats R] [--hidden H] [--out D]``

A step of BYOL with ``cnn4`` on 200 images of 32×32, one thread. The step is timed whole, views included, by a client's
local training on one batch; the views are timed alone in between, and the same views by torchvision, image by image.
``--hidden`` and ``--out`` are the widths of projector and predictor: 4096 and 2048 are the papers', which cost more
than this encoder, so another row has them small, and one has a step of supervised training.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torchvision.transforms import ColorJitter, Compose, RandomApply, RandomGrayscale, RandomHorizontalFlip
from torchvision.transforms import RandomResizedCrop as Crop

from kinfed.data import Normalisation, Samples
from kinfed.engine.malloc import keep_freed_memory
from kinfed.learning import LocalTraining, Phase, train, train_siamese, two_views
from kinfed.models import Siamese, Target, build

BATCH, SIDE = 200, 32


def noise(count: int) -> Samples:
    """Images that take as long as any."""
    stream = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=stream)
    return Samples(pixels, None, Normalisation.of(pixels))


def step_of(hidden: int, out: int, model: str = "cnn4") -> Callable[[], object]:
    """One step of BYOL, views included; the few things that are done once a round, too, are there but small."""
    encoder = build(model, (3, SIDE, SIDE), 10, 0)
    encoder.prefer_channels_last()
    online = Siamese(encoder, 0, hidden=hidden, out=out)
    target, samples, stream = Target(online), noise(BATCH), torch.Generator().manual_seed(0)
    training = LocalTraining(lr=0.032, batch_size=BATCH, weight_decay=5e-4)
    return lambda: train_siamese(online, target, samples, training, stream)


def supervised_step(model: str = "cnn4") -> Callable[[], object]:
    """One step of cross-entropy, without any augmentation."""
    classifier = build(model, (3, SIDE, SIDE), 10, 0)
    classifier.prefer_channels_last()
    samples, stream = replace(noise(BATCH), labels=torch.arange(BATCH) % 10), torch.Generator().manual_seed(0)
    return lambda: train(classifier, samples, Phase(), LocalTraining(lr=0.032, batch_size=BATCH), stream)


def one_by_one(images: torch.Tensor) -> None:
    """Two views of each image by torchvision's transforms, which draw from the global generator."""
    jitter = RandomApply([ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8)
    transform = Compose([Crop(SIDE), RandomHorizontalFlip(), jitter, RandomGrayscale(0.2)])
    for image in images / 255:
        transform(image)
        transform(image)


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--out", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    samples, stream = noise(BATCH), torch.Generator().manual_seed(0)
    grey = replace(samples, inputs=samples.inputs[:, :1].contiguous())
    work: dict[str, Callable[[], object]] = {
        "two views": lambda: two_views(samples.inputs, stream),
        "two views, grey images": lambda: two_views(grey.inputs, stream),
        "two views by torchvision": lambda: one_by_one(samples.inputs),
        f"step, projector {arguments.hidden} and {arguments.out}": step_of(arguments.hidden, arguments.out),
        "step, projector 4096 and 2048": step_of(4096, 2048),
        "step, supervised": supervised_step(),
    }
    taken: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(arguments.repeats + 1):
        for name, each in work.items():
            spent = seconds(each)
            if repeat:  # the first warms up
                taken[name].append(spent)
    print(f"torch {torch.__version__}, cnn4, {BATCH} images of {SIDE}×{SIDE}, {arguments.repeats} repeats, one thread")
    print(f"  {'':32}{'CPU ms':>9}{'range':>18}{'views, share of it':>20}")
    views = taken["two views"]
    for name, own in taken.items():
        spread = f"{1e3 * min(own):.1f} to {1e3 * max(own):.1f}"
        share = statistics.median(v / s for v, s in zip(views, own, strict=True))
        told = f"{share:.1%}" if name.startswith("step") else ""
        print(f"  {name:32}{1e3 * statistics.median(own):9.1f}{spread:>18}{told:>20}")


if __name__ == "__main__":
    main()
