"""One collective call: its buffers, what goes into them, and what must come out."""

import random
from array import array

from checked import PATTERN, expect
from mpi4py import MPI

# array's type codes with MPI's names for them.
TYPES = {
    "b": MPI.SIGNED_CHAR,
    "i": MPI.INT,
    "q": MPI.LONG_LONG,
    "f": MPI.FLOAT,
    "d": MPI.DOUBLE,
}

# In a place that no call may write to.
UNTOUCHED = 99


class Case:
    """A call with buffers that can be filled again."""

    def __init__(self, name, what, code, *tail):
        self.name = name
        self.what = f"{name} {what}"
        self.code = code
        self.type = TYPES[code]
        self.tail = tail
        self.blocking_only = False
        self.parts = []
        self.before = []
        self.after = []

    def given(self, values, *layout):
        """A buffer that is only read."""
        return self.buffer(values, values, *layout)

    def taken(self, wanted, *layout):
        """A buffer that is only written."""
        return self.buffer(untouched(self.code, len(wanted)), wanted, *layout)

    def buffer(self, values, wanted, *layout):
        """A buffer with what it holds before and after; `layout` is what stands between it and its type in the call."""
        # Open MPI takes two buffers without an address for the same one.
        held = array(self.code, values) or untouched(self.code, 1)
        self.before.append((held, values))
        self.after.append((held, wanted))
        self.parts.append([held, *(layout or (len(values),)), self.type])
        return self

    def in_place(self):
        """What stands for the send buffer where the receive buffer holds the data."""
        self.parts.append(MPI.IN_PLACE)
        return self

    def nothing(self):
        """What stands for a buffer that does not count on this rank."""
        self.parts.append(None)
        return self

    def arguments(self):
        """What the method of the communicator takes."""
        return (*self.parts, *self.tail)

    def prepare(self):
        """Fills the buffers."""
        for held, values in self.before:
            if values:
                held[:] = values

    def check(self):
        """Compares them with what they should hold."""
        for held, wanted in self.after:
            if wanted and held != wanted:
                place = next(i for i, (a, b) in enumerate(zip(held, wanted)) if a != b)
                expect(
                    held[place : place + 8].tolist(),
                    wanted[place : place + 8].tolist(),
                    f"{self.what}, element {place} of {len(wanted)}",
                )


# Small numbers, so that sums and products of a few are exact in every type.
NUMBERS = tuple(random.Random(1).choices((1, 2, 3), k=2 * PATTERN))


def pattern(seed):
    """The numbers that `values` repeats."""
    begin = seed % PATTERN
    return NUMBERS[begin : begin + PATTERN]


def values(code, seed, count):
    """What the holder of a seed gives."""
    return repeated(code, pattern(seed), count)


def repeated(code, numbers, count):
    """The first `count` of the numbers over and over."""
    once = array(code, numbers[:count])
    whole, rest = divmod(count, len(numbers))
    return once * whole + once[:rest] if whole else once


def untouched(code, count):
    """What a buffer holds before anybody writes to it."""
    return array(code, [UNTOUCHED]) * count


def joined(code, arrays):
    """One after the other."""
    result = array(code)
    for part in arrays:
        result.extend(part)
    return result


def spread(code, blocks, displacements, length):
    """Blocks at their places, nothing in between."""
    result = untouched(code, length)
    for block, place in zip(blocks, displacements):
        result[place : place + len(block)] = block
    return result
