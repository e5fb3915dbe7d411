/*
 * The rest of the template, which is alike in each provider of libfabric's: tables of functions,
 * endpoints and their names, domains, discovery. template.c alone includes it.
 */
#define CAPS (FI_MSG | FI_TAGGED | FI_SEND | FI_RECV | FI_SOURCE | FI_DIRECTED_RECV | FI_MULTI_RECV)
#define DOMAIN_CAPS (FI_LOCAL_COMM | FI_PEER | FI_AV_USER_ID)

/* Calls that only an owner's own objects have. Entries that are NULL in the tables are called by
 * applications alone, which do not see this provider. */
#define REFUSE(type, name, ...) static type name(__VA_ARGS__) { return (type) -FI_ENOSYS; }
REFUSE(int, no_bind, struct fid *, struct fid *, uint64_t)
REFUSE(int, no_control, struct fid *, int, void *)
REFUSE(ssize_t, no_recv, struct fid_ep *, void *, size_t, void *, fi_addr_t, void *)
REFUSE(ssize_t, no_recvmsg, struct fid_ep *, const struct fi_msg *, uint64_t)
REFUSE(ssize_t, no_trecv, struct fid_ep *, void *, size_t, void *, fi_addr_t, uint64_t, uint64_t,
       void *)
REFUSE(ssize_t, no_trecvmsg, struct fid_ep *, const struct fi_msg_tagged *, uint64_t)
REFUSE(ssize_t, no_cq_readfrom, struct fid_cq *, void *, size_t, fi_addr_t *)
REFUSE(ssize_t, no_cq_readerr, struct fid_cq *, struct fi_cq_err_entry *, uint64_t)
REFUSE(ssize_t, no_cq_sread, struct fid_cq *, void *, size_t, const void *, int)
REFUSE(uint64_t, no_cntr_readerr, struct fid_cntr *)
REFUSE(int, no_cntr_set, struct fid_cntr *, uint64_t)
REFUSE(int, no_cntr_wait, struct fid_cntr *, uint64_t, int)

/* Reads of the owner's: all that they do is progress. */
static ssize_t cq_read(struct fid_cq *cq, void *buf, size_t count)
{
	if (count)
		return -FI_ENOSYS;
	progress(((struct object *) cq)->domain);
	return 0;
}

static uint64_t cntr_read(struct fid_cntr *cntr)
{
	progress(((struct object *) cntr)->domain);
	return 0;
}

static struct fi_ops_cq cq_ops = {
	.size = sizeof cq_ops, .read = cq_read,
	.readfrom = no_cq_readfrom, .readerr = no_cq_readerr, .sread = no_cq_sread,
};
static struct fi_ops_cntr cntr_ops = {
	.size = sizeof cntr_ops, .read = cntr_read, .readerr = no_cntr_readerr, .add = no_cntr_set,
	.set = no_cntr_set, .wait = no_cntr_wait, .adderr = no_cntr_set, .seterr = no_cntr_set,
};
static ssize_t sendmsg_untagged(struct fid_ep *ep, const struct fi_msg *op, uint64_t flags)
{
	struct fi_msg_tagged tagged = { .msg_iov = op->msg_iov, .iov_count = op->iov_count,
					.addr = op->addr, .context = op->context, .data = op->data };
	return tsendmsg(ep, &tagged, flags | FI_MSG);
}


static struct fi_ops_msg msg_ops = {
	.size = sizeof msg_ops, .sendmsg = sendmsg_untagged, .recv = no_recv, .recvmsg = no_recvmsg,
};
static struct fi_ops_tagged tagged_ops = {
	.size = sizeof tagged_ops, .sendmsg = tsendmsg, .recv = no_trecv, .recvmsg = no_trecvmsg,
};

static int close_object(struct fid *fid)
{
	if (fid->fclass == FI_CLASS_AV)
		free(((struct av *) fid)->peers);
	free(fid);
	return 0;
}
static struct fi_ops object_ops = {
	.size = sizeof object_ops, .close = close_object, .bind = no_bind, .control = no_control,
};

/* ---- Endpoints ---------------------------------------------------------------------------- */

static int ep_bind(struct fid *fid, struct fid *to, uint64_t flags)
{
	struct endpoint *ep = (struct endpoint *) fid;
	if (to->fclass == FI_CLASS_AV) {
		ep->av = (struct av *) to;
		return 0;
	}
	void *owner = ((struct object *) to)->owner;
	switch (to->fclass) {
	case FI_CLASS_SRX_CTX:
		ep->srx = owner;
		return 0;
	case FI_CLASS_CQ:
		if (flags & FI_TRANSMIT) {
			ep->tx_cq = owner;
			ep->tx_flags = flags & FI_SELECTIVE_COMPLETION ? 0 : FI_COMPLETION;
		}
		if (flags & FI_RECV)
			ep->rx_cq = owner;
		return 0;
	case FI_CLASS_CNTR:
		if (flags & FI_SEND)
			ep->tx_cntr = owner;
		if (flags & FI_RECV)
			ep->rx_cntr = owner;
		return 0;
	default:
		return -FI_EINVAL;
	}
}

/* From FI_ENABLE on other endpoints can send to it. */
static int ep_control(struct fid *fid, int command, void *arg)
{
	struct endpoint *ep = (struct endpoint *) fid, *other;
	if (command != FI_ENABLE)
		return -FI_ENOSYS;
	if (!ep->name[0] || !ep->av || !ep->srx || !ep->tx_cq || !ep->rx_cq)
		return -FI_EOPBADSTATE;
	pthread_mutex_lock(&lock);
	for (other = endpoints; other && strcmp(other->name, ep->name); other = other->next)
		;
	if (!other) {
		ep->next = endpoints;
		endpoints = ep;
	}
	pthread_mutex_unlock(&lock);
	return other ? -FI_EADDRINUSE : 0;
}

/* Messages that the owner does not have yet are lost. */
static int ep_close(struct fid *fid)
{
	struct endpoint **ep = &endpoints;
	struct message **at = &messages;
	pthread_mutex_lock(&lock);
	while (*ep && &(*ep)->ep.fid != fid)
		ep = &(*ep)->next;
	if (*ep)
		*ep = (*ep)->next;
	while (*at) {
		struct message *msg = *at;
		if (&msg->to->ep.fid != fid) {
			at = &msg->next;
		} else {
			*at = msg->next;
			free(msg);
		}
	}
	messages_end = at;
	pthread_mutex_unlock(&lock);
	free(fid);
	return 0;
}
static struct fi_ops ep_fid_ops = {
	.size = sizeof ep_fid_ops, .close = ep_close, .bind = ep_bind, .control = ep_control,
};

static int ep_setname(struct fid *fid, void *addr, size_t len)
{
	struct endpoint *ep = (struct endpoint *) fid;
	if (strnlen(addr, len) >= sizeof ep->name)
		return -FI_EINVAL;
	snprintf(ep->name, sizeof ep->name, "%.*s", (int) len, (const char *) addr);
	return 0;
}

static int ep_getname(struct fid *fid, void *addr, size_t *len)
{
	struct endpoint *ep = (struct endpoint *) fid;
	size_t room = *len;
	*len = strlen(ep->name) + 1;
	if (room < *len)
		return -FI_ETOOSMALL;
	memcpy(addr, ep->name, *len);
	return 0;
}
static struct fi_ops_cm cm_ops = {
	.size = sizeof cm_ops, .setname = ep_setname, .getname = ep_getname,
};
static struct fi_ops_ep ep_ops = { .size = sizeof ep_ops };

static int endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **fid,
		    void *context)
{
	struct endpoint *ep = calloc(1, sizeof *ep);
	if (!ep)
		return -FI_ENOMEM;
	ep->ep = (struct fid_ep) {
		.fid = { FI_CLASS_EP, context, &ep_fid_ops }, .ops = &ep_ops, .cm = &cm_ops,
		.msg = &msg_ops, .tagged = &tagged_ops,
	};
	ep->domain = domain;
	*fid = &ep->ep;
	return 0;
}

/* ---- Domains and discovery ---------------------------------------------------------------- */

static struct fi_ops_av av_ops = { .size = sizeof av_ops, .insert = av_insert };

static int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **fid,
		   void *context)
{
	struct av *av = calloc(1, sizeof *av);
	if (!av)
		return -FI_ENOMEM;
	av->av = (struct fid_av) { { FI_CLASS_AV, context, &object_ops }, &av_ops };
	*fid = &av->av;
	return 0;
}
static struct fi_ops_domain domain_ops = {
	.size = sizeof domain_ops, .av_open = av_open, .cq_open = cq_open, .cntr_open = cntr_open,
	.srx_ctx = srx_context, .endpoint = endpoint,
};

static int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
		       void *context)
{
	*domain = calloc(1, sizeof **domain);
	if (!*domain)
		return -FI_ENOMEM;
	**domain = (struct fid_domain) { { FI_CLASS_DOMAIN, context, &object_ops }, &domain_ops, NULL };
	return 0;
}
static struct fi_ops_fabric fabric_ops = { .size = sizeof fabric_ops, .domain = domain_open };

static int fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	*fabric = calloc(1, sizeof **fabric);
	if (!*fabric)
		return -FI_ENOMEM;
	**fabric = (struct fid_fabric) {
		{ FI_CLASS_FABRIC, context, &object_ops }, &fabric_ops, attr->api_version,
	};
	return 0;
}

static struct fi_tx_attr tx_attr = {
	.caps = CAPS & ~FI_RECV, .op_flags = FI_COMPLETION, .msg_order = FI_ORDER_SAS,
	.inject_size = SIZE_MAX, .size = 1024, .iov_limit = 1,
};
static struct fi_rx_attr rx_attr = {
	.caps = CAPS & ~FI_SEND, .op_flags = FI_COMPLETION, .msg_order = FI_ORDER_SAS, .size = 1024,
	.iov_limit = 4,
};
static struct fi_ep_attr ep_attr = {
	.type = FI_EP_RDM, .max_msg_size = SIZE_MAX, .tx_ctx_cnt = 1, .rx_ctx_cnt = 1,
};
static struct fi_domain_attr domain_attr = {
	.name = "template", .threading = FI_THREAD_DOMAIN, .control_progress = FI_PROGRESS_MANUAL,
	.data_progress = FI_PROGRESS_MANUAL, .resource_mgmt = FI_RM_ENABLED, .av_type = FI_AV_TABLE,
	.cq_data_size = 8, .cq_cnt = 65536, .ep_cnt = 65536, .cntr_cnt = 65536, .tx_ctx_cnt = 65536,
	.rx_ctx_cnt = 65536, .max_ep_tx_ctx = 1, .max_ep_rx_ctx = 1, .max_ep_srx_ctx = 65536,
	.caps = DOMAIN_CAPS,
};
static struct fi_fabric_attr fabric_attr = { .name = "template" };
static struct fi_info offer = {
	.caps = CAPS | DOMAIN_CAPS, .addr_format = FI_ADDR_STR, .tx_attr = &tx_attr,
	.rx_attr = &rx_attr, .ep_attr = &ep_attr, .domain_attr = &domain_attr,
	.fabric_attr = &fabric_attr,
};

/* Owners alone see it: their hints have FI_PEER. */
static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		   const struct fi_info *hints, struct fi_info **info)
{
	uint64_t caps = hints ? hints->caps : 0;
	if (hints && hints->domain_attr)
		caps |= hints->domain_attr->caps;
	if (!(caps & FI_PEER) || caps & ~offer.caps)
		return -FI_ENODATA;
	if (hints->ep_attr && hints->ep_attr->type != FI_EP_UNSPEC && hints->ep_attr->type != FI_EP_RDM)
		return -FI_ENODATA;
	if (hints->addr_format != FI_FORMAT_UNSPEC && hints->addr_format != FI_ADDR_STR)
		return -FI_ENODATA;
	*info = fi_dupinfo(&offer);
	return *info ? 0 : -FI_ENOMEM;
}

static void cleanup(void)
{
}
static struct fi_provider provider = {
	.version = FI_VERSION(1, 0), .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
	.name = "template", .getinfo = getinfo, .fabric = fabric_open, .cleanup = cleanup,
};
FI_EXT_INI
{
	return &provider;
}
