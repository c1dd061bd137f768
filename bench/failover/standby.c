/* What a backup costs while nothing fails.
 *
 *   standby pairs COUNT    posts a WRITE and polls for its completion, COUNT times: run under callgrind,
 *                          which counts the instructions of post_one() and poll_one() alone
 *   standby memory COUNT   makes COUNT queue pairs with queues of 512 and 256, and prints the bytes that
 *                          each took
 *
 * Both ends are in this process, on the first two devices.
 */

#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "standby: %s: %m\n", #what); exit(1); } } while (0)

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	uint64_t *memory;
};

static struct ibv_qp *make_qp(struct end *end, uint32_t sends, uint32_t recvs)
{
	struct ibv_qp_init_attr init = { .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = sends, .max_recv_wr = recvs, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(end->pd, &init);
	CHECK(qp);
	return qp;
}

static struct end open_end(struct ibv_device *device)
{
	struct end end = { .context = ibv_open_device(device) };
	CHECK(end.context);
	end.pd = ibv_alloc_pd(end.context);
	end.cq = ibv_create_cq(end.context, 256, NULL, NULL, 0);
	end.memory = calloc(512, 8);
	end.mr = ibv_reg_mr(end.pd, end.memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(end.pd && end.cq && end.mr);
	return end;
}

static void connect_to(struct end *end, struct end *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	CHECK(!ibv_modify_qp(end->qp, &attr,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1 } };
	CHECK(!ibv_query_gid(peer->context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1 };
	CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
		IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* What is counted: these two, and nothing of what happens between them. */
__attribute__((noinline)) void post_one(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	CHECK(!ibv_post_send(qp, wr, &bad));
}

__attribute__((noinline)) int poll_one(struct ibv_cq *cq, struct ibv_wc *wc)
{
	return ibv_poll_cq(cq, 1, wc);
}

static void pairs(struct ibv_device **list, long count)
{
	struct end a = open_end(list[0]), b = open_end(list[1]);
	a.qp = make_qp(&a, 16, 16);
	b.qp = make_qp(&b, 16, 16);
	connect_to(&a, &b);
	connect_to(&b, &a);
	usleep(300000);
	for (long i = 1; i <= count; i++) {
		struct ibv_sge sge = { (uintptr_t)a.memory, 8, a.mr->lkey };
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { (uintptr_t)b.memory, b.mr->rkey } };
		struct ibv_wc wc;
		*a.memory = i;
		post_one(a.qp, &wr);
		/* The lanes' threads do the work meanwhile, so that every poll is alike: it finds a completion
		 * and has nothing else to do. */
		usleep(2000);
		int done = poll_one(a.cq, &wc);
		for (int tries = 0; !done; tries++) {
			CHECK(tries < 10000);
			usleep(1000);
			done = ibv_poll_cq(a.cq, 1, &wc);
		}
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
}

static long resident(void)
{
	long pages = 0, all;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%ld %ld", &all, &pages) == 2);
	fclose(f);
	return pages * sysconf(_SC_PAGESIZE);
}

static void memory(struct ibv_device **list, long count)
{
	struct end a = open_end(list[0]);
	/* What is made once, and room that tables grow by. */
	for (int i = 0; i < 32; i++)
		make_qp(&a, 512, 256);
	usleep(300000);
	long before = resident();
	for (long i = 0; i < count; i++)
		make_qp(&a, 512, 256);
	usleep(500000);
	printf("%ld\n", (resident() - before) / count);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && list[1]);
	if (!strcmp(argv[1], "pairs"))
		pairs(list, atol(argv[2]));
	else
		memory(list, atol(argv[2]));
	return 0;
}
