/* Moves numbered messages over one reliable connection for a while, and looks at every byte and every
 * immediate: each message must arrive once, whole and in order, whatever happens to the NICs meanwhile.
 *
 *   verify write|send|read|atomic SECONDS PORT [HOST]
 *
 * Without a host it waits for its peer. It ends with 0 if all was right, and says what was not.
 * VERIFY_DEVICE and VERIFY_GID name the device and the place of its GID; otherwise both are the first.
 * VERIFY_TIMEOUT is the queue pair's timeout as the verbs count it, otherwise 13.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, SIZE = 65536, WORDS = SIZE / 8, CREDIT_EVERY = 8, ATOMICS = 16 };
enum kind { WRITE, SEND, READ, ATOMIC };

struct peer {
	uint64_t addr;
	uint32_t rkey, qpn, psn;
	union ibv_gid gid;
};

static enum kind kind;
static int is_client;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint64_t *memory;
static struct peer peer;

#define CHECK(what, ...) do { if (!(what)) { fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); exit(1); } } while (0)

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t *slot(uint64_t number)
{
	return memory + number % SLOTS * WORDS;
}

static uint64_t word(uint64_t number, uint64_t i)
{
	return number * 0x9e3779b97f4a7c15u + i;
}

static void fill(uint64_t number)
{
	uint64_t *at = slot(number);
	for (uint64_t i = 0; i < WORDS; i++)
		at[i] = word(number, i);
}

static void check(uint64_t number, uint64_t pattern)
{
	volatile uint64_t *at = slot(number);
	for (uint64_t i = 0; i < WORDS; i++)
		CHECK(at[i] == word(pattern, i), "message %" PRIu64 ": word %" PRIu64 " is wrong", number, i);
}

static int meet(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM,
				  .ai_flags = host ? 0 : AI_PASSIVE }, *found;
	CHECK(!getaddrinfo(host, port, &hints, &found), "no such host");
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (!host) {
		CHECK(!bind(s, found->ai_addr, found->ai_addrlen) && !listen(s, 1), "cannot listen: %m");
		int connection = accept(s, NULL, NULL);
		CHECK(connection >= 0, "accept: %m");
		close(s);
		return connection;
	}
	CHECK(!connect(s, found->ai_addr, found->ai_addrlen), "cannot connect: %m");
	return s;
}

static void swap(int s, const void *ours, void *theirs, size_t len)
{
	CHECK(write(s, ours, len) == (ssize_t)len, "the peer went away");
	for (size_t got = 0; got < len;) {
		ssize_t n = read(s, (char *)theirs + got, len - got);
		CHECK(n > 0, "the peer went away");
		got += n;
	}
}

static void post_recv(uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)slot(wr_id), SIZE, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id }, *bad;
	if (kind == SEND && !is_client) {
		wr.sg_list = &sge;
		wr.num_sge = 1;
	}
	CHECK(!ibv_post_recv(qp, &wr, &bad), "post_recv: %m");
}

static void post(struct ibv_send_wr *wr, uint64_t number, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)slot(number), len, mr->lkey };
	struct ibv_send_wr *bad;
	wr->wr_id = number;
	wr->send_flags = IBV_SEND_SIGNALED;
	if (len) {
		wr->sg_list = &sge;
		wr->num_sge = 1;
	}
	int error = ibv_post_send(qp, wr, &bad);
	CHECK(!error, "post_send: %s", strerror(error));
}

static void post_message(uint64_t number)
{
	struct ibv_send_wr wr = { .imm_data = htonl((uint32_t)number) };
	uint64_t remote = peer.addr + number % SLOTS * SIZE;
	switch (kind) {
	case WRITE:
		fill(number);
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = peer.rkey;
		return post(&wr, number, SIZE);
	case SEND:
		fill(number);
		wr.opcode = IBV_WR_SEND_WITH_IMM;
		return post(&wr, number, SIZE);
	case READ:
		memset(slot(number), 0xee, SIZE);
		wr.opcode = IBV_WR_RDMA_READ;
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = peer.rkey;
		return post(&wr, number, SIZE);
	case ATOMIC:
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.remote_addr = peer.addr;
		wr.wr.atomic.rkey = peer.rkey;
		wr.wr.atomic.compare_add = 1;
		return post(&wr, number, 8);
	}
}

static int poll(struct ibv_wc *wc)
{
	int n = ibv_poll_cq(cq, 1, wc);
	CHECK(n >= 0, "poll_cq: %d", n);
	CHECK(!n || wc->status == IBV_WC_SUCCESS, "request %" PRIu64 ": %s", wc->wr_id, ibv_wc_status_str(wc->status));
	return n;
}

/* Sends for a while; returns how many messages there were. */
static uint64_t client(double seconds)
{
	uint64_t posted = 0, done = 0, credit = 0, window = kind == ATOMIC || kind == READ ? ATOMICS : SLOTS / 2;
	double end = now() + seconds, silent = now() + 30;
	while (now() < end || done < posted) {
		struct ibv_wc wc;
		CHECK(now() < silent, "nothing has happened for 30 s; %" PRIu64 " of %" PRIu64 " done", done, posted);
		int free = posted - done < window && (kind >= READ || posted - credit < SLOTS / 2);
		if (now() < end && free)
			post_message(posted++);
		if (!poll(&wc))
			continue;
		silent = now() + 30;
		if (wc.opcode & IBV_WC_RECV) {
			uint32_t verified = ntohl(wc.imm_data);
			CHECK(verified == credit + CREDIT_EVERY, "credit %u after %" PRIu64, verified, credit);
			credit = verified;
			post_recv(wc.wr_id);
			continue;
		}
		CHECK(wc.wr_id == done, "request %" PRIu64 " completed, not %" PRIu64, wc.wr_id, done);
		if (kind == READ)
			check(done, done % SLOTS);
		if (kind == ATOMIC)
			CHECK(*slot(done) == done, "atomic %" PRIu64 " found %" PRIu64, done, *slot(done));
		done++;
	}
	return posted;
}

/* Looks at what arrives until `*total` has, which the peer says when it knows. */
static void server(int s, uint64_t *total)
{
	uint64_t next = 0, said = 0, none = 0;
	*total = UINT64_MAX;
	while (next < *total || *total == UINT64_MAX) {
		struct ibv_wc wc;
		if (*total == UINT64_MAX && recv(s, total, sizeof *total, MSG_DONTWAIT | MSG_PEEK) == sizeof *total)
			CHECK(read(s, total, sizeof *total) == sizeof *total, "the peer went away");
		if (kind >= READ) {
			usleep(1000);
			if (*total != UINT64_MAX)
				break;
			continue;
		}
		if (!poll(&wc) || !(wc.opcode & IBV_WC_RECV))
			continue;
		CHECK(ntohl(wc.imm_data) == (uint32_t)next, "immediate %u, expected %" PRIu64, ntohl(wc.imm_data), next);
		CHECK(wc.byte_len == SIZE, "%u bytes", wc.byte_len);
		CHECK(kind == WRITE || wc.wr_id % SLOTS == next % SLOTS, "receive %" PRIu64 " taken for %" PRIu64, wc.wr_id, next);
		check(next, next);
		post_recv(next);
		next++;
		if (next == said + CREDIT_EVERY) {
			struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl((uint32_t)next) };
			said = next;
			post(&wr, next, 0);
		}
	}
	if (kind == ATOMIC)
		CHECK(*slot(0) == *total, "the counter is %" PRIu64 ", not %" PRIu64, *slot(0), *total);
	CHECK(write(s, &none, sizeof none) == sizeof none, "the peer went away");
}

static void set_up(int s)
{
	const char *name = getenv("VERIFY_DEVICE"), *place = getenv("VERIFY_GID");
	int gid_index = place ? atoi(place) : 0;
	struct ibv_device **list = ibv_get_device_list(NULL);
	while (name && list && *list && strcmp(ibv_get_device_name(*list), name))
		list++;
	CHECK(list && *list, "no device");
	struct ibv_context *context = ibv_open_device(*list);
	CHECK(context, "cannot open the device: %m");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 512, NULL, NULL, 0);
	memory = aligned_alloc(4096, SLOTS * SIZE);
	memset(memory, 0, SLOTS * SIZE);
	mr = ibv_reg_mr(pd, memory, SLOTS * SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 1, .max_recv_sge = 1 } };
	qp = ibv_create_qp(pd, &init);
	CHECK(pd && cq && mr && qp, "cannot make the objects: %m");
	for (uint64_t i = 0; kind == READ && !is_client && i < SLOTS; i++)
		fill(i);

	struct peer us = { (uintptr_t)memory, mr->rkey, qp->qp_num, getpid() & 0xffffff };
	CHECK(!ibv_query_gid(context, 1, gid_index, &us.gid), "no GID");
	const char *timeout = getenv("VERIFY_TIMEOUT");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags =
		IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT: %m");
	for (uint64_t i = 0; i < SLOTS; i++)
		post_recv(i);
	swap(s, &us, &peer, sizeof us);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn,
		.rq_psn = peer.psn, .max_dest_rd_atomic = 16, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .sgid_index = gid_index, .hop_limit = 64 } } };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR: %m");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = us.psn, .timeout = timeout ? atoi(timeout) : 13,
		.retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16 };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), "RTS: %m");
	char ours = 1, theirs;
	swap(s, &ours, &theirs, 1);
}

int main(int argc, char **argv)
{
	static const char *const kinds[] = { "write", "send", "read", "atomic" };
	CHECK(argc == 4 || argc == 5, "usage: verify write|send|read|atomic SECONDS PORT [HOST]");
	while (kind <= ATOMIC && strcmp(argv[1], kinds[kind]))
		kind++;
	CHECK(kind <= ATOMIC, "no such kind: %s", argv[1]);
	is_client = argc == 5;
	int s = meet(argv[4], argv[3]);
	set_up(s);
	uint64_t total, none = 0;
	if (is_client) {
		total = client(atof(argv[2]));
		swap(s, &total, &none, sizeof total);
	} else {
		server(s, &total);
	}
	printf("%" PRIu64 " messages, each once, whole and in order\n", total);
	char ours = 1, theirs;
	swap(s, &ours, &theirs, 1);
	return 0;
}
