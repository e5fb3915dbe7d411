"""Windows: put, get, accumulate, fetch and compare, under fences, locks and between groups.

usage: one_sided.py [KEY=VALUE]…     hints for the window
"""

import random
import sys
from array import array

from checked import WORLD, expect, run
from mpi4py import MPI

# Of each rank's window, which has a part for every origin.
PART = 50_000
# MPICH 5.0.2 sends in pieces, where the network has no operation for it, more than 16 KiB at a
# time, and crashes, over any network, as soon as two ranks do it to a third: so it does with sums,
# where there are no atomics, and here with nothing else.
SUMMED = 2000
# Intel MPI 2021.19 sums more than 4 KiB by several atomic operations, where it uses these at all.
# To each it passes the list of its own buffers as the list of places in the window.
INTEL_SUMMED = 500
SIZES = (0, 1, 17, 1000, SUMMED, PART)
INT = MPI.LONG_LONG


def numbers(seed, count):
    """Numbers that only this seed has."""
    return array("q", random.Random(seed).randbytes(8 * count))


def main():
    held = array("q", bytes(8 * PART * WORLD.size))
    memory = memoryview(held)
    hints = dict(hint.split("=") for hint in sys.argv[1:])
    window = MPI.Win.Create(held, 8, MPI.Info.Create(hints), comm=WORLD)
    summed = INTEL_SUMMED if MPI.get_vendor()[0] == "Intel MPI" else SUMMED
    for number, size in enumerate(SIZES):
        fences(window, memory, number, size)
        sums(window, memory, number, min(size, summed))
        neighbours(window, memory, number, size)
        flushes(window, memory, number, size)
    count = counters(window, memory)
    window.Free()
    return f"{len(SIZES)} sizes, {count} atomic operations"


def seed_of(number, origin, target):
    return (number * WORLD.size + origin) * WORLD.size + target


def fences(window, memory, number, size):
    """Everybody puts to everybody, and then gets it from there."""
    window.Fence()
    given = [numbers(seed_of(number, WORLD.rank, target), size) for target in range(WORLD.size)]
    for target, data in enumerate(given):
        window.Put([data, size, INT], target, target=[WORLD.rank * PART, size, INT])
    window.Fence()
    for origin in range(WORLD.size):
        found = memory[origin * PART : origin * PART + size]
        expect(found.tolist(), numbers(seed_of(number, origin, WORLD.rank), size).tolist(), f"put of {size} by {origin}")
    rooms = [array("q", bytes(8 * size)) for _ in range(WORLD.size)]
    for target, room in enumerate(rooms):
        window.Get([room, size, INT], target, target=[WORLD.rank * PART, size, INT])
    window.Fence()
    for target, room in enumerate(rooms):
        expect(room, numbers(seed_of(number, WORLD.rank, target), size), f"get of {size} from {target}")


def sums(window, memory, number, size):
    """What all add to the same place is there once each."""
    memory[:size] = array("q", [0]) * size
    window.Fence()
    mine = array("q", [WORLD.rank + number]) * size
    for target in range(WORLD.size):
        window.Accumulate([mine, size, INT], target, target=[0, size, INT], op=MPI.SUM)
    window.Fence()
    total = sum(range(WORLD.size)) + number * WORLD.size
    expect(memory[:size].tolist(), [total] * size, f"sum of {size}")


def neighbours(window, memory, number, size):
    """Start and complete, post and wait, around the ring."""
    group = WORLD.Get_group()
    right, left = (WORLD.rank + 1) % WORLD.size, (WORLD.rank - 1) % WORLD.size
    window.Post(group.Incl([left]))
    window.Start(group.Incl([right]))
    data = numbers(77 + seed_of(number, WORLD.rank, right), size)
    window.Put([data, size, INT], right, target=[0, size, INT])
    window.Complete()
    window.Wait()
    wanted = numbers(77 + seed_of(number, left, WORLD.rank), size)
    expect(memory[:size].tolist(), wanted.tolist(), f"put of {size} around the ring")


def flushes(window, memory, number, size):
    """What is put under a lock is there once it is flushed, before the lock goes."""
    right = (WORLD.rank + 1) % WORLD.size
    data, room = numbers(99 + seed_of(number, WORLD.rank, right), size), array("q", bytes(8 * size))
    place = [WORLD.rank * PART, size, INT]
    WORLD.Barrier()
    window.Lock(right, MPI.LOCK_SHARED)
    window.Put([data, size, INT], right, target=place)
    window.Flush(right)
    window.Get([room, size, INT], right, target=place)
    window.Flush_local(right)
    expect(room, data, f"put of {size} under a lock")
    request = window.Rget([room, size, INT], right, target=place)
    request.Wait()
    window.Unlock(right)
    expect(room, data, f"get of {size} under a lock")
    WORLD.Barrier()


def counters(window, memory):
    """Tickets that no two draw, and a lock by compare and swap."""
    draws = 20
    memory[:2] = array("q", [0, 0])
    WORLD.Barrier()
    tickets = []
    one, ticket = array("q", [1]), array("q", [0])
    window.Lock_all()
    for _ in range(draws):
        window.Fetch_and_op([one, INT], [ticket, INT], 0, 0, MPI.SUM)
        window.Flush(0)
        tickets.append(ticket[0])
    window.Unlock_all()
    everybody = sorted(t for rank in WORLD.allgather(tickets) for t in rank)
    expect(everybody, list(range(draws * WORLD.size)), "tickets")
    # Each takes its turn.
    found, turn, after = array("q", [-1]), array("q", [WORLD.rank]), array("q", [WORLD.rank + 1])
    window.Lock(0, MPI.LOCK_SHARED)
    while found[0] != WORLD.rank:
        window.Compare_and_swap([after, INT], [turn, INT], [found, INT], 0, 1)
        window.Flush(0)
    window.Unlock(0)
    WORLD.Barrier()
    if WORLD.rank == 0:
        window.Lock(0)
        expect(memory[1], WORLD.size, "turns")
        window.Unlock(0)
    WORLD.Barrier()
    return draws * WORLD.size + WORLD.size


run(main)
