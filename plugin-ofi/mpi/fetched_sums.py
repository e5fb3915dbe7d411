"""Accumulates that fetch, and gets behind them: after the flush each has all of its bytes."""

from array import array

from checked import WORLD, expect, run
from mpi4py import MPI

ROUNDS = 20
LONGEST = 1 << 17


def main():
    window = MPI.Win.Allocate(8 * LONGEST, 8, comm=WORLD)
    held = memoryview(window.tomemory()).cast("d")
    right = (WORLD.rank + 1) % WORLD.size
    # Meanwhile the left neighbour accumulates here, for which this rank's MPI may read, too.
    length = 1
    while length <= LONGEST:
        held[:length] = array("d", bytes(8 * length))
        ones, fetched, got = (array("d", [value] * length) for value in (1, -1, -1))
        WORLD.Barrier()
        window.Lock_all()
        for number in range(ROUNDS):
            window.Get_accumulate(ones, fetched, right, op=MPI.SUM)
            window.Flush(right)
            check(fetched, number, "fetched")
            window.Get(got, right)
            window.Flush(right)
            check(got, number + 1, "got")
            got[:] = fetched[:] = array("d", [-1]) * length
        window.Unlock_all()
        WORLD.Barrier()
        length *= 4
    window.Free()
    return f"{ROUNDS} sums of each length up to {LONGEST} numbers"


def check(numbers, wanted, what):
    wrong = next((at for at, number in enumerate(numbers) if number != wanted), None)
    if wrong is not None:
        expect(numbers[wrong], wanted, f"number {wrong} of {len(numbers)} that was {what}")


run(main)
