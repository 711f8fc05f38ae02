"""Weights from one trainer to many engines, along a chain in which each receiver forwards slices."""

import asyncio
import collections
import secrets
import time
from typing import NamedTuple

from tensorferry import _messages, _relay, errors
from tensorferry._collective import Weights

_WINDOW = 4  # slices in flight on a link
_RATE_SECONDS = 1.0  # that a rate is measured over
_SLOW = 0.65  # of the best rate; below it a receiver that holds up others goes to the end
_SILENT_SECONDS = 1.0  # after which a receiver does not stay in front of others
_MAX_FAILED_LINKS = 2

_OFFER = {"address": _messages.hexadecimal, "tensors": _relay.TENSORS}
# What a receiver reports, by the field that tells which report it is.
_REPORTS = {
    "have": {"have": _messages.number},
    "complete": {"complete": _messages.number, "at": _messages.seconds},
    "failed": {"failed": _messages.text, "epoch": _messages.number},
}


class Outcome(NamedTuple):
    """How a broadcast went."""

    version: int
    seconds: float  # until all receivers that are left have the version
    done: dict  # seconds until all bytes were there, by the peer's id
    left_out: dict  # the error, by the peer's id; these keep the version they had
    order: list  # ids of peers along the chain at the end


class _Node:
    """What the trainer knows of a receiver."""

    def __init__(self, peer):
        self.peer, self.id, self.address = peer, peer.peer, ""
        self.count, self.digest, self.committed = 0, None, False
        self.heard = self.advanced = time.monotonic()
        self.history = collections.deque()  # (time, slices)
        self.moved, self.failed_links = False, 0
        self.slow_children = 0
        self.behind_since = None  # its present parent has had much more than it since then
        self.seconds = None
        self.outbox, self.speaker = asyncio.Queue(), None

    def report(self, count):
        now = time.monotonic()
        if count > self.count or not self.history:
            self.advanced = now
        self.count = count
        self.history.append((now, count))
        while now - self.history[0][0] > 2 * _RATE_SECONDS:
            self.history.popleft()

    def rate(self):
        """Slices per second lately, or None."""
        now = time.monotonic()
        recent = [each for each in self.history if now - each[0] <= _RATE_SECONDS + _relay.TICK]
        if not recent or recent[-1][0] - recent[0][0] < 0.7 * _RATE_SECONDS:
            return None
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])


class Broadcaster:
    """Sends versions of weights to receivers, each of which forwards them to the next.

    weights: as for push_weights(); the tensors must stay where they are, and unchanged while
    broadcast() runs. slice_bytes: what is forwarded at once. timeout: seconds after which a
    receiver that says nothing, or gets nothing though its parent could send, is left out.
    join_timeout: seconds that it may take to call receive(). progress: called in broadcast()'s
    thread with a dict of the part (0 to 1) that each peer has, a few times a second.
    """

    def __init__(
        self, weights, *, slice_bytes=4 << 20, timeout=10.0, join_timeout=60.0, progress=None
    ):
        if slice_bytes < 1:
            raise errors.InvalidArgument(f"Broadcaster: slice_bytes is {slice_bytes}; give 1 or more")
        self._weights = weights if isinstance(weights, Weights) else Weights(weights)
        self._slice_bytes, self._timeout = slice_bytes, timeout
        self._join_timeout, self._progress = join_timeout, progress
        self.rates = {}  # bytes per second by the peer's id, as last measured

    def broadcast(self, receivers, version, timeout=300.0):
        """Returns an Outcome when all receivers that can have the version.

        receivers: connections, all of one endpoint; at the other end of each
        BroadcastReceiver.receive() runs, or begins within `join_timeout`. Receivers that die, freeze,
        or whose tensors do not fit are left out. Where this raises (Timeout after `timeout` seconds,
        PeerLost where none is left) connections are closed and no receiver has the version, unless it
        failed during the commit. It raises InvalidArgument before anything is sent, and receivers wait
        on, without receivers, for a tensor that cannot be sent, and in a thread whose event loop runs.
        """
        return _relay.run(
            self.broadcast_async, receivers, version, timeout, instead="Broadcaster.broadcast_async()"
        )

    async def broadcast_async(self, receivers, version, timeout=300.0):
        """broadcast() to be awaited."""
        receivers = list(receivers)
        if not receivers or len({peer.endpoint.id for peer in receivers}) > 1:
            raise errors.InvalidArgument("broadcast: give connections of one endpoint, at least one")
        self._weights.prepare(receivers[0].endpoint, "")
        run = _Run(self, receivers, version)
        try:
            return await _relay.within(
                timeout,
                run.run(),
                lambda: errors.Timeout(f"broadcast: not done after {timeout} s; {run.state()}"),
            )
        finally:
            await run.close()

    def close(self):
        self._weights.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Run:
    """One broadcast at the trainer."""

    def __init__(self, owner, receivers, version):
        self._owner, self._version = owner, version
        self._nodes = {peer.peer: _Node(peer) for peer in receivers}  # that are not left out
        self._left_out = {}
        self._entries = _relay.entries_of(owner._weights.tensors)
        sizes = [(name, entry[2]) for name, entry in self._entries.items()]
        slices = _relay.Slices(sizes, owner._slice_bytes)
        self._store = _relay.Store(owner._weights, slices, receivers[0].endpoint, complete=True)
        self._round = _relay.Round(secrets.randbits(62), _WINDOW, owner._timeout)
        self._order, self._links, self._epoch = [], {}, 0  # links: parent -> (child, epoch)
        self._feed, self._best = None, 0.0  # slices per second
        self._events, self._tasks = asyncio.Queue(), _relay.Tasks()
        self._began, self._ended = time.monotonic(), False

    def state(self):
        return ", ".join(f"{n.id} has {n.count}/{len(self._store.slices)}" for n in self._order)

    async def run(self):
        # All offers first: from its beginning on a receiver expects to hear from us now and then.
        for step in (self._take_offer, self._begin):
            await asyncio.gather(*(step(node) for node in list(self._nodes.values())))
            self._check_left()
        self._began = time.monotonic()
        for node in self._nodes.values():
            self._tasks.start(self._listen(node))
            node.speaker = self._tasks.start(self._speak(node))
            node.heard = node.advanced = self._began
        # Unknown rates count as good: a receiver that is slow is found out and moved.
        known = self._owner.rates
        order = sorted(self._nodes.values(), key=lambda n: -known.get(n.id, float("inf")))
        self._plan(order)
        digest = self._tasks.start(self._store.digest())
        await self._until(lambda n: n.digest is not None)
        expected = await digest
        for node in [n for n in self._order if n.digest != expected]:
            await self._leave_out(node, errors.Corrupt("the bytes received are not those sent"))
        self._check_left()
        await self._end_feed()
        for node in self._order:
            node.outbox.put_nowait({"commit": True})
        await self._until(lambda n: n.committed)
        # A message that is cancelled half-way would be taken for a part of the next broadcast's.
        await asyncio.gather(*(node.speaker for node in self._order))
        self._ended = True
        return Outcome(
            self._version,
            time.monotonic() - self._began,
            {n.id: n.seconds for n in self._order},
            self._left_out,
            [n.id for n in self._order],
        )

    async def close(self):
        await self._end_feed()
        await self._tasks.end()
        if not self._ended:
            for node in self._nodes.values():
                await _relay.close(node.peer)

    def _check_left(self):
        if not self._nodes:
            first = next(iter(self._left_out.values()))
            kind = type(first) if isinstance(first, errors.Error) else errors.PeerLost
            raise kind(f"broadcast: no receiver is left; the first: {first}")

    async def _take_offer(self, node):
        try:
            timeout = self._owner._join_timeout
            limit = _messages.max_bytes(self._entries)
            said = await _relay.hear(node.peer, _relay.FROM_RECEIVER, timeout, limit)
            if "error" in said:
                problem = said["error"] or "the peer cannot receive"
            else:
                _messages.require(said, _OFFER, "a receiver's offer")
                node.address = said["address"]
                problem = _relay.difference(self._entries, said["tensors"])
            if problem:
                await self._leave_out(node, errors.InvalidArgument(f"broadcast: {problem}"), True)
        except errors.Error as error:
            await self._leave_out(node, error)

    async def _begin(self, node):
        begin = {
            "round": self._round.number,
            "version": self._version,
            "slice_bytes": self._owner._slice_bytes,
            "window": self._round.window,
            "timeout": self._round.timeout,
            "tensors": self._entries,
        }
        try:
            await _relay.say(node.peer, {"begin": begin}, _relay.FROM_TRAINER, self._round.timeout)
        except errors.Error as error:
            await self._leave_out(node, error)

    async def _listen(self, node):
        said = {}
        try:
            # What follows that is the next broadcast's.
            while "committed" not in said:
                said = await _relay.hear(node.peer, _relay.FROM_RECEIVER)
                self._events.put_nowait((node, said))
        except errors.Error as error:
            self._events.put_nowait((node, error))

    async def _speak(self, node):
        """Sends what is in the outbox, and something now and then, by which we are known to live."""
        said = {}
        try:
            while "commit" not in said:
                try:
                    said = await asyncio.wait_for(node.outbox.get(), self._round.timeout / 4)
                except asyncio.TimeoutError:
                    said = {"ping": True}
                await _relay.say(node.peer, said, _relay.FROM_TRAINER, None)
        except errors.Error as error:
            self._events.put_nowait((node, error))

    async def _until(self, reached):
        while self._nodes and not all(map(reached, self._nodes.values())):
            try:
                node, said = await asyncio.wait_for(self._events.get(), _relay.TICK)
            except asyncio.TimeoutError:
                node = None
            if node is None:
                await self._look()
            elif node is self:
                self._link_failed(*said)
            elif node.id in self._nodes:
                await self._take(node, said)
                await self._look()
        self._check_left()

    async def _take(self, node, said):
        try:
            if isinstance(said, errors.Error):
                raise said
            for form in (_REPORTS[field] for field in _REPORTS if field in said):
                _messages.require(said, form, "a receiver's report")
        except errors.Error as error:
            await self._leave_out(node, error)
            return
        node.heard = time.monotonic()
        if "have" in said:
            node.report(said["have"])
        elif "complete" in said:
            node.report(len(self._store.slices))
            node.digest = said["complete"]
            node.seconds = said["at"]
        elif "failed" in said:
            self._link_failed(node.id, said["failed"], said["epoch"])
        elif "committed" in said:
            node.committed = True
        elif "error" in said:
            await self._leave_out(node, errors.PeerLost(f"the receiver: {said['error']}"))

    async def _look(self):
        """Leaves out who is silent or stuck, and moves to the end who holds up others."""
        now, timeout = time.monotonic(), self._round.timeout
        total = len(self._store.slices)
        rates = {node.id: node.rate() for node in self._order}
        self._best = max([self._best, *(rate for rate in rates.values() if rate)])
        parent_count = total
        for node, child in zip(list(self._order), [*self._order[1:], None]):
            behind, parent_count = parent_count - node.count, node.count
            if behind == 0:
                node.advanced = now
            if behind <= self._round.window + 2:
                node.behind_since = None
            elif node.behind_since is None:
                node.behind_since = now
            if now - node.heard > timeout:
                await self._leave_out(node, errors.Timeout(f"said nothing for {timeout} s"))
                return
            if now - node.advanced > timeout:
                self._link_failed(None, node.id, None)
                return
            if child is None or child.count == total or node.moved:
                continue
            # A rate counts if the parent could have sent more all the time: those behind a slow
            # receiver are not slow.
            rate, since = rates[node.id], node.behind_since
            slow = rate is not None and rate < _SLOW * self._best
            slow = slow and since is not None and now - since > _RATE_SECONDS + _relay.TICK
            if slow or now - node.heard > _SILENT_SECONDS:
                self._move(self._to_blame(node) if slow else node)
                return
        if self._owner._progress is not None:
            self._owner._progress({n.id: n.count / max(total, 1) for n in self._order})
        for node in self._order:
            if rates[node.id] and node.count < total:
                self._owner.rates[node.id] = rates[node.id] * self._owner._slice_bytes

    def _to_blame(self, slow):
        """A receiver whose link is slow one way makes others look slow: its second child is not."""
        position = self._order.index(slow)
        parent = self._order[position - 1] if position > 0 else None
        if parent is None or parent.moved:
            return slow
        parent.slow_children += 1
        return parent if parent.slow_children > 1 else slow

    def _move(self, node):
        """To the end of the chain, once in a broadcast."""
        node.moved = True
        self._plan([n for n in self._order if n is not node] + [node])

    def _link_failed(self, parent, child, epoch):
        """The link to a child ended, or brings nothing: the child gets another, or is left out."""
        if parent is not None and self._links.get(parent) != (child, epoch):
            return  # of an earlier plan
        node = self._nodes.get(child)
        if node is None:
            return
        node.failed_links += 1
        if node.failed_links > _MAX_FAILED_LINKS:
            error = errors.Timeout("got nothing from any of the peers that tried")
            self._events.put_nowait((node, error))
            return
        node.advanced = time.monotonic()
        for each, (linked, _) in list(self._links.items()):
            if linked == child:
                del self._links[each]
        self._plan([n for n in self._order if n is not node] + [node])

    def _plan(self, order):
        """Tells the nodes whose child changes."""
        self._order = order
        for node in order:
            node.behind_since = None
        pairs = dict(zip(["", *(n.id for n in order)], [*(n.id for n in order), None]))
        for parent, child in pairs.items():
            linked = self._links.get(parent)
            if child is not None and linked is not None and linked[0] == child:
                continue
            self._epoch += 1
            self._links[parent] = (child, self._epoch)
            address = self._nodes[child].address if child is not None else None
            if child is not None:
                self._nodes[child].advanced = time.monotonic()
            if parent == "":
                self._tasks.start(self._feed_anew(child, address, self._epoch))
            else:
                plan = {"child": child, "address": address, "epoch": self._epoch}
                self._nodes[parent].outbox.put_nowait({"plan": plan})
        self._links = {parent: self._links[parent] for parent in pairs}

    async def _feed_anew(self, child, address, epoch):
        await self._end_feed()
        if child is None or self._links.get("") != (child, epoch):
            return
        feed = _relay.feed(self._store, self._round, epoch, address)
        self._feed = self._tasks.start(feed)
        try:
            await asyncio.shield(self._feed)
        except errors.Error:
            self._events.put_nowait((self, ("", child, epoch)))

    async def _end_feed(self):
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.cancel()
            await asyncio.gather(feed, return_exceptions=True)

    async def _leave_out(self, node, error, tell=False):
        self._left_out[node.id] = error
        self._nodes.pop(node.id, None)
        if node in self._order:
            self._plan([n for n in self._order if n is not node])
        if tell:  # it is well, and may try again by the same connection
            try:
                said = {"error": str(error)[:1000]}
                await _relay.say(node.peer, said, _relay.FROM_TRAINER, self._round.timeout)
                return
            except errors.Error:
                pass
        await _relay.close(node.peer)


def broadcast_weights(weights, receivers, version=0, timeout=300.0):
    """One Broadcaster.broadcast(), with its defaults."""
    with Broadcaster(weights) as once:
        return once.broadcast(receivers, version, timeout)


def connect_group(endpoint, group=None, trainer=0, timeout=60.0):
    """Connects the ranks of a torch.distributed process group to its rank `trainer`.

    Collective. Returns there a list of connections in the order of ranks, and elsewhere the one to
    the trainer. Nobody else may connect to the trainer's endpoint meanwhile.
    """
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    places = [None] * size
    dist.all_gather_object(places, (endpoint.id, endpoint.address.hex()), group)
    if rank != trainer:
        return endpoint.connect(bytes.fromhex(places[trainer][1]), timeout)
    peers = {peer.peer: peer for peer in (endpoint.accept(timeout) for _ in range(size - 1))}
    return [peers[identity] for identity, _ in places if identity != endpoint.id]
