"""Buffers of bytes, in one piece or in pieces with gaps between them."""

from checked import expect
from mpi4py import MPI

FILLER = 0xEE


class Whole:
    """One piece."""

    def __init__(self, size):
        self.memory = bytearray([FILLER]) * size
        self.spec = [self.memory, size, MPI.BYTE]

    @classmethod
    def filled(cls, data):
        """A buffer with these bytes."""
        buffer = cls(0)
        buffer.memory = data
        buffer.spec = [data, len(data), MPI.BYTE]
        return buffer

    def gathered(self, size):
        """The first bytes."""
        return memoryview(self.memory)[:size]

    def free(self):
        """Nothing to give back."""


class Pieces:
    """Several pieces, of which `pieces` gives (place, length) in the order of the bytes, and `kind` the type."""

    def __init__(self, size):
        self.pieces = self.split(size)
        extent = max((place + length for place, length in self.pieces), default=0)
        self.memory = bytearray([FILLER]) * (extent + 8)
        self.type = self.kind(size).Commit()
        self.spec = [self.memory, 1, self.type]

    @classmethod
    def filled(cls, data):
        """A buffer with these bytes."""
        buffer = cls(len(data))
        begin = 0
        for place, length in buffer.pieces:
            buffer.memory[place : place + length] = data[begin : begin + length]
            begin += length
        return buffer

    def gathered(self, size):
        """The first bytes; nothing may stand elsewhere."""
        parts, left = [], size
        for place, length in self.pieces:
            length = min(length, left)
            parts.append(self.memory[place : place + length])
            self.memory[place : place + length] = bytes([FILLER]) * length
            left -= length
        expect(self.memory.count(FILLER), len(self.memory), "bytes that are not written between pieces")
        return b"".join(parts)

    def free(self):
        """Gives the type back."""
        self.type.Free()


class Strided(Pieces):
    """Equal pieces at equal distances (a vector), and what is left."""

    @staticmethod
    def block(size):
        return max(5, size // 200)

    def split(self, size):
        block = self.block(size)
        return [(2 * begin, min(block, size - begin)) for begin in range(0, size, block)]

    def kind(self, size):
        block = self.block(size)
        whole, rest = divmod(size, block)
        vector = MPI.BYTE.Create_vector(whole, block, 2 * block)
        both = MPI.Datatype.Create_struct([1, rest], [0, 2 * whole * block], [vector, MPI.BYTE])
        vector.Free()
        return both


class Backwards(Pieces):
    """Pieces of growing length whose places in memory go down."""

    def split(self, size):
        lengths, left = [], size
        while left:
            lengths.append(min(left, 1 + len(lengths) * max(1, size // 2000)))
            left -= lengths[-1]
        pieces, place = [], sum(lengths) + 3 * len(lengths)
        for length in lengths:
            place -= length + 3
            pieces.append((place, length))
        return pieces

    def kind(self, size):
        return MPI.BYTE.Create_hindexed([length for _, length in self.pieces], [place for place, _ in self.pieces])


LAYOUTS = (Whole, Whole, Strided, Backwards)
