"""The tree of kin: clients clustered ever more finely, and the clusters in which they do best.

Letters: N clients, each a point in d dimensions; L levels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_cut", "kin_tree"]

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


def best_cut(levels: NDArray[np.int64], costs: NDArray[np.float64], sure: float = 1.0) -> NDArray[np.int64]:
    """Choose the clusters of a tree in which the clients have the least cost in total.

    A cluster is divided if its clients' costs in the best clusters within it are lower in total than at its own level,
    by more than some standard errors. (For one client that gains alone among many, the gain is about one.)

    >>> levels = np.array([[0, 0], [0, 0], [0, 1], [0, 1]])
    >>> best_cut(levels, np.array([[5.0, 1.0], [5.0, 1.0], [5.0, 4.0], [5.0, 4.5]])).tolist()
    [0, 0, 1, 1]

    Args:
        levels: Cluster of each client at each level, N×L, one at the first level.
        costs: Cost of each client at each level, N×L; below 0 for a client that has told none, which
            follows the others.
        sure: Number of standard errors, over the clients, ≥ 0; 0 for the least cost.

    Returns:
        Number of each client's cluster, from 0 in the order of their first clients.
    """
    told = costs[:, 0] >= 0

    def best(members: NDArray[np.int64], level: int) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
        """Return the cost of each member in the best clusters, and these."""
        whole = costs[members, level]
        if level + 1 == levels.shape[1]:
            return whole, [members]
        divided, clusters, finer = whole.copy(), [], levels[members, level + 1]
        for cluster in dict.fromkeys(finer.tolist()):
            divided[finer == cluster], within = best(members[finer == cluster], level + 1)
            clusters += within
        gains = (whole - divided)[told[members]]
        error = gains.std(ddof=1) * np.sqrt(len(gains)) if len(gains) > 1 else 0.0
        return (divided, clusters) if gains.sum() > sure * error else (whole, [members])

    _, clusters = best(np.arange(len(levels)), 0)
    labels = np.empty(len(levels), dtype=np.int64)
    for number, members in enumerate(sorted(clusters, key=lambda members: members[0])):
        labels[members] = number
    return labels
