from collections.abc import Coroutine, Generator
from typing import Any

from tensorferry._core import kernels as kernels, staging as staging


class Region:
    """
    Memory that transfers may use; keeps the array or tensor alive. Deregisters when it goes, which waits for those who are in the memory.
    """

    @property
    def memory(self) -> object: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def key(self) -> bytes:
        """
        What a peer's import_region() takes. Whoever has it may use the region.
        """

    def key_for(self, peer: str, rights: str) -> bytes:
        """A key that only the endpoint with this id may use."""

    def withdraw(self, peer: str) -> None: ...

    def deregister(self, timeout: float | None = None) -> None:
        """Nobody may begin to use it; returns when nobody does."""

def _place_of(object: object, written: bool, name: str) -> tuple[int, int]:
    """(address, bytes) of what register() takes; its errors, with this name."""

def _is_writable(address: int, nbytes: int) -> bool: ...

class RemoteRegion:
    """A peer's region, by its key."""

    @property
    def nbytes(self) -> int: ...

    @property
    def rights(self) -> str: ...

    @property
    def endpoint(self) -> str: ...

class _CompletionQueue:
    def __init__(self) -> None: ...

    def fileno(self) -> int: ...

    def watch(self, arg0: Operation, arg1: int, /) -> None: ...

    def take(self) -> list: ...

class Operation:
    """
    A transfer in flight; `await` it, wait() for it or ask done(). Holds the memory until its end, whatever becomes of this object.
    """

    def done(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> int:
        """
        Waits for the end and returns the bytes moved; raises the operation's error, or Timeout after `timeout` seconds, while the operation goes on.
        """

    def cancel(self) -> None: ...

    def fileno(self) -> int:
        """A descriptor that becomes readable at the end."""

    def make_stream_wait(self, stream: object, device: int = 0) -> None:
        """
        Work queued on this stream of GPU `device` from now on begins after the operation's end.
        """

    @property
    def nbytes(self) -> int: ...

    @property
    def tag(self) -> int: ...

    @property
    def path(self) -> tuple: ...

    def _ended(self) -> bool: ...

    def __await__(self) -> Generator[Any, None, int]: ...

class _Memory:
    pass

class PreparedTransfer:
    @property
    def nbytes(self) -> int: ...

class Connection:
    """To one peer."""

    def prepare_write(self, parts: list) -> PreparedTransfer:
        """
        Checks a transfer for any number of posts; parts are (region, remote, blocks).
        """

    def prepare_read(self, parts: list) -> PreparedTransfer: ...

    def post(self, prepared: PreparedTransfer, notification: bytes = ..., checksum: bool = False, timeout: float | None = None, stream: object = 'auto') -> Operation: ...

    def write(self, local: object, remote: object, blocks: object | None = None, *, notification: bytes = ..., checksum: bool = False, timeout: float | None = None, stream: object = 'auto') -> Operation:
        """
        Into the peer's region; blocks are rows of (local offset, remote offset, bytes).
        """

    def read(self, local: object, remote: object, blocks: object | None = None, *, notification: bytes = ..., checksum: bool = False, timeout: float | None = None, stream: object = 'auto') -> Operation:
        """Out of the peer's region; blocks as for write()."""

    def send(self, data: object, tag: int = 0, *, timeout: float | None = None, stream: object = 'auto') -> Operation: ...

    def recv(self, buffer: object, tag: int = 0, *, mask: int = 18446744073709551615, timeout: float | None = None, stream: object = 'auto') -> Operation:
        """
        The oldest message whose tag agrees in the bits of `mask`; the operation has its size.
        """

    def notify(self, data: bytes, *, timeout: float | None = None) -> Operation: ...

    def take_notification(self, timeout: float | None = None) -> bytes: ...

    def take_notification_async(self, timeout: float | None = None) -> Coroutine[Any, Any, bytes]:
        """
        take_notification() to be awaited: the event loop goes on meanwhile, and a cancelled task takes none.
        """

    def _notification_readiness(self) -> _Readiness: ...

    def import_region(self, key: bytes) -> RemoteRegion: ...

    @property
    def endpoint(self) -> Endpoint:
        """Ours, that it was made from."""

    @property
    def peer(self) -> str: ...

    @property
    def lost(self) -> bool: ...

    def info(self) -> dict: ...

    def counters(self) -> dict: ...

    def events(self) -> list: ...

    def close(self) -> None: ...

def _close_all() -> None: ...

class _Readiness:
    def fileno(self) -> int: ...

class _Connecting:
    def fileno(self) -> int: ...

    def abandon(self) -> None: ...

    def take(self) -> Connection: ...

class Endpoint:
    """
    A process's place on the network. Settings are those of the library (`ferry info` lists them) by name: Endpoint(lanes=4, secret=...); those not given come from FERRY_* variables.
    """

    def __init__(self, **kwargs) -> None: ...

    @property
    def id(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def metrics_port(self) -> int: ...

    @property
    def address(self) -> bytes:
        """
        What connect() of another endpoint takes; bytes to be passed on by any way.
        """

    def register(self, memory: object, rights: str = 'rw') -> Region:
        """
        Lets transfers use the bytes of an array or tensor; `rights` are what peers with the region's key may do: 'r', 'w', 'rw' or ''.
        """

    def connect(self, address: str | bytes, timeout: float | None = None) -> Connection:
        """To 'host:port', or to an endpoint's address."""

    def accept(self, timeout: float | None = None) -> Connection:
        """The next peer that has connected."""

    def accept_async(self, timeout: float | None = None) -> Coroutine[Any, Any, Connection]:
        """
        accept() to be awaited: the event loop goes on meanwhile, and a cancelled task takes no peer.
        """

    def connect_async(self, address: str | bytes, timeout: float | None = None) -> Coroutine[Any, Any, Connection]:
        """connect() to be awaited; of a cancelled task no connection is left."""

    def _accept_readiness(self) -> _Readiness: ...

    def _begin_connect(self, address: str | bytes, timeout: float | None) -> _Connecting: ...

    def counters(self) -> dict: ...

    def close(self) -> None:
        """
        Ends every connection and operation; nothing touches any memory afterwards.
        """

__version__: str
