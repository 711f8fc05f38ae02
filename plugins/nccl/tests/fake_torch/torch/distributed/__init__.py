"""Process groups that have a store and a log of NCCL's, and do nothing."""
import os
import pathlib
import time

from torch import ANYTHING

SAID = """h:1 NCCL INFO Using network {}
h:1 NCCL INFO 8 coll channels, 8 collnet channels, 0 nvls channels, 8 p2p channels, 4 p2p channels per peer
h:1 NCCL INFO Cuda Host Alloc Size 4194304 pointer 0x1
"""


class Store:
    """Keys are files beside NCCL's log."""

    folder = None

    def set(self, key, value):
        part = self.folder / f"part {key}"
        part.write_text(value, encoding="utf-8")
        part.rename(self.folder / f"store {key}")

    def get(self, key):
        path = self.folder / f"store {key}"
        deadline = time.monotonic() + 30
        while not path.exists():
            if time.monotonic() >= deadline:
                raise TimeoutError(key)
            time.sleep(0.002)
        return path.read_bytes()


STORE = Store()


def init_process_group(*_args, **_keywords):
    log = os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid()))
    STORE.folder = pathlib.Path(log).parent
    if os.environ.get("NCCL_SOCKET_NTHREADS") == "2":
        raise RuntimeError("a setting that does not work")
    own = "Null" if "null" in os.environ.get("NCCL_NET_PLUGIN", "") else "Ferry"
    pathlib.Path(log).write_text(SAID.format(os.environ.get("NCCL_NET", own)), encoding="utf-8")


class distributed_c10d:  # pylint: disable=invalid-name
    @staticmethod
    def _get_default_store():
        return STORE


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return ANYTHING
