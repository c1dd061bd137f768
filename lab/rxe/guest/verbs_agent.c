/* The verbs of a guest, one call a line, over TCP: what the conformance body drives as its peer.
 *
 *   verbs_agent PORT DEVICE
 *
 * Every connection is a process of its own with a context, a protection domain and all that is made
 * in it; what is left when the connection ends goes with the process. A request is a line of
 * words, its answer one line: "ok" and results, or "err" and why. Objects are named by small
 * numbers that the agent gives out; everything else is decimal, keys and GIDs are hexadecimal.
 *
 *   gid GID                                       the port's own address
 *   mr LEN ACCESS                                 -> ID ADDR RKEY
 *   unmr MR
 *   peek MR OFFSET LEN                            -> HEX
 *   poke MR OFFSET HEX
 *   mw MR QP OFFSET LEN ACCESS WR_ID              -> RKEY; binds a type 2 window
 *   unmw RKEY                                     frees it
 *   qp TYPE SEND_WR RECV_WR INLINE                -> ID QPN; its own two completion queues
 *   unqp QP
 *   init QP ACCESS QKEY
 *   rtr QP GID MTU DEST_QPN PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER
 *   rts QP PSN TIMEOUT RETRY RNR_RETRY MAX_RD_ATOMIC
 *   fail QP                                       to the error state
 *   state QP                                      -> STATE
 *   recv QP WR_ID MR OFFSET LEN
 *   recvs QP WR_ID COUNT                          as many receives without memory
 *   send QP WR_ID OPCODE FLAGS MR OFFSET LEN REMOTE_ADDR RKEY IMM COMPARE SWAP GID QPN QKEY
 *   poll QP                                       -> WR_ID,STATUS,OPCODE,LEN,FLAGS,IMM,SRC_QPN …
 *   arm QP SOLICITED_ONLY                         its receive queue
 *   notified QP                                   -> 0 or 1
 *   events                                        -> TYPE,QPN …
 *
 * Types, opcodes, flags, states and statuses are the numbers of infiniband/verbs.h.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <infiniband/verbs.h>

enum { MAX_OBJECTS = 4096, MAX_WINDOWS = 256, MAX_POLL = 64, CQ_DEPTH = 1024, PORT = 1 };

struct region {
    struct ibv_mr *mr;
    uint8_t *bytes;
    size_t len;
    uint32_t lkey; /* stays known when the region is gone, to be used wrongly */
};

struct queue_pair {
    struct ibv_qp *qp;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_comp_channel *channel;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static int gid_index;
static struct region regions[MAX_OBJECTS];
static struct queue_pair qps[MAX_OBJECTS];
static struct ibv_mw *windows[MAX_WINDOWS];
static unsigned region_count, qp_count;
static FILE *out;

static void ok(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("ok ", out);
    vfprintf(out, format, args);
    fputc('\n', out);
    va_end(args);
}

static void fail(const char *what, int error)
{
    fprintf(out, "err %s: %s\n", what, strerror(error));
}

static void answer(const char *what, int error)
{
    if (error)
        fail(what, error > 0 ? error : errno);
    else
        ok("");
}

static void parse_gid(const char *hex, union ibv_gid *gid)
{
    for (int i = 0; i < 16; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        gid->raw[i] = byte;
    }
}

static void do_gid(const char *hex)
{
    union ibv_gid want, have;
    parse_gid(hex, &want);
    for (gid_index = 0; gid_index < 64; gid_index++) {
        if (ibv_query_gid(context, PORT, gid_index, &have) == 0 && !memcmp(&want, &have, sizeof have)) {
            ok("%d", gid_index);
            return;
        }
    }
    fail("no such gid", ENODEV);
}

static void do_mr(size_t len, int access)
{
    struct region *r = &regions[region_count];
    r->len = len;
    r->bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->mr = ibv_reg_mr(pd, r->bytes, len, access);
    if (!r->mr) {
        fail("ibv_reg_mr", errno);
        return;
    }
    r->lkey = r->mr->lkey;
    ok("%u %" PRIuPTR " %x", region_count++, (uintptr_t)r->bytes, r->mr->rkey);
}

static void do_peek(const struct region *r, size_t offset, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    fputs("ok ", out);
    for (size_t i = 0; i < len && offset + i < r->len; i++) {
        fputc(digits[r->bytes[offset + i] >> 4], out);
        fputc(digits[r->bytes[offset + i] & 15], out);
    }
    fputc('\n', out);
}

static unsigned nibble(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : c - 'a' + 10;
}

static void do_poke(struct region *r, size_t offset, const char *hex)
{
    for (size_t i = offset; i < r->len && isxdigit((unsigned char)hex[0]); i++, hex += 2)
        r->bytes[i] = nibble(hex[0]) << 4 | nibble(hex[1]);
    ok("");
}

/* The place of the window with this key, or of none if there is no such window. */
static struct ibv_mw **window(uint32_t rkey)
{
    for (int i = 0; i < MAX_WINDOWS; i++) {
        if (rkey ? windows[i] && windows[i]->rkey >> 8 == rkey >> 8 : !windows[i])
            return &windows[i];
    }
    return NULL;
}

static void do_unmw(uint32_t rkey)
{
    struct ibv_mw **place = window(rkey);
    int error = rkey && place ? ibv_dealloc_mw(*place) : ENOENT;
    if (!error)
        *place = NULL;
    answer("ibv_dealloc_mw", error);
}

static void do_mw(struct region *r, struct queue_pair *q, size_t offset, size_t len, int access,
                  uint64_t wr_id)
{
    struct ibv_mw **place = window(0);
    struct ibv_mw *mw = place ? ibv_alloc_mw(pd, IBV_MW_TYPE_2) : NULL;
    if (!mw) {
        fail("ibv_alloc_mw", place ? errno : ENOSPC);
        return;
    }
    *place = mw;
    struct ibv_send_wr *bad, wr = {
        .wr_id = wr_id,
        .opcode = IBV_WR_BIND_MW,
        .send_flags = IBV_SEND_SIGNALED,
        .bind_mw = {
            .mw = mw,
            .rkey = ibv_inc_rkey(mw->rkey),
            .bind_info = {
                .mr = r->mr,
                .addr = (uintptr_t)r->bytes + offset,
                .length = len,
                .mw_access_flags = access,
            },
        },
    };
    int error = ibv_post_send(q->qp, &wr, &bad);
    if (error)
        fail("bind", error);
    else
        ok("%x", wr.bind_mw.rkey);
}

static void do_qp(int type, unsigned send_wr, unsigned recv_wr, unsigned inline_bytes)
{
    struct queue_pair *q = &qps[qp_count];
    q->channel = ibv_create_comp_channel(context);
    q->send_cq = ibv_create_cq(context, CQ_DEPTH, NULL, NULL, 0);
    q->recv_cq = ibv_create_cq(context, CQ_DEPTH, NULL, q->channel, 0);
    if (!q->channel || !q->send_cq || !q->recv_cq) {
        fail("ibv_create_cq", errno);
        return;
    }
    fcntl(q->channel->fd, F_SETFL, O_NONBLOCK);
    struct ibv_qp_init_attr attr = {
        .send_cq = q->send_cq,
        .recv_cq = q->recv_cq,
        .qp_type = type,
        .cap = {
            .max_send_wr = send_wr,
            .max_recv_wr = recv_wr,
            .max_send_sge = 1,
            .max_recv_sge = 1,
            .max_inline_data = inline_bytes,
        },
    };
    q->qp = ibv_create_qp(pd, &attr);
    if (!q->qp) {
        fail("ibv_create_qp", errno);
        return;
    }
    ok("%u %u", qp_count++, q->qp->qp_num);
}

static void do_unqp(struct queue_pair *q)
{
    int error = ibv_destroy_qp(q->qp);
    if (!error)
        error = ibv_destroy_cq(q->send_cq);
    if (!error)
        error = ibv_destroy_cq(q->recv_cq);
    if (!error)
        error = ibv_destroy_comp_channel(q->channel);
    answer("destroy", error);
}

static void do_init(struct queue_pair *q, int access, uint32_t qkey)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = access, .qkey = qkey
    };
    int last = q->qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    answer("init", ibv_modify_qp(q->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | last));
}

static struct ibv_ah_attr address(const char *gid)
{
    struct ibv_ah_attr ah = {
        .is_global = 1, .port_num = PORT, .grh = { .sgid_index = gid_index, .hop_limit = 64 }
    };
    parse_gid(gid, &ah.grh.dgid);
    return ah;
}

static void do_rtr(struct queue_pair *q, const char *gid, int mtu, uint32_t dest, uint32_t psn, int reads,
                   int rnr_timer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = dest,
        .rq_psn = psn,
        .max_dest_rd_atomic = reads,
        .min_rnr_timer = rnr_timer,
        .ah_attr = address(gid),
    };
    int mask = IBV_QP_STATE;
    if (q->qp->qp_type != IBV_QPT_UD)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (q->qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    answer("rtr", ibv_modify_qp(q->qp, &attr, mask));
}

static void do_rts(struct queue_pair *q, uint32_t psn, int timeout, int retry, int rnr_retry, int reads)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = psn,
        .timeout = timeout,
        .retry_cnt = retry,
        .rnr_retry = rnr_retry,
        .max_rd_atomic = reads,
    };
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (q->qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    answer("rts", ibv_modify_qp(q->qp, &attr, mask));
}

static void do_fail(struct queue_pair *q)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    answer("fail", ibv_modify_qp(q->qp, &attr, IBV_QP_STATE));
}

static void do_state(struct queue_pair *q)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    int error = ibv_query_qp(q->qp, &attr, IBV_QP_STATE, &init);
    if (error)
        fail("ibv_query_qp", error);
    else
        ok("%d", attr.qp_state);
}

static struct ibv_sge piece(const struct region *r, size_t offset, uint32_t len)
{
    return (struct ibv_sge) {
        .addr = (uintptr_t)r->bytes + offset, .length = len, .lkey = r->lkey
    };
}

static void do_recv(struct queue_pair *q, uint64_t wr_id, const struct region *r, size_t offset, uint32_t len)
{
    struct ibv_sge sge = piece(r, offset, len);
    struct ibv_recv_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = len > 0 };
    answer("ibv_post_recv", ibv_post_recv(q->qp, &wr, &bad));
}

static void do_recvs(struct queue_pair *q, uint64_t wr_id, unsigned count)
{
    struct ibv_recv_wr *bad, wr = { .wr_id = wr_id };
    int error = 0;
    while (count-- > 0 && !error)
        error = ibv_post_recv(q->qp, &wr, &bad);
    answer("ibv_post_recv", error);
}

struct send_args {
    struct queue_pair *q;
    struct region *r;
    uint64_t wr_id, offset, remote_addr, compare, swap;
    uint32_t len, rkey, imm, qpn, qkey;
    int opcode, flags;
    const char *gid;
};

static void do_send(const struct send_args *a)
{
    struct ibv_sge sge = piece(a->r, a->offset, a->len);
    struct ibv_send_wr *bad, wr = {
        .wr_id = a->wr_id,
        .sg_list = &sge,
        .num_sge = a->len > 0,
        .opcode = a->opcode,
        .send_flags = a->flags,
    };
    if (a->opcode == IBV_WR_SEND_WITH_INV || a->opcode == IBV_WR_LOCAL_INV)
        wr.invalidate_rkey = a->imm;
    else
        wr.imm_data = htonl(a->imm);
    struct ibv_ah *ah = NULL;
    if (a->q->qp->qp_type == IBV_QPT_UD) {
        struct ibv_ah_attr attr = address(a->gid);
        ah = ibv_create_ah(pd, &attr); /* kept: it must outlive the request */
        if (!ah) {
            fail("ibv_create_ah", errno);
            return;
        }
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = a->qpn;
        wr.wr.ud.remote_qkey = a->qkey;
    } else if (a->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || a->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = a->remote_addr;
        wr.wr.atomic.rkey = a->rkey;
        wr.wr.atomic.compare_add = a->compare;
        wr.wr.atomic.swap = a->swap;
    } else {
        wr.wr.rdma.remote_addr = a->remote_addr;
        wr.wr.rdma.rkey = a->rkey;
    }
    answer("ibv_post_send", ibv_post_send(a->q->qp, &wr, &bad));
}

static void report(struct ibv_cq *cq)
{
    struct ibv_wc wc[MAX_POLL];
    int count = ibv_poll_cq(cq, MAX_POLL, wc);
    for (int i = 0; i < count; i++) {
        uint32_t imm = wc[i].wc_flags & IBV_WC_WITH_INV ? wc[i].invalidated_rkey : ntohl(wc[i].imm_data);
        fprintf(out, " %" PRIu64 ",%d,%d,%u,%u,%u,%u", wc[i].wr_id, wc[i].status, wc[i].opcode,
                wc[i].byte_len, wc[i].wc_flags, imm, wc[i].src_qp);
    }
}

static void do_poll(struct queue_pair *q)
{
    fputs("ok", out);
    report(q->send_cq);
    report(q->recv_cq);
    fputc('\n', out);
}

static void do_notified(struct queue_pair *q)
{
    struct ibv_cq *cq;
    void *ignored;
    int count = 0;
    while (ibv_get_cq_event(q->channel, &cq, &ignored) == 0) {
        ibv_ack_cq_events(cq, 1);
        count++;
    }
    ok("%d", count > 0);
}

static int names_qp(enum ibv_event_type type)
{
    return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR ||
           type == IBV_EVENT_COMM_EST || type == IBV_EVENT_SQ_DRAINED || type == IBV_EVENT_QP_LAST_WQE_REACHED;
}

static void do_events(void)
{
    struct ibv_async_event event;
    fputs("ok", out);
    while (ibv_get_async_event(context, &event) == 0) {
        unsigned qpn = names_qp(event.event_type) ? event.element.qp->qp_num : 0;
        fprintf(out, " %d,%u", event.event_type, qpn);
        ibv_ack_async_event(&event);
    }
    fputc('\n', out);
}

/* Cuts the next word off the line. */
static char *cursor;

static char *word(void)
{
    char *token = strsep(&cursor, " \n");
    return token ? token : "";
}

static uint64_t number(void) { return strtoull(word(), NULL, 10); }
static uint64_t hex(void) { return strtoull(word(), NULL, 16); }
static struct region *region(void) { return &regions[number() % MAX_OBJECTS]; }
static struct queue_pair *queue(void) { return &qps[number() % MAX_OBJECTS]; }

static void dispatch(const char *verb)
{
    if (!strcmp(verb, "gid")) {
        do_gid(word());
    } else if (!strcmp(verb, "mr")) {
        size_t len = number();
        do_mr(len, number());
    } else if (!strcmp(verb, "unmr")) {
        struct region *r = region();
        answer("ibv_dereg_mr", ibv_dereg_mr(r->mr));
    } else if (!strcmp(verb, "peek")) {
        struct region *r = region();
        size_t offset = number();
        do_peek(r, offset, number());
    } else if (!strcmp(verb, "poke")) {
        struct region *r = region();
        size_t offset = number();
        do_poke(r, offset, word());
    } else if (!strcmp(verb, "mw")) {
        struct region *r = region();
        struct queue_pair *q = queue();
        size_t offset = number(), len = number();
        int access = number();
        do_mw(r, q, offset, len, access, number());
    } else if (!strcmp(verb, "unmw")) {
        do_unmw(hex());
    } else if (!strcmp(verb, "qp")) {
        int type = number();
        unsigned send_wr = number(), recv_wr = number();
        do_qp(type, send_wr, recv_wr, number());
    } else if (!strcmp(verb, "unqp")) {
        do_unqp(queue());
    } else if (!strcmp(verb, "init")) {
        struct queue_pair *q = queue();
        int access = number();
        do_init(q, access, number());
    } else if (!strcmp(verb, "rtr")) {
        struct queue_pair *q = queue();
        const char *gid = word();
        int mtu = number();
        uint32_t dest = number(), psn = number();
        int reads = number();
        do_rtr(q, gid, mtu, dest, psn, reads, number());
    } else if (!strcmp(verb, "rts")) {
        struct queue_pair *q = queue();
        uint32_t psn = number();
        int timeout = number(), retry = number(), rnr_retry = number();
        do_rts(q, psn, timeout, retry, rnr_retry, number());
    } else if (!strcmp(verb, "fail")) {
        do_fail(queue());
    } else if (!strcmp(verb, "state")) {
        do_state(queue());
    } else if (!strcmp(verb, "recv")) {
        struct queue_pair *q = queue();
        uint64_t wr_id = number();
        struct region *r = region();
        size_t offset = number();
        do_recv(q, wr_id, r, offset, number());
    } else if (!strcmp(verb, "recvs")) {
        struct queue_pair *q = queue();
        uint64_t wr_id = number();
        do_recvs(q, wr_id, number());
    } else if (!strcmp(verb, "send")) {
        struct send_args a = { .q = queue() };
        a.wr_id = number();
        a.opcode = number();
        a.flags = number();
        a.r = region();
        a.offset = number();
        a.len = number();
        a.remote_addr = number();
        a.rkey = hex();
        a.imm = number();
        a.compare = number();
        a.swap = number();
        a.gid = word();
        a.qpn = number();
        a.qkey = number();
        do_send(&a);
    } else if (!strcmp(verb, "poll")) {
        do_poll(queue());
    } else if (!strcmp(verb, "arm")) {
        struct queue_pair *q = queue();
        answer("ibv_req_notify_cq", ibv_req_notify_cq(q->recv_cq, number()));
    } else if (!strcmp(verb, "notified")) {
        do_notified(queue());
    } else if (!strcmp(verb, "events")) {
        do_events();
    } else {
        fail("no such verb", EINVAL);
    }
}

static struct ibv_context *open_device(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    for (int i = 0; list && list[i]; i++) {
        if (!strcmp(ibv_get_device_name(list[i]), name))
            return ibv_open_device(list[i]);
    }
    return NULL;
}

static void serve(int fd, const char *device)
{
    FILE *in = fdopen(dup(fd), "r");
    out = fdopen(fd, "w");
    context = open_device(device);
    pd = context ? ibv_alloc_pd(context) : NULL;
    if (!pd) {
        fail(device, errno ? errno : ENODEV);
        fflush(out);
        return;
    }
    fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, in) > 0) {
        cursor = line;
        if (region_count == MAX_OBJECTS || qp_count == MAX_OBJECTS)
            fail("too many objects", ENOSPC);
        else
            dispatch(word());
        fflush(out);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: verbs_agent PORT DEVICE\n");
        return 2;
    }
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(atoi(argv[1])) };
    int on = 1, listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&any, sizeof any) || listen(listener, 16)) {
        perror("verbs_agent");
        return 1;
    }
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            continue;
        if (fork() == 0) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            serve(fd, argv[2]);
            _exit(0);
        }
        close(fd);
    }
}
