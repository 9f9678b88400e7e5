"""How fast, how exact and how large `kinfed.similarity` is, and how biased CKA is: the tables of docs/similarity.md.

``python benchmarks/similarity.py [--threads T] [matrix] [loss] [memory] [layers] [bias]``, all if none is named.

Every comparison is side by side in one run: the contestants take turns, and the times are medians over the turns.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kinfed.similarity import Gram, cka, compare_layers, similarity_matrix


def turns(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each contestant. They take turns; in each turn one run warms up and the next one counts."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            run()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def clients(count: int, n: int, d: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Representations that share a signal: ``count`` of n×d."""
    stream = torch.Generator().manual_seed(0)
    signal = torch.randn(n, d, generator=stream)
    return [(signal + torch.randn(n, d, generator=stream)).relu().to(dtype) for _ in range(count)]


def cka_by_features(x: Tensor, y: Tensor) -> Tensor:
    """Linear CKA the way it is mostly written."""
    x, y = x - x.mean(0), y - y.mean(0)
    value: Tensor = (x.T @ y).square().sum() / (torch.linalg.matrix_norm(x.T @ x) * torch.linalg.matrix_norm(y.T @ y))
    return value


def cka_by_grams(k: Tensor, other: Tensor) -> Tensor:
    """CKA of two Grams the way it is mostly written."""
    n = len(k)
    center = torch.eye(n, dtype=k.dtype) - 1 / n
    k, other = center @ k @ center, center @ other @ center
    return (k * other).sum() / ((k * k).sum().sqrt() * (other * other).sum().sqrt())


def double_loop(sides: list[Tensor], measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Every pair, one after the other."""
    return torch.tensor([[float(measure(x, y)) for y in sides] for x in sides], dtype=torch.float64)


def matrix_table() -> None:
    """Many clients at once against loops over the pairs, and against the product that it takes at the least."""
    print("\nLinear CKA of N = 100 clients, n = 128, d = 512, float64")
    sides = clients(100, 128, 512, torch.float64)
    start = time.perf_counter()
    expected = double_loop(sides, cka_by_features)
    by_features = time.perf_counter() - start
    grams = [x @ x.T for x in sides]
    units = [Gram.of_features(x).unit for x in sides]
    seconds = turns(
        {
            "similarity_matrix": lambda: similarity_matrix(sides),
            "loop over stored Grams, each centred in the loop": lambda: double_loop(grams, cka_by_grams),
            "loop over stored unit Grams, one inner product a pair": lambda: double_loop(
                units, lambda k, other: (k * other).sum()
            ),
        },
        rounds=3,
    )
    seconds["loop in feature form (one run)"] = by_features
    ours = seconds["similarity_matrix"]
    for name, value in seconds.items():
        print(f"  {name:55} {value * 1e3:10.1f} ms  {value / ours:7.1f}")
    print(f"  largest difference to the loop: {(similarity_matrix(sides) - expected).abs().max():.1e}")

    for kernel in ("linear", "rbf"):
        for dtype in (torch.float32, torch.float64):
            many = clients(1000, 50, 512, dtype)
            flat = torch.randn(1000, 50 * 50, dtype=torch.float64)
            seconds = turns(
                {
                    "ours": functools.partial(similarity_matrix, many, kernel=kernel),
                    "bare": functools.partial(torch.mm, flat, flat.T),
                },
                rounds=7,
            )
            print(
                f"  N = 1000, n = 50, d = 512, {kernel:6} {str(dtype)[6:]}: {seconds['ours'] * 1e3:.0f} ms, "
                f"bare product {seconds['bare'] * 1e3:.0f} ms, ratio {seconds['ours'] / seconds['bare']:.2f}"
            )


def naive_loss(x: Tensor, y: Tensor) -> Tensor:
    """Differentiable CKA with both Grams, each once, centred by products."""
    return cka_by_grams(x @ x.T, y @ y.T)


def three_hsic_loss(x: Tensor, y: Tensor) -> Tensor:
    """The form found most: three HSICs, each with two Grams and their centring."""

    def hsic(x: Tensor, y: Tensor) -> Tensor:
        center = torch.eye(len(x)) - 1 / len(x)
        return ((center @ (x @ x.T) @ center) * (center @ (y @ y.T) @ center)).sum()

    return hsic(x, y) / (hsic(x, x).sqrt() * hsic(y, y).sqrt())


def gradient(loss: Callable[[], Tensor], x: Tensor) -> Tensor:
    """One step: the loss, and its gradient."""
    return torch.autograd.grad(loss(), x)[0]


def loss_table() -> None:
    """One step of a loss: forward and backward, the other side frozen."""
    for d in (3136, 12544):
        x, y = clients(2, 128, d)
        x.requires_grad_()
        frozen = Gram.of_features(y)
        losses: dict[str, Callable[[], Tensor]] = {
            "cka(x, Gram)": functools.partial(cka, x, frozen),
            "naive, both Grams once": functools.partial(naive_loss, x, y),
            "naive, three HSICs": functools.partial(three_hsic_loss, x, y),
        }
        seconds = turns({name: functools.partial(gradient, loss, x) for name, loss in losses.items()}, 30)
        exact = torch.autograd.grad(naive_loss(z := x.detach().double().requires_grad_(), y.double()), z)[0]
        print(f"\nCKA as a loss, forward and backward, 128×{d}, float32 (gradient against float64)")
        for name, loss in losses.items():
            gradient = torch.autograd.grad(loss(), x)[0].double()
            error = float((gradient - exact).norm() / exact.norm())
            ratio = seconds[name] / seconds["cka(x, Gram)"]
            print(
                f"  {name:25} {seconds[name] * 1e3:8.2f} ms  {ratio:6.2f}  relative error of the gradient {error:.1e}"
            )


def peak_gib() -> float:
    """Most memory that this process has held (Linux; getrusage would count its parent's)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def memory_table() -> None:
    """Peak memory of this process, for many clients; run alone, so that nothing else is in it."""
    before = peak_gib()
    sides = clients(2000, 128, 512)
    filled = peak_gib()
    start = time.perf_counter()
    similarity_matrix(sides)
    seconds = time.perf_counter() - start
    print(
        f"\nPeak memory, N = 2000, n = 128, d = 512, float32: {peak_gib():.2f} GiB, {before:.2f} after the imports, "
        f"{filled:.2f} with the activations; {seconds:.1f} s"
    )


def layers_table() -> None:
    """Peak memory of this process, for the layers of two models; run alone, so that nothing else is in it."""
    a, b = ({str(i): x for i, x in enumerate(clients(20, 2000, 512))} for _ in range(2))
    filled = peak_gib()
    start = time.process_time()
    compare_layers(a, b)
    print(
        f"\nPeak memory, 20 layers of 2000×512 on both sides, float32: {peak_gib():.2f} GiB, {filled:.2f} with the "
        f"activations; {time.process_time() - start:.1f} CPU seconds"
    )


def bias_table() -> None:
    """CKA of two independent Gaussian representations, d = 512; the truth is 0."""
    print(
        "\nCKA of independent Gaussians, d = 512: mean ± standard deviation over 5 draws\n\n| n | biased | debiased |"
    )
    print("|---|---|---|")
    for n in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000):
        rng = np.random.default_rng(n)
        pairs = [rng.standard_normal((2, n, 512)) for _ in range(5)]
        cells = []
        for debiased in (False, True):
            values = [cka(x, y, debiased=debiased) for x, y in pairs]
            cells.append(f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}")
        print(f"| {n} | {cells[0]} | {cells[1]} |")


TABLES = {
    "matrix": matrix_table,
    "loss": loss_table,
    "memory": memory_table,
    "layers": layers_table,
    "bias": bias_table,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[[], *TABLES], metavar="table", help=", ".join(TABLES))
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of torch (default 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, threads: {arguments.threads}", flush=True)
    for table in arguments.tables or TABLES:
        if table in ("memory", "layers") and arguments.tables != [table]:
            subprocess.run([sys.executable, __file__, "--threads", str(arguments.threads), table], check=True)
        else:
            TABLES[table]()
