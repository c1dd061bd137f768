/* Bowline for C programs: see docs/bindings.md. Link with `pkg-config --libs bowline`. */

#ifndef BOWLINE_H
#define BOWLINE_H

/* Made by cbindgen: run `cargo test -p bowline-capi --test header` with BOWLINE_BLESS=1. */

#include <stddef.h>
#include <stdint.h>

// Operations over RC: nothing is lost.
#define BOWLINE_RC 0

// Operations over XP, with bounds on time and loss. What cannot have bounds goes over RC.
#define BOWLINE_XP 1

// Operations over SDR with selective repeat, for long links: nothing is lost.
#define BOWLINE_SR_NACK 2

// Operations over SDR with erasure coding, for long links: nothing is lost.
#define BOWLINE_EC_MDS 3

// Operations over SDR, which takes one of both for each message.
#define BOWLINE_AUTO 4

// A deadline that follows how long such operations have taken.
#define BOWLINE_ADAPTIVE -1.0

// Success.
#define BOWLINE_OK 0

// An argument, or an order of calls, that cannot work.
#define BOWLINE_E_CALLER 1

// The other end refused, broke the protocol, or has left.
#define BOWLINE_E_PEER 2

// This machine: a limit, a permission, an address in use.
#define BOWLINE_E_RESOURCE 3

// No answer from the other end within the time allowed.
#define BOWLINE_E_PATH 4

// Not over within the time that was given to wait. The operation goes on.
#define BOWLINE_E_TIMEOUT 5

// A bug in Bowline.
#define BOWLINE_E_INTERNAL 6

// Elements of IEEE 754 binary32.
#define BOWLINE_F32 0

// Elements of IEEE 754 binary64.
#define BOWLINE_F64 1

// Elements of IEEE 754 binary16.
#define BOWLINE_F16 2

// Elements of the upper half of a binary32.
#define BOWLINE_BF16 3

// Signed elements of 8 bits.
#define BOWLINE_I8 4

// Unsigned elements of 8 bits.
#define BOWLINE_U8 5

// Signed elements of 32 bits.
#define BOWLINE_I32 6

// Unsigned elements of 32 bits.
#define BOWLINE_U32 7

// Signed elements of 64 bits.
#define BOWLINE_I64 8

// Unsigned elements of 64 bits.
#define BOWLINE_U64 9

// The sum; integers wrap.
#define BOWLINE_SUM 0

// The product; integers wrap.
#define BOWLINE_PRODUCT 1

// The smallest.
#define BOWLINE_MIN 2

// The largest.
#define BOWLINE_MAX 3

// The sum divided by the number of ranks.
#define BOWLINE_AVERAGE 4

// Memory that is only sent from.
#define BOWLINE_SDR_SEND 0

// Memory that peers may write: for receives.
#define BOWLINE_SDR_RECV 1

// Bytes that information about a queue pair has at most.
#define BOWLINE_SDR_INFO_LEN 4096

// A group of programs that do collective operations together. All ranks must call the same
// operations in the same order, with the same counts and types.
typedef struct bowline_comm bowline_comm;

// A device and its resources, which queue pairs share.
typedef struct bowline_sdr_ctx bowline_sdr_ctx;

// Registered memory.
typedef struct bowline_sdr_mr bowline_sdr_mr;

// A queue pair of messages that complete chunk by chunk.
typedef struct bowline_sdr_qp bowline_sdr_qp;

// A message being received.
typedef struct bowline_sdr_rcv_handle bowline_sdr_rcv_handle;

// A message being sent.
typedef struct bowline_sdr_snd_handle bowline_sdr_snd_handle;

// A collective operation that is going on. It goes on whether somebody waits or not; its memory is
// the operation's until it is over.
typedef struct bowline_work bowline_work;

// How to make a communicator. Zeros, and NULL in its place, are the defaults. All ranks need the
// same, but for the device.
typedef struct bowline_comm_options {
  // Address of this rank's NIC, e.g. "10.0.0.7" [BOWLINE_DEVICE, or the one that reaches rank 0
  // or MASTER_ADDR, or else one of loopback: all ranks are on one host].
  const char *device;
  // Seconds that an operation may take (default: 300).
  double timeout_s;
  // Seconds that making the communicator may take (default: 60).
  double setup_timeout_s;
  // Bytes of a message at most [128 KiB].
  uint32_t chunk_bytes;
  // BOWLINE_RC, BOWLINE_XP, BOWLINE_SR_NACK, BOWLINE_EC_MDS or BOWLINE_AUTO [BOWLINE_RC].
  uint32_t transport;
  // Over XP: seconds after which an operation stops to wait for what may be lost, or
  // BOWLINE_ADAPTIVE [never].
  double deadline_s;
  // Over XP: the share of what a rank should receive that may be missing, e.g. 0.01 (default:
  // 0). What would exceed it is fetched after the deadline.
  double max_loss;
  // Bytes on their way to a rank at most [1 MiB, and 4 MiB over SR, EC and AUTO].
  uint32_t window_bytes;
  // Over XP: 1 if what is reduced travels encoded, so that a lost packet costs all elements of
  // some regions a little (default: 0).
  uint32_t recovery;
  // Over RC: 1 if broadcasts go by multicast, which takes a second ring for each rank (default:
  // 0). With fewer than three ranks, and where packets are sealed, they go as ever.
  uint32_t multicast;
} bowline_comm_options;

// Gathers `len` bytes of every rank into `all`, in the order of ranks: `MPI_Allgather` does.
// Returns 0 for success.
typedef int (*bowline_gather_fn)(void *context, const void *mine, size_t len, void *all);

// How to make a queue pair. Zeros, and NULL in its place, are the defaults. Both ends need the
// same, but for the rate.
typedef struct bowline_sdr_qp_attr {
  // Bytes that a bit of a bitmap stands for [64 KiB].
  uint32_t chunk_bytes;
  // Queue pairs over which packets spread (default: 1).
  uint32_t channels;
  // Longest message in bytes [2 MiB].
  uint64_t max_message;
  // Bits per second at which packets leave [as fast as they can].
  uint64_t rate_bps;
} bowline_sdr_qp_attr;

// What a peer needs to know of a queue pair: to be carried there by any means.
typedef struct bowline_sdr_qp_info {
  // Bytes that count.
  uint32_t len;
  // What they are is Bowline's.
  uint8_t bytes[BOWLINE_SDR_INFO_LEN];
} bowline_sdr_qp_info;

// A message to be sent piece by piece.
typedef struct bowline_sdr_start_wr {
  // Its bytes.
  uint64_t length;
  // Not 0 if it has an immediate.
  uint32_t has_imm;
  // The immediate.
  uint32_t imm;
} bowline_sdr_start_wr;

// A piece of a message.
typedef struct bowline_sdr_continue_wr {
  // Where its bytes are.
  const struct bowline_sdr_mr *mr;
  // At which byte of the memory.
  size_t mr_offset;
  // How many.
  size_t length;
  // At which byte of the message: a whole number of packets.
  uint64_t offset;
  // Not 0 to leave before all others.
  uint32_t urgent;
} bowline_sdr_continue_wr;

// A whole message.
typedef struct bowline_sdr_snd_wr {
  // Where its bytes are.
  const struct bowline_sdr_mr *mr;
  // At which byte of the memory.
  size_t mr_offset;
  // How many.
  size_t length;
  // Not 0 if it has an immediate.
  uint32_t has_imm;
  // The immediate.
  uint32_t imm;
} bowline_sdr_snd_wr;

// Memory for a message.
typedef struct bowline_sdr_rcv_wr {
  // Where it goes.
  const struct bowline_sdr_mr *mr;
  // At which byte of the memory.
  size_t mr_offset;
  // Bytes at most.
  size_t length;
} bowline_sdr_rcv_wr;

// How an operation with a deadline or a share that may be missing has ended at this rank.
typedef struct bowline_report {
  // Bytes that should have been received over XP. 0 if it has travelled otherwise.
  uint64_t expected_bytes;
  // Those of them that are missing.
  uint64_t missing_bytes;
  // Bytes that were lost and fetched again.
  uint64_t repaired_bytes;
  // How long it took, in nanoseconds.
  uint64_t elapsed_ns;
  // When it would have stopped to wait, in nanoseconds; 0 if it had no deadline.
  uint64_t deadline_ns;
  // Ranges that are missing: see `bowline_work_missing`.
  size_t ranges;
  // 1 if there are more than those, and 0 otherwise.
  int32_t is_cut;
} bowline_report;

// A range of the output that lacks what a rank should have contributed.
typedef struct bowline_missing {
  // The rank.
  uint32_t rank;
  // Its first byte.
  size_t start;
  // The byte behind it.
  size_t end;
} bowline_missing;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Meets the other ranks where the environment says: the variables of torchrun, Open MPI, MPICH or
// Slurm give rank and size; `BOWLINE_STORE`, or `MASTER_ADDR` and `MASTER_PORT`, the place.
//
// # Safety
// `options` is NULL or valid; `comm` may be written.
int32_t bowline_comm_from_env(const struct bowline_comm_options *options,
                              struct bowline_comm **comm);

// Meets the other ranks of a job in a store, e.g. "file:///shared/dir" or "redis://host".
//
// # Safety
// `url` and `job` are strings; `options` is NULL or valid; `comm` may be written.
int32_t bowline_comm_in_store(const char *url,
                              const char *job,
                              uint32_t rank,
                              uint32_t ranks,
                              const struct bowline_comm_options *options,
                              struct bowline_comm **comm);

// Meets the other ranks at rank 0, which listens at a TCP address, e.g. "10.0.0.7:29500".
//
// # Safety
// `address` is a string; `options` is NULL or valid; `comm` may be written.
int32_t bowline_comm_at_address(const char *address,
                                uint32_t rank,
                                uint32_t ranks,
                                const struct bowline_comm_options *options,
                                struct bowline_comm **comm);

// Meets the other ranks by an all-gather of the program's own, which is called twice.
//
// # Safety
// `gather` may be called with `context` during this call; `options` is NULL or valid; `comm` may
// be written.
int32_t bowline_comm_by_gather(bowline_gather_fn gather,
                               void *context,
                               uint32_t rank,
                               uint32_t ranks,
                               const struct bowline_comm_options *options,
                               struct bowline_comm **comm);

// Makes a communicator of the ranks that give the same color, ordered by their keys. All ranks
// must call it. With a negative color a rank gets none: `*out` is NULL.
//
// # Safety
// `comm` has not been freed; `out` may be written.
int32_t bowline_comm_split(const struct bowline_comm *comm,
                           int64_t color,
                           uint32_t key,
                           struct bowline_comm **out);

// Makes a communicator of the same ranks, whose operations go on beside those of the first. All
// ranks must call it.
//
// # Safety
// `comm` has not been freed; `out` may be written.
int32_t bowline_comm_duplicate(const struct bowline_comm *comm, struct bowline_comm **out);

// The number of this rank.
//
// # Safety
// `comm` has not been freed.
uint32_t bowline_comm_rank(const struct bowline_comm *comm);

// How many ranks there are.
//
// # Safety
// `comm` has not been freed.
uint32_t bowline_comm_size(const struct bowline_comm *comm);

// Leaves a communicator, and frees it once all its operations have been freed. NULL is nothing.
//
// # Safety
// `comm` is NULL or has not been freed, and nobody uses it.
void bowline_comm_free(struct bowline_comm *comm);

// Why the last call of this thread that failed did so. The text lasts until the next one fails;
// empty if none has.
const char *bowline_error_message(void);

// The rank at fault in the last call of this thread that failed; -1 if it was no rank's.
int64_t bowline_error_rank(void);

// The release, e.g. `0.1.0`.
const char *bowline_version(void);

// All ranks get the reduction of `count` elements of all ranks. Without an input it is in place.
//
// # Safety
// Of all operations: `comm` has not been freed. Input and output have the elements that the
// operation reads and writes, and do not overlap. They are not touched before the operation is
// over: when the call returns, or with a place for a handle in `work` when `bowline_work_wait` or
// `bowline_work_free` does.
int32_t bowline_allreduce(const struct bowline_comm *comm,
                          const void *input,
                          void *output,
                          size_t count,
                          uint32_t dtype,
                          uint32_t op,
                          struct bowline_work **work);

// Rank r gets the r-th block of `count` elements of the reduction. In place the output holds the
// blocks of all ranks, and the result is at the place of this rank's.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_reduce_scatter(const struct bowline_comm *comm,
                               const void *input,
                               void *output,
                               size_t count,
                               uint32_t dtype,
                               uint32_t op,
                               struct bowline_work **work);

// All ranks get the blocks of `count` elements of all ranks. In place that of this rank is at its
// place in the output.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_allgather(const struct bowline_comm *comm,
                          const void *input,
                          void *output,
                          size_t count,
                          uint32_t dtype,
                          struct bowline_work **work);

// Rank r gets the r-th block of `count` elements of all ranks.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_all_to_all(const struct bowline_comm *comm,
                           const void *input,
                           void *output,
                           size_t count,
                           uint32_t dtype,
                           struct bowline_work **work);

// Rank r gets the r-th block of all ranks, where blocks have lengths of their own:
// `send_counts[r]` elements for rank r, `recv_counts[r]` from it, one after the other.
//
// # Safety
// As for `bowline_allreduce`; both lists have a count for each rank.
int32_t bowline_all_to_all_counts(const struct bowline_comm *comm,
                                  const void *input,
                                  const size_t *send_counts,
                                  void *output,
                                  const size_t *recv_counts,
                                  uint32_t dtype,
                                  struct bowline_work **work);

// All ranks get the root's `count` elements, in place.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_broadcast(const struct bowline_comm *comm,
                          void *data,
                          size_t count,
                          uint32_t dtype,
                          uint32_t root,
                          struct bowline_work **work);

// The root gets the reduction of `count` elements of all ranks. Without an input it is in place,
// and the elements of the others stay; with one, only the root needs an output.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_reduce(const struct bowline_comm *comm,
                       const void *input,
                       void *output,
                       size_t count,
                       uint32_t dtype,
                       uint32_t op,
                       uint32_t root,
                       struct bowline_work **work);

// The root gets the blocks of `count` elements of all ranks. Only the root needs an output.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_gather(const struct bowline_comm *comm,
                       const void *input,
                       void *output,
                       size_t count,
                       uint32_t dtype,
                       uint32_t root,
                       struct bowline_work **work);

// Rank r gets the r-th block of `count` elements of the root. Only the root needs an input.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_scatter(const struct bowline_comm *comm,
                        const void *input,
                        void *output,
                        size_t count,
                        uint32_t dtype,
                        uint32_t root,
                        struct bowline_work **work);

// Is over when all ranks have come here.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_barrier(const struct bowline_comm *comm, struct bowline_work **work);

// Sends `count` elements to a rank, which must receive as many of the same type.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_send(const struct bowline_comm *comm,
                     const void *data,
                     size_t count,
                     uint32_t dtype,
                     uint32_t to,
                     struct bowline_work **work);

// Receives `count` elements from a rank. Sends and receives run beside each other, those between
// two ranks in order.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_recv(const struct bowline_comm *comm,
                     void *data,
                     size_t count,
                     uint32_t dtype,
                     uint32_t from,
                     struct bowline_work **work);

// Opens the device at an address of this machine, e.g. "10.0.0.7".
//
// # Safety
// `dev_name` is a string.
struct bowline_sdr_ctx *bowline_sdr_context_create(const char *dev_name);

// Makes a queue pair.
//
// # Safety
// `ctx` has not been freed; `attr` is NULL or valid.
struct bowline_sdr_qp *bowline_sdr_qp_create(const struct bowline_sdr_ctx *ctx,
                                             const struct bowline_sdr_qp_attr *attr);

// Gets what the peer needs to know.
//
// # Safety
// `qp` has not been freed; `info` may be written.
int32_t bowline_sdr_qp_info_get(const struct bowline_sdr_qp *qp, struct bowline_sdr_qp_info *info);

// Connects to a peer. Both ends must.
//
// # Safety
// `qp` has not been freed; `remote` is what the peer has got of its own.
int32_t bowline_sdr_qp_connect(const struct bowline_sdr_qp *qp,
                               const struct bowline_sdr_qp_info *remote);

// Registers memory of the program's: BOWLINE_SDR_SEND or BOWLINE_SDR_RECV.
//
// # Safety
// `ctx` has not been freed. `addr` has `length` bytes, to be read and for receives written, until
// `bowline_sdr_mr_dereg` has returned.
struct bowline_sdr_mr *bowline_sdr_mr_reg(const struct bowline_sdr_ctx *ctx,
                                          void *addr,
                                          size_t length,
                                          uint32_t flags);

// Ends a registration. From here on nothing reads or writes the memory; messages that still use it
// fail. NULL is nothing.
//
// # Safety
// `mr` is NULL or has not been freed.
void bowline_sdr_mr_dereg(struct bowline_sdr_mr *mr);

// Begins a message into the peer's next receive, to be sent piece by piece.
//
// # Safety
// `qp` has not been freed; `wr` is valid; `handle` may be written.
int32_t bowline_sdr_send_stream_start(const struct bowline_sdr_qp *qp,
                                      const struct bowline_sdr_start_wr *wr,
                                      struct bowline_sdr_snd_handle **handle);

// Sends bytes of a message, for the first time or again.
//
// # Safety
// `handle` has not been freed; `wr` is valid.
int32_t bowline_sdr_send_stream_continue(const struct bowline_sdr_snd_handle *handle,
                                         const struct bowline_sdr_continue_wr *wr);

// Says that nothing more will be added to a message.
//
// # Safety
// `handle` has not been freed.
int32_t bowline_sdr_send_stream_end(const struct bowline_sdr_snd_handle *handle);

// Sends a whole message into the peer's next receive.
//
// # Safety
// `qp` has not been freed; `wr` is valid; `handle` may be written.
int32_t bowline_sdr_send_post(const struct bowline_sdr_qp *qp,
                              const struct bowline_sdr_snd_wr *wr,
                              struct bowline_sdr_snd_handle **handle);

// Whether all of an ended message has left: BOWLINE_OK, or BOWLINE_E_TIMEOUT if not yet. Drives
// the device.
//
// # Safety
// `handle` has not been freed.
int32_t bowline_sdr_send_poll(const struct bowline_sdr_snd_handle *handle);

// Frees the handle of a message. What of it has not left is forgotten; its memory is free when
// `bowline_sdr_send_poll` has said so or `bowline_sdr_mr_dereg` has returned. NULL is nothing.
//
// # Safety
// `handle` is NULL or has not been freed.
void bowline_sdr_send_free(struct bowline_sdr_snd_handle *handle);

// Posts memory for the peer's next message.
//
// # Safety
// `qp` has not been freed; `wr` is valid; `handle` may be written.
int32_t bowline_sdr_recv_post(const struct bowline_sdr_qp *qp,
                              const struct bowline_sdr_rcv_wr *wr,
                              struct bowline_sdr_rcv_handle **handle);

// Gets which chunks have arrived: chunk c is bit c % 8, from the lowest up, of byte c / 8; bits
// beyond the last chunk are ones. It is a copy that lasts until the next call: call again for a
// newer one. Drives the device.
//
// # Safety
// `handle` has not been freed, and nobody else uses it; `bitmap` and `len` may be written.
int32_t bowline_sdr_recv_bitmap_get(struct bowline_sdr_rcv_handle *handle,
                                    const uint8_t **bitmap,
                                    size_t *len);

// Gets the sender's immediate, or BOWLINE_E_TIMEOUT if it is not there yet. Drives the device.
//
// # Safety
// `handle` has not been freed; `immediate` may be written.
int32_t bowline_sdr_recv_imm_get(const struct bowline_sdr_rcv_handle *handle, uint32_t *immediate);

// Ends a receive, early or late, and frees its handle. What comes later leads nowhere: the memory
// is the program's again.
//
// # Safety
// `handle` has not been freed.
int32_t bowline_sdr_recv_complete(struct bowline_sdr_rcv_handle *handle);

// Frees a queue pair, once all handles of its messages have been freed. NULL is nothing.
//
// # Safety
// `qp` is NULL or has not been freed.
void bowline_sdr_qp_destroy(struct bowline_sdr_qp *qp);

// Frees a context, once all that was made from it has been freed. NULL is nothing.
//
// # Safety
// `ctx` is NULL or has not been freed.
void bowline_sdr_context_destroy(struct bowline_sdr_ctx *ctx);

// Waits until an operation is over, and says whether it has succeeded. It may be asked again.
//
// # Safety
// `work` is one that has not been freed.
int32_t bowline_work_wait(const struct bowline_work *work);

// Waits until an operation is over, and says how it has ended. It may be asked again.
//
// # Safety
// `work` is one that has not been freed; `report` may be written.
int32_t bowline_work_report(const struct bowline_work *work, struct bowline_report *report);

// Waits until an operation is over, and writes which ranges are missing, `max` at most.
//
// # Safety
// `work` is one that has not been freed; `max` elements of `ranges` may be written.
int32_t bowline_work_missing(const struct bowline_work *work,
                             struct bowline_missing *ranges,
                             size_t max);

// Waits no longer than `seconds`: 0 to look. Returns BOWLINE_E_TIMEOUT if the operation is not
// over then.
//
// # Safety
// `work` is one that has not been freed.
int32_t bowline_work_wait_for(const struct bowline_work *work, double seconds);

// Frees the handle of an operation. Waits for it if it is not over: its memory is the program's
// afterwards. NULL is nothing.
//
// # Safety
// `work` is NULL or one that has not been freed, and nobody waits for it.
void bowline_work_free(struct bowline_work *work);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BOWLINE_H */
