"""Ray's direct transport by way of ferry: real Ray, actors of their own processes."""

import gc
import os
import pathlib
import time

import pytest

ray = pytest.importorskip("ray")
torch = pytest.importorskip("torch")
pytest.importorskip("ray.experimental.rdt.tensor_transport_manager")

from ray.experimental.rdt.tensor_transport_manager import CommunicatorMetadata  # noqa: E402

import tensorferry  # noqa: E402
from tensorferry.ray import FerryTransport, register_transport  # noqa: E402

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
