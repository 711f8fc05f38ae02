"""A tensor transport for Ray: tensors go from actor to actor, past the object store.

    from tensorferry.ray import register_transport

    register_transport()  # before the classes of actors, in the process that creates the actors

    @ray.remote(enable_tensor_transport=True)
    class Trainer:
        @ray.method(tensor_transport="ferry")
        def weights(self):
            return torch.ones(1 << 20)

An actor that returns tensors registers their memory where it lies; the actor that takes them reads
it by one operation. Host memory and GPU memory, over TCP between machines, by direct copies between
GPUs of one machine. As with Ray's other transports, the source must not change tensors while
somebody may still read them. Settings are those of every endpoint (FERRY_* variables in the actors'
environment, such as FERRY_SECRET and FERRY_INTERFACES).
"""

import threading
import time
from dataclasses import dataclass, field

import ray
import torch
from ray.exceptions import RayDirectTransportError
from ray.experimental import register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    FetchRequest,
    TensorTransportManager,
    TensorTransportMetadata,
)

from tensorferry import errors
from tensorferry.transfer import Endpoint

NAME = "FERRY"
# How long an actor tries to reach another one.
CONNECT_SECONDS = 30.0
# How often a wait looks whether Ray has aborted the transfer.
LOOK_SECONDS = 0.1


def register_transport():
    """Makes tensor_transport="ferry" known to Ray; another call does nothing.

    Call it in the process that creates the actors, before it defines their classes: Ray then passes
    it on to them. tensorferry must be installed where they run.
    """
    try:
        register_tensor_transport(NAME, ["cpu", "cuda"], FerryTransport, torch.Tensor)
    except ValueError as error:
        if "already registered" not in str(error):
            raise


@dataclass
class FerryMetadata(TensorTransportMetadata):
    """Where an object's tensors are: at the endpoint with this address, part i of them in the
    region with key keys[i], from its byte offsets[i] on."""

    address: bytes = b""
    keys: list = field(default_factory=list)
    offsets: list = field(default_factory=list)

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass
class FerryFetch(FetchRequest):
    """A read in flight, and the memory that it fills."""

    operation: object = None
    regions: list = field(default_factory=list)


class _Storage:
    """A registered storage of torch's, and for how many tensors of objects it is registered."""

    def __init__(self, region):
        self.region, self.uses = region, 1


class FerryTransport(TensorTransportManager):
    """An actor's endpoint, which Ray makes when a tensor first comes or goes. Any thread."""

    def __init__(self):
        self._lock = threading.RLock()
        self._endpoint = None
        self._accepting = None
        self._connections = {}  # by the address that was dialed
        self._storages = {}  # by (device, address)
        self._objects = {}  # by Ray's object: (metadata, keys into _storages, copies kept alive)
        self._fetches = {}  # by Ray's object: reads in flight

    # ---- what Ray asks first ---------------------------------------------------------------------

    def tensor_transport_backend(self):
        return NAME

    @staticmethod
    def is_one_sided():
        return True

    @staticmethod
    def can_abort_transport():
        return True

    def actor_has_tensor_transport(self, actor):
        def has_transport(_):
            from ray.experimental.rdt.util import get_tensor_transport_manager

            get_tensor_transport_manager(NAME).endpoint()
            return True

        return ray.get(
            actor.__ray_call__.options(concurrency_group="_ray_system").remote(has_transport)
        )

    def get_communicator_metadata(self, src_actor, dst_actor, backend=None):
        return CommunicatorMetadata()

    # ---- the source ------------------------------------------------------------------------------

    def endpoint(self):
        """The process's endpoint; it accepts whoever connects."""
        with self._lock:
            if self._endpoint is None:
                self._endpoint = Endpoint()
                self._accepting = threading.Thread(
                    target=_accept_all, args=(self._endpoint,), name="ferry-accept", daemon=True
                )
                self._accepting.start()
            return self._endpoint

    def extract_tensor_transport_metadata(self, obj_id, rdt_object):
        with self._lock:
            if obj_id in self._objects:
                return self._objects[obj_id][0]
        device = _only_device(rdt_object)
        tensors = [x.detach().contiguous() for x in rdt_object]
        # A reader does not wait for what this process's streams have queued.
        for gpu in {x.device for x in tensors if x.is_cuda}:
            torch.cuda.synchronize(gpu)
        metadata = FerryMetadata(
            tensor_meta=[(x.shape, x.dtype) for x in tensors], tensor_device=device
        )
        with self._lock:
            if tensors:
                metadata.address = self.endpoint().address
            places = [self._take_storage(x) for x in tensors]
            for x, place in zip(tensors, places):
                storage = self._storages.get(place)
                metadata.keys.append(storage.region.key if storage else b"")
                metadata.offsets.append(
                    x.data_ptr() - x.untyped_storage().data_ptr() if storage else 0
                )
            self._objects[obj_id] = (metadata, places, tensors)
        return metadata

    def garbage_collect(self, obj_id, tensor_transport_meta, tensors):
        with self._lock:
            _, places, _ = self._objects.pop(obj_id, (None, [], []))
            ended = [region for place in places if (region := self._leave_storage(place))]
        # A dead reader may hold one until its connection is given up.
        for region in ended:
            region.deregister()

    def send_multiple_tensors(self, tensors, tensor_transport_metadata, communicator_metadata):
        raise NotImplementedError("the ferry transport is one-sided; the receiver reads")

    def _take_storage(self, x):
        """The place of the tensor's storage, which is registered; None for one without bytes."""
        storage = x.untyped_storage()
        if storage.nbytes() == 0:
            return None
        place = (str(x.device), storage.data_ptr())
        known = self._storages.get(place)
        if known is not None and known.region.nbytes == storage.nbytes():
            known.uses += 1
            return place
        view = torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage)
        self._storages[place] = _Storage(self.endpoint().register(view, "r"))
        return place

    def _leave_storage(self, place):
        """The region that nobody needs any more, if so."""
        known = self._storages.get(place)
        if known is None:
            return None
        known.uses -= 1
        return self._storages.pop(place).region if known.uses == 0 else None

    # ---- the destination -------------------------------------------------------------------------

    def recv_multiple_tensors(
        self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None
    ):
        return self.wait_fetch_complete(
            self.fetch_multiple_tensors(
                obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
            )
        )

    def fetch_multiple_tensors(
        self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None
    ):
        metadata = tensor_transport_metadata
        tensors = target_buffers or _empty(metadata)
        _check_buffers(tensors, metadata)
        fetch = FerryFetch(obj_id=obj_id, tensors=tensors)
        try:
            self._begin_read(fetch, metadata)
        except errors.Error as error:
            raise _failure(obj_id, error) from None
        return fetch

    def wait_fetch_complete(self, fetch_request, timeout=-1):
        fetch = fetch_request
        if fetch.operation is None:
            return fetch.tensors
        deadline = _Deadline(timeout)
        try:
            while True:
                try:
                    fetch.operation.wait(deadline.next_wait())
                    break
                except errors.Timeout:
                    if fetch.operation.done():  # meanwhile, or by a deadline of its own
                        fetch.operation.wait()
                        break
                    deadline.check(fetch.obj_id)
        except errors.Error as error:
            self._end_read(fetch)
            raise _failure(fetch.obj_id, error) from None
        self._end_read(fetch)
        return fetch.tensors

    def abort_transport(self, obj_id, communicator_metadata):
        with self._lock:
            fetch = self._fetches.get(obj_id)
        if fetch is not None:
            fetch.operation.cancel()

    def _begin_read(self, fetch, metadata):
        moved = [i for i, x in enumerate(fetch.tensors) if x.nbytes > 0]
        if not moved:
            return
        connection = self._connection(metadata.address)
        parts = []
        for i in moved:
            local = self.endpoint().register(fetch.tensors[i].detach(), "")
            fetch.regions.append(local)
            remote = connection.import_region(metadata.keys[i])
            parts.append((local, remote, [(0, metadata.offsets[i], local.nbytes)]))
        fetch.operation = connection.post(connection.prepare_read(parts))
        with self._lock:
            self._fetches[fetch.obj_id] = fetch

    def _end_read(self, fetch):
        with self._lock:
            self._fetches.pop(fetch.obj_id, None)
        fetch.operation = None
        fetch.regions.clear()

    def _connection(self, address):
        with self._lock:
            known = self._connections.get(address)
            if known is None or known.lost:
                known = self.endpoint().connect(address, CONNECT_SECONDS)
                self._connections[address] = known
            return known


class _Deadline:
    """For waits in small steps; a timeout below 0 never passes."""

    def __init__(self, timeout):
        self._end = None if timeout < 0 else time.monotonic() + timeout
        self._timeout = timeout

    def next_wait(self):
        if self._end is None:
            return LOOK_SECONDS
        return max(min(LOOK_SECONDS, self._end - time.monotonic()), 0)

    def check(self, obj_id):
        if self._end is not None and time.monotonic() >= self._end:
            raise TimeoutError(f"object {obj_id} has not arrived after {self._timeout} s")


def _accept_all(endpoint):
    connections = []  # kept: one that is dropped is closed
    while True:
        try:
            connections.append(endpoint.accept())
        except errors.Error:
            return  # the endpoint is closed
        connections = [one for one in connections if not one.lost]


def _only_device(tensors):
    kinds = {x.device.type for x in tensors}
    if len(kinds) > 1:
        raise ValueError(
            f"an object's tensors must be on one kind of device, but they are on {sorted(kinds)}; "
            "return them as two objects"
        )
    return kinds.pop() if kinds else None


def _empty(metadata):
    return [
        torch.empty(shape, dtype=dtype, device=metadata.tensor_device)
        for shape, dtype in metadata.tensor_meta
    ]


def _check_buffers(tensors, metadata):
    wanted = [(tuple(shape), dtype) for shape, dtype in metadata.tensor_meta]
    given = [(tuple(x.shape), x.dtype) for x in tensors]
    if given != wanted:
        raise ValueError(f"the target buffers are {given}, but the object's tensors are {wanted}")
    if not all(x.is_contiguous() for x in tensors):
        raise ValueError("target buffers must be contiguous; give contiguous ones")


def _failure(obj_id, error):
    return RayDirectTransportError(
        f"object {obj_id} did not arrive by the ferry transport: {error}; its source actor may have "
        "died or have freed it"
    )
