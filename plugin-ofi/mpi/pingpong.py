"""Two ranks send each other messages of all sizes, which are checked byte by byte."""

from checked import WORLD, content, expect, expect_bytes, run
from mpi4py import MPI

LARGEST = 4 << 20
SIZES = sorted(
    {0, 1, 3, LARGEST} | {max(0, (1 << k) + d) for k in range(3, 22) for d in (-1, 0, 1)} | {3 << 20, LARGEST - 1}
)


def main():
    expect(WORLD.size, 2, "ranks")
    peer = 1 - WORLD.rank
    for number, size in enumerate(SIZES):
        there, back = content(2 * number, size), content(2 * number + 1, size)
        for way, send in enumerate((WORLD.Send, WORLD.Ssend)):
            if WORLD.rank == 0:
                send([there, MPI.BYTE], dest=peer, tag=number)
                receive(peer, number, back, way)
            else:
                receive(peer, number, there, way)
                send([back, MPI.BYTE], dest=peer, tag=number)
        exchange(peer, number, size)
    return f"{4 * len(SIZES)} messages to and fro, {len(SIZES)} both ways at once"


def receive(peer, tag, wanted, spare):
    """Takes a message into a buffer that is, in the second way, larger than it."""
    buffer = bytearray(len(wanted) + 64 * spare)
    status = MPI.Status()
    WORLD.Recv([buffer, MPI.BYTE], source=peer, tag=tag, status=status)
    expect((status.source, status.tag, status.count), (peer, tag, len(wanted)), "status")
    expect_bytes(memoryview(buffer)[: len(wanted)], wanted, f"message of {len(wanted)}")
    expect(any(buffer[len(wanted) :]), False, "something was written behind the message")


def exchange(peer, number, size):
    """Both ways at once; the receive of the lower rank is posted late."""
    seed = 1_000_000 + 2 * number
    mine, theirs = content(seed + WORLD.rank, size), content(seed + peer, size)
    buffer = bytearray(size)
    if WORLD.rank == 0:
        send = WORLD.Isend([mine, MPI.BYTE], dest=peer, tag=number)
        receive = WORLD.Irecv([buffer, MPI.BYTE], source=peer, tag=number)
    else:
        receive = WORLD.Irecv([buffer, MPI.BYTE], source=peer, tag=number)
        send = WORLD.Isend([mine, MPI.BYTE], dest=peer, tag=number)
    MPI.Request.Waitall([receive, send])
    expect_bytes(buffer, theirs, f"message of {size}, both ways at once")


run(main)
