"""Tests of transfers of many tensors at once, and of the examples."""

import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import tensorferry
from tensorferry import transfer

SECONDS = 60
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def weights(fill, names=("a", "b", "none")):
    shapes = {"a": (3, 5), "b": (100_000,), "none": (0, 4)}
    return {name: np.full(shapes.get(name, (2,)), fill, np.float32) for name in names}


@pytest.fixture
def two_peers(endpoint):
    """Connections to two other endpoints, and theirs to us."""
    others = [transfer.Endpoint(listen_host="127.0.0.1") for _ in range(2)]
    ours = [endpoint.connect(other.address, SECONDS) for other in others]
    theirs = [other.accept(SECONDS) for other in others]
    yield ours, theirs
    for other in others:
        other.close()


def receiving(connection, into):
    """A thread that receives weights; join() raises what it raised."""
    raised = []

    def receive():
        try:
            transfer.receive_weights(into, connection, SECONDS)
        except tensorferry.Error as error:
            raised.append(error)

    thread = threading.Thread(target=receive)
    thread.start()

    def join():
        thread.join(SECONDS)
        assert not thread.is_alive()
        if raised:
            raise raised[0]

    return join


def test_weights_are_pushed_to_all_peers(two_peers):
    ours, theirs = two_peers
    into = [weights(0), weights(0)]
    joins = [receiving(c, w) for c, w in zip(theirs, into)]
    pushed = weights(7)
    assert transfer.push_weights(pushed, ours, SECONDS) == 2 * sum(
        x.nbytes for x in pushed.values())
    for join, each in zip(joins, into):
        join()
        assert all((x == 7).all() for x in each.values())


def test_weights_that_are_kept_are_registered_once(two_peers):
    ours, theirs = two_peers
    into = [transfer.Weights(weights(0)) for _ in theirs]
    with transfer.Weights(weights(0)) as pushed:
        regions = []
        for value in (1, 2, 3):
            for x in pushed.tensors.values():
                x.fill(value)
            joins = [receiving(c, w) for c, w in zip(theirs, into)]
            transfer.push_weights(pushed, ours, SECONDS)
            for join, each in zip(joins, into):
                join()
                assert all((x == value).all() for x in each.tensors.values())
            regions.append([id(pushed.region(ours[0].endpoint, name, "")) for name in ("a", "b")])
    assert regions[0] == regions[1] == regions[2]
    for each in into:
        each.close()


def test_kept_weights_are_written_by_nobody_between_pushes(two_peers):
    ours, theirs = two_peers
    into = transfer.Weights(weights(0))
    keys = []

    class Spy:
        """A connection that notes which keys it was given."""

        def __getattr__(self, name):
            return getattr(ours[0], name)

        def import_region(self, key):
            keys.append(key)
            return ours[0].import_region(key)

    join = receiving(theirs[0], into)
    transfer.push_weights(weights(7), [Spy()], SECONDS)
    join()
    late = ours[0].endpoint.register(np.zeros((3, 5), np.float32), "")
    with pytest.raises(tensorferry.Refused, match="was not withdrawn"):
        ours[0].write(late, ours[0].import_region(keys[0])).wait(SECONDS)
    assert (into.tensors["a"] == 7).all()
    # A failed transfer may still be writing to the memory, so none of it is kept.
    joins = [receiving(theirs[0], into)]
    with pytest.raises(tensorferry.InvalidArgument, match="does not have 'more'"):
        transfer.push_weights(weights(7) | {"more": np.zeros(1)}, ours[:1], SECONDS)
    with pytest.raises(tensorferry.InvalidArgument):
        joins[0]()
    assert not into._regions


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (weights(0, ("a", "b", "none", "more")), "the peer has 'more', which is not pushed"),
        (weights(0, ("a", "b")), "the peer does not have 'none'"),
        (weights(0) | {"a": np.zeros((5, 3), np.float32)}, r"'a' is \[3, 5\] float32 here, and "
         r"\[5, 3\] float32 at the peer"),
        (weights(0) | {"a": np.zeros((3, 5), np.float16)}, "float16 at the peer"),
    ],
)
def test_weights_that_differ_are_named_on_all_sides(two_peers, there, said):
    ours, theirs = two_peers
    good = weights(0)
    joins = [receiving(theirs[0], there), receiving(theirs[1], good)]
    with pytest.raises(tensorferry.InvalidArgument, match=said):
        transfer.push_weights(weights(7), ours, SECONDS)
    with pytest.raises(tensorferry.InvalidArgument, match=said):
        joins[0]()
    with pytest.raises(tensorferry.InvalidArgument, match="push_weights"):
        joins[1]()
    assert (good["a"] == 0).all()


def test_pages_go_to_their_places(peer, endpoint, connected):
    remote = connected.import_region(bytes.fromhex(peer.register(64)))
    region = endpoint.register(np.arange(1, 65, dtype=np.uint8), "")
    operation = transfer.send_kv(
        connected, [region], [remote], [0, 3], [2, 0], 16, notification=b"pages")
    assert operation.wait(SECONDS) == 32
    assert bytes.fromhex(peer.notification()) == b"pages"
    assert peer.values() == [0] + list(range(1, 17)) + list(range(49, 65))
    with pytest.raises(tensorferry.InvalidArgument, match="2 regions and 1 remote"):
        transfer.send_kv(connected, [region, region], [remote], [1], [2], 16)


def test_a_peer_that_goes_ends_the_push_for_all(two_peers):
    ours, theirs = two_peers
    good = weights(0)
    join = receiving(theirs[0], good)
    theirs[1].close()
    with pytest.raises(tensorferry.PeerLost):
        transfer.push_weights(weights(7), ours, SECONDS)
    with pytest.raises(tensorferry.InvalidArgument, match="closed the connection"):
        join()


def test_a_peer_that_cannot_receive_says_so(two_peers):
    ours, theirs = two_peers
    joins = [receiving(theirs[0], weights(0)),
             receiving(theirs[1], weights(0) | {"a": np.zeros((5, 3), np.float32).T})]
    with pytest.raises(tensorferry.InvalidArgument, match="'a': it is not in C order"):
        transfer.push_weights(weights(7), ours, SECONDS)
    for join in joins:
        with pytest.raises(tensorferry.InvalidArgument, match="'a': it is not in C order"):
            join()


def test_what_is_no_offer_is_corrupt(two_peers):
    ours, theirs = two_peers
    from tensorferry import _collective, _messages

    for said in (b"no JSON", b'{"tensors": {"a": 7}}'):
        theirs[0].send(len(said).to_bytes(8, "little"), _collective._MANIFEST + _messages.SIZE)
        theirs[0].send(said, _collective._MANIFEST)
        with pytest.raises(tensorferry.Corrupt, match="127.0.0.1"):
            transfer.push_weights(weights(7), ours[:1], SECONDS)
    theirs[0].send((1 << 60).to_bytes(8, "little"), _collective._MANIFEST + _messages.SIZE)
    with pytest.raises(tensorferry.Corrupt, match="1152921504606846976 bytes"):
        transfer.push_weights(weights(7), ours[:1], SECONDS)


@pytest.mark.parametrize("name", ["push_weights.py", "kv_handover.py"])
def test_examples_run(name):
    pytest.importorskip("torch", reason="torch is not installed")
    done = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True,
                          timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "GB/s" in done.stdout
