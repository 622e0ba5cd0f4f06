"""Names that are found when they are asked for: what a package exports, and modules by their old names.

A package lists what it exports under `if TYPE_CHECKING`, for editors and type checkers, and nowhere else: the
same lines, read from its source, say at run time where each name is (PEP 562). So `import sidelight` is
instant and never loads PyTorch.

Modules of version 0.1 that are elsewhere now (`MOVED`) work under their old names for one more version, with
a warning.
"""

from __future__ import annotations

import ast
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__all__ = ["MOVED", "find_moved_modules", "homes_of", "load", "renamed"]


def homes_of(path: str) -> dict[str, str]:
    """Every name that a file imports for type checkers alone, and the module that it is in."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    asides = [node for node in tree.body if isinstance(node, ast.If)]
    blocks = [node for node in asides if ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports if node.module for alias in node.names}


def load(package: str, homes: dict[str, str], name: str) -> object:
    """The value of a name that the package exports; AttributeError for any other."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)


def renamed(module: str, names: Mapping[str, type]) -> Callable[[str], object]:
    """A `__getattr__` for a module in which classes of 0.1 have other names now, with a warning."""

    def found(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = names[name]
        warnings.warn(f"{name} is now {new.__name__} (sidelight.methods)", DeprecationWarning, stacklevel=2)
        return new

    return found


# ---------------------------------------------------------------------------------------------------
# modules of version 0.1


MOVED = {
    "arguments": "errors",
    "erm": "methods",
    "finish": "solvers",
    "rehearsals": "comparison.rehearsals",
    "samplers": "privacy.events",
    "surroundings": "estimator_records",
    "synthetic": "comparison.stages",
    "audit.bounds": "audit.result",
    "audit.catalogue": "audit.suite",
    "audit.claims": "audit.result",
    "audit.promises": "audit.replay",
    "audit.sampling": "audit.replay",
    "audit.scenes": "audit.subjects",
    "audit.separation": "audit.result",
    "augment.images": "augment.transforms",
    "augment.mixing": "augment.transforms",
    "augment.tables": "augment.synthesis",
    "cli.grids": "cli.terminal",
    "cli.methods_command": "cli.compare_command",
    "cli.options": "cli.terminal",
    "cli.progress": "observers",
    "cli.show": "cli.terminal",
    "cli.tour": "cli.demo_command",
    "data.bounding": "data.coordinates",
    "data.checks": "data.inputs",
    "data.declared": "data.schema",
    "data.encoding": "data.coordinates",
    "data.learning": "data.recognising",
    "data.parquet": "data.table_files",
    "data.private": "data.inputs",
    "data.samplers": "privacy.events",
    "data.tables": "data.table_files",
    "data.torch_datasets": "oracles.network.batches",
    "data.unread": "data.rows",
    "deep.datasets": "oracles.network.batches",
    "deep.ensemble": "deep.network_parts",
    "deep.estimators": "deep.net_estimators",
    "deep.flat": "oracles.network.flat",
    "deep.guide": "problems.network_public",
    "deep.journal": "deep.checkpoint",
    "deep.last_layer": "deep.network_parts",
    "deep.plain": "deep.trainer",
    "deep.private_batches": "deep.private_records",
    "deep.public_training": "problems.network_public",
    "deep.records": "oracles.network.batches",
    "deep.resume": "deep.checkpoint",
    "deep.settings": "deep.trainer",
    "deep.stepwise": "deep.step",
    "deep.watch": "deep.fit",
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
    "methods.finishing": "methods.parts",
    "methods.loop": "methods.recipe",
    "methods.params": "methods.task",
    "methods.part_checks": "methods.part",
    "methods.public_folds": "methods.precision",
    "methods.registry": "methods.declare",
    "methods.rehearsal": "methods.auto",
    "methods.sample_mechanism": "methods.coupling",
    "methods.selection": "methods.auto",
    "methods.setting": "methods.part",
    "methods.sgd_adv": "methods.dp_sgd",
    "oracles.alone": "oracles.network.routes",
    "oracles.attention": "oracles.network.layers",
    "oracles.batch_norm": "oracles.network.layers",
    "oracles.batches": "oracles.network.batches",
    "oracles.blocks": "oracles.linear.row_sums",
    "oracles.capture": "oracles.network.routes",
    "oracles.check": "oracles.network.check",
    "oracles.convolution": "oracles.network.pieces",
    "oracles.fallback": "oracles.network.routes",
    "oracles.geometry": "oracles.linear.linear_oracle",
    "oracles.layers": "oracles.network.layers",
    "oracles.lengths": "oracles.network.flat",
    "oracles.moments": "oracles.linear.row_sums",
    "oracles.observe": "oracles.network.observe",
    "oracles.pieces": "oracles.network.pieces",
    "oracles.public": "oracles.linear.linear_oracle",
    "oracles.recurrent": "oracles.network.layers",
    "oracles.rounding": "oracles.network.pieces",
    "oracles.shared": "oracles.network.routes",
    "oracles.sparse": "oracles.network.pieces",
    "oracles.spectral": "oracles.network.layers",
    "oracles.state": "oracles.network.state",
    "oracles.tail": "oracles.network.flat",
    "oracles.tap": "oracles.network.layers",
    "oracles.trial": "oracles.network.check",
    "privacy.accounts": "privacy.contract",
    "privacy.calibrate": "privacy.accountants",
    "privacy.ledger_budget": "privacy.filters",
    "privacy.ledger_run": "privacy.ledger",
    "privacy.renyi": "privacy.accountants",
    "privacy.statement": "privacy.contract",
    "problems.linear": "problems.base",
    "report.axes": "report.charts",
    "report.checked": "report.guarantee",
    "report.departures": "report.guarantee",
    "report.making": "report.card",
    "report.numbers": "numbers",
    "report.results": "report.figures",
    "report.tradeoff": "report.guarantee",
    "report.view": "report.page",
    "report.words": "report.guarantee",
    "tables.features": "data.features",
    "tables.folder": "model_folder",
    "tables.model": "tables.fitting",
    "tables.place": "files",
    "tables.validation": "tables.fitting",
    "features.patch_layers": "features.patches",
    "oracles.linear.moments": "oracles.linear.row_sums",
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
