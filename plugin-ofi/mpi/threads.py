"""Several threads of each rank send and receive at the same time, each on a communicator of its own."""

import threading

from checked import WORLD, content, expect, expect_bytes, run
from mpi4py import MPI

THREADS = 4
SIZES = (0, 8, 700, 9000, 70_000, 300_000)
ROUNDS = 8


def main():
    expect(MPI.Query_thread(), MPI.THREAD_MULTIPLE, "thread support")
    communicators = [WORLD.Dup() for _ in range(THREADS)]
    failures = []

    def body(number):
        try:
            ring(communicators[number], number)
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=body, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    for communicator in communicators:
        communicator.Free()
    return f"{THREADS} threads, {THREADS * ROUNDS * len(SIZES)} messages of each rank"


def ring(communicator, number):
    right, left = (WORLD.rank + 1) % WORLD.size, (WORLD.rank - 1) % WORLD.size
    for turn in range(ROUNDS):
        for tag, size in enumerate(SIZES):
            # The same sizes and tags in all threads: only communicator and content tell them apart.
            def seed(rank):
                return ((turn * THREADS + number) * len(SIZES) + tag) * WORLD.size + rank

            room = bytearray(size)
            request = communicator.Isend([content(seed(WORLD.rank), size), MPI.BYTE], right, tag)
            communicator.Recv([room, MPI.BYTE], left if turn % 2 else MPI.ANY_SOURCE, tag)
            request.Wait()
            expect_bytes(room, content(seed(left), size), f"thread {number}, {size} bytes")
        communicator.Barrier()


run(main)
