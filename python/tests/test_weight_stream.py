"""Tests of streams of weights to engines in processes of their own: nobody has half of a version."""

import asyncio
import contextlib
import pathlib
import signal
import threading
import types

import pytest

import tensorferry
from conftest import PeerProcess

torch = pytest.importorskip("torch", reason="torch is not installed")

from tensorferry import _relay, _weight_stream, transfer  # noqa: E402
from weight_stream_peer import summary  # noqa: E402

SECONDS = 120  # loading torch may take a minute on a busy machine
BUCKET = 4096


class Engine(PeerProcess):
    """The process of weight_stream_peer.py."""

    script = pathlib.Path(__file__).with_name("weight_stream_peer.py")


@pytest.fixture
def joined(endpoint):
    """joined(n): n engines, and a sender to them."""
    with contextlib.ExitStack() as ended:

        def join(count, **options):
            engines = [Engine() for _ in range(count)]
            for each in engines:
                ended.callback(each.close)
                each.begin("join", endpoint.address.hex())
            peers = _weight_stream.accept_all(endpoint, count, timeout=SECONDS)
            for each in engines:
                each.id = each.end()
            options = {"bucket_bytes": BUCKET, "timeout": 5.0, "join_timeout": SECONDS} | options
            sender = _weight_stream.WeightSender(peers, **options)
            ended.callback(sender.close)
            return sender, engines

        yield join


def weights(fill):
    table = torch.arange(6000.0).reshape(60, 100) + fill
    return {
        "small": torch.full((7, 3), float(fill)),
        "half": torch.full((33,), fill, dtype=torch.bfloat16),
        "larger than a bucket": table,
        "turned": table[:8, :5].t(),
        "bool": torch.tensor([True, False, True]),
        "one": torch.tensor(float(fill)),
        "none": torch.empty(0, 4),
        "as large as a bucket": torch.full((BUCKET // 8,), fill, dtype=torch.int64),
        "e4m3": torch.full((5, 9), fill, dtype=torch.uint8).view(torch.float8_e4m3fn),
        "parameter": torch.nn.Parameter(torch.full((500,), float(fill))),
    }


def expected(tensors):
    return {name: summary(x.detach()) for name, x in tensors.items()}


def begin(engines, *arguments):
    for each in engines:
        each.begin("receive", *arguments)


def test_engines_that_know_no_names_get_each_version_whole(joined):
    sender, engines = joined(2)
    for version in (3, 4):
        tensors = weights(version)
        begin(engines, version)
        sent = sender.send(tensors.items(), version)
        assert sent.version == version and not sent.left_out
        assert sent.nbytes == sum(x.nbytes for x in tensors.values())
        assert [each.end() for each in engines] == [[version, expected(tensors), None]] * 2


@pytest.mark.parametrize("inference", [False, True])
def test_tensors_that_an_engine_keeps_stay_what_they_are(joined, inference):
    """Each of them is as large as a bucket, or shares one with others that follow."""
    tensors = {f"{name} {i}": x for i in range(4) for name, x in weights(i).items()}
    sender, engines = joined(1)
    engines[0].begin("keep", 1, inference, False)
    assert not sender.send(tensors.items(), 1).left_out
    assert engines[0].end() == [1, expected(tensors)]


def test_views_of_buckets_are_for_who_asks(joined):
    sender, engines = joined(1)
    tensors = {str(i): torch.full((BUCKET // 8,), i) for i in range(6)}
    engines[0].begin("keep", 1, True, True)
    assert not sender.send(tensors.items(), 1).left_out
    version, found = engines[0].end()
    assert version == 1 and found.keys() == tensors.keys() and found != expected(tensors)


def test_a_stream_may_be_awaited_and_have_no_tensors(joined):
    sender, engines = joined(1)

    async def pairs():
        for pair in weights(5).items():
            yield pair

    begin(engines, 5)
    asyncio.run(sender.send_async(pairs(), 5))
    assert engines[0].end() == [5, expected(weights(5)), None]
    begin(engines, 6)
    assert sender.send([], 6).nbytes == 0
    assert engines[0].end() == [6, {}, None]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_dies_or_freezes_is_left_out_and_the_others_get_all(joined, how):
    sender, engines = joined(3, timeout=10.0, join_timeout=10.0)
    victim = engines[1]

    def pairs():
        for number, pair in enumerate(weights(8).items()):
            if number == 5:
                victim.process.send_signal(how)
            yield pair

    begin(engines, 8)
    sent = sender.send(pairs(), 8)
    assert list(sent.left_out) == [victim.id]
    others = [each for each in engines if each is not victim]
    assert [each.end() for each in others] == [[8, expected(weights(8)), None]] * 2
    if how == signal.SIGSTOP:
        victim.process.send_signal(signal.SIGCONT)
        version, found, error = victim.end()
        assert version is None and "may hold parts of two" in error
        assert len(found) < len(weights(8))


def test_a_trainer_that_fails_half_way_leaves_no_engine_with_a_version(joined):
    sender, engines = joined(2)

    def pairs():
        yield from list(weights(9).items())[:6]
        raise ZeroDivisionError

    begin(engines, 9)
    with pytest.raises(ZeroDivisionError):
        sender.send(pairs(), 9)
    for each in engines:
        version, found, error = each.end()
        assert version is None and len(found) <= 6
        assert "PeerLost" in error and "may hold parts of two" in error


def test_an_engine_that_cannot_load_is_left_out(joined):
    sender, engines = joined(2)
    engines[0].begin("receive", 1, 2)
    engines[1].begin("receive", 1)
    sent = sender.send(weights(1).items(), 1)
    version, found, _ = engines[0].end()
    assert version is None and len(found) == 2
    assert engines[1].end() == [1, expected(weights(1)), None]
    assert list(sent.left_out) == [engines[0].id]


def test_an_engine_that_cannot_load_the_last_tensor_of_the_only_bucket_is_left_out(joined):
    sender, engines = joined(2, bucket_bytes=1 << 20)
    tensors = weights(1)
    engines[0].begin("receive", 1, len(tensors))
    engines[1].begin("receive", 1)
    sent = sender.send(tensors.items(), 1)
    assert engines[0].end()[0] is None
    assert engines[1].end() == [1, expected(tensors), None]
    assert list(sent.left_out) == [engines[0].id]
    # The only one that was left fails in its turn.
    engines[1].begin("receive", 2, len(tensors))
    with pytest.raises(tensorferry.PeerLost, match="no receiver is left"):
        sender.send(weights(2).items(), 2)
    assert engines[1].end()[0] is None
    with pytest.raises(tensorferry.PeerLost, match="version 3 has no receiver"):
        sender.send(weights(3).items(), 3)
    with pytest.raises(tensorferry.PeerLost, match="version 3 has no receiver"):
        asyncio.run(sender.send_async(weights(3).items(), 3))


@pytest.mark.parametrize("why", ["it is full", None])
def test_a_receiver_that_is_asked_says_why_it_failed(endpoint, why):
    other = transfer.Endpoint(listen_host="127.0.0.1")
    with contextlib.closing(other), contextlib.ExitStack() as ended:
        to_us = other.connect(endpoint.address, SECONDS)
        (peer,) = _weight_stream.accept_all(endpoint, 1, timeout=SECONDS)
        sender = _weight_stream.WeightSender([peer], join_timeout=SECONDS)
        ended.callback(sender.close)

        def fail():
            if why is None:
                to_us.close()
                return
            # A receiver says why only after the trainer has told the end.
            asyncio.run(_relay.hear(to_us, _weight_stream._HEADER, SECONDS))
            _weight_stream._say_farewell(to_us, why)

        told = threading.Thread(target=fail)
        told.start()
        with pytest.raises(tensorferry.PeerLost, match=why or "no receiver is left"):
            sender.send([], 1)
        told.join(SECONDS)
        assert not told.is_alive()


def test_connections_that_this_side_closes_are_lost_peers(joined):
    sender, engines = joined(1)
    begin(engines, 1)

    def pairs():
        yield from list(weights(1).items())[:5]
        for peer in sender.peers:
            peer.close()
        yield from list(weights(1).items())[5:]

    with pytest.raises(tensorferry.PeerLost, match="no receiver is left"):
        sender.send(pairs(), 1)
    assert engines[0].end()[0] is None


def test_nothing_is_sent_any_more_when_a_send_was_cancelled(joined):
    sender, _ = joined(1, bucket_bytes=1 << 20)  # its engine takes nothing
    began, ended, send_bucket = threading.Event(), threading.Event(), sender.send_bucket

    async def observed(*arguments):
        began.set()
        try:
            await send_bucket(*arguments)
        finally:
            ended.set()

    async def cancelled():
        task = asyncio.create_task(sender.send_async(weights(1).items(), 1))
        assert await asyncio.to_thread(began.wait, SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    sender.send_bucket = observed
    asyncio.run(cancelled())


def test_memory_of_one_bucket_stays_registered_when_the_other_is_made(joined):
    sender, _ = joined(1)
    cpu = torch.device("cpu")
    sender.buffer(0, cpu)
    kept = sender._registered(0, 64)
    region = kept.region(sender.peers[0].endpoint, "bucket", "")
    sender.buffer(1, cpu)
    assert sender._registered(0, 64) is kept
    assert kept.region(sender.peers[0].endpoint, "bucket", "") is region


def test_a_version_that_is_not_expected_is_refused(joined):
    sender, engines = joined(1)
    begin(engines, 2)
    with pytest.raises(tensorferry.PeerLost, match="no receiver is left"):
        sender.send(weights(1).items(), 1)
    version, found, error = engines[0].end()
    assert version is None and found == {}
    assert "sends version 1, and version 2 is expected here" in error


PART = ["x", [4], "float32", 0, 0, 16]


@pytest.mark.parametrize(
    "changed",
    [
        {"nbytes": 15},
        {"nbytes": -1},
        {"bucket": "0"},
        {"parts": [["x", [3], "float32", 0, 0, 16]]},
        {"parts": [["x", [4], "float32", 4, 0, 16]]},
        {"parts": [["x", [4], "float32", 0, 3, 13]]},
        {"parts": [["x", [4], "float32", 0, -256, 16]]},
        {"parts": [["x", [4], "manual_seed", 0, 0, 16]]},
        {"parts": [["x", [4], "qint32", 0, 0, 16]]},  # torch ends the process where such a tensor is printed
        {"parts": [["x", [-4], "float32", 0, 0, -16]]},
        {"parts": [PART[:5]]},
        {"parts": None},
    ],
)
def test_a_header_that_names_bytes_outside_its_bucket_is_refused(changed):
    header = {"bucket": 0, "nbytes": 16, "parts": [PART]}
    _weight_stream._check(header)
    with pytest.raises(tensorferry.Corrupt):
        _weight_stream._check(header | changed)


def test_those_who_are_not_expected_are_not_receivers(endpoint):
    strange, known = (transfer.Endpoint(listen_host="127.0.0.1") for _ in range(2))
    to_us = strange.connect(endpoint.address, SECONDS)
    also = known.connect(endpoint.address, SECONDS)
    (peer,) = _weight_stream.accept_all(endpoint, 1, [known.id], SECONDS)
    assert peer.peer == known.id
    with pytest.raises(tensorferry.Timeout, match="0 of 2 receivers have connected"):
        _weight_stream.accept_all(endpoint, 2, timeout=0.01)
    for each in (to_us, also, peer):
        each.close()
    strange.close()
    known.close()


def test_a_sender_without_receivers_is_refused():
    with pytest.raises(tensorferry.InvalidArgument, match="0 connections"):
        _weight_stream.WeightSender([])


def test_connections_of_several_endpoints_are_refused():
    made = [types.SimpleNamespace(endpoint=types.SimpleNamespace(id=str(i))) for i in range(2)]
    with pytest.raises(tensorferry.InvalidArgument, match="several endpoints"):
        _weight_stream.WeightSender(made)
