#!/usr/bin/python3
"""Stands in for ssh where MPI's launchers start their daemons on another node: sends the command to the test program
that waits there (tests/support/nodes.rs), prints what it prints, and ends as it does.

usage: remote.py HOST COMMAND…     FERRO_TEST_REMOTE_PORT: the port at which the other node waits
"""

import os
import socket
import sys


def main():
    host, *command = sys.argv[1:]
    with socket.create_connection((host, int(os.environ["FERRO_TEST_REMOTE_PORT"]))) as stream:
        # As ssh does: words are joined, and the other side's shell takes them apart.
        stream.sendall(" ".join(command).encode() + b"\0")
        held = b""
        while data := stream.recv(1 << 16):
            # The last byte of all is the exit code.
            held += data
            sys.stdout.buffer.write(held[:-1])
            sys.stdout.buffer.flush()
            held = held[-1:]
    return held[0] if held else 255


sys.exit(main())
