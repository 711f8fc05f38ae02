"""Pairs the shards that processes have with those that others need, as block lists."""

import itertools
import math
from typing import NamedTuple

from tensorferry import errors


class Shard(NamedTuple):
    """The part of a tensor that a process has: a box, of `length` elements from `offset`, per dim.

    Its elements are in C order in the process's memory, without those of other shards.
    """

    name: str
    shape: tuple
    offset: tuple
    length: tuple
    itemsize: int

    @property
    def nbytes(self):
        return math.prod(self.length) * self.itemsize


def shard(name, shape, itemsize, dim=None, part=(0, 1)):
    """Shard `part` = (index, count) of a tensor that is cut along dim; all of it without dim.

    Cut as torch.chunk() and DTensor do: each has ceil(size / count) rows, the last ones fewer.
    """
    offset, length = [0] * len(shape), list(shape)
    if dim is not None:
        index, count = part
        if not (-len(shape) <= dim < len(shape) and 0 <= index < count):
            raise errors.InvalidArgument(
                f"shard: '{name}' of {len(shape)} dims has no part {index} of {count} along {dim}"
            )
        rows = -(-shape[dim] // count)
        offset[dim] = min(index * rows, shape[dim])
        length[dim] = min(rows, shape[dim] - offset[dim])
    return Shard(name, tuple(shape), tuple(offset), tuple(length), itemsize)


def shards_of(state_dict):
    """The shards that this process has, by name; a DTensor's from its mesh and placements."""
    return {name: _shard_of(name, x) for name, x in state_dict.items()}


def _shard_of(name, x):
    if not hasattr(x, "placements"):
        itemsize = x.element_size() if hasattr(x, "element_size") else x.itemsize
        return shard(name, tuple(x.shape), itemsize)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(placement.is_partial() for placement in x.placements):
        raise errors.InvalidArgument(
            f"'{name}' is a sum that is not reduced yet; redistribute() it first"
        )
    length, offset = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    return Shard(name, tuple(x.shape), tuple(offset), tuple(length), x.element_size())


def local_tensors(state_dict):
    """The tensors with what this process has of each: those that shards_of() describes."""
    return {name: x.to_local() if hasattr(x, "to_local") else x for name, x in state_dict.items()}


def full_tensors(state_dict):
    """The tensors whole. Collective where there are DTensors: all ranks of their meshes call it."""
    return {
        name: x.full_tensor() if hasattr(x, "full_tensor") else x for name, x in state_dict.items()
    }


def blocks(source, target):
    """Rows of (source's offset, target's offset, bytes), for write(): what both shards have."""
    if (source.name, source.shape, source.itemsize) != (target.name, target.shape, target.itemsize):
        raise errors.InvalidArgument(
            f"'{source.name}' of {list(source.shape)}, {source.itemsize} bytes each, and "
            f"'{target.name}' of {list(target.shape)}, {target.itemsize} bytes each, are not "
            "shards of one tensor"
        )
    begin, size = _overlap(source, target)
    if math.prod(size) == 0:
        return []
    # Dims from `inner` on are contiguous on both sides, so one row spans them, and a part of one more.
    inner = len(size)
    while inner > 0 and size[inner - 1] == source.length[inner - 1] == target.length[inner - 1]:
        inner -= 1
    inner = max(inner - 1, 0)
    row = math.prod(size[inner:]) * source.itemsize
    outer = itertools.product(*(range(b, b + n) for b, n in zip(begin[:inner], size[:inner])))
    places = (tuple(index) + tuple(begin[inner:]) for index in outer)
    return [(_place(source, at), _place(target, at), row) for at in places]


def _overlap(a, b):
    begin = [max(x, y) for x, y in zip(a.offset, b.offset)]
    ends = zip(a.offset, a.length, b.offset, b.length)
    size = [max(min(x + n, y + m) - at, 0) for (x, n, y, m), at in zip(ends, begin)]
    return begin, size


def _place(box, at):
    """The byte in the box's memory of the element at these global indices."""
    place = 0
    for index, offset, length in zip(at, box.offset, box.length):
        place = place * length + index - offset
    return place * box.itemsize


def reshard(sources, targets):
    """What each source writes to each target: rows of (source, target, name, blocks).

    sources, targets: for each process a dict of shards by name, as of shards_of() or shard().
    source and target in the rows are indices into them. Of sources that have the same shard, each
    target is served by one, and different targets by different ones. Raises InvalidArgument where
    the sources do not have all of what a target needs, or have some of it twice in unequal shards.
    """
    rows = []
    for number, target in enumerate(targets):
        for name, need in target.items():
            rows += [(source, number, name, pairs) for source, pairs in _served(sources, need, number)]
    return rows


def _served(sources, need, number):
    replicas = {}
    for index, source in enumerate(sources):
        have = source.get(need.name)
        if have is not None:
            replicas.setdefault((have.offset, have.length), []).append((index, have))
    chosen = [alike[number % len(alike)] for alike in replicas.values()]
    served = [(index, have, blocks(have, need)) for index, have in chosen]
    served = [each for each in served if each[2]]
    for (_, a, _), (_, b, _) in itertools.combinations(served, 2):
        if math.prod(_overlap(a, b)[1]) > 0:
            raise errors.InvalidArgument(
                f"reshard: two sources have unequal shards of '{need.name}' that overlap"
            )
    got = sum(nbytes for _, _, pairs in served for _, _, nbytes in pairs)
    if got != need.nbytes:
        raise errors.InvalidArgument(
            f"reshard: the sources have {got} of the {need.nbytes} bytes of '{need.name}' that "
            f"target {number} needs"
        )
    return [(index, pairs) for index, _, pairs in served]
