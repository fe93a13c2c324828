// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The calls of HybridGroup, each in steps within the host and between hosts.
#include <ATen/Functions.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "gradwire/process_group/dtype_internal.h"
#include "gradwire/process_group/hybrid/hybrid_call_internal.h"
#include "gradwire/process_group/message_timeout_internal.h"
#include "gradwire/process_group/ordered_calls_internal.h"
#include "gradwire/process_group/staged_call_internal.h"
#include "gradwire/process_group/tensor_memory_internal.h"
#include "gradwire/process_group/validate_internal.h"

namespace gradwire {
namespace {

using internal::copy_back;
using internal::memory_for_results;
using internal::memory_with_values;
using internal::Outputs;

// Below this an all-reduce takes as long as its messages' latency, of which one rank a host needs the fewest.
constexpr std::int64_t kLeaderBytes = 16 << 10;
// A larger one goes in pieces of so many bytes of the tensor, so many of them under way at a time.
constexpr std::int64_t kPieceBytes = 4 << 20;
constexpr std::size_t kPiecesUnderWay = 3;

// What the first level of an `op` over two levels does, and the second.
ReduceOp within_host(ReduceOp op) { return op.kind == ReduceOp::Kind::avg ? ReduceOp::sum() : op; }
ReduceOp between_hosts(ReduceOp op) {
  return op.kind == ReduceOp::Kind::avg || op.kind == ReduceOp::Kind::premul_sum ? ReduceOp::sum() : op;
}

void divide_for(ReduceOp op, const at::Tensor& sums, int ranks) {
  if (op.kind == ReduceOp::Kind::avg) internal::divide_average(sums, ranks);
}

ReduceOp in_range(ReduceOp op, const at::Tensor& tensor, int ranks) {
  const bool is_narrow = op.kind == ReduceOp::Kind::avg && internal::divides_before_sum(tensor.scalar_type());
  return is_narrow ? ReduceOp::premul_sum(1.0 / ranks) : op;
}

// Calls of a group with no elements, for Call::meet().
at::Tensor no_elements() { return at::empty({0}); }
Tensors none_for_each(const ProcessGroup& group) {
  return Tensors(static_cast<std::size_t>(group.size()), no_elements());
}
constexpr auto kGatherNothing = [](const auto& call, ProcessGroup& group) { call.gather_nothing(group); };
constexpr auto kScatterNothing = [](const auto& call, ProcessGroup& group) {
  const std::vector<Tensors> parts(group.rank() == 0 ? 1 : 0, none_for_each(group));
  group.scatter({no_elements()}, parts, call.template rooted<ScatterOptions>(0))->wait();
};
constexpr auto kExchangeNothing = [](const auto& call, ProcessGroup& group) {
  group.all_to_all(none_for_each(group), none_for_each(group), call.template options<AllToAllOptions>())->wait();
};
constexpr auto kAllGatherNothing = [](const auto& call, ProcessGroup& group) {
  group.all_gather_into_tensor(no_elements(), no_elements(), call.template options<AllGatherOptions>())->wait();
};
constexpr auto kReduceScatterNothing = [](const auto& call, ProcessGroup& group) {
  group.reduce_scatter_tensor(no_elements(), no_elements(), call.template options<ReduceScatterOptions>())->wait();
};

// Elements in order, as one row.
at::Tensor row_of(const at::Tensor& memory) { return memory.view({-1}); }

}  // namespace

void HybridGroup::reduce_through_leader(Call& call, const at::Tensor& row, ReduceOp op) {
  auto to_leader = call.rooted<ReduceOptions>(0);
  to_leader.op = within_host(op);
  call.local().reduce({row}, to_leader)->wait();
  if (is_leader()) call.cross().all_reduce({row}, call.reducing<AllReduceOptions>(between_hosts(op)))->wait();
  call.local().broadcast({row}, call.rooted<BroadcastOptions>(0))->wait();
}

// A part of a tensor on its way through both levels.
struct HybridGroup::Piece {
  at::Tensor shared;  // what divides by the ranks of the host, and what does not
  at::Tensor rest;
  at::Tensor mine;  // this rank's share; the last rank of a host speaks for the rest, too
  std::shared_ptr<Work> between;
};

HybridGroup::Piece HybridGroup::begin_piece(Call& call, const at::Tensor& row, ReduceOp op) {
  const int sharers = call.local().size();
  const std::int64_t share = row.numel() / sharers;
  Piece piece;
  piece.shared = row.narrow(0, 0, share * sharers);
  piece.rest = row.narrow(0, share * sharers, row.numel() - share * sharers);
  const bool has_rest = call.local().rank() == sharers - 1 && piece.rest.numel() > 0;
  piece.mine = at::empty({share + (has_rest ? piece.rest.numel() : 0)}, row.options());
  const auto within = call.reducing<ReduceScatterOptions>(within_host(op));
  call.local().reduce_scatter_tensor(piece.mine.narrow(0, 0, share), piece.shared, within)->wait();
  if (piece.rest.numel() > 0)
    call.local().all_reduce({piece.rest}, call.reducing<AllReduceOptions>(within_host(op)))->wait();
  if (has_rest) piece.mine.narrow(0, share, piece.rest.numel()).copy_(piece.rest);
  auto between = call.reducing<AllReduceOptions>(between_hosts(op));
  between.async = true;
  piece.between = call.cross().all_reduce({piece.mine}, between);
  return piece;
}

void HybridGroup::end_piece(Call& call, const Piece& piece) {
  const int sharers = call.local().size();
  const std::int64_t share = piece.shared.numel() / sharers;
  call.cross();  // it is whose Work this is
  piece.between->wait();
  call.local()
      .all_gather_into_tensor(piece.shared, piece.mine.narrow(0, 0, share), call.options<AllGatherOptions>())
      ->wait();
  if (piece.rest.numel() == 0) return;
  if (call.local().rank() == sharers - 1) piece.rest.copy_(piece.mine.narrow(0, share, piece.rest.numel()));
  call.local().broadcast({piece.rest}, call.rooted<BroadcastOptions>(sharers - 1))->wait();
}

// Piece by piece, so that neither the network nor the memory of the host waits for the other.
void HybridGroup::reduce_by_shares(Call& call, const at::Tensor& row, ReduceOp op) {
  std::deque<Piece> under_way;
  const auto end_first = [&] {
    end_piece(call, under_way.front());
    under_way.pop_front();
  };
  const std::int64_t each = kPieceBytes / row.element_size() / call.local().size() * call.local().size();
  for (std::int64_t begin = 0; begin < row.numel(); begin += each) {
    if (under_way.size() == kPiecesUnderWay) end_first();
    under_way.push_back(begin_piece(call, row.narrow(0, begin, std::min(each, row.numel() - begin)), op));
  }
  while (!under_way.empty()) end_first();
}

// rows[r] = part of rank r.
void HybridGroup::gather_rows(Call& call, const at::Tensor& rows, const at::Tensor& part) const {
  if (!even_) {
    call.meet(kAllGatherNothing);
    call.everyone().all_gather_into_tensor(row_of(rows), part, call.options<AllGatherOptions>())->wait();
    return;
  }
  call.meet_within_host(kAllGatherNothing);
  const at::Tensor of_hosts = at::empty({hosts() * part.numel()}, part.options());
  call.cross().all_gather_into_tensor(of_hosts, part, call.options<AllGatherOptions>())->wait();
  const at::Tensor gathered = at::empty({call.local().size(), hosts(), part.numel()}, part.options());
  call.local().all_gather_into_tensor(row_of(gathered), of_hosts, call.options<AllGatherOptions>())->wait();
  for (int rank = 0; rank < size(); ++rank)
    rows.select(0, rank).copy_(gathered.select(0, local_rank_of(rank)).select(0, host_of(rank)));
}

// part = op over all ranks of their rows[rank()].
void HybridGroup::reduce_rows(Call& call, const at::Tensor& part, const at::Tensor& rows, ReduceOp given) {
  const ReduceOp op = in_range(given, part, size());
  if (!even_) {
    call.meet(kReduceScatterNothing);
    call.everyone().reduce_scatter_tensor(part, row_of(rows), call.reducing<ReduceScatterOptions>(op))->wait();
    return;
  }
  const at::Tensor arranged = at::empty({call.local().size(), hosts(), part.numel()}, part.options());
  for (int rank = 0; rank < size(); ++rank)
    arranged.select(0, local_rank_of(rank)).select(0, host_of(rank)).copy_(rows.select(0, rank));
  const at::Tensor of_hosts = at::empty({hosts() * part.numel()}, part.options());
  const auto within = call.reducing<ReduceScatterOptions>(within_host(op));
  call.local().reduce_scatter_tensor(of_hosts, row_of(arranged), within)->wait();
  const auto between = call.reducing<ReduceScatterOptions>(between_hosts(op));
  call.cross().reduce_scatter_tensor(part, of_hosts, between)->wait();
  divide_for(op, part, size());
}

template <>
std::shared_ptr<Work> HybridGroup::run(AllReduceCall& given) {
  internal::Validator(*this, "all_reduce").reducible(given.tensors);
  require_reduction("all_reduce", given.tensors, given.options.op);
  return ordered(
      "all_reduce", given.options, Outputs::list(given.tensors),
      [this, tensors = given.tensors, given_op = given.options.op](Call& call) {
        for (const at::Tensor& tensor : tensors) {
          const ReduceOp op = in_range(given_op, tensor, size());
          const at::Tensor memory = *memory_with_values(tensor);
          const at::Tensor row = row_of(memory);
          if (even_ && call.local().size() > 1 && static_cast<std::int64_t>(memory.nbytes()) > kLeaderBytes) {
            reduce_by_shares(call, row, op);
          } else {
            reduce_through_leader(call, row, op);
          }
          divide_for(op, row, size());
          copy_back(tensor, memory);
        }
      });
}

template <>
std::shared_ptr<Work> HybridGroup::run(BroadcastCall& given) {
  return ordered("broadcast", given.options, Outputs::list(given.tensors),
                 [this, tensors = given.tensors, root = given.options.root](Call& call) {
                   const bool from_here = host_of(root) == host();
                   for (const at::Tensor& tensor : tensors) {
                     const at::Tensor memory = *memory_with_values(tensor);
                     if (from_here)
                       call.local().broadcast({memory}, call.rooted<BroadcastOptions>(local_rank_of(root)))->wait();
                     if (is_leader())
                       call.cross().broadcast({memory}, call.rooted<BroadcastOptions>(host_of(root)))->wait();
                     if (!from_here) call.local().broadcast({memory}, call.rooted<BroadcastOptions>(0))->wait();
                     copy_back(tensor, memory);
                   }
                 });
}

template <>
std::shared_ptr<Work> HybridGroup::run(ReduceCall& given) {
  internal::Validator(*this, "reduce").reducible(given.tensors);
  require_reduction("reduce", given.tensors, given.options.op);
  return ordered("reduce", given.options, Outputs::list(given.tensors),
                 [this, tensors = given.tensors, given_op = given.options.op, root = given.options.root](Call& call) {
                   const bool to_here = host_of(root) == host();
                   const int local_root = to_here ? local_rank_of(root) : 0;
                   for (const at::Tensor& tensor : tensors) {
                     const ReduceOp op = in_range(given_op, tensor, size());
                     const at::Tensor memory = *memory_with_values(tensor);
                     // Only the root's tensor may change.
                     const bool needs_room = is_leader() && rank() != root;
                     const at::Tensor sums = needs_room ? memory.clone() : memory;
                     auto within = call.rooted<ReduceOptions>(0);
                     within.op = within_host(op);
                     call.local().reduce({sums}, within)->wait();
                     if (is_leader()) {
                       auto between = call.rooted<ReduceOptions>(host_of(root));
                       between.op = between_hosts(op);
                       call.cross().reduce({sums}, between)->wait();
                     }
                     if (to_here && local_root != 0) {
                       const internal::MessageTimeout limit(call.options<CollectiveOptions>().timeout);
                       if (is_leader()) call.local().send({sums}, local_root)->wait();
                       if (rank() == root) call.local().recv({sums}, 0)->wait();
                     }
                     if (rank() != root) continue;
                     divide_for(op, sums, size());
                     copy_back(tensor, sums);
                   }
                 });
}

template <>
std::shared_ptr<Work> HybridGroup::run(AllGatherIntoTensorCall& given) {
  return ordered("all_gather_into_tensor", given.options, Outputs::one(given.output),
                 [this, output = given.output, input = given.input](Call& call) {
                   const at::Tensor part = row_of(*memory_with_values(input));
                   const at::Tensor result = *memory_for_results(output);
                   gather_rows(call, result.view({size(), part.numel()}), part);
                   copy_back(output, result);
                 });
}

template <>
std::shared_ptr<Work> HybridGroup::run(AllGatherCall& given) {
  return ordered("all_gather", given.options, Outputs::lists(given.outputs),
                 [this, outputs = given.outputs, inputs = given.inputs](Call& call) {
                   for (std::size_t i = 0; i < inputs.size(); ++i) {
                     const at::Tensor part = row_of(*memory_with_values(inputs[i]));
                     const at::Tensor rows = at::empty({size(), part.numel()}, part.options());
                     gather_rows(call, rows, part);
                     for (int rank = 0; rank < size(); ++rank) {
                       const at::Tensor& output = outputs[i][static_cast<std::size_t>(rank)];
                       output.copy_(rows.select(0, rank).view(output.sizes()));
                     }
                   }
                 });
}

template <>
std::shared_ptr<Work> HybridGroup::run(ReduceScatterTensorCall& given) {
  internal::Validator(*this, "reduce_scatter_tensor").reducible({given.output});
  require_reduction("reduce_scatter_tensor", {given.output}, given.options.op);
  return ordered("reduce_scatter_tensor", given.options, Outputs::one(given.output),
                 [this, output = given.output, input = given.input, op = given.options.op](Call& call) {
                   const at::Tensor result = *memory_for_results(output);
                   reduce_rows(call, row_of(result), memory_with_values(input)->view({size(), result.numel()}), op);
                   copy_back(output, result);
                 });
}

template <>
std::shared_ptr<Work> HybridGroup::run(ReduceScatterCall& given) {
  internal::Validator(*this, "reduce_scatter").reducible(given.outputs);
  require_reduction("reduce_scatter", given.outputs, given.options.op);
  return ordered("reduce_scatter", given.options, Outputs::list(given.outputs),
                 [this, outputs = given.outputs, inputs = given.inputs, op = given.options.op](Call& call) {
                   for (std::size_t i = 0; i < outputs.size(); ++i) {
                     const at::Tensor result = *memory_for_results(outputs[i]);
                     const at::Tensor rows = at::empty({size(), result.numel()}, result.options());
                     for (int rank = 0; rank < size(); ++rank) {
                       const at::Tensor& input = inputs[i][static_cast<std::size_t>(rank)];
                       rows.select(0, rank).copy_(input.reshape({-1}));
                     }
                     reduce_rows(call, row_of(result), rows, op);
                     copy_back(outputs[i], result);
                   }
                 });
}

template <>
std::shared_ptr<Work> HybridGroup::run(GatherCall& given) {
  return ordered("gather", given.options, Outputs::lists(given.outputs),
                 [outputs = given.outputs, inputs = given.inputs, root = given.options.root](Call& call) {
                   call.meet(kGatherNothing);
                   call.everyone().gather(outputs, inputs, call.rooted<GatherOptions>(root))->wait();
                 });
}

template <>
std::shared_ptr<Work> HybridGroup::run(ScatterCall& given) {
  return ordered("scatter", given.options, Outputs::list(given.outputs),
                 [outputs = given.outputs, inputs = given.inputs, root = given.options.root](Call& call) {
                   call.meet(kScatterNothing);
                   call.everyone().scatter(outputs, inputs, call.rooted<ScatterOptions>(root))->wait();
                 });
}

template <>
std::shared_ptr<Work> HybridGroup::run(AllToAllCall& given) {
  return ordered("all_to_all", given.options, Outputs::list(given.outputs),
                 [outputs = given.outputs, inputs = given.inputs](Call& call) {
                   call.meet(kExchangeNothing);
                   call.everyone().all_to_all(outputs, inputs, call.options<AllToAllOptions>())->wait();
                 });
}

template <>
std::shared_ptr<Work> HybridGroup::run(AllToAllSingleCall& given) {
  return ordered("all_to_all_single", given.options, Outputs::one(given.output),
                 [output = given.output, input = given.input, output_splits = given.output_splits,
                  input_splits = given.input_splits](Call& call) {
                   call.meet(kExchangeNothing);
                   call.everyone()
                       .all_to_all_single(output, input, output_splits, input_splits, call.options<AllToAllOptions>())
                       ->wait();
                 });
}

template <>
std::shared_ptr<Work> HybridGroup::run(BarrierCall& given) {
  // Over the groups that reductions take, so that ranks that call different things meet there and are told.
  return ordered("barrier", given.options, Outputs::list({}), [this](Call& call) {
    call.local().barrier(call.options<BarrierOptions>())->wait();
    if (is_leader()) call.cross().barrier(call.options<BarrierOptions>())->wait();
    call.local().barrier(call.options<BarrierOptions>())->wait();
  });
}

void HybridGroup::do_monitored_barrier(Milliseconds timeout, bool wait_all) {
  require_alive();
  groups_.everyone->monitored_barrier(timeout, wait_all);
}

std::shared_ptr<Work> HybridGroup::do_call(GroupCall& call) {
  if (!internal::is_on_device(call)) return do_call_on_cpu(call);
  return internal::staged_call(call, [this](GroupCall& staged) { return do_call_on_cpu(staged); });
}

std::shared_ptr<Work> HybridGroup::do_call_on_cpu(GroupCall& call) {
  const auto start = [&](auto& given) -> std::shared_ptr<Work> {
    if constexpr (requires { given.options; }) {
      return run(given);
    } else {
      require_alive();
      return own_message(call_on(*groups_.everyone, call, timeout()));
    }
  };
  return std::visit(start, call);
}

}  // namespace gradwire
