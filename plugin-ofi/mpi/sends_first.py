"""Two ranks start many sends each before they receive anything, which MPI lets them do: MPI_Isend is local."""

import sys

from checked import WORLD, expect, run
from mpi4py import MPI

COUNT = int(sys.argv[1])
SIZE = int(sys.argv[2])
TAGS = 1000


def main():
    expect(WORLD.size, 2, "ranks")
    peer = 1 - WORLD.rank
    messages = [number.to_bytes(8, "little").ljust(SIZE, b".") for number in range(COUNT)]
    requests = [
        WORLD.Isend([message, MPI.BYTE], dest=peer, tag=number % TAGS) for number, message in enumerate(messages)
    ]
    buffer = bytearray(SIZE)
    for number, message in enumerate(messages):
        WORLD.Recv([buffer, MPI.BYTE], source=peer, tag=number % TAGS)
        expect(buffer, message, f"message {number}")
    MPI.Request.Waitall(requests)
    return f"{COUNT} messages of {SIZE} bytes each way, before the first receive"


run(main)
