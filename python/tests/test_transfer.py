"""Tests of transfers between two processes."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import tensorferry
from tensorferry import transfer

SECONDS = 60


def remote_region(peer, connection, *arguments):
    return connection.import_region(bytes.fromhex(peer.register(*arguments)))


def test_a_write_arrives_in_the_other_process(peer, endpoint, connected):
    remote = remote_region(peer, connected, 3_000_001)
    local = endpoint.register(np.full(3_000_001, 7, dtype=np.uint8), "")
    operation = connected.write(local, remote, notification=b"done")
    assert operation.wait(SECONDS) == 3_000_001
    assert bytes.fromhex(peer.notification()) == b"done"
    assert peer.values() == [7]


def test_a_read_brings_what_is_there(peer, endpoint, connected):
    remote = remote_region(peer, connected, 1000, 9)
    memory = np.zeros(1000, dtype=np.uint8)
    connected.read(endpoint.register(memory, ""), remote).wait(SECONDS)
    assert (memory == 9).all()


@pytest.mark.parametrize("form", ["list", "uint64", "int64", "columns"])
def test_blocks_are_of_local_offset_remote_offset_and_bytes(peer, endpoint, connected, form):
    remote = remote_region(peer, connected, 64, 5)
    memory = np.zeros(32, dtype=np.uint8)
    local = endpoint.register(memory)
    blocks = [(0, 60, 4), (8, 0, 2)]
    if form == "columns":
        blocks = np.asfortranarray(np.array(blocks))
    elif form != "list":
        blocks = np.array(blocks, dtype=form)
    assert connected.read(local, remote, blocks).wait(SECONDS) == 6
    assert memory.tolist() == [5] * 4 + [0] * 4 + [5] * 2 + [0] * 22


def test_pages_come_in_pairs(peer, endpoint, connected):
    remote = remote_region(peer, connected, 100)
    local = endpoint.register(np.arange(100, dtype=np.uint8))
    connected.write(local, remote, transfer.pages([1, 2], [5, 3], 10)).wait(SECONDS)
    assert peer.values() == list(range(0, 1)) + list(range(10, 30))
    with pytest.raises(tensorferry.InvalidArgument, match="2 local pages and 1 remote ones"):
        transfer.pages([1, 2], [5], 10)


def test_a_prepared_transfer_is_posted_many_times(peer, endpoint, connected):
    remote = remote_region(peer, connected, 100)
    memory = np.zeros(100, dtype=np.uint8)
    prepared = connected.prepare_write([(endpoint.register(memory), remote, None)])
    assert prepared.nbytes == 100
    for value in (1, 2, 3):
        memory[:] = value
        connected.post(prepared).wait(SECONDS)
        assert peer.values() == [value]


def test_messages_go_by_their_tags(peer, connected):
    peer.begin("receive", 100, 7)
    assert connected.send(b"to seven", 7).wait(SECONDS) == 8
    assert bytes.fromhex(peer.end()) == b"to seven"
    peer.begin("send", 1_000_000, 3, 5)
    buffer = np.zeros(1_000_000, dtype=np.uint8)
    operation = connected.recv(buffer, 1, mask=1)
    assert operation.wait(SECONDS) == 1_000_000
    assert operation.tag == 5
    assert (buffer == 3).all()
    assert peer.end() == 1_000_000


def test_operations_can_be_awaited(peer, endpoint, connected):
    remote = remote_region(peer, connected, 1000)
    local = endpoint.register(np.ones(1000, dtype=np.uint8))

    async def main():
        writes = [connected.write(local, remote, [(i, i, 1)]) for i in range(100)]
        return await asyncio.wait_for(asyncio.gather(*writes), SECONDS)

    assert asyncio.run(main()) == [1] * 100


def test_cancelling_a_task_ends_its_operation(connected):
    async def main():
        operation = connected.recv(bytearray(10), 1)

        async def awaiting():
            await operation

        task = asyncio.create_task(awaiting())
        await asyncio.sleep(0)  # it waits
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert operation.done()

    asyncio.run(main())


def test_a_peer_that_dies_ends_operations_by_peer_lost(peer, connected):
    waiting = connected.recv(bytearray(10), 1)
    peer.begin("die")
    with pytest.raises(tensorferry.PeerLost, match="127.0.0.1"):
        waiting.wait(SECONDS)
    assert connected.lost
    with pytest.raises(ConnectionError):
        connected.send(b"more").wait(SECONDS)


def test_a_region_outlives_its_name(peer, endpoint, connected):
    remote = remote_region(peer, connected, 40_000_000)
    memory = np.full(40_000_000, 4, dtype=np.uint8)
    alive = weakref.ref(memory)
    local = endpoint.register(memory, "")
    operation = connected.write(local, remote)
    del memory, local
    gc.collect()
    assert alive() is not None
    operation.wait(SECONDS)
    assert peer.values() == [4]
    del operation
    gc.collect()
    assert alive() is None


def test_memory_outlives_an_operation_that_nobody_holds(peer, endpoint, connected):
    memory = np.zeros(10, dtype=np.uint8)
    alive = weakref.ref(memory)
    connected.recv(memory, 1)
    del memory
    gc.collect()
    assert alive() is not None
    peer.send(10, 6, 1)
    # Later operations let go of those that have ended.
    deadline = threading.Event()
    timer = threading.Timer(SECONDS, deadline.set)
    timer.start()
    while alive() is not None:
        assert not deadline.is_set()
        connected.send(b"").wait(SECONDS)
    timer.cancel()


def test_closing_the_endpoint_lets_go_of_all_memory(endpoint, connected):
    memory = np.zeros(10, dtype=np.uint8)
    alive = weakref.ref(memory)
    connected.recv(memory, 1)
    del memory
    endpoint.close()
    gc.collect()
    assert alive() is None
    with pytest.raises(tensorferry.Cancelled, match="endpoint is closed"):
        endpoint.register(np.zeros(10))


def test_a_deregistered_region_is_refused_to_the_peer(peer, endpoint, connected):
    remote = remote_region(peer, connected, 100)
    local = endpoint.register(np.zeros(100, dtype=np.uint8))
    peer.deregister()
    with pytest.raises(tensorferry.Refused):
        connected.write(local, remote).wait(SECONDS)
    local.deregister(SECONDS)
    local.deregister(SECONDS)
    with pytest.raises(tensorferry.InvalidArgument, match="was deregistered"):
        connected.write(local, remote)


def test_rights_are_kept(peer, endpoint, connected):
    remote = remote_region(peer, connected, 100, 0, "r")
    local = endpoint.register(np.zeros(100, dtype=np.uint8))
    assert remote.rights == "r"
    with pytest.raises(PermissionError):
        connected.write(local, remote).wait(SECONDS)
    connected.read(local, remote).wait(SECONDS)


INTERRUPTED = """
import signal, sys, threading
from tensorferry import transfer
# Jobs in the background are begun with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.alarm(100)
endpoint = transfer.Endpoint(listen_host="127.0.0.1")
other = transfer.Endpoint(listen_host="127.0.0.1")
waits = {
    "accept": lambda: endpoint.accept(),
    "wait": lambda: endpoint.connect(other.address).recv(bytearray(1)).wait(),
    "notification": lambda: endpoint.connect(other.address).take_notification(),
    # Listens, and never says anything.
    "connect": lambda: transfer.Endpoint(listen_host="127.0.0.1", handshake_timeout=300).connect(
        f"127.0.0.1:{silent()}", 300),
}
def silent():
    import socket
    global listener
    listener = socket.create_server(("127.0.0.1", 0))
    return listener.getsockname()[1]
def tell():
    # When the main thread is in the call below.
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code.co_name != "<lambda>":
        pass
    print("waiting", flush=True)
threading.Thread(target=tell, daemon=True).start()
try:
    waits[sys.argv[1]]()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("call", ["accept", "wait", "notification", "connect"])
def test_ctrl_c_ends_a_wait(call):
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, call], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait(SECONDS)
        process.stdout.close()


def test_other_threads_go_on_while_one_waits(connected):
    operation = connected.recv(bytearray(1), 1)
    ended = []

    def wait():
        with pytest.raises(tensorferry.Cancelled):
            operation.wait()
        ended.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    # This thread goes on, or the other would never end.
    assert sum(range(1000)) == 499500
    assert not ended
    operation.cancel()
    waiting.join(SECONDS)
    assert ended


def test_an_operation_can_be_awaited_twice(peer, connected):
    operation = connected.recv(bytearray(10), 1)

    async def main():
        async def awaiting():
            return await operation

        both = [asyncio.create_task(awaiting()) for _ in range(2)]
        await asyncio.sleep(0)
        peer.begin("send", 10, 3, 1)
        return await asyncio.wait_for(asyncio.gather(*both), SECONDS)

    assert asyncio.run(main()) == [10, 10]
    assert peer.end() == 10


def test_closing_ends_whoever_waits_for_peers(endpoint):
    raised = []

    def accept():
        try:
            endpoint.accept()
        except tensorferry.Cancelled as error:
            raised.append(error)

    accepting = threading.Thread(target=accept)
    accepting.start()
    endpoint.close()
    accepting.join(SECONDS)
    assert raised


WAITS_AT_EXIT = """
import sys, threading
from tensorferry import transfer
endpoint = transfer.Endpoint(listen_host="127.0.0.1")
other = transfer.Endpoint(listen_host="127.0.0.1")
connection = endpoint.connect(other.address)
operation = connection.recv(bytearray(1))
waits = {
    "accept": endpoint.accept,
    "wait": operation.wait,
    "notification": connection.take_notification,
}
waits["again and again"] = waits["notification"]
def wait():
    while True:
        try:
            waits[sys.argv[1]]()
        except transfer.errors.Cancelled:
            if sys.argv[1] != "again and again":
                return
threading.Thread(target=wait, daemon=True).start()
"""


@pytest.mark.parametrize("call", ["accept", "wait", "notification", "again and again"])
def test_a_process_may_end_while_a_thread_waits(call):
    done = subprocess.run(
        [sys.executable, "-c", WAITS_AT_EXIT, call], timeout=SECONDS, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        (7, "int has no bytes"),
        (np.zeros((4, 4))[:, 1], "cannot be had in one piece"),
        (b"fixed", "bytes is read-only"),
        (np.zeros(0), "at least one byte"),
        (np.array([None]), "holds Python objects"),
        (np.zeros(2, dtype=[("Out", "f4"), ("b", "O")]), "holds Python objects"),
    ],
)
def test_memory_that_cannot_be_used_is_refused(endpoint, memory, said):
    with pytest.raises(tensorferry.InvalidArgument, match=said):
        endpoint.register(memory)


def test_read_only_memory_may_be_sent_and_not_read_into(peer, endpoint, connected):
    remote = remote_region(peer, connected, 5)
    local = endpoint.register(b"fixed", "r")
    connected.write(local, remote).wait(SECONDS)
    assert peer.values() == sorted(set(b"fixed"))
    with pytest.raises(tensorferry.InvalidArgument, match="read-only"):
        connected.read(local, remote)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c, l, r: c.write(l, r, [(0, 0)]), "blocks: give rows"),
        (lambda c, l, r: c.write(l, r, [(0, -1, 1)]), "blocks: give rows"),
        (lambda c, l, r: c.write(l, r, []), "block"),
        (lambda c, l, r: c.write(l, r, np.array([[0.5, 0, 1]])), "blocks: give rows"),
        (lambda c, l, r: c.write(r, l), "parts: each is"),
        (lambda c, l, r: c.prepare_write([1, 2]), "parts: each is"),
        (lambda c, l, r: c.prepare_write([(l, None, None)]), "parts: each is"),
        (lambda c, l, r: c.write(l, r, [(0, 0, 1)], stream=-1), "stream: give 'auto'"),
        (lambda c, l, r: c.write(l, r, [(0, 0, 1)], stream=object()), "stream: give 'auto'"),
        (lambda c, l, r: c.write(l, r, [(0, 91, 10)]), "91..101"),
        (lambda c, l, r: c.write(l, r), "10 bytes, the remote one 100"),
        (lambda c, l, r: c.write(l, r, [(0, 0, 1)], timeout=-1), "timeout is -1"),
        (lambda c, l, r: c.write(l, r, [(0, 0, 1)], timeout=float("nan")), "timeout is nan"),
        (lambda c, l, r: c.write(l, r, [(0, 0, 1)], stream="other"), "stream: give 'auto'"),
        (lambda c, l, r: c.import_region(b"no key"), "key"),
        (lambda c, l, r: c.notify(b""), "1 to 65536 bytes, not 0"),
        (lambda c, l, r: l.key_for("12", "r"), "'12' is no endpoint's id"),
        (lambda c, l, r: l.key_for("g" * 32, "r"), "is no endpoint's id"),
        (lambda c, l, r: l.key_for("0" * 32, "x"), "rights are 'x'"),
    ],
)
def test_wrong_calls_say_what_is_wrong(peer, endpoint, connected, call, said):
    remote = remote_region(peer, connected, 100)
    local = endpoint.register(np.zeros(10, dtype=np.uint8))
    with pytest.raises(tensorferry.InvalidArgument, match=said):
        call(connected, local, remote)


def test_wrong_settings_are_named():
    with pytest.raises(tensorferry.InvalidArgument, match="lane_count"):
        transfer.Endpoint(lane_count=4)
    with pytest.raises(tensorferry.InvalidArgument, match="lanes"):
        transfer.Endpoint(lanes=-4)
    with pytest.raises(tensorferry.InvalidArgument, match="interfaces=nosuch0 .* this machine has lo 127.0.0.1"):
        transfer.Endpoint(interfaces="nosuch0")
    with pytest.raises(ValueError, match="these 10 bytes are not an endpoint address"):
        transfer.Endpoint(listen_host="127.0.0.1").connect(b"no address")


def test_nobody_there_is_a_connection_error(endpoint):
    gone = transfer.Endpoint(listen_host="127.0.0.1")
    address = gone.address
    gone.close()
    with pytest.raises(ConnectionError):
        endpoint.connect(address, 5)


def test_facts_are_plain_data(connected, endpoint):
    info = connected.info()
    assert info["provider"] == "tcp"
    assert info["lanes"]
    assert connected.counters()["operations"]["send"]["begun"] == 0
    assert endpoint.counters()["connections_open"] == 1
    assert connected.events() == []
    assert len(endpoint.id) == 32
