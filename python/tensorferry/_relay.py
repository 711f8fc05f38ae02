"""What both ends of a broadcast are made of: messages, the pieces of a slice, and the links of the chain."""

import asyncio
import bisect
import itertools
import struct
import zlib

from tensorferry import _messages, errors
from tensorferry._tensors import bytes_of, dtype_of

TICK = 0.2  # seconds between reports of receivers, and between looks at them

# Tags of messages: from the trainer, from a receiver, from a parent to its child, and back.
FROM_TRAINER, FROM_RECEIVER, TO_CHILD, TO_PARENT = (
    int.from_bytes(b"bcast\0" + bytes([i, 0]), "big") for i in range(1, 5)
)
_MAX_SLICES = 1 << 20  # the other end chooses their size, and Store keeps a flag of each
_ARRIVED = struct.Struct("<QI")  # the broadcast's number and the slice's index


# What is said: a tensor's shape, type and bytes, by its name; and between a parent and its child.
TENSORS = {...: (_messages.shape, _messages.text, _messages.number)}
_TO_CHILD = {"round": _messages.number, "epoch": _messages.number}
_TO_PARENT = {"keys": [_messages.hexadecimal], "have": _messages.text}


def run(function, *arguments, instead):
    """The result of a coroutine function, in a thread where no event loop runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(function(*arguments))
    raise errors.InvalidArgument(
        f"an event loop runs in this thread, which the call would block; await {instead} in its place, "
        "or make the call in another thread, as by asyncio.to_thread()"
    )


async def say(peer, said, tag, timeout):
    size, text = _messages.encoded(said)
    size = peer.send(size, _messages.SIZE + tag, timeout=timeout)
    await peer.send(text, tag, timeout=timeout)
    await size


def say_now(peer, said, tag, timeout):
    """say() where no event loop runs, or must not; blocks up to `timeout` seconds for each part."""
    size, text = _messages.encoded(said)
    size = peer.send(size, _messages.SIZE + tag, timeout=timeout)
    peer.send(text, tag, timeout=timeout).wait(timeout)
    size.wait(timeout)


async def hear(peer, tag, timeout=None, limit=_messages.SMALL_BYTES):
    size = bytearray(8)
    await peer.recv(size, _messages.SIZE + tag, timeout=timeout)
    text = bytearray(_messages.length(size, peer, limit))
    await peer.recv(text, tag, timeout=timeout)
    return _messages.decoded(text, peer)


def difference(entries, theirs):
    """Why a receiver's tensors cannot take these; "" where they can. Types may differ."""
    for name, entry in theirs.items():
        if name not in entries:
            return f"the peer has '{name}', which is not broadcast"
        if entry[0] != entries[name][0]:
            return f"'{name}' is {entries[name][0]} here, and {entry[0]} at the peer"
    missing = sorted(set(entries) - set(theirs))
    return f"the peer does not have '{missing[0]}'" if missing else ""


def entries_of(tensors):
    """What TENSORS describes."""
    return {name: [list(x.shape), dtype_of(x), x.nbytes] for name, x in tensors.items()}


class Slices:
    """The concatenation of all tensors, cut into slices: which bytes of which tensors each has."""

    def __init__(self, sizes, slice_bytes):
        self.names = [name for name, nbytes in sizes if nbytes > 0]
        self._starts = [0, *itertools.accumulate(nbytes for _, nbytes in sizes if nbytes > 0)]
        self.nbytes = self._starts[-1]
        if self.nbytes > slice_bytes * _MAX_SLICES:
            raise errors.InvalidArgument(
                f"{self.nbytes} bytes in slices of {slice_bytes} are more than {_MAX_SLICES} slices; "
                "give a greater slice_bytes"
            )
        self._slice_bytes = slice_bytes

    def __len__(self):
        return -(-self.nbytes // self._slice_bytes)

    def parts(self, number):
        """Rows of (index of the tensor, offset in it, bytes)."""
        begin = number * self._slice_bytes
        end = min(begin + self._slice_bytes, self.nbytes)
        index, rows = bisect.bisect_right(self._starts, begin) - 1, []
        while begin < end:
            stop = min(end, self._starts[index + 1])
            rows.append((index, begin - self._starts[index], stop - begin))
            begin, index = stop, index + 1
        return rows


def flat_bytes(x, offset, nbytes):
    """A copy, or for host memory a view, of a tensor's bytes."""
    if hasattr(x, "detach"):
        return bytes_of(x.detach())[offset : offset + nbytes].cpu().numpy()
    import numpy

    return x.reshape(-1).view(numpy.uint8)[offset : offset + nbytes]


class Store:
    """A node's copy of one version: its memory, which slices it has, and their digests."""

    def __init__(self, weights, slices, endpoint, complete):
        self.weights, self.slices, self.endpoint = weights, slices, endpoint
        self._rights = "" if complete else "w"
        self.have = [complete] * len(slices)
        self.count = len(slices) if complete else 0
        self._order = list(range(len(slices))) if complete else []  # as they arrived
        self._changed = asyncio.Event()
        self._digests = [0] * len(slices)

    def add(self, number):
        if not self.have[number]:
            self.have[number] = True
            self.count += 1
            self._order.append(number)
            self._changed.set()
            self._changed = asyncio.Event()

    @property
    def complete(self):
        return self.count == len(self.slices)

    async def arrivals(self):
        """Slices in the order in which they arrive, until all have."""
        for position in range(len(self.slices)):
            while position >= len(self._order):
                await self._changed.wait()
            yield self._order[position]

    def region(self, index):
        return self.weights.region(self.endpoint, self.slices.names[index], self._rights)

    def keys_for(self, peer):
        count = len(self.slices.names)
        return [self.region(i).key_for(peer, "w").hex() for i in range(count)]

    async def digest(self):
        """A number that all bytes make; computed in a thread while slices still arrive."""
        loop = asyncio.get_running_loop()
        async for number in self.arrivals():
            self._digests[number] = await loop.run_in_executor(None, self._digest, number)
        return zlib.crc32(struct.pack(f"<{len(self._digests)}I", *self._digests))

    def _digest(self, number):
        value = 0
        for index, offset, nbytes in self.slices.parts(number):
            tensor = self.weights.tensors[self.slices.names[index]]
            value = zlib.crc32(flat_bytes(tensor, offset, nbytes), value)
        return value


class Round:
    """What the nodes of one broadcast agree on."""

    def __init__(self, number, window, timeout):
        self.number, self.window, self.timeout = number, window, timeout


async def feed(store, this_round, epoch, address):
    """Parent's side of a link: writes into the child what it lacks, as it arrives here."""
    child = await store.endpoint.connect_async(bytes.fromhex(address), this_round.timeout)
    writes = set()
    try:
        hello = {"round": this_round.number, "epoch": epoch}
        await say(child, hello, TO_CHILD, this_round.timeout)
        limit = _messages.max_bytes(store.slices.names) + len(store.slices)
        said = await hear(child, TO_PARENT, this_round.timeout, limit)
        _messages.require(said, _TO_PARENT, "a child's answer")
        keys, have = said["keys"], said["have"]
        if len(keys) != len(store.slices.names) or len(have) != len(store.slices):
            raise errors.Corrupt("a child has sent no keys and slices of this broadcast")
        remotes = [child.import_region(bytes.fromhex(key)) for key in keys]
        lacks = [has == "0" for has in have]
        async for number in store.arrivals():
            if not lacks[number]:
                continue
            while len(writes) >= this_round.window:
                writes -= await first(writes)
            parts = [
                (store.region(i), remotes[i], [(offset, offset, nbytes)])
                for i, offset, nbytes in store.slices.parts(number)
            ]
            # Its end may be long in coming where a child is frozen: the trainer replans.
            operation = child.post(
                child.prepare_write(parts),
                notification=_ARRIVED.pack(this_round.number, number),
                checksum=True,
            )
            writes.add(asyncio.ensure_future(_ended(operation)))
        while writes:
            writes -= await first(writes)
        await asyncio.Event().wait()  # the child takes the last notifications; ended by the plan
    finally:
        for write in writes:
            write.cancel()
        # Ends the writes, so that they do not read memory that the next version uses.
        await close(child)
        await asyncio.gather(*writes, return_exceptions=True)


async def _ended(operation):
    return await operation


async def first(tasks):
    """Those that have ended, when one has; raises what one has raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return done


async def within(seconds, coroutine, late):
    """The coroutine's result; cancels it and raises late() if it takes longer.

    wait_for() raises TimeoutError for that, which is also what the coroutine may raise by itself.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise late()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Inlet:
    """Child's side of links: takes parents, of which the one of the newest plan writes."""

    def __init__(self, store, this_round):
        self._store, self._round = store, this_round
        self._link, self._epoch = None, -1
        self._tasks = Tasks()

    async def run(self):
        try:
            while True:
                parent = await self._store.endpoint.accept_async()
                self._tasks.start(self._fed_by(parent))
        finally:
            await self._tasks.end()

    async def _fed_by(self, parent):
        try:
            said = await hear(parent, TO_CHILD, self._round.timeout)
            _messages.require(said, _TO_CHILD, "a parent's first message")
            epoch = said["epoch"]
            if said["round"] != self._round.number or epoch <= self._epoch:
                return
            old, self._link, self._epoch = self._link, asyncio.current_task(), epoch
            if old is not None:  # it may be the same peer's, whose keys are withdrawn at its end
                old.cancel()
                await asyncio.wait([old])
            keys = self._store.keys_for(parent.peer)
            have = "".join("01"[has] for has in self._store.have)
            await say(parent, {"keys": keys, "have": have}, TO_PARENT, self._round.timeout)
            while True:
                data = await parent.take_notification_async()
                number, index = _ARRIVED.unpack(data)
                if number == self._round.number and index < len(self._store.slices):
                    self._store.add(index)
        except (errors.Error, struct.error):
            pass  # the trainer learns of it from the parent, or from the lack of progress
        finally:
            # After this nothing writes any more, however late a parent that was frozen wakes.
            self._store.weights.withdraw(parent)
            await close(parent)


class Tasks:
    """Tasks that end together."""

    def __init__(self):
        self._tasks = set()

    def start(self, coroutine):
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._drop)
        return task

    def _drop(self, task):
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who needs the result awaits it

    async def end(self):
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def close(peer):
    """In a thread, as it may wait."""
    await asyncio.get_running_loop().run_in_executor(None, peer.close)
