/* An owner of a provider that has no queue, counter or receive of its own: fi_peer(3)'s flows. */

#include "owner.h"

static char into[1 << 16];

static struct receive receive_of(bool tagged, uint64_t tag, size_t len, uintptr_t context)
{
	return (struct receive) {
		.tagged = tagged, .src = FI_ADDR_UNSPEC, .tag = tagged ? tag : 0, .buf = into, .len = len,
		.context = context,
	};
}

static void check_done(struct done done, uintptr_t context, bool tagged, size_t len, uint64_t data)
{
	EQUAL(done.err, 0);
	EQUAL(done.context, context);
	EQUAL(done.len, len);
	EQUAL(done.data, data);
	EQUAL(done.flags, FI_RECV | (tagged ? FI_TAGGED : FI_MSG) | (data ? FI_REMOTE_CQ_DATA : 0));
}

/* The sender has its completion. */
static void check_sent(struct world *world, struct side *side, bool tagged)
{
	struct done done = world_next(world, side->owner);
	EQUAL(done.err, 0);
	EQUAL(done.context, 0x5e9d);
	EQUAL(done.flags, FI_SEND | (tagged ? FI_TAGGED : FI_MSG));
}

/* Messages for which a receive is posted, of each kind and length. */
static void expected(void)
{
	static const size_t lengths[] = { 0, 1, 8, 4096, sizeof into };
	static char bytes[sizeof into];
	struct world world;

	world_open(&world);
	for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
		bool tagged = i % 2;
		size_t len = lengths[i / 2];
		memset(bytes, (int) i + 1, sizeof bytes);
		memset(into, 0, sizeof into);
		EQUAL(owner_receive(world.b.owner, receive_of(tagged, 7, sizeof into, i + 100)), 0);
		side_send(&world, &world.a, tagged, bytes, len, 7, i + 5);
		struct done done = world_next(&world, world.b.owner);
		check_done(done, i + 100, tagged, len, i + 5);
		EQUAL(done.src, world.b.to);
		EQUAL(done.tag, tagged ? 7 : 0);
		CHECK(!memcmp(into, bytes, len));
		check_sent(&world, &world.a, tagged);
		EQUAL(world.b.owner->freed, i + 1);
	}
	EQUAL(world.b.owner->queued, 0);
	EQUAL(world.a.owner->counted, world.b.owner->counted);
	world_close(&world);
}

/* Messages that wait, and are started in the order of their receives. */
static void unexpected(void)
{
	struct world world;
	char byte;

	world_open(&world);
	for (int i = 0; i < 8; i++) {
		byte = (char) (i + 1);
		side_send(&world, &world.a, i % 2, &byte, 1, (uint64_t) i, 0);
		check_sent(&world, &world.a, i % 2);
	}
	world_until(&world, world.b.owner, QUEUED, 8);
	/* Tagged ones out of order, then untagged ones in order. */
	for (int i = 0; i < 8; i++) {
		bool tagged = i < 4;
		int number = tagged ? 7 - 2 * i : 2 * (i - 4);
		EQUAL(owner_receive(world.b.owner, receive_of(tagged, (uint64_t) number, 8, (uintptr_t) i)), 0);
		check_done(world_next(&world, world.b.owner), (uintptr_t) i, tagged, 1, 0);
		EQUAL(into[0], number + 1);
	}
	EQUAL(world.b.owner->freed, 8);
	EQUAL(world.b.owner->counted, 8);
	world_close(&world);
}

/* Messages that the receiver has not looked at yet come in their order, from two senders. */
static void ordered(void)
{
	enum { MESSAGES = 20 };
	struct world world;

	world_open(&world);
	for (int i = 0; i < MESSAGES; i++) {
		struct side *from = i % 3 ? &world.a : &world.b;
		char byte = (char) i;
		struct iovec iov = { &byte, 1 };
		struct fi_msg_tagged msg = { .msg_iov = &iov, .iov_count = 1, .addr = world.a.to, .tag = 1 };
		if (from == &world.b) { /* to itself, in between */
			side_insert(&world.b, &world.b, NULL);
			msg.addr = world.b.to;
		}
		EQUAL(fi_tsendmsg(from->ep, &msg, 0), 0);
	}
	for (uintptr_t i = 0; i < MESSAGES; i++) {
		EQUAL(owner_receive(world.b.owner, receive_of(true, 1, sizeof into, i)), 0);
		struct done done;
		do {
			done = world_next(&world, world.b.owner);
		} while (done.flags & FI_SEND);
		check_done(done, i, true, 1, 0);
		EQUAL(into[0], (long long) i);
	}
	world_close(&world);
}

/* Masks, sources and both at once decide which receive a message goes to. */
static void wildcards(void)
{
	struct world world;
	char byte = 1;

	world_open(&world);
	struct receive any = receive_of(true, 0, 8, 1), masked = receive_of(true, 0x10, 8, 2);
	struct receive of_a = receive_of(true, 0x21, 8, 3), of_nobody = of_a;
	any.ignore = UINT64_MAX;
	masked.ignore = 0xf;
	of_a.src = world.b.to;
	of_nobody.src = world.b.to + 1;
	of_nobody.context = 4;
	EQUAL(owner_receive(world.b.owner, of_nobody), 0);
	EQUAL(owner_receive(world.b.owner, masked), 0);
	EQUAL(owner_receive(world.b.owner, of_a), 0);
	EQUAL(owner_receive(world.b.owner, any), 0);
	static const uint64_t tags[] = { 0x21, 0x1a, 0x99 };
	static const uintptr_t contexts[] = { 3, 2, 1 };
	for (int i = 0; i < 3; i++) {
		side_send(&world, &world.a, true, &byte, 1, tags[i], 0);
		check_done(world_next(&world, world.b.owner), contexts[i], true, 1, 0);
		check_sent(&world, &world.a, true);
	}
	/* The same of messages that wait. */
	for (int i = 0; i < 3; i++) {
		side_send(&world, &world.a, true, &byte, 1, tags[i], 0);
		check_sent(&world, &world.a, true);
	}
	world_until(&world, world.b.owner, QUEUED, 3);
	EQUAL(owner_receive(world.b.owner, masked), 0);
	EQUAL(world_next(&world, world.b.owner).tag, 0x1a);
	EQUAL(owner_receive(world.b.owner, any), 0);
	EQUAL(world_next(&world, world.b.owner).tag, 0x21);
	EQUAL(owner_receive(world.b.owner, any), 0);
	EQUAL(world_next(&world, world.b.owner).tag, 0x99);
	EQUAL(owner_entries(world.b.owner, POSTED), 1);
	world_close(&world);
}

/* Messages that are dropped, one that is too long, and those behind them. */
static void discards(void)
{
	struct world world;
	char bytes[16] = "0123456789abcde";

	world_open(&world);
	for (int i = 0; i < 4; i++) {
		side_send(&world, &world.a, i % 2, bytes, sizeof bytes, (uint64_t) i, 0);
		check_sent(&world, &world.a, i % 2);
	}
	world_until(&world, world.b.owner, QUEUED, 4);
	for (int i = 0; i < 4; i++)
		EQUAL(owner_discard(world.b.owner), 0);
	world_drive(&world);
	EQUAL(world.b.owner->done_count, 0);
	EQUAL(world.b.owner->freed, 0);
	EQUAL(owner_receive(world.b.owner, receive_of(true, 9, 10, 90)), 0);
	side_send(&world, &world.a, true, bytes, sizeof bytes, 9, 3);
	struct done done = world_next(&world, world.b.owner);
	EQUAL(done.err, FI_ETRUNC);
	EQUAL(done.context, 90);
	EQUAL(done.len, 10);
	EQUAL(done.olen, 6);
	EQUAL(world.b.owner->failed, 1);
	CHECK(!memcmp(into, bytes, 10));
	check_sent(&world, &world.a, true);
	EQUAL(owner_receive(world.b.owner, receive_of(false, 0, 16, 91)), 0);
	side_send(&world, &world.a, false, bytes, sizeof bytes, 0, 0);
	check_done(world_next(&world, world.b.owner), 91, false, 16, 0);
	check_sent(&world, &world.a, false);
	world_close(&world);
}

/* A sender that is not inserted has no source, and is known once it is, by the ID of the owner. */
static void sources(void)
{
	const fi_addr_t id = 0xabc, other = 0xdef;
	struct world world;
	struct side c;
	char byte = 5;

	world_open(&world);
	side_open_unbound(&c, &world, world.domain[0]);
	side_bind(&c);
	side_insert(&c, &world.b, NULL);
	side_send(&world, &c, true, &byte, 1, 1, 0);
	for (struct done done = { 0 }; !owner_next(c.owner, &done);)
		EQUAL(fi_cq_read(c.cq, NULL, 0), 0);
	world_until(&world, world.b.owner, QUEUED, 1);
	struct fi_peer_rx_entry *entry = owner_first(world.b.owner, QUEUED);
	CHECK(entry->addr == FI_ADDR_UNSPEC);
	size_t updates = world.b.owner->updates;
	side_insert(&world.b, &world.a, &other);
	CHECK(entry->addr == FI_ADDR_UNSPEC);
	side_insert(&world.b, &c, &id);
	CHECK(world.b.owner->updates > updates);
	EQUAL(entry->addr, id);
	struct receive receive = receive_of(true, 1, 8, 77);
	receive.src = id;
	EQUAL(owner_receive(world.b.owner, receive), 0);
	struct done done = world_next(&world, world.b.owner);
	check_done(done, 77, true, 1, 0);
	EQUAL(done.src, id);
	side_close(&c);
	world_close(&world);
}

/* An owner that has no entry, or no room in its queue, gets the same message again. */
static void refusals(void)
{
	struct world world;
	char byte;

	world_open(&world);
	for (int i = 0; i < 20; i++) {
		byte = (char) i;
		world.b.owner->refused_gets = i % 3;
		world.b.owner->refused_queues = i % 2;
		side_send(&world, &world.a, true, &byte, 1, 4, 0);
		check_sent(&world, &world.a, true);
		world_until(&world, world.b.owner, QUEUED, 1);
		EQUAL(owner_receive(world.b.owner, receive_of(true, 4, 8, (uintptr_t) i)), 0);
		check_done(world_next(&world, world.b.owner), (uintptr_t) i, true, 1, 0);
		EQUAL(into[0], i);
	}
	world_close(&world);
}

/* Calls that are the owner's, contexts that are none, and a name that is used already. */
static void refused_calls(void)
{
	struct world world;
	struct side c;
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };

	world_open(&world);
	EQUAL(fi_cq_read(world.a.cq, &entry, 1), -FI_ENOSYS);
	EQUAL(fi_cq_readerr(world.a.cq, &error, 0), -FI_ENOSYS);
	EQUAL(fi_cq_sread(world.a.cq, &entry, 1, NULL, 0), -FI_ENOSYS);
	EQUAL(fi_cntr_set(world.a.cntr, 1), -FI_ENOSYS);
	EQUAL(fi_cntr_wait(world.a.cntr, 1, 0), -FI_ENOSYS);
	EQUAL((int64_t) fi_cntr_readerr(world.a.cntr), -FI_ENOSYS);
	EQUAL(fi_recv(world.a.srx, into, 1, NULL, 0, NULL), -FI_ENOSYS);
	EQUAL(fi_trecv(world.a.srx, into, 1, NULL, 0, 0, 0, NULL), -FI_ENOSYS);
	struct fi_peer_cq_context *context = guarded(sizeof context->size);
	struct fi_cq_attr attr = { .flags = FI_PEER };
	struct fid_cq *cq;
	context->size = sizeof context->size;
	EQUAL(fi_cq_open(world.domain[0], &attr, &cq, context), -FI_EINVAL);
	EQUAL(fi_cq_open(world.domain[0], &attr, &cq, NULL), -FI_EINVAL);
	side_open_unbound(&c, &world, world.domain[0]);
	EQUAL(fi_enable(c.ep), -FI_EOPBADSTATE);
	char name[64];
	size_t len = sizeof name;
	EQUAL(fi_getname(&world.a.ep->fid, name, &len), 0);
	EQUAL(fi_setname(&c.ep->fid, name, len), 0);
	EQUAL(fi_ep_bind(c.ep, &c.av->fid, 0), 0);
	EQUAL(fi_ep_bind(c.ep, &c.cq->fid, FI_TRANSMIT | FI_RECV), 0);
	EQUAL(fi_ep_bind(c.ep, &c.srx->fid, 0), 0);
	EQUAL(fi_enable(c.ep), -FI_EADDRINUSE);
	side_close(&c);
	world_close(&world);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "expected", expected }, { "unexpected", unexpected }, { "ordered", ordered },
		{ "wildcards", wildcards }, { "discards", discards }, { "sources", sources },
		{ "refusals", refusals }, { "refused_calls", refused_calls }, { NULL, NULL },
	};
	return run_scenario(argc, argv, scenarios);
}
