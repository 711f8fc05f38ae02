"""Ray's direct transport by way of ferry: real Ray, actors of their own processes."""

import dataclasses
import gc
import itertools
import os
import pathlib
import re
import signal
import threading
import time

import numpy as np
import pytest

ray = pytest.importorskip("ray")
torch = pytest.importorskip("torch")
pytest.importorskip("ray.experimental.rdt.tensor_transport_manager")

from ray.experimental.rdt.tensor_transport_manager import CommunicatorMetadata  # noqa: E402

import tensorferry  # noqa: E402
from tensorferry.ray import (  # noqa: E402
    CONNECT_SECONDS,
    FerryMetadata,
    FerryTransport,
    register_transport,
)
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

register_transport()
register_transport()  # changes nothing
SECONDS = 60
NOBODY = CommunicatorMetadata()


def samples():
    table = torch.arange(60.0).reshape(5, 12)
    return {
        "float": torch.arange(7.0),
        "long": torch.arange(1 << 16),
        "half": torch.ones(3, 5, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False, True]),
        "one": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "rows of a table": table[1:3],
        "columns of it": table[:, 2:4],
        "turned": table.t(),
        "as a parameter": torch.nn.Parameter(torch.ones(4)),
    }


def same(found, wanted):
    return found.keys() == wanted.keys() and all(
        found[name].dtype == wanted[name].dtype and torch.equal(found[name], wanted[name])
        for name in wanted
    )


# ---- the transport alone, both sides in this process ---------------------------------------------


@pytest.fixture
def pair():
    return FerryTransport(), FerryTransport()


def test_tensors_of_every_kind_arrive(pair):
    source, destination = pair
    tensors = list(samples().values())
    metadata = source.extract_tensor_transport_metadata("a", tensors)
    found = destination.recv_multiple_tensors("a", metadata, NOBODY)
    assert all(torch.equal(x, y) for x, y in zip(found, tensors, strict=True))


def test_an_object_without_tensors_arrives(pair):
    source, destination = pair
    metadata = source.extract_tensor_transport_metadata("a", [])
    assert destination.recv_multiple_tensors("a", metadata, NOBODY) == []


def test_given_buffers_are_filled_and_checked(pair):
    source, destination = pair
    metadata = source.extract_tensor_transport_metadata("a", [torch.arange(10)])
    buffer = torch.zeros(10, dtype=torch.int64)
    assert destination.recv_multiple_tensors("a", metadata, NOBODY, [buffer])[0] is buffer
    assert torch.equal(buffer, torch.arange(10))
    with pytest.raises(ValueError, match="the target buffers are"):
        destination.recv_multiple_tensors("a", metadata, NOBODY, [torch.zeros(9)])
    with pytest.raises(ValueError, match="contiguous"):
        wide = torch.zeros(20, dtype=torch.int64)[::2]
        destination.recv_multiple_tensors("a", metadata, NOBODY, [wide])


def test_a_storage_is_registered_once_and_until_its_last_object_is_freed(pair):
    source, destination = pair
    table = torch.arange(100)
    first = source.extract_tensor_transport_metadata("a", [table[:50]])
    second = source.extract_tensor_transport_metadata("b", [table[50:]])
    assert first.keys == second.keys and first.offsets != second.offsets
    source.garbage_collect("a", first, [table[:50]])
    found = destination.recv_multiple_tensors("b", second, NOBODY)
    assert torch.equal(found[0], table[50:])
    source.garbage_collect("b", second, [table[50:]])
    assert not source._storages and not source._objects
    with pytest.raises(ray.exceptions.RayDirectTransportError, match="object b did not arrive"):
        destination.recv_multiple_tensors("b", second, NOBODY)


def test_an_object_is_described_once(pair):
    source, _ = pair
    tensors = [torch.ones(3)]
    assert source.extract_tensor_transport_metadata(
        "a", tensors
    ) is source.extract_tensor_transport_metadata("a", tensors)


def test_an_aborted_read_ends_with_an_error(pair):
    source, destination = pair
    metadata = source.extract_tensor_transport_metadata("a", [torch.ones(1 << 24)])
    fetch = destination.fetch_multiple_tensors("a", metadata, NOBODY)
    destination.abort_transport("a", NOBODY)
    try:
        destination.wait_fetch_complete(fetch, SECONDS)
    except ray.exceptions.RayDirectTransportError as error:
        assert "did not arrive" in str(error)  # it may also have ended before
    assert not destination._fetches


def test_a_wait_may_end_before_the_read(pair):
    source, destination = pair
    metadata = source.extract_tensor_transport_metadata("a", [torch.ones(1 << 24)])
    fetch = destination.fetch_multiple_tensors("a", metadata, NOBODY)
    try:
        destination.wait_fetch_complete(fetch, 0)
    except TimeoutError as error:
        assert "object a has not arrived after 0 s" in str(error)
    found = destination.wait_fetch_complete(fetch, SECONDS)
    assert torch.equal(found[0], torch.ones(1 << 24))


def test_storages_of_several_sizes_at_one_address_are_objects_of_their_own(pair):
    source, destination = pair
    numbers = np.arange(100)
    views = (numbers[:50], numbers[10:60], memoryview(numbers)[:7])
    for others, order in itertools.product(views, ("ab", "ba")):
        made = {"a": torch.from_numpy(numbers), "b": torch.frombuffer(others, dtype=torch.int64)}
        made = {name: made[name] for name in order}  # a smaller one may come first
        metadata = {
            name: source.extract_tensor_transport_metadata(name, [x]) for name, x in made.items()
        }
        for gone, stays in (("b", "a"), ("a", "b")):
            for name, x in made.items():
                found = destination.recv_multiple_tensors(name, metadata[name], NOBODY)
                assert torch.equal(found[0], x)
            source.garbage_collect(gone, metadata[gone], [made[gone]])
            found = destination.recv_multiple_tensors(stays, metadata[stays], NOBODY)
            assert torch.equal(found[0], made[stays])
            metadata[gone] = source.extract_tensor_transport_metadata(gone, [made[gone]])
        for name in made:
            source.garbage_collect(name, metadata[name], [made[name]])
        assert not source._storages


def test_an_object_that_is_refused_leaves_nothing_registered(pair):
    source, _ = pair
    with FakeTensorMode():
        fake = torch.zeros(3)
    for odd, fix in (
        (fake, "FakeTensor has no memory of its own"),
        (torch.ones(3, dtype=torch.complex64).conj(), ".resolve_conj()"),
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), ".dequantize()"),
    ):
        with pytest.raises(tensorferry.InvalidArgument, match=f"'tensor 1 of object a': .*{re.escape(fix)}"):
            source.extract_tensor_transport_metadata("a", [torch.ones(1 << 20), odd])
        assert not source._storages and not source._objects
    registered = source._take_storage
    source._take_storage = lambda x: registered(x) if x.numel() > 3 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        source.extract_tensor_transport_metadata("a", [torch.ones(1 << 20), torch.ones(3)])
    assert not source._storages and not source._objects
    assert source.endpoint().counters()["regions"] == 0


def test_a_target_that_cannot_be_written_is_named(pair):
    source, destination = pair
    metadata = source.extract_tensor_transport_metadata("a", [torch.ones(8)])
    for target in (torch.zeros(1).expand(8), torch._neg_view(torch.zeros(8))):
        with pytest.raises(tensorferry.InvalidArgument, match="'target buffer 0 of object a'"):
            destination.recv_multiple_tensors("a", metadata, NOBODY, [target])


@pytest.fixture
def mute(peer):
    """Metadata of an object whose source does not answer: its process is stopped."""
    address = bytes.fromhex(peer.address())
    peer.process.send_signal(signal.SIGSTOP)
    return FerryMetadata([((4,), torch.float32)], "cpu", address, [b"key"], [0])


def test_a_mute_source_holds_up_nobody_else(pair, mute):
    source, destination = pair
    metadata = source.extract_tensor_transport_metadata("a", [torch.ones(8)])
    waiting = [destination.fetch_multiple_tensors(f"mute {i}", mute, NOBODY) for i in range(2)]
    ended = []

    def wait(fetch):
        with pytest.raises(ray.exceptions.RayDirectTransportError, match="aborted") as raised:
            destination.wait_fetch_complete(fetch)
        ended.append(raised)

    threads = [threading.Thread(target=wait, args=(fetch,)) for fetch in waiting]
    for thread in threads:
        thread.start()
    # While the connection is being made: 30 s of it.
    destination.extract_tensor_transport_metadata("b", [torch.ones(8)])
    assert torch.equal(destination.recv_multiple_tensors("a", metadata, NOBODY)[0], torch.ones(8))
    with pytest.raises(TimeoutError):
        destination.wait_fetch_complete(destination.fetch_multiple_tensors("c", mute, NOBODY), 0.05)
    assert not ended
    for i in range(2):
        destination.abort_transport(f"mute {i}", NOBODY)
    for thread in threads:
        thread.join(CONNECT_SECONDS / 2)
        assert not thread.is_alive()
    assert len(ended) == 2


def test_an_abort_that_comes_before_the_read_is_kept(pair):
    source, destination = pair
    metadata = source.extract_tensor_transport_metadata("a", [torch.ones(8)])
    destination.abort_transport("a", NOBODY)
    with pytest.raises(ray.exceptions.RayDirectTransportError, match="it was aborted$"):
        destination.recv_multiple_tensors("a", metadata, NOBODY)
    assert torch.equal(destination.recv_multiple_tensors("a", metadata, NOBODY)[0], torch.ones(8))
    post, connection = destination._post, destination._links[metadata.address].connection()

    def aborted(fetch, taken):
        destination.abort_transport("a", NOBODY)
        post(fetch, taken)

    destination._post = aborted
    with pytest.raises(ray.exceptions.RayDirectTransportError, match="it was aborted$"):
        destination.recv_multiple_tensors("a", metadata, NOBODY)
    assert not destination._fetches and not connection.lost


def test_a_failed_read_says_where_the_cause_is(pair, peer):
    source, destination = pair
    metadata = source.extract_tensor_transport_metadata("a", [torch.ones(8)])
    ours = dataclasses.replace(metadata, keys=[b"no key"])
    with pytest.raises(ray.exceptions.RayDirectTransportError) as raised:
        destination.recv_multiple_tensors("a", ours, NOBODY)
    assert "source actor" not in str(raised.value)
    died = dataclasses.replace(metadata, address=bytes.fromhex(peer.address()))
    peer.close()
    with pytest.raises(ray.exceptions.RayDirectTransportError, match="its source actor may have died"):
        destination.recv_multiple_tensors("a", died, NOBODY)


# ---- real Ray ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster():
    folders = [pathlib.Path(__file__).parent, pathlib.Path(tensorferry.__file__).parent.parent]
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=256 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(map(str, folders))}},
    )
    yield
    ray.shutdown()


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Source:
    def __init__(self):
        self.weights = torch.arange(1 << 20, dtype=torch.float32)

    @ray.method(tensor_transport="ferry")
    def samples(self):
        return samples()

    @ray.method(tensor_transport="ferry")
    def get(self):
        return self.weights

    def held(self):
        from ray.experimental.rdt.util import get_tensor_transport_manager

        return len(get_tensor_transport_manager("FERRY")._storages)


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Sink:
    def are_samples(self, found):
        return same(found, samples())

    def total(self, x):
        return float(x.sum())


@pytest.fixture
def actors(cluster):
    made = Source.remote(), [Sink.remote() for _ in range(2)]
    yield made
    for actor in [made[0], *made[1]]:
        ray.kill(actor)


def test_actors_of_ray_hand_over_tensors(actors):
    source, sinks = actors
    assert ray.get(sinks[0].are_samples.remote(source.samples.remote()), timeout=SECONDS)
    weights = source.get.remote()
    totals = [sink.total.remote(weights) for sink in sinks]
    assert ray.get(totals, timeout=SECONDS) == [float(torch.arange(1 << 20).float().sum())] * 2
    assert torch.equal(
        ray.get(weights, timeout=SECONDS), torch.arange(1 << 20, dtype=torch.float32)
    )
    del weights, totals
    gc.collect()
    deadline = time.monotonic() + SECONDS
    while ray.get(source.held.remote(), timeout=SECONDS) and time.monotonic() < deadline:
        pass
    assert ray.get(source.held.remote(), timeout=SECONDS) == 0


def test_a_source_that_died_is_an_error_of_the_reader(actors):
    source, sinks = actors
    weights = source.get.remote()
    ray.wait([weights], timeout=SECONDS)
    assert ray.get(sinks[0].total.remote(weights), timeout=SECONDS) > 0
    ray.kill(source)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(sinks[1].total.remote(weights), timeout=SECONDS)
