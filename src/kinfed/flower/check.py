"""What a site would tell and do, in words for those who decide on it before it joins a federation."""

from __future__ import annotations

import os
from pathlib import Path

from kinfed.data import load
from kinfed.errors import InputError
from kinfed.flower.site import Site

__all__ = ["about_site"]


def about_site(site: Site) -> list[tuple[str, str]]:
    """Return what a site would tell a server and do for it, as headings and texts; nothing is sent.

    Args:
        site: The site.

    Raises:
        InputError: If its data cannot be read, or its folder cannot be written.
    """
    told = site.introduction(load(site.data))
    shape = "×".join(map(str, told["shape"]))
    policy = site.policy
    _check_writable(site.state)
    counts = "not told"
    if told["counts"] is not None:
        names = told["classes"]
        counts = "; ".join(
            f"{which} " + ", ".join(f"{name}: {count}" for name, count in zip(names, row, strict=True))
            for which, row in zip(("training", "test"), told["counts"], strict=True)
        )
    takes_part = policy.refusal([], told["train"]) or "yes"
    return [
        ("tells its name", site.name),
        ("tells its sizes", f"{told['train']} training and {told['test']} test samples of shape {shape}"),
        ("tells its classes", ", ".join(told["classes"]) or "none, the samples have no labels"),
        ("tells their counts", counts if told["classes"] else "none, the samples have no labels"),
        ("tells its inputs'", "mean and standard deviation" + (", and sums of pixels" if told["sums"] else "")),
        ("tells its versions", f"kinfed {told['kinfed']}, torch {told['torch']}, processor {told['processor']}"),
        ("tells of tests", "numbers of samples and of right answers, measures" + (
            ", also for each class" if policy.class_counts else "")),
        ("sends", "what each method's clients send, such as the model or a part of it"),
        ("keeps in its folder", f"{site.state}: private parts of models, memories, the clients' own models"),
        ("takes part", takes_part),
        ("does the methods", "all of kinfed" if policy.methods is None else ", ".join(policy.methods)),
        ("runs code of others", ", ".join(policy.code) or "none"),
        ("answers messages", "without limit" if policy.most_per_hour is None else f"{policy.most_per_hour} in an hour"),
    ]  # fmt: skip


def _check_writable(folder: Path) -> None:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError(f"state: {str(folder)!r} cannot be written")
