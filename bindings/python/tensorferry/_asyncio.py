"""Operations as awaitables."""

import asyncio
import os


async def wait(operation):
    """Its end, by the event loop that runs: bytes moved, or the operation's error.

    Cancelling the task cancels the operation and waits until nothing touches its memory any more.
    """
    cancelled = None
    # Only looks: done() would take the connection from the thread that will end the operation.
    while not operation._ended():
        try:
            await _ended(operation)
        except asyncio.CancelledError as error:
            cancelled = error
            operation.cancel()
    if cancelled is not None:
        raise cancelled
    return operation.wait()


async def _ended(operation):
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    # Of our own: a loop has one reader for a descriptor, and an operation may be awaited twice.
    descriptor = os.dup(operation.fileno())

    def readable():
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(descriptor, readable)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
