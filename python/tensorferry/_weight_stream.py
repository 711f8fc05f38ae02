"""Streams of named tensors from a trainer to engines, in buckets that a broadcast takes along a chain.

Engines need not know names, shapes and dtypes: each bucket says which parts of which tensors it has.
While one bucket travels, the trainer fills another and each engine loads the one before.
"""

import asyncio
import concurrent.futures
import contextlib
import math
import time
from typing import NamedTuple

import torch

from tensorferry import _messages, _relay, _tensors, errors
from tensorferry._broadcast import Broadcaster
from tensorferry._broadcast_receiver import BroadcastReceiver
from tensorferry._collective import Weights

# The tags of what a trainer says before each bucket and at the end, and of the answer to the end.
_HEADER = int.from_bytes(b"wstream\0", "big")
_ANSWER = int.from_bytes(b"wloaded\0", "big")
_FAREWELL_SECONDS = 2.0  # that a receiver which failed waits for the trainer to hear why
# Where a tensor may begin in a bucket: views of any dtype, and 16-byte loads of kernels.
_ALIGNMENT = 256
_SLOTS = 2  # buckets that each side has memory for
_NUMBER = _messages.number
# A part: name, shape and dtype of its tensor, its place in the tensor and in the bucket, bytes.
_PART = (_messages.text, _messages.shape, _messages.text, _NUMBER, _NUMBER, _NUMBER)
_BUCKET = {"bucket": _NUMBER, "nbytes": _NUMBER, "parts": [_PART]}


class Sent(NamedTuple):
    """How a version was sent."""

    version: int
    nbytes: int
    seconds: float
    left_out: dict  # the error, by the peer's id; these may hold a part of the version


class WeightSender:
    """Sends versions of weights to the WeightReceivers at the other ends of connections.

    peers: connections of one endpoint. bucket_bytes: what travels at once; memory for two buckets is
    kept on the tensors' device until close(). timeout: seconds after which a silent receiver is left
    out. join_timeout: seconds that a receiver may take to load a bucket, and to say after the last
    one that all is loaded. One call at a time.
    """

    def __init__(self, peers, *, bucket_bytes=256 << 20, timeout=30.0, join_timeout=300.0):
        self.peers = list(peers)
        if not self.peers or bucket_bytes < 1:
            raise errors.InvalidArgument(
                f"WeightSender: {len(self.peers)} connections and buckets of {bucket_bytes} bytes; "
                "give at least one of each"
            )
        if len({peer.endpoint.id for peer in self.peers}) > 1:
            raise errors.InvalidArgument(
                "WeightSender: the connections are of several endpoints; give those of one"
            )
        self._bucket_bytes = bucket_bytes
        self._timeouts = {"timeout": timeout, "join_timeout": join_timeout}
        self._buffers = [None] * _SLOTS
        # Registered parts of the buffers, by bytes. By slot, as the thread that sends has one of them
        # while the caller's fills the other.
        self._weights = [{} for _ in range(_SLOTS)]
        self._rates = {}
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "ferry-weights")

    def send(self, pairs, version):
        """Sends (name, tensor) pairs; returns a Sent when every engine that is left has loaded them.

        Receivers that die, freeze or fail are left out, while they load the last bucket, too. If this
        raises (PeerLost where none is left, or what `pairs` raises) every connection is closed, and no
        receiver reports the version, unless it failed after the end was told. No bucket is sent any
        more when this returns or raises.
        """
        run = _Outgoing(self, version)
        try:
            for name, x in pairs:
                for sent in run.add(name, x):
                    sent.result()
            for sent in run.end():
                sent.result()
        except BaseException:
            run.give_up()
            raise
        return run.outcome()

    async def send_async(self, pairs, version):
        """send() to be awaited; pairs may be an asynchronous iterator."""
        run = _Outgoing(self, version)
        try:
            async for name, x in _iterated(pairs):
                for sent in run.add(name, x):
                    await asyncio.wrap_future(sent)
            for sent in run.end():
                await asyncio.wrap_future(sent)
        except BaseException:
            run.give_up()
            raise
        return run.outcome()

    def close(self):
        """Frees the buckets, and closes the connections."""
        for peer in self.peers:
            peer.close()
        self._thread.shutdown()
        for slot in range(_SLOTS):
            self._forget(slot)
        self._buffers = [None] * _SLOTS

    def start(self, function, *arguments):
        """A Future of the coroutine that function(*arguments) makes, which the sending thread runs."""
        return self._thread.submit(lambda: asyncio.run(function(*arguments)))

    def buffer(self, slot, device):
        """The slot's memory, for the caller's thread while no bucket of that slot is being sent."""
        if self._buffers[slot] is None or self._buffers[slot].device != device:
            self._forget(slot)
            self._buffers[slot] = torch.empty(self._bucket_bytes, dtype=torch.uint8, device=device)
        return self._buffers[slot]

    def _forget(self, slot):
        while self._weights[slot]:
            self._weights[slot].popitem()[1].close()

    def _registered(self, slot, nbytes):
        """The first bytes of a slot's buffer: all buckets of a version but one have similar sizes."""
        known = self._weights[slot]
        if nbytes not in known:
            if len(known) >= 4:
                self._forget(slot)
            known[nbytes] = Weights({"bucket": self._buffers[slot][:nbytes]})
        return known[nbytes]

    async def send_bucket(self, slot, header, left_out):
        """Tells the receivers what comes, and sends it; those that fail go into left_out."""
        await self.tell(header, left_out)
        trainer = Broadcaster(self._registered(slot, header["nbytes"]), **self._timeouts)
        trainer.rates = self._rates
        try:
            outcome = await trainer.broadcast_async(self.peers, header["bucket"], timeout=None)
        except errors.Error as error:  # of the type of the first receiver's, where none is left
            raise errors.PeerLost(f"weights: bucket {header['bucket']}: {error}") from error
        await self._drop(outcome.left_out, left_out)

    async def finish(self, said, left_out):
        """Tells that all is sent, and waits until each receiver has said that it has loaded it."""
        await self.tell(said, left_out)
        results = await asyncio.gather(*map(self._answer, self.peers), return_exceptions=True)
        await self._drop_failed(results, left_out)

    async def _answer(self, peer):
        try:
            said = await _relay.hear(peer, _ANSWER, self._timeouts["join_timeout"])
            if "loaded" not in said:
                raise errors.PeerLost(f"the receiver: {said.get('failed')}")
        except errors.Error:
            await _relay.close(peer)  # it waits for that, not for the other receivers
            raise

    async def tell(self, said, left_out):
        timeout = self._timeouts["join_timeout"]
        results = await asyncio.gather(
            *(_relay.say(peer, said, _HEADER, timeout) for peer in self.peers),
            return_exceptions=True,
        )
        await self._drop_failed(results, left_out)

    async def _drop_failed(self, results, left_out):
        failed = {p.peer: e for p, e in zip(self.peers, results) if isinstance(e, BaseException)}
        await self._drop(failed, left_out)

    async def _drop(self, failed, left_out):
        left_out |= failed
        for peer in [peer for peer in self.peers if peer.peer in failed]:
            self.peers.remove(peer)
            await _relay.close(peer)
        if not self.peers:
            name, error = next(iter(left_out.items()))
            raise errors.PeerLost(f"weights: no receiver is left; {name}: {error}")


class _Outgoing:
    """One version at the trainer. add() and end() give futures, to be awaited before they go on."""

    def __init__(self, owner, version):
        if not owner.peers:
            raise errors.PeerLost(
                f"weights: version {version} has no receiver, as all were left out before; connect "
                "them anew, and make another WeightSender"
            )
        self._owner, self._version = owner, version
        self._slot, self._used, self._parts = 0, 0, []
        self._sending, self._left_out = None, {}
        self._device = None  # the first tensor's, for all buckets
        self._buckets = self._tensors = self._nbytes = 0
        self._began = time.monotonic()

    def add(self, name, x):
        if not isinstance(x, torch.Tensor):
            raise errors.InvalidArgument(
                f"'{name}': it is of type {type(x).__name__}; give a torch tensor, as by torch.as_tensor()"
            )
        _tensors.check(name, x, strided=True)
        flat = _tensors.bytes_of(x.detach().contiguous())
        nbytes, at = flat.nbytes, 0
        self._device = self._device or flat.device
        self._tensors += 1
        while True:
            begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
            room = self._owner._bucket_bytes - begin
            # A tensor that fits into a bucket is not cut, so that engines get it without a copy.
            fits = nbytes <= room or (nbytes > self._owner._bucket_bytes and room > 0)
            if self._parts and not fits:
                yield from self._flush()
                continue
            size = min(room, nbytes - at)
            buffer = self._owner.buffer(self._slot, self._device)
            # _flush() waits for work of the buffer's GPU, and for no other device.
            queued = flat.device == buffer.device
            buffer[begin : begin + size].copy_(flat[at : at + size], non_blocking=queued)
            self._parts.append([name, list(x.shape), _relay.dtype_of(x), at, begin, size])
            self._used, at = begin + size, at + size
            if at == nbytes:
                return

    def end(self):
        if self._parts:
            yield from self._flush()
        yield from self._wait()
        said = {"end": self._version, "buckets": self._buckets, "tensors": self._tensors}
        self._sending = self._owner.start(self._owner.finish, said, self._left_out)
        yield from self._wait()

    def _wait(self):
        if self._sending is not None:
            yield self._sending
            self._sending = None  # not before, as give_up() waits for it

    def _flush(self):
        yield from self._wait()
        if self._device.type == "cuda":  # the thread that sends does not wait for this stream
            torch.cuda.current_stream(self._device).synchronize()
        header = {"bucket": self._buckets, "version": self._version, "nbytes": self._used}
        header["parts"] = self._parts
        owner = self._owner
        self._sending = owner.start(owner.send_bucket, self._slot, header, self._left_out)
        self._nbytes += sum(part[-1] for part in self._parts)
        self._buckets += 1
        self._slot, self._used, self._parts = (self._slot + 1) % _SLOTS, 0, []

    def give_up(self):
        """Ends what is in flight; nobody reads the buckets when it returns."""
        for peer in list(self._owner.peers):  # the thread that sends drops some meanwhile
            peer.close()
        if self._sending is not None:
            concurrent.futures.wait([self._sending])

    def outcome(self):
        seconds = time.monotonic() - self._began
        return Sent(self._version, self._nbytes, seconds, self._left_out)


class WeightReceiver:
    """Receives versions of weights from the WeightSender at the other end of a connection.

    device: where buckets are kept, until close(). endpoint: as for BroadcastReceiver. timeout:
    seconds to wait for a bucket. `version` is that of the newest set that was received whole, and
    None while one arrives and after a failure: what was loaded meanwhile is of two versions.
    """

    def __init__(self, trainer, *, device="cpu", endpoint=None, timeout=300.0):
        self.version = None
        self.trainer, self.device = trainer, torch.device(device)
        self._endpoint, self._timeout = endpoint or trainer.endpoint, timeout
        self._buffers = [None] * _SLOTS
        self._receivers = {}  # by (slot, bytes)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "ferry-weights")

    def receive(self, version=None, views=False):
        """Yields (name, tensor), each with memory of its own.

        views: tensors may be views of a bucket instead, each valid until the next one is asked for;
        whether one is a view cannot be seen (under torch.inference_mode() views have no _base).

        It ends when this engine has asked for more after the last tensor, which tells the trainer
        that all are loaded. If it raises, or is left before its end, the connection is closed and the
        trainer leaves this engine out; it may then hold a part of the version, and must not be used
        before a version has arrived whole. version: refuses others.
        """
        run = _Incoming(self, version, views)
        with run.giving_up():
            while (bucket := run.next().result()) is not None:
                yield from run.tensors(bucket)

    async def receive_async(self, version=None, views=False):
        """receive() as an asynchronous iterator."""
        run = _Incoming(self, version, views)
        with run.giving_up():
            while (bucket := await asyncio.wrap_future(run.next())) is not None:
                for pair in run.tensors(bucket):
                    yield pair

    def close(self):
        """Frees the buckets, and closes the connection."""
        self.trainer.close()
        self._thread.shutdown()
        for slot in range(_SLOTS):
            self._forget(slot)
        self._buffers = [None] * _SLOTS

    def _forget(self, slot):
        for place in [place for place in self._receivers if place[0] == slot]:
            self._receivers.pop(place).close()

    def _receiver(self, slot, nbytes):
        buffer = self._buffers[slot]
        if buffer is None or buffer.nbytes < nbytes:
            self._forget(slot)
            buffer = self._buffers[slot] = _empty((nbytes,), torch.uint8, self.device)
        if (slot, nbytes) not in self._receivers:
            if len(self._receivers) >= 8:
                self._forget(slot)
            self._receivers[slot, nbytes] = BroadcastReceiver(
                {"bucket": buffer[:nbytes]}, self.trainer, endpoint=self._endpoint, in_place=True
            )
        return self._receivers[slot, nbytes]

    async def take(self, slot, version):
        """The next bucket's header and memory, or what the trainer says at the end."""
        said = await _relay.hear(self.trainer, _HEADER, self._timeout, _messages.MAX_BYTES)
        sent = said.get("end", said.get("version"))
        if version is not None and sent != version:
            raise errors.InvalidArgument(
                f"weights: the trainer sends version {sent}, and version {version} is expected here"
            )
        if "end" in said:
            return said, None
        _check(said)
        receiver = self._receiver(slot, said["nbytes"])
        await receiver.receive_async(self._timeout)
        return said, receiver.tensors["bucket"]

    async def confirm(self, version):
        """Tells the trainer that all is loaded, and returns None for the end of the stream."""
        await _relay.say(self.trainer, {"loaded": version}, _ANSWER, self._timeout)
        self.version = version

    def start(self, function, *arguments):
        """A Future of the coroutine that function(*arguments) makes, which our thread runs."""
        return self._thread.submit(lambda: asyncio.run(function(*arguments)))


class _Incoming:
    """One version at an engine: the buckets, the one after while one is loaded."""

    def __init__(self, owner, version, views):
        self._owner, self._expected, self._views = owner, version, views
        self._slot, self._buckets, self._tensors = 0, 0, 0
        self._cut = None  # of a tensor that several buckets have: (name, tensor, bytes)
        self._coming = owner.start(owner.take, self._slot, version)
        owner.version = None

    @contextlib.contextmanager
    def giving_up(self):
        """Gives the version up if the block raises or its generator is closed early."""
        try:
            yield
        except errors.Error as error:
            self.give_up(error)
            raise self.failure(error) from error
        except BaseException as error:
            self.give_up(error)
            raise

    def next(self):
        return self._coming

    def tensors(self, bucket):
        """The bucket's tensors; nothing if it is the end, where the version is whole."""
        said, buffer = bucket
        if buffer is None:
            self._finish(said)
            return
        if said["bucket"] != self._buckets:
            raise errors.Corrupt(f"weights: bucket {said['bucket']} came after {self._buckets}")
        self._buckets += 1
        # What the consumer queued reads the other slot, which the next bucket is written into.
        if buffer.is_cuda:
            torch.cuda.synchronize(buffer.device)
        self._slot = (self._slot + 1) % _SLOTS
        self._coming = self._owner.start(self._owner.take, self._slot, self._expected)
        for part in said["parts"]:
            found = self._joined(buffer, *part)
            if found is not None:
                self._tensors += 1
                yield part[0], found

    def _joined(self, buffer, name, shape, dtype, at, begin, size):
        kind = getattr(torch, dtype)
        nbytes, piece = math.prod(shape) * kind.itemsize, buffer[begin : begin + size]
        if size == nbytes:
            # torch cannot clone tensors of some types, such as int4.
            return (piece if self._views else piece.clone()).view(kind).view(shape)
        if at == 0:
            self._cut = (name, _empty(shape, kind, buffer.device), 0)
        if self._cut is None or self._cut[0] != name or self._cut[2] != at:
            raise errors.Corrupt(f"weights: a part of '{name}' from byte {at} does not follow")
        whole = self._cut[1]
        whole.view(-1).view(torch.uint8)[at : at + size].copy_(piece)
        self._cut = (name, whole, at + size) if at + size < nbytes else None
        return whole if self._cut is None else None

    def _finish(self, said):
        if (said.get("buckets"), said.get("tensors")) != (self._buckets, self._tensors):
            raise errors.Corrupt(
                f"weights: {self._tensors} tensors came, and the trainer has sent {said.get('tensors')}"
            )
        if self._owner.device.type == "cuda":  # what the consumer has queued
            torch.cuda.synchronize(self._owner.device)
        self._coming = self._owner.start(self._owner.confirm, said["end"])

    def give_up(self, error):
        """Ends what is in flight; nobody writes into the buckets when it returns.

        Where the trainer waits for our answer it is told why, which takes up to _FAREWELL_SECONDS.
        """
        if self._is_asked():
            stopped = isinstance(error, GeneratorExit)
            why = "its consumer stopped" if stopped else f"{type(error).__name__}: {error}"
            _say_farewell(self._owner.trainer, f"{why} after {self._tensors} tensors")
        self._owner.trainer.close()
        concurrent.futures.wait([self._coming])

    def _is_asked(self):
        """Whether the trainer has told the end, and has no answer."""
        coming = self._coming
        if not coming.done() or coming.cancelled() or coming.exception() is not None:
            return False
        return coming.result() is not None and "end" in coming.result()[0]

    def failure(self, error):
        return type(error)(
            f"weights: the version did not arrive whole after {self._tensors} tensors, so this engine "
            f"may hold parts of two; send one whole before it is used: {error}"
        )


def _empty(shape, dtype, device):
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:
        raise errors.Unavailable(f"weights: no memory for {list(shape)} {dtype}: {error}") from None


def _say_farewell(trainer, why):
    try:
        _relay.say_now(trainer, {"failed": why[:1000]}, _ANSWER, _FAREWELL_SECONDS)
        # It closes the connection when it has heard that: what ours closes may lose what was sent.
        trainer.recv(bytearray(8), _HEADER, timeout=_FAREWELL_SECONDS).wait(_FAREWELL_SECONDS)
    except errors.Error:
        pass  # the trainer learns of it by the connection's end


def _check(said):
    """Raises Corrupt unless all parts lie in their bucket and their tensors."""
    _messages.require(said, _BUCKET, "weights: a bucket's header")
    well = True
    for _, shape, dtype, at, begin, size in said["parts"]:
        kind = _tensors.torch_dtype(dtype)
        if kind is None:
            raise errors.Corrupt(
                f"weights: a bucket has a tensor of dtype {dtype!r}, which cannot be sent; use the same "
                "release on both sides"
            )
        well = well and at + size <= math.prod(shape) * kind.itemsize
        well = well and begin % _ALIGNMENT == 0 and begin + size <= said["nbytes"]
    if not well:
        raise errors.Corrupt("weights: a bucket's header names bytes that it does not have")


async def _iterated(pairs):
    if hasattr(pairs, "__aiter__"):
        async for pair in pairs:
            yield pair
    else:
        for pair in pairs:
            yield pair


def accept_all(endpoint, count, ids=None, timeout=60.0):
    """Connections of `count` receivers, of these ids if they are given; any others are closed."""
    deadline, found = time.monotonic() + timeout, {}
    while len(found) < count:
        try:
            peer = endpoint.accept(max(deadline - time.monotonic(), 0.0))
        except errors.Timeout:
            for peer in found.values():
                peer.close()
            raise errors.Timeout(
                f"weights: {len(found)} of {count} receivers have connected after {timeout} s; see "
                "why the others do not, or give more time"
            ) from None
        if (ids is not None and peer.peer not in ids) or peer.peer in found:
            peer.close()
        else:
            found[peer.peer] = peer
    return list(found.values()) if ids is None else [found[each] for each in ids]
