/*
 * An owner whose endpoints carry the messages of a collective peer (FI_PEER_TRANSFER), in memory of
 * this process. Contexts are out of reach once their call is over.
 */

#include <stddef.h>
#include <rdma/fi_collective.h>

#include "hostile.h"

enum { MOST = 5, BASE = 1000 };

/* ---- The messages ---------------------------------------------------------------------------- */

/* A message that was sent, or a receive that waits. */
struct message {
	struct message *next;
	struct member *from; /* of a receive: NULL for any */
	uint64_t tag, ignore;
	void *context;
	char *buf; /* of a message: a copy */
	size_t len;
	bool delivers; /* the sender waits until it is received */
};

/* The end of a message, which the peer does not have yet. */
struct report {
	struct report *next;
	void *context;
	size_t len;
	fi_addr_t src;
	int err;
};

struct member {
	struct fid_ep *lent;
	struct fid_peer_cq *cq;
	struct fid_peer_av *av;
	struct fid_eq *eq;
	/* The peer's. */
	struct fid_ep *peer_ep;
	struct fid_cq *peer_cq;
	struct fid_eq *peer_eq;
	struct fid_av *peer_av;
	struct fi_ops_transfer_peer *reports;
	struct message *posted, *unexpected;
	struct report *ends;
	size_t joined, join_failed, done;
	int err; /* of the last operation */
	bool is_closed;
};

static struct member members[MOST];
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
/* So many transfers are answered by this result. */
static int refused;
static ssize_t refusal;
/* Ends are reported within the calls that begin messages. */
static bool reports_at_once, is_reporting;
/* Each receive is over with an error. */
static bool is_down;
/* All messages are refused for lack of room, and each call that refuses drives all endpoints. */
static bool is_full;
static int depth, members_open;

static struct member *member_of(fi_addr_t addr)
{
	return addr == FI_ADDR_UNSPEC ? NULL : &members[addr - BASE];
}

static fi_addr_t address_of(const struct member *member)
{
	return BASE + (member - members);
}

static void append(void *list, void *item)
{
	void **at = list;
	while (*at)
		at = *at; /* "next" is the first field */
	*at = item;
}

static void end(struct member *member, void *context, size_t len, fi_addr_t src, int err)
{
	struct report *report = malloc(sizeof *report);
	*report = (struct report) { NULL, context, len, src, err };
	append(&member->ends, report);
}

/* Reports what is over; not within another report. */
static void report_all(struct member *member)
{
	if (is_reporting)
		return;
	is_reporting = true;
	while (member->ends && !member->is_closed) {
		struct report report = *member->ends;
		free(member->ends);
		member->ends = report.next;
		if (report.err) {
			struct fi_cq_err_entry entry = { .op_context = report.context, .err = report.err };
			void *copy = guarded_copy(&entry, sizeof entry);
			EQUAL(member->reports->comperr(member->peer_ep, copy), 0);
			release(copy, sizeof entry);
		} else {
			struct fi_cq_tagged_entry entry = { .op_context = report.context, .len = report.len };
			void *copy = guarded_copy(&entry, sizeof entry);
			EQUAL(member->reports->complete(member->peer_ep, copy, report.src), 0);
			release(copy, sizeof entry);
		}
	}
	is_reporting = false;
}

static bool match(const struct message *receive, const struct message *sent)
{
	return (!receive->from || receive->from == sent->from) &&
	       !((receive->tag ^ sent->tag) & ~receive->ignore);
}

static void deliver(struct member *to, struct message *receive, struct message *sent)
{
	size_t len = sent->len < receive->len ? sent->len : receive->len;
	memcpy(receive->buf, sent->buf, len);
	end(to, receive->context, len, address_of(sent->from), sent->len > len ? FI_ETRUNC : 0);
	if (sent->delivers)
		end(sent->from, sent->context, 0, 0, 0);
	free(sent->buf);
	free(sent);
	free(receive);
}

/* Takes the first match out of a list. */
static struct message *take(struct message **list, const struct message *other, bool sent)
{
	for (struct message **at = list; *at; at = &(*at)->next) {
		struct message *one = *at;
		if (sent ? match(one, other) : match(other, one)) {
			*at = one->next;
			return one;
		}
	}
	return NULL;
}

static bool refuses(void)
{
	CHECK(!depth);
	if (is_full) {
		depth++;
		for (int i = 0; i < members_open; i++)
			EQUAL(fi_cq_read(members[i].peer_cq, NULL, 0), 0);
		depth--;
		refusal = -FI_EAGAIN;
		return true;
	}
	return refused && refused--;
}

static ssize_t lent_send(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags)
{
	struct member *from = ep->fid.context, *to = member_of(msg->addr);
	CHECK(flags & FI_PEER_TRANSFER && msg->iov_count == 1 && !(msg->tag >> 63));
	if (refuses())
		return refusal;
	if (to->is_closed) {
		end(from, msg->context, 0, 0, FI_ECONNRESET);
		return 0;
	}
	struct message *sent = malloc(sizeof *sent);
	*sent = (struct message) {
		.from = from, .tag = msg->tag, .context = msg->context, .len = msg->msg_iov->iov_len,
		.delivers = flags & FI_DELIVERY_COMPLETE,
	};
	sent->buf = malloc(sent->len + 1);
	memcpy(sent->buf, msg->msg_iov->iov_base, sent->len);
	if (!sent->delivers)
		end(from, sent->context, 0, 0, 0);
	struct message *receive = take(&to->posted, sent, true);
	if (receive)
		deliver(to, receive, sent);
	else
		append(&to->unexpected, sent);
	if (reports_at_once)
		report_all(from);
	return 0;
}

static ssize_t lent_receive(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags)
{
	struct member *to = ep->fid.context;
	CHECK(flags & FI_PEER_TRANSFER && msg->iov_count == 1 && !(msg->tag >> 63));
	if (refuses())
		return refusal;
	struct message *receive = malloc(sizeof *receive);
	*receive = (struct message) {
		.from = member_of(msg->addr), .tag = msg->tag, .ignore = msg->ignore,
		.context = msg->context, .buf = msg->msg_iov->iov_base, .len = msg->msg_iov->iov_len,
	};
	if (is_down) {
		end(to, receive->context, 0, 0, FI_ECANCELED);
		free(receive);
		return 0;
	}
	struct message *sent = take(&to->unexpected, receive, false);
	if (sent)
		deliver(to, receive, sent);
	else
		append(&to->posted, receive);
	if (reports_at_once)
		report_all(to);
	return 0;
}

static ssize_t lent_cancel(struct fid *fid, void *context)
{
	struct member *member = fid->context;
	for (struct message **at = &member->posted; *at; at = &(*at)->next)
		if ((*at)->context == context) {
			struct message *receive = *at;
			*at = receive->next;
			free(receive);
			end(member, context, 0, 0, FI_ECANCELED);
			break;
		}
	return 0;
}

/* ---- Other lent objects ---------------------------------------------------------------------- */

static ssize_t write_done(struct fid_peer_cq *cq, void *context, uint64_t flags, size_t len,
			  void *buf, uint64_t data, uint64_t tag, fi_addr_t src)
{
	struct member *member = cq->fid.context;
	(void) context, (void) len, (void) buf, (void) data, (void) tag, (void) src;
	EQUAL(flags, FI_COLLECTIVE);
	member->done++;
	member->err = 0;
	return 0;
}

static ssize_t write_error(struct fid_peer_cq *cq, const struct fi_cq_err_entry *entry)
{
	struct member *member = cq->fid.context;
	CHECK(entry->err > 0 && entry->flags == FI_COLLECTIVE);
	member->done++;
	member->err = entry->err;
	return 0;
}

static ssize_t write_event(struct fid_eq *eq, uint32_t event, const void *buf, size_t len,
			   uint64_t flags)
{
	struct member *member = eq->fid.context;
	(void) event, (void) buf;
	*(flags ? &member->join_failed : &member->joined) += 1;
	return len;
}

static int query(struct fid_peer_av *av, struct fi_av_attr *attr)
{
	(void) av;
	attr->type = FI_AV_MAP;
	attr->count = MOST;
	return 0;
}

static fi_addr_t ep_addr(struct fid_peer_av *av, struct fid_ep *ep)
{
	CHECK(av->fid.context == ep->fid.context);
	return address_of(av->fid.context);
}

static void lend(struct member *member)
{
	const struct fi_ops_tagged tagged = {
		.size = sizeof tagged, .recvmsg = lent_receive, .sendmsg = lent_send,
	};
	const struct fi_ops_ep ep = { .size = sizeof ep, .cancel = lent_cancel };
	const struct fi_ops_cq_owner cq = { sizeof cq, write_done, write_error };
	const struct fi_ops_av_owner av = { sizeof av, query, ep_addr };
	const struct fi_ops_eq eq = { .size = sizeof eq, .write = write_event };

	*member = (struct member) {
		.lent = guarded(sizeof *member->lent), .cq = guarded(sizeof *member->cq),
		.av = guarded(sizeof *member->av), .eq = guarded(sizeof *member->eq),
	};
	member->lent->fid.context = member->cq->fid.context = member;
	member->av->fid.context = member->eq->fid.context = member;
	member->lent->tagged = guarded_copy(&tagged, sizeof tagged);
	member->lent->ops = guarded_copy(&ep, sizeof ep);
	member->cq->owner_ops = guarded_copy(&cq, sizeof cq);
	member->av->owner_ops = guarded_copy(&av, sizeof av);
	member->eq->ops = guarded_copy(&eq, sizeof eq);
}

/* ---- The peer -------------------------------------------------------------------------------- */

static int open_domain(void *parent, void *context)
{
	struct fid_domain *opened;
	int ret = fi_domain2(parent, info, &opened, FI_PEER, context);
	return ret ? ret : fi_close(&opened->fid);
}

static int open_queue(void *parent, void *context)
{
	struct fi_cq_attr attr = { .flags = FI_PEER };
	struct fid_cq *cq;
	int ret = fi_cq_open(parent, &attr, &cq, context);
	return ret ? ret : fi_close(&cq->fid);
}

static int open_vector(void *parent, void *context)
{
	struct fi_av_attr attr = { .flags = FI_PEER };
	struct fid_av *av;
	int ret = fi_av_open(parent, &attr, &av, context);
	return ret ? ret : fi_close(&av->fid);
}

static void peer_open(void)
{
	static struct fid_domain none;
	struct fi_info *hints = fi_allocinfo();
	hints->caps = FI_PEER | FI_COLLECTIVE;
	hints->mode = FI_PEER_TRANSFER;
	hints->fabric_attr->prov_name = strdup("ferro");
	EQUAL(fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), NULL, NULL, 0, hints, &info), 0);
	fi_freeinfo(hints);
	CHECK(info->mode == FI_PEER_TRANSFER && !info->next);
	EQUAL(fi_fabric(info->fabric_attr, &fabric, NULL), 0);
	struct fi_peer_domain_context of_domain = { sizeof of_domain, &none };
	void *context = guarded_copy(&of_domain, sizeof of_domain);
	EQUAL(fi_domain2(fabric, info, &domain, FI_PEER, context), 0);
	release(context, sizeof of_domain);
	refused = 0;
	reports_at_once = is_reporting = is_down = is_full = false;
}

static void peer_close(void)
{
	EQUAL(fi_close(&domain->fid), 0);
	EQUAL(fi_close(&fabric->fid), 0);
	fi_freeinfo(info);
}

static void member_open(struct member *member)
{
	struct fi_peer_cq_context of_cq = { sizeof of_cq, member->cq };
	struct fi_peer_av_context of_av = { sizeof of_av, member->av };
	struct fi_peer_eq_context of_eq = { sizeof of_eq, member->eq };
	struct fi_peer_transfer_context of_ep = { sizeof of_ep, NULL, member->lent, NULL };
	struct fi_cq_attr cq = { .flags = FI_PEER };
	struct fi_av_attr av = { .flags = FI_PEER };
	struct fi_eq_attr eq = { .flags = FI_PEER };
	void *contexts[] = {
		guarded_copy(&of_cq, sizeof of_cq), guarded_copy(&of_av, sizeof of_av),
		guarded_copy(&of_eq, sizeof of_eq),
	};
	struct fi_peer_transfer_context *transfers = guarded_copy(&of_ep, sizeof of_ep);

	EQUAL(fi_cq_open(domain, &cq, &member->peer_cq, contexts[0]), 0);
	EQUAL(fi_av_open(domain, &av, &member->peer_av, contexts[1]), 0);
	EQUAL(fi_eq_open(fabric, &eq, &member->peer_eq, contexts[2]), 0);
	EQUAL(fi_endpoint(domain, info, &member->peer_ep, transfers), 0);
	member->reports = transfers->peer_ops;
	CHECK(member->reports->size >= sizeof *member->reports);
	for (int i = 0; i < 3; i++)
		release(contexts[i], sizeof of_cq);
	release(transfers, sizeof of_ep);
	EQUAL(fi_ep_bind(member->peer_ep, &member->peer_av->fid, 0), 0);
	EQUAL(fi_ep_bind(member->peer_ep, &member->peer_cq->fid, FI_TRANSMIT | FI_RECV), 0);
	EQUAL(fi_ep_bind(member->peer_ep, &member->peer_eq->fid, 0), 0);
	EQUAL(fi_enable(member->peer_ep), 0);
}

static void member_close(struct member *member)
{
	EQUAL(fi_close(&member->peer_ep->fid), 0);
	member->is_closed = true;
	EQUAL(fi_close(&member->peer_cq->fid), 0);
	EQUAL(fi_close(&member->peer_eq->fid), 0);
	EQUAL(fi_close(&member->peer_av->fid), 0);
}

/* The provider uses none of the lent objects any more. Receives that it has left are written to,
 * as by messages that come late. */
static void member_free(struct member *member)
{
	struct message *lists[] = { member->posted, member->unexpected };
	for (int i = 0; i < 2; i++)
		for (struct message *next, *one = lists[i]; one; one = next) {
			next = one->next;
			if (i)
				free(one->buf);
			else
				memset(one->buf, 0x55, one->len);
			free(one);
		}
	for (struct report *next, *one = member->ends; one; one = next) {
		next = one->next;
		free(one);
	}
	release(member->lent->tagged, sizeof *member->lent->tagged);
	release(member->lent->ops, sizeof *member->lent->ops);
	release(member->cq->owner_ops, sizeof *member->cq->owner_ops);
	release(member->av->owner_ops, sizeof *member->av->owner_ops);
	release(member->eq->ops, sizeof *member->eq->ops);
	release(member->lent, sizeof *member->lent);
	release(member->cq, sizeof *member->cq);
	release(member->av, sizeof *member->av);
	release(member->eq, sizeof *member->eq);
}

static void drive(int number)
{
	for (int i = 0; i < number; i++)
		if (!members[i].is_closed) {
			report_all(&members[i]);
			EQUAL(fi_cq_read(members[i].peer_cq, NULL, 0), 0);
		}
}

/* Has all join a group. */
static void join(int number, struct fid_av_set **sets, struct fid_mc **groups)
{
	struct fi_av_set_attr attr = {
		.start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL, .count = number,
	};
	for (int i = 0; i < number; i++) {
		size_t before = members[i].joined + members[i].join_failed;
		EQUAL(fi_av_set(members[i].peer_av, &attr, &sets[i], NULL), 0);
		for (int other = 0; other < number; other++)
			EQUAL(fi_av_set_insert(sets[i], BASE + other), 0);
		EQUAL(fi_join_collective(members[i].peer_ep, FI_ADDR_NOTAVAIL, sets[i], FI_COLLECTIVE,
					 &groups[i], NULL), 0);
		CHECK(members[i].joined + members[i].join_failed <= before + 1);
	}
	for (int i = 0; i < number; i++)
		while (!members[i].joined && !members[i].join_failed)
			drive(number);
}

/* A group of so many members. */
struct party {
	int number;
	struct fid_av_set *sets[MOST];
	struct fid_mc *groups[MOST];
};

static void party_open(struct party *party, int number)
{
	party->number = number;
	peer_open();
	for (int i = 0; i < number; i++) {
		lend(&members[i]);
		member_open(&members[i]);
	}
}

static void party_join(struct party *party)
{
	join(party->number, party->sets, party->groups);
	for (int i = 0; i < party->number; i++)
		EQUAL(members[i].join_failed, 0);
}

static ssize_t enter(struct party *party, int i)
{
	return fi_barrier(members[i].peer_ep, fi_mc_addr(party->groups[i]), NULL);
}

static void party_close(struct party *party, bool cancels)
{
	for (int i = 0; i < party->number; i++) {
		EQUAL(fi_close(&members[i].peer_ep->fid), -FI_EBUSY);
		EQUAL(fi_close(&party->groups[i]->fid), 0);
		EQUAL(fi_close(&party->sets[i]->fid), 0);
		struct message *kept = members[i].posted;
		if (!cancels)
			members[i].posted = NULL;
		member_close(&members[i]);
		if (!cancels)
			members[i].posted = kept;
	}
	for (int i = 0; i < party->number; i++)
		member_free(&members[i]);
	peer_close();
}

static void await(int number, size_t done)
{
	for (int i = 0; i < number; i++)
		while (members[i].done < done)
			drive(number);
}

/* ---- Scenarios ------------------------------------------------------------------------------- */

static void contexts(void)
{
	static struct fid_domain none;
	struct fi_peer_domain_context of_domain = { sizeof of_domain, &none };
	size_t *short_one = guarded(sizeof *short_one);

	peer_open();
	lend(&members[0]);
	check_object(domain, open_queue, members[0].cq, offsetof(struct fid_peer_cq, owner_ops));
	check_object(domain, open_vector, members[0].av, offsetof(struct fid_peer_av, owner_ops));
	EQUAL(open_domain(fabric, &of_domain), 0);
	EQUAL(open_domain(fabric, NULL), -FI_EINVAL);
	struct fid_ep *ep;
	for (*short_one = 0; *short_one < sizeof(struct fi_peer_transfer_context); ++*short_one) {
		if (*short_one < sizeof of_domain)
			EQUAL(open_domain(fabric, short_one), -FI_EINVAL);
		EQUAL(fi_endpoint(domain, info, &ep, short_one), -FI_EINVAL);
	}
	member_free(&members[0]);
	peer_close();
}

static void operations(void)
{
	for (int number = 1; number <= MOST; number++)
		for (int at_once = 0; at_once < 2; at_once++) {
			struct party party;
			uint32_t in[MOST][3], sums[MOST][3], all[MOST][3 * MOST], got[MOST][3];
			size_t done = 0;

			party_open(&party, number);
			reports_at_once = at_once;
			party_join(&party);
			for (int i = 0; i < number; i++)
				for (int k = 0; k < 3; k++)
					in[i][k] = 100 * i + k;
			for (int round = 0; round < 50; round++) {
				for (int i = 0; i < number; i++) {
					struct fid_ep *ep = members[i].peer_ep;
					fi_addr_t group = fi_mc_addr(party.groups[i]);
					fi_addr_t root = BASE + round % number;
					memset(got[i], i, sizeof got[i]);
					EQUAL(fi_barrier(ep, group, NULL), 0);
					EQUAL(fi_allreduce(ep, in[i], 3, NULL, sums[i], NULL, group, FI_UINT32,
							   FI_SUM, 0, NULL), 0);
					EQUAL(fi_allgather(ep, in[i], 3, NULL, all[i], NULL, group, FI_UINT32, 0,
							   NULL), 0);
					EQUAL(fi_broadcast(ep, got[i], 3, NULL, group, root, FI_UINT32, 0, NULL), 0);
				}
				await(number, done += 4);
				for (int i = 0; i < number; i++)
					for (int k = 0; k < 3; k++) {
						uint32_t root = (round % number) * 0x01010101u;
						EQUAL(members[i].err, 0);
						EQUAL(sums[i][k], number * k + 50 * number * (number - 1));
						EQUAL(got[i][k], root);
						for (int j = 0; j < number; j++)
							EQUAL(all[i][3 * j + k], 100 * j + k);
					}
			}
			party_close(&party, true);
		}
}

/* The owner answers transfers by each result. One that is no lack of room fails the operation. */
static void answers(void)
{
	static const ssize_t results[] = {
		-FI_EAGAIN, -FI_ENOMEM, -FI_EIO, -1, 1, 77, -5000, INT32_MIN, INT64_MAX, INT64_MIN,
	};
	for (size_t at = 0; at < 5 * sizeof results / sizeof *results; at++) {
		struct party party;
		size_t begun[3];

		party_open(&party, 3);
		party_join(&party);
		refusal = results[at / 5];
		refused = 1 + at % 5;
		for (int i = 0; i < 3; i++) {
			ssize_t ret = enter(&party, i);
			begun[i] = !ret;
			CHECK(!ret || refusal != -FI_EAGAIN);
		}
		for (int i = 0; i < 3; i++) {
			while (members[i].done < begun[i])
				drive(3);
			CHECK(!members[i].err || refusal != -FI_EAGAIN);
		}
		party_close(&party, true);
	}
}

/* Calls that refuse drive all endpoints, and none calls the owner then. */
static void calls_within_calls(void)
{
	for (int round = 0; round < 10; round++) {
		struct party party;

		party_open(&party, MOST);
		party_join(&party);
		is_full = true;
		members_open = MOST;
		for (int i = 0; i < MOST; i++)
			EQUAL(enter(&party, i), 0);
		for (int again = 0; again < 10; again++)
			drive(MOST);
		is_full = false;
		await(MOST, 1);
		for (int i = 0; i < MOST; i++)
			EQUAL(members[i].err, 0);
		party_close(&party, true);
	}
}

/* The owner shuts down: each receive is over with an error, and new ones are, too. */
static void shutdown_of_receives(void)
{
	struct party party;

	party_open(&party, 2);
	party_join(&party);
	EQUAL(enter(&party, 0), 0);
	is_down = true;
	for (int i = 0; i < 2; i++)
		for (struct message *next, *one = members[i].posted; one; one = next) {
			next = one->next;
			members[i].posted = next;
			end(&members[i], one->context, 0, 0, FI_ECANCELED);
			free(one);
		}
	for (int again = 0; again < 10; again++)
		drive(2);
	EQUAL(members[0].done, 1);
	CHECK(members[0].err > 0);
	party_close(&party, true);
}

/* Reports of no message, twice, and of more bytes than there is room for. */
static void reports(void)
{
	struct party party;

	party_open(&party, 2);
	party_join(&party);
	struct member *member = &members[0];
	for (uintptr_t context = 0; context < 1000; context++) {
		struct fi_cq_tagged_entry entry = { .op_context = (void *) context, .len = SIZE_MAX };
		struct fi_cq_err_entry error = { .op_context = (void *) context, .err = INT32_MIN };
		bool waits = false;
		for (struct message *one = member->posted; one; one = one->next)
			waits |= one->context == entry.op_context;
		if (!waits) {
			ssize_t expected = context ? -FI_ENOENT : -FI_EINVAL;
			EQUAL(member->reports->complete(member->peer_ep, &entry, SIZE_MAX), expected);
			EQUAL(member->reports->comperr(member->peer_ep, &error), expected);
		}
	}
	EQUAL(enter(&party, 0), 0);
	/* Each receive is over with too many bytes, and once more. */
	for (int i = 0; i < 20 && member->posted; i++) {
		struct message *receive = member->posted;
		struct fi_cq_tagged_entry entry = { .op_context = receive->context, .len = SIZE_MAX };
		member->posted = receive->next;
		free(receive);
		EQUAL(member->reports->complete(member->peer_ep, &entry, BASE + 1), 0);
		EQUAL(member->reports->complete(member->peer_ep, &entry, BASE + 1), -FI_ENOENT);
	}
	EQUAL(member->done, 1);
	CHECK(member->err > 0);
	CHECK(enter(&party, 0) < 0);
	party_close(&party, true);
}

/* An endpoint closes with messages that are never reported: this owner does not know how to cancel.
 * It writes to their memory up to the close of the domain. */
static void closes(void)
{
	for (int begun = 0; begun < 8; begun++) {
		struct party party;

		party_open(&party, 3);
		party_join(&party);
		for (int i = 0; i < 3; i++)
			if (begun & 1 << i)
				EQUAL(enter(&party, i), 0);
		party_close(&party, false);
	}
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{ "contexts", contexts }, { "operations", operations }, { "answers", answers },
		{ "calls_within_calls", calls_within_calls },
		{ "shutdown_of_receives", shutdown_of_receives }, { "reports", reports },
		{ "closes", closes }, { NULL, NULL },
	};
	return run_scenario(argc, argv, scenarios);
}
