"""Gradients of single records without autograd, for models that are PyTorch's own layers in a row.

A `Stack` is an nn.Sequential of Linear layers and activations, and a loss, all of them exactly of PyTorch's
classes. What these do follows from the classes: no row depends on another, nothing is drawn, nothing is kept.
So a pass needs no hooks, no copies, and no look at what it has left behind: on small models that was most of
a private step.

Whatever is not known here has no stack and takes the general way: a subclass, a hook, an attribute of
somebody's own, a shared or parametrized weight, a loss with class weights, autocast. Before every use it is
looked whether anything was added (`same`), and before records of a new form go through, what a stack gives is
compared with plain gradients (`check.agrees`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from sidelight.oracles.network.batches import Batch
from sidelight.oracles.network.closed_forms import ACTIVATIONS, LOSSES, Activation, RecordLoss, loss_behind
from sidelight.oracles.network.flat import modules_of, views_of
from sidelight.oracles.network.pieces import Outer, Piece, Rows
from sidelight.oracles.network.snapshots import Together, snapshots_of

__all__ = ["Affine", "Factors", "Mean", "Stack"]


class Affine(NamedTuple):
    """x ↦ x·weightᵀ + bias."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    @property
    def trained(self) -> bool:
        return self.weight.requires_grad or (self.bias is not None and self.bias.requires_grad)


class Factors(NamedTuple):
    """Of each layer from the first that is trained on: gradients of its outputs (`lefts`) and its inputs
    (`rights`), whose outer products are the gradients of its weight, record by record.

    failed: records on which the loss raises, as a mask, or None.
    """

    lefts: list[Tensor]
    rights: list[Tensor]
    failed: Tensor | None
    scores: Tensor


class Mean(NamedTuple):
    """The mean loss of some records, and its gradient (flat)."""

    loss: float
    gradient: Tensor


_Layer: TypeAlias = Affine | Activation


class Stack:
    """A model and a loss that are known, as they were when this was made. Ask `same` before each use."""

    def __init__(self, modules: list[nn.Module], layers: list[_Layer], loss: RecordLoss) -> None:
        self._layers, self._loss = layers, loss
        affine = [layer for layer in layers if isinstance(layer, Affine)]
        parameters = [p for layer in affine for p in layer if p is not None]
        self._dtype = parameters[0].dtype
        self._parameters = [(p, p.shape, p.requires_grad) for p in parameters]
        # Below the first layer that is trained no gradient is wanted.
        self._first = next(i for i, one in enumerate(layers) if isinstance(one, Affine) and one.trained)
        self.layers = [layer for layer in layers[self._first :] if isinstance(layer, Affine)]
        self._bodies = [(module, type(module), vars(module)) for module in modules]
        self._forwards = [(kind, _FORWARDS[kind]) for kind in {type(module) for module in modules}]
        held = [one for module in modules for one in vars(module).values() if isinstance(one, dict | set)]
        noted = (*map(vars, modules), *held)
        self._noted = Together(snapshot for one in noted for snapshot in snapshots_of(one))

    @classmethod
    def of(cls, model: nn.Module, loss: object) -> Stack | None:
        """The stack of a model and a loss; None where anything of them is not known."""
        module = loss_behind(loss)
        if type(model) is not nn.Sequential or module is None or not _as_usual():
            return None
        leaves, known = list(_leaves(model)), LOSSES[type(module)]
        form = known.make(module) if _bare(module, known.names) else None
        found = [layer for layer in map(_layer_of, leaves) if layer is not None]
        parameters = [p for one in found if isinstance(one, Affine) for p in one if p is not None]
        alone = len({*map(id, leaves)}) == len(leaves) and len({*map(id, parameters)}) == len(parameters)
        if form is None or len(found) < len(leaves) or not alone or not _can_be_trained(parameters):
            return None
        stack = cls([*modules_of(model), module], found, form)
        return stack if stack._noted.at_once and stack.same() else None

    def same(self) -> bool:
        """Whether modules, their attributes, hooks and parameters are what they were, and PyTorch's functions
        do what they usually do."""
        return (
            _as_usual()
            and self._noted.same()
            and all(type(one) is kind and vars(one) is held for one, kind, held in self._bodies)
            and all(kind.forward is forward and kind.__call__ is _CALL for kind, forward in self._forwards)
            and all(
                p.shape == shape and p.requires_grad is trained and p.dtype is self._dtype and _plain(p)
                for p, shape, trained in self._parameters
            )
        )

    def takes(self, batch: Batch) -> bool:
        """Whether records of this form go through: a tensor of inputs with rows for the first layer, and one
        of targets as the loss has them."""
        if type(batch) is not tuple or len(batch) != 2 or not all(type(x) is Tensor for x in batch):
            return False
        (x, y), strided = batch, torch.strided
        if x.dtype is not self._dtype or not (x.is_cpu and y.is_cpu and x.layout is y.layout is strided):
            return False
        if not y.dim() or (y.is_floating_point() and y.dtype is not self._dtype):
            return False
        scores = self._number_of_scores(x.shape)
        return scores is not None and self._loss.fits(scores, y)

    def _number_of_scores(self, shape: torch.Size) -> int | None:
        """What comes out for one record; None where a layer would not take what comes to it."""
        width = shape[1] if len(shape) == 2 else None
        for layer in self._layers:
            if isinstance(layer, Affine):
                if width != layer.weight.shape[1]:
                    return None
                width = layer.weight.shape[0]
            elif layer.flattens and width is None and len(shape) > 2:
                width = shape[1:].numel()
        return width or None

    # -----------------------------------------------------------------------------------------------
    # passes; without autograd, in the precision of the parameters (`pieces.plain_products`)

    def forward_and_back(self, batch: Batch, share: float | None = None) -> Factors:
        """What the gradients of each record's loss are made of; of so much of it, if there is a share."""
        values = [batch[0]]
        for layer in self._layers:
            x = values[-1]
            values.append(functional.linear(x, *layer) if isinstance(layer, Affine) else layer.value(x))
        grad, failed = self._loss.slopes(values[-1], batch[1])
        grad = grad if share is None else grad.mul_(share)
        lefts, rights = list[Tensor](), list[Tensor]()
        for i in range(len(self._layers) - 1, self._first - 1, -1):
            layer = self._layers[i]
            if isinstance(layer, Affine):
                lefts.append(grad)
                rights.append(values[i])
                grad = grad @ layer.weight if i > self._first else grad
            else:
                grad = layer.slope(grad, values[i], values[i + 1])
        return Factors(lefts[::-1], rights[::-1], failed, values[-1])

    def pieces(self, batch: Batch, receive: Callable[[Tensor, Piece], None]) -> Tensor | None:
        """Hand over the gradients of each record's loss; which records failed, as a mask, or None."""
        lefts, rights, failed, _ = self.forward_and_back(batch)
        for layer, left, right in zip(self.layers, lefts, rights, strict=True):
            if layer.weight.requires_grad:
                receive(layer.weight, Outer(left, right, layer.weight.shape).settled())
            if layer.bias is not None and layer.bias.requires_grad:
                receive(layer.bias, Rows(left, layer.bias.shape))
        return failed

    def mean(self, batch: Batch) -> Mean | None:
        """The mean loss and its gradient; None where the loss fails on a record."""
        lefts, rights, failed, scores = self.forward_and_back(batch, 1 / len(batch[0]))
        if failed is not None and bool(failed.any()):
            return None
        trained = [p for layer in self.layers for p in layer if p is not None and p.requires_grad]
        flat = torch.empty(sum(p.numel() for p in trained), dtype=self._dtype)
        views = iter(views_of(flat, trained))
        for layer, left, right in zip(self.layers, lefts, rights, strict=True):
            if layer.weight.requires_grad:
                torch.mm(left.T, right, out=next(views))
            if layer.bias is not None and layer.bias.requires_grad:
                torch.sum(left, 0, out=next(views))
        loss = float(self._loss.values(scores, batch[1]).double().mean())
        return Mean(loss, flat)


# ---------------------------------------------------------------------------------------------------
# is a module what its class says, and nothing more?


_OF_MODULES = frozenset(vars(nn.Module()))
_OF_LINEAR = frozenset(("in_features", "out_features"))
_KINDS: list[type[nn.Module]] = [nn.Sequential, nn.Linear, *ACTIVATIONS, *LOSSES]
_FORWARDS: dict[type[nn.Module], object] = {kind: kind.forward for kind in _KINDS}
_CALL = nn.Module.__call__
_NAMES = ("linear", "relu", "gelu", "silu", "leaky_relu", "elu", "cross_entropy", "mse_loss",
          "binary_cross_entropy_with_logits")  # fmt: skip
_USED: list[tuple[object, str]] = [  # what the modules call, beside what is written in C
    (nn.Module, "_call_impl"), (nn.Sequential, "__iter__"), *((functional, name) for name in _NAMES),
]  # fmt: skip
_MEANT = [getattr(owner, name) for owner, name in _USED]
_GLOBAL_HOOKS = [  # of all modules
    hooks for name, hooks in vars(nn.modules.module).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
]  # fmt: skip
_HOLDING = ("_parameters", "_buffers", "_modules")  # everything else in a module that holds, holds hooks


def _as_usual() -> bool:
    """Whether PyTorch's modules and functions do what they usually do, in this thread."""
    return (
        all(getattr(owner, name) is meant for (owner, name), meant in zip(_USED, _MEANT, strict=True))
        and not any(_GLOBAL_HOOKS)
        and not torch.is_autocast_enabled("cpu")
        and not torch.is_inference_mode_enabled()
        and not torch._C._len_torch_function_stack()
        and not torch._C._len_torch_dispatch_stack()
    )


def _bare(module: nn.Module, names: frozenset[str] = frozenset()) -> bool:
    """Whether a module has the attributes of its class and no others, and neither hooks nor buffers."""
    held = vars(module)
    hooks = (one for name, one in held.items() if isinstance(one, dict | set) and name not in _HOLDING)
    return (
        held.keys() == _OF_MODULES | names
        and not any(hooks)
        and all(one is None for one in module._buffers.values())
    )


def _leaves(model: nn.Module) -> Iterator[nn.Module]:
    """The layers of an nn.Sequential in order, also of those inside of it; anything else is one itself."""
    if type(model) is nn.Sequential and _bare(model) and not model._parameters:
        for child in model._modules.values():
            if child is not None:
                yield from _leaves(child)
    else:
        yield model


def _layer_of(module: nn.Module) -> _Layer | None:
    """What a layer computes; None for one that is not known, or not as it came from PyTorch."""
    kind = type(module)
    if kind is nn.Linear and _bare(module, _OF_LINEAR) and not module._modules:
        weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
        ordered = list(module._parameters) == ["weight", "bias"]
        return Affine(weight, bias) if ordered and weight is not None else None
    if kind in ACTIVATIONS and not module._parameters and not module._modules:
        known = ACTIVATIONS[kind]
        return known.make(module) if _bare(module, known.names) else None
    return None


def _can_be_trained(parameters: list[nn.Parameter]) -> bool:
    """Whether these are plain, of one type that is computed in, and one of them is trained."""
    kinds = {p.dtype for p in parameters}
    known = kinds in ({torch.float32}, {torch.float64})
    return known and any(p.requires_grad for p in parameters) and all(map(_plain, parameters))


def _plain(p: nn.Parameter) -> bool:
    """Whether a parameter is one of PyTorch's own, in memory, without hooks."""
    own = type(p) is nn.Parameter and p.is_cpu and p.layout is torch.strided
    return own and p._backward_hooks is None and not p.is_inference()
