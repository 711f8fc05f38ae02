"""Operations as awaitables."""

import asyncio


async def wait(operation):
    """Its end, by the event loop that runs: bytes moved, or the operation's error.

    Cancelling the task cancels the operation and waits until nothing touches its memory any more.
    """
    if not operation.done():
        try:
            await _ended(operation)
        except asyncio.CancelledError:
            operation.cancel()
            await _ended(operation)
            raise
    return operation.wait()


async def _ended(operation):
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    descriptor = operation.fileno()

    def readable():
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(descriptor, readable)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
