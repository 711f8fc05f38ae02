"""A tensor that cannot be sent or filled is named, with the fix, before anything is sent or written."""

import asyncio
import gc
import pathlib
import re
import sys
import tempfile
import types
import warnings

import numpy as np
import pytest

import tensorferry
from conftest import PeerProcess
from tensorferry import _relay, _tensors, transfer

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from tensorferry import _weight_stream  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402


SECONDS = 30


class Other(PeerProcess):
    """The process of tensors_peer.py."""

    script = pathlib.Path(__file__).with_name("tensors_peer.py")


@pytest.fixture(scope="module")
def other():
    process = Other()
    process.place = bytes.fromhex(process.address())
    yield process
    process.close()


@pytest.fixture
def connect(other, endpoint):
    def made():
        connection = endpoint.connect(other.place, SECONDS)
        other.accept()
        return connection

    return made


def floats():
    return torch.arange(8.0)


def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return distribute_tensor(floats(), init_device_mesh("cpu", (1,)), [Shard(0)])


def fake():
    with FakeTensorMode():
        return torch.zeros(8)


def freed():
    x = floats()
    x.untyped_storage().resize_(0)
    return x


def cut_short():
    x = floats()
    x.untyped_storage().resize_(20)
    return x


def of_a_transform():
    kept = []
    torch.func.vmap(lambda x: kept.append(x) or x)(torch.zeros(2, 8))
    return kept[0]


def read_only():
    x = np.zeros(8, np.float32)
    x.flags.writeable = False
    return x


class MaskedOfOthers(np.ma.MaskedArray):
    """As of astropy, whose class is not of NumPy's module."""


def masked_of_others():
    return np.ma.masked_less(np.arange(8.0), 3).view(MaskedOfOthers)


def mapped_read_only():
    # The file is as large as its mapping; torch does not know that the array cannot be written.
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        file.write(bytes(32))
        file.flush()
        return torch.from_numpy(np.memmap(file, np.float32, mode="r"))


# What each is refused with. Strides are no matter where torch copies the elements.
STRIDED = {
    "turned": (lambda: torch.zeros(16)[::2], ".contiguous()"),
    "expanded": (lambda: torch.zeros(1).expand(8), ".contiguous()"),
}
TENSORS = {
    "conjugate": (lambda: torch.ones(4, dtype=torch.complex64).conj(), ".resolve_conj()"),
    "imaginary part": (lambda: torch.ones(8, dtype=torch.complex64).conj().imag, ".resolve_neg()"),
    "negative": (lambda: torch._neg_view(floats()), ".resolve_neg()"),
    "quantized": (lambda: torch.quantize_per_tensor(floats(), 0.1, 0, torch.qint8), ".dequantize()"),
    "nested": (lambda: torch.nested.nested_tensor([floats(), floats()[:3]]), ".unbind()"),
    "sparse": (lambda: floats().to_sparse(), ".to_dense()"),
    "sparse rows": (lambda: floats().reshape(2, 4).to_sparse_csr(), ".to_dense()"),
    "of mkldnn": (lambda: floats().to_mkldnn(), ".to_dense()"),
    "meta": (lambda: floats().to("meta"), "move it to 'cpu' or 'cuda'"),
    "sharded": (sharded, "DTensor has no memory of its own; give .to_local()"),
    "fake": (fake, "FakeTensor has no memory of its own"),
    "wrapper": (lambda: TwoTensor(floats(), floats()), "TwoTensor has no memory of its own"),
    "freed": (freed, "its storage has 0 bytes, of which it needs 32"),
    "cut short": (cut_short, "its storage has 20 bytes, of which it needs 32"),
    "zeros without memory": (lambda: torch._efficientzerotensor(8), "its storage has 0 bytes"),
    "not initialized": (lambda: torch.nn.LazyLinear(3).weight, "run the module once"),
    "of a transform": (of_a_transform, "its memory cannot be had"),
}
OBJECTS = {
    "a number": (lambda: 7, "int is neither a tensor nor an array"),
    "masked": (lambda: np.ma.masked_less(np.arange(8.0), 3), ".filled()"),
    "masked, of a class of others": (masked_of_others, ".filled()"),
    "objects": (lambda: np.array([{}, {}]), "holds Python objects"),
    "in Fortran's order": (lambda: np.zeros((2, 4)).T, "numpy.ascontiguousarray()"),
}
if hasattr(np.dtypes, "StringDType"):
    OBJECTS["text"] = (lambda: np.array(["a", "b"], np.dtypes.StringDType()), "objects or text")
WRITTEN = {
    "read-only": (read_only, "is read-only"),
    "mapped read-only": (mapped_read_only, "its memory is read-only"),
    "broadcast": (lambda: np.broadcast_to(np.float32(0), 8), "not in C order"),
    "overlapping": (lambda: torch.zeros(9).as_strided((2, 4), (1, 1)), ".contiguous()"),
}


def cases(*tables):
    return [
        pytest.param(make, f"'odd': .*{re.escape(fix)}", id=name)
        for table in tables
        for name, (make, fix) in table.items()
    ]


def regions(endpoint):
    return endpoint.counters()["regions"]


@pytest.mark.parametrize("count", [0, 1])
def test_bytes_of_a_tensor_of_one_element_are_had_whatever_its_stride_is(count):
    x = torch.arange(32.0).reshape(4, 8)[1:, 3][:count]
    assert x.is_contiguous() and x.stride() == (8,)
    assert _tensors.bytes_of(x).numpy().tobytes() == x.numpy().tobytes()
    assert _relay.flat_bytes(x, 0, 4 * count).tobytes() == x.numpy().tobytes()


@pytest.mark.parametrize(("make", "why"), cases(TENSORS, STRIDED, OBJECTS))
def test_what_cannot_be_sent_is_named_by_whoever_sends(other, connect, endpoint, make, why):
    tensors = {"first": torch.ones(4), "odd": make()}
    connection = connect()
    refused = pytest.raises(tensorferry.InvalidArgument, match=why)
    # Receivers that wait already go on waiting, for a broadcast that can be sent.
    other.begin("run", "receive")
    with transfer.Broadcaster(tensors) as trainer, refused:
        trainer.broadcast([connection], 1, SECONDS)
    assert regions(endpoint) == 0
    transfer.broadcast_weights({"first": torch.ones(4), "odd": torch.ones(8)}, [connection], 5, SECONDS)
    assert other.end() == [None, [1.0]]
    for weights in (tensors, transfer.Weights(tensors)):
        other.begin("run", "receive_weights")
        with refused:
            transfer.push_weights(weights, [connection], SECONDS)
        error, values = other.end()
        assert re.search(why, error) and values == [1.0]
        assert regions(endpoint) == 0


@pytest.mark.parametrize(
    ("make", "why"),
    cases(TENSORS, {"array": (lambda: np.zeros(8), "torch.as_tensor"), "number": (lambda: 7, "of type int")}),
)
def test_what_cannot_be_streamed_is_named(connect, make, why):
    sender = _weight_stream.WeightSender([connect()])
    with pytest.raises(tensorferry.InvalidArgument, match=why):
        sender.send([("odd", make())], 1)
    sender.close()


@pytest.mark.parametrize(("make", "why"), cases(TENSORS, STRIDED))
def test_what_cannot_be_registered_says_why(endpoint, make, why):
    with pytest.raises(tensorferry.InvalidArgument, match=why.replace("'odd'", "memory")):
        endpoint.register(make())
    assert regions(endpoint) == 0


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("make", "why"),
    cases(
        {name: TENSORS[name] for name in ("negative", "freed", "sharded", "fake")},
        {"expanded": STRIDED["expanded"]},
        WRITTEN,
    ),
)
def test_what_cannot_be_written_is_named_before_the_others_are(other, connect, endpoint, make, why, in_place):
    tensors, connection = {"first": np.zeros(4, np.float32), "odd": make()}, connect()
    if not in_place:
        why = why.replace(r"\.contiguous", r"\.clone")
    other.begin("run", "broadcast", 7)
    with transfer.BroadcastReceiver(tensors, connection, in_place=in_place) as receiver:
        with pytest.raises(tensorferry.InvalidArgument, match=why):
            receiver.receive(SECONDS)
    error, _ = other.end()
    assert re.search(why, error)
    assert (tensors["first"] == 0).all() and regions(endpoint) == 0
    if in_place:
        other.begin("run", "push", 7)
        with pytest.raises(tensorferry.InvalidArgument, match=why):
            transfer.receive_weights(tensors, connection, SECONDS)
        assert re.search(why, other.end()[0])
        assert (tensors["first"] == 0).all() and regions(endpoint) == 0


def test_tensors_of_inference_mode_and_strided_ones_are_written_by_a_broadcast(other, connect):
    with torch.inference_mode():
        tensors = {"first": torch.zeros(4), "odd": torch.zeros(16)[::2]}
    connection = connect()
    other.begin("run", "broadcast", 7)
    with transfer.BroadcastReceiver(tensors, connection) as receiver:
        assert receiver.receive(SECONDS) == 7
    assert other.end()[0] is None
    assert all((x == 7).all() for x in tensors.values())


def test_a_type_that_cannot_be_cast_is_named_before_the_others_are_written(other, connect):
    odd = torch.zeros(8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    tensors, connection = {"first": np.zeros(4, np.float32), "odd": odd}, connect()
    other.begin("run", "broadcast", 7)
    with transfer.BroadcastReceiver(tensors, connection) as receiver:
        with pytest.raises(tensorferry.InvalidArgument, match="'odd' is .*float32 at the trainer, which cannot"):
            receiver.receive(SECONDS)
    assert "PeerLost" in other.end()[0]
    assert (tensors["first"] == 0).all()


def test_memory_that_is_mapped_read_only_is_sent_and_not_read_into(other, connect, endpoint):
    connection = connect()
    odd = mapped_read_only()
    other.begin("run", "receive_weights")
    transfer.push_weights({"first": torch.ones(4), "odd": odd}, [connection], SECONDS)
    assert other.end() == [None, [0.0, 1.0]]
    far = transfer.Endpoint(listen_host="127.0.0.1")
    near = endpoint.connect(far.address, SECONDS)
    there = near.import_region(far.register(floats(), "r").key)
    with pytest.raises(tensorferry.InvalidArgument, match="whose memory is read-only"):
        near.prepare_read([(endpoint.register(odd, ""), there, None)])


def test_the_sizes_and_flags_of_others_are_no_array():
    pandas = types.SimpleNamespace(shape=(3,), dtype="float32", flags=object())
    with pytest.raises(tensorferry.InvalidArgument, match="'odd': .* has no bytes"):
        _tensors.check("odd", pandas)


def test_a_name_that_is_not_utf8_is_told():
    with pytest.raises(tensorferry.InvalidArgument, match=r"'\\udc80': .* is read-only"):
        _tensors.check("\udc80", read_only(), written=True)


@pytest.mark.parametrize("name", [None, 3, ("a", "b")])
def test_a_name_that_is_not_text_is_refused(name):
    with pytest.raises(tensorferry.InvalidArgument, match="the name of a tensor is"):
        _tensors.check(name, torch.ones(3))


def assigned(x):
    x.data = torch.full((8,), 3.0)


def resized(x):
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(1 << 20)


def set_elsewhere(x):
    with torch.no_grad():
        x.set_(torch.full((8,), 3.0))


def shorter_at_one_address(x):
    x.data = x.data[:4]


MOVED = r"'odd' is at .* and was registered at"
# A broadcast reads host memory by NumPy, after which torch does not resize it.
moves = pytest.mark.parametrize(
    ("way", "move"),
    [("push", move) for move in (assigned, resized, set_elsewhere, shorter_at_one_address)]
    + [("broadcast", move) for move in (assigned, shorter_at_one_address)],
)


@moves
def test_a_tensor_that_has_moved_between_two_sends_is_named(other, connect, way, move):
    odd, connection = torch.nn.Parameter(torch.ones(8)), connect()
    weights = transfer.Weights({"first": torch.ones(4), "odd": odd})
    trainer = transfer.Broadcaster(weights)

    def send():
        if way == "push":
            transfer.push_weights(weights, [connection], SECONDS)
        else:
            trainer.broadcast([connection], 1, SECONDS)

    receive = "receive_weights" if way == "push" else "receive"
    other.begin("run", receive)
    send()
    assert other.end() == [None, [1.0]]
    move(odd)
    other.begin("run", receive)
    with pytest.raises(tensorferry.InvalidArgument, match=MOVED):
        send()
    if way == "push":
        error, values = other.end()
        assert "'odd' is at" in error and values == [1.0]
        other.begin("run", receive)
    odd.data = torch.full((8,), 2.0)
    weights.tensors["first"].fill_(2)
    send()  # the failure has ended the registrations
    assert other.end() == [None, [2.0]]
    weights.close()


@moves
def test_a_tensor_that_has_moved_between_two_receives_is_named(other, connect, way, move):
    odd, connection = torch.nn.Parameter(torch.zeros(8)), connect()
    tensors = {"first": torch.zeros(4), "odd": odd}
    weights = transfer.Weights(tensors)
    receiver = transfer.BroadcastReceiver(tensors, connection, in_place=True)

    def receive(fill):
        other.begin("run", way, fill)
        try:
            if way == "push":
                transfer.receive_weights(weights, connection, SECONDS)
            else:
                receiver.receive(SECONDS)
        finally:
            error, _ = other.end()
            assert (error is None) == (fill == 7) and "'odd' is at" in (error or "'odd' is at")

    receive(7)
    assert (odd == 7).all()
    move(odd)
    with pytest.raises(tensorferry.InvalidArgument, match=MOVED):
        receive(8)
    assert (tensors["first"] == 7).all()
    receiver.close()
    weights.close()


@pytest.mark.parametrize("call", ["broadcast", "broadcast_weights", "receive"])
def test_a_call_that_would_block_a_running_loop_names_what_to_await(other, connect, call):
    connection, weights = connect(), {"first": np.ones(4, np.float32), "odd": np.ones(8, np.float32)}
    trainer = transfer.Broadcaster(weights)
    calls = {
        "broadcast": lambda: trainer.broadcast([connection], 1, SECONDS),
        "broadcast_weights": lambda: transfer.broadcast_weights(weights, [connection], 1, SECONDS),
        "receive": lambda: transfer.BroadcastReceiver(weights, connection).receive(SECONDS),
    }

    async def actor():
        awaited = "receive_async" if call == "receive" else "broadcast_async"
        with pytest.raises(tensorferry.InvalidArgument, match=f"await .*{awaited}"):
            calls[call]()
        other.begin("run", *(["broadcast", 9] if call == "receive" else ["receive"]))
        await asyncio.to_thread(calls[call])

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that is never awaited warns
        asyncio.run(actor())
        gc.collect()
    assert other.end()[0] is None
    trainer.close()


@pytest.fixture
def verl(monkeypatch):
    """tensorferry.verl on the part of verl that it needs."""

    class Registry:
        @staticmethod
        def register(_):
            return lambda cls: cls

    base = types.ModuleType("verl.checkpoint_engine.base")
    base.CheckpointEngine, base.CheckpointEngineRegistry = object, Registry
    for name in ("verl", "verl.checkpoint_engine", base.__name__):
        monkeypatch.setitem(sys.modules, name, base)
    monkeypatch.delitem(sys.modules, "tensorferry.verl", raising=False)
    import tensorferry.verl

    yield tensorferry.verl
    sys.modules.pop("tensorferry.verl")


@pytest.mark.parametrize("dtype", ["int8", "bool", torch.uint8, "complex64", "manual_seed", 3])
def test_weights_are_cast_to_floating_point_types_only(verl, dtype):
    with pytest.raises(tensorferry.InvalidArgument, match="give a floating-point type"):
        verl.FerryCheckpointEngine(1 << 20, rollout_dtype=dtype)
    assert verl.FerryCheckpointEngine(1, rollout_dtype="bfloat16").rollout_dtype is torch.bfloat16
