"""Tests of weights that go along a chain of receivers, and of shards that become others."""

import asyncio
import contextlib
import importlib.util
import pathlib
import signal
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

import tensorferry
from conftest import PeerProcess
from tensorferry import _broadcast, _broadcast_receiver, _relay, _reshard, transfer

SECONDS = 30
SHAPES = {"a": (3, 5), "b": (1500, 1000), "none": (0, 4)}
SLICE = 1 << 18


class Receiver(PeerProcess):
    """The process of broadcast_peer.py."""

    script = pathlib.Path(__file__).with_name("broadcast_peer.py")


@pytest.fixture
def engines(endpoint):
    """engines(n) starts n receivers; ours of the connections are in `connections`."""
    with contextlib.ExitStack() as ended:
        class Engines(list):
            def start(self, count, shapes=None, dtype="float32", in_place=False):
                new = [Receiver() for _ in range(count)]
                for each in new:
                    ended.callback(each.close)
                    each.begin("join", endpoint.address.hex(), shapes or SHAPES, dtype, in_place)
                peers = [endpoint.accept(SECONDS) for _ in new]
                by_id = {peer.peer: peer for peer in peers}
                for each in new:
                    each.id = each.end()
                    each.connection = by_id[each.id]
                self += new
                return new

            @property
            def connections(self):
                return [each.connection for each in self]

        yield Engines()


def weights(fill, dtype=np.float32):
    return {name: np.full(shape, fill, dtype) for name, shape in SHAPES.items()}


def begin(engines):
    for each in engines:
        each.begin("receive")


def test_all_receivers_get_each_version(engines):
    engines.start(4)
    pushed, seen = weights(0), []
    with transfer.Broadcaster(pushed, slice_bytes=SLICE, progress=seen.append) as trainer:
        for version in (5, 6):
            for x in pushed.values():
                x.fill(version)
            begin(engines)
            outcome = trainer.broadcast(engines.connections, version, SECONDS)
            assert [each.end() for each in engines] == [[version, None]] * 4
            assert [each.state() for each in engines] == [[version, [version]]] * 4
            assert outcome.version == version and not outcome.left_out
            assert set(outcome.done) == {each.id for each in engines}
    assert seen and all(0 <= part <= 1 for said in seen for part in said.values())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_receiver_that_dies_or_freezes_is_left_out_and_those_behind_it_go_on(engines, how, monkeypatch):
    engines.start(4)
    victim = engines[1]
    begin(engines)
    add = _relay.Store.arrivals

    async def arrivals(store):
        """The victim is hit when the trainer has begun: it is in the chain then."""
        async for number in add(store):
            if number == len(store.slices) // 2 and victim.process.poll() is None:
                victim.process.send_signal(how)
            yield number

    monkeypatch.setattr(_relay.Store, "arrivals", arrivals)
    with transfer.Broadcaster(weights(7), slice_bytes=SLICE, timeout=5.0) as trainer:
        outcome = trainer.broadcast(engines.connections, 7, SECONDS)
    well = [each for each in engines if each is not victim]
    assert [each.end() for each in well] == [[7, None]] * 3
    assert [each.state() for each in well] == [[7, [7]]] * 3
    assert list(outcome.left_out) == [victim.id]
    assert isinstance(outcome.left_out[victim.id], (tensorferry.PeerLost, tensorferry.Timeout))
    if how == signal.SIGSTOP:
        victim.process.send_signal(signal.SIGCONT)
        version, error = victim.end()
        assert version is None and "PeerLost" in error
        assert victim.state() == [None, [0]]  # what it had, whole


def test_a_receiver_of_other_shapes_is_told_and_may_try_again(engines):
    engines.start(2)
    (odd,) = engines.start(1, shapes=SHAPES | {"a": (5, 3)})
    begin(engines)
    with transfer.Broadcaster(weights(7), slice_bytes=SLICE) as trainer:
        outcome = trainer.broadcast(engines.connections, 1, SECONDS)
        said = r"'a' is [3, 5] here, and [5, 3] at the peer"
        assert said in str(outcome.left_out[odd.id])
        results = [each.end() for each in engines]
        assert results[:2] == [[1, None]] * 2
        assert results[2][0] is None and said in results[2][1]
        odd.begin("receive")
        with pytest.raises(tensorferry.InvalidArgument, match="no receiver is left"):
            trainer.broadcast([odd.connection], 2, SECONDS)
        assert "InvalidArgument" in odd.end()[1]


@pytest.mark.parametrize("in_place", [False, True])
def test_types_are_cast_on_arrival(engines, in_place):
    engines.start(1, dtype="float64", in_place=in_place)
    engines.start(1, dtype="float16", in_place=in_place)
    engines.start(1, in_place=in_place)
    begin(engines)
    outcome = transfer.broadcast_weights(weights(2.5), engines.connections, 3, SECONDS)
    assert [each.end() for each in engines] == [[3, None]] * 3
    assert [each.state() for each in engines] == [[3, [2.5]]] * 3
    assert not outcome.left_out


def test_a_broadcast_that_ends_early_leaves_the_old_version_whole(engines):
    engines.start(2)
    (direct,) = engines.start(1, in_place=True)
    pushed = weights(1)
    with transfer.Broadcaster(pushed, slice_bytes=SLICE) as trainer:
        begin(engines)
        trainer.broadcast(engines.connections, 1, SECONDS)
        assert [each.end() for each in engines] == [[1, None]] * 3
        for x in pushed.values():
            x.fill(2)
        begin(engines)

        def stop(parts):
            raise RuntimeError

        trainer._progress = stop
        with pytest.raises(RuntimeError):
            trainer.broadcast(engines.connections, 2, SECONDS)
    assert all("PeerLost" in each.end()[1] for each in engines)
    assert [each.state() for each in engines[:2]] == [[1, [1]]] * 2
    assert direct.state()[0] is None  # its tensors may be of both
    assert set(direct.state()[1]) <= {1.0, 2.0}


def test_bytes_that_are_not_those_sent_leave_a_receiver_out(engines, monkeypatch):
    engines.start(2)
    begin(engines)
    monkeypatch.setattr(_relay.Store, "_digest", lambda self, number: 7)
    with pytest.raises(tensorferry.Corrupt, match="not those sent"):
        transfer.broadcast_weights(weights(7), engines.connections, 1, SECONDS)
    assert all(each.end()[0] is None for each in engines)
    assert all(each.state() == [None, [0]] for each in engines)


def test_nobody_writes_between_broadcasts(endpoint, monkeypatch):
    keys, keys_for = [], _relay.Store.keys_for

    def noted(store, peer):
        keys.extend(keys_for(store, peer))
        return keys

    monkeypatch.setattr(_relay.Store, "keys_for", noted)
    other = transfer.Endpoint(listen_host="127.0.0.1")
    to_trainer = other.connect(endpoint.address, SECONDS)
    peer = endpoint.accept(SECONDS)
    got = {"x": np.zeros(1000, np.float32)}
    with transfer.BroadcastReceiver(got, to_trainer, in_place=True) as receiver:
        thread = threading.Thread(target=receiver.receive, args=(SECONDS,))
        thread.start()
        transfer.broadcast_weights({"x": np.ones(1000, np.float32)}, [peer], 1, SECONDS)
        thread.join(SECONDS)
        assert receiver.version == 1 and len(keys) == 1
        late = endpoint.register(np.zeros(1000, np.float32), "")
        with pytest.raises(tensorferry.Refused, match="was not withdrawn"):
            peer.write(late, peer.import_region(bytes.fromhex(keys[0]))).wait(SECONDS)
    assert (got["x"] == 1).all()
    other.close()


def test_a_timeout_from_inside_is_raised_as_it_is(engines, monkeypatch):
    """TimeoutError is also what asyncio raises where a broadcast takes too long (Python 3.11)."""
    engines.start(1)
    begin(engines)

    def stop(parts):
        raise TimeoutError("the caller's own")

    with transfer.Broadcaster(weights(1), slice_bytes=SLICE, progress=stop) as trainer:
        with pytest.raises(TimeoutError, match="the caller's own"):
            trainer.broadcast(engines.connections, 1, SECONDS)

    async def exchanged(receiver, timeout):
        return {}

    async def silent():
        raise tensorferry.Timeout("the trainer said nothing")

    monkeypatch.setattr(transfer.BroadcastReceiver, "_exchange_offers", exchanged)
    monkeypatch.setattr(_broadcast_receiver, "_ReceiverRun",
                        lambda owner, begin: types.SimpleNamespace(run=silent))
    with pytest.raises(tensorferry.Timeout, match="the trainer said nothing"):
        transfer.BroadcastReceiver({}, engines[0].connection).receive(SECONDS)


def test_what_takes_too_long_is_cancelled_and_said():
    ended = []

    async def slow():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(tensorferry.Timeout, match="too late"):
        asyncio.run(_relay.within(0.01, slow(), lambda: tensorferry.Timeout("too late")))
    assert ended


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def planned(monkeypatch):
    """A trainer's broadcast to four receivers that only report, by a clock that stands."""
    clock = Clock()
    monkeypatch.setattr(_broadcast, "time", clock)
    peers = [types.SimpleNamespace(peer=name, endpoint=None) for name in "abcd"]
    owner = transfer.Broadcaster(weights(1), slice_bytes=1 << 12)
    run = _broadcast._Run(owner, peers, 1)
    plans = []

    def plan(order):
        run._order = order
        for node in order:
            node.behind_since = None
        plans.append("".join(node.id for node in order))

    run._plan = plan
    plan(list(run._nodes.values()))

    def report(seconds, rates):
        """Each gets slices at its rate for so long; those without a rate are silent."""
        for _ in range(round(seconds / 0.2)):
            clock.now += 0.2
            for name, rate in rates.items():
                node = run._nodes[name]
                node.report(node.count + round(rate / 5))
                node.heard = clock.now
            asyncio.run(run._look())

    return types.SimpleNamespace(run=run, plans=plans, report=report)


def test_a_slow_receiver_goes_to_the_end_and_those_it_held_up_do_not(planned):
    planned.report(2, {"a": 100, "b": 100, "c": 100, "d": 100})
    assert planned.plans == ["abcd"]
    planned.report(2, {"a": 100, "b": 50, "c": 50, "d": 50})
    planned.report(3, {"a": 100, "c": 100, "d": 100, "b": 50})
    assert planned.plans == ["abcd", "acdb"]


def test_a_silent_receiver_goes_to_the_end_before_it_is_left_out(planned):
    planned.report(2, {"a": 100, "b": 100, "c": 100, "d": 100})
    planned.report(1.4, {"a": 100, "c": 0, "d": 0})
    assert planned.plans == ["abcd", "acdb"]


def test_the_parent_of_two_slow_receivers_is_taken_for_the_slow_one(planned):
    planned.report(1, {"a": 100, "b": 100, "c": 100, "d": 100})
    planned.report(1.6, {"a": 100, "b": 50, "c": 50, "d": 50})
    assert planned.plans[1:] == ["acdb"]
    planned.report(1.6, {"a": 50, "c": 50, "d": 50, "b": 50})
    assert planned.plans[2:] == ["cdba"]


def test_slices_cover_all_bytes_once():
    sizes = [("a", 5), ("none", 0), ("b", 17), ("c", 1)]
    slices = _relay.Slices(sizes, 4)
    assert slices.names == ["a", "b", "c"] and len(slices) == 6 and slices.nbytes == 23
    seen = {}
    for number in range(len(slices)):
        assert sum(n for _, _, n in slices.parts(number)) <= 4
        for index, offset, nbytes in slices.parts(number):
            assert seen.get(index, 0) == offset
            seen[index] = offset + nbytes
    assert seen == {0: 5, 1: 17, 2: 1}
    assert len(_relay.Slices([("none", 0)], 4)) == 0


TENSORS = {"row": (12, 10), "column": (7, 8), "cube": (4, 6, 5)}


def cut(dims, count):
    """For each process its shards; dims: along which each tensor is cut."""
    return [{name: transfer.shard(name, shape, 4, dims[name], (i, count))
             for name, shape in TENSORS.items()} for i in range(count)]


def part_of(whole, shard):
    box = tuple(slice(o, o + n) for o, n in zip(shard.offset, shard.length))
    return np.ascontiguousarray(whole[box])


FSDP = {"row": 0, "column": 0, "cube": 0}
TP = {"row": 0, "column": 1, "cube": 1}
REPLICATED = {"row": None, "column": None, "cube": None}


@pytest.mark.parametrize(
    ("source", "target"),
    [(cut(TP, 2), cut(TP, 4)), (cut(FSDP, 4), cut(TP, 2)), (cut(REPLICATED, 2), cut(TP, 4))],
    ids=["TP 2 to 4", "FSDP 4 to TP 2", "replicas to TP 4"],
)
def test_shards_become_others_by_plain_writes(endpoint, source, target):
    whole = {name: np.arange(np.prod(s), dtype=np.float32).reshape(s) + 1
             for name, s in TENSORS.items()}
    with contextlib.ExitStack() as ended:
        receivers = []
        for _ in target:
            receivers.append(transfer.Endpoint(listen_host="127.0.0.1"))
            ended.callback(receivers[-1].close)
        connections = [endpoint.connect(each.address, SECONDS) for each in receivers]
        have = [{n: part_of(whole[n], s) for n, s in shards.items()} for shards in source]
        got = [{n: np.zeros(s.length, np.float32) for n, s in shards.items()} for shards in target]
        local = [{n: endpoint.register(x, "") for n, x in each.items() if x.nbytes}
                 for each in have]
        regions = [{n: receiver.register(x, "w") for n, x in each.items() if x.nbytes}
                   for each, receiver in zip(got, receivers)]
        remote = [{n: connection.import_region(region.key) for n, region in each.items()}
                  for each, connection in zip(regions, connections)]
        writes = [connections[t].write(local[s][name], remote[t][name], blocks)
                  for s, t, name, blocks in transfer.reshard(source, target)]
        moved = sum(write.wait(SECONDS) for write in writes)
        assert moved == sum(s.nbytes for shards in target for s in shards.values())
        for each, shards in zip(got, target):
            for name, shard in shards.items():
                np.testing.assert_array_equal(each[name], part_of(whole[name], shard))


def test_shards_that_do_not_make_the_whole_are_refused():
    with pytest.raises(tensorferry.InvalidArgument, match="have 240 of the 480 bytes of 'row'"):
        transfer.reshard(cut(TP, 2)[:1], cut(REPLICATED, 1))
    with pytest.raises(tensorferry.InvalidArgument, match="unequal shards"):
        transfer.reshard(cut(TP, 2) + cut(FSDP, 4)[:1], cut(REPLICATED, 1))
    other = [{"row": transfer.shard("row", (12, 11), 4)}]
    with pytest.raises(tensorferry.InvalidArgument, match="not shards of one tensor"):
        transfer.reshard(other, cut(TP, 2))


def test_rows_that_follow_each_other_are_one_block():
    half = transfer.shard("x", (8, 16), 2, 0, (1, 2))
    whole = transfer.shard("x", (8, 16), 2)
    assert _reshard.blocks(half, whole) == [(0, 128, 128)]
    column = transfer.shard("x", (8, 16), 2, 1, (1, 2))
    assert _reshard.blocks(column, whole) == [(16 * i, 32 * i + 16, 16) for i in range(8)]


def test_process_groups_and_dtensors_are_understood(tmp_path):
    if importlib.util.find_spec("torch") is None:  # which takes seconds to load
        pytest.skip("torch is not installed")
    script = pathlib.Path(__file__).with_name("broadcast_group.py")
    with contextlib.ExitStack() as ended:
        ranks = []
        for rank in range(2):
            ranks.append(subprocess.Popen([sys.executable, script, str(rank), tmp_path / "store"],
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            ended.callback(ranks[-1].kill)
        for each in ranks:
            out, error = each.communicate(timeout=2 * SECONDS)
            assert out == b"ok\n", error[-2000:].decode()
