"""Writes into the memory of another process and reads it there: a whole program of a package's user."""
import subprocess
import sys

from tensorferry import transfer

SECONDS = 30
if len(sys.argv) > 1:  # the other process
    connection = transfer.Endpoint().connect(bytes.fromhex(sys.argv[1]), SECONDS)
    endpoint_memory = bytearray(1 << 20)
    assert connection.recv(endpoint_memory).wait(SECONDS) == len(endpoint_memory)
    assert endpoint_memory == bytes(range(256)) * 4096, "the bytes differ"
    connection.send(b"they are right").wait(SECONDS)
    sys.exit()
endpoint = transfer.Endpoint(listen_host="127.0.0.1")
with subprocess.Popen([sys.executable, __file__, endpoint.address.hex()]) as peer:
    connection = endpoint.accept(SECONDS)
    connection.send(bytes(range(256)) * 4096).wait(SECONDS)
    answer = bytearray(64)
    said = bytes(answer[:connection.recv(answer).wait(SECONDS)])
    sys.exit(peer.wait(SECONDS) or said != b"they are right")
