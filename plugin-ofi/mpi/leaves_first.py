"""The last rank sends rank 0 some messages, and finalizes while that one computes. All of them arrive."""

import sys
import time

from checked import WORLD, expect
from mpi4py import MPI

COUNT = int(sys.argv[1])
SIZE = int(sys.argv[2])

# Rank 0 makes no call of MPI for so long.
COMPUTES = 0.5


def messages():
    return [number.to_bytes(8, "little").ljust(SIZE, b".") for number in range(COUNT)]


def main():
    rank, last = WORLD.rank, WORLD.size - 1
    if rank == last:
        sent = [WORLD.Isend([message, MPI.BYTE], dest=0, tag=5) for message in messages()]
        MPI.Request.Waitall(sent)
    elif rank == 0:
        time.sleep(COMPUTES)
        buffer = bytearray(SIZE)
        for number, message in enumerate(messages()):
            WORLD.Recv([buffer, MPI.BYTE], source=last, tag=5)
            expect(buffer, message, f"message {number}")
        print(f"PASS {WORLD.size} ranks: {COUNT} messages of {SIZE} bytes from a rank that has left", flush=True)
    MPI.Finalize()


# There is no barrier between the ranks: that would wait for all messages.
main()
