"""The collectives of neighbourhoods, on grids and on a graph."""

from array import array

from case import TYPES, Case, joined, spread, untouched, values
from checked import WORLD
from mpi4py import MPI

CODES = ("i", "d", "b")


def topologies():
    """Communicators that know who is whose neighbour."""
    size = WORLD.size
    # Not periodic: the ranks at the edges have neighbours that are nobody.
    yield WORLD.Create_cart(MPI.Compute_dims(size, 2), [False, False])
    if size > 2:
        yield WORLD.Create_cart([size], [True])

    def targets(rank):
        return sorted({(rank + 1) % size, (2 * rank) % size, (rank + 3) % size})

    sources = [r for r in range(size) if WORLD.rank in targets(r)]
    # Not in the order of the ranks, and not the same order at both ends.
    yield WORLD.Create_dist_graph_adjacent(sources[::-1], targets(WORLD.rank))


def make(comm, count, number, seed):
    code = CODES[number % len(CODES)]
    incoming, outgoing = comm.inedges, comm.outedges
    size, rank = comm.size, comm.rank

    def length(source, target):
        return count * ((source + 2 * target) % 3) // 2

    def pair(source, target, elements=count):
        return values(code, seed + source * size + target, elements)

    def or_untouched(source, block):
        return untouched(code, len(block)) if source == MPI.PROC_NULL else block

    def irregular(blocks):
        places, end = [], 1
        for block in blocks:
            places.append(end)
            end += len(block) + 2
        return spread(code, blocks, places, end), ([len(b) for b in blocks], places)

    mine = values(code, seed + rank, count)
    gathered = [or_untouched(s, values(code, seed + s, count)) for s in incoming]
    yield Case("Neighbor_allgather", f"{count}{code}", code).given(mine).taken(joined(code, gathered), count)

    mine = values(code, seed + rank, length(rank, 0))
    gathered = [or_untouched(s, values(code, seed + s, length(s, 0))) for s in incoming]
    yield Case("Neighbor_allgatherv", f"{count}{code}", code).given(mine).taken(*irregular(gathered))

    out = joined(code, (pair(rank, t) for t in outgoing))
    wanted = joined(code, (or_untouched(s, pair(s, rank)) for s in incoming))
    yield Case("Neighbor_alltoall", f"{count}{code}", code).given(out, count).taken(wanted, count)

    out = [pair(rank, t, length(rank, t)) for t in outgoing]
    wanted = [or_untouched(s, pair(s, rank, length(s, rank))) for s in incoming]
    yield Case("Neighbor_alltoallv", f"{count}{code}", code).given(*irregular(out)).taken(*irregular(wanted))

    case = Case("Neighbor_alltoallw", f"{count}{code}", code)
    for fill, blocks in ((case.given, out), (case.taken, wanted)):
        content, (counts, places) = irregular(blocks)
        fill(content, (counts, [place * array(code).itemsize for place in places]))
        case.parts[-1][-1] = [TYPES[code]] * len(blocks)
    yield case
