"""Tests that a forked child cannot use its parent's objects, and that each use fails at once."""

import subprocess
import sys

SECONDS = 60

# An endpoint that is connected to another of the process, with everything that can be made of it.
BEGINS = """
import multiprocessing, os, sys, threading, time
sys.modules["torch"] = None
import numpy as np
from tensorferry import transfer
from tensorferry.errors import Error, InvalidArgument

endpoint = transfer.Endpoint(listen_host="127.0.0.1")
other = transfer.Endpoint(listen_host="127.0.0.1")
connection = endpoint.connect(other.address)
accepted = other.accept()
memory = np.full(1_000_000, 7, dtype=np.uint8)
region = endpoint.register(memory)
target = np.zeros(1_000_000, dtype=np.uint8)
into = other.register(target)
remote = connection.import_region(into.key)
prepared = connection.prepare_write([(region, remote, None)])
operation = connection.recv(bytearray(10))

def go_on():
    target[:] = 0
    assert connection.post(prepared).wait(60) == target.size
    assert (target == 7).all()
    assert not operation.done()

def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", BEGINS + program], timeout=SECONDS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_call_in_a_child_says_that_the_object_was_made_before_fork():
    print(run("""
calls = {
    "id": lambda: endpoint.id,
    "port": lambda: endpoint.port,
    "address": lambda: endpoint.address,
    "register": lambda: endpoint.register(memory),
    "connect": lambda: endpoint.connect("127.0.0.1:1"),
    "accept": lambda: endpoint.accept(),
    "endpoint counters": lambda: endpoint.counters(),
    "memory": lambda: region.memory,
    "key": lambda: region.key,
    "key_for": lambda: region.key_for("0" * 32, "r"),
    "withdraw": lambda: region.withdraw("0" * 32),
    "deregister": lambda: region.deregister(),
    "import_region": lambda: connection.import_region(b""),
    "prepare_write": lambda: connection.prepare_write([(region, remote, None)]),
    "post": lambda: connection.post(prepared),
    "write": lambda: connection.write(region, remote),
    "read": lambda: connection.read(region, remote),
    "send": lambda: connection.send(b"bytes"),
    "recv": lambda: connection.recv(bytearray(5)),
    "notify": lambda: connection.notify(b"bytes"),
    "take_notification": lambda: connection.take_notification(),
    "peer": lambda: connection.peer,
    "lost": lambda: connection.lost,
    "info": lambda: connection.info(),
    "counters": lambda: connection.counters(),
    "events": lambda: connection.events(),
    "done": lambda: operation.done(),
    "wait": lambda: operation.wait(),
    "cancel": lambda: operation.cancel(),
    "fileno": lambda: operation.fileno(),
    "nbytes": lambda: operation.nbytes,
}
child = os.fork()
if child == 0:
    wrong = []
    for name, call in calls.items():
        try:
            call()
            wrong.append(name + " worked")
        except InvalidArgument as error:
            if "made before fork()" not in str(error):
                wrong.append(f"{name}: {error}")
    connection.close()
    endpoint.close()
    print(*wrong, sep="\\n", file=sys.stderr, flush=True)
    os._exit(len(wrong))
assert status_of(child) == 0
go_on()
"""))


def test_a_child_ends_at_once():
    took = float(run("""
start = time.monotonic()
child = os.fork()
if child == 0:
    sys.exit(0)
assert status_of(child) == 0
took = time.monotonic() - start
go_on()
print(took)
"""))
    print(f"the interpreter in the child ended after {took:.3f} s")
    assert took < 10  # the machine may be busy; it was for ever


def test_a_child_lets_go_of_its_parents_objects_at_once():
    took = float(run("""
read, write = os.pipe()
child = os.fork()
if child == 0:
    start = time.monotonic()
    del operation, prepared, remote, region, into, accepted, connection, other, endpoint
    os.write(write, str(time.monotonic() - start).encode())
    os._exit(0)
assert status_of(child) == 0
go_on()
print(os.read(read, 100).decode())
"""))
    print(f"the objects in the child went in {took:.6f} s")
    assert took < 5


def test_a_child_may_have_an_endpoint_of_its_own():
    run("""
address, key = other.address, into.key
child = os.fork()
if child == 0:
    own = transfer.Endpoint(listen_host="127.0.0.1")
    mine = own.connect(address, 60)
    source = own.register(np.full(target.size, 9, dtype=np.uint8))
    mine.write(source, mine.import_region(key)).wait(60)
    own.close()
    sys.exit(5)
other.accept(60)
assert status_of(child) == 5
assert (target == 9).all()
go_on()
""")


def test_multiprocessing_may_fork_beside_an_endpoint():
    run("""
def square(number):
    try:
        endpoint.accept()
    except Error:
        return number * number

with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(square, range(10)) == [n * n for n in range(10)]
go_on()
""")


# Tasks that wait: for peers, for a notification, and for a host that listens and says nothing.
WAITS = """
import asyncio, socket
silent = socket.create_server(("127.0.0.1", 0))
silent_address = f"127.0.0.1:{silent.getsockname()[1]}"
readiness, attempt = endpoint._accept_readiness(), endpoint._begin_connect(silent_address, 60)

def numbers_taken(numbers):
    for number in numbers:  # closed in the child, whose own descriptors get them
        os.dup2(2, number)

async def go_on_waiting(tasks):
    endpoint_again = transfer.Endpoint(listen_host="127.0.0.1")
    endpoint_again.connect(endpoint.address)
    await asyncio.wait_for(tasks[0], 60)
    assert not tasks[1].done()
    tasks[1].cancel()
    await asyncio.wait(tasks)
    go_on()
"""


def test_what_is_waited_for_in_the_parent_is_refused_in_a_child():
    run(WAITS + """
numbers = [readiness.fileno(), attempt.fileno()]
child = os.fork()
if child == 0:
    numbers_taken(numbers)
    wrong = 0
    for call in (readiness.fileno, attempt.fileno, attempt.take):
        try:
            call()
            wrong += 1
        except InvalidArgument as error:
            wrong += "made before fork()" not in str(error)
    attempt.abandon()
    del readiness, attempt
    for number in numbers:
        os.fstat(number)  # still open
    os._exit(wrong)
assert status_of(child) == 0
go_on()
""")


def test_a_child_lets_go_of_attempts_that_have_ended():
    run(WAITS + """
import select
ended = endpoint._begin_connect(other.address, 60)
select.select([ended], [], [], 60)
number = ended.fileno()
child = os.fork()
if child == 0:
    numbers_taken([number])
    del ended
    os.fstat(number)
    os._exit(0)
assert status_of(child) == 0
assert ended.take().peer == other.id
""")


def test_a_child_that_drops_tasks_which_wait_does_not_take_them_from_its_parent():
    run(WAITS + """
loop = asyncio.new_event_loop()
tasks = [loop.create_task(endpoint.accept_async()),
         loop.create_task(endpoint.connect_async(silent_address, 60))]
loop.run_until_complete(asyncio.sleep(0.01))
child = os.fork()
if child == 0:
    for task in tasks:
        task.get_coro().close()
    os._exit(0)
assert status_of(child) == 0
loop.run_until_complete(go_on_waiting(tasks))
""")


FORKS = """
import os, sys, threading
sys.modules["torch"] = None
from tensorferry import transfer
def fail():
    try:
        transfer.Endpoint(listen_host="192.0.2.7")
    except transfer.errors.InvalidArgument:
        return
    os._exit(3)
def again():
    while True:
        fail()
thread = threading.Thread(target=again, daemon=True)
thread.start()
for _ in range(100):
    child = os.fork()
    if child == 0:
        try:
            fail()
            os._exit(0)
        finally:
            os._exit(4)
    if os.waitpid(child, 0)[1] != 0:
        os._exit(5)
os._exit(0 if thread.is_alive() else 6)
"""


def test_a_process_may_fork_while_its_threads_are_at_work():
    done = subprocess.run([sys.executable, "-c", FORKS], timeout=SECONDS, capture_output=True)
    assert done.returncode == 0, done.stderr
