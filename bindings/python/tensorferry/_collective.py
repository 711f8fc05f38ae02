"""Transfers of many tensors at once, made of regions, writes and messages."""

import json

from tensorferry import errors

# Tags of the messages by which weights are agreed on: "weights", and which.
_SIZE, _MANIFEST, _ANSWER = (int.from_bytes(b"weights" + bytes([i]), "big") for i in range(3))


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


def push_weights(state_dict, peers, timeout=300.0):
    """Writes each tensor of state_dict over the one of that name at each of the peers.

    peers: connections; at the other end of each receive_weights() must be called, with tensors of
    the same names, sizes and types. All peers are written at once. Returns bytes written.
    """
    offers = []
    try:
        for peer in peers:
            offers.append(_Offer(peer, timeout))
    except errors.Error as error:
        _give_up(offers, f"another peer's offer did not come: {error}")
        raise
    problems = [_difference(state_dict, offer.manifest) for offer in offers]
    if any(problems):
        for offer, problem in zip(offers, problems):
            _give_up([offer], problem or "another peer's weights are not those that are pushed")
        raise errors.InvalidArgument("push_weights: " + next(filter(None, problems)))
    try:
        total = _write(state_dict, offers, timeout)
    except errors.Error as error:
        _give_up(offers, f"the push failed: {error}")
        raise
    for offer in offers:
        offer.answer({"done": True})
    return total


def _write(state_dict, offers, timeout):
    regions = {}
    writes = []
    for offer in offers:
        endpoint = offer.peer.endpoint
        parts = []
        for name, entry in offer.manifest.items():
            if entry["nbytes"] == 0:
                continue
            place = (endpoint.id, name)
            if place not in regions:
                regions[place] = endpoint.register(_bytes(state_dict[name]), "")
            remote = offer.peer.import_region(bytes.fromhex(entry["key"]))
            parts.append((regions[place], remote, None))
        if parts:
            writes.append(offer.peer.post(offer.peer.prepare_write(parts), timeout=timeout))
    return sum(write.wait() for write in writes)


def _give_up(offers, why):
    for offer in offers:
        try:
            offer.answer({"error": why})
        except errors.Error:
            pass  # is gone itself


def receive_weights(state_dict, peer, timeout=300.0):
    """Lets the peer's push_weights() write these tensors; returns when it has."""
    endpoint = peer.endpoint
    regions = {
        name: endpoint.register(_bytes(x), "w") for name, x in state_dict.items() if x.nbytes > 0
    }
    try:
        manifest = {
            name: {
                "shape": list(x.shape),
                "dtype": str(x.dtype),
                "nbytes": x.nbytes,
                "key": regions[name].key_for(peer.peer, "w").hex() if x.nbytes > 0 else "",
            }
            for name, x in state_dict.items()
        }
        text = json.dumps(manifest).encode()
        peer.send(len(text).to_bytes(8, "little"), _SIZE, timeout=timeout).wait()
        peer.send(text, _MANIFEST, timeout=timeout).wait()
        answer = bytearray(4096)
        got = peer.recv(answer, _ANSWER, timeout=timeout).wait()
        said = json.loads(answer[:got])
        if "error" in said:
            raise errors.InvalidArgument("receive_weights: " + said["error"])
    finally:
        for region in regions.values():
            region.deregister()


class _Offer:
    def __init__(self, peer, timeout):
        self.peer, self.timeout = peer, timeout
        size = bytearray(8)
        peer.recv(size, _SIZE, timeout=timeout).wait()
        text = bytearray(int.from_bytes(size, "little"))
        peer.recv(text, _MANIFEST, timeout=timeout).wait()
        self.manifest = json.loads(text)

    def answer(self, said):
        self.peer.send(json.dumps(said)[:4096].encode(), _ANSWER, timeout=self.timeout).wait()


def _bytes(x):
    return x.detach() if hasattr(x, "detach") else x


def _difference(state_dict, manifest):
    """Why the one cannot be written over the other; "" where it can."""
    for name, entry in manifest.items():
        if name not in state_dict:
            return f"the peer has '{name}', which is not pushed"
        x = state_dict[name]
        here = (list(x.shape), str(x.dtype))
        if here != (entry["shape"], entry["dtype"]):
            return (
                f"'{name}' is {here[0]} {here[1]} here, and {entry['shape']} {entry['dtype']} at "
                "the peer"
            )
    missing = sorted(set(state_dict) - set(manifest))
    return f"the peer does not have '{missing[0]}'" if missing else ""
