"""The receivers' side of broadcasts, which _broadcast.py leads."""

import asyncio
import time

from tensorferry import _messages, _relay, _tensors, errors
from tensorferry._collective import Weights

_BEGIN = {
    "round": _messages.number,
    "version": _messages.anything,
    "slice_bytes": _messages.positive,
    "window": _messages.positive,
    "timeout": _messages.seconds,
    "tensors": _relay.TENSORS,
}
_PLAN = {"child": _messages.text, "address": _messages.hexadecimal, "epoch": _messages.number}


class BroadcastReceiver:
    """Receives versions of weights, and forwards them to another receiver meanwhile.

    weights: a dict, as of state_dict(). trainer: the connection to the trainer. endpoint: where
    other receivers connect; the trainer's connection's, if not given. Nobody else may accept() there
    while receive() runs.

    A version arrives in memory of its own, in the sender's types, and is copied over the tensors,
    cast to their types, when all receivers have it. With in_place=True tensors of the sender's type
    are written as bytes arrive: `version` is None from the first one until all are there.
    """

    def __init__(self, weights, trainer, *, endpoint=None, in_place=False):
        self.tensors = dict(weights)
        self.version = None
        self._trainer, self._in_place = trainer, in_place
        self._endpoint = endpoint or trainer.endpoint
        self._weights, self._signature = None, None

    def receive(self, timeout=300.0):
        """The next version, which the tensors are at when this returns.

        Raises InvalidArgument where they do not fit the trainer's; the connection to the trainer stays
        open unless it has begun to send (a type that cannot be cast). Any other error closes it, and the tensors have the version they had (with in_place: none).
        Where an event loop runs, await receive_async().
        """
        return _relay.run(self.receive_async, timeout, instead="BroadcastReceiver.receive_async()")

    async def receive_async(self, timeout=300.0):
        """receive() to be awaited."""
        begin = None
        try:
            begin = await self._exchange_offers(timeout)
            return await _relay.within(
                timeout,
                _ReceiverRun(self, begin).run(),
                lambda: errors.Timeout(f"receive: not done after {timeout} s"),
            )
        except BaseException as error:
            if begin is not None or not isinstance(error, errors.InvalidArgument):
                await _relay.close(self._trainer)
            raise

    def close(self):
        """Nobody uses the tensors any more when it returns."""
        if self._weights is not None:
            self._weights.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    async def _exchange_offers(self, timeout):
        offer = {"address": self._endpoint.address.hex()}
        try:
            for name, x in self.tensors.items():
                _tensors.check(name, x, written=True, strided=not self._in_place)
            if self._weights is not None:
                self._weights.check("w", self._endpoint)
            offer["tensors"] = _relay.entries_of(self.tensors)
        except errors.InvalidArgument as error:
            offer["error"] = f"the peer cannot receive: {error}"
        await _relay.say(self._trainer, offer, _relay.FROM_RECEIVER, timeout)
        limit = _messages.max_bytes(self.tensors)
        said = await _relay.hear(self._trainer, _relay.FROM_TRAINER, timeout, limit)
        if "error" in said:
            raise errors.InvalidArgument(f"receive: {said['error']}")
        _messages.require(said, {"begin": _BEGIN}, "what the trainer begins with")
        if problem := _relay.difference(said["begin"]["tensors"], offer["tensors"]):
            raise errors.Corrupt(f"receive: the trainer begins with other tensors: {problem}")
        return said["begin"]

    def _prepare(self, entries):
        """The memory that a version of these types arrives in, kept as long as they stay."""
        if self._signature == entries:
            return
        self.close()
        self._weights = self._signature = None
        arriving = {}
        for name, (shape, dtype, nbytes) in entries.items():
            x = self.tensors[name]
            direct = self._in_place and _relay.dtype_of(x) == dtype
            arriving[name] = x if direct or nbytes == 0 else _empty_like(name, x, shape, dtype)
            if not direct:
                _try_cast(name, x, arriving[name])
            if arriving[name].nbytes != nbytes:
                raise errors.Corrupt(f"receive: '{name}' of {shape} {dtype} cannot have {nbytes} bytes")
        self._weights, self._signature = Weights(arriving), entries

    def _commit(self):
        devices = set()
        for name, x in self.tensors.items():
            arrived = self._weights.tensors[name]
            if arrived is x:
                continue
            if hasattr(x, "detach"):
                devices.add(x.device)
                _copy(x, arrived)
            else:
                import numpy

                numpy.copyto(x, arrived, casting="unsafe")
        for device in devices:
            if device.type == "cuda":
                import torch

                torch.cuda.synchronize(device)


class _ReceiverRun:
    """One broadcast at a receiver."""

    def __init__(self, owner, begin):
        self._owner, self._version = owner, begin["version"]
        owner._prepare(begin["tensors"])
        owner._weights.prepare(owner._endpoint, "w")
        sizes = [(name, entry[2]) for name, entry in begin["tensors"].items()]
        slices = _relay.Slices(sizes, begin["slice_bytes"])
        self._store = _relay.Store(owner._weights, slices, owner._endpoint, complete=False)
        self._round = _relay.Round(begin["round"], begin["window"], begin["timeout"])
        self._began = time.monotonic()
        self._feed, self._tasks = None, _relay.Tasks()
        self._outbox = asyncio.Queue()

    async def run(self):
        owner, loop = self._owner, asyncio.get_running_loop()
        if owner._in_place:
            owner.version = None
        try:
            self._tasks.start(self._report())
            speaker = self._tasks.start(self._speak())
            inlet = self._tasks.start(_relay.Inlet(self._store, self._round).run())
            end = self._tasks.start(self._tell_of_the_end())
            follow = self._tasks.start(self._follow())
            others = {speaker, inlet, end}
            while not follow.done():
                done = await _relay.first({follow, *others})
                others -= done
            await self._end_feed()
            # From here on a crash of ours leaves tensors of two versions, which nobody sees.
            owner.version = None
            await loop.run_in_executor(None, owner._commit)
            self._outbox.put_nowait({"committed": True})
            await speaker
            owner.version = self._version
            return self._version
        finally:
            await self._end_feed()
            await self._tasks.end()

    async def _speak(self):
        """Sends what is in the outbox. The last message of a broadcast is that it is committed."""
        trainer, said = self._owner._trainer, {}
        while "committed" not in said:
            said = await self._outbox.get()
            await _relay.say(trainer, said, _relay.FROM_RECEIVER, 2 * self._round.timeout)

    async def _follow(self):
        """Does what the trainer says, until it says that all have the version."""
        while True:
            # It sends something four times in this time.
            trainer, timeout = self._owner._trainer, 2 * self._round.timeout
            said = await _relay.hear(trainer, _relay.FROM_TRAINER, timeout)
            if "commit" in said:
                return
            if plan := said.get("plan"):
                await self._end_feed()
                if not isinstance(plan, dict) or plan.get("child") is not None:
                    _messages.require(plan, _PLAN, "the trainer's plan")
                    self._feed = self._tasks.start(self._feed_child(plan))

    async def _feed_child(self, plan):
        try:
            await _relay.feed(self._store, self._round, plan["epoch"], plan["address"])
        except errors.Error:
            self._outbox.put_nowait({"failed": plan["child"], "epoch": plan["epoch"]})

    async def _end_feed(self):
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.cancel()
            await asyncio.gather(feed, return_exceptions=True)

    async def _report(self):
        while True:
            if self._outbox.empty():
                self._outbox.put_nowait({"have": self._store.count})
            await asyncio.sleep(_relay.TICK)

    async def _tell_of_the_end(self):
        digest = self._tasks.start(self._store.digest())
        async for _ in self._store.arrivals():
            pass
        seconds = time.monotonic() - self._began
        self._outbox.put_nowait({"complete": await digest, "at": seconds})


def _copy(x, arrived):
    import torch

    # Tensors that were made in it can be written only there, and a thread of ours commits.
    with torch.inference_mode():
        x.detach().copy_(arrived)


def _try_cast(name, x, arriving):
    """Refuses now what the commit cannot do, which would leave tensors of two versions."""
    try:
        if hasattr(x, "detach"):
            x.new_empty(1).copy_(arriving.new_zeros(1))
        else:
            import numpy

            numpy.copyto(numpy.empty(1, x.dtype), numpy.zeros(1, arriving.dtype), casting="unsafe")
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise errors.InvalidArgument(
            f"'{name}' is {arriving.dtype} at the trainer, which cannot be cast to {x.dtype}: {error}"
        ) from None


def _empty_like(name, x, shape, dtype):
    """Memory of the sender's type where x has its own."""
    if hasattr(x, "detach"):
        import torch

        torch_dtype = _tensors.torch_dtype(dtype)
        if torch_dtype is None:
            raise errors.InvalidArgument(
                f"'{name}' is {dtype} at the trainer, which this torch cannot receive; send another type"
            )
        return torch.empty(shape, dtype=torch_dtype, device=x.device)
    import numpy

    if dtype == _tensors.dtype_of(x):  # also a structure, which numpy.dtype() cannot make from its name
        return numpy.empty(shape, x.dtype)
    try:
        return numpy.empty(shape, numpy.dtype(dtype))
    except TypeError:
        raise errors.InvalidArgument(
            f"'{name}' is {dtype} at the trainer, which NumPy does not have; receive in torch tensors"
        ) from None
