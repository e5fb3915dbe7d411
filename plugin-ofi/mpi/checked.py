"""What the test programs share: content that is known on both sides, and an end that leaves nobody waiting."""

import random
import sys
import traceback

from mpi4py import MPI

WORLD = MPI.COMM_WORLD

# A prime, so that no power of two and no sum of them takes a pattern onto itself.
PATTERN = 127


def content(seed, size):
    """Bytes that only this seed has."""
    return random.Random(seed).randbytes(size)


def expect(found, wanted, what):
    """Ends the program where two values differ."""
    if found != wanted:
        raise AssertionError(f"{what}: {shortened(found)} in place of {shortened(wanted)}")


def expect_bytes(found, wanted, what):
    """As `expect`, and says where they differ."""
    if bytes(found) == bytes(wanted):
        return
    place = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
    raise AssertionError(
        f"{what}: {len(found)} bytes, {len(wanted)} were expected; the first difference is at {place}: "
        f"{bytes(found[place:place + 16]).hex()} in place of {bytes(wanted[place:place + 16]).hex()}"
    )


def shortened(value):
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def run(main):
    """Runs a program. Whatever goes wrong on one rank ends all."""
    try:
        result = main()
        WORLD.Barrier()
    except BaseException:
        print(f"rank {WORLD.rank} of {WORLD.size}:", file=sys.stderr)
        traceback.print_exc()
        sys.stderr.flush()
        # Returns, here and there.
        WORLD.Abort(1)
        sys.exit(1)
    if WORLD.rank == 0:
        print(f"PASS {WORLD.size} ranks: {result}", flush=True)
