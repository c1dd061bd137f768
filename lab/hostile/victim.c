/* A verbs program that does to itself what programs do, with two devices of its own and a connection
 * between them. Numbered messages are written, and every byte is looked at, before and after.
 *
 *   victim plain|fork|exec|close|signalfd|exit
 *
 * It ends with 0 if all was right, and says what was not.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 65536, MESSAGES = 200, SECONDS = 10 };

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	union ibv_gid gid;
	unsigned char *memory;
};

static struct end a, b;

#define CHECK(what, ...) do { if (!(what)) { fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); _exit(1); } } while (0)

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void open_end(struct end *e, struct ibv_device *device)
{
	e->ctx = ibv_open_device(device);
	CHECK(e->ctx, "ibv_open_device: %s", strerror(errno));
	e->pd = ibv_alloc_pd(e->ctx);
	e->cq = ibv_create_cq(e->ctx, 64, NULL, NULL, 0);
	e->memory = aligned_alloc(65536, SIZE);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	e->mr = ibv_reg_mr(e->pd, e->memory, SIZE, access);
	CHECK(e->pd && e->cq && e->mr, "objects of a device: %s", strerror(errno));
	struct ibv_qp_init_attr init = {
		.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	e->qp = ibv_create_qp(e->pd, &init);
	CHECK(e->qp, "ibv_create_qp: %s", strerror(errno));
	CHECK(!ibv_query_gid(e->ctx, 1, 0, &e->gid), "ibv_query_gid");
}

static void connect_end(struct end *e, struct end *to)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	int code = ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = to->qp->qp_num, .rq_psn = 7, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = to->gid, .hop_limit = 64 } } };
	code |= ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7,
		.rnr_retry = 7, .max_rd_atomic = 1 };
	code |= ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
	CHECK(!code, "ibv_modify_qp: %s", strerror(code));
}

static void open_both(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count >= 2, "two devices are needed");
	open_end(&a, list[0]);
	open_end(&b, list[1]);
	connect_end(&a, &b);
	connect_end(&b, &a);
}

/* Writes one message; what the verbs said of it: 0, or an error. It gives up after some seconds. */
static int write_one(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)a.memory, .length = SIZE, .lkey = a.mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge,
		.num_sge = 1, .wr.rdma = { .remote_addr = (uintptr_t)b.memory, .rkey = b.mr->rkey } }, *bad;
	int code = ibv_post_send(a.qp, &wr, &bad);
	if (code)
		return code;
	for (double start = now(); now() - start < SECONDS;) {
		struct ibv_wc wc;
		int got = ibv_poll_cq(a.cq, 1, &wc);
		if (got)
			return got < 0 ? -got : (int)wc.status;
	}
	CHECK(0, "no completion within %d s", SECONDS);
	return -1;
}

static void transfer(int first)
{
	for (int n = first; n < first + MESSAGES; n++) {
		for (int i = 0; i < SIZE; i++)
			a.memory[i] = (unsigned char)(n * 31 + i);
		int code = write_one();
		CHECK(!code, "message %d: %d", n, code);
		CHECK(!memcmp(a.memory, b.memory, SIZE), "message %d is not what was sent", n);
	}
}

static void forks(char *self)
{
	(void)self;
	for (int i = 0; i < 12; i++) {
		pid_t child = fork();
		if (child == 0) {
			if (i % 3 == 0)
				exit(0);
			if (i % 3 == 1)
				_exit(0);
			execl("/bin/true", "true", NULL);
			_exit(1);
		}
		transfer(i * MESSAGES);
		int status = -1;
		for (double start = now(); waitpid(child, &status, WNOHANG) == 0;) {
			CHECK(now() - start < SECONDS, "child %d does not end", i);
			usleep(1000);
		}
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d: status %x", i, status);
	}
}

static void execs(char *self)
{
	execl(self, self, "plain", NULL);
	CHECK(0, "exec: %s", strerror(errno));
}

/* As a daemon does. From then on every verb fails, but comes back. */
static void closes(char *self)
{
	(void)self;
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	for (int n = 0; n < 5; n++)
		CHECK(write_one(), "a message went through closed descriptors");
}

static void reads_signals(char *self)
{
	(void)self;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	int fd = signalfd(-1, &set, 0);
	for (int i = 0; i < 50; i++) {
		kill(getpid(), SIGTERM);
		struct signalfd_siginfo info;
		CHECK(read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGTERM, "signalfd");
	}
}

static void leave(int signal)
{
	(void)signal;
	exit(0);
}

static void exits(char *self)
{
	(void)self;
	signal(SIGALRM, leave);
	ualarm(30000, 0);
	for (;;)
		transfer(0);
}

int main(int argc, char **argv)
{
	struct { const char *name; void (*act)(char *); int goes_on; } modes[] = {
		{ "plain", NULL, 1 }, { "fork", forks, 1 }, { "exec", execs, 0 }, { "close", closes, 0 },
		{ "signalfd", reads_signals, 1 }, { "exit", exits, 0 },
	};
	for (unsigned i = 0; argc == 2 && i < sizeof modes / sizeof *modes; i++) {
		if (strcmp(argv[1], modes[i].name))
			continue;
		open_both();
		transfer(0);
		if (modes[i].act)
			modes[i].act(argv[0]);
		if (modes[i].goes_on)
			transfer(MESSAGES);
		return 0;
	}
	fprintf(stderr, "usage: victim plain|fork|exec|close|signalfd|exit\n");
	return 2;
}
