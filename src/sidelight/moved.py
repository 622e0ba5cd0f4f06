"""Where modules of version 0.1 are now. For one more version their old names work, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["MOVED", "find_moved_modules"]

MOVED = {
    "erm": "methods",
    "audit.catalogue": "audit.suite",
    "audit.claims": "audit.result",
    "audit.sampling": "audit.promises",
    "audit.separation": "audit.bounds",
    "augment.tables": "augment.synthesis",
    "cli.options": "cli.terminal",
    "cli.show": "cli.terminal",
    "cli.tour": "cli.demo_command",
    "data.samplers": "samplers",
    "data.tables": "data.table_files",
    "deep.datasets": "data.torch_datasets",
    "deep.estimators": "deep.net_estimators",
    "deep.flat": "oracles.network.flat",
    "deep.guide": "problems.network_public",
    "deep.public_training": "problems.network_public",
    "deep.records": "oracles.network.batches",
    "erm.adassp": "methods.adassp",
    "erm.baselines": "methods.baselines",
    "erm.dp_agd": "methods.dp_agd",
    "erm.dp_newton": "methods.dp_newton",
    "erm.losses": "losses",
    "erm.objective_perturbation": "methods.objective_perturbation",
    "erm.output_perturbation": "methods.output_perturbation",
    "erm.pnsgd": "methods.pnsgd",
    "erm.rsgd_ar": "methods.rsgd_ar",
    "erm.smooth": "methods.smooth",
    "methods.catalogue": "methods.declare",
    "methods.charged": "methods.task",
    "methods.params": "methods.task",
    "methods.registry": "methods.declare",
    "methods.sample_mechanism": "methods.coupling",
    "methods.setting": "methods.part",
    "methods.sgd_adv": "methods.dp_sgd",
    "oracles.alone": "oracles.network.routes",
    "oracles.attention": "oracles.network.layers",
    "oracles.batch_norm": "oracles.network.layers",
    "oracles.batches": "oracles.network.batches",
    "oracles.blocks": "oracles.linear.blocks",
    "oracles.capture": "oracles.network.routes",
    "oracles.check": "oracles.network.check",
    "oracles.convolution": "oracles.network.pieces",
    "oracles.fallback": "oracles.network.routes",
    "oracles.geometry": "oracles.linear.geometry",
    "oracles.layers": "oracles.network.layers",
    "oracles.lengths": "oracles.network.flat",
    "oracles.moments": "oracles.linear.moments",
    "oracles.observe": "oracles.network.observe",
    "oracles.pieces": "oracles.network.pieces",
    "oracles.public": "oracles.linear.public",
    "oracles.recurrent": "oracles.network.layers",
    "oracles.rounding": "oracles.network.pieces",
    "oracles.shared": "oracles.network.routes",
    "oracles.sparse": "oracles.network.pieces",
    "oracles.spectral": "oracles.network.layers",
    "oracles.state": "oracles.network.state",
    "oracles.tail": "oracles.network.flat",
    "oracles.tap": "oracles.network.layers",
    "oracles.trial": "oracles.network.check",
    "privacy.ledger_budget": "privacy.filters",
    "privacy.ledger_run": "privacy.accounts",
    "privacy.renyi": "privacy.accountants",
    "privacy.statement": "privacy.contract",
    "rehearsals": "comparison.rehearsals",
    "report.axes": "report.charts",
    "report.checked": "report.tradeoff",
    "report.departures": "report.words",
    "report.making": "report.card",
    "report.numbers": "numbers",
    "report.results": "report.figures",
    "report.view": "report.page",
    "synthetic": "comparison.synthetic",
    "tables.features": "data.features",
    "tables.folder": "model_folder",
    "tables.place": "output_folder",
}
_DATASETS = "the papers' datasets are read by experiments.datasets, in the repository"
_DIFFUSION = "the diffusion model is in experiments.dope_table9, in the repository"
_GONE = {
    "sidelight.augment.denoising": _DIFFUSION,
    "sidelight.augment.diffusion": _DIFFUSION,
    "sidelight.augment.pool": _DIFFUSION,
    "sidelight.data.datasets": _DATASETS,
    "sidelight.data.download": _DATASETS,
    "sidelight.data.origins": _DATASETS,
    "sidelight.data.sources": _DATASETS,
    "sidelight.datasets": _DATASETS,
}


class _Moved(MetaPathFinder, Loader):
    """Finds a module by its old name, and gives the one that it is now."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _GONE:
            raise ModuleNotFoundError(f"{fullname} is gone: {_GONE[fullname]}", name=fullname)
        if fullname.removeprefix("sidelight.") in MOVED and fullname.startswith("sidelight."):
            return ModuleSpec(fullname, self)
        return None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = f"sidelight.{MOVED[old.removeprefix('sidelight.')]}"
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(new)  # the import system takes what is here


def find_moved_modules() -> None:
    """Old names are found from now on; before other finders, since the parent may be a new package."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
