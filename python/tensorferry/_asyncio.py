"""Operations, and what an endpoint or a connection waits for, as awaitables."""

import asyncio
import itertools
import os
import weakref

from tensorferry import _core, errors


async def wait(operation):
    """Its end, by the event loop that runs: bytes moved, or the operation's error.

    Cancelling the task cancels the operation and waits until nothing touches its memory any more.
    """
    cancelled = None
    # Only looks: done() would take the connection from the thread that will end the operation.
    while not operation._ended():
        try:
            await _ends().of(operation)
        except asyncio.CancelledError as error:
            cancelled = error
            operation.cancel()
    if cancelled is not None:
        raise cancelled
    return operation.wait()


class _Ends:
    """The ends of the operations that an event loop awaits, by one descriptor for all of them."""

    def __init__(self, loop):
        self._loop = weakref.ref(loop)  # whose key this is the value of
        self._queue = _core._CompletionQueue()
        self._process = os.getpid()
        self._futures = {}  # by cookie
        self._cookies = itertools.count()

    async def of(self, operation):
        cookie, ended = next(self._cookies), self._loop().create_future()
        if not self._futures:
            self._loop().add_reader(self._queue.fileno(), self._take)
        self._futures[cookie] = ended
        try:
            self._queue.watch(operation, cookie)
            await ended
        finally:
            self._forget(cookie)

    def _take(self):
        for cookie in self._queue.take():
            ended = self._futures.get(cookie)
            if ended is not None and not ended.done():
                ended.set_result(None)

    def _forget(self, cookie):
        del self._futures[cookie]
        # A forked child that drops the task shares the loop's epoll set with its parent, whose
        # reader it would remove.
        if not self._futures and os.getpid() == self._process and not self._loop().is_closed():
            self._loop().remove_reader(self._queue.fileno())


_ends_of_loops = weakref.WeakKeyDictionary()


def _ends():
    loop = asyncio.get_running_loop()
    ends = _ends_of_loops.get(loop)
    if ends is None:
        ends = _ends_of_loops[loop] = _Ends(loop)
    return ends


async def accept(endpoint, timeout=None):
    """The next peer that has connected."""
    return await _taken(endpoint._accept_readiness(), endpoint.accept, timeout)


async def take_notification(connection, timeout=None):
    """The oldest notification."""
    return await _taken(connection._notification_readiness(), connection.take_notification, timeout)


async def connect(endpoint, address, timeout=None):
    """A connection; if this is cancelled, the one that may still come about is closed."""
    attempt = endpoint._begin_connect(address, timeout)  # keeps the deadline itself
    try:
        await _readable(attempt)
        return attempt.take()
    finally:  # now: what a cancelled task has raised keeps this frame
        attempt.abandon()


async def _taken(readiness, take, timeout):
    """What take(timeout) gives as soon as it need not wait.

    Nothing is awaited between taking and returning, so a cancelled task has taken nothing.
    """
    # take() checks the timeout itself, so it is called before anything is awaited.
    deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
    while True:
        left = None if deadline is None else deadline - asyncio.get_running_loop().time()
        try:
            return take(0 if left is None or left > 0 else min(timeout, 0))
        except errors.Timeout:  # others of the loop's tasks may have been sooner
            if left is not None and left <= 0:
                raise
        await _readable(readiness, left)


async def _readable(waited_for, seconds=None):
    """Returns when its descriptor is readable, or when so many seconds have passed."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    # A descriptor of our own: a loop has one reader for a descriptor, and an operation may be awaited twice.
    descriptor = os.dup(waited_for.fileno())

    def end():
        if not ready.done():
            ready.set_result(None)

    timer, process = None, os.getpid()
    try:
        if seconds is not None:
            timer = loop.call_later(seconds, end)
        loop.add_reader(descriptor, end)
        try:
            await ready
        finally:
            # A forked child that drops the task shares the loop's epoll set with its parent, whose
            # reader it would remove.
            if os.getpid() == process:
                loop.remove_reader(descriptor)
    finally:
        os.close(descriptor)
        if timer is not None:
            timer.cancel()
