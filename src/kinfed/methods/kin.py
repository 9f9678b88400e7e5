"""The tree of kin: clients clustered ever more finely, and the clusters in which they do best.

Letters: N clients, each a point in d dimensions; L levels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_cut", "kin_tree"]

SURE = 3.0  # standard errors by which a loss must be lower
STEP = 1.4  # ratio of the numbers of clusters of neighbouring levels


def kin_tree(points: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Cluster clients by Ward's method at several levels; every cluster of a level is within one of the level before.

    >>> kin_tree(np.array([[0.0], [9.0], [0.1], [9.2]]), most=4).tolist()
    [[1, 1, 1, 1], [1, 2, 2, 2], [1, 1, 1, 3], [1, 2, 3, 4]]

    Args:
        points: Point of each client, N×d.
        most: Largest number of clusters.

    Returns:
        Cluster of each client at each level, N×L: 1, 2, 3, 4, 6, 8, 11, … of them, up to ``most`` or N,
        fewer if clients are equal.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    most, counts = min(most, len(points)), [1]
    while counts[-1] < most:
        counts.append(min(max(counts[-1] + 1, round(counts[-1] * STEP)), most))
    if len(points) == 1:
        return np.zeros((1, 1), dtype=np.int64)
    merged = linkage(points, "ward")
    return np.stack([fcluster(merged, count, "maxclust") for count in counts], axis=1).astype(np.int64)


def best_cut(
    levels: NDArray[np.int64], losses: NDArray[np.float64], squares: NDArray[np.float64], sure: float = SURE
) -> NDArray[np.int64]:
    """Choose the clusters of a tree in which the clients have the least loss in total.

    A cluster is divided if its clients' samples have a lower loss in the best clusters within it than at its own level:
    the sum of the differences d over the samples must be above ``sure`` · √(Σ d²), which is so many standard errors
    where there is no difference.

    >>> levels, losses = np.array([[0, 0], [0, 1]]), np.array([[5.0, 1.0], [5.0, 4.0]])
    >>> of_all = (losses[:, :, None] - losses[:, None]) ** 2 / 10  # each client has ten samples, with equal losses
    >>> best_cut(levels, losses, of_all).tolist()
    [0, 1]

    Args:
        levels: Cluster of each client at each level, N×L, one at the first level.
        losses: Sum of the losses of each client's samples at each level, N×L. A client whose losses are the same at all
            levels follows the others.
        squares: Sums over the same samples of the squared differences of the losses at two levels, N×L×L.
        sure: Number of standard errors, ≥ 0; 0 for the least loss.

    Returns:
        Number of each client's cluster, from 0 in the order of their first clients.
    """

    def best(members: NDArray[np.int64], level: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
        """Return the best clusters of some clients, and the level of each client's cluster."""
        whole = np.full(len(members), level)
        if level + 1 == levels.shape[1]:
            return whole, [members]
        finer, chosen, clusters = levels[members, level + 1], whole.copy(), []
        for cluster in dict.fromkeys(finer.tolist()):
            chosen[finer == cluster], within = best(members[finer == cluster], level + 1)
            clusters += within
        gain = (losses[members, level] - losses[members, chosen]).sum()
        error = np.sqrt(squares[members, level, chosen].sum())
        return (chosen, clusters) if gain > sure * error else (whole, [members])

    _, clusters = best(np.arange(len(levels)), 0) if len(levels) else ((), [])
    labels = np.empty(len(levels), dtype=np.int64)
    for number, members in enumerate(sorted(clusters, key=lambda members: members[0])):
        labels[members] = number
    return labels
