"""CKA over data sets that are too large for one Gram (Nguyen et al. 2021, https://arxiv.org/abs/2010.15327)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kinfed.errors import InputError
from kinfed.similarity.gram import Kernel, centred_gram, rbf
from kinfed.similarity.inputs import (
    Array,
    UndefinedSimilarityWarning,
    centred,
    flatten,
    one_precision,
    refuse_gradient,
    refuse_non_finite,
    same_rows,
    several,
    tensor,
    warn,
)
from kinfed.similarity.options import Positive, checked

__all__ = ["minibatch_cka"]


class minibatch_cka:
    """Debiased CKA of every layer of one model with every layer of another, accumulated over batches.

    CKA is a ratio of estimates of HSIC, the Hilbert-Schmidt independence criterion. The unbiased HSICs are summed over
    the batches, and the ratio is taken at the end, since a mean of ratios would be biased. The memory is that of
    one batch. The value depends slightly on the batch size.

    Args:
        kernel: Kernel of the Grams, ``linear`` or ``rbf``.
        bandwidth: Bandwidth of the RBF kernel, as a fraction of the median distance in each batch.

    Attributes:
        batches: Number of batches added.
        left_out: Number of batches left out, since they had fewer than the 4 examples that an unbiased HSIC needs.

    >>> import numpy as np
    >>> pooled = minibatch_cka()
    >>> for x in np.random.default_rng(0).normal(size=(5, 20, 4)):
    ...     pooled.update([x], [2 * x, x[:, :2]])  # one layer of the first model, two of the second
    >>> pooled.compute().round(2)
    array([[1.  , 0.58]])
    """

    @checked
    def __init__(self, *, kernel: Kernel = "linear", bandwidth: Positive = 0.5) -> None:
        self.kernel: Kernel = kernel
        self.bandwidth = bandwidth
        self.batches = 0
        self.left_out = 0
        self._hsic = torch.zeros((), dtype=torch.float64)
        self._layers = 0, 0
        self._as_tensor = True

    def update(self, xs: Sequence[Array], ys: Sequence[Array]) -> None:
        """Add a batch.

        Args:
            xs: Activations of the first model, n×p or n×c×h×w for each layer; the same layers in every batch.
            ys: Activations of the second model for the same n examples in the same order.

        Raises:
            InputError: If the numbers of rows differ, the number of layers changes, or a layer is not finite.
        """
        models = {"xs": several("minibatch_cka: xs", xs), "ys": several("minibatch_cka: ys", ys)}
        named = {f"layer {i} of {side}": layer for side, given in models.items() for i, layer in enumerate(given)}
        sides = {name: flatten(tensor(f"minibatch_cka: {name}", layer)) for name, layer in named.items()}
        refuse_gradient("minibatch_cka", sides)
        refuse_non_finite("minibatch_cka", sides)
        n = same_rows("minibatch_cka", [*sides.values()])
        if self.batches and (len(xs), len(ys)) != self._layers:
            raise InputError(f"minibatch_cka: {(len(xs), len(ys))} layers, but the batches before had {self._layers}")
        if n < 4:
            self.left_out += 1
            warn(f"minibatch_cka: a batch of {n} examples is left out; at least 4 are needed", UserWarning)
            return
        vectors = torch.stack([self._hsic_factor(layer).flatten() for layer in one_precision(*sides.values())[0]])
        self._hsic = self._hsic + vectors @ vectors.T
        self._layers = len(xs), len(ys)
        self.batches += 1
        self._as_tensor = any(isinstance(layer, Tensor) for layer in named.values())

    def compute(self) -> Any:
        """Compute the CKA over the batches added so far.

        Returns:
            Debiased CKA in (-1, 1], layers of the first model × layers of the second, float64; a tensor if the
            activations are tensors, otherwise an array. The row or column of a layer that was constant in every batch
            is NaN, with one warning that names it.

        Raises:
            InputError: If no batch was added.
        """
        if not self.batches:
            raise InputError(f"minibatch_cka: no batch was added ({self.left_out} were left out)")
        norms = self._hsic.diagonal().sqrt()
        count = self._layers[0]
        constant = [
            f"layer {i} of xs" if i < count else f"layer {i - count} of ys"
            for i in (norms == 0).nonzero().flatten().tolist()
        ]
        if constant:
            what = f"minibatch_cka is not defined, NaN: constant in every batch: {', '.join(constant)}"
            warn(what, UndefinedSimilarityWarning)
        matrix = (self._hsic / (norms[:, None] * norms)).clamp(-1, 1)[:count, count:]
        return matrix if self._as_tensor else matrix.numpy()

    def _hsic_factor(self, x: Tensor) -> Tensor:
        """Compute the n×n matrix of a layer whose inner product with another layer's is their HSIC₁ in this batch.

        It is the U-centred Gram, with the kernel of this object, divided by √(n(n−3)). HSIC₁ is the unbiased estimate
        of HSIC (Song et al. 2012).

        Args:
            x: Activations of the layer for the n examples of the batch, n×p.
        """
        n = len(x)
        # Not scaled as in `gram_of`, since the HSICs of all batches are summed.
        x = centred(x)
        gram = x @ x.T
        if self.kernel == "rbf":
            gram = rbf(gram, self.bandwidth)
        factor: Tensor = centred_gram(gram, debiased=True) / (n * (n - 3)) ** 0.5
        return factor
