"""Transfers of many tensors at once, made of regions, writes and messages."""

from tensorferry import _messages, _tensors, errors

# Tags of the messages by which weights are agreed on: "weights", and which.
_MANIFEST, _ANSWER = (int.from_bytes(b"weights" + bytes([i]), "big") for i in (1, 2))
_ENTRY = {
    "shape": _messages.shape,
    "dtype": _messages.text,
    "nbytes": _messages.number,
    "key": _messages.hexadecimal,
}


def send_kv(
    connection, regions, remote_regions, local_pages, remote_pages, page_bytes, **options
):
    """Writes pages of caches into a peer's, all by one operation, which it returns.

    regions and remote_regions: one for each cache (K and V of each layer, or all in one), in the
    same order. Page local_pages[i] of each goes to page remote_pages[i]. Options are those of
    Connection.post(), such as notification=, which arrives after all pages.
    """
    from tensorferry.transfer import pages

    regions, remote_regions = list(regions), list(remote_regions)
    if len(regions) != len(remote_regions):
        raise errors.InvalidArgument(
            f"send_kv: {len(regions)} regions and {len(remote_regions)} remote ones; they come in "
            "pairs"
        )
    blocks = pages(local_pages, remote_pages, page_bytes)
    parts = [(local, remote, blocks) for local, remote in zip(regions, remote_regions)]
    return connection.post(connection.prepare_write(parts), **options)


class Weights:
    """Tensors by name that are pushed, or received, again and again: registered once.

    Goes in the place of the dict. Values may change between calls, but the tensors must stay where
    they are: they are kept until close(), or the end of a with statement. A call raises where one has
    moved (by an assigned .data, or a resized storage); after close() the next one registers them anew.
    One call at a time.
    """

    def __init__(self, state_dict):
        self.tensors = dict(state_dict)
        self._regions = {}  # and the tensors' places, by (endpoint, name, rights)

    def prepare(self, endpoint, rights):
        """Checks all tensors, then registers those that are not; if it raises, none is registered."""
        try:
            self.check(rights, endpoint)
            for name, x in self.tensors.items():
                if x.nbytes > 0:
                    self.region(endpoint, name, rights)
        except BaseException:
            self.close()
            raise

    def check(self, rights, endpoint):
        """Raises InvalidArgument unless all tensors can be moved, and are where they were."""
        for name, x in self.tensors.items():
            place = _tensors.check(name, x, written=bool(rights))
            _, before = self._regions.get((endpoint.id, name, rights), (None, place))
            if place != before:
                raise errors.InvalidArgument(
                    f"'{name}' is at {place[0]:#x} with {place[1]} bytes, and was registered at "
                    f"{before[0]:#x} with {before[1]}: its .data was assigned, or its storage resized; "
                    "copy_() new values into it, or close() what keeps it registered"
                )

    def region(self, endpoint, name, rights):
        """The region of a tensor that is not empty, at one of this process's endpoints."""
        key, x = (endpoint.id, name, rights), self.tensors[name]
        if key not in self._regions:
            place = _tensors.check(name, x, written=bool(rights))
            self._regions[key] = endpoint.register(x, rights), place
        return self._regions[key][0]

    def withdraw(self, peer):
        """Refuses what the peer begins from now on."""
        for (endpoint, _, rights), (region, _) in self._regions.items():
            if endpoint == peer.endpoint.id and rights:
                region.withdraw(peer.peer)

    def close(self):
        """Nobody uses the tensors any more when it returns."""
        while self._regions:
            key, (region, _) = next(iter(self._regions.items()))
            region.deregister()
            del self._regions[key]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def push_weights(weights, peers, timeout=300.0):
    """Writes each tensor over the one of that name at each of the peers.

    weights: a dict, as of state_dict(), or Weights, which are registered once. peers: connections;
    at the other end of each receive_weights() must be called, with tensors of the same names, sizes
    and types. All peers are written at once, and none where a tensor cannot be sent. Returns bytes
    written.
    """
    if not isinstance(weights, Weights):
        with Weights(weights) as once:
            return push_weights(once, peers, timeout)
    offers = []
    limit = _messages.max_bytes(weights.tensors)
    try:
        for peer in peers:
            offers.append(_Offer(peer, timeout, limit))
        for endpoint in {offer.peer.endpoint.id: offer.peer.endpoint for offer in offers}.values():
            weights.prepare(endpoint, "")
        for offer in offers:
            problem = _difference(weights.tensors, offer.manifest)
            if problem:
                raise errors.InvalidArgument(f"push_weights: {problem}")
        total = _write(weights, offers, timeout)
    except BaseException as error:  # Ctrl-C, too: the peers wait
        for offer in offers:
            offer.give_up(str(error))
        weights.close()  # writes may be in flight
        raise
    failed = [error for error in [offer.answer({"done": True}) for offer in offers] if error]
    if failed:
        raise failed[0]
    return total


def _write(weights, offers, timeout):
    writes = []
    for offer in offers:
        parts = []
        for name, entry in offer.manifest.items():
            if entry["nbytes"] == 0:
                continue
            remote = offer.peer.import_region(bytes.fromhex(entry["key"]))
            parts.append((weights.region(offer.peer.endpoint, name, ""), remote, None))
        if parts:
            writes.append(offer.peer.post(offer.peer.prepare_write(parts), timeout=timeout))
    return sum(write.wait() for write in writes)


def receive_weights(weights, peer, timeout=300.0):
    """Lets the peer's push_weights() write these tensors; returns when it has.

    weights: as there. What GPUs' streams have queued before is done first.
    """
    if not isinstance(weights, Weights):
        with Weights(weights) as once:
            return receive_weights(once, peer, timeout)
    try:
        _receive(weights, peer, timeout)
    except BaseException:
        weights.close()  # the peer may be writing
        raise
    weights.withdraw(peer)
    return None


def _receive(weights, peer, timeout):
    try:
        manifest = _offer(weights, peer)
    except BaseException as error:
        _say(peer, {"error": f"the peer cannot receive: {error}"}, _MANIFEST, timeout)
        raise
    _say(peer, {"tensors": manifest}, _MANIFEST, timeout)
    said = _hear(peer, _ANSWER, timeout, _messages.SMALL_BYTES)
    if "error" in said:
        raise errors.InvalidArgument(f"receive_weights: {said['error']}")


def _offer(weights, peer):
    weights.prepare(peer.endpoint, "w")
    manifest = {}
    devices = set()
    for name, x in weights.tensors.items():
        entry = {"shape": list(x.shape), "dtype": _tensors.dtype_of(x), "nbytes": x.nbytes, "key": ""}
        if x.nbytes > 0:
            entry["key"] = weights.region(peer.endpoint, name, "w").key_for(peer.peer, "w").hex()
        if getattr(x, "is_cuda", False):
            devices.add(x.device)
        manifest[name] = entry
    for device in devices:
        import torch

        torch.cuda.current_stream(device).synchronize()
    return manifest


class _Offer:
    """The tensors that a peer has announced it receives."""

    def __init__(self, peer, timeout, limit):
        self.peer, self.timeout = peer, timeout
        said = _hear(peer, _MANIFEST, timeout, limit)
        if "error" in said:
            raise errors.InvalidArgument(f"push_weights: {said['error']}")
        _messages.require(said, {"tensors": {...: _ENTRY}}, f"push_weights: what {peer.info()['peer']} has")
        self.manifest = said["tensors"]

    def answer(self, said):
        """Returns what went wrong, if it did: the others are to be told as well."""
        try:
            _say(self.peer, said, _ANSWER, self.timeout)
        except errors.Error as error:
            return error
        return None

    def give_up(self, why):
        self.answer({"error": why[:1000]})


def _say(peer, said, kind, timeout):
    size, text = _messages.encoded(said)
    peer.send(size, _messages.SIZE + kind, timeout=timeout).wait()
    peer.send(text, kind, timeout=timeout).wait()


def _hear(peer, kind, timeout, limit):
    size = bytearray(8)
    peer.recv(size, _messages.SIZE + kind, timeout=timeout).wait()
    text = bytearray(_messages.length(size, peer, limit))
    peer.recv(text, kind, timeout=timeout).wait()
    return _messages.decoded(text, peer)


def _difference(state_dict, manifest):
    """Why the one cannot be written over the other; "" where it can."""
    for name, entry in manifest.items():
        if name not in state_dict:
            return f"the peer has '{name}', which is not pushed"
        x = state_dict[name]
        here = (list(x.shape), _tensors.dtype_of(x))
        if here != (entry["shape"], entry["dtype"]) or x.nbytes != entry["nbytes"]:
            return (
                f"'{name}' is {here[0]} {here[1]} here, and {entry['shape']} {entry['dtype']} at "
                "the peer"
            )
    missing = sorted(set(state_dict) - set(manifest))
    return f"the peer does not have '{missing[0]}'" if missing else ""
