"""Every collective of MPI, blocking, nonblocking and persistent, on several communicators, types and sizes. What comes
out is compared with what each rank works out by itself.

usage: collectives.py [--every K] [NAME…]
  --every K   one of K sizes on each communicator, another one on the next
  NAME        only the collectives whose name begins so
"""

import sys

import collective_cases
import neighbour_cases
from checked import WORLD, run
from mpi4py import MPI

# Elements of each rank's part; the last ones are some 64 KiB and 1 MiB in all.
SMALL = (0, 1, 3, 17, 1009, 5003)
LARGE_BYTES = (64 << 10, 1 << 20)
# Intel MPI 2021.19 moves nothing when one of these is started again, over any network.
STARTED_ONCE = ("Allgather", "Gather", "Scatter") if MPI.get_vendor()[0] == "Intel MPI" else ()


def main():
    wanted, every = sys.argv[1:], 1
    if wanted[:1] == ["--every"]:
        every, wanted = int(wanted[1]), wanted[2:]
    calls = 0
    for place, (communicator, make, sizes) in enumerate(plan()):
        if communicator == MPI.COMM_NULL:
            continue
        chosen = [(n, size) for n, size in enumerate(sizes) if (n + place) % every == 0] or [(0, sizes[0])]
        for number, elements in chosen:
            calls += one_size(communicator, make, elements, number, tuple(wanted))
        if communicator != WORLD:
            communicator.Free()
    return f"{calls} collective calls"


def plan():
    """Communicators, what is called on them, and sizes. All of a communicator's members yield it."""
    large = [size // 8 // max(1, WORLD.size // 2) for size in LARGE_BYTES]
    yield WORLD, collective_cases.make, (*SMALL, *large)
    yield WORLD.Split(0, -WORLD.rank), collective_cases.make, (1, 17, 1009)
    if WORLD.size > 2:
        # Not a power of two.
        left_out = WORLD.rank == WORLD.size // 2
        yield WORLD.Split(MPI.UNDEFINED if left_out else 0, WORLD.rank), collective_cases.make, SMALL
    yield between_halves(), collective_cases.make_between, (0, 1, 1009, large[0])
    for topology in neighbour_cases.topologies():
        yield topology, neighbour_cases.make, (0, 1, 17, 5003)


def between_halves():
    """An intercommunicator: the lower ranks on one side, the upper ones on the other."""
    upper = WORLD.rank >= WORLD.size // 2
    side = WORLD.Split(int(upper), WORLD.rank)
    both = side.Create_intercomm(0, WORLD, 0 if upper else WORLD.size // 2, 7)
    side.Free()
    return both


def one_size(communicator, make, elements, number, wanted):
    """Each collective by itself, then all of them under way at once, then each prepared once and started twice."""

    def cases(seed, blocking=False):
        found = make(communicator, elements, number, seed)
        return [c for c in found if c.name.startswith(wanted or ("",)) and (blocking or not c.blocking_only)]

    calls = 0
    for case in cases(1000 * number, blocking=True):
        case.prepare()
        getattr(communicator, case.name)(*case.arguments())
        case.check()
        calls += 1
    calls += all_at_once(communicator, cases(1000 * number + 500), backwards=number % 2 == 1)
    if elements <= 1009:
        for case in cases(1000 * number + 700):
            twice(communicator, case)
            calls += 2
    return calls


def all_at_once(communicator, cases, backwards):
    requests = []
    for case in cases:
        case.prepare()
        requests.append(getattr(communicator, "I" + case.name.lower())(*case.arguments()))
    if backwards:
        for request in reversed(requests):
            request.Wait()
    else:
        MPI.Request.Waitall(requests)
    for case in cases:
        case.check()
    return len(cases)


def twice(communicator, case):
    case.prepare()
    request = getattr(communicator, case.name + "_init")(*case.arguments())
    for start in range(1 if case.name in STARTED_ONCE else 2):
        if start:
            case.prepare()
        request.Start()
        request.Wait()
        case.check()
    request.Free()


run(main)
