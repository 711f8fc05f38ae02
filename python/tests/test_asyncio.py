"""Awaiting peers, connections and notifications: the event loop goes on, and cancelling is clean."""

import asyncio
import gc
import os
import resource
import socket
import threading

import pytest

import tensorferry
from tensorferry import _asyncio, transfer

SECONDS = 60


def run(main):
    return asyncio.run(asyncio.wait_for(main, SECONDS))


@pytest.fixture
def other():
    made = transfer.Endpoint(listen_host="127.0.0.1")
    yield made
    made.close()


async def pair(endpoint, other):
    """(our connection to the other, the other's to us)"""
    accepting = asyncio.create_task(other.accept_async())
    ours = await endpoint.connect_async(other.address)
    return ours, await accepting


def test_both_sides_of_a_connection_and_its_notifications_are_awaited_in_one_thread(
    endpoint, other
):
    async def main():
        ours, theirs = await pair(endpoint, other)
        assert isinstance(ours, transfer.Connection)
        waiting = asyncio.create_task(theirs.take_notification_async())
        await asyncio.sleep(0)  # it waits
        await ours.notify(b"one")
        assert await waiting == b"one"
        await ours.notify(b"two")
        assert await theirs.take_notification_async(SECONDS) == b"two"
        by_name = f"127.0.0.1:{other.port}"
        again = await endpoint.connect_async(by_name, timeout=SECONDS)
        await other.accept_async(timeout=SECONDS)
        assert again.peer == other.id

    run(main())


@pytest.fixture
def silent():
    """A host and port where somebody listens who never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def waits(endpoint, connection, address):
    return {
        "accept": lambda: endpoint.accept_async(),
        "notification": lambda: connection.take_notification_async(),
        "connect": lambda: endpoint.connect_async(address, timeout=SECONDS),
    }


@pytest.mark.parametrize("call", ["accept", "notification", "connect"])
def test_the_event_loop_goes_on_while_a_task_waits(endpoint, other, silent, call):
    async def main():
        ours, _ = await pair(endpoint, other)
        task = asyncio.create_task(waits(endpoint, ours, silent)[call]())
        turns = 0
        while turns < 1000:
            await asyncio.sleep(0)
            turns += 1
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_cancelled_tasks_leave_no_descriptor_and_take_nothing(endpoint, other):
    async def main():
        ours, theirs = await pair(endpoint, other)
        for begin in (other.accept_async, theirs.take_notification_async):
            task = asyncio.create_task(begin())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        before = descriptors()
        for begin in (other.accept_async, theirs.take_notification_async):
            for _ in range(20):
                task = asyncio.create_task(begin())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
        assert descriptors() == before
        await ours.notify(b"kept")
        assert await theirs.take_notification_async() == b"kept"
        await endpoint.connect_async(other.address)
        assert (await other.accept_async()).peer == endpoint.id

    run(main())


@pytest.mark.parametrize("broken", ["call_later", "add_reader"])
def test_an_event_loop_that_refuses_leaves_no_descriptor(endpoint, monkeypatch, broken):
    class Refused(Exception):
        pass

    def refuse(*_):
        raise Refused

    async def main():
        readiness = endpoint._accept_readiness()
        loop = asyncio.get_running_loop()
        before = descriptors()
        with monkeypatch.context() as patch:
            patch.setattr(loop, broken, refuse)
            for _ in range(5):
                with pytest.raises(Refused):
                    await _asyncio._readable(readiness, SECONDS)
        assert descriptors() == before

    asyncio.run(main())


def test_each_of_several_waiting_tasks_gets_one(endpoint, other):
    async def main():
        ours, theirs = await pair(endpoint, other)
        tasks = [asyncio.create_task(theirs.take_notification_async()) for _ in range(10)]
        await asyncio.sleep(0)
        for i in range(10):
            await ours.notify(bytes([i]))
        assert sorted(await asyncio.gather(*tasks)) == [bytes([i]) for i in range(10)]

    run(main())


def test_a_connection_that_nobody_waits_for_any_more_is_closed(endpoint, other):
    async def main():
        attempt = asyncio.create_task(endpoint.connect_async(other.address))
        await asyncio.sleep(0)  # it has begun
        attempt.cancel()
        await asyncio.wait([attempt])
        try:  # it may have been given up before the peer knew of it
            theirs = await other.accept_async(timeout=1)
        except tensorferry.Timeout:
            return
        with pytest.raises(tensorferry.PeerLost):
            await theirs.take_notification_async(timeout=SECONDS)

    run(main())


def test_timeouts_are_kept_and_wrong_ones_refused(endpoint, other, silent):
    async def main():
        ours, _ = await pair(endpoint, other)
        for timeout in (0, 0.01):
            with pytest.raises(tensorferry.Timeout, match="no peer connected"):
                await endpoint.accept_async(timeout)
            with pytest.raises(tensorferry.Timeout, match="no notification"):
                await ours.take_notification_async(timeout=timeout)
        with pytest.raises(tensorferry.Timeout):
            await endpoint.connect_async(silent, timeout=0.05)
        for begin in (endpoint.accept_async, ours.take_notification_async,
                      lambda timeout: endpoint.connect_async(silent, timeout)):
            for wrong in (-1, float("nan")):
                with pytest.raises(tensorferry.InvalidArgument, match="timeout is"):
                    await begin(wrong)

    run(main())


def test_a_peer_that_closes_and_an_endpoint_that_closes_end_what_waits(endpoint, other):
    async def main():
        ours, theirs = await pair(endpoint, other)
        taking = asyncio.create_task(theirs.take_notification_async())
        accepting = asyncio.create_task(endpoint.accept_async())
        await asyncio.sleep(0)
        ours.close()
        with pytest.raises(tensorferry.PeerLost):
            await taking
        closing = threading.Thread(target=endpoint.close)
        closing.start()
        with pytest.raises(tensorferry.Cancelled):
            await accepting
        closing.join(SECONDS)
        with pytest.raises(tensorferry.Cancelled):
            await endpoint.accept_async()

    run(main())


def test_nobody_there_is_a_connection_error_of_the_await(endpoint):
    gone = transfer.Endpoint(listen_host="127.0.0.1")
    address = gone.address
    gone.close()

    async def main():
        with pytest.raises(ConnectionError):
            await endpoint.connect_async(address, 5)
        with pytest.raises(tensorferry.InvalidArgument, match="not an endpoint address"):
            await endpoint.connect_async(b"no address")

    run(main())


def test_many_more_writes_are_awaited_at_once_than_there_are_descriptors(endpoint, other):
    count = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    source = bytearray(os.urandom(count * 64))
    target = bytearray(len(source))

    async def main():
        ours, _ = await pair(endpoint, other)
        local, far = endpoint.register(source), other.register(target)
        remote = ours.import_region(far.key)
        before = len(os.listdir("/proc/self/fd"))
        writes = [ours.write(local, remote, [(64 * i, 64 * i, 64)]) for i in range(count)]
        tasks = [asyncio.ensure_future(write) for write in writes]
        await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) <= before + 2
        assert await asyncio.gather(*tasks) == [64] * count

    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert target == source


def test_an_operation_may_be_awaited_twice_and_one_task_of_the_two_cancelled(endpoint, other):
    async def main():
        ours, theirs = await pair(endpoint, other)
        buffer = bytearray(1)
        receive = theirs.recv(buffer, 5)

        async def wait():
            return await receive

        first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        await ours.send(b"x", 5)
        assert await first == 1 and await second == 1 and buffer == b"x"
        again = theirs.recv(buffer, 6)
        task = asyncio.create_task(asyncio.wait_for(again, SECONDS))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert again.done()

    run(main())
