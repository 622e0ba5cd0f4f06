"""What the DOPE-SGD paper says, beside our runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiments.dope_federated.paper import PAPER as FEDERATED
from experiments.sweep import read
from experiments.verdicts.leads import Claim, Lead, Seeds, lead

__all__ = ["claims"]

ROOT = Path(__file__).parent.parent
IMAGES, WORDS, USERS = "dope_table9", "dope_wikitext", "dope_federated"
_TEST = 0.7  # points: two accuracies of about 60 % on 10,000 images
_SAME_RUN = 0.3  # two networks of one run, which differ on at most a tenth of 10,000 images
_LONGER = "more seeds and more steps: `python -m experiments.dope_table9` continues where it was"
_AUGMENT = "images of a diffusion model trained for days, and a WideResNet with 16 augmentations"


def claims() -> Iterator[Claim]:
    yield from _images()
    yield from _words()
    yield from _users()


# ---------------------------------------------------------------------------------------------------
# images: Tables 1, 2 and 9

Cell = tuple[str, str, str]
COLD, DOPE_COLD = ("dp_sgd", "cold", "none"), ("dope_sgd", "cold", "transforms")
WARM, DOPE_WARM = ("dp_sgd", "warm", "transforms"), ("dope_sgd", "warm", "transforms")
EXTENDED, DOPE_ALL = ("dp_sgd", "warm-ext", "transforms"), ("dope_sgd", "warm-ext", "transforms")


def _scores(cell: Cell, epsilon: str, end: str = "last") -> Seeds:
    rows = read(ROOT / IMAGES / "runs.csv")
    return {
        row["seed"]: 100 * float(row[end])
        for row in rows
        if (row["method"], row["setting"], row["augmentation"]) == cell
        and (not row["epsilon"] or float(row["epsilon"]) in (float(epsilon), 0.0))
    }


def _images() -> Iterator[Claim]:
    paper = {
        (row["method"], row["setting"], row["epsilon"]): float(row["accuracy"])
        for row in read(ROOT / IMAGES / "paper.csv")
    }
    epsilons = list(dict.fromkeys(key[2] for key in paper))

    def leads(high: Cell, low: Cell) -> list[Lead | None]:
        return [
            lead(
                _scores(high, epsilon), _scores(low, epsilon), noise=_TEST,
                paper=paper[(*high[:2], epsilon)] - paper[(*low[:2], epsilon)],
            )
            for epsilon in epsilons
        ]  # fmt: skip

    for says, high, low, settles in (
        ("DP-SGD: a warm start is ahead of a cold one", WARM, COLD, _LONGER),
        ("from a cold start DOPE-SGD is ahead of DP-SGD", DOPE_COLD, COLD, _AUGMENT),
        ("from a warm start DOPE-SGD is ahead of DP-SGD", DOPE_WARM, WARM, _AUGMENT),
        ("DP-SGD, warm: public images in the pool help (extended)", EXTENDED, WARM, _AUGMENT),
        ("DOPE-SGD with all techniques is ahead of DP-SGD, warm", DOPE_ALL, WARM, _AUGMENT),
    ):
        yield Claim(IMAGES, "Tables 1, 2, 9", says, leads(high, low), settles)
    ensembles = [
        lead(
            _scores(DOPE_ALL, epsilon, end),
            _scores(DOPE_ALL, epsilon),
            noise=_SAME_RUN,
            paper=0.3 if epsilon == "2" else None,
        )
        for epsilon in epsilons
        for end in ("mean", "vote")
    ]
    says = "an ensemble of the last iterates is ahead of the last one (mean, vote)"
    yield Claim(IMAGES, "Table 1", says, ensembles, "a step size that stays as it is")


# ---------------------------------------------------------------------------------------------------
# words and users


def _words() -> Iterator[Claim]:
    rows = read(ROOT / WORDS / "runs.csv")

    def perplexity(method: str, epsilon: str) -> Seeds:
        return {
            row["seed"]: float(row["perplexity"])
            for row in rows
            if (row["public"], row["method"], float(row["epsilon"])) == ("wikitext", method, float(epsilon))
        }

    paper = [row for row in read(ROOT / WORDS / "paper.csv") if row["public"] == "wikitext"]
    more = "a full pass over the private text or more (today 8 % of one), where ε decides how much is learned"
    for says, high, low in (
        (
            "a warm start has less perplexity than a cold one",
            ("dp_sgd, warm", "warm"),
            ("dp_sgd, cold", "cold"),
        ),
        (
            "DOPE-SGD has less perplexity than DP-SGD, warm",
            ("dope_sgd", "dope_sgd"),
            ("dp_sgd, warm", "warm"),
        ),
    ):
        leads = [
            lead(
                perplexity(low[0], row["epsilon"]), perplexity(high[0], row["epsilon"]),
                paper=float(row[low[1]]) - float(row[high[1]]),
            )
            for row in paper
        ]  # fmt: skip
        yield Claim(WORDS, "Table 2", says, leads, more)


def _users() -> Iterator[Claim]:
    rows = read(ROOT / USERS / "runs.csv")

    def scores(world: tuple[str, str], method: str, epsilon: float) -> Seeds:
        wanted = (*world, method, epsilon)
        return {
            row["seed"]: 100 * float(row["accuracy"])
            for row in rows
            if (row["split"], row["local"], row["method"], float(row["epsilon"])) == wanted
        }

    dope = "DOPE-SGD is ahead of DP-SGD on all users", "dope_sgd", "dp_sgd (all)"
    alone = (
        "DP-SGD on private users alone is ahead of DP-SGD on all",
        "dp_sgd (only private)", "dp_sgd (all)",
    )  # fmt: skip
    for (says, high, low), world, named in (
        (dope, ("even", "FedSGD"), "users alike"),
        (dope, ("even", "FedAvg"), "users alike, FedAvg"),
        (dope, ("skewed", "FedSGD"), "two digits per user"),
        (dope, ("skewed", "FedAvg"), "two digits per user, FedAvg"),
        (alone, ("even", "FedSGD"), "users alike"),
    ):
        leads = [
            lead(
                scores(world, high, epsilon), scores(world, low, epsilon),
                paper=FEDERATED[high][k] - FEDERATED[low][k],
            )
            for k, epsilon in enumerate((0.5, 1.0, 2.0, 4.0))
        ]  # fmt: skip
        more = "a convolutional network, whose noise has a larger norm, and more users"
        yield Claim(USERS, "Table 7", f"{says} ({named})", leads, more)
