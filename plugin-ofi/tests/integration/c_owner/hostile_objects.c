/*
 * An owner whose objects and answers are wrong: opened and closed in odd orders, too short,
 * incomplete, with refusals and buffers that can not be. Nothing is read that is not there.
 */

#include <stddef.h>

#include "hostile.h"

/* ---- Odd orders --------------------------------------------------------------------------- */

static void orders(void)
{
	struct world world;
	struct side c;
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_TAGGED };
	struct fid_cq *own;

	world_open(&world);
	/* Enabled already. */
	EQUAL(fi_enable(world.b.ep), 0);
	EQUAL(fi_ep_bind(world.b.ep, &world.b.srx->fid, 0), -FI_EOPBADSTATE);
	EQUAL(fi_ep_bind(world.b.ep, &world.b.cq->fid, FI_RECV), -FI_EOPBADSTATE);
	EQUAL(fi_ep_bind(world.b.ep, &world.b.cntr->fid, FI_RECV), -FI_EOPBADSTATE);
	/* Closed before the endpoint. */
	EQUAL(fi_close(&world.b.srx->fid), -FI_EBUSY);
	EQUAL(fi_close(&world.b.cq->fid), -FI_EBUSY);
	EQUAL(fi_close(&world.b.cntr->fid), -FI_EBUSY);
	EQUAL(fi_close(&world.domain[0]->fid), -FI_EBUSY);
	/* Without a queue; with one of its own; twice; and closed before it is enabled. */
	side_open_unbound(&c, &world, world.domain[0]);
	EQUAL(fi_ep_bind(c.ep, &c.srx->fid, 0), 0);
	EQUAL(fi_ep_bind(c.ep, &c.srx->fid, 0), -FI_EINVAL);
	EQUAL(fi_ep_bind(c.ep, &world.b.srx->fid, 0), -FI_EINVAL);
	EQUAL(fi_close(&c.srx->fid), -FI_EBUSY);
	CHECK(fi_enable(c.ep) < 0);
	EQUAL(fi_ep_bind(c.ep, &c.av->fid, 0), 0);
	CHECK(fi_enable(c.ep) < 0);
	EQUAL(fi_cq_open(world.domain[0], &attr, &own, NULL), 0);
	EQUAL(fi_ep_bind(c.ep, &own->fid, FI_TRANSMIT | FI_RECV), 0);
	EQUAL(fi_enable(c.ep), -FI_EINVAL);
	/* The queue drives an endpoint that was never enabled. */
	EQUAL(fi_cq_read(c.cq, NULL, 0), 0);
	fi_cntr_read(c.cntr);
	EQUAL(fi_close(&c.ep->fid), 0);
	EQUAL(fi_close(&own->fid), 0);
	EQUAL(fi_close(&c.cq->fid), 0);
	EQUAL(fi_close(&c.srx->fid), 0);
	EQUAL(fi_close(&c.cntr->fid), 0);
	EQUAL(fi_close(&c.av->fid), 0);
	owner_free(c.owner);
	/* The other one is as it was. */
	EQUAL(owner_receive(world.b.owner, receive_of(true, 1, 9)), 0);
	send_one(&world, true, 1, 10);
	check_next(&world, 9, 10);
	world_close(&world);
}

/* ---- Structures that are too short, and functions that are missing ------------------------ */

/* Opens one of each kind with a context, and closes it again. */
static int open_srx(void *domain, void *context)
{
	struct fi_rx_attr attr = { .op_flags = FI_PEER };
	struct fid_ep *srx;
	int ret = fi_srx_context(domain, &attr, &srx, context);
	return ret ? ret : fi_close(&srx->fid);
}

static int open_cq(void *domain, void *context)
{
	struct fi_cq_attr attr = { .flags = FI_PEER };
	struct fid_cq *cq;
	int ret = fi_cq_open(domain, &attr, &cq, context);
	return ret ? ret : fi_close(&cq->fid);
}

static int open_cntr(void *domain, void *context)
{
	struct fi_cntr_attr attr = { .flags = FI_PEER };
	struct fid_cntr *cntr;
	int ret = fi_cntr_open(domain, &attr, &cntr, context);
	return ret ? ret : fi_close(&cntr->fid);
}

static void shorts(void)
{
	struct world world;

	world_open(&world);
	struct owner *owner = owner_new();
	struct fid_domain *domain = world.domain[0];
	check_object(domain, open_srx, owner->srx, offsetof(struct fid_peer_srx, owner_ops));
	check_object(domain, open_cq, owner->cq, offsetof(struct fid_peer_cq, owner_ops));
	check_object(domain, open_cntr, owner->cntr, offsetof(struct fid_peer_cntr, owner_ops));
	/* Contexts of other objects, without an object. */
	struct fi_av_attr av_attr = { .flags = FI_PEER };
	struct fi_eq_attr eq_attr = { .flags = FI_PEER };
	struct fi_peer_av_context of_av = { sizeof of_av, NULL };
	struct fi_peer_eq_context of_eq = { sizeof of_eq, NULL };
	struct fi_peer_domain_context of_domain = { sizeof of_domain, NULL };
	struct fid_av *av;
	struct fid_eq *eq;
	struct fid_domain *other;
	EQUAL(fi_av_open(domain, &av_attr, &av, &of_av), -FI_EINVAL);
	EQUAL(fi_eq_open(world.fabric, &eq_attr, &eq, &of_eq), -FI_EINVAL);
	EQUAL(fi_domain2(world.fabric, world.info, &other, FI_PEER, &of_domain), -FI_EINVAL);
	owner_free(owner);
	world_close(&world);
}

/* ---- Answers that are wrong --------------------------------------------------------------- */

/* No entry, an error that is none, or a queue that takes nothing for a while: nothing is lost. */
static void answers(void)
{
	static const int results[] = { -FI_ENOMEM, -FI_EAGAIN, -FI_ENOENT, 0, 1, INT32_MAX, INT32_MIN };
	struct world world;
	uintptr_t number = 0;

	world_open(&world);
	struct owner *owner = world.b.owner;
	for (size_t i = 0; i < 2 * sizeof results / sizeof *results; i++, number++) {
		owner->refusal = results[i / 2];
		owner->refused_gets = 3;
		owner->refused_writes = 2;
		if (i % 2)
			EQUAL(owner_receive(owner, receive_of(true, 7, number)), 0);
		send_one(&world, true, 7, 30);
		if (i % 2 == 0) {
			world_until(&world, owner, QUEUED, 1);
			EQUAL(owner_receive(owner, receive_of(true, 7, number)), 0);
		}
		check_next(&world, number, 30);
		EQUAL(owner->refused_gets, 0);
	}
	/* A queue that refuses: the entry comes back, and the message is announced again. */
	for (int i = 0; i < 4; i++, number++) {
		owner->refusal = i % 2 ? INT32_MIN : -FI_ENOMEM;
		owner->refused_queues = 2;
		send_one(&world, true, 7, 30);
		world_until(&world, owner, QUEUED, 1);
		EQUAL(owner->refused_queues, 0);
		EQUAL(owner_receive(owner, receive_of(true, 7, number)), 0);
		check_next(&world, number, 30);
	}
	world_close(&world);
}

/* A receive that the provider has already is none for the next message, and comes back once. */
static void repeats(void)
{
	static const int results[] = { 0, -FI_ENOENT };
	struct world world;

	world_open(&world);
	struct owner *owner = world.b.owner;
	for (size_t i = 0; i < 2; i++) {
		/* The first message is over, but its entry has not come back. */
		owner->refused_writes = INT32_MAX;
		EQUAL(owner_receive(owner, receive_of(true, 1, 1)), 0);
		send_one(&world, true, 1, 10);
		world_until(&world, owner, STARTED, 1);
		owner->refusal = results[i];
		owner->repeats = true;
		send_one(&world, true, 2, 20);
		for (int n = 0; n < 100; n++)
			world_drive(&world);
		EQUAL(owner_entries(owner, STARTED), 1);
		EQUAL(owner->freed, 2 * i);
		owner->repeats = false;
		owner->refused_writes = 0;
		EQUAL(owner_receive(owner, receive_of(true, 2, 2)), 0);
		check_next(&world, 1, 10);
		check_next(&world, 2, 20);
		world_until(&world, owner, STARTED, 0);
		EQUAL(owner->freed, 2 * i + 2);
	}
	world_close(&world);
}

/* Starts or drops a message where it is queued, and says that it was not queued. */
static void start_or_drop(struct owner *owner, enum callback callback,
			  struct fi_peer_rx_entry *entry)
{
	if (callback != QUEUE)
		return;
	if (entry->tag % 2)
		EQUAL(owner_receive(owner, receive_of(true, entry->tag, entry->tag)), 0);
	else
		EQUAL(owner_discard(owner), 0);
}

static void false_refusals(void)
{
	struct world world;

	world_open(&world);
	struct owner *owner = world.b.owner;
	owner->within = start_or_drop;
	owner->queue_answer = -FI_ENOMEM;
	for (uint64_t tag = 0; tag < 20; tag++) {
		size_t len = tag % 3 ? 40 : sizeof into;
		send_one(&world, true, tag, len);
		if (tag % 2)
			check_next(&world, tag, len);
	}
	world_until(&world, owner, STARTED, 0);
	EQUAL(owner->queued, 20);
	EQUAL(owner->freed, 10);
	world_close(&world);
}

/* Buffers that are more, longer or less than they can be. */
static void buffers(void)
{
	static const struct { size_t count, len; bool has_list; } cases[] = {
		{ 1, SIZE_MAX, true }, { 2, SIZE_MAX, true }, { 4, SIZE_MAX / 2, true }, { 100, 1, true },
		{ SIZE_MAX, 1, true }, { SIZE_MAX / 16, 1, false }, { 1, 8, false }, { 0, 0, true },
	};
	struct world world;

	world_open(&world);
	struct owner *owner = world.b.owner;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		send_one(&world, true, 3, 100);
		world_until(&world, owner, QUEUED, 1);
		struct fi_peer_rx_entry *entry = owner_first(owner, QUEUED);
		size_t listed = cases[i].count < 100 ? cases[i].count : 100;
		struct iovec *list = guarded((listed ? listed : 1) * sizeof *list);
		void **descs = guarded((listed ? listed : 1) * sizeof *descs);
		for (size_t n = 0; n < listed; n++) {
			list[n] = (struct iovec) { into, cases[i].len };
			descs[n] = (void *) (uintptr_t) (0x1234567 * (i % 2));
		}
		entry->iov = cases[i].has_list ? list : NULL;
		entry->count = cases[i].count;
		entry->desc = descs;
		entry->context = (void *) (uintptr_t) i;
		entry->flags |= FI_COMPLETION;
		((struct rx *) entry->owner_context)->state = STARTED;
		EQUAL(peer_ops(&world)->start_tag(entry), 0);
		struct done done = world_next(&world, owner);
		EQUAL(done.context, i);
		CHECK(done.err || done.len == 100);
		release(list, (listed ? listed : 1) * sizeof *list);
		release(descs, (listed ? listed : 1) * sizeof *descs);
	}
	world_until(&world, owner, STARTED, 0);
	EQUAL(owner_receive(owner, receive_of(true, 3, 99)), 0);
	send_one(&world, true, 3, 100);
	check_next(&world, 99, 100);
	world_close(&world);
}

/* ---- fi_export_fid and fi_import_fid ------------------------------------------------------ */

static void fids(void)
{
	struct world world;
	struct side c;

	world_open(&world);
	side_open_unbound(&c, &world, world.domain[0]);
	struct fid *all[] = {
		&world.fabric->fid, &world.domain[0]->fid, &c.ep->fid, &world.b.ep->fid, &c.srx->fid,
		&c.cq->fid, &c.cntr->fid, &c.av->fid,
	};
	struct fi_ops *nothing = guarded(sizeof *nothing);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct fid *exported = NULL;
		EQUAL(fi_export_fid(all[i], 0, &exported, NULL), -FI_ENOSYS);
		EQUAL(fi_export_fid(all[i], FI_PEER, &exported, NULL), -FI_ENOSYS);
		CHECK(!exported);
		for (size_t class = 0; class < 40; class++) {
			struct fid *fid = guarded(sizeof *fid);
			*fid = (struct fid) { .fclass = class, .ops = nothing };
			bool is_known = all[i] == &c.av->fid && class < FI_CLASS_MR_CACHE;
			EQUAL(fi_import_fid(all[i], fid, 0), is_known ? -FI_EINVAL : -FI_ENOSYS);
			EQUAL(fi_import_fid(all[i], fid, 1), is_known ? -FI_EINVAL : -FI_ENOSYS);
			release(fid, sizeof *fid);
		}
	}
	EQUAL(fi_import_fid(&c.ep->fid, &c.owner->srx->ep_fid.fid, 0), -FI_ENOSYS);
	EQUAL(fi_import_fid(&c.ep->fid, &c.srx->fid, 1), -FI_EBADFLAGS);
	EQUAL(fi_import_fid(&c.ep->fid, &c.srx->fid, 0), 0);
	side_close(&c);
	world_close(&world);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "orders", orders }, { "shorts", shorts }, { "answers", answers },
		{ "repeats", repeats }, { "false_refusals", false_refusals },
		{ "buffers", buffers }, { "fids", fids }, { NULL, NULL },
	};
	return run_scenario(argc, argv, scenarios);
}
