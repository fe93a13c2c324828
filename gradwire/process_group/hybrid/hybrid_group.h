// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Ranks on several hosts as one group: within a host over one group (shared memory), between hosts over another that
// crosses them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

namespace internal {
class OrderedCalls;
struct Outputs;
}  // namespace internal

// What crosses the network is what has to, with B bytes a call, H hosts of L ranks each:
//   all_reduce                      sum within the host; then each rank reduces its 1/L of the result with the ranks of
//                                   its number on the other hosts; then shared within the host. A host sends
//                                   2 B (H-1)/H, once, not once a rank.
//   broadcast, reduce               one rank a host speaks for it.
//   all_gather, reduce_scatter      a rank's part crosses once to each other host.
//   gather, scatter, all_to_all, barrier, point to point     the group that crosses hosts, as it is.
// A large all-reduce goes in pieces, so that the sums within the host take their time while the network works.
// Small all-reduces, and all on hosts with different numbers of ranks, go through one rank a host. all_gather and
// reduce_scatter on such hosts go through the group that crosses hosts, as they are.
//
// Which ranks share a host may be any; ranks of one need not follow each other. Reductions combine the ranks of a host
// in their order, then the hosts in theirs (by their lowest rank): all ranks hold the same bits where both groups
// promise that, but not those of a flat group; half types are rounded once a level. avg is the sum over both levels,
// divided by the number of ranks.
//
// Calls, deadlines and Works are as of any group of ours: one sequence, on one worker thread or at once. After an error
// in a call the group is at its end on this rank: the groups below are aborted with its reason, so that the other ranks
// get it too where those groups can tell them, and every later call fails with it.
class HybridGroup final : public ProcessGroup, public Closable {
 public:
  // Collective over `everyone`, all ranks over an engine that crosses hosts; `local` is the ranks of this rank's host,
  // in the order that they have in `everyone`. Makes the groups between hosts by everyone->split(). Both groups belong
  // to the new one: nobody else may call them. Throws InvalidArgument on all ranks when a `local` is not in order,
  // UnsupportedError where `everyone` has no split.
  static std::shared_ptr<HybridGroup> make(std::shared_ptr<ProcessGroup> everyone, std::shared_ptr<ProcessGroup> local);
  ~HybridGroup() override;

  // The number of hosts, and on which of them (in the order of their lowest ranks) `rank` is.
  int hosts() const noexcept { return static_cast<int>(ranks_of_.size()); }
  int host_of(int rank) const { return host_of_.at(static_cast<std::size_t>(rank)); }

  // The ranks of this host, and those of this rank's number on every host, host by host. Where hosts have different
  // numbers of ranks, `cross` is null but on the first rank of each. For hooks that do one thing within a host and
  // another between hosts: they call these instead of this group, in the same order on all ranks.
  const std::shared_ptr<ProcessGroup>& local() const noexcept { return groups_.local; }
  const std::shared_ptr<ProcessGroup>& cross() const noexcept { return groups_.cross; }
  // Whether this rank is the first of its host.
  bool is_leader() const { return groups_.local->rank() == 0; }

  bool supports(c10::DeviceType device) const override;
  void abort(const std::string& reason) override;
  void shutdown() override;
  bool is_open() const override;

 protected:
  std::string get_backend_name() const override { return "hybrid"; }
  std::shared_ptr<Work> do_broadcast(Tensors& tensors, const BroadcastOptions& options) override;
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions& options) override;
  std::shared_ptr<Work> do_reduce(Tensors& tensors, const ReduceOptions& options) override;
  std::shared_ptr<Work> do_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const AllGatherOptions& options) override;
  std::shared_ptr<Work> do_all_gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                  const AllGatherOptions& options) override;
  std::shared_ptr<Work> do_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const GatherOptions& options) override;
  std::shared_ptr<Work> do_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const ScatterOptions& options) override;
  std::shared_ptr<Work> do_reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const ReduceScatterOptions& options) override;
  std::shared_ptr<Work> do_reduce_scatter_tensor(at::Tensor& output, at::Tensor& input,
                                                 const ReduceScatterOptions& options) override;
  std::shared_ptr<Work> do_all_to_all(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options) override;
  std::shared_ptr<Work> do_all_to_all_single(at::Tensor& output, at::Tensor& input,
                                             std::vector<std::int64_t>& output_splits,
                                             std::vector<std::int64_t>& input_splits,
                                             const AllToAllOptions& options) override;
  std::shared_ptr<Work> do_barrier(const BarrierOptions& options) override;
  void do_monitored_barrier(Milliseconds timeout, bool wait_all) override;
  std::shared_ptr<Work> do_send(Tensors& tensors, int destination, int tag) override;
  std::shared_ptr<Work> do_recv(Tensors& tensors, int source, int tag) override;
  std::shared_ptr<Work> do_recv_anysource(Tensors& tensors, int tag) override;
  std::shared_ptr<ProcessGroup> do_dup() override;
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override;
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override;

 private:
  struct Groups {
    std::shared_ptr<ProcessGroup> everyone;
    std::shared_ptr<ProcessGroup> local;
    std::shared_ptr<ProcessGroup> cross;
  };
  class Call;
  struct Piece;
  using Body = std::function<void(Call& call)>;

  HybridGroup(Groups groups, std::vector<int> host_of);

  const std::vector<int>& ranks_of(int host) const { return ranks_of_[static_cast<std::size_t>(host)]; }
  int host() const { return host_of(rank()); }
  // The number of `rank` among the ranks of its host.
  int local_rank_of(int rank) const;

  // The steps of the collectives, on memory in order.
  void reduce_through_leader(Call& call, const at::Tensor& row, ReduceOp op);
  void reduce_by_shares(Call& call, const at::Tensor& row, ReduceOp op);
  static Piece begin_piece(Call& call, const at::Tensor& row, ReduceOp op);
  static void end_piece(Call& call, const Piece& piece);
  void gather_rows(Call& call, const at::Tensor& rows, const at::Tensor& part);
  void reduce_rows(Call& call, const at::Tensor& part, const at::Tensor& rows, ReduceOp op);

  std::shared_ptr<Work> ordered(const char* operation, const CollectiveOptions& options, internal::Outputs outputs,
                                Body body);
  void in_turn(const char* operation, const Body& body);
  void require_alive() const;
  void fail(std::exception_ptr error, const std::string& reason);
  std::string describe(const char* operation) const;

  const Groups groups_;
  const std::vector<int> host_of_;                // by rank
  const std::vector<std::vector<int>> ranks_of_;  // by host
  const bool even_;  // every host has the same number of ranks, so that each rank of a host can speak for a part
  struct State;
  const std::unique_ptr<State> state_;                   // the first error, duplicates
  const std::unique_ptr<internal::OrderedCalls> calls_;  // goes first: its worker uses the groups
};

}  // namespace gradwire
