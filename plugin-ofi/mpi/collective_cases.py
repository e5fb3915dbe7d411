"""The collectives of a communicator, and what each must do."""

import functools
import operator
from array import array

from case import Case, joined, pattern, repeated, spread, untouched, values
from mpi4py import MPI

CODES = ("i", "d", "q", "b", "f")

OPERATIONS = {
    "SUM": (MPI.SUM, operator.add, "bifqd"),
    "PROD": (MPI.PROD, operator.mul, "ifqd"),
    "MAX": (MPI.MAX, max, "bifqd"),
    "MIN": (MPI.MIN, min, "bifqd"),
    "BAND": (MPI.BAND, operator.and_, "biq"),
    "BOR": (MPI.BOR, operator.or_, "biq"),
    "BXOR": (MPI.BXOR, operator.xor, "biq"),
    "LAND": (MPI.LAND, lambda a, b: int(bool(a) and bool(b)), "iq"),
    "LXOR": (MPI.LXOR, lambda a, b: int(bool(a) != bool(b)), "iq"),
}


def make(comm, count, number, seed):
    """All of them, with `count` elements a rank. `number` chooses types, roots and operations."""
    code = CODES[number % len(CODES)]
    root = number % comm.size
    names = [name for name, (_, _, codes) in OPERATIONS.items() if code in codes]
    name = names[number % len(names)]

    def moved(case):
        # Calls that are under way together carry different content.
        return comm, count, code, seed + 17 * case

    def reduced(case):
        return *moved(case), name

    cases = [
        barrier(),
        broadcast(*moved(0), root),
        broadcast_derived(comm, count, seed + 17, root),
        *gather(*moved(2), root),
        *scatter(*moved(3), root),
        gatherv(*moved(4), root),
        scatterv(*moved(5), root),
        *allgather(*moved(6)),
        allgatherv(*moved(7)),
        *alltoall(*moved(8)),
        alltoallv(*moved(9)),
        alltoallw(comm, count, seed + 170),
        *reduce(*reduced(11), root),
        *allreduce(*reduced(12)),
        *reduce_scatter_block(*reduced(13)),
        *reduce_scatter(*reduced(14)),
        *scan(*reduced(15)),
        *exscan(*reduced(16)),
        minimum_and_where(comm, count, seed + 289),
    ]
    if count <= 3:
        cases += in_order_only(comm, count, seed)
    return cases


def barrier():
    return Case("Barrier", "", "b")


def broadcast(comm, count, code, seed, root):
    wanted = values(code, seed, count)
    case = Case("Bcast", f"{count}{code} from {root}", code, root)
    return case.given(wanted) if comm.rank == root else case.taken(wanted)


def broadcast_derived(comm, count, seed, root):
    """Every second element, into consecutive ones elsewhere."""
    case = Case("Bcast", f"{count} strided from {root}", "i", root)
    dense = values("i", seed + 1, count)
    if comm.rank != root:
        return case.taken(dense)
    sparse = untouched("i", 2 * count)
    sparse[::2] = dense
    case.type = every_second()
    return case.given(sparse, count)


@functools.lru_cache(maxsize=1)
def every_second():
    """An int with a gap of one behind it."""
    return MPI.INT.Create_resized(0, 2 * MPI.INT.Get_size()).Commit()


def gather(comm, count, code, seed, root):
    whole = joined(code, (values(code, seed + r, count) for r in range(comm.size)))
    mine = values(code, seed + comm.rank, count)
    case = Case("Gather", f"{count}{code} to {root}", code, root)
    yield case.given(mine).taken(whole, count) if comm.rank == root else case.given(mine).nothing()
    case = Case("Gather", f"{count}{code} to {root} in place", code, root)
    if comm.rank != root:
        yield case.given(mine).nothing()
        return
    own = untouched(code, len(whole))
    own[root * count : (root + 1) * count] = mine
    yield case.in_place().buffer(own, whole, count)


def scatter(comm, count, code, seed, root):
    whole = joined(code, (values(code, seed + r, count) for r in range(comm.size)))
    mine = values(code, seed + comm.rank, count)
    case = Case("Scatter", f"{count}{code} from {root}", code, root)
    yield case.given(whole, count).taken(mine) if comm.rank == root else case.nothing().taken(mine)
    case = Case("Scatter", f"{count}{code} from {root} in place", code, root)
    yield case.given(whole, count).in_place() if comm.rank == root else case.nothing().taken(mine)


def irregular(comm, count):
    """Counts of which some are 0, and places in no order with gaps between."""
    counts = [count * ((3 * r + 1) % 4) // 3 for r in range(comm.size)]
    places, end = [0] * comm.size, 0
    for r in reversed(range(comm.size)):
        places[r] = end
        end += counts[r] + 5
    return counts, places, end


def gatherv(comm, count, code, seed, root):
    counts, places, length = irregular(comm, count)
    blocks = [values(code, seed + r, counts[r]) for r in range(comm.size)]
    case = Case("Gatherv", f"{count}{code} to {root}", code, root).given(blocks[comm.rank])
    if comm.rank != root:
        return case.nothing()
    return case.taken(spread(code, blocks, places, length), (counts, places))


def scatterv(comm, count, code, seed, root):
    counts, places, length = irregular(comm, count)
    blocks = [values(code, seed + r, counts[r]) for r in range(comm.size)]
    case = Case("Scatterv", f"{count}{code} from {root}", code, root)
    if comm.rank == root:
        case.given(spread(code, blocks, places, length), (counts, places))
    else:
        case.nothing()
    return case.taken(blocks[comm.rank])


def allgather(comm, count, code, seed):
    whole = joined(code, (values(code, seed + r, count) for r in range(comm.size)))
    mine = values(code, seed + comm.rank, count)
    yield Case("Allgather", f"{count}{code}", code).given(mine).taken(whole, count)
    own = untouched(code, len(whole))
    own[comm.rank * count : (comm.rank + 1) * count] = mine
    yield Case("Allgather", f"{count}{code} in place", code).in_place().buffer(own, whole, count)


def allgatherv(comm, count, code, seed):
    counts, places, length = irregular(comm, count)
    blocks = [values(code, seed + r, counts[r]) for r in range(comm.size)]
    wanted = spread(code, blocks, places, length)
    return Case("Allgatherv", f"{count}{code}", code).given(blocks[comm.rank]).taken(wanted, (counts, places))


def alltoall(comm, count, code, seed):
    def block(source, target):
        return values(code, seed + source * comm.size + target, count)

    out = joined(code, (block(comm.rank, r) for r in range(comm.size)))
    wanted = joined(code, (block(r, comm.rank) for r in range(comm.size)))
    yield Case("Alltoall", f"{count}{code}", code).given(out, count).taken(wanted, count)
    yield Case("Alltoall", f"{count}{code} in place", code).in_place().buffer(out, wanted, count)


def alltoallv(comm, count, code, seed):
    def block(source, target):
        return values(code, seed + source * comm.size + target, count * ((source + 2 * target) % 3) // 2)

    def side(blocks):
        counts, places, end = [], [], 2
        for part in blocks:
            counts.append(len(part))
            places.append(end)
            end += len(part) + 3
        return spread(code, blocks, places, end), (counts, places)

    out = side([block(comm.rank, r) for r in range(comm.size)])
    wanted = side([block(r, comm.rank) for r in range(comm.size)])
    return Case("Alltoallv", f"{count}{code}", code).given(*out).taken(*wanted)


def alltoallw(comm, count, seed):
    """Each pair of ranks has a type of its own, and the sender's gaps are not the receiver's."""

    def block(source, target):
        return values("i", seed + source * comm.size + target, count // (1 + (source + target) % 2))

    def side(blocks, strided):
        content, counts, places, types = array("i"), [], [], []
        for index, part in enumerate(blocks):
            places.append(len(content) * content.itemsize)
            counts.append(len(part))
            if (index + strided) % 2:
                sparse = untouched("i", 2 * len(part))
                sparse[::2] = part
                content.extend(sparse)
                types.append(every_second())
            else:
                content.extend(part)
                types.append(MPI.INT)
            content.append(UNTOUCHED_GAP)
        return content, (counts, places), types

    case = Case("Alltoallw", f"{count}", "i")
    for strided, (content, layout, types) in enumerate(
        (
            side([block(comm.rank, r) for r in range(comm.size)], 0),
            side([block(r, comm.rank) for r in range(comm.size)], 1),
        )
    ):
        (case.taken if strided else case.given)(content, layout)
        case.parts[-1][-1] = types
    return case


UNTOUCHED_GAP = untouched("i", 1)[0]


def folded(name, code, seeds, count):
    """The operation over what the ranks of these seeds give."""
    operation = OPERATIONS[name][1]
    result = [functools.reduce(operation, column) for column in zip(*(pattern(s) for s in seeds))]
    return repeated(code, tuple(result), count)


def reduce(comm, count, code, seed, name, root):
    mine = values(code, seed + comm.rank, count)
    wanted = folded(name, code, range(seed, seed + comm.size), count)
    operation = OPERATIONS[name][0]
    case = Case("Reduce", f"{name} {count}{code} to {root}", code, operation, root)
    yield case.given(mine).taken(wanted) if comm.rank == root else case.given(mine).nothing()
    case = Case("Reduce", f"{name} {count}{code} to {root} in place", code, operation, root)
    yield case.in_place().buffer(mine, wanted) if comm.rank == root else case.given(mine).nothing()


def allreduce(comm, count, code, seed, name):
    mine = values(code, seed + comm.rank, count)
    wanted = folded(name, code, range(seed, seed + comm.size), count)
    yield from both_ways("Allreduce", name, code, mine, wanted)


def both_ways(call, name, code, mine, wanted):
    """With a send buffer, and in place."""
    operation = OPERATIONS[name][0]
    what = f"{name} {len(mine)}{code}"
    yield Case(call, what, code, operation).given(mine).taken(wanted)
    yield Case(call, f"{what} in place", code, operation).in_place().buffer(mine, wanted)


def reduce_scatter_block(comm, count, code, seed, name):
    mine = values(code, seed + comm.rank, count * comm.size)
    whole = folded(name, code, range(seed, seed + comm.size), count * comm.size)
    wanted = whole[comm.rank * count : (comm.rank + 1) * count]
    operation = OPERATIONS[name][0]
    what = f"{name} {count}{code}"
    yield Case("Reduce_scatter_block", what, code, operation).given(mine, count).taken(wanted)
    case = Case("Reduce_scatter_block", f"{what} in place", code, operation)
    case.in_place().buffer(mine, wanted, count)
    yield only_first(case, count)


def only_first(case, count):
    """In place, what stands behind the result is not defined."""
    held, wanted = case.after[-1]
    case.after[-1] = (memoryview(held)[:count], memoryview(wanted)[:count])
    return case


def reduce_scatter(comm, count, code, seed, name):
    def parts(counts):
        mine = values(code, seed + comm.rank, sum(counts))
        whole = folded(name, code, range(seed, seed + comm.size), sum(counts))
        begin = sum(counts[: comm.rank])
        return mine, whole[begin : begin + counts[comm.rank]]

    operation = OPERATIONS[name][0]
    what = f"{name} {count}{code}"
    counts = [count * ((r + 1) % 3) // 2 for r in range(comm.size)]
    mine, wanted = parts(counts)
    yield Case("Reduce_scatter", what, code, counts, operation).given(mine).taken(wanted)
    # No part is larger than all parts before it: MPICH 5.0.2 would copy it onto itself and stop.
    counts = [count * (3 - r % 3) // 3 for r in range(comm.size)]
    mine, wanted = parts(counts)
    case = Case("Reduce_scatter", f"{what} in place", code, counts, operation)
    case.in_place().buffer(mine, joined(code, (wanted, mine[len(wanted) :])))
    yield only_first(case, len(wanted))


def scan(comm, count, code, seed, name):
    mine = values(code, seed + comm.rank, count)
    wanted = folded(name, code, range(seed, seed + comm.rank + 1), count)
    yield from both_ways("Scan", name, code, mine, wanted)


def exscan(comm, count, code, seed, name):
    mine = values(code, seed + comm.rank, count)
    # The result of the first rank is not defined.
    if comm.rank == 0:
        cases = list(both_ways("Exscan", name, code, mine, mine))
        for case in cases:
            case.after.pop()
        yield from cases
    else:
        yield from both_ways("Exscan", name, code, mine, folded(name, code, range(seed, seed + comm.rank), count))


def minimum_and_where(comm, count, seed):
    """Pairs of a value and a rank."""

    def pairs(rank):
        result = array("i", [rank]) * (2 * count)
        result[::2] = values("i", seed + rank, count)
        return result

    columns = zip(*(pattern(seed + r) for r in range(comm.size)))
    least = tuple(number for column in columns for number in min(zip(column, range(comm.size))))
    wanted = repeated("i", least, 2 * count)
    case = Case("Allreduce", f"MINLOC {count}", "i", MPI.MINLOC)
    case.type = MPI.TWOINT
    return case.given(pairs(comm.rank), count).taken(wanted, count)


MODULUS = 1_000_003


def after(first, second):
    """The map that two maps x → ax + b make one after the other."""
    return (second[0] * first[0] % MODULUS, (second[0] * first[1] + second[1]) % MODULUS)


def combine(lower, upper, _):
    """MPI's user function: upper = lower ∘ upper."""
    first, second = memoryview(lower).cast("B").cast("q"), memoryview(upper).cast("B").cast("q")
    for i in range(0, len(second), 2):
        second[i], second[i + 1] = after((first[i], first[i + 1]), (second[i], second[i + 1]))


@functools.lru_cache(maxsize=1)
def composition():
    """An operation whose order counts, and the type it works on."""
    return MPI.Op.Create(combine, commute=False), MPI.LONG_LONG.Create_contiguous(2).Commit()


def in_order_only(comm, count, seed):
    operation, kind = composition()

    def maps(rank, length=count):
        numbers = pattern(seed + rank)
        return [(number + rank + i + 1, number) for i, number in enumerate(numbers[:length])]

    def flat(pairs):
        return array("q", (number for pair in pairs for number in pair))

    def through(ranks, length=count):
        return flat(functools.reduce(after, column) for column in zip(*(maps(r, length) for r in ranks)))

    everybody, mine = range(comm.size), flat(maps(comm.rank))
    for name, wanted in (
        ("Allreduce", through(everybody)),
        ("Scan", through(range(comm.rank + 1))),
        ("Exscan", through(range(comm.rank)) if comm.rank else None),
    ):
        case = Case(name, f"of maps, {count}", "q", operation)
        case.type = kind
        case.given(mine, count).taken(mine if wanted is None else wanted, count)
        if wanted is None:
            case.after.pop()
        yield case
    length = count * comm.size
    case = Case("Reduce_scatter_block", f"of maps, {count}", "q", operation)
    case.type = kind
    whole = through(everybody, length)
    begin = 2 * comm.rank * count
    yield case.given(flat(maps(comm.rank, length)), count).taken(whole[begin : begin + 2 * count], count)


def make_between(comm, count, number, seed):
    """Those of an intercommunicator: each side gets what the other gives."""
    code = CODES[number % len(CODES)]
    upper = MPI.COMM_WORLD.rank >= MPI.COMM_WORLD.size // 2
    theirs = [seed + 100 * (not upper) + r for r in range(comm.remote_size)]
    mine = values(code, seed + 100 * upper + comm.rank, count)
    yield barrier()
    yield Case("Allreduce", f"{count}{code} between", code, MPI.SUM).given(mine).taken(
        folded("SUM", code, theirs, count)
    )
    whole = joined(code, (values(code, s, count) for s in theirs))
    yield Case("Allgather", f"{count}{code} between", code).given(mine).taken(whole, count)
    out = joined(code, (values(code, seed + 7 * comm.rank + r + 50 * upper, count) for r in range(comm.remote_size)))
    wanted = joined(
        code, (values(code, seed + 7 * r + comm.rank + 50 * (not upper), count) for r in range(comm.remote_size))
    )
    yield Case("Alltoall", f"{count}{code} between", code).given(out, count).taken(wanted, count)
    wanted = values(code, seed + 3, count)
    root = 0 if upper else MPI.ROOT if comm.rank == 0 else MPI.PROC_NULL
    case = Case("Bcast", f"{count}{code} between", code, root)
    # After a nonblocking one MPICH 5.0.2 hangs in the next call, over any network.
    case.blocking_only = True
    yield case.taken(wanted) if upper else case.given(wanted)
