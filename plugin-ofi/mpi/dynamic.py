"""Dynamic windows: memory that is attached and detached, reached by its address."""

from array import array

from checked import WORLD, expect, run
from mpi4py import MPI

SIZES = (8, 1024, 131_072)
INT = MPI.LONG_LONG


def main():
    window = MPI.Win.Create_dynamic(comm=WORLD)
    right = (WORLD.rank + 1) % WORLD.size
    left = (WORLD.rank - 1) % WORLD.size
    for size in SIZES:
        held = array("q", range(size))
        window.Attach(held)
        # A barrier, too: all have attached.
        places = WORLD.allgather(MPI.Get_address(held))
        window.Lock_all()
        got = array("q", bytes(8 * size))
        window.Get([got, INT], right, (places[right], size, INT))
        window.Flush(right)
        expect(got, array("q", range(size)), f"a get of {size} numbers")
        WORLD.Barrier()
        # Both are in use until the flush.
        ranks, five = array("q", [WORLD.rank] * size), array("q", [5])
        window.Put([ranks, INT], right, (places[right], size, INT))
        window.Flush(right)
        WORLD.Barrier()
        fetched = array("q", [0])
        window.Fetch_and_op([five, INT], [fetched, INT], right, places[right], MPI.SUM)
        window.Flush(right)
        expect(fetched[0], WORLD.rank, "a number that is fetched")
        window.Unlock_all()
        WORLD.Barrier()
        window.Lock(WORLD.rank, MPI.LOCK_SHARED)
        expect(held[0], left + 5, "the first number")
        expect(held[1:], array("q", [left] * (size - 1)), f"a put of {size} numbers")
        window.Unlock(WORLD.rank)
        window.Detach(held)
        WORLD.Barrier()
    window.Free()
    return f"{len(SIZES)} attachments"


run(main)
