"""Where each method comes from, and where we depart from its paper.

The same as *Departs* in the docstrings of the methods, in a reviewer's words; a test keeps the two in step.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SOURCES", "Source", "source_of"]


@dataclass(frozen=True)
class Source:
    """A paper, and what is different here."""

    paper: str
    departs: tuple[str, ...] = ()
    ours: bool = False


_EXACT = "an exact solver replaces stochastic gradient descent; the hinge is huberised with half-width 0.001"
_DP_SGD = (
    "sampling follows the relation: Poisson under add-or-remove-one, fixed size under replace-one; batches "
    "are never shuffled and accounted as Poisson",
)

SOURCES: dict[str, Source] = {
    "auto": Source("Chooses among the methods of this project by public quantities alone", ours=True),
    "dp_sgd": Source("Abadi et al., CCS 2016", _DP_SGD),
    "only_private": Source("Abadi et al., CCS 2016; public records are not used", _DP_SGD),
    "full_private": Source("Abadi et al., CCS 2016; public records are treated as private ones", _DP_SGD),
    "ppsgd": Source(
        "Wang & Zhou, AAAI 2020, Algorithm 1",
        (
            "the conditions of the amplification theorem are enforced and cap the cost of a step; the "
            "paper's proof skips them",
            "a filter, asked before every step, covers the adaptive budget; the paper uses a composition "
            "theorem for budgets fixed in advance",
        ),
    ),
    "dope_sgd": Source(
        "Nasr et al., ICML 2023, Algorithm 2",
        (
            "the public gradient is added back once, after the noise, times the expected batch size; added "
            "per example, as in line 9, it would move with the size of the batch and leak it",
            "in the extended setting public records enter the pool by their expectation: the same mean, "
            "without sampling noise",
        ),
    ),
    "coupling": Source(
        "Liu, Bu, Wang, Zha & Karypis, 2024",
        (
            "privacy loss distributions replace the paper's accounting by the central limit theorem, which "
            "is not a bound",
            "Equation (5) has its factor 1/R",
        ),
    ),
    "dpmd": Source(
        "Amid et al., ICML 2022",
        (
            "the cosine schedule is held at 0 beyond its horizon",
            "a mirror map that is not solved is an error, not a guess",
        ),
    ),
    "adamix": Source(
        "Golatkar et al., CVPR 2022",
        ("the weight of the public gradient is the paper's 0.5 for sums, written for means",),
    ),
    "adadps": Source(
        "Li et al., ICML 2022",
        ("every record is clipped by itself; the reference code clips means of micro-batches",),
    ),
    "sample_mechanism": Source(
        "a baseline of Liu, Bu, Wang, Zha & Karypis, 2024",
        ("private gradients are clipped; unclipped, as the paper lists it, the method is not private",),
    ),
    "public_whitening": Source("A method of this project (specification, section 20)", ours=True),
    "sgd_adv": Source(
        "Bassily, Smith & Thakurta, FOCS 2014, as a baseline",
        (
            "the analytic Gaussian replaces √(2 log 1.25/δ)/ε, which is unproved beyond ε = 1",
            "the number of steps is mε/500",
        ),
    ),
    "rsgd_ar": Source(
        "Chen, Lee & Kifer, AISTATS 2019",
        (
            "batches are balanced and weighted by their sizes, where the paper takes them equal",
            "the largest sensitivity is used, not that of the last batch",
            "averages are taken at epochs τ, 2τ, …",
            "gradients are never normalised; in the released code they are, and the bound does not hold "
            "there",
        ),
    ),
    "nsgd": Source(
        "a baseline of Chen, Lee & Kifer, AISTATS 2019",
        (
            "the largest sensitivity is used; that the last batch is worst holds only for equal batches "
            "without averages",
        ),
    ),
    "output_perturbation": Source(
        "Zhang et al., IJCAI 2017",
        (
            "the noise comes from the exact Gaussian curve instead of √(2 log(2/δ))Δ/ε",
            "the sensitivity is sharper than the published one",
        ),
    ),
    "objective_perturbation": Source(
        "Kifer, Smith & Thakurta, COLT 2012",
        (
            "the proof of 2012 treats the gradient of a record as independent of the noise; the curve used "
            "here bounds it for every noise",
        ),
    ),
    "amp": Source(
        "Iyengar et al., S&P 2019",
        (
            "the output noise is twice the published one: two approximate solutions may lie at opposite ends",
            "the tolerance is one that the solver reaches whatever the records are; the reference code "
            "loosens it on failure, which makes the mechanism depend on the data",
        ),
    ),
    "dp_agd": Source(
        "Lee & Kifer, KDD 2018",
        (
            "noise has the right sign in the line search; the released code minimises a loss plus that "
            "noise, which costs up to as many times the claimed ε as there are candidates",
            "the step applied is the one selected, and gradients are charged once",
            "repeated gradients are weighted by their precision, and budgets are tested before spending",
        ),
    ),
    "agd_avg": Source("a baseline of Wang & Zhou, AAAI 2020"),
    "pnsgd": Source(
        "Feldman et al., FOCS 2018",
        (
            "the noise comes from shifted interpolation (Bok, Su & Altschuler 2024) instead of the Rényi "
            "bound, and is a quarter less",
            "private records come in batches",
        ),
    ),
    "only_public": Source("a baseline: the model of the public records", (_EXACT,)),
    "non_private": Source("a baseline: the model of all records, without protection", (_EXACT,)),
    "majority": Source(
        "a baseline of Chen, Lee & Kifer, AISTATS 2019",
        ("private labels are counted with noise; the paper's count has none and is not private",),
    ),
    "private_selection": Source(
        "Several candidates of this project, trained within one budget, and one of them selected privately "
        "by the exponential mechanism; those that lose are paid for as well",
        ours=True,
    ),
}


def source_of(method: str) -> Source | None:
    """What is known of a method; None for a recipe of the user's own."""
    return SOURCES.get(method)
