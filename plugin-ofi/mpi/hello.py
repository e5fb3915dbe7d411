"""Every rank meets every other."""

from checked import WORLD, expect, run
from mpi4py import MPI


def main():
    size, rank = WORLD.size, WORLD.rank
    expect(WORLD.allreduce(rank), size * (size - 1) // 2, "sum of the ranks")
    expect([r for r, _ in WORLD.allgather((rank, MPI.Get_processor_name()))], list(range(size)), "ranks by name")
    token = WORLD.sendrecv(rank, dest=(rank + 1) % size, source=(rank - 1) % size)
    expect(token, (rank - 1) % size, "neighbour in the ring")
    for peer in range(size):
        if peer != rank:
            expect(WORLD.sendrecv((rank, peer), dest=peer, source=peer), (peer, rank), "greeting")
    names = sorted(set(WORLD.allgather(MPI.Get_processor_name())))
    return f"{', '.join(names)}; {MPI.Get_library_version().splitlines()[0].strip(chr(0))}"


run(main)
