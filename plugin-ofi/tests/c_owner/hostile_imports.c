/*
 * An owner of address vectors, in memory that is out of reach once its call is over.
 */

#include <stddef.h>

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

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "vector_contexts", vector_contexts }, { "addresses", addresses }, { NULL, NULL },
	};
	return run_scenario(argc, argv, scenarios);
}
