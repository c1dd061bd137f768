/* Bowline for C programs: see docs/bindings.md. Link with `pkg-config --libs bowline`. */

#ifndef BOWLINE_H
#define BOWLINE_H

/* Made by cbindgen: run `cargo test -p bowline-capi --test header` with BOWLINE_BLESS=1. */

#include <stddef.h>
#include <stdint.h>

// Operations use RC: nothing is lost.
#define BOWLINE_RC 0

// Operations use XP, with bounds on time and loss. Operations that cannot have bounds use RC.
#define BOWLINE_XP 1

// Operations use SDR with selective repeat, for long links: nothing is lost.
#define BOWLINE_SR_NACK 2

// Operations use SDR with erasure coding, for long links: nothing is lost.
#define BOWLINE_EC_MDS 3

// Operations use SDR, which chooses one of the two schemes for each message.
#define BOWLINE_AUTO 4

// Data is encoded while operations end with missing bytes, on all ranks alike.
#define BOWLINE_RECOVERY_AUTO 0

// Data is always encoded.
#define BOWLINE_RECOVERY_ALWAYS 1

// Data is never encoded.
#define BOWLINE_RECOVERY_NEVER 2

// A deadline that adapts to how long such operations have taken.
#define BOWLINE_ADAPTIVE -1.0

// Success.
#define BOWLINE_OK 0

// An invalid argument, or a call in the wrong order.
#define BOWLINE_E_CALLER 1

// The other end refused, broke the protocol, or has left.
#define BOWLINE_E_PEER 2

// A problem on this machine: a limit, a permission, an address in use.
#define BOWLINE_E_RESOURCE 3

// No answer from the other end within the time allowed.
#define BOWLINE_E_PATH 4

// Not completed within the given time. The operation continues.
#define BOWLINE_E_TIMEOUT 5

// A bug in Bowline.
#define BOWLINE_E_INTERNAL 6

// IEEE 754 binary32 elements.
#define BOWLINE_F32 0

// IEEE 754 binary64 elements.
#define BOWLINE_F64 1

// IEEE 754 binary16 elements.
#define BOWLINE_F16 2

// bfloat16 elements: the upper half of a binary32.
#define BOWLINE_BF16 3

// Signed 8-bit integers.
#define BOWLINE_I8 4

// Unsigned 8-bit integers.
#define BOWLINE_U8 5

// Signed 32-bit integers.
#define BOWLINE_I32 6

// Unsigned 32-bit integers.
#define BOWLINE_U32 7

// Signed 64-bit integers.
#define BOWLINE_I64 8

// Unsigned 64-bit integers.
#define BOWLINE_U64 9

// The sum; integers wrap.
#define BOWLINE_SUM 0

// The product; integers wrap.
#define BOWLINE_PRODUCT 1

// The minimum.
#define BOWLINE_MIN 2

// The maximum.
#define BOWLINE_MAX 3

// The sum divided by the number of ranks.
#define BOWLINE_AVERAGE 4

// Memory that is only sent from.
#define BOWLINE_SDR_SEND 0

// Memory that peers may write, for receives.
#define BOWLINE_SDR_RECV 1

// Maximum length of the information about a queue pair, in bytes.
#define BOWLINE_SDR_INFO_LEN 4096

// A group of programs that run collective operations together. All ranks must call the same
// operations in the same order, with the same counts and types.
typedef struct bowline_comm bowline_comm;

// A device and its resources, shared by queue pairs.
typedef struct bowline_sdr_ctx bowline_sdr_ctx;

// Registered memory.
typedef struct bowline_sdr_mr bowline_sdr_mr;

// A queue pair whose messages complete chunk by chunk.
typedef struct bowline_sdr_qp bowline_sdr_qp;

// A message being received.
typedef struct bowline_sdr_rcv_handle bowline_sdr_rcv_handle;

// A message being sent.
typedef struct bowline_sdr_snd_handle bowline_sdr_snd_handle;

// A collective operation in progress. It makes progress whether or not a thread waits for it, and
// uses its memory until it has ended.
typedef struct bowline_work bowline_work;

// Options for a new communicator. Zero fields, and a NULL pointer instead of the options, select
// the defaults. All ranks need the same options, except for the device.
typedef struct bowline_comm_options {
  // Address of this rank's NIC, e.g. "10.0.0.7" (default: BOWLINE_DEVICE, or the address that
  // reaches rank 0 or MASTER_ADDR, or else a loopback address, which means that all ranks are on
  // one host).
  const char *device;
  // Maximum duration of an operation in seconds (default: 300).
  double timeout_s;
  // Maximum duration of creating the communicator in seconds (default: 60).
  double setup_timeout_s;
  // Maximum length of a message in bytes (default: 128 KiB).
  uint32_t chunk_bytes;
  // BOWLINE_RC, BOWLINE_XP, BOWLINE_SR_NACK, BOWLINE_EC_MDS or BOWLINE_AUTO (default:
  // BOWLINE_RC).
  uint32_t transport;
  // Over XP: seconds after which an operation stops waiting for data that may be lost, or
  // BOWLINE_ADAPTIVE (default: never).
  double deadline_s;
  // Over XP: the share of the bytes that a rank should receive that may be missing, e.g. 0.01
  // (default: 0). Losses beyond it are fetched after the deadline.
  double max_loss;
  // Maximum bytes in flight to a rank (default: 1 MiB, and 4 MiB over SR, EC and AUTO).
  uint32_t window_bytes;
  // Over XP: when to send data to be reduced in encoded form, so that a lost packet slightly
  // degrades all elements of some regions: BOWLINE_RECOVERY_AUTO, BOWLINE_RECOVERY_ALWAYS or
  // BOWLINE_RECOVERY_NEVER (default: BOWLINE_RECOVERY_AUTO).
  uint32_t recovery;
  // Over RC: 1 to multicast broadcasts, which takes a second ring for each rank (default: 0).
  // With fewer than three ranks, or if packets are sealed, broadcasts are not multicast.
  uint32_t multicast;
} bowline_comm_options;

// Gathers `len` bytes of every rank into `all`, in rank order, as `MPI_Allgather` does. Returns 0
// for success.
typedef int (*bowline_gather_fn)(void *context, const void *mine, size_t len, void *all);

// Attributes of a new queue pair. Zero fields, and a NULL pointer instead of the attributes,
// select the defaults. Both ends need the same attributes, except for the rate.
typedef struct bowline_sdr_qp_attr {
  // Number of bytes that a bit of a bitmap stands for (default: 64 KiB).
  uint32_t chunk_bytes;
  // Number of queue pairs that packets are spread over (default: 1).
  uint32_t channels;
  // Maximum length of a message in bytes (default: 2 MiB).
  uint64_t max_message;
  // Rate at which packets are sent, in bits per second (default: as fast as possible).
  uint64_t rate_bps;
} bowline_sdr_qp_attr;

// What a peer needs to know about a queue pair. Transfer it there by any means.
typedef struct bowline_sdr_qp_info {
  // Number of bytes in use.
  uint32_t len;
  // The bytes, in a format private to Bowline.
  uint8_t bytes[BOWLINE_SDR_INFO_LEN];
} bowline_sdr_qp_info;

// A message to be sent piece by piece.
typedef struct bowline_sdr_start_wr {
  // Its length in bytes.
  uint64_t length;
  // Nonzero if it has an immediate.
  uint32_t has_imm;
  // The immediate.
  uint32_t imm;
} bowline_sdr_start_wr;

// A piece of a message.
typedef struct bowline_sdr_continue_wr {
  // The memory that holds its bytes.
  const struct bowline_sdr_mr *mr;
  // Offset in that memory.
  size_t mr_offset;
  // Length in bytes.
  size_t length;
  // Offset in the message, a multiple of the packet size.
  uint64_t offset;
  // Nonzero to send it before all others.
  uint32_t urgent;
} bowline_sdr_continue_wr;

// A whole message.
typedef struct bowline_sdr_snd_wr {
  // The memory that holds its bytes.
  const struct bowline_sdr_mr *mr;
  // Offset in that memory.
  size_t mr_offset;
  // Length in bytes.
  size_t length;
  // Nonzero if it has an immediate.
  uint32_t has_imm;
  // The immediate.
  uint32_t imm;
} bowline_sdr_snd_wr;

// Memory for a message.
typedef struct bowline_sdr_rcv_wr {
  // The memory that it is written to.
  const struct bowline_sdr_mr *mr;
  // Offset in that memory.
  size_t mr_offset;
  // Maximum length in bytes.
  size_t length;
} bowline_sdr_rcv_wr;

// How an operation with a deadline or a permitted loss ended at this rank.
typedef struct bowline_report {
  // Bytes that should have been received from other ranks; 0 for an operation without bounds.
  uint64_t expected_bytes;
  // How many of them are missing.
  uint64_t missing_bytes;
  // Bytes that were lost and then retransmitted.
  uint64_t repaired_bytes;
  // How long it took, in nanoseconds.
  uint64_t elapsed_ns;
  // When it would have stopped waiting, in nanoseconds; 0 if it had no deadline.
  uint64_t deadline_ns;
  // Number of missing ranges: see `bowline_work_missing`.
  size_t ranges;
  // 1 if more ranges are missing than that, and 0 otherwise.
  int32_t is_cut;
  // 1 if the data was sent in encoded form, and 0 otherwise. Then ranges refer to the encoded
  // data.
  int32_t is_encoded;
} bowline_report;

// A range of the output that lacks the contribution of a rank.
typedef struct bowline_missing {
  // The rank.
  uint32_t rank;
  // The first byte of the range.
  size_t start;
  // The byte after the range.
  size_t end;
} bowline_missing;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Creates a communicator from the environment. Rank and size come from the variables of torchrun,
// Open MPI, MPICH or Slurm; the meeting point from `BOWLINE_STORE`, or from `MASTER_ADDR` and
// `MASTER_PORT`.
//
// # Safety
// `options` is NULL or valid; `comm` may be written.
int32_t bowline_comm_from_env(const struct bowline_comm_options *options,
                              struct bowline_comm **comm);

// Creates a communicator of the ranks of a job that meet in a store, e.g. "file:///shared/dir" or
// "redis://host".
//
// # Safety
// `url` and `job` are strings; `options` is NULL or valid; `comm` may be written.
int32_t bowline_comm_in_store(const char *url,
                              const char *job,
                              uint32_t rank,
                              uint32_t ranks,
                              const struct bowline_comm_options *options,
                              struct bowline_comm **comm);

// Creates a communicator of the ranks that meet at rank 0, which listens on a TCP address, e.g.
// "10.0.0.7:29500".
//
// # Safety
// `address` is a string; `options` is NULL or valid; `comm` may be written.
int32_t bowline_comm_at_address(const char *address,
                                uint32_t rank,
                                uint32_t ranks,
                                const struct bowline_comm_options *options,
                                struct bowline_comm **comm);

// Creates a communicator of the ranks that meet by the program's own all-gather function, which is
// called twice.
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

// Creates a communicator of the ranks that pass the same color, ordered by their keys. All ranks
// must call it. A rank with a negative color gets none: `*out` is NULL.
//
// # Safety
// `comm` has not been freed; `out` may be written.
int32_t bowline_comm_split(const struct bowline_comm *comm,
                           int64_t color,
                           uint32_t key,
                           struct bowline_comm **out);

// Creates a communicator of the same ranks. Its operations run concurrently with those of the
// first. All ranks must call it.
//
// # Safety
// `comm` has not been freed; `out` may be written.
int32_t bowline_comm_duplicate(const struct bowline_comm *comm, struct bowline_comm **out);

// The number of this rank.
//
// # Safety
// `comm` has not been freed.
uint32_t bowline_comm_rank(const struct bowline_comm *comm);

// The number of ranks.
//
// # Safety
// `comm` has not been freed.
uint32_t bowline_comm_size(const struct bowline_comm *comm);

// Leaves a communicator, and frees it once all its operations have been freed. NULL is ignored.
//
// # Safety
// `comm` is NULL or has not been freed, and nothing uses it.
void bowline_comm_free(struct bowline_comm *comm);

// Why the last failed call of this thread failed. The text is valid until the next failure of this
// thread; it is empty if no call has failed.
const char *bowline_error_message(void);

// The rank that caused the last failed call of this thread to fail; -1 if no rank did.
int64_t bowline_error_rank(void);

// The version, e.g. `0.1.0`.
const char *bowline_version(void);

// All ranks get the reduction of `count` elements of all ranks. Without an input it works in
// place.
//
// # Safety
// For all operations: `comm` has not been freed. Input and output have the elements that the
// operation reads and writes, and do not overlap. The program does not touch them until the
// operation has ended: when the call returns or, with a place for a handle in `work`, when
// `bowline_work_wait` or `bowline_work_free` returns.
int32_t bowline_allreduce(const struct bowline_comm *comm,
                          const void *input,
                          void *output,
                          size_t count,
                          uint32_t dtype,
                          uint32_t op,
                          struct bowline_work **work);

// Rank r gets the r-th block of `count` elements of the reduction. In place, the output holds the
// blocks of all ranks, and the result replaces this rank's block.
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

// All ranks get the blocks of `count` elements of all ranks. In place, this rank's block is at its
// position in the output.
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

// Like `bowline_all_to_all`, but blocks differ in length: `send_counts[r]` elements go to rank r
// and `recv_counts[r]` come from it. Blocks lie one after another.
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

// The root gets the reduction of `count` elements of all ranks. Without an input it works in
// place, and the elements of the other ranks do not change; with one, only the root needs an
// output.
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

// Ends when all ranks have called it.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_barrier(const struct bowline_comm *comm, struct bowline_work **work);

// Sends `count` elements to a rank, which must receive the same number of the same type.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_send(const struct bowline_comm *comm,
                     const void *data,
                     size_t count,
                     uint32_t dtype,
                     uint32_t to,
                     struct bowline_work **work);

// Receives `count` elements from a rank. Sends and receives run concurrently; those between two
// ranks run in order.
//
// # Safety
// As for `bowline_allreduce`.
int32_t bowline_recv(const struct bowline_comm *comm,
                     void *data,
                     size_t count,
                     uint32_t dtype,
                     uint32_t from,
                     struct bowline_work **work);

// Opens the device at a local address, e.g. "10.0.0.7".
//
// # Safety
// `dev_name` is a string.
struct bowline_sdr_ctx *bowline_sdr_context_create(const char *dev_name);

// Creates a queue pair.
//
// # Safety
// `ctx` has not been freed; `attr` is NULL or valid.
struct bowline_sdr_qp *bowline_sdr_qp_create(const struct bowline_sdr_ctx *ctx,
                                             const struct bowline_sdr_qp_attr *attr);

// Gets the information that the peer needs.
//
// # Safety
// `qp` has not been freed; `info` may be written.
int32_t bowline_sdr_qp_info_get(const struct bowline_sdr_qp *qp, struct bowline_sdr_qp_info *info);

// Connects to a peer. Both ends must call it.
//
// # Safety
// `qp` has not been freed; `remote` is the information that the peer got about its own queue pair.
int32_t bowline_sdr_qp_connect(const struct bowline_sdr_qp *qp,
                               const struct bowline_sdr_qp_info *remote);

// Registers memory of the program. `flags` is BOWLINE_SDR_SEND or BOWLINE_SDR_RECV.
//
// # Safety
// `ctx` has not been freed. `addr` points to `length` bytes that can be read, and for receives
// written, until `bowline_sdr_mr_dereg` has returned.
struct bowline_sdr_mr *bowline_sdr_mr_reg(const struct bowline_sdr_ctx *ctx,
                                          void *addr,
                                          size_t length,
                                          uint32_t flags);

// Deregisters memory. From here on nothing reads or writes it; messages that still use it fail.
// NULL is ignored.
//
// # Safety
// `mr` is NULL or has not been freed.
void bowline_sdr_mr_dereg(struct bowline_sdr_mr *mr);

// Starts a message into the peer's next receive, to be sent piece by piece.
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

// Ends a message: nothing more will be added to it.
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

// Whether all of an ended message has been sent: BOWLINE_OK, or BOWLINE_E_TIMEOUT if not yet.
// Drives the device.
//
// # Safety
// `handle` has not been freed.
int32_t bowline_sdr_send_poll(const struct bowline_sdr_snd_handle *handle);

// Frees the handle of a message. Unsent bytes are dropped. The program may reuse the memory when
// `bowline_sdr_send_poll` has returned BOWLINE_OK or `bowline_sdr_mr_dereg` has returned. NULL is
// ignored.
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

// Gets the bitmap of the chunks that have arrived. Chunk c is bit c % 8 of byte c / 8, where bit 0
// is the lowest; bits beyond the last chunk are ones. The bitmap is a copy that is valid until the
// next call: call again for a newer one. Drives the device.
//
// # Safety
// `handle` has not been freed, and nothing else uses it; `bitmap` and `len` may be written.
int32_t bowline_sdr_recv_bitmap_get(struct bowline_sdr_rcv_handle *handle,
                                    const uint8_t **bitmap,
                                    size_t *len);

// Gets the sender's immediate, or returns BOWLINE_E_TIMEOUT if it has not arrived yet. Drives the
// device.
//
// # Safety
// `handle` has not been freed; `immediate` may be written.
int32_t bowline_sdr_recv_imm_get(const struct bowline_sdr_rcv_handle *handle, uint32_t *immediate);

// Ends a receive, whether complete or not, and frees its handle. Later packets are dropped, so the
// program may reuse the memory.
//
// # Safety
// `handle` has not been freed.
int32_t bowline_sdr_recv_complete(struct bowline_sdr_rcv_handle *handle);

// Frees a queue pair, once all handles of its messages have been freed. NULL is ignored.
//
// # Safety
// `qp` is NULL or has not been freed.
void bowline_sdr_qp_destroy(struct bowline_sdr_qp *qp);

// Frees a context, once everything created from it has been freed. NULL is ignored.
//
// # Safety
// `ctx` is NULL or has not been freed.
void bowline_sdr_context_destroy(struct bowline_sdr_ctx *ctx);

// Waits until an operation has ended, and returns whether it succeeded. May be called again.
//
// # Safety
// `work` has not been freed.
int32_t bowline_work_wait(const struct bowline_work *work);

// Waits until an operation has ended, and reports how. May be called again.
//
// # Safety
// `work` has not been freed; `report` may be written.
int32_t bowline_work_report(const struct bowline_work *work, struct bowline_report *report);

// Waits until an operation has ended, and writes its missing ranges, at most `max`.
//
// # Safety
// `work` has not been freed; `max` elements of `ranges` may be written.
int32_t bowline_work_missing(const struct bowline_work *work,
                             struct bowline_missing *ranges,
                             size_t max);

// Waits at most `seconds`; 0 only checks. Returns BOWLINE_E_TIMEOUT if the operation has not ended
// by then.
//
// # Safety
// `work` has not been freed.
int32_t bowline_work_wait_for(const struct bowline_work *work, double seconds);

// Frees the handle of an operation. Waits for the operation to end; then the program may use its
// memory again. NULL is ignored.
//
// # Safety
// `work` is NULL or has not been freed, and no thread waits for it.
void bowline_work_free(struct bowline_work *work);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BOWLINE_H */
