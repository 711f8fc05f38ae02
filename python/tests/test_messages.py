"""What a peer says may be anything: an error of ours ends it, never another one, nor a wait."""

import asyncio
import contextlib
import copy
import json
import random
import tracemalloc
import types

import numpy as np
import pytest

import tensorferry
from tensorferry import _collective, _messages, _relay, transfer
from tensorferry._collective import _ANSWER, _MANIFEST

SECONDS = 30
DEEP = "[" * 100_000


class Ended:
    """An operation that has ended, with an error or not."""

    def __init__(self, error=None):
        self.error = error

    def wait(self, timeout=None):
        if self.error is not None:
            raise self.error

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        self.wait()


class Scripted:
    """A connection whose peer says these texts, by tag, and then is lost."""

    lost = False

    def __init__(self, endpoint, said):
        self.endpoint, self.peer = endpoint, "00" * 16
        self._queue = {}
        for tag, text in said:
            self._queue.setdefault(_messages.SIZE + tag, []).append(len(text).to_bytes(8, "little"))
            self._queue.setdefault(tag, []).append(text)

    def recv(self, buffer, tag, timeout=None):
        if not self._queue.get(tag):
            return Ended(tensorferry.PeerLost("the script has ended"))
        buffer[:] = self._queue[tag].pop(0)
        return Ended()

    def send(self, data, tag, timeout=None):
        return Ended()

    async def take_notification_async(self):
        raise tensorferry.PeerLost("the script has ended")

    def info(self):
        return {"peer": "a script"}

    def import_region(self, key):
        raise tensorferry.InvalidArgument("no key")

    def close(self):
        pass


JUNK = [
    None, True, -1, 0, 1, 7, 1 << 63, 1 << 200, 0.5, -1e300, float("nan"), float("inf"), "", "x", "00",
    "manual_seed", [], [[]], [-1], [1 << 62, 1 << 62], {}, {"x": {}}, [[[]] * 40],
]


def paths(value, at=()):
    """Where each part of a message is."""
    yield at
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from paths(part, (*at, key))


def mutations(said, count=150):
    """The message with one part changed or left out, or two."""
    dice = random.Random(7)
    for _ in range(count):
        changed = copy.deepcopy(said)
        for _ in range(dice.choice((1, 1, 2))):
            path = dice.choice(list(paths(changed)))
            if not path:
                continue
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            if dice.random() < 0.3:
                del holder[path[-1]]
            else:
                holder[path[-1]] = copy.deepcopy(dice.choice(JUNK))
        yield changed


def texts(said):
    yield from (json.dumps(each).encode() for each in mutations(said))
    for text in ("", "{", "null", "[]", "7", DEEP, '{"tensors":' + DEEP, "\xff", "1" * 10_000):
        yield text.encode("latin-1")


def endures(run):
    """Runs it: it returns, or raises an error of ours; returns the kinds of these."""
    kinds = set()

    def once(text):
        try:
            run(text)
        except tensorferry.Error as error:
            kinds.add(type(error))

    return once, kinds


def awaited(coroutine):
    async def within():
        return await asyncio.wait_for(coroutine, SECONDS)

    return asyncio.run(within())


def arrays():
    return {"x": np.zeros(4, np.float32), "y": np.zeros((2, 3), np.float32)}


TENSORS = {"x": [[4], "float32", 16], "y": [[2, 3], "float32", 24]}


def test_a_list_of_weights_may_be_anything(endpoint):
    entry = {"shape": [4], "dtype": "float32", "nbytes": 16, "key": "00"}
    said = {"tensors": {"x": entry, "y": entry | {"shape": [2, 3], "nbytes": 24}}}
    once, kinds = endures(
        lambda text: transfer.push_weights(arrays(), [Scripted(endpoint, [(_MANIFEST, text)])], 1.0)
    )
    for text in texts(said):
        once(text)
    assert kinds == {tensorferry.Corrupt, tensorferry.InvalidArgument}


def test_a_pushers_answer_may_be_anything(endpoint):
    once, kinds = endures(
        lambda text: transfer.receive_weights(arrays(), Scripted(endpoint, [(_ANSWER, text)]), 1.0)
    )
    for text in texts({"error": "full"}):
        once(text)
    assert kinds == {tensorferry.Corrupt, tensorferry.InvalidArgument}


def test_a_receivers_offer_and_reports_may_be_anything(endpoint):
    offer = {"address": "00", "tensors": TENSORS}
    reports = [{"have": 1}, {"complete": 7, "at": 0.5}, {"failed": "00" * 16, "epoch": 1}, {"committed": 1}]

    def broadcast(said):
        receiver = Scripted(endpoint, [(_relay.FROM_RECEIVER, text) for text in said])
        with transfer.Broadcaster(arrays(), timeout=0.3, join_timeout=0.3) as trainer:
            awaited(trainer.broadcast_async([receiver], 1, SECONDS))

    once, kinds = endures(broadcast)
    for text in [*texts(offer), *texts({"error": "full"}), b'{"error": ""}']:
        once([text])
    assert tensorferry.Corrupt in kinds
    good = json.dumps(offer).encode()
    for report in reports:
        for text in list(texts(report))[::5]:
            once([good, text])


def test_what_a_trainer_says_may_be_anything(endpoint):
    begin = {"round": 1, "version": 1, "slice_bytes": 64, "window": 4, "timeout": 0.3, "tensors": TENSORS}
    plan = {"plan": {"child": "00" * 16, "address": "00", "epoch": 2}}

    def receive(said):
        trainer = Scripted(endpoint, [(_relay.FROM_TRAINER, text) for text in said])
        awaited(transfer.BroadcastReceiver(arrays(), trainer, endpoint=endpoint).receive_async(5.0))

    once, kinds = endures(receive)
    for text in texts({"begin": begin}):
        once([text])
    assert tensorferry.Corrupt in kinds
    for text in texts(plan):
        once([json.dumps({"begin": begin}).encode(), text])


def test_what_a_child_and_a_parent_say_may_be_anything(endpoint):
    weights = _collective.Weights(arrays())
    slices = _relay.Slices([("x", 16), ("y", 24)], 32)
    this_round = _relay.Round(1, 4, 0.3)

    def feed(text):
        child = Scripted(endpoint, [(_relay.TO_PARENT, text)])

        async def connect_async(*_):
            return child

        near = types.SimpleNamespace(id=endpoint.id, connect_async=connect_async, register=endpoint.register)
        store = _relay.Store(weights, slices, near, complete=True)
        awaited(_relay.feed(store, this_round, 1, "00"))

    once, kinds = endures(feed)
    for text in texts({"keys": ["00", "00"], "have": "00"}):
        once(text)
    assert tensorferry.Corrupt in kinds

    async def fed(text):
        inlet = _relay.Inlet(_relay.Store(weights, slices, endpoint, complete=False), this_round)
        await inlet._fed_by(Scripted(endpoint, [(_relay.TO_CHILD, text)]))

    for text in texts({"round": 2, "epoch": 1}):
        awaited(fed(text))
    weights.close()


def test_a_streams_header_may_be_anything(endpoint):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from tensorferry import _weight_stream

    assert torch.float32.itemsize == 4
    parts = [["x", [4], "float32", 0, 0, 16], ["y", [2, 3], "float32", 0, 256, 24]]
    headers = [{"bucket": 0, "version": 1, "nbytes": 280, "parts": parts},
               {"end": 1, "buckets": 0, "tensors": 0}]

    def receive(text):
        trainer = Scripted(endpoint, [(_weight_stream._HEADER, text)])
        receiver = _weight_stream.WeightReceiver(trainer, endpoint=endpoint, timeout=1.0)
        with contextlib.closing(receiver):
            list(receiver.receive(1))

    once, kinds = endures(receive)
    for header in headers:
        for text in texts(header):
            once(text)
    assert {tensorferry.Corrupt, tensorferry.PeerLost} <= kinds


# Parsed, 64 MiB of JSON from each receiver took 1.6 GiB.
def test_a_message_may_not_be_much_longer_than_what_it_tells(endpoint):
    offer = json.dumps({"address": "00", "tensors": TENSORS}).encode()
    begin = json.dumps({"begin": {"round": 1, "more": [[]] * (2 << 20)}}).encode()

    def broadcast(*said):
        receiver = Scripted(endpoint, [(_relay.FROM_RECEIVER, text) for text in said])
        with transfer.Broadcaster(arrays(), timeout=5, join_timeout=5) as trainer:
            awaited(trainer.broadcast_async([receiver], 1, SECONDS))

    def receive(text):
        trainer = Scripted(endpoint, [(_relay.FROM_TRAINER, text)])
        awaited(transfer.BroadcastReceiver(arrays(), trainer, endpoint=endpoint).receive_async(5.0))

    for call in (
        lambda: broadcast(begin),
        lambda: broadcast(offer, b'{"have": 1, "more": "%s"}' % (b"x" * (1 << 20))),
        lambda: receive(begin),
        lambda: transfer.push_weights(arrays(), [Scripted(endpoint, [(_MANIFEST, begin)])], 5.0),
        lambda: transfer.receive_weights(arrays(), Scripted(endpoint, [(_ANSWER, begin)]), 5.0),
    ):
        with pytest.raises(tensorferry.Corrupt, match="bytes; [0-9]+ are allowed"):
            call()


def test_slices_as_small_as_a_trainer_likes_take_no_memory_each():
    tracemalloc.start()
    try:
        slices = _relay.Slices([("x", 1 << 19), ("y", 1 << 19)], 1)
        assert len(slices) == 1 << 20 and slices.parts(1 << 19) == [(1, 0, 1)]
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["{", DEEP, '{"tensors": {"x": [1]}}', '{"tensors": "%s"}' % ("x" * 9999)])
def test_a_peer_process_that_talks_nonsense_is_named(peer, connected, text):
    peer.begin("say", text, _MANIFEST, _messages.SIZE)
    with pytest.raises(tensorferry.Corrupt, match="127.0.0.1") as raised:
        transfer.push_weights(arrays(), [connected], SECONDS)
    peer.end()
    assert len(str(raised.value)) < 400


def test_a_form_names_the_first_field_that_is_wrong():
    form = {"a": [(_messages.number, _messages.text)], "b": {...: _messages.shape}}
    good = {"a": [[1, "x"]], "b": {"y": [2, 3]}, "more": 1}
    _messages.require(good, form, "it")
    for changed, said in (
        ({"a": [[1, 2]]}, r"\['a'\]\[0\]\[1\] is 2"),
        ({"a": [[1]]}, r"\['a'\]\[0\] is \[1\]"),
        ({"b": {"y": [2, -3]}}, r"\['b'\]\['y'\] is \[2, -3\]"),
        ({"b": None}, r"\['b'\] is None"),
        ({"b": {"y": [1 << 61, 8]}}, r"\['b'\]\['y'\]"),
        ({"a": [[True, "x"]]}, r"\['a'\]\[0\]\[0\] is True"),
    ):
        with pytest.raises(tensorferry.Corrupt, match=said):
            _messages.require(good | changed, form, "it")
