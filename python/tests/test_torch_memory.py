"""Tests of torch tensors as transfer memory."""

import pytest

import tensorferry

torch = pytest.importorskip("torch", reason="torch is not installed")

SECONDS = 60


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "bool", "int64"])
def test_tensors_of_any_type_arrive(peer, endpoint, connected, dtype):
    tensor = torch.randint(0, 2, (100, 30)).to(getattr(torch, dtype))
    into = torch.zeros_like(tensor)
    remote = connected.import_region(bytes.fromhex(peer.register(tensor.nbytes)))
    connected.write(endpoint.register(tensor), remote).wait(SECONDS)
    connected.read(endpoint.register(into), remote).wait(SECONDS)
    assert torch.equal(tensor.view(torch.uint8), into.view(torch.uint8))


def test_parameters_are_memory(peer, endpoint, connected):
    parameter = torch.nn.Parameter(torch.zeros(100))
    remote = connected.import_region(bytes.fromhex(peer.register(400, 0)))
    peer_fill = endpoint.register(torch.ones(100))
    connected.write(peer_fill, remote).wait(SECONDS)
    connected.read(endpoint.register(parameter), remote).wait(SECONDS)
    assert torch.equal(parameter.data, torch.ones(100))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.zeros(4, 4)[:, 1], r"give \.contiguous\(\)"),
        (lambda: torch.zeros(4, dtype=torch.complex64).conj(), "conjugate"),
        (lambda: torch.zeros(4, device="meta"), "device 'meta' cannot be moved"),
    ],
)
def test_tensors_that_cannot_be_used_are_refused(endpoint, make, said):
    with pytest.raises(tensorferry.InvalidArgument, match=said):
        endpoint.register(make())


def test_memory_stays_when_a_tensor_is_given_other(peer, endpoint, connected):
    tensor = torch.zeros(1 << 20)
    remote = connected.import_region(bytes.fromhex(peer.register(tensor.nbytes, 1)))
    region = endpoint.register(tensor)
    tensor.data = torch.zeros(1)
    assert connected.read(region, remote).wait(SECONDS) == 4 << 20
