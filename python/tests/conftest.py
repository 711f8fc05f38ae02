"""Fixtures that the tests share."""

import json
import os
import pathlib
import select
import subprocess
import sys

import pytest

from tensorferry import transfer

SECONDS = 60


class PeerProcess:
    """The process of peer.py; its methods are those of its Peer."""

    script = pathlib.Path(__file__).with_name("peer.py")

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(self.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )

    def begin(self, name, *arguments):
        call = json.dumps({"do": name, "with": arguments}) + "\n"
        self.process.stdin.write(call.encode())
        self.process.stdin.flush()

    def end(self):
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        assert ready, "the peer process did not answer in time"
        line = self.process.stdout.readline()
        assert line, "the peer process has ended"
        return json.loads(line)

    def __getattr__(self, name):
        def call(*arguments):
            self.begin(name, *arguments)
            return self.end()

        return call

    def close(self):
        self.process.kill()
        self.process.wait(SECONDS)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def peer():
    process = PeerProcess()
    yield process
    process.close()


@pytest.fixture
def endpoint():
    made = transfer.Endpoint(listen_host="127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def connected(peer, endpoint):
    """A connection to the peer process."""
    connection = endpoint.connect(bytes.fromhex(peer.address()), SECONDS)
    peer.accept()
    return connection
