"""The tree of kin: clients clustered ever more finely, the clusters in which they do best, and who is in a wrong one.

Letters: N clients, each a point in d dimensions; L levels; G groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["SURE", "best_cut", "kin_tree", "strays"]

SURE = 5.0  # standard errors of a preference; without kin, three are not rare among so many clusters and questions
STRAY = 1.0  # standard errors by which a client is closer to another group; there are groups, so less will do
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
    levels: NDArray[np.int64],
    losses: NDArray[np.float64],
    apart: NDArray[np.float64],
    errors: NDArray[np.float64],
    sure: float = SURE,
) -> NDArray[np.int64]:
    """Choose the clusters of a tree in which the clients have the least loss in total, and which are surely apart.

    A cluster is divided if its clients have a lower loss in the best clusters within it than at its own level, and if
    its parts prefer themselves to each other: the sum over the parts of their clients' mean preference is above some
    standard errors. If one part merely has the better model in this round, all clients prefer it, and the sum is 0.

    >>> levels, losses = np.array([[0, 0], [0, 1]]), np.array([[5.0, 4.0], [5.0, 4.0]])
    >>> errors = np.full((2, 2), 0.01)
    >>> best_cut(levels, losses, np.array([[0.0, 1.0], [0.0, 1.0]]), errors).tolist()
    [0, 1]
    >>> best_cut(levels, losses, np.array([[0.0, 1.0], [0.0, -1.0]]), errors).tolist()
    [0, 0]

    Args:
        levels: Cluster of each client at each level, N×L, one at the first level.
        losses: Loss of each client at each level, N×L; below 0 for a client that has told none, which follows the
            others.
        apart: By how much each client prefers its own cluster at each level to the other parts of its cluster at the
            level before, N×L.
        errors: Squared standard errors of these preferences, N×L.
        sure: Number of standard errors, ≥ 0.

    Returns:
        Number of each client's cluster, from 0 in the order of their first clients.
    """
    told = losses[:, 0] >= 0

    def are_apart(members: NDArray[np.int64], level: int) -> bool:
        """Return True if the clusters of some clients at a level surely prefer themselves to each other."""
        known = members[told[members]]
        parts = [known[levels[known, level] == cluster] for cluster in dict.fromkeys(levels[known, level].tolist())]
        preference = sum(apart[part, level].mean() for part in parts)
        error = np.sqrt(sum(errors[part, level].sum() / len(part) ** 2 for part in parts))
        return len(parts) > 1 and bool(preference > sure * error)

    def best(members: NDArray[np.int64], level: int) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
        """Return the best clusters of some clients, and the loss of each client in them."""
        whole = losses[members, level]
        if level + 1 == levels.shape[1]:
            return whole, [members]
        finer, divided, clusters = levels[members, level + 1], whole.copy(), []
        for cluster in dict.fromkeys(finer.tolist()):
            divided[finer == cluster], within = best(members[finer == cluster], level + 1)
            clusters += within
        parted = len({*finer.tolist()}) == 1 or are_apart(members, level + 1)
        better = (whole - divided)[told[members]].sum() > 0
        return (divided, clusters) if parted and better else (whole, [members])

    _, clusters = best(np.arange(len(levels)), 0)
    labels = np.empty(len(levels), dtype=np.int64)
    for number, members in enumerate(sorted(clusters, key=lambda members: members[0])):
        labels[members] = number
    return labels


def strays(groups: NDArray[np.int64], apart: NDArray[np.float64], errors: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the group that each client belongs to: its own one, or that which it is closer to.

    By how much the clients prefer their own group to another one is the sum of two parts: how different the groups are,
    which all clients see with opposite signs, and how much better one model is, which all clients see alike. The latter
    is half of the difference of the two groups' medians, and taken off. A client that still prefers the other group is
    in the wrong one.

    >>> apart = np.array([[0.0, 1.0], [0.0, 1.2], [0.0, -0.9], [1.0, 0.0], [1.2, 0.0]])
    >>> strays(np.array([0, 0, 0, 1, 1]), apart, np.full((5, 2), 0.01)).tolist()
    [0, 0, 1, 1, 1]

    Args:
        groups: Number of each client's group, N, below G.
        apart: By how much each client prefers its own group to each group, N×G.
        errors: Squared standard errors of these preferences, N×G.
    """
    members = [np.flatnonzero(groups == group) for group in range(apart.shape[1])]
    none = np.full(apart.shape[1], np.nan)
    medians = np.stack([np.median(apart[of], axis=0) if len(of) else none for of in members])
    closer = apart - ((medians - medians.T) / 2)[groups] + STRAY * np.sqrt(errors)
    closer[np.isnan(closer)] = np.inf
    closer[np.arange(len(groups)), groups] = 0
    return closer.argmin(axis=1) if len(groups) else groups
