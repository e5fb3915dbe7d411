/*
 * An owner that calls at the worst moments and with entries of others: in its functions, twice,
 * after a close, from several threads. Each call ends with an error or does nothing, no message is
 * lost or comes twice, and the provider touches nothing that was freed.
 */

#include "hostile.h"

/* ---- Calls within the owner's functions --------------------------------------------------- */

static size_t calls_within;

/* All that an owner may do, in each of its functions. */
static void do_everything(struct owner *owner, enum callback callback,
			  struct fi_peer_rx_entry *entry)
{
	struct world *world = owner->test;
	struct side *b = &world->b;
	struct fi_ops_srx_peer *ops = owner->srx->peer_ops;
	fi_addr_t addr;
	char name[512];
	size_t len = sizeof name;

	(void) callback;
	calls_within++;
	owner->within = NULL;
	EQUAL(fi_cq_read(b->cq, NULL, 0), 0);
	fi_cntr_read(b->cntr);
	fi_cq_read(world->a.cq, NULL, 0);
	EQUAL(fi_getname(&world->a.ep->fid, name, &len), 0);
	EQUAL(fi_av_insert(b->av, name, 1, &addr, 0, NULL), 1);
	EQUAL(fi_enable(b->ep), 0);
	EQUAL(fi_ep_bind(b->ep, &b->cq->fid, FI_RECV), -FI_EOPBADSTATE);
	EQUAL(fi_close(&b->cq->fid), -FI_EBUSY);
	EQUAL(fi_close(&b->srx->fid), -FI_EBUSY);
	EQUAL(fi_close(&b->cntr->fid), -FI_EBUSY);
	EQUAL(fi_cancel(&b->ep->fid, NULL), -FI_ENOSYS);
	EQUAL(ops->start_msg(NULL), -FI_EINVAL);
	EQUAL(ops->discard_tag(NULL), -FI_EINVAL);
	/* The entry of a call that has not returned yet is of the other kind, or not queued. */
	if (entry)
		EQUAL(ops->start_msg(entry), -FI_EINVAL);
	/* A message to itself and one to the peer. */
	fi_inject(b->ep, "x", 1, b->to);
	owner->within = do_everything;
}

static void within(void)
{
	enum { COUNT_WITHIN = 40 };
	struct world world;

	world_open(&world);
	world.b.owner->test = &world;
	world.b.owner->within = do_everything;
	for (uintptr_t i = 0; i < COUNT_WITHIN; i++) {
		size_t len = i % 4 == 3 ? sizeof into : i;
		if (i % 2)
			EQUAL(owner_receive(world.b.owner, receive_of(true, i, i)), 0);
		send_one(&world, true, i, len);
		if (i % 2 == 0) {
			world_until(&world, world.b.owner, QUEUED, 1);
			EQUAL(owner_receive(world.b.owner, receive_of(true, i, i)), 0);
		}
		check_next(&world, i, len);
	}
	world.b.owner->within = NULL;
	CHECK(calls_within > 3 * COUNT_WITHIN);
	EQUAL(world.b.owner->freed, COUNT_WITHIN);
	EQUAL(world.b.owner->done_count, 0);
	world_close(&world);
}

/* Closes the endpoint within a function of the owner's. */
static enum callback closes_in;

static void close_endpoint(struct owner *owner, enum callback callback,
			   struct fi_peer_rx_entry *entry)
{
	struct side *side = owner->test;
	(void) entry;
	if (callback != closes_in || !side->ep)
		return;
	EQUAL(fi_close(&side->ep->fid), 0);
	side->ep = NULL;
}

static void closes_within(void)
{
	static const enum callback callbacks[] = { GET, QUEUE, WRITE, FREE, COUNT };
	for (size_t i = 0; i < 2 * sizeof callbacks / sizeof *callbacks; i++) {
		struct world world;
		bool is_long = i % 2;
		closes_in = callbacks[i / 2];
		world_open(&world);
		struct side *b = &world.b;
		b->owner->test = b;
		b->owner->within = close_endpoint;
		/* Three messages: the call is in the middle of more to come. */
		for (uintptr_t n = 0; n < 3; n++)
			if (closes_in != QUEUE)
				EQUAL(owner_receive(b->owner, receive_of(true, n, n)), 0);
		for (uint64_t n = 0; n < 3; n++) {
			struct iovec iov = { into, is_long ? sizeof into : 8 };
			struct fi_msg_tagged msg = {
				.msg_iov = &iov, .iov_count = 1, .addr = world.a.to, .tag = n,
			};
			EQUAL(fi_tsendmsg(world.a.ep, &msg, FI_COMPLETION), 0);
		}
		while (b->ep) {
			EQUAL(fi_cq_read(world.a.cq, NULL, 0), 0);
			EQUAL(fi_cq_read(b->cq, NULL, 0), 0);
			fi_cntr_read(b->cntr);
		}
		for (int n = 0; n < 100; n++)
			world_drive(&world);
		/* Entries with a receive are back; those in the queue are the owner's. */
		EQUAL(owner_entries(b->owner, STARTED), 0);
		EQUAL(owner_entries(b->owner, OFFERED), 0);
		for (struct fi_peer_rx_entry *entry; (entry = owner_first(b->owner, QUEUED));) {
			EQUAL(peer_ops(&world)->start_tag(entry), -FI_EINVAL);
			EQUAL(peer_ops(&world)->discard_tag(entry), -FI_EINVAL);
			owner_forget(b->owner, entry);
		}
		b->ep = NULL;
		world_close(&world);
	}
}

/* Opens an endpoint in whose queue there are three messages of a sender that it does not have. */
static void open_with_messages(struct side *side, struct world *world)
{
	side_open_unbound(side, world, world->domain[0]);
	side_bind(side);
	side_insert(&world->a, side, NULL);
	for (uint64_t tag = 0; tag < 3; tag++) {
		struct iovec iov = { into, tag % 2 ? sizeof into : 1 };
		struct fi_msg_tagged msg = { .msg_iov = &iov, .iov_count = 1, .addr = world->a.to, .tag = tag };
		while (fi_tsendmsg(world->a.ep, &msg, 0) == -FI_EAGAIN)
			fi_cq_read(world->a.cq, NULL, 0);
	}
	while (owner_entries(side->owner, QUEUED) < 3) {
		EQUAL(fi_cq_read(side->cq, NULL, 0), 0);
		EQUAL(fi_cq_read(world->a.cq, NULL, 0), 0);
	}
}

/* The endpoint closes in the function that updates sources, which an insertion calls. */
static void closes_in_update(void)
{
	struct world world;
	struct side c;

	world_open(&world);
	open_with_messages(&c, &world);
	closes_in = UPDATE;
	c.owner->test = &c;
	c.owner->within = close_endpoint;
	side_insert(&c, &world.a, NULL);
	CHECK(!c.ep);
	EQUAL(fi_cq_read(c.cq, NULL, 0), 0);
	fi_cntr_read(c.cntr);
	side_close(&c);
	side_insert(&world.a, &world.b, NULL);
	world_close(&world);
}

/* ---- Entries that are not queued ---------------------------------------------------------- */

static void check_refused(struct fi_ops_srx_peer *ops, struct fi_peer_rx_entry *entry)
{
	EQUAL(ops->start_msg(entry), -FI_EINVAL);
	EQUAL(ops->start_tag(entry), -FI_EINVAL);
	EQUAL(ops->discard_msg(entry), -FI_EINVAL);
	EQUAL(ops->discard_tag(entry), -FI_EINVAL);
}

/* Calls twice, for the other kind, and with entries of others and numbers that are none. */
static void twice(void)
{
	struct world world;

	world_open(&world);
	struct owner *owner = world.b.owner;
	struct fi_ops_srx_peer *ops = peer_ops(&world);
	for (uint64_t tag = 0; tag < 3; tag++)
		send_one(&world, true, tag, 100);
	send_one(&world, false, 0, 100);
	world_until(&world, owner, QUEUED, 4);
	struct fi_peer_rx_entry *first = owner_first(owner, QUEUED);
	EQUAL(ops->start_msg(first), -FI_EINVAL);
	EQUAL(ops->discard_msg(first), -FI_EINVAL);

	/* An entry of nobody's, with each number that the provider may have given. */
	struct fi_peer_rx_entry *wild = guarded(sizeof *wild);
	*wild = *first;
	check_refused(ops, wild);
	for (uintptr_t number = 0; number < 100; number++) {
		wild->peer_context = (void *) number;
		check_refused(ops, wild);
	}
	wild->peer_context = (void *) UINTPTR_MAX;
	check_refused(ops, wild);

	/* Started twice, and dropped after that. */
	EQUAL(owner_receive(owner, receive_of(true, 0, 50)), 0);
	check_refused(ops, first);
	check_next(&world, 50, 100);
	/* Dropped twice, and started after that: the entry is the owner's, and still there. */
	struct fi_peer_rx_entry *second = owner_first(owner, QUEUED);
	EQUAL(ops->discard_tag(second), 0);
	check_refused(ops, second);
	owner_forget(owner, second);
	/* The number of an entry that another one has now. */
	struct fi_peer_rx_entry *third = owner_first(owner, QUEUED);
	void *number = third->peer_context;
	third->peer_context = wild->peer_context;
	check_refused(ops, third);
	third->peer_context = number;
	/* An entry of the other endpoint, and one that is posted. */
	EQUAL(owner_receive(world.a.owner, receive_of(true, 0, 0)), 0);
	check_refused(ops, owner_first(world.a.owner, POSTED));
	EQUAL(owner_receive(owner, receive_of(true, 2, 52)), 0);
	check_next(&world, 52, 100);
	EQUAL(owner_receive(owner, receive_of(false, 0, 53)), 0);
	check_next(&world, 53, 100);
	EQUAL(owner->freed, 3);
	release(wild, sizeof *wild);
	world_close(&world);
}

/* Calls with entries of an endpoint that is closed. */
static void after_close(void)
{
	struct world world;
	struct side c;

	world_open(&world);
	open_with_messages(&c, &world);
	/* The owner has the function for sources, and may call it for ever. */
	EQUAL(owner_first(c.owner, QUEUED)->addr, FI_ADDR_UNSPEC);
	side_insert(&c, &world.a, NULL);
	EQUAL(owner_first(c.owner, QUEUED)->addr, c.to);
	/* One has a receive whose buffer goes away with the close. */
	char *buffer = guarded(1);
	struct receive receive = receive_of(true, 0, 5);
	receive.buf = buffer;
	receive.len = 1;
	EQUAL(owner_receive(c.owner, receive), 0);
	EQUAL(fi_close(&c.ep->fid), 0);
	release(buffer, 1);
	EQUAL(owner_entries(c.owner, STARTED), 0);
	EQUAL(c.owner->freed, 1);
	for (struct fi_peer_rx_entry *entry; (entry = owner_first(c.owner, QUEUED));) {
		check_refused(c.owner->srx->peer_ops, entry);
		EQUAL(c.owner->get_addr(entry), FI_ADDR_NOTAVAIL);
		owner_forget(c.owner, entry);
	}
	EQUAL(fi_cq_read(c.cq, NULL, 0), 0);
	fi_cntr_read(c.cntr);
	fi_addr_t addr;
	char name[512];
	size_t len = sizeof name;
	EQUAL(fi_getname(&world.a.ep->fid, name, &len), 0);
	EQUAL(fi_av_insert(c.av, name, 1, &addr, 0, NULL), 1);
	struct fi_ops_srx_peer *ops = c.owner->srx->peer_ops;
	fi_addr_t (*get_addr)(struct fi_peer_rx_entry *) = c.owner->get_addr;
	c.ep = NULL;
	side_close(&c);
	/* The functions are for all contexts. */
	EQUAL(ops->start_tag(NULL), -FI_EINVAL);
	EQUAL(get_addr(NULL), FI_ADDR_UNSPEC);
	world_drive(&world);
	side_insert(&world.a, &world.b, NULL);
	world_close(&world);
}

/* The owner frees entries that stand for messages, and says nothing. */
static void forgotten(void)
{
	struct world world;
	struct side c;

	world_open(&world);
	open_with_messages(&c, &world);
	struct owner *owner = c.owner;
	while (owner_entries(owner, QUEUED))
		owner_forget(owner, owner_first(owner, QUEUED));
	side_insert(&c, &world.a, NULL);
	for (int i = 0; i < 100; i++) {
		EQUAL(fi_cq_read(c.cq, NULL, 0), 0);
		fi_cntr_read(c.cntr);
		EQUAL(fi_cq_read(world.a.cq, NULL, 0), 0);
	}
	EQUAL(owner->freed, 0);
	side_close(&c);
	side_insert(&world.a, &world.b, NULL);
	world_close(&world);
}

/* ---- Threads ------------------------------------------------------------------------------ */

enum { MESSAGES = 2000, THREADS = 4 };

struct helper {
	struct world *world;
	unsigned number;
	int *stop;
};

/* Posts a part of the receives, and makes the other calls of a thread of the owner's meanwhile. */
static void *receive_some(void *of)
{
	struct helper *helper = of;
	struct side *b = &helper->world->b;
	for (uintptr_t i = helper->number; i < MESSAGES; i += THREADS) {
		EQUAL(owner_receive(b->owner, receive_of(true, i, i)), 0);
		check_refused(b->owner->srx->peer_ops, NULL);
		EQUAL(fi_cq_read(b->cq, NULL, 0), 0);
		fi_cntr_read(b->cntr);
		EQUAL(fi_close(&b->srx->fid), -FI_EBUSY);
		EQUAL(fi_close(&b->cq->fid), -FI_EBUSY);
	}
	return NULL;
}

static void threads(void)
{
	struct world world;
	pthread_t all[THREADS];
	struct helper helpers[THREADS];
	static bool seen[MESSAGES];

	world_open(&world);
	for (unsigned i = 0; i < THREADS; i++) {
		helpers[i] = (struct helper) { .world = &world, .number = i };
		EQUAL(pthread_create(&all[i], NULL, receive_some, &helpers[i]), 0);
	}
	for (uintptr_t i = 0; i < MESSAGES; i++)
		send_one(&world, true, i, i % 100);
	for (int i = 0; i < MESSAGES; i++) {
		struct done done = world_next(&world, world.b.owner);
		CHECK(done.err == 0 && done.context < MESSAGES && !seen[done.context]);
		EQUAL(done.len, done.context % 100);
		EQUAL(done.tag, done.context);
		seen[done.context] = true;
	}
	for (int i = 0; i < THREADS; i++)
		EQUAL(pthread_join(all[i], NULL), 0);
	world_until(&world, world.b.owner, STARTED, 0);
	EQUAL(world.b.owner->freed, MESSAGES);
	world_close(&world);
}

/* Drives, starts and drops until the endpoint has been closed for a while. */
static void *use_endpoint(void *of)
{
	static pthread_mutex_t discards = PTHREAD_MUTEX_INITIALIZER;
	struct helper *helper = of;
	struct side *b = &helper->world->b;
	while (!__atomic_load_n(helper->stop, __ATOMIC_ACQUIRE)) {
		EQUAL(fi_cq_read(b->cq, NULL, 0), 0);
		fi_cntr_read(b->cntr);
		pthread_mutex_lock(&discards);
		if (owner_entries(b->owner, QUEUED)) {
			struct receive any = receive_of(true, 0, 0);
			any.ignore = UINT64_MAX;
			if (helper->number % 2)
				owner_discard(b->owner);
			else
				owner_receive(b->owner, any);
		}
		pthread_mutex_unlock(&discards);
	}
	return NULL;
}

static void closes_beside_threads(void)
{
	for (int round = 0; round < 20; round++) {
		struct world world;
		pthread_t all[THREADS];
		struct helper helpers[THREADS];
		int stop = 0;

		world_open(&world);
		struct side *b = &world.b;
		for (unsigned i = 0; i < THREADS; i++) {
			helpers[i] = (struct helper) { .world = &world, .number = i, .stop = &stop };
			EQUAL(pthread_create(&all[i], NULL, use_endpoint, &helpers[i]), 0);
		}
		for (int i = 0; i < 16 * round; i++) {
			struct iovec iov = { into, i % 2 ? sizeof into : 8 };
			struct fi_msg_tagged msg = { .msg_iov = &iov, .iov_count = 1, .addr = world.a.to };
			fi_tsendmsg(world.a.ep, &msg, FI_COMPLETION);
			EQUAL(fi_cq_read(world.a.cq, NULL, 0), 0);
		}
		EQUAL(fi_close(&b->ep->fid), 0);
		__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
		for (int i = 0; i < THREADS; i++)
			EQUAL(pthread_join(all[i], NULL), 0);
		EQUAL(fi_cq_read(b->cq, NULL, 0), 0);
		EQUAL(owner_entries(b->owner, STARTED), 0);
		EQUAL(owner_entries(b->owner, OFFERED), 0);
		b->ep = NULL;
		world_close(&world);
	}
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "within", within }, { "closes_within", closes_within },
		{ "closes_in_update", closes_in_update }, { "twice", twice },
		{ "after_close", after_close }, { "forgotten", forgotten }, { "threads", threads },
		{ "closes_beside_threads", closes_beside_threads }, { NULL, NULL },
	};
	return run_scenario(argc, argv, scenarios);
}
