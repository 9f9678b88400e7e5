"""Similarity of clients by the representations of their models (specification C.4).

Letters: m clients, K classes, s samples, d the width of a representation.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from kinfed.data.samples import Samples
from kinfed.errors import InputError
from kinfed.learning import activations, features
from kinfed.methods.method import Client, Server
from kinfed.models import BODY, HEAD, Model, Part, Tensors, select
from kinfed.similarity import MEASURES, BiasedSimilarityWarning, Gram, Measure, class_means, similarity_matrix

__all__ = ["ClientSimilarity"]

WITHOUT_CKA = {"local_feature_cov": "feature_cov", "local_class_mean": "class_mean"}
RepSource = Literal["probe", "local_random", "local_sorted", "local_feature_cov", "local_class_mean"]
Compared = Literal["representation", "change", "prediction", "mean_prediction"]


@dataclass(frozen=True, kw_only=True)
class ClientSimilarity:
    """Quantity of the clients' models that is compared, on which samples, and by which measure.

    >>> ClientSimilarity(kernel="rbf").measure.name
    'rbf_cka'

    Attributes:
        rep_source: Samples whose representations are compared. ``probe``: the server's public images. The other choices
            take ``samples`` of a client's own samples, and the client uploads their representations or class means:
            ``local_random`` (Algorithm 2, which pairs unrelated rows), ``local_sorted`` by label,
            ``local_feature_cov``, and ``local_class_mean``, which reveals the client's classes to the server.
        compared: Quantity that is compared on the public images: the representation, its change in this round, the
            predictions of the head (all three by CKA), or the mean prediction (by cosine).
        layers: ``last``: one similarity, that of the representations, for all tensors (the paper). ``each``: for every
            stage of the body the similarity of its own outputs, so that all clients share the similar early stages, and
            similar clients the late ones. With predictions or own samples there is only one similarity, as in ``last``.
        samples: Number s of a client's own samples in each round, ≥ 4.
        kernel: Kernel of the CKA.
        debiased: True for debiased CKA, which is 0 on average for unrelated representations.
    """

    rep_source: RepSource = "probe"
    compared: Compared = "representation"
    layers: Literal["last", "each"] = "each"
    samples: Annotated[int, Ge(4)] = 100
    kernel: Literal["linear", "rbf"] = "linear"
    debiased: bool = False

    def check_similarity(self) -> None:
        """Raise InputError if fields exclude each other."""
        if self.rep_source != "probe" and self.compared != "representation":
            raise InputError(
                f"compared: {self.compared!r} is not allowed with rep_source {self.rep_source!r}; it needs public "
                "images"
            )
        plain = self.kernel == "linear" and not self.debiased
        if not plain and (self.compared == "mean_prediction" or self.rep_source in WITHOUT_CKA):
            raise InputError("kernel, debiased: are options of CKA, which this similarity does not use; leave them out")

    @property
    def fields_of_sources(self) -> Mapping[str, tuple[str, bool]]:
        """Fields that are not always read, each with the setting that reads it and True if it is chosen."""
        return {
            "samples": ("a rep_source of the clients' own samples", self.rep_source != "probe"),
            "layers": (
                "rep_source=probe with compared=representation or compared=change",
                self.layers == "last" or (self.rep_source == "probe" and "prediction" not in self.compared),
            ),
        }

    @property
    def measure(self) -> Measure:
        """Similarity measure that the fields select."""
        if self.compared == "mean_prediction":
            return MEASURES["cosine"]
        cka = f"{'debiased_' if self.debiased else ''}{'rbf_' if self.kernel == 'rbf' else ''}cka"
        return MEASURES[WITHOUT_CKA.get(self.rep_source, cka)]

    def parts(self, model: Model, shared: Part) -> dict[str, Part]:
        """Return the parts of the model by the tap point whose similarity weights them, in order.

        The head joins the last stage. The similarity of the representation (``body``) weights the stages without a tap
        point.

        Args:
            model: Model of the server.
            shared: Part of the model that is mixed.
        """
        if self.layers == "last" or self.rep_source != "probe" or "prediction" in self.compared:
            return {"body": shared}
        stages = [name for name, stage in model.stages.items() if stage.state_dict()]
        parts: dict[str, Part] = {}
        for name in stages:
            tap = name if name in model.taps else "body"
            parts[tap] = (*parts.pop(tap, ()), f"body.{name}.")
        *_, last = parts
        return {**parts, last: (*parts[last], *HEAD)}

    def of_public_images(self, server: Server, tensors: Tensors, taps: Sequence[str]) -> list[Tensor]:
        """Compute activations, s×… for each tap point, or predictions, s×K or 1×K, for the s public images."""
        assert server.public_images is not None
        server.model.load(select(tensors, BODY))  # the head is the initial one
        if self.compared in ("representation", "change"):
            return activations(server.model, server.public_images, taps)
        predicted = features(server.model, server.public_images, "head").softmax(dim=1)
        return [predicted.mean(dim=0, keepdim=True) if self.compared == "mean_prediction" else predicted]

    def similarity(self, compared: Sequence[Tensor] | Sequence[Gram]) -> Tensor:
        """Compute the CRSM of m clients, m×m; NaN in the rows and columns of constant representations."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BiasedSimilarityWarning)  # it only gives weights and is not reported
            similarity: Tensor = similarity_matrix(compared, self.measure)
        return similarity

    def of_own_samples(self, client: Client) -> Tensor:
        """Compute the client's representation matrix from its own samples, for the upload.

        Returns:
            Outputs of the body for s samples that are drawn anew each round, s×d; with
            ``rep_source=local_class_mean``, their mean of each class, K×d. A client with fewer than s samples uses
            some of them several times.
        """
        stream, count = client.stream("representation"), len(client.train)
        passes = [torch.randperm(count, generator=stream) for _ in range(math.ceil(self.samples / count))]
        rows = torch.cat(passes)[: self.samples]
        labels = _labels(client.train)[rows]
        if self.rep_source == "local_sorted":
            labels, order = labels.sort(stable=True)
            rows = rows[order]
        seen = features(client.model, client.train.take(rows.numpy())).cpu()
        if self.measure.needs_labels:
            means: Tensor = class_means(seen, labels, client.model.head.out_features)
            return means.to(seen.dtype)
        return seen


def _labels(samples: Samples) -> Tensor:
    assert samples.labels is not None
    return samples.labels.cpu()
