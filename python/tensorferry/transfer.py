"""Moves the bytes of arrays and tensors between processes.

    endpoint = tensorferry.transfer.Endpoint()
    region = endpoint.register(tensor)              # give region.key to the peer, by any way
    connection = endpoint.connect("10.0.0.2:5555")  # or accept()
    operation = connection.write(region, connection.import_region(key))
    operation.wait()                                # or: await operation

NumPy arrays, torch tensors of the host and of GPUs, CuPy arrays and whatever has the buffer
protocol are memory. Operations on GPU memory begin after what torch's current stream has queued.
"""

import atexit
import importlib
import typing

from tensorferry import errors
from tensorferry._core import (
    Connection,
    Endpoint,
    Operation,
    PreparedTransfer,
    Region,
    RemoteRegion,
    _close_all,
)
from tensorferry._collective import Weights, push_weights, receive_weights, send_kv
from tensorferry._reshard import Shard, full_tensors, local_tensors, reshard, shard, shards_of

if typing.TYPE_CHECKING:
    from tensorferry._broadcast import Broadcaster, Outcome, broadcast_weights, connect_group
    from tensorferry._broadcast_receiver import BroadcastReceiver

__all__ = [
    "BroadcastReceiver",
    "Broadcaster",
    "Connection",
    "Endpoint",
    "Operation",
    "Outcome",
    "PreparedTransfer",
    "Region",
    "RemoteRegion",
    "Shard",
    "Weights",
    "broadcast_weights",
    "connect_group",
    "full_tensors",
    "local_tensors",
    "pages",
    "push_weights",
    "receive_weights",
    "reshard",
    "send_kv",
    "shard",
    "shards_of",
]

# Loaded when they are asked for, as they need asyncio.
_ELSEWHERE = {
    "BroadcastReceiver": "_broadcast_receiver",
    "Broadcaster": "_broadcast",
    "Outcome": "_broadcast",
    "broadcast_weights": "_broadcast",
    "connect_group": "_broadcast",
}


def __getattr__(name):
    if name in _ELSEWHERE:
        found = getattr(importlib.import_module(f"tensorferry.{_ELSEWHERE[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'tensorferry.transfer' has no attribute {name!r}")


# Threads that still wait then are ended by it, not by the interpreter in the middle of a wait.
atexit.register(_close_all)


def pages(local, remote, page_bytes):
    """Blocks that pair page local[i] with page remote[i], of page_bytes each."""
    local, remote = list(local), list(remote)
    if len(local) != len(remote):
        raise errors.InvalidArgument(
            f"pages: {len(local)} local pages and {len(remote)} remote ones; they come in pairs"
        )
    return [(int(a) * page_bytes, int(b) * page_bytes, page_bytes) for a, b in zip(local, remote)]
