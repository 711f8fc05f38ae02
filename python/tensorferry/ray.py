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

import collections
import contextlib
import select
import threading
import time
import weakref
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

from tensorferry import _tensors, errors
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


@dataclass(eq=False)
class FerryFetch(FetchRequest):
    """A read that waits for its connection, or is in flight, and the memory that it fills."""

    metadata: FerryMetadata = None
    link: object = None  # until the read is posted
    operation: object = None
    aborted: bool = False
    error: Exception = None
    regions: list = field(default_factory=list)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __del__(self):
        if self.operation is not None:
            self.operation.cancel()


class _Link:
    """A connection to a source, or the attempt to make one. Under the transport's lock."""

    def __init__(self, endpoint, address):
        self.attempt = endpoint._begin_connect(address, CONNECT_SECONDS)
        self._connection = self._error = None

    def connection(self):
        """None while it is being made. Raises what the attempt ended with."""
        if self._connection is None and self._error is None and _is_readable(self.attempt, 0):
            try:
                self._connection = self.attempt.take()
            except errors.Error as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self._connection

    @property
    def lost(self):
        with contextlib.suppress(errors.Error):
            self.connection()  # the attempt may have ended since anybody asked
        return self._error is not None or (self._connection is not None and self._connection.lost)


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
        self._links = {}  # by the address that was dialed
        self._storages = {}  # by (device, address, bytes)
        self._objects = {}  # by Ray's object: (metadata, keys into _storages, copies kept alive)
        self._fetches = weakref.WeakSet()  # that have not ended
        # Objects whose abort came before their fetch, and those whose fetch ended, which Ray aborts, too,
        # where it failed.
        self._aborted = collections.deque(maxlen=256)
        self._ended = collections.deque(maxlen=256)

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
        for index, x in enumerate(rdt_object):
            _tensors.check(f"tensor {index} of object {obj_id}", x, strided=True)
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
            places = self._take_storages(tensors)
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
            ended = self._leave_storages(places)
        # A dead reader may hold one until its connection is given up.
        for region in ended:
            region.deregister()

    def send_multiple_tensors(self, tensors, tensor_transport_metadata, communicator_metadata):
        raise NotImplementedError("the ferry transport is one-sided; the receiver reads")

    def _take_storages(self, tensors):
        """The places of all, or none of them is taken."""
        places = []
        try:
            for x in tensors:
                places.append(self._take_storage(x))
        except BaseException:
            for region in self._leave_storages(places):  # nobody has its key
                region.deregister()
            raise
        return places

    def _take_storage(self, x):
        """The place of the tensor's storage, which is registered; None for one without bytes."""
        storage = x.untyped_storage()
        if storage.nbytes() == 0:
            return None
        place = (str(x.device), storage.data_ptr(), storage.nbytes())
        known = self._storages.get(place)
        if known is not None:
            known.uses += 1
            return place
        view = torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage)
        self._storages[place] = _Storage(self.endpoint().register(view, "r"))
        return place

    def _leave_storages(self, places):
        """The regions that nobody needs any more."""
        ended = []
        for place in filter(None, places):
            self._storages[place].uses -= 1
            if self._storages[place].uses == 0:
                ended.append(self._storages.pop(place).region)
        return ended

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
        _check_buffers(obj_id, tensors, metadata)
        fetch = FerryFetch(obj_id=obj_id, tensors=tensors, metadata=metadata)
        try:
            with self._lock:
                if obj_id in self._aborted:
                    self._aborted.remove(obj_id)
                    raise errors.Cancelled("it was aborted")
                if any(x.nbytes > 0 for x in tensors):
                    fetch.link = self._link(metadata.address)
                    self._fetches.add(fetch)
            self._advance(fetch)
        except errors.Error as error:
            raise self._failed(fetch, error) from None
        return fetch

    def wait_fetch_complete(self, fetch_request, timeout=-1):
        fetch = fetch_request
        deadline = _Deadline(timeout)
        try:
            while not self._advance(fetch):
                deadline.check(fetch.obj_id)
                if fetch.operation is None:
                    _is_readable(fetch.link.attempt, deadline.next_wait())
                else:
                    try:
                        fetch.operation.wait(deadline.next_wait())
                    except errors.Timeout:
                        pass  # of this wait, or its own: _advance() asks which
        except errors.Error as error:
            raise self._failed(fetch, error) from None
        self._end_read(fetch)
        return fetch.tensors

    def abort_transport(self, obj_id, communicator_metadata):
        with self._lock:
            fetches = [fetch for fetch in self._fetches if fetch.obj_id == obj_id]
            for fetch in fetches:
                fetch.aborted = True
                if fetch.operation is not None:
                    fetch.operation.cancel()
            known = (*self._objects, *self._aborted, *self._ended)
            if not fetches and obj_id not in known:
                self._aborted.append(obj_id)

    def _advance(self, fetch):
        """Posts the read once it has a connection. Whether all is there; raises where it failed."""
        if fetch.error is not None:
            raise fetch.error
        if fetch.link is not None:
            with self._lock:
                if fetch.aborted:
                    raise errors.Cancelled("it was aborted")
                connection = fetch.link.connection()
            if connection is None:
                return False
            self._post(fetch, connection)
        if fetch.operation is None:  # nothing is moved
            return True
        if not fetch.operation.done():
            return False
        if fetch.aborted:
            raise errors.Cancelled("it was aborted")
        fetch.operation.wait()
        return True

    def _post(self, fetch, connection):
        metadata, parts = fetch.metadata, []
        for i, x in enumerate(fetch.tensors):
            if x.nbytes > 0:
                local = self.endpoint().register(x.detach(), "")
                fetch.regions.append(local)
                remote = connection.import_region(metadata.keys[i])
                parts.append((local, remote, [(0, metadata.offsets[i], local.nbytes)]))
        operation = connection.post(connection.prepare_read(parts))
        with self._lock:
            fetch.operation, fetch.link = operation, None
            if fetch.aborted:  # meanwhile
                operation.cancel()

    def _end_read(self, fetch, error=None):
        with self._lock:
            self._fetches.discard(fetch)
            self._ended.append(fetch.obj_id)
        fetch.operation, fetch.link, fetch.error = None, None, error
        fetch.regions.clear()

    def _failed(self, fetch, error):
        if fetch.aborted:  # whoever waited for the operation learns only that it was cancelled
            error = errors.Cancelled("it was aborted")
        self._end_read(fetch, error)
        return _failure(fetch.obj_id, error)

    def _link(self, address):
        link = self._links.get(address)
        if link is None or link.lost:
            link = self._links[address] = _Link(self.endpoint(), address)
        return link


def _is_readable(attempt, seconds):
    """Whether a connect has ended, after up to so many seconds."""
    poll = select.poll()
    poll.register(attempt.fileno(), select.POLLIN)
    return bool(poll.poll(1000 * seconds))


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


def _check_buffers(obj_id, tensors, metadata):
    wanted = [(tuple(shape), dtype) for shape, dtype in metadata.tensor_meta]
    given = [(tuple(x.shape), x.dtype) for x in tensors]
    if given != wanted:
        raise ValueError(f"the target buffers are {given}, but the object's tensors are {wanted}")
    for index, x in enumerate(tensors):
        _tensors.check(f"target buffer {index} of object {obj_id}", x, written=True)


def _failure(obj_id, error):
    of_source = isinstance(error, (errors.PeerLost, errors.Refused, errors.Timeout))
    guess = "; its source actor may have died or have freed it" if of_source else ""
    return RayDirectTransportError(
        f"object {obj_id} did not arrive by the ferry transport: {error}{guess}"
    )
