"""Who gets which sample: pure functions from labels, or another column, and a random stream to a `Partition`.

Letters: ``n`` samples, ``N`` clients, ``K`` classes. Labels are 0..K-1, in any container. No sample goes to two
clients; where some go to nobody, the recipe says so. The same stream gives the same partition.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data.partition import NOBODY, Indices, Partition, rows_by
from kinfed.errors import InputError

__all__ = [
    "dirichlet", "dirichlet_clients", "disjoint", "groups", "iid", "natural", "quantity", "shards", "sort",
]  # fmt: skip

SMALLEST = 10  # training samples of a client in a Dirichlet draw (MOON's and NIID-Bench's code)
DIRICHLET_TRIES = 1000
# If m clients are too small on average, a draw without any has a chance of about exp(-m): at 14, a thousand draws would
# find one once in a thousand times.
HOPELESS, TRIED = 14, 20
LOCAL_TEST = 0.2  # of a client's own samples (FedCRC)


def iid(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """A random permutation in N equal parts; sizes differ by one at most (METHODS.md F.5).

    Raises:
        InputError: If there are more clients than training samples.
    """
    train, test = _read(train, test, clients)
    owner = _shuffled(_even(len(train), clients), rng)
    return _owned(owner, _shuffled(_even(len(test), clients), rng), clients)


def shards(train: ArrayLike, test: ArrayLike, clients: int, per_client: int, rng: np.random.Generator) -> Partition:
    """Every client gets ``per_client`` shards of one class each, and test shards of the same classes (METHODS.md F.1).

    Each class is cut, in data-set order, into N·s/K near-equal shards; a shuffled N×s table says which classes a client
    gets, and the test set is cut by the same table. A client may get a class twice, so it holds at most s classes.

    Raises:
        InputError: If N·s is no multiple of K, or a class has fewer samples than shards.
    """
    train, test = _read(train, test, clients)
    classes = _classes(train, test)
    if clients * per_client % classes:
        raise InputError(
            f"shards: {clients} clients × {per_client} shards = {clients * per_client} is no multiple of the "
            f"{classes} classes"
        )
    each = clients * per_client // classes
    table = rng.permutation(np.repeat(np.arange(classes), each)).reshape(clients, per_client)
    # Row by row of the table, the clients that hold a shard of each class.
    holders = [slots // per_client for slots in rows_by(table.ravel(), classes)]
    for k, rows in enumerate(rows_by(train, classes)):
        if len(rows) < each:
            raise InputError(f"shards: class {k} has {len(rows)} training samples for {each} shards")

    def owners(labels: Indices) -> Indices:
        owner = np.empty_like(labels)
        for rows, holding in zip(rows_by(labels, classes), holders, strict=True):
            of_shard = np.empty(each, dtype=np.int64)
            of_shard[rng.permutation(each)[::-1]] = holding
            owner[rows] = np.repeat(of_shard, _even(len(rows), each))
        return owner

    return _owned(owners(train), owners(test), clients)


def dirichlet(train: ArrayLike, test: ArrayLike, clients: int, alpha: float, rng: np.random.Generator) -> Partition:
    """Every class is spread over the clients in proportions drawn from Dir(alpha·1_N) (METHODS.md F.2).

    A client that holds n/N samples gets no more; the draw is repeated until every client has at least 10. That ends: 20
    draws tell whether a thousand have a chance, and a thousand are the most. The papers that use this recipe test one
    global model only; here the test set is cut in the proportions that the training set got, so that a client is tested
    on what it trains on. A client may get no test sample of a rare class, or none.

    Raises:
        InputError: If alpha is not positive, or no draw gives every client 10 samples; it names an alpha that does.
    """
    train, test = _read(train, test, clients)
    _positive(alpha)
    _enough("dirichlet", len(train), clients)
    counts = _dirichlet_draw(np.bincount(train, minlength=_classes(train, test)), clients, alpha, rng)
    return _owned(_dealt(train, counts, rng), _dealt(test, _in_proportion(counts, test), rng), clients)


def dirichlet_clients(
    train: ArrayLike, test: ArrayLike, clients: int, alpha: float, rng: np.random.Generator
) -> Partition:
    """Every client has class proportions of its own, drawn from Dir(alpha·1_K), and as many samples (METHODS.md F.3).

    The pool is the training and the test set together. Clients take turns in random order; what a class cannot give any
    more is drawn from the classes that are left, in the client's proportions. Then each client keeps a fifth of its
    samples to be tested on. Sizes differ by one at most, and every sample is used.

    Raises:
        InputError: If alpha is not positive, or a client would get fewer than two samples.
    """
    train, test = _read(train, test, clients=1)
    _positive(alpha)
    pool = np.concatenate([train, test])
    if len(pool) < 2 * clients:
        raise InputError(
            f"clients: {clients} is too many; dirichlet_clients gives each one 2 of the {len(pool)} samples or more"
        )
    left = np.bincount(pool)
    wanted = rng.dirichlet(np.full(len(left), alpha), clients)
    counts = np.zeros((clients, len(left)), dtype=np.int64)
    for client, size in zip(rng.permutation(clients), _even(len(pool), clients), strict=True):
        missing = int(size)
        while missing:  # each time around, all is found or one more class is used up
            p = np.where(left > 0, wanted[client], 0.0)
            if not p.any():
                p = (left > 0).astype(float)
            found = np.minimum(rng.multinomial(missing, p / p.sum()), left)
            counts[client] += found
            left -= found
            missing -= int(found.sum())
    return _split_locally(_dealt(pool, counts.T, rng), clients, rng)


def disjoint(
    train: ArrayLike, test: ArrayLike, clients: int, classes_per_client: int | None, rng: np.random.Generator
) -> Partition:
    """Every client gets some classes and no others; the test set is cut by the same classes (METHODS.md F.4).

    Without ``classes_per_client`` and with N < K, the shuffled classes are shared out, each whole, and the numbers of
    classes differ by one at most. Otherwise clients take the classes that were taken least, at random among these, and
    a class is cut into equal parts among those that took it; the default then is a fifth of the classes, as in EasyFL.

    Raises:
        InputError: If N·c is no multiple of K, so that classes would be shared unequally; if a class has fewer samples
            than clients; or if there are fewer classes than a client shall have.
    """
    train, test = _read(train, test, clients)
    classes = _classes(train, test)
    if classes_per_client is None and clients < classes:
        owner = _shuffled(_even(classes, clients), rng)
        return _owned(owner[train], owner[test], clients)
    each = classes_per_client or max(classes // 5, 1)
    step = classes // math.gcd(classes, clients)
    if each > classes or each % step:
        allowed = f"1 to {classes}" if step == 1 else f"a multiple of {step}, {classes} at most"
        raise InputError(
            f"classes_per_client: {each} is not allowed; {clients} clients share {classes} classes equally if each has "
            f"{classes if step == classes else allowed}"
        )
    taken = np.zeros(classes, dtype=np.int64)
    has = np.zeros((classes, clients), dtype=bool)
    for client in range(clients):
        mine = np.lexsort((rng.random(classes), taken))[:each]
        has[mine, client] = True
        taken[mine] += 1
    for k, size in enumerate(np.bincount(train, minlength=classes)):
        if size < taken[k]:
            raise InputError(f"partition: disjoint: class {k} has {size} training samples for {taken[k]} clients")

    def owners(labels: Indices) -> Indices:
        counts = np.zeros(has.shape, dtype=np.int64)
        for k, size in enumerate(np.bincount(labels, minlength=classes)):
            counts[k, has[k]] = rng.permutation(_even(size, taken[k]))
        return _dealt(labels, counts, rng)

    return _owned(owners(train), owners(test), clients)


def sort(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """The training set, sorted by label, is cut into 2N equal shards, two random ones a client (METHODS.md F.6).

    A shard may hold the end of one class and the start of the next. The test set is cut in the proportions in which the
    clients hold the classes, as `dirichlet` does it: sorted alike, it would test a client on other classes.

    Raises:
        InputError: If there are fewer than 2N training samples.
    """
    train, test = _read(train, test, clients)
    if len(train) < 2 * clients:
        raise InputError(
            f"clients: {clients} is too many; sort makes {2 * clients} shards of {len(train)} training samples"
        )
    of_shard = rng.permutation(np.repeat(np.arange(clients), 2))
    owner = np.empty_like(train)
    owner[np.argsort(train, kind="stable")] = np.repeat(of_shard, _even(len(train), 2 * clients))
    classes = _classes(train, test)
    counts = np.bincount(train * clients + owner, minlength=classes * clients).reshape(classes, clients)
    return _owned(owner, _dealt(test, _in_proportion(counts, test), rng), clients)


def groups(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """Two groups: the first half of the clients share the first half of the classes IID (METHODS.md F.7).

    The rest share the rest, and the test set is cut likewise. The first half is the smaller one of an odd number.

    Raises:
        InputError: If there are fewer than two clients or classes, or a group has fewer training samples than clients.
    """
    train, test = _read(train, test, clients)
    classes = _classes(train, test)
    if min(clients, classes) < 2:
        raise InputError(f"partition: groups needs 2 clients and 2 classes, not {clients} and {classes}")
    halves = ((0, clients // 2), (clients // 2, clients))

    def owners(labels: Indices) -> Indices:
        owner = np.empty_like(labels)
        for second, (first, end) in enumerate(halves):
            ours = (labels >= classes // 2) == bool(second)
            size = int(ours.sum())
            if labels is train and size < end - first:
                raise InputError(f"clients: a group of {end - first} is more than its {size} training samples")
            owner[ours] = first + _shuffled(_even(size, end - first), rng)
        return owner

    return _owned(owners(train), owners(test), clients)


def quantity(train: ArrayLike, test: ArrayLike, clients: int, alpha: float, rng: np.random.Generator) -> Partition:
    """IID classes, unequal sizes: 10 training samples each, the rest in proportions drawn from Dir(alpha·1_N).

    The test set is cut in the proportions of the training sizes. [OURS]: NIID-Bench draws until the smallest share
    gives 10 samples, which with many clients never happens.

    Raises:
        InputError: If alpha is not positive, or there are fewer than 10 training samples a client.
    """
    train, test = _read(train, test, clients)
    _positive(alpha)
    _enough("quantity", len(train), clients)
    rest = _parts(rng.dirichlet(np.full(clients, alpha)), len(train) - SMALLEST * clients)
    sizes = SMALLEST + rest
    return _owned(_shuffled(sizes, rng), _shuffled(_parts(sizes / len(train), len(test)), rng), clients)


def natural(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """One client for each distinct value of a column, sorted: each writer, each hospital (``by:COLUMN``).

    If there are more values than ``clients``, so many are drawn at random and the other samples are not used; if there
    are fewer, that is how many clients there are. The test set is cut by the same values. Where it has none of them,
    it is not used, and a fifth of each client's own samples is kept to be tested on; a client with one sample has no
    test sample.

    Args:
        train: The column's values in the training set.
        test: The column's values in the test set.
        clients: N at most.
        rng: The recipe's stream.
    """
    before, after = _values(train), _values(test)
    values = np.unique(before)
    values = values[values == values]  # noqa: PLR0124 - NaN, which belongs to nobody, is not itself
    shared = np.isin(after, values)
    if len(values) > clients:
        values = values[np.sort(rng.choice(len(values), clients, replace=False))]
    names = tuple(str(value) for value in values)
    owner, test_owner = (_places(column, values) for column in (before, after))
    if shared.any():
        return Partition(rows_by(owner, len(values)), rows_by(test_owner, len(values)), names=names)
    return _split_locally(np.concatenate([owner, test_owner]), len(values), rng, names)


def _places(column: NDArray[np.generic], values: NDArray[np.generic]) -> Indices:
    """Where in the sorted values each entry of a column stands, or `NOBODY`."""
    if not len(column):
        return np.empty(0, dtype=np.int64)
    places = np.searchsorted(values, column).clip(max=len(values) - 1)
    return np.where(values[places] == column, places, NOBODY).astype(np.int64)


def _values(column: ArrayLike) -> NDArray[np.generic]:
    array = np.asarray(column)
    return array.astype(str) if array.dtype == object else array


def _dirichlet_draw(sizes: Indices, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Counts K×N that leave nobody with fewer than 10."""
    few = 0
    for tried in range(1, DIRICHLET_TRIES + 1):
        counts = _dirichlet_counts(sizes, clients, alpha, rng)
        now = int((counts.sum(axis=0) < SMALLEST).sum())
        if not now:
            return counts
        few += now
        if tried >= TRIED and few > HOPELESS * tried:
            break
    larger = (float(alpha * 2**i) for i in range(1, 20))
    feasible = (a for a in larger if _dirichlet_counts(sizes, clients, a, rng).sum(axis=0).min() >= SMALLEST)
    hint = next((f"alpha {a:.3g} or fewer clients are" for a in feasible), "only fewer clients are")
    raise InputError(
        f"alpha: {alpha} left some of {clients} clients with fewer than {SMALLEST} samples in each of {tried} draws, "
        f"{few / tried:,.1f} on average; {hint} feasible"
    )


def _dirichlet_counts(sizes: Indices, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """How many samples of each class each client gets, K×N."""
    fair = sizes.sum() / clients
    held = np.zeros(clients)
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    for k, size in enumerate(sizes):
        p = rng.dirichlet(np.full(clients, alpha)) * (held < fair)
        if p.sum() == 0:  # with a tiny alpha the whole mass can fall on clients that are full
            p = (held < fair).astype(float)
        ends = np.floor(p.cumsum() / p.cumsum()[-1] * size).astype(np.int64)
        counts[k] = np.diff(ends, prepend=0)
        held += counts[k]
    return counts


def _in_proportion(counts: Indices, test: Indices) -> Indices:
    """Test samples of each class and client, K×N, in the proportions of the training samples."""
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    sizes = np.bincount(test, minlength=len(counts))
    counted: Indices = np.diff(np.round(shares.cumsum(axis=1) * sizes[:, None]), prepend=0).astype(np.int64)
    return counted


def _dealt(labels: Indices, counts: Indices, rng: np.random.Generator) -> Indices:
    """Owner of every sample when each class, shuffled, is dealt in the given counts (K×N)."""
    owner = np.full_like(labels, NOBODY)
    for rows, of_client in zip(rows_by(labels, len(counts)), counts, strict=True):
        owner[rng.permutation(rows)[: of_client.sum()]] = np.repeat(np.arange(len(of_client)), of_client)
    return owner


def _split_locally(owner: Indices, clients: int, rng: np.random.Generator, names: tuple[str, ...] = ()) -> Partition:
    """Keep a fifth of each client's pooled samples, one at least, to be tested on; a single sample is trained on."""
    order = rng.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    sizes = np.bincount(owner + 1, minlength=clients + 1)
    rank = np.arange(len(owner)) - np.repeat(sizes.cumsum() - sizes, sizes)
    kept = np.where(sizes > 1, np.round(LOCAL_TEST * sizes).clip(min=1), 0)
    tested = np.empty(len(owner), dtype=bool)
    tested[order] = rank < np.repeat(kept, sizes)
    train, test = (rows_by(np.where(mask, owner, NOBODY), clients) for mask in (~tested, tested))
    return Partition(train, test, pooled=True, names=names)


def _owned(train: Indices, test: Indices, clients: int) -> Partition:
    return Partition(rows_by(train, clients), rows_by(test, clients))


def _shuffled(sizes: Indices, rng: np.random.Generator) -> Indices:
    """Owners of as many samples as the sizes add up to, at random."""
    owner = np.empty(sizes.sum(), dtype=np.int64)
    owner[rng.permutation(len(owner))] = np.repeat(np.arange(len(sizes)), sizes)
    return owner


def _even(count: int, parts: int) -> Indices:
    """Sizes that differ by one at most, the larger ones first."""
    return np.full(parts, count // parts) + (np.arange(parts) < count % parts)


def _parts(shares: NDArray[np.float64], count: int) -> Indices:
    """``count`` in the given proportions, rounded."""
    sizes: Indices = np.diff(np.round(shares.cumsum() / shares.sum() * count), prepend=0).astype(np.int64)
    return sizes


def _read(train: ArrayLike, test: ArrayLike, clients: int) -> tuple[Indices, Indices]:
    """Labels of any container as int64 arrays; refuses more clients than training samples."""
    arrays = np.asarray(train, dtype=np.int64), np.asarray(test, dtype=np.int64)
    if clients > len(arrays[0]):
        raise InputError(f"clients: {clients} is more than the {len(arrays[0])} training samples")
    return arrays


def _classes(train: Indices, test: Indices) -> int:
    return int(max(train.max(initial=-1), test.max(initial=-1))) + 1


def _positive(alpha: float) -> None:
    if not 0 < alpha < math.inf:
        raise InputError(f"alpha: {alpha} is not allowed; must be greater than 0")


def _enough(recipe: str, samples: int, clients: int) -> None:
    if samples < clients * SMALLEST:
        raise InputError(
            f"partition: {recipe} gives every client at least {SMALLEST} samples, and {samples} training "
            f"samples suffice for {samples // SMALLEST} clients, not for {clients}"
        )
