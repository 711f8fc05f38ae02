"""Small inputs of a step, written by the host and brought to a GPU by one copy.

    staging = Staging({"ids": (torch.int64, (64,)), "rows": (torch.int32, (64, 16))}, "cuda")
    slot = staging.begin()             # pinned memory that no copy reads any more
    slot.arrays["ids"][:count] = ids   # NumPy
    staging.send(slot)                 # one copy into staging.tensors, on torch's current stream

DecodeInputs is that for a step of decoding over paged caches, by one native call. A CUDA graph
captured over its tensors finds each step's inputs in them. `python -m tensorferry.staging` measures
the host's time.
"""

import argparse
import collections
import functools
import math
import statistics
import time

from tensorferry import _core, errors

try:
    import numpy  # noqa: F401 (of torch.Tensor.numpy())
    import torch
except ImportError as missing:
    raise errors.Unsupported(
        f"tensorferry.staging needs {missing.name}; install it: "
        f"python -m pip install {missing.name}"
    ) from missing

__all__ = ["Batch", "DecodeInputs", "Slot", "Staging", "measure"]

# Where each field begins: what kernels ask of tensors, and more.
_ALIGNMENT = 64
_SECONDS = 60.0


class Slot:
    """One place of the ring: arrays by name, and all its bytes; pinned where there is a GPU."""

    def __init__(self, memory, layout, event):
        self.memory = memory
        self.arrays = {
            name: part.numpy() for name, part in _parts(memory, layout).items()
        }
        self.bytes = memory.numpy()
        self.event = event  # None: copies end before they return
        self.copies = {}  # by their bytes: (into, from), whose making costs more than a copy


def _parts(memory, layout):
    return {
        name: memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
        for name, (start, dtype, shape) in layout.items()
    }


class Staging:
    """Fields, {name: (dtype, shape)}, in one piece of memory on the device and in a ring of slots.

    tensors: the fields on the device, always the same memory. slots: the ring. A slot is given out
    again when its copy has ended. One thread at a time.
    """

    def __init__(self, fields, device, slots=4):
        if slots < 1:
            raise errors.InvalidArgument(f"Staging: slots is {slots}; give 1 or more")
        layout, nbytes = {}, 0
        for name, (dtype, shape) in fields.items():
            layout[name] = (nbytes, dtype, tuple(shape))
            nbytes += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        device = torch.device(device)
        gpu = device.type == "cuda"
        # An inference tensor could not be written outside of inference_mode().
        with torch.inference_mode(False):
            self._memory = torch.zeros(nbytes, dtype=torch.uint8, device=device)
            self.slots = [
                Slot(
                    torch.zeros(nbytes, dtype=torch.uint8, device="cpu", pin_memory=gpu),
                    layout,
                    torch.cuda.Event() if gpu else None,
                )
                for _ in range(slots)
            ]
            self.tensors = _parts(self._memory, layout)
        self.starts = {name: start for name, (start, _, _) in layout.items()}
        self.nbytes = nbytes
        self._turn = 0
        _await_stream(device)

    def begin(self):
        """The next slot, once its last copy has ended; its arrays hold what was last written."""
        slot = self.slots[self._turn]
        self._turn = (self._turn + 1) % len(self.slots)
        if slot.event is not None and not slot.event.query():
            _wait(slot.event)
        return slot

    def send(self, slot, nbytes=None):
        """Copies the slot's first bytes (or all) into `tensors`, on torch's current stream."""
        nbytes = self.nbytes if nbytes is None else nbytes
        copy = slot.copies.get(nbytes)
        if copy is None:
            copy = slot.copies[nbytes] = (self._memory[:nbytes], slot.memory[:nbytes])
        copy[0].copy_(copy[1], non_blocking=True)
        if slot.event is not None:
            # On the memory's device, which need not be the current one.
            slot.event.record(torch.cuda.current_stream(self._memory.device))


def _await_stream(device):
    """Until what a constructor has queued has ended: the first copy may be on another stream."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _wait(event):
    deadline = time.monotonic() + _SECONDS
    while not event.query():
        if time.monotonic() > deadline:
            raise errors.Timeout(
                f"Staging: a copy to the GPU has not ended in {_SECONDS:.0f} s; what is queued "
                "before it on its stream does not end"
            )


Batch = collections.namedtuple(
    "Batch", "input_ids positions slot_mapping context_lens temperatures block_tables"
)


class DecodeInputs:
    """What a step of decoding takes: for each sequence its last token and that token's place.

    tensors: the whole buffers, for up to max_batch sequences, for a CUDA graph to be captured over:
    input_ids and positions int64, slot_mapping and context_lens int32, temperatures float32
    [max_batch]; block_tables int32 [max_batch, max_blocks].
    """

    def __init__(self, max_batch, max_blocks, block_size, device, slots=4):
        if min(max_batch, max_blocks, block_size) < 1 or block_size >= 1 << 31:
            raise errors.InvalidArgument(
                f"DecodeInputs: max_batch is {max_batch}, max_blocks {max_blocks}, block_size "
                f"{block_size}; give 1 or more of each, and less than 2^31 of the last"
            )
        one = (max_batch,)
        self._staging = Staging(
            {
                "input_ids": (torch.int64, one),
                "positions": (torch.int64, one),
                "slot_mapping": (torch.int32, one),
                "context_lens": (torch.int32, one),
                "temperatures": (torch.float32, one),
                # Last, so that a copy of the rows in use is one piece with all before.
                "block_tables": (torch.int32, (max_batch, max_blocks)),
            },
            device,
            slots,
        )
        self.tensors = self._staging.tensors
        with torch.inference_mode(False):  # a graph may run over them before the first step
            self.tensors["slot_mapping"].fill_(-1)
        _await_stream(self._staging._memory.device)
        self.max_batch, self.max_blocks, self.block_size = max_batch, max_blocks, block_size
        self._batches = {}  # by their sequences
        memory = self._staging._memory
        self._stream = _raw_stream(memory.device)
        self._decode, self._copies = self._native(memory)

    def _native(self, memory):
        """(_core.staging.Decode, whether it copies, too)"""
        staging = self._staging
        slots = [slot.memory.data_ptr() for slot in staging.slots]
        starts = tuple(staging.starts.values())
        shape = (self.max_batch, self.max_blocks, self.block_size)
        # A reference to the memory's owners only: what refers to Decode would keep both for good.
        keep = (memory, [slot.memory for slot in staging.slots])
        gpu = memory.device.type == "cuda"
        if not gpu and memory.device.type != "cpu":  # torch's alone
            return _core.staging.Decode((0, slots), starts, shape, -1, keep), False
        try:
            index = memory.device.index if gpu else -1
            native = _core.staging.Decode((memory.data_ptr(), slots), starts, shape, index, keep)
        except errors.Unsupported:  # built without CUDA: torch copies what it writes
            return _core.staging.Decode((0, slots), starts, shape, -1, keep), False
        return native, True

    def stage(self, tokens, lengths, tables, temperatures=None, padded_to=0):
        """Brings a step's inputs to the device, on torch's current stream: a Batch of views.

        Lists, of each sequence: its last token, its length with that token, its list of blocks.
        All rows behind them get slot -1 and length 0, so that a graph captured over more sequences
        stores nothing for them; padded_to, that graph's number of them, is only checked. One thread
        at a time.
        """
        if self._copies:
            count = self._decode.stage(
                self._stream(), tokens, lengths, tables, temperatures, padded_to
            )
        else:
            count = self._by_torch(tokens, lengths, tables, temperatures, padded_to)
        return self._batches.get(count) or self._batch(count)

    def _by_torch(self, *step):
        slot = self._staging.slots[self._decode.turn]
        if slot.event is not None and not slot.event.query():
            _wait(slot.event)
        count = self._decode.stage(0, *step)
        self._staging.send(
            slot, self._staging.starts["block_tables"] + count * self.max_blocks * 4
        )
        return count

    def _batch(self, count):
        with torch.inference_mode(False):
            batch = Batch(*(self.tensors[name][:count] for name in Batch._fields))
        self._batches[count] = batch
        return batch


def _raw_stream(device):
    """A function that says torch's current stream of the device, as a number."""
    if device.type != "cuda":
        return lambda: 0
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is None:
        return lambda: torch.cuda.current_stream(device).cuda_stream
    # Without the object for the stream, whose making costs microseconds.
    return functools.partial(raw, device.index)


def _separately(sequences, temperatures, size, device):
    """The same by a tensor and a copy each, as engines do that do not stage."""
    tokens, lengths, tables = sequences
    pinned = device.type == "cuda"

    def moved(values, dtype):
        host = torch.tensor(values, dtype=dtype, device="cpu", pin_memory=pinned)
        return host.to(device, non_blocking=True)

    widest = max(map(len, tables))
    return (
        moved(tokens, torch.int64),
        moved([length - 1 for length in lengths], torch.int64),
        moved([t[(n - 1) // size] * size + (n - 1) % size for t, n in zip(tables, lengths)],
              torch.int32),
        moved(lengths, torch.int32),
        moved([table + [-1] * (widest - len(table)) for table in tables], torch.int32),
        moved(temperatures, torch.float32),
    )


def measure(batch, device, steps=500, block_size=256, max_blocks=17):
    """(staged, separately): the host's microseconds per step, medians, of sequences that grow.

    With temperatures, and padded as for a CUDA graph: of 1, 2, 4, 8 or a multiple of 16 sequences.
    """
    device = torch.device(device)
    graph = 1 << (batch - 1).bit_length() if batch <= 8 else -(-batch // 16) * 16
    inputs = DecodeInputs(graph, max_blocks, block_size, device)
    tables = [[row] for row in range(batch)]
    tokens, lengths = list(range(batch)), [1 + row for row in range(batch)]
    temperatures, padded_to = [0.6] * batch, inputs.max_batch
    ways = (
        lambda: inputs.stage(tokens, lengths, tables, temperatures, padded_to),
        lambda: _separately((tokens, lengths, tables), temperatures, block_size, device),
    )
    seconds = ([], [])
    for step in range(steps):
        for row in range(batch):
            lengths[row] = lengths[row] % (block_size * max_blocks) + 1
            if lengths[row] == 1:
                del tables[row][1:]
            elif lengths[row] > len(tables[row]) * block_size:
                tables[row].append(step)
        for way, taken in zip(ways, seconds):
            start = time.perf_counter()
            way()
            taken.append(time.perf_counter() - start)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
    return tuple(statistics.median(taken) * 1e6 for taken in seconds)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tensorferry.staging", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batches", default="1,2,4,8,16,32")
    options = parser.parse_args(arguments)
    print(f"host time per step on {options.device}, us (median of {options.steps})")
    print("batch  staged  a tensor and a copy each")
    for batch in map(int, options.batches.split(",")):
        staged, separately = measure(batch, options.device, options.steps)
        print(f"{batch:5}  {staged:6.1f}  {separately:6.1f}")


if __name__ == "__main__":
    main()
