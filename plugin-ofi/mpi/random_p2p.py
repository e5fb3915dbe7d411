"""Random point-to-point traffic. Every rank works out the same plan from the seed and acts its part of it; what arrives
is compared with what the plan says, in the order that MPI promises for each sender and tag.

usage: random_p2p.py [SEED [MESSAGES]]     messages that each rank sends, 240 by default
"""

import random
import sys
from collections import defaultdict, deque

from checked import WORLD, content, expect, expect_bytes, run
from layouts import LAYOUTS, Whole
from mpi4py import MPI

LARGE = 4 << 20
MEDIUM = 256 << 10
# Of each rank and round.
MESSAGES = 24
TAGS = (0, 1, 2, 7, 32767)
SENDS = ("Isend", "Isend", "Issend", "Ibsend", "Send_init")
RECEIVES = ("Irecv", "Irecv", "Irecv", "Recv_init", "Recv", "Probe", "Iprobe", "Mprobe", "Improbe")
# On each communicator of a round a rank receives in one of these ways. They differ in the fields
# that are wildcards, so that no receive takes the message of another.
WAYS = ("exact", "any source", "any tag", "anything")


class Message:
    """One message of the plan."""

    def __init__(self, draw, number, source, target):
        self.source, self.target = source, target
        self.channel = draw.randrange(len(WAYS))
        self.tag = draw.choice(TAGS)
        self.seed = draw.getrandbits(48)
        large = draw.random() < 0.004
        self.size = LARGE if large else int(2 ** (18 * draw.random())) - 1
        self.layout = draw.randrange(len(LAYOUTS)) if self.size <= MEDIUM else 0
        self.send = draw.choice(SENDS)
        # Its place in the plan, which is the order in which its sender starts it.
        self.number = number

    def content(self):
        return content(self.seed, self.size)


def main():
    arguments = [int(a) for a in sys.argv[1:]]
    seed = arguments[0] if arguments else 1
    rounds = max(1, (arguments[1] if len(arguments) > 1 else 240) // MESSAGES)
    channels = [WORLD.Dup() for _ in WAYS]
    MPI.Attach_buffer(bytearray((MEDIUM + MPI.BSEND_OVERHEAD) * MESSAGES))
    draw = random.Random(seed)
    sent = size = 0
    for number in range(rounds):
        plan = make_plan(draw)
        one_round(channels, plan, random.Random(1_000_003 * seed + 1009 * number + WORLD.rank))
        sent += len(plan)
        size += sum(m.size for m in plan)
        shift(draw)
        cancel(channels[0])
    truncated()
    MPI.Detach_buffer()
    for channel in channels:
        channel.Free()
    return f"{sent} messages of {size} bytes in {rounds} rounds, seed {seed}"


def make_plan(draw):
    plan = []
    for number in range(MESSAGES * WORLD.size):
        source, target = draw.randrange(WORLD.size), draw.randrange(WORLD.size)
        # To itself now and then.
        if source != target or draw.random() < 0.3:
            plan.append(Message(draw, number, source, target))
    return plan


def one_round(channels, plan, draw):
    incoming = defaultdict(list)
    for message in plan:
        if message.target == WORLD.rank:
            incoming[message.channel].append(message)
    receives = [r for index in incoming for r in receives_of(index, channels[index], incoming[index], draw)]
    draw.shuffle(receives)
    early = draw.randrange(len(receives) + 1)
    outgoing = [m for m in plan if m.source == WORLD.rank]
    for receive in receives[:early]:
        receive.post(draw.choice(("Irecv", "Recv_init")))
    sends = [start_send(channels[m.channel], m) for m in outgoing]
    for receive in receives[early:]:
        receive.post(draw.choice(RECEIVES))
    for receive in receives:
        receive.finish()
    for request, buffer in sends:
        request.Wait()
        # One that can be started again lives on.
        if request != MPI.REQUEST_NULL:
            request.Free()
        buffer.free()
    check(receives, plan)
    for receive in receives:
        receive.buffer.free()
    # Nothing of the next round comes into this one's wildcards.
    WORLD.Barrier()


def start_send(channel, message):
    """Returns the request, and the buffer that it needs until it is over."""
    buffer = LAYOUTS[message.layout].filled(message.content())
    if message.send == "Send_init":
        request = channel.Send_init(buffer.spec, dest=message.target, tag=message.tag)
        request.Start()
        return request, buffer
    # The attached buffer for buffered sends has no room for large messages.
    name = "Isend" if message.send == "Ibsend" and message.size > MEDIUM else message.send
    return getattr(channel, name)(buffer.spec, dest=message.target, tag=message.tag), buffer


def receives_of(index, channel, messages, draw):
    """One receive for each message; which message it gets is known only where nothing is left open."""
    way = draw.choice(WAYS)
    largest = max(m.size for m in messages)
    for message in messages:
        source, tag = message.source, message.tag
        if way in ("any source", "anything"):
            source = MPI.ANY_SOURCE
        if way in ("any tag", "anything"):
            tag = MPI.ANY_TAG
        # Of receives for the same pair of source and tag each must have room for any of the
        # messages.
        size = largest if way != "exact" else max(m.size for m in messages if (m.source, m.tag) == (source, tag))
        yield Receive(index, channel, source, tag, size, draw.randrange(len(LAYOUTS)))


class Receive:
    """A receive from its posting to its end."""

    posted = 0

    def __init__(self, index, channel, source, tag, size, layout):
        self.index, self.channel, self.source, self.tag, self.size = index, channel, source, tag, size
        self.layout = LAYOUTS[layout if size <= MEDIUM else 0]
        self.status = MPI.Status()
        self.request = self.buffer = self.how = None
        self.order = 0

    def post(self, how):
        """Posts it. Where it has to wait for its message, it does."""
        self.how = how
        self.order = Receive.posted = Receive.posted + 1
        pattern = {"source": self.source, "tag": self.tag}
        if how in ("Irecv", "Recv_init"):
            self.request = getattr(self.channel, how)(self.room(self.size), **pattern)
            if how == "Recv_init":
                self.request.Start()
        elif how == "Recv":
            self.channel.Recv(self.room(self.size), status=self.status, **pattern)
        else:
            found = None
            while not found:
                found = getattr(self.channel, how)(status=self.status, **pattern)
            source, tag, size = probed = self.outcome()
            if how in ("Probe", "Iprobe"):
                self.channel.Recv(self.room(size), source=source, tag=tag, status=self.status)
            else:
                # Into a buffer in pieces, Open MPI 5.0.7 writes nothing, and MPICH 5.0.2 crashes
                # now and then, over any network.
                self.layout = Whole
                found.Recv(self.room(size), status=self.status)
            expect(self.outcome(), probed, f"what was received after {how}")

    def room(self, size):
        """Makes the buffer; as it stands in a call."""
        self.buffer = self.layout(size)
        return self.buffer.spec

    def finish(self):
        """Waits for its message."""
        if self.request is not None:
            self.request.Wait(status=self.status)
        if self.how == "Recv_init":
            self.request.Free()

    def outcome(self):
        """Source, tag and size of what came."""
        return self.status.Get_source(), self.status.Get_tag(), self.status.Get_elements(MPI.BYTE)


def check(receives, plan):
    """Of one sender's messages with one tag, what was started first went into what was posted first."""
    expected = defaultdict(deque)
    for message in plan:
        if message.target == WORLD.rank:
            expected[message.channel, message.source, message.tag].append(message)
    for receive in sorted(receives, key=lambda r: r.order):
        source, tag, size = receive.outcome()
        queue = expected[receive.index, source, tag]
        expect(bool(queue), True, f"whether anybody sent what came from {source} with tag {tag}")
        message = queue.popleft()
        what = f"{message.send} of {source} → {receive.how}, tag {tag}, message {message.number}"
        expect(size, message.size, f"{what}: size")
        expect_bytes(receive.buffer.gathered(size), message.content(), what)


def shift(draw):
    """Everybody sends to one neighbour while it receives from the other."""
    distance = draw.randrange(WORLD.size)
    sizes = [int(2 ** (16 * draw.random())) for _ in range(WORLD.size)]
    seeds = [draw.getrandbits(48) for _ in range(WORLD.size)]
    target, source = (WORLD.rank + distance) % WORLD.size, (WORLD.rank - distance) % WORLD.size
    room = bytearray(sizes[source])
    WORLD.Sendrecv(
        [content(seeds[WORLD.rank], sizes[WORLD.rank]), MPI.BYTE], target, 5, [room, MPI.BYTE], source, MPI.ANY_TAG
    )
    expect_bytes(room, content(seeds[source], sizes[source]), "Sendrecv")
    both = bytearray(content(seeds[WORLD.rank], sizes[0]))
    WORLD.Sendrecv_replace([both, MPI.BYTE], target, 6, source, 6)
    expect_bytes(both, content(seeds[source], sizes[0]), "Sendrecv_replace")


def cancel(channel):
    """A receive that nobody serves can be taken back, and takes nothing with it."""
    room = bytearray(64)
    never = [channel.Irecv([room, MPI.BYTE], source=MPI.ANY_SOURCE, tag=tag) for tag in (11, 12, 13)]
    peer = WORLD.rank ^ 1
    if peer < WORLD.size:
        served = channel.Irecv([bytearray(8), MPI.BYTE], source=peer, tag=14)
        channel.Send([bytes(8), MPI.BYTE], dest=peer, tag=14)
        served.Wait()
    for request in reversed(never):
        status = MPI.Status()
        request.Cancel()
        request.Wait(status=status)
        expect(status.Is_cancelled(), True, "a receive without a message was cancelled")
    expect(any(room), False, "a cancelled receive was written to")


def truncated():
    """A message that is too long is an error of its receive alone."""
    target, source = (WORLD.rank + 1) % WORLD.size, (WORLD.rank - 1) % WORLD.size
    for size in (100, 100_000):
        data = content(size, size)
        room = bytearray(b"\xee" * 128)
        receive = WORLD.Irecv([memoryview(room)[:64], MPI.BYTE], source=source, tag=21)
        send = WORLD.Isend([data, MPI.BYTE], dest=target, tag=21)
        try:
            receive.Wait()
            code = MPI.SUCCESS
        except MPI.Exception as failure:
            code = failure.Get_error_class()
        expect(code, MPI.ERR_TRUNCATE, f"{size} bytes into 64")
        expect(room[64:], b"\xee" * 64, "what stands behind a buffer that was too small")
        send.Wait()
        whole = bytearray(size)
        WORLD.Sendrecv([data, MPI.BYTE], target, 22, [whole, MPI.BYTE], source, 22)
        expect_bytes(whole, data, "the message after one that was too long")


run(main)
