"""Frames of our protocol (docs/wire.md) for the scripts that are peers which mean harm."""
import pathlib
import random
import re
import socket
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAGIC = 0x59525246
HELLO, WELCOME, JOIN, JOINED, CHALLENGE, PROOF = 1, 2, 3, 4, 6, 7
WRITE, READ_REQUEST, PING = 16, 17, 34
WIRE = (ROOT / "ferry/transfer/handshake/wire.h").read_text(encoding="utf-8")
VERSION = int(re.search(r"kVersion = (\d+);", WIRE).group(1))


def frame(kind, body=b"", payload=b""):
    meta = struct.pack("<BBHIQII", kind, 0, 0, 0, 1, 0, 0) + body
    return struct.pack("<IIQ", MAGIC, len(meta), len(payload)) + meta + payload


def hello(lanes=1, flags=1):
    return frame(HELLO, struct.pack("<HHI16s16sQ", VERSION, lanes, flags, random.randbytes(16), bytes(16), 1 << 20))


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def listens(port):
    try:
        connect(port).close()
        return True
    except OSError:
        return False


def receive(lane, size):
    data = b""
    while len(data) < size:
        part = lane.recv(size - len(data))
        if not part:
            raise ConnectionError("the server has closed the lane")
        data += part
    return data


def receive_frame(lane, kind=None):
    """Its metadata and payload; of another kind than this it is an error, so that a script that the protocol has
    left behind says so."""
    _, meta, payload = struct.unpack("<IIQ", receive(lane, 16))
    data = receive(lane, meta + payload)
    if kind is not None and data[0] != kind:
        raise ConnectionError(f"the server answered with a frame of kind {data[0]}, not {kind}: {data[24:200]!r}")
    return data
