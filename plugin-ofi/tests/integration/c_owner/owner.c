/* An owner of peer objects: its functions, its receives, and the endpoints that use them. */

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "owner.h"

void fail(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: %s\n", file, line, what);
	exit(1);
}

void equal(const char *file, int line, const char *what, long long value, long long expected)
{
	if (value == expected)
		return;
	fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", file, line, what, value, expected);
	exit(1);
}

/* ---- Memory ------------------------------------------------------------------------------- */

static size_t pages_of(size_t size)
{
	size_t page = (size_t) sysconf(_SC_PAGESIZE);
	return (size + page - 1) / page * page;
}

void *guarded(size_t size)
{
	size_t page = (size_t) sysconf(_SC_PAGESIZE), pages = pages_of(size);
	char *at = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	CHECK(mprotect(at + pages, page, PROT_NONE) == 0);
	return at + pages - size;
}

void *guarded_copy(const void *of, size_t size)
{
	return memcpy(guarded(size), of, size);
}

void release(void *memory, size_t size)
{
	size_t pages = pages_of(size);
	char *at = (char *) memory + size - pages;
	/* It stays mapped, so that nothing else gets the address. */
	CHECK(mmap(at, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
}

/* ---- Receives ----------------------------------------------------------------------------- */

static struct rx *rx_new(struct owner *owner, bool tagged)
{
	struct rx *rx = calloc(1, sizeof *rx);
	CHECK(rx);
	rx->entry = guarded(sizeof *rx->entry);
	rx->entry->srx = owner->srx;
	rx->entry->owner_context = rx;
	rx->entry->flags = FI_RECV | (tagged ? FI_TAGGED : FI_MSG);
	rx->tagged = tagged;
	rx->src = FI_ADDR_UNSPEC;
	struct rx **at = &owner->first;
	while (*at)
		at = &(*at)->next;
	*at = rx;
	return rx;
}

/* Out of the list and out of reach. The lock is held. */
static void rx_free(struct owner *owner, struct rx *rx)
{
	struct rx **at = &owner->first;
	while (*at && *at != rx)
		at = &(*at)->next;
	CHECK(*at);
	*at = rx->next;
	if (rx->iov)
		release(rx->iov, sizeof *rx->iov);
	release(rx->entry, sizeof *rx->entry);
	free(rx);
}

static void rx_fill(struct rx *rx, const struct receive *receive)
{
	struct iovec iov = { receive->buf, receive->len };
	if (rx->iov)
		release(rx->iov, sizeof *rx->iov);
	rx->iov = rx->entry->iov = guarded_copy(&iov, sizeof iov);
	rx->entry->count = 1;
	rx->entry->context = (void *) receive->context;
	rx->entry->flags |= FI_COMPLETION;
	rx->src = receive->src;
	rx->ignore = receive->ignore;
}

/* Whether a receive with this source, tag and mask takes a message. */
static bool takes(fi_addr_t src, uint64_t tag, uint64_t ignore, fi_addr_t of, uint64_t with)
{
	return (src == FI_ADDR_UNSPEC || src == of) && (tag | ignore) == (with | ignore);
}

static struct rx *rx_of(struct owner *owner, const struct fi_peer_rx_entry *entry)
{
	struct rx *rx = owner->first;
	while (rx && rx->entry != entry)
		rx = rx->next;
	return rx;
}

static void call_within(struct owner *owner, enum callback callback, struct fi_peer_rx_entry *entry)
{
	if (owner->within)
		owner->within(owner, callback, entry);
}

/* Whether a call is refused. The lock is held. */
static bool refuses(int *left)
{
	return *left > 0 && (*left)--;
}

static int start(struct owner *owner, struct rx *rx)
{
	struct fi_ops_srx_peer *ops = owner->srx->peer_ops;
	return (rx->tagged ? ops->start_tag : ops->start_msg)(rx->entry);
}

int owner_receive(struct owner *owner, struct receive receive)
{
	pthread_mutex_lock(&owner->lock);
	struct rx *rx = owner->first;
	while (rx && !(rx->state == QUEUED && rx->tagged == receive.tagged &&
		       takes(receive.src, receive.tag, receive.ignore, rx->entry->addr, rx->entry->tag)))
		rx = rx->next;
	bool is_there = rx != NULL;
	if (!rx) {
		rx = rx_new(owner, receive.tagged);
		rx->entry->tag = receive.tag;
	}
	rx_fill(rx, &receive);
	rx->state = is_there ? STARTED : POSTED;
	pthread_mutex_unlock(&owner->lock);
	int ret = is_there ? start(owner, rx) : 0;
	if (ret) {
		pthread_mutex_lock(&owner->lock);
		rx->state = QUEUED;
		pthread_mutex_unlock(&owner->lock);
	}
	return ret;
}

size_t owner_entries(struct owner *owner, enum rx_state state)
{
	size_t count = 0;
	pthread_mutex_lock(&owner->lock);
	for (struct rx *rx = owner->first; rx; rx = rx->next)
		count += rx->state == state;
	pthread_mutex_unlock(&owner->lock);
	return count;
}

struct fi_peer_rx_entry *owner_first(struct owner *owner, enum rx_state state)
{
	pthread_mutex_lock(&owner->lock);
	struct rx *rx = owner->first;
	while (rx && rx->state != state)
		rx = rx->next;
	pthread_mutex_unlock(&owner->lock);
	return rx ? rx->entry : NULL;
}

int owner_discard(struct owner *owner)
{
	struct fi_peer_rx_entry *entry = owner_first(owner, QUEUED);
	CHECK(entry);
	struct fi_ops_srx_peer *ops = owner->srx->peer_ops;
	bool tagged = entry->flags & FI_TAGGED;
	int ret = (tagged ? ops->discard_tag : ops->discard_msg)(entry);
	owner_forget(owner, entry);
	owner->discarded++;
	return ret;
}

void owner_forget(struct owner *owner, struct fi_peer_rx_entry *entry)
{
	pthread_mutex_lock(&owner->lock);
	struct rx *rx = rx_of(owner, entry);
	CHECK(rx);
	rx_free(owner, rx);
	pthread_mutex_unlock(&owner->lock);
}

bool owner_next(struct owner *owner, struct done *done)
{
	pthread_mutex_lock(&owner->lock);
	bool is_there = owner->done_count > 0;
	if (is_there) {
		*done = owner->done[0];
		owner->done_count--;
		memmove(owner->done, owner->done + 1, owner->done_count * sizeof *done);
	}
	pthread_mutex_unlock(&owner->lock);
	return is_there;
}

/* ---- The functions that a provider calls -------------------------------------------------- */

static int get(struct fid_peer_srx *srx, struct fi_peer_match_attr *attr,
	       struct fi_peer_rx_entry **entry, bool tagged)
{
	struct owner *owner = srx->ep_fid.fid.context;
	int ret;

	CHECK(owner->srx == srx);
	CHECK(tagged || attr->tag == 0);
	call_within(owner, GET, NULL);
	pthread_mutex_lock(&owner->lock);
	if (refuses(&owner->refused_gets)) {
		*entry = NULL;
		ret = owner->refusal;
	} else if (owner->repeats) {
		struct rx *rx = owner->first;
		while (rx && rx->state != STARTED)
			rx = rx->next;
		CHECK(rx);
		*entry = rx->entry;
		ret = owner->refusal;
	} else {
		struct rx *rx = owner->first;
		while (rx && !(rx->state == POSTED && rx->tagged == tagged &&
			       takes(rx->src, rx->entry->tag, rx->ignore, attr->addr, attr->tag)))
			rx = rx->next;
		ret = rx ? 0 : -FI_ENOENT;
		if (!rx)
			rx = rx_new(owner, tagged);
		rx->state = ret ? OFFERED : STARTED;
		rx->entry->addr = attr->addr;
		rx->entry->msg_size = attr->msg_size;
		rx->entry->tag = attr->tag;
		*entry = rx->entry;
	}
	pthread_mutex_unlock(&owner->lock);
	return ret;
}

static int get_msg(struct fid_peer_srx *srx, struct fi_peer_match_attr *attr,
		   struct fi_peer_rx_entry **entry)
{
	return get(srx, attr, entry, false);
}

static int get_tag(struct fid_peer_srx *srx, struct fi_peer_match_attr *attr,
		   struct fi_peer_rx_entry **entry)
{
	return get(srx, attr, entry, true);
}

static int queue(struct fi_peer_rx_entry *entry)
{
	struct owner *owner = entry->srx->ep_fid.fid.context;
	pthread_mutex_lock(&owner->lock);
	struct rx *rx = rx_of(owner, entry);
	CHECK(rx && rx->state == OFFERED);
	int ret = refuses(&owner->refused_queues) ? owner->refusal : 0;
	/* A receive may have been posted since the entry was handed out. */
	struct rx *posted = ret ? NULL : owner->first;
	while (posted && !(posted->state == POSTED && posted->tagged == rx->tagged &&
			   takes(posted->src, posted->entry->tag, posted->ignore, entry->addr, entry->tag)))
		posted = posted->next;
	if (posted) {
		struct receive receive = {
			.src = posted->src, .ignore = posted->ignore, .buf = posted->entry->iov->iov_base,
			.len = posted->entry->iov->iov_len, .context = (uintptr_t) posted->entry->context,
		};
		rx_fill(rx, &receive);
		rx_free(owner, posted);
	}
	rx->state = ret ? OFFERED : posted ? STARTED : QUEUED;
	owner->queued += ret == 0;
	pthread_mutex_unlock(&owner->lock);
	if (posted)
		return start(owner, rx);
	call_within(owner, QUEUE, entry);
	return owner->queue_answer ? owner->queue_answer : ret;
}

static void update(struct fid_peer_srx *srx, fi_addr_t (*get_addr)(struct fi_peer_rx_entry *))
{
	struct owner *owner = srx->ep_fid.fid.context;
	pthread_mutex_lock(&owner->lock);
	owner->updates++;
	owner->get_addr = get_addr;
	for (struct rx *rx = owner->first; rx; rx = rx->next)
		if (rx->state == QUEUED && rx->entry->addr == FI_ADDR_UNSPEC)
			rx->entry->addr = get_addr(rx->entry);
	pthread_mutex_unlock(&owner->lock);
	call_within(owner, UPDATE, NULL);
}

static void free_entry(struct fi_peer_rx_entry *entry)
{
	struct owner *owner = entry->srx->ep_fid.fid.context;
	pthread_mutex_lock(&owner->lock);
	struct rx *rx = rx_of(owner, entry);
	CHECK(rx && (rx->state == STARTED || rx->state == OFFERED));
	rx_free(owner, rx);
	owner->freed++;
	pthread_mutex_unlock(&owner->lock);
	call_within(owner, FREE, NULL);
}

static ssize_t note(struct owner *owner, struct done done)
{
	pthread_mutex_lock(&owner->lock);
	bool is_refused = refuses(&owner->refused_writes);
	if (!is_refused) {
		CHECK(owner->done_count < sizeof owner->done / sizeof *owner->done);
		owner->done[owner->done_count++] = done;
	}
	pthread_mutex_unlock(&owner->lock);
	return is_refused ? -FI_EAGAIN : 0;
}

static ssize_t write_(struct fid_peer_cq *cq, void *context, uint64_t flags, size_t len, void *buf,
		      uint64_t data, uint64_t tag, fi_addr_t src)
{
	struct owner *owner = cq->fid.context;
	(void) buf;
	CHECK(owner->cq == cq);
	call_within(owner, WRITE, NULL);
	return note(owner, (struct done) {
		.context = (uintptr_t) context, .flags = flags, .len = len, .data = data, .tag = tag,
		.src = src,
	});
}

static ssize_t write_error(struct fid_peer_cq *cq, const struct fi_cq_err_entry *error)
{
	struct owner *owner = cq->fid.context;
	CHECK(owner->cq == cq);
	call_within(owner, WRITE_ERROR, NULL);
	return note(owner, (struct done) {
		.context = (uintptr_t) error->op_context, .flags = error->flags, .len = error->len,
		.data = error->data, .tag = error->tag, .olen = error->olen, .err = error->err,
		.src = error->src_addr,
	});
}

static void count(struct fid_peer_cntr *cntr, bool failed)
{
	struct owner *owner = cntr->fid.context;
	CHECK(owner->cntr == cntr);
	call_within(owner, COUNT, NULL);
	pthread_mutex_lock(&owner->lock);
	*(failed ? &owner->failed : &owner->counted) += 1;
	pthread_mutex_unlock(&owner->lock);
}

static void inc(struct fid_peer_cntr *cntr)
{
	count(cntr, false);
}

static void incerr(struct fid_peer_cntr *cntr)
{
	count(cntr, true);
}

/* ---- Owners ------------------------------------------------------------------------------- */

struct owner *owner_new(void)
{
	const struct fi_ops_srx_owner srx_ops = {
		sizeof srx_ops, get_msg, get_tag, queue, queue, update, free_entry,
	};
	const struct fi_ops_cq_owner cq_ops = { sizeof cq_ops, write_, write_error };
	const struct fi_ops_cntr_owner cntr_ops = { sizeof cntr_ops, inc, incerr };
	struct owner *owner = calloc(1, sizeof *owner);
	CHECK(owner);
	pthread_mutex_init(&owner->lock, NULL);
	owner->srx = guarded(sizeof *owner->srx);
	owner->cq = guarded(sizeof *owner->cq);
	owner->cntr = guarded(sizeof *owner->cntr);
	owner->srx->ep_fid.fid = (struct fid) { .fclass = FI_CLASS_PEER_SRX, .context = owner };
	owner->cq->fid = (struct fid) { .fclass = FI_CLASS_PEER_CQ, .context = owner };
	owner->cntr->fid = (struct fid) { .fclass = FI_CLASS_PEER_CNTR, .context = owner };
	owner->srx->owner_ops = guarded_copy(&srx_ops, sizeof srx_ops);
	owner->cq->owner_ops = guarded_copy(&cq_ops, sizeof cq_ops);
	owner->cntr->owner_ops = guarded_copy(&cntr_ops, sizeof cntr_ops);
	owner->refusal = -FI_ENOMEM;
	return owner;
}

void owner_free(struct owner *owner)
{
	EQUAL(owner_entries(owner, OFFERED), 0);
	EQUAL(owner_entries(owner, STARTED), 0);
	while (owner->first)
		rx_free(owner, owner->first);
	release(owner->srx->owner_ops, sizeof *owner->srx->owner_ops);
	release(owner->cq->owner_ops, sizeof *owner->cq->owner_ops);
	release(owner->cntr->owner_ops, sizeof *owner->cntr->owner_ops);
	release(owner->srx, sizeof *owner->srx);
	release(owner->cq, sizeof *owner->cq);
	release(owner->cntr, sizeof *owner->cntr);
	pthread_mutex_destroy(&owner->lock);
	free(owner);
}

/* ---- Endpoints ---------------------------------------------------------------------------- */

void world_open(struct world *world)
{
	const char *provider = getenv("FERRO_TEST_PROVIDER"), *domain = getenv("FERRO_TEST_DOMAIN");
	struct fi_info *hints = fi_allocinfo();
	CHECK(hints && provider);
	memset(world, 0, sizeof *world);
	hints->caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE | FI_PEER;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->caps = FI_PEER | FI_AV_USER_ID;
	hints->fabric_attr->prov_name = strdup(provider);
	hints->domain_attr->name = domain ? strdup(domain) : NULL;
	EQUAL(fi_getinfo(fi_version(), NULL, NULL, 0, hints, &world->info), 0);
	fi_freeinfo(hints);
	CHECK(world->info->caps & FI_PEER && world->info->domain_attr->caps & FI_PEER);
	EQUAL(fi_fabric(world->info->fabric_attr, &world->fabric, NULL), 0);
	EQUAL(fi_domain(world->fabric, world->info, &world->domain[0], NULL), 0);
	world->domain[1] = world->domain[0];
	if (world->info->domain_attr->threading != FI_THREAD_SAFE)
		EQUAL(fi_domain(world->fabric, world->info, &world->domain[1], NULL), 0);
	struct side *sides[] = { &world->a, &world->b };
	for (int i = 0; i < 2; i++) {
		side_open_unbound(sides[i], world, world->domain[i]);
		side_bind(sides[i]);
	}
	side_insert(&world->a, &world->b, NULL);
	side_insert(&world->b, &world->a, NULL);
}

void side_open_unbound(struct side *side, struct world *world, struct fid_domain *domain)
{
	struct owner *owner = owner_new();
	struct fi_peer_cq_context of_cq = { sizeof of_cq, owner->cq };
	struct fi_peer_cntr_context of_cntr = { sizeof of_cntr, owner->cntr };
	struct fi_peer_srx_context of_srx = { sizeof of_srx, owner->srx };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq_attr = { .flags = FI_PEER, .format = FI_CQ_FORMAT_TAGGED };
	struct fi_cntr_attr cntr_attr = { .flags = FI_PEER };
	struct fi_rx_attr rx_attr = { .op_flags = FI_PEER };
	/* The contexts are there for the calls alone. */
	void *cq = guarded_copy(&of_cq, sizeof of_cq), *cntr = guarded_copy(&of_cntr, sizeof of_cntr);
	void *srx = guarded_copy(&of_srx, sizeof of_srx);

	*side = (struct side) { .owner = owner, .to = FI_ADDR_UNSPEC };
	EQUAL(fi_av_open(domain, &av_attr, &side->av, NULL), 0);
	EQUAL(fi_cq_open(domain, &cq_attr, &side->cq, cq), 0);
	release(cq, sizeof of_cq);
	EQUAL(fi_cntr_open(domain, &cntr_attr, &side->cntr, cntr), 0);
	release(cntr, sizeof of_cntr);
	EQUAL(fi_srx_context(domain, &rx_attr, &side->srx, srx), 0);
	release(srx, sizeof of_srx);
	CHECK(owner->srx->peer_ops && owner->srx->peer_ops->size >= sizeof *owner->srx->peer_ops);
	EQUAL(fi_endpoint(domain, world->info, &side->ep, side), 0);
}

void side_bind(struct side *side)
{
	char name[32];
	/* Where an endpoint has no address until it gets one. */
	snprintf(name, sizeof name, "side-%p", (void *) side);
	size_t len = 0;
	int ret = fi_getname(&side->ep->fid, NULL, &len);
	if (ret == -FI_ETOOSMALL && len == 1)
		EQUAL(fi_setname(&side->ep->fid, name, strlen(name) + 1), 0);
	EQUAL(fi_ep_bind(side->ep, &side->av->fid, 0), 0);
	EQUAL(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV), 0);
	EQUAL(fi_ep_bind(side->ep, &side->cntr->fid, FI_SEND | FI_RECV), 0);
	EQUAL(fi_ep_bind(side->ep, &side->srx->fid, 0), 0);
	EQUAL(fi_enable(side->ep), 0);
}

void side_insert(struct side *side, struct side *peer, const fi_addr_t *id)
{
	char name[512];
	size_t len = sizeof name;
	fi_addr_t addr = id ? *id : FI_ADDR_UNSPEC;
	EQUAL(fi_getname(&peer->ep->fid, name, &len), 0);
	EQUAL(fi_av_insert(side->av, name, 1, &addr, id ? FI_AV_USER_ID : 0, NULL), 1);
	side->peer = peer;
	side->to = addr;
}

void side_close(struct side *side)
{
	if (side->ep)
		EQUAL(fi_close(&side->ep->fid), 0);
	EQUAL(fi_close(&side->srx->fid), 0);
	EQUAL(fi_close(&side->cq->fid), 0);
	EQUAL(fi_close(&side->cntr->fid), 0);
	EQUAL(fi_close(&side->av->fid), 0);
	owner_free(side->owner);
}

void world_close(struct world *world)
{
	side_close(&world->a);
	side_close(&world->b);
	if (world->domain[1] != world->domain[0])
		EQUAL(fi_close(&world->domain[1]->fid), 0);
	EQUAL(fi_close(&world->domain[0]->fid), 0);
	EQUAL(fi_close(&world->fabric->fid), 0);
	fi_freeinfo(world->info);
}

void world_drive(struct world *world)
{
	EQUAL(fi_cq_read(world->a.cq, NULL, 0), 0);
	EQUAL(fi_cq_read(world->b.cq, NULL, 0), 0);
	fi_cntr_read(world->a.cntr);
	fi_cntr_read(world->b.cntr);
}

/* Ends a test that waits for nothing. */
static void check_patience(time_t begun)
{
	CHECK(time(NULL) - begun < 60);
}

void side_send(struct world *world, struct side *side, bool tagged, const void *buf, size_t len,
	       uint64_t tag, uint64_t data)
{
	struct iovec iov = { (void *) buf, len };
	struct fi_msg_tagged of_tagged = {
		.msg_iov = &iov, .iov_count = 1, .addr = side->to, .tag = tag, .data = data,
		.context = (void *) (uintptr_t) 0x5e9d,
	};
	struct fi_msg of_msg = {
		.msg_iov = &iov, .iov_count = 1, .addr = side->to, .data = data,
		.context = (void *) (uintptr_t) 0x5e9d,
	};
	uint64_t flags = FI_COMPLETION | (data ? FI_REMOTE_CQ_DATA : 0);
	time_t begun = time(NULL);
	ssize_t ret;
	do {
		ret = tagged ? fi_tsendmsg(side->ep, &of_tagged, flags) : fi_sendmsg(side->ep, &of_msg, flags);
		world_drive(world);
		check_patience(begun);
	} while (ret == -FI_EAGAIN);
	EQUAL(ret, 0);
}

struct done world_next(struct world *world, struct owner *owner)
{
	struct done done = { 0 };
	for (time_t begun = time(NULL); !owner_next(owner, &done); check_patience(begun))
		world_drive(world);
	return done;
}

void world_until(struct world *world, struct owner *owner, enum rx_state state, size_t count)
{
	for (time_t begun = time(NULL); owner_entries(owner, state) != count; check_patience(begun))
		world_drive(world);
}

int run_scenario(int argc, char **argv, const struct scenario *scenarios)
{
	if (argc != 2) {
		for (; scenarios->name; scenarios++)
			puts(scenarios->name);
		return 0;
	}
	while (scenarios->name && strcmp(scenarios->name, argv[1]))
		scenarios++;
	CHECK(scenarios->name);
	scenarios->run();
	printf("ended well: %s\n", argv[1]);
	return 0;
}
