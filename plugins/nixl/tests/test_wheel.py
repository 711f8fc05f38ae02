"""The back end in NIXL's own agent, as its wheel has it, in two processes."""
import ast
import importlib.util
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time

import pytest

DEADLINE = 60.0
WHEEL = next(name for name in ("nixl_cu13", "nixl_cu12") if importlib.util.find_spec(name))
PROGRAM = pathlib.Path(__file__).with_name("wheel_agent.py")
FOLDER_MAKER = pathlib.Path(__file__).parents[3] / "python" / "tensorferry" / "nixl.py"


class Process:
    """A process with an agent. Every wait ends."""

    def __init__(self, name, backend="FERRY", **variables):
        self.process = subprocess.Popen([sys.executable, PROGRAM], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                                        env={**os.environ, **variables})
        self.text = b""
        self.name = name
        answer = self.ask(f"let agent = Agent({name!r}, {backend!r})")
        assert answer is None, (answer, self.end())

    def ask(self, line, deadline=DEADLINE):
        self.process.stdin.write(line.encode() + b"\n")
        end = time.monotonic() + deadline
        while b"\n" not in self.text:
            ready = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"no answer to {line[:80]!r}"
            read = os.read(self.process.stdout.fileno(), 1 << 20)
            assert read, f"the process ended at {line[:80]!r}: {self.process.stderr.read()[-2000:]}"
            self.text += read
        answer, _, self.text = self.text.partition(b"\n")
        return ast.literal_eval(answer.decode())

    def end(self):
        """Ends it, and returns what it wrote to its standard error."""
        if self.process.poll() is None:
            self.process.kill()
        return self.process.communicate(timeout=DEADLINE)[1].decode()


@pytest.fixture
def started():
    processes = []

    def start(*args, **variables):
        processes.append(Process(*args, **variables))
        return processes[-1]

    yield start
    for process in processes:
        process.end()


def connect(one, other, size=1 << 20):
    addresses = [process.ask(f"agent.allocate({size}, {seed})") for seed, process in
                 enumerate((one, other))]
    for mine, peer in ((one, other), (other, one)):
        assert mine.ask(f"agent.load({peer.ask('agent.metadata()')!r})") == peer.name
    return addresses


def transfer(process, key):
    assert process.ask(f"agent.start({key!r})") in ("PROC", "DONE")
    return process.ask(f"agent.wait({key!r})")


def test_two_agents_write_read_and_notify(started):
    one, other = started("one"), started("other")
    _, remote = connect(one, other)
    one.ask(f"agent.prepare('w', 'WRITE', 'other', {remote}, message=b'written')")
    assert transfer(one, "w") == "DONE"
    assert other.ask("agent.digest()") == one.ask("agent.digest()")
    assert other.ask("agent.await_notifications('one', 1)") == [(7, one.ask("hash_of(b'written')"))]
    other.ask("agent.memory.fill(7)")
    one.ask(f"agent.prepare('r', 'READ', 'other', {remote}, message=b'read')")
    assert transfer(one, "r") == "DONE"
    assert other.ask("agent.digest()") == one.ask("agent.digest()")
    assert other.ask("agent.await_notifications('one', 1)") == [(4, one.ask("hash_of(b'read')"))]
    assert one.ask("agent.release('w')") is None


@pytest.mark.parametrize("size", [0, 1, 1 << 16, 1 << 20])
def test_a_notification_of_any_length_arrives(started, size):
    one, other = started("one"), started("other")
    connect(one, other, 4096)
    assert one.ask(f"agent.agent.send_notif('other', b'x' * {size})") is None
    assert other.ask("agent.await_notifications('one', 1)") == [
        (size, one.ask(f"hash_of(b'x' * {size})"))]


def test_a_hundred_thousand_descriptors_arrive(started):
    one, other = started("one"), started("other")
    _, remote = connect(one, other, 100_000 * 512)
    for operation in ("WRITE", "READ"):
        took = one.ask(f"agent.prepare('x', {operation!r}, 'other', {remote}, pages(100000, 512, 3), b'all')")
        print(f"initialize_xfer of 100000 descriptors: {took * 1e3:.1f} ms")
        assert transfer(one, "x") == "DONE"
        assert len(other.ask("agent.await_notifications('one', 1)")) == 1
        if operation == "WRITE":
            before = one.ask("agent.digest()")
            one.ask("agent.memory.fill(0)")
    assert one.ask("agent.digest()") == before


def test_a_peer_that_is_killed_disconnects_and_comes_back_under_its_name(started):
    one, other = started("one"), started("other")
    _, remote = connect(one, other)
    one.ask(f"agent.prepare('w', 'WRITE', 'other', {remote})")
    assert transfer(one, "w") == "DONE"
    other.process.send_signal(signal.SIGKILL)
    other.process.wait(DEADLINE)
    end = time.monotonic() + DEADLINE
    answer = ""
    while "RemoteDisconnect" not in str(answer):
        assert time.monotonic() < end, answer
        answer = one.ask("agent.start('w')")
        if answer in ("PROC", "DONE"):
            answer = one.ask("agent.wait('w')")
    one.ask("agent.agent.remove_remote_agent('other')")
    again = started("other")
    remote = again.ask("agent.allocate(1048576, 9)")
    assert one.ask(f"agent.load({again.ask('agent.metadata()')!r})") == "other"
    one.ask(f"agent.prepare('v', 'WRITE', 'other', {remote})")
    assert transfer(one, "v") == "DONE"
    assert again.ask("agent.digest()") == one.ask("agent.digest()")


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
@pytest.mark.parametrize("when", ["before it is connected", "in the middle"])
def test_a_peer_that_is_stopped_disconnects(started, operation, when):
    settings = {"FERRY_PEER_TIMEOUT": "2s", "FERRY_HEARTBEAT_INTERVAL": "200ms",
                "FERRY_LANE_RATE_BYTES": "16MiB"}
    one, other = started("one", **settings), started("other", **settings)
    size = 1 << 26
    remote = other.ask(f"agent.allocate({size}, 1)")
    one.ask(f"agent.allocate({size}, 2)")
    metadata = other.ask("agent.metadata()")
    if when == "before it is connected":
        os.kill(other.process.pid, signal.SIGSTOP)
    assert one.ask(f"agent.load({metadata!r})") == "other"
    if when == "in the middle":
        one.ask(f"agent.prepare('s', {operation!r}, 'other', {remote}, [(0, 0, 64)])")
        assert transfer(one, "s") == "DONE"
    one.ask(f"agent.prepare('x', {operation!r}, 'other', {remote}, message=b'end')")
    assert one.ask("agent.start('x')") == "PROC"
    os.kill(other.process.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    assert "RemoteDisconnect" in one.ask("agent.wait('x')")
    took = time.monotonic() - stopped
    print(f"a {operation} to a peer that was stopped {when} ended after {took:.1f} s")
    assert took < 2 + 1 + 5  # the setting, what is allowed, and a busy machine


# What an agent does with its memory of 8192 bytes, all of which is registered. Its peer loads the
# metadata after each step. UCX's back end takes them all.
CHANGES = {
    "the same range twice": ["register((0, 8192))", "deregister((0, 8192))"],
    "the same range again": ["deregister((0, 8192)) or agent.register((0, 8192))"] * 2,
    "overlapping ranges": ["register((0, 4096), (2048, 4096))", "register((4096, 4096))"],
    "fewer ranges": ["register((0, 4096))", "deregister((0, 4096))", "register((0, 4096))"],
}


@pytest.mark.parametrize("name", CHANGES)
def test_registrations_change_while_a_peer_has_older_metadata(started, name):
    one, other = started("one"), started("other")
    _, remote = connect(one, other, 8192)
    for number, change in enumerate(CHANGES[name]):
        assert other.ask(f"agent.{change}") is None
        assert one.ask(f"agent.load({other.ask('agent.metadata()')!r})") == "other"
        key = f"w{number}"
        one.ask(f"agent.memory.fill({number})")
        one.ask(f"agent.prepare({key!r}, 'WRITE', 'other', {remote}, [(0, 0, 8192)])")
        assert transfer(one, key) == "DONE"
        assert other.ask("agent.digest()") == one.ask("agent.digest()")


def test_partial_metadata_is_loaded_in_any_order(started):
    one, other = started("one"), started("other")
    _, remote = connect(one, other, 8192)
    other.ask("agent.register((0, 4096), (4096, 4096))")
    for metadata in ("partial(False, (4096, 4096))", "partial(True, (0, 8192), (0, 4096))",
                     "metadata()", "partial(False, (0, 8192))"):
        assert one.ask(f"agent.load({other.ask('agent.' + metadata)!r})") == "other"
        one.ask(f"agent.prepare({metadata!r}, 'WRITE', 'other', {remote})")
        assert transfer(one, metadata) == "DONE"
    assert other.ask("agent.digest()") == one.ask("agent.digest()")


@pytest.mark.parametrize("registrations", [1, 2])
def test_a_range_that_is_twice_in_a_list_is_deregistered_and_the_agent_lives_on(started, registrations):
    one, other = started("one"), started("other")
    _, remote = connect(one, other, 8192)
    if registrations == 2:
        other.ask("agent.register((0, 8192))")
    other.ask("agent.deregister((0, 8192), (0, 8192))")
    other.ask("agent.register((0, 8192))")
    assert one.ask(f"agent.load({other.ask('agent.metadata()')!r})") == "other"
    one.ask(f"agent.prepare('w', 'WRITE', 'other', {remote})")
    assert transfer(one, "w") == "DONE"
    assert "it is not registered, or its range is twice in the list" in other.end()


def test_notifications_arrive_in_order_while_the_receiver_sleeps(started):
    one, other = started("one"), started("other")
    connect(one, other, 4096)
    # More than the receiver keeps.
    one.ask("let sizes = [(i * 7919) % 80_000 for i in range(8000)]")
    one.ask("let [agent.agent.send_notif('other', bytes([i % 256]) * size) for i, size in enumerate(sizes)]")
    assert other.ask("agent.await_notifications('one', 8000)") == one.ask(
        "[(size, hash_of(bytes([i % 256]) * size)) for i, size in enumerate(sizes)]")


def test_an_agent_transfers_to_itself(started):
    one = started("one")
    half = 1 << 19
    address = one.ask(f"agent.allocate({2 * half}, 1)")
    for key, operation in (("w", "WRITE"), ("r", "READ")):
        one.ask(f"agent.memory[:{half}].fill({ord(key)})")
        ranges = f"[(0, {half}, {half})]" if operation == "WRITE" else f"[({half}, 0, {half})]"
        one.ask(f"agent.prepare({key!r}, {operation!r}, 'one', {address}, {ranges}, b'self')")
        assert transfer(one, key) == "DONE"
        assert one.ask(f"bool((agent.memory == {ord(key)}).all())")
        assert one.ask("agent.await_notifications('one', 1)") == [(4, one.ask("hash_of(b'self')"))]
        assert one.ask(f"agent.release({key!r})") is None
    assert one.ask("agent.agent.send_notif('one', b'note')") is None
    assert one.ask("agent.await_notifications('one', 1)") == [(4, one.ask("hash_of(b'note')"))]


def test_a_peer_without_our_plugin_is_refused_and_the_agent_lives_on(started):
    one, other = started("one"), started("other", "UCX", UCX_TLS="tcp,self")
    for seed, process in enumerate((one, other)):
        process.ask(f"agent.allocate(4096, {seed})")
    for mine, peer in ((one, other), (other, one)):
        assert "NIXL_ERR_BACKEND" in mine.ask(f"agent.load({peer.ask('agent.metadata()')!r})")
    third = started("third")
    addresses = connect(one, third)
    assert one.ask(f"agent.prepare('w', 'WRITE', 'third', {addresses[1]})") < DEADLINE
    assert transfer(one, "w") == "DONE"


def test_errors_are_lines_in_nixls_form(started):
    one = started("one", NIXL_LOG_LEVEL="INFO")
    other = started("other")
    connect(one, other)
    other.end()
    text = one.end()
    assert " FERRY: agent 'one' listens on port " in text
    assert re.search(r"^I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ backend\.cc:\d+\] FERRY: ", text, re.M), text


def test_our_plugin_serves_programs_that_ask_for_ucx(started):
    folder = os.environ["FERRY_NIXL_AS_UCX"]
    one = started("one", "UCX", NIXL_PLUGIN_DIR=folder)
    other = started("other", "UCX", NIXL_PLUGIN_DIR=folder)
    _, remote = connect(one, other)
    one.ask(f"agent.prepare('w', 'WRITE', 'other', {remote})")
    assert transfer(one, "w") == "DONE"
    assert other.ask("agent.digest()") == one.ask("agent.digest()")
    assert "stands in for UCX" in one.end()


LOAD = """
from WHEEL._api import nixl_agent, nixl_agent_config
agent = nixl_agent("a", nixl_agent_config(backends=[]))
try:
    agent.create_backend("FERRY")
    print("created")
except Exception as error:
    print("refused:", error)
print("plug-ins:", *agent.get_plugin_list())
"""


def load_in_a_nixl_of_version(version, site):
    """Creates the back end in an agent of the wheel whose library has another version's text."""
    wheel = pathlib.Path(importlib.util.find_spec(WHEEL).origin).parents[1]
    for folder in (WHEEL, f".{WHEEL}.mesonpy.libs"):
        (site / folder).mkdir()
        for path in (wheel / folder).iterdir():
            (site / folder / path.name).symlink_to(path)
    (site / f"{WHEEL}.libs").symlink_to(wheel / f"{WHEEL}.libs")
    common = site / f".{WHEEL}.mesonpy.libs" / "libnixl_common.so"
    content = common.read_bytes()
    common.unlink()
    common.write_bytes(re.sub(rb"(NIXL version: \0)\d+\.\d+\.\d+\0",
                              rb"\g<1>" + version.encode() + rb"\0", content))
    return subprocess.run([sys.executable, "-c", LOAD.replace("WHEEL", WHEEL)], capture_output=True, text=True,
                          timeout=DEADLINE, env={**os.environ, "PYTHONPATH": str(site)}, check=True)


def test_an_agent_of_another_major_version_is_refused_and_lives_on(tmp_path):
    ran = load_in_a_nixl_of_version("2.5.1", tmp_path)
    assert "refused: NIXL_ERR_NOT_FOUND" in ran.stdout and "POSIX" in ran.stdout, ran.stdout
    refusals = re.findall(r"^E.*\] FERRY: NIXL 2\.5\.1 \(.*libnixl\.so\) cannot use this plug-in.*",
                          ran.stderr, re.M)
    assert len(refusals) == 1, ran.stderr


def test_an_agent_of_a_newer_minor_version_is_warned(tmp_path):
    ran = load_in_a_nixl_of_version("1.9.0", tmp_path)
    assert "created" in ran.stdout, ran.stdout
    warnings = re.findall(r"^W.*\] FERRY: NIXL 1\.9\.0 \(.*\) is newer", ran.stderr, re.M)
    assert len(warnings) == 1, ran.stderr


def test_the_interface_of_the_wheel_is_the_known_one(started):
    text = started("one", NIXL_LOG_LEVEL="DEBUG").end()
    assert re.search(r"^D.*\] FERRY: loaded by NIXL 1\.\d+\.\d+ \(.*\), whose back ends have 27 functions",
                     text, re.M), text


def test_a_transfer_ends_where_no_thread_can_be_started_to_connect(started):
    one, other = started("one"), started("other")
    one.ask("agent.allocate(65536, 1)")
    remote = other.ask("agent.allocate(65536, 2)")
    # The stack of a thread does not fit any more.
    one.ask("let import resource; size = int(open('/proc/self/statm').read().split()[0]) << 12; "
            "resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 20), resource.RLIM_INFINITY))")
    assert one.ask(f"agent.load({other.ask('agent.metadata()')!r})") == "other"
    one.ask(f"agent.prepare('read', 'READ', 'other', {remote})")
    assert "NIXL_ERR_BACKEND" in one.ask("agent.start('read')")
    one.ask("let resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)")
    assert transfer(one, "read") == "DONE"


def test_the_maker_of_the_folder_says_that_the_wheel_is_missing():
    # -S: without site-packages.
    ended = subprocess.run([sys.executable, "-S", FOLDER_MAKER, "--plugin", FOLDER_MAKER],
                           capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.strip() == ("tensorferry.nixl: none of nixl_cu13, nixl_cu12 is installed; "
                                    "pip install nixl")


def test_two_makers_of_the_folder_may_remove_the_same_link(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("folder_maker", FOLDER_MAKER)
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    is_symlink = pathlib.Path.is_symlink

    def removed_by_the_other(path):
        if not is_symlink(path):
            return False
        os.unlink(path)
        return True

    (tmp_path / "stale").symlink_to("nowhere")
    monkeypatch.setattr(pathlib.Path, "is_symlink", removed_by_the_other)
    maker.fill(tmp_path, {"libplugin.so": "somewhere"})
    assert os.listdir(tmp_path) == ["libplugin.so"]
