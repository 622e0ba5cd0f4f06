"""Leaf boosting: trees with public splits learn what a linear model gets wrong.

From some n·ε on, privacy costs a linear model nothing, and being linear costs it everything. So a part of the
budget goes to a second stage. The splits of its trees come from public rows; their leaf values are learned
from private records, K trees in each of T rounds:

    g_i   ← clip_C(−∇ℓ_i)                              at the present score of record i
    G     ← release( Σ_i g_i by leaf, K trees )        sensitivity C√K: one leaf of each tree, however many
    N     ← n·(public share of the leaf)·curvature     no private count
    v     ← P N (N P N·(1/η + c·m) + s² I)⁻¹ G         m trees so far, s the noise on G
    score ← score + v[leaf]

v is the posterior mean of a Gaussian process on the leaves, shortened to η of a Newton step where there is
little noise. Its prior P_ab = τ²ρ^(number of splits that tell a and b apart) is what makes deep trees
affordable: a leaf learns from its neighbors, so that the effect of a single split costs no more noise than
with a tree of one split, and an effect of six splits counts only where the data insist on it.

At the end a release of how much the trees lower the loss of private records decides whether they are kept.
What the records' own slopes do to their own loss is known, and does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sidelight.arrays import Array, Floats, dense, is_sparse
from sidelight.data.leaves import ColumnGroup, LeafModel, Splits, leaves
from sidelight.data.rows import PublicRows
from sidelight.losses import Loss, Softmax, Square
from sidelight.methods.adassp import Releases
from sidelight.methods.baselines import best_on_folds
from sidelight.methods.probabilities import ScaledFit, probability_scale
from sidelight.methods.public_trees import SMALL_LEAVES, BoostedFolds, boosted
from sidelight.methods.side_release import PlanWithSideRelease, WrappedMethod, plan_with_side_release
from sidelight.methods.task import Fitted, Plan, Task
from sidelight.oracles.linear.leaf_sums import LeafOracle
from sidelight.privacy import conversions, events
from sidelight.privacy.noise import Noise
from sidelight.privacy.release import Account

_LEAST_SHARE, _LARGEST_SHARE, _RECORDS = 0.2, 0.5, 20_000.0  # of μ², for the trees: see `_share_of`
_TREES, _DEPTH = 8, 6  # K, D
_SPLITS = 256  # that trees choose from
_STEP = 0.1  # η
_REPEATED = 40.0  # c times `worth_of_leaves`: with much noise, later trees average what earlier ones saw
_SIZE, _ALIKE = 0.15, 0.7  # τ in log-odds, or in units of a residual; ρ
_SLOPE = {"logistic": 0.7, "softmax": 1.0, "square": 0.35}  # C; of a square loss in units of a residual
_MASS = 32.0  # public rows that the product of the splits' shares counts for, in the share of a leaf
_FEWEST_ROWS = 50  # public
_MOST_ROWS = 5_000  # public, that trees are grown on
_BETTER = 0.98  # of a line's loss, for public trees that show that trees have something to learn
_LARGE = 0.95  # the quantile of residuals that is their unit
_SEED = 0  # of public splits
_NO_NOISE = 1.0  # without privacy: its multiplier, which is little beside thousands of records


@dataclass(frozen=True, repr=False)
class WithLeaves(WrappedMethod):
    """A method for a linear model, and trees on top of it.

    Guarantee: the composition of the method's releases and T + 1 Gaussian ones, all in one plan.

    Args:
        method: is planned with the budget that the trees leave.
        groups: which columns belong together; None: each is by itself.
        intercept: whether the last column is the intercept's.
        share: of μ², for the trees; None: more of it, the more they can learn.
        rounds: T.
        least_worth: `worth_of_leaves` below which there are no trees.
        sure_worth: below which there are none unless trees of the public rows are better than a line.
    """

    groups: tuple[ColumnGroup, ...] | None = None
    intercept: bool = True
    share: float | None = None
    rounds: int = 40
    least_worth: float = 600.0
    sure_worth: float = 1_800.0

    def plan(self, task: Task) -> Plan:
        if not self.method.private:
            return self._unprotected(task)
        worth = worth_of_leaves(task) if _suits(task) else 0.0
        found, z = None, 0.0
        splits = self._splits(task) if self._pays(task, worth) else ()
        if len(splits):
            share = _share_of(worth) if self.share is None else self.share
            z = math.sqrt((self.rounds + 1) / share) / conversions.gdp_mu(task.epsilon, task.delta)
            found = plan_with_side_release(
                events.repeat(events.gaussian(z), self.rounds + 1),
                lambda rest: self.method.plan(replace(task, epsilon=rest)),
                epsilon=task.epsilon,
                delta=task.delta,
                relation=task.relation,
            )
        if found is None or not found.spends or found.inner.filtered:
            alone = self.method.plan(task)
            return replace(alone, state={"plan": alone, "z": None})
        details = {**found.inner.details, "trees": self.rounds * _TREES, "splits_per_tree": _DEPTH}
        details |= {"trees_share": share, "noise_multiplier_trees": z}
        state = {"plan": found.inner, "beside": found, "z": z, "splits": splits}
        state["worth"] = worth * math.sqrt(share)
        return replace(found.plan, details=details, state=state)

    def _unprotected(self, task: Task) -> Plan:
        """Of `non_private`, which spends no budget and has no limit: the same trees with next to no noise."""
        plan = self.method.plan(task)
        splits = self._splits(task) if _suits(task) else ()
        if not len(splits):
            return replace(plan, state={"plan": plan, "z": None})
        event = events.compose(plan.event, events.repeat(events.gaussian(_NO_NOISE), self.rounds + 1))
        state = {"plan": plan, "z": _NO_NOISE, "splits": splits, "worth": math.inf}
        return replace(
            plan, event=event, details={**plan.details, "trees": self.rounds * _TREES}, state=state
        )

    def _pays(self, task: Task, worth: float) -> bool:
        """Whether there is enough to learn from, and to learn."""
        if not worth or worth < self.least_worth:
            return False
        return worth >= self.sure_worth or beyond_lines(task.public, task.loss)

    def _splits(self, task: Task) -> Splits:
        groups = self.groups or _each(task.p - self.intercept)
        return grow_splits(task.public, groups, task.loss, intercept=self.intercept)

    def run(self, task: Task, plan: Plan, *, account: Account, noise: Noise) -> Fitted:
        z: float | None = plan.state["z"]
        beside: PlanWithSideRelease | None = plan.state.get("beside")
        asked = task if beside is None else beside.task(task)
        fitted = self.method.run(asked, plan.state["plan"], account=account, noise=noise)
        if z is None:
            return fitted
        scale = self._scale(fitted, task, plan)
        splits: Splits = plan.state["splits"]
        noise.bind("trees", splits.columns, splits.starts, splits.sets, splits.thresholds)
        released = Releases(account, noise)
        boosting = _Boosting(task, scale * fitted.coef, splits, z, released, plan.state["worth"])
        model = boosting.run(self.rounds)
        kept, note = boosting.chosen(model)
        lines = [{**line, "step": len(fitted.history) + k} for k, line in enumerate(released.history)]
        found = replace(fitted, history=[*fitted.history, *lines], notes=[note, *fitted.notes])
        if kept is None:
            return found
        if isinstance(found, ScaledFit):
            found = replace(found, scale=1.0)
        return replace(found, coef=scale * fitted.coef, leaves=kept)

    def _scale(self, fitted: Fitted, task: Task, plan: Plan) -> float:
        """That makes log-odds of the line's scores: the trees would else learn it, and nothing more.

        Private records say it (`probabilities`). Public ones must where nobody asked those, and cannot if
        their labels are wrong.
        """
        if isinstance(task.loss, Square):
            return 1.0
        if isinstance(fitted, ScaledFit):
            return fitted.scale
        return probability_scale(fitted.coef, task, None, str(plan.details.get("chosen", self.name)))[0]


def _each(columns: int) -> tuple[ColumnGroup, ...]:
    return tuple(ColumnGroup((k,)) for k in range(columns))


def _suits(task: Task) -> bool:
    public = task.public
    if task.loss.name not in _SLOPE or public.n < _FEWEST_ROWS or is_sparse(public.X):
        return False
    return len(np.unique(public.y)) > 1 and bool(np.ptp(dense(public.X), axis=0).any())


def worth_of_leaves(task: Task) -> float:
    """How many private records there are for one standard deviation of noise on the sum of their slopes.

    That is n·curvature·μ/C, if the whole budget were spent on one sum.
    """
    mu = conversions.gdp_mu(task.epsilon, task.delta)
    factor = 1 if task.relation == "add-or-remove-one" else 2
    if task.target_bound is not None:
        return task.n * mu / factor / _SLOPE["square"]
    rates = np.unique(task.public.y, return_counts=True)[1] / task.public.n
    rate = 1 - float((rates**2).sum())  # of two classes 2p(1 − p)
    return task.n * rate / max(2, task.loss.outputs) * mu / factor / _SLOPE[task.loss.name]


@lru_cache(maxsize=4)
def beyond_lines(public: PublicRows, loss: Loss) -> bool:
    """Whether trees of the public rows have less loss than a linear model, in folds. Remembered."""
    _, line, y = best_on_folds(public, loss)
    some = np.unique(np.linspace(0, public.n - 1, len(y)).astype(np.intp))
    trees = _grown(public, loss).held_out(dense(public.X).astype(np.float32))[some]
    labels = y.astype(np.intp) if loss.outputs > 1 else y
    return float(_losses(loss, trees, labels).mean()) < _BETTER * float(_losses(loss, line, labels).mean())


@lru_cache(maxsize=2)
def _grown(public: PublicRows, loss: Loss) -> BoostedFolds:
    """Trees of the labeled public rows, in folds."""
    classes = 0 if loss.task == "regression" else max(2, loss.outputs)
    y = (public.y > 0).astype(np.intp) if classes == 2 else public.y
    some = np.unique(np.linspace(0, public.n - 1, min(public.n, _MOST_ROWS)).astype(np.intp))
    X = dense(public.X).astype(np.float32)
    return boosted(X, y, classes=classes, folds=5, rows=some, shape=SMALL_LEAVES)


def _share_of(worth: float) -> float:
    """Of μ²: the line needs most of a small budget, and half of a large one is more than it can use."""
    return min(_LARGEST_SHARE, _LEAST_SHARE + worth / _RECORDS)


# ---------------------------------------------------------------------------------------------------
# splits, from public rows


@lru_cache(maxsize=4)
def grow_splits(
    public: PublicRows, groups: tuple[ColumnGroup, ...], loss: Loss, *, intercept: bool
) -> Splits:
    """Splits of public rows, more of columns that matter to public trees. Drawn with a fixed seed.

    There are none where no column tells public rows apart. Remembered: a plan may be made several times.
    """
    rng = np.random.default_rng(_SEED)  # public data only
    X = dense(public.every).astype(np.float64)
    if intercept:
        X = X / X[:, -1:]
    weights = _importance(_grown(public, loss).gains, groups)
    sets: dict[tuple[int, ...], int] = {}
    found: list[tuple[int, float]] = []
    for _ in range(20 * _SPLITS):
        group = groups[int(rng.choice(len(groups), p=weights))]
        columns = _columns(group, rng)
        threshold = _threshold(X[:, columns].sum(axis=1), rng) if columns else None
        if threshold is not None:
            found.append((sets.setdefault(columns, len(sets)), threshold))
        if len(found) == _SPLITS:
            break
    starts = np.cumsum([0, *(len(columns) for columns in sets)])
    return Splits(
        np.array([column for columns in sets for column in columns], dtype=np.int32),
        starts.astype(np.int32),
        np.array([number for number, _ in found], dtype=np.int32),
        np.array([threshold for _, threshold in found]),
        intercept,
    )


def _columns(group: ColumnGroup, rng: np.random.Generator) -> tuple[int, ...]:
    if group.kind == "sum":
        return group.columns
    if group.kind == "each":
        return (group.columns[int(rng.integers(len(group.columns)))],)
    return tuple(column for column in group.columns if rng.random() < 0.5)


def _threshold(values: Floats, rng: np.random.Generator) -> float | None:
    """Half-way between a public value and the next; None if all are the same. Rows are often float32."""
    size = max(float(np.abs(values).max()), 1e-300)
    rounded = np.round(values / size, 5) * size
    levels = np.unique(rounded)
    if len(levels) < 2:
        return None
    place = min(int(np.searchsorted(levels, rng.choice(rounded))), len(levels) - 2)
    return float(levels[place] / 2 + levels[place + 1] / 2)


def _importance(gains: Floats, groups: Sequence[ColumnGroup]) -> Floats:
    """How often each group is asked: half of it uniformly, half by what public trees gained by it."""
    of_groups = np.array([gains[list(group.columns)].sum() for group in groups])
    total = of_groups.sum()
    if not total > 0:
        return np.full(len(groups), 1 / len(groups))
    weights = 0.5 * of_groups / total + 0.5 / len(groups)
    return np.asarray(weights / weights.sum())


# ---------------------------------------------------------------------------------------------------
# leaf values, from private records


class _Boosting:
    """The releases of one run, and the trees that are made of them."""

    def __init__(
        self, task: Task, coef: Floats, splits: Splits, z: float, released: Releases, worth: float
    ) -> None:
        self._task, self._splits, self._z, self._released = task, splits, z, released
        self._repeated = _REPEATED / max(worth, 1.0)
        X = dense(task.public.X)
        self._bits = splits.answers(X, np.arange(len(splits)))  # of public rows
        self._every = self._bits
        if task.public.unlabeled is not None:
            self._every = splits.answers(dense(task.public.every), np.arange(len(splits)))
        self._y = task.public.y.astype(np.intp) if task.loss.outputs > 1 else task.public.y
        self._line = np.asarray(X @ coef.T, dtype=np.float64)
        self._unit = _unit_of(task, self._line)
        self._clip = _SLOPE[task.loss.name] * self._unit
        if isinstance(task.loss, Square):
            self._clip *= 2 * task.loss.scale
        self._oracle = LeafOracle(task.rows, task.loss, coef, splits, clip=self._clip)
        self._flattered = 0.0  # by how much records lower their own loss, through their own slopes

    def run(self, rounds: int) -> LeafModel:
        rng = np.random.default_rng(_SEED + 1)  # which splits a tree asks: public
        outputs, count = self._line.shape[1], 2**_DEPTH
        model = LeafModel(self._splits, np.zeros((0, _DEPTH), dtype=np.int32), np.zeros((0, count, outputs)))
        scores = self._line.copy()
        for _ in range(rounds):
            trees = _drawn(len(self._splits), rng)
            total = self._oracle.leaf_sums(model, trees, relation=self._task.relation)
            noisy, std = self._released(total, self._z, "leaf sums")
            sums = noisy.reshape(_TREES, count, outputs)
            values = self._values(trees, sums, std, scores, len(model.trees))
            LeafModel(self._splits, trees, values).add_to(scores, self._bits, trees)
            model = model.joined(trees, values)
        self._trees = scores - self._line
        return model

    def _values(self, trees: Array, sums: Floats, std: float, scores: Floats, before: int) -> Floats:
        """(K, 2^D, outputs), on average 0 over public rows: the line has learned the level."""
        task, out = self._task, np.empty_like(sums)
        size = task.n * _curvature(task.loss, scores)
        prior = (_SIZE * self._unit) ** 2 * _ALIKE ** _apart(_DEPTH)
        steps = 1 / _STEP + self._repeated * before
        spread = self._squared_slope(scores)
        for k, tree in enumerate(trees):
            mass = _masses(self._every, tree)
            gains = leaf_gains(size * mass, prior=prior, std=std, steps=steps)
            gains = gains - mass @ gains
            out[k] = gains @ sums[k]
            self._flattered += task.n * float(mass @ np.diag(gains)) * spread
        return out

    def _squared_slope(self, scores: Floats) -> float:
        """The mean squared length of a clipped slope, of public rows."""
        loss = self._task.loss
        slope = np.asarray(loss.slope(scores if loss.outputs > 1 else scores[:, 0], self._y))
        lengths = (slope.reshape(len(scores), -1) ** 2).sum(axis=1)
        return float(np.minimum(lengths, self._clip**2).mean())

    def chosen(self, model: LeafModel) -> tuple[LeafModel | None, str]:
        """The trees, or None if they do not lower the loss of private records.

        These took part in the leaf values: a record's own slope g in a leaf whose sum is multiplied by a
        lowers its own loss by about a·g². The sum of that is known, and is subtracted.
        """
        loss, task = self._task.loss, self._task
        before, after = (_losses(loss, z, self._y) for z in (self._line, self._line + self._trees))
        bound = max(float(np.quantile(np.abs(after - before), 0.99)), 1e-9)
        total = self._oracle.gain(model, bound=bound, relation=task.relation)
        noisy, std = self._released(total, self._z, "gain by the trees")
        gain = (float(noisy[0]) - self._flattered) / task.n
        words = f"{gain:.3g} ± {std / task.n:.2g}"
        if gain <= 0:
            return None, f"{len(model.trees)} trees did not lower the loss of private records ({words})"
        return model, (
            f"{len(model.trees)} trees on top of the line lower the mean loss of private records by {words}"
        )


def leaf_gains(sizes: Floats, *, prior: Floats, std: float, steps: float) -> Floats:
    """P N (N P N·steps + s² I)⁻¹, by which sums of slopes are multiplied, with N the sizes of the leaves.

    Without noise that is N⁻¹/steps, a part of a Newton step; with much of it P N/s².
    """
    matrix = steps * (sizes[:, None] * prior * sizes) + std**2 * np.eye(len(sizes))
    return np.asarray((prior * sizes) @ np.linalg.inv(matrix))


def _apart(depth: int) -> Array:
    """(leaves, leaves): how many splits tell two leaves apart."""
    sides = np.arange(2**depth)[:, None] >> np.arange(depth) & 1
    return np.asarray((sides[:, None] != sides).sum(axis=-1))


def _drawn(splits: int, rng: np.random.Generator) -> Array:
    """(K, D) splits, different ones in a tree if there are enough."""
    few = splits < _DEPTH
    trees = [rng.choice(splits, _DEPTH, replace=few) for _ in range(_TREES)]
    return np.array(trees, dtype=np.int32)


def _masses(bits: Array, tree: Array) -> Floats:
    """The share of each leaf: counts of public rows, and as if splits were independent for a few more."""
    found = np.bincount(leaves(bits, tree), minlength=2 ** len(tree)).astype(np.float64)
    product = np.ones(1)
    for share in bits[tree].mean(axis=1):
        product = np.concatenate([product * (1 - share), product * share])
    return np.asarray((found + _MASS * product) / (bits.shape[1] + _MASS))


def _curvature(loss: Loss, scores: Floats) -> float:
    """The mean second derivative of the loss by a score, at these scores of public rows."""
    if isinstance(loss, Softmax):
        p = loss.probabilities(scores)
        return float((p * (1 - p)).mean())
    return float(loss.curvature(scores[:, 0], np.ones(len(scores))).mean())


def _losses(loss: Loss, scores: Floats, y: Array) -> Floats:
    if loss.outputs == 2 and scores.shape[1] == 1:  # public models of two classes give one score
        scores = np.column_stack([np.zeros(len(scores)), scores])
    return np.asarray(loss.value(scores if loss.outputs > 1 else scores[:, 0], y), dtype=np.float64)


def _unit_of(task: Task, line: Floats) -> float:
    """1 for log-odds; of a number the size of a large residual, of public rows under the linear model.

    These may have been trained on, so it is at least a quarter of how far targets are apart.
    """
    if task.target_bound is None:
        return 1.0
    y = task.public.y
    residual = float(np.quantile(np.abs(y - line[:, 0]), _LARGE))
    return max(residual, 0.25 * float(np.quantile(np.abs(y - np.median(y)), _LARGE)), 1e-9)
