/*
 * An owner of address vectors, event queues, domains and sets of addresses, in memory that is out
 * of reach once its call is over.
 */

#include <stddef.h>
#include <rdma/fi_collective.h>

#include "hostile.h"

/* ---- An owner's address vector ------------------------------------------------------------ */

struct vector {
	struct fid_peer_av *av;
	int answer, queries;
	size_t count;
};

static int query(struct fid_peer_av *av, struct fi_av_attr *attr)
{
	struct vector *vector = av->fid.context;
	vector->queries++;
	attr->count = vector->count;
	return vector->answer;
}

static fi_addr_t ep_addr(struct fid_peer_av *av, struct fid_ep *ep)
{
	(void) av, (void) ep;
	return FI_ADDR_NOTAVAIL;
}

static void vector_new(struct vector *vector)
{
	const struct fi_ops_av_owner ops = { sizeof ops, query, ep_addr };
	*vector = (struct vector) { .av = guarded(sizeof *vector->av), .count = 3 };
	vector->av->fid = (struct fid) { .fclass = FI_CLASS_PEER_AV, .context = vector };
	vector->av->owner_ops = guarded_copy(&ops, sizeof ops);
}

static void vector_free(struct vector *vector)
{
	release(vector->av->owner_ops, sizeof *vector->av->owner_ops);
	release(vector->av, sizeof *vector->av);
}

static int open_vector(void *domain, void *context)
{
	struct fi_av_attr attr = { .flags = FI_PEER };
	struct fid_av *av;
	int ret = fi_av_open(domain, &attr, &av, context);
	return ret ? ret : fi_close(&av->fid);
}

static struct fid_av *import_vector(struct fid_domain *domain, struct vector *vector)
{
	struct fi_peer_av_context of_av = { sizeof of_av, vector->av };
	struct fi_av_attr attr = { .flags = FI_PEER };
	void *context = guarded_copy(&of_av, sizeof of_av);
	struct fid_av *av;
	EQUAL(fi_av_open(domain, &attr, &av, context), 0);
	release(context, sizeof of_av);
	EQUAL(attr.type, FI_AV_TABLE);
	return av;
}

static void vector_contexts(void)
{
	static const int answers[] = { -FI_ENOMEM, -1, 1, INT32_MAX, INT32_MIN };
	struct world world;
	struct vector vector;

	world_open(&world);
	vector_new(&vector);
	check_object(world.domain[0], open_vector, vector.av, offsetof(struct fid_peer_av, owner_ops));
	struct fi_peer_av_context context = { sizeof context, vector.av };
	for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
		vector.answer = answers[i];
		CHECK(open_vector(world.domain[0], &context) < 0);
	}
	vector.answer = 0;
	vector.count = SIZE_MAX;
	EQUAL(open_vector(world.domain[0], &context), 0);
	vector_free(&vector);
	world_close(&world);
}

/* Passes an insertion on. */
static int pass_on(struct fid_av *av, struct fid_ep *ep, fi_addr_t *addr)
{
	char name[512];
	size_t len = sizeof name;
	fi_addr_t *guarded_addr = guarded_copy(addr, sizeof *addr);
	EQUAL(fi_getname(&ep->fid, name, &len), 0);
	void *guarded_name = guarded_copy(name, len);
	int inserted = fi_av_insert(av, guarded_name, 1, guarded_addr, FI_AV_USER_ID, NULL);
	*addr = *guarded_addr;
	release(guarded_addr, sizeof *addr);
	release(guarded_name, len);
	return inserted;
}

/* Messages by the owner's addresses; its vector is not used once the opening is over. */
static void addresses(void)
{
	struct world world;
	struct vector vector;
	struct side c;

	world_open(&world);
	vector_new(&vector);
	side_open_unbound(&c, &world, world.domain[0]);
	EQUAL(fi_close(&c.av->fid), 0);
	c.av = import_vector(world.domain[0], &vector);
	EQUAL(vector.queries, 1);
	vector_free(&vector);
	side_bind(&c);
	world.b.owner->test = NULL;
	for (fi_addr_t round = 1; round < 20; round++) {
		fi_addr_t addr = round << 56 | 5, none = FI_ADDR_NOTAVAIL;
		EQUAL(pass_on(c.av, world.a.ep, &none), 0);
		EQUAL(none, FI_ADDR_NOTAVAIL);
		EQUAL(pass_on(c.av, world.a.ep, &addr), 1);
		EQUAL(addr, round << 56 | 5);
		c.peer = &world.a;
		c.to = addr;
		EQUAL(owner_receive(world.a.owner, receive_of(true, 1, 8)), 0);
		static char bytes[100];
		side_send(&world, &c, true, bytes, sizeof bytes, 1, 0);
		struct done done = { 0 };
		for (int both = 0; both < 2;) {
			fi_cq_read(c.cq, NULL, 0);
			fi_cq_read(world.a.cq, NULL, 0);
			both += owner_next(c.owner, &done) + owner_next(world.a.owner, &done);
			EQUAL(done.err, 0);
		}
		EQUAL(fi_av_remove(c.av, &addr, 1, 0), 0);
		EQUAL(fi_av_remove(c.av, &addr, 1, 0), -FI_EINVAL);
		EQUAL(fi_tsend(c.ep, bytes, 1, NULL, addr, 1, NULL), -FI_EADDRNOTAVAIL);
	}
	side_close(&c);
	world_close(&world);
}

/* ---- An owner's event queue --------------------------------------------------------------- */

struct events {
	struct fid_eq *eq;
	pthread_mutex_t lock;
	int refused; /* so many writes fail */
	ssize_t refusal;
	size_t completed, failed;
};

static ssize_t write_event(struct fid_eq *eq, uint32_t event, const void *buf, size_t len,
			   uint64_t flags)
{
	struct events *events = eq->fid.context;
	ssize_t result = len;
	pthread_mutex_lock(&events->lock);
	if (events->refused) {
		events->refused--;
		result = events->refusal;
	} else if (flags) {
		const struct fi_eq_err_entry *entry = buf;
		EQUAL(len, sizeof *entry);
		CHECK(entry->err > 0 && !entry->err_data && !entry->err_data_size);
		events->failed++;
	} else {
		EQUAL(event, FI_AV_COMPLETE);
		EQUAL(len, sizeof(struct fi_eq_entry));
		events->completed++;
	}
	pthread_mutex_unlock(&events->lock);
	return result;
}

static void events_new(struct events *events)
{
	const struct fi_ops_eq ops = { .size = sizeof ops, .write = write_event };
	*events = (struct events) { .eq = guarded(sizeof *events->eq), .refusal = -FI_EAGAIN };
	pthread_mutex_init(&events->lock, NULL);
	events->eq->fid = (struct fid) { .fclass = FI_CLASS_EQ, .context = events };
	events->eq->ops = guarded_copy(&ops, sizeof ops);
}

static void events_free(struct events *events)
{
	release(events->eq->ops, sizeof *events->eq->ops);
	release(events->eq, sizeof *events->eq);
	pthread_mutex_destroy(&events->lock);
}

static struct fid_eq *import_events(struct fid_fabric *fabric, struct events *events)
{
	struct fi_peer_eq_context of_eq = { sizeof of_eq, events->eq };
	struct fi_eq_attr attr = { .flags = FI_PEER };
	void *context = guarded_copy(&of_eq, sizeof of_eq);
	struct fid_eq *eq;
	EQUAL(fi_eq_open(fabric, &attr, &eq, context), 0);
	release(context, sizeof of_eq);
	return eq;
}

/* So many events have come; the owner drives the queue meanwhile. */
static void await_events(struct events *events, struct fid_eq *eq, size_t completed, size_t failed)
{
	for (bool over = false; !over;) {
		uint32_t event;
		EQUAL(fi_eq_read(eq, &event, NULL, 0, 0), 0);
		pthread_mutex_lock(&events->lock);
		over = events->completed == completed && events->failed == failed;
		pthread_mutex_unlock(&events->lock);
	}
}

static void event_queues(void)
{
	struct world world;
	struct events events;

	world_open(&world);
	events_new(&events);
	struct fid_eq *eq = import_events(world.fabric, &events);
	struct fi_av_attr attr = { .flags = FI_EVENT };
	struct fid_av *av;
	EQUAL(fi_av_open(world.domain[0], &attr, &av, NULL), 0);
	EQUAL(av->fid.ops->bind(&av->fid, &eq->fid, 0), 0);
	char name[512], bad[512];
	size_t len = sizeof name;
	EQUAL(fi_getname(&world.a.ep->fid, name, &len), 0);
	memset(bad, 7, sizeof bad);
	for (size_t round = 1; round < 50; round++) {
		fi_addr_t addr;
		pthread_mutex_lock(&events.lock);
		events.refused = round % 4;
		events.refusal = round % 2 ? -FI_EAGAIN : -FI_ENOMEM;
		pthread_mutex_unlock(&events.lock);
		EQUAL(fi_av_insert(av, round % 3 ? name : bad, 1, &addr, 0, NULL), 0);
		await_events(&events, eq, round, round / 3);
		if (round % 3)
			EQUAL(fi_av_remove(av, &addr, 1, 0), 0);
	}
	EQUAL(fi_close(&eq->fid), -FI_EBUSY);
	EQUAL(fi_close(&av->fid), 0);
	EQUAL(fi_close(&eq->fid), 0);
	events_free(&events);
	world_close(&world);
}

/* ---- An owner's set ------------------------------------------------------------------------ */

/* The flag has no name in the headers. */
#define PEER_AV (1ULL << 62)

struct set {
	struct fid_peer_av_set *set;
	fi_addr_t *addrs;
	size_t count;
};

static int members(struct fid_peer_av_set *av_set, fi_addr_t *addrs, size_t *count)
{
	struct set *set = av_set->fid.context;
	size_t room = *count;
	*count = set->count;
	if (room < set->count)
		return -FI_ETOOSMALL;
	memcpy(addrs, set->addrs, set->count * sizeof *addrs);
	return 0;
}

static void sets(void)
{
	enum { MEMBERS = 100 };
	const struct fi_ops_av_set_owner ops = { sizeof ops, members };
	struct world world;
	struct set set = { .set = guarded(sizeof *set.set), .addrs = calloc(MEMBERS, sizeof *set.addrs) };
	struct fi_peer_av_set_context of_set = { sizeof of_set, (void *) set.set };
	struct fi_av_set_attr attr = {
		.start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL, .flags = PEER_AV,
	};
	struct fid_av_set *imported, *own;

	world_open(&world);
	set.set->fid = (struct fid) { .fclass = FI_CLASS_PEER_AV_SET, .context = &set };
	set.set->owner_ops = guarded_copy(&ops, sizeof ops);
	void *context = guarded_copy(&of_set, sizeof of_set);
	EQUAL(fi_av_set(world.a.av, &attr, &imported, context), 0);
	release(context, sizeof of_set);
	attr.flags = 0;
	EQUAL(fi_av_set(world.a.av, &attr, &own, NULL), 0);
	EQUAL(fi_av_set_union(own, imported), 0);
	set.addrs[0] = world.a.to;
	set.count = 1;
	EQUAL(fi_av_set_union(own, imported), 0);
	EQUAL(fi_av_set_remove(own, world.a.to), 0);
	/* Of so many members one is in the vector, and is there more than once. */
	for (size_t i = 0; i < MEMBERS; i++)
		set.addrs[i] = world.a.to + i % 2;
	for (set.count = 2; set.count < MEMBERS; set.count++)
		EQUAL(fi_av_set_union(own, imported), -FI_EINVAL);
	EQUAL(fi_av_set_insert(imported, world.a.to), -FI_ENOSYS);
	EQUAL(fi_close(&own->fid), 0);
	EQUAL(fi_close(&imported->fid), 0);
	release(set.set->owner_ops, sizeof ops);
	release(set.set, sizeof *set.set);
	free(set.addrs);
	world_close(&world);
}

/* ---- An owner's domain --------------------------------------------------------------------- */

struct regions {
	struct fid_domain *domain;
	size_t open;
	struct fi_ops *ops;
};

static int close_region(struct fid *fid)
{
	struct regions *regions = fid->context;
	regions->open--;
	release(fid, sizeof(struct fid_mr));
	return 0;
}

static int regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access,
		uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr, void *context)
{
	struct regions *regions = fid->context;
	(void) access, (void) key;
	CHECK(count == 1 && iov->iov_len == sizeof into && !offset && !flags && !context);
	*mr = guarded(sizeof **mr);
	(*mr)->fid = (struct fid) { .context = regions, .ops = regions->ops };
	regions->open++;
	return 0;
}

static void domains(void)
{
	const struct fi_ops_mr mr_ops = { .size = sizeof mr_ops, .regv = regv };
	const struct fi_ops fid_ops = { .size = sizeof fid_ops, .close = close_region };
	struct world world;
	struct regions regions = { .domain = guarded(sizeof *regions.domain) };
	struct fi_peer_domain_context of_domain = { sizeof of_domain, regions.domain };
	struct fid_domain *domain;
	struct fid_mr *all[20];

	world_open(&world);
	regions.ops = guarded_copy(&fid_ops, sizeof fid_ops);
	regions.domain->fid = (struct fid) { .fclass = FI_CLASS_DOMAIN, .context = &regions };
	regions.domain->mr = guarded_copy(&mr_ops, sizeof mr_ops);
	void *context = guarded_copy(&of_domain, sizeof of_domain);
	EQUAL(fi_domain2(world.fabric, world.info, &domain, FI_PEER, context), 0);
	release(context, sizeof of_domain);
	for (size_t i = 0; i < 20; i++) {
		EQUAL(fi_mr_reg(domain, into, sizeof into, FI_SEND, 0, i, 0, &all[i], NULL), 0);
		EQUAL(regions.open, i + 1);
	}
	for (size_t i = 0; i < 20; i++)
		EQUAL(fi_close(&all[i]->fid), 0);
	EQUAL(regions.open, 0);
	EQUAL(fi_close(&domain->fid), 0);
	release(regions.domain->mr, sizeof mr_ops);
	release(regions.domain, sizeof *regions.domain);
	release(regions.ops, sizeof fid_ops);
	world_close(&world);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "vector_contexts", vector_contexts }, { "addresses", addresses },
		{ "event_queues", event_queues }, { "sets", sets }, { "domains", domains }, { NULL, NULL },
	};
	return run_scenario(argc, argv, scenarios);
}
