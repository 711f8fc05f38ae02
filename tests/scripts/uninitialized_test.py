#!/usr/bin/env python3
"""No byte that nobody has written is sent: it would tell a peer what memory held before.

usage: uninitialized_test.py FERRY SUPPRESSIONS

Runs both sides of each operation of `ferry perf` under valgrind, which alone sees such bytes where they
are sent. Exits 77 without it.
"""
import json
import shutil
import subprocess
import sys

SECONDS = 240  # for each process


def main():
    ferry, suppressions = sys.argv[1:]
    if not shutil.which("valgrind"):
        print("skipped: valgrind is not installed")
        sys.exit(77)
    checked = ["valgrind", "-q", "--leak-check=no", "--error-exitcode=9", f"--suppressions={suppressions}", ferry]
    server = subprocess.Popen([*checked, "perf", "server", "--listen", "127.0.0.1", "--port", "0", "--json", "--insecure"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    failed = False
    try:
        address = json.loads(server.stdout.readline())["listening"]
        for op in ("write", "read", "send"):
            client = subprocess.run([*checked, "perf", "client", address, "--op", op, "--size", "300KiB", "--block-size",
                                     "16KiB", "--iters", "2", "--lanes", "2", "--verify", "--no-floor", "--insecure"],
                                    capture_output=True, text=True, timeout=SECONDS, check=False)
            print(f"{op}: exit status {client.returncode}\n{client.stderr}", end="")
            failed = failed or client.returncode != 0
    finally:
        server.terminate()
        _, said = server.communicate(timeout=SECONDS)
    print(f"server: exit status {server.returncode}\n{said}", end="")
    sys.exit(1 if failed or server.returncode == 9 or "== Syscall param" in said else 0)


if __name__ == "__main__":
    main()
