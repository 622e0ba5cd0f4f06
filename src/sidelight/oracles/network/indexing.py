"""Rules for operations that take or put numbers by index: see rowwise.py."""

from __future__ import annotations

import torch
from torch import Tensor

from sidelight.oracles.network.provenance import Place
from sidelight.oracles.network.rowwise import Joined, Operation, keeps_apart, one_place

__all__ = ["by_index"]


@keeps_apart("gather scatter scatter_add scatter_reduce gather_backward")
def _gathered(operation: Operation) -> Place:
    """Row by row, but for one dimension."""
    place, dim = operation.common(), operation["dim"] % max(1, operation["self"].dim())
    lengths = {x.shape[place.dim] for x in operation.tensors() if x.dim() == operation["self"].dim()}
    if dim == place.dim or len(lengths) != 1:
        raise Joined
    return place


@keeps_apart("index_add index_copy index_fill")
def _put_along(operation: Operation) -> Place:
    operation.public("index")
    place = operation.common("index")
    if place.dim == operation["dim"] % operation.out.dim():
        raise Joined
    return place


@keeps_apart("index_select")
def _taken_along(operation: Operation) -> Place:
    """Of records by an index that is the same for all, or of a table by an index of theirs."""
    source, index = operation.place(operation["self"]), operation.place(operation["index"])
    dim = operation["dim"] % max(1, operation["self"].dim())
    if source is None and index is not None:
        return Place(dim, index.inner)
    if source is None or index is not None:
        raise Joined
    return source if source.dim != dim else _followed(operation, operation["index"], source, dim)


def _followed(operation: Operation, index: Tensor, source: Place, dim: int) -> Place:
    """Where records are after a constant index along them, if that keeps their order."""
    if not operation.constant(index) or index.dim() != 1:
        raise Joined
    record = index.remainder(operation["self"].shape[source.dim]) // source.inner % operation.records
    for inner in {source.inner, len(index) // operation.records}:
        if inner and len(index) % (inner * operation.records) == 0:
            expected = torch.arange(len(index), device=index.device) // inner % operation.records
            if torch.equal(record, expected):
                return Place(dim, inner)
    raise Joined


class _Indices:
    """Several indices at once, as in x[:, i, j]: where each dimension goes."""

    def __init__(self, operation: Operation) -> None:
        self.operation, self.x = operation, operation["self"]
        self.by: dict[int, Tensor] = {}
        dim = 0
        for index in operation["indices"]:
            if index is None:
                dim += 1
                continue
            parts = self._masks(index) if index.dtype in (torch.bool, torch.uint8) else (index,)
            for part in parts:
                self.by[dim] = part
                dim += 1
        if not self.by:
            raise Joined
        self.shape = torch.broadcast_tensors(*self.by.values())[0].shape  # type: ignore[no-untyped-call]
        dims = sorted(self.by)
        together = dims == list(range(dims[0], dims[0] + len(dims)))
        self.start = dims[0] if together else 0

    def _masks(self, mask: Tensor) -> tuple[Tensor, ...]:
        if self.operation.private(mask) or not self.operation.constant(mask):
            raise Joined
        found = mask.nonzero(as_tuple=True)
        return tuple(found)

    def output(self, dim: int) -> int:
        """Where a dimension that is not indexed goes."""
        before = sum(1 for one in range(dim) if one not in self.by)
        return before if before < self.start else before + len(self.shape)

    def source(self, dim: int) -> int | None:
        """The dimension that goes there; None for those of the indices."""
        return next((d for d in range(self.x.dim()) if d not in self.by and self.output(d) == dim), None)

    def same(self, place: Place, but: int | None = None) -> Place:
        """This place in the output, if what has no records is the same for each there.

        but: the dimension whose index counts the records.
        """
        at = place.dim - self.start - len(self.shape)
        for dim, index in self.by.items():
            if dim != but:
                self.operation.same(index, Place(at + index.dim(), place.inner))
        source = self.source(place.dim)
        if source is not None:
            self.operation.same(self.x, Place(source, place.inner))
        return place

    def in_output(self, index: Tensor) -> Place | None:
        """The place of an index with records, in the output."""
        place = self.operation.place(index) if self.operation.private(index) else None
        if place is None:
            return None
        return Place(self.start + place.dim + len(self.shape) - index.dim(), place.inner)

    def counts(self, dim: int, along: int) -> bool:
        """Whether the index of a dimension is 0, 1, 2, … along this one of the output, whatever happens."""
        index = self.by[dim].expand(self.shape)
        if not self.operation.constant(self.by[dim]) or index.shape[along] != self.x.shape[dim]:
            return False
        line = torch.arange(index.shape[along], device=index.device)
        return torch.equal(index, line.view(-1, *[1] * (index.dim() - 1 - along)).expand_as(index))


@keeps_apart("index _unsafe_index")
def by_index(operation: Operation) -> Place:
    """x[i, j]: an index along records must be 0, 1, 2, …; others belong to their record."""
    indices = _Indices(operation)
    asked = {place for index in indices.by.values() if (place := indices.in_output(index)) is not None}
    place = operation.place(operation["self"])
    if place is None:
        return indices.same(one_place(asked))
    if place.dim not in indices.by:
        return indices.same(one_place((Place(indices.output(place.dim), place.inner), *asked)))
    for along in range(len(indices.shape)):
        if indices.counts(place.dim, along):
            found = one_place((Place(indices.start + along, place.inner), *asked))
            return indices.same(found, place.dim)
    raise Joined


@keeps_apart("index_put _index_put_impl _index_put_impl_ _unsafe_index_put")
def _put_by_index(operation: Operation) -> Place:
    """x[i, j] = values, also the way back from x[i, j]."""
    own, values = operation.place(operation["self"]), operation["values"]
    masks = [i for i in operation["indices"] if i is not None and operation.private(i)]
    if len(operation["indices"]) == 1 and masks and masks[0].dtype == torch.bool and values.numel() == 1:
        place = one_place((own, operation.place(masks[0]), operation.place(values)))
        operation.same(operation["self"], place)
        return place
    indices = _Indices(operation)
    width = len(indices.shape) + operation["self"].dim() - len(indices.by)
    given = operation.place(values)
    found = {at for index in indices.by.values() if (at := indices.in_output(index)) is not None}
    if given is not None:
        found.add(Place(given.dim + width - values.dim(), given.inner))
    if not found and own is not None and own.dim not in indices.by:
        found.add(Place(indices.output(own.dim), own.inner))
    place = one_place(found)
    dim = indices.source(place.dim)
    counted = None
    if dim is None:
        along = place.dim - indices.start
        dim = counted = next((d for d in indices.by if indices.counts(d, along)), None)
    if dim is None:
        raise Joined
    indices.same(place, counted)
    operation.same(values, Place(place.dim + values.dim() - width, place.inner))
    operation.same(operation["self"], Place(dim, place.inner))
    return one_place((own, Place(dim, place.inner)))
