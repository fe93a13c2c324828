// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The calls of BackendGroup: each turns tensors into memory in order, for its body to hand to the channel.
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <span>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/backend_group_internal.h"
#include "gradwire/process_group/dtype_internal.h"
#include "gradwire/process_group/flat_tensors_internal.h"
#include "gradwire/process_group/message_timeout_internal.h"
#include "gradwire/process_group/tensor_memory_internal.h"
#include "gradwire/process_group/validate_internal.h"

namespace gradwire::internal {
namespace {

// Lists of several tensors of one type go as one message up to this size: the copy costs less than further rounds.
constexpr std::int64_t kFlattenBytes = 128 << 10;

void* written(const at::Tensor& memory) { return memory.mutable_data_ptr(); }
const void* read(const at::Tensor& memory) { return memory.const_data_ptr(); }

std::byte* bytes_of(const at::Tensor& memory) { return static_cast<std::byte*>(memory.mutable_data_ptr()); }

// On the stack for the usual number of ranks.
using Memories = c10::SmallVector<Memory, 8>;

Memories memories_with_values(const Tensors& tensors) {
  Memories memories;
  for (const at::Tensor& tensor : tensors) memories.push_back(memory_with_values(tensor));
  return memories;
}

Memories memories_for_results(const Tensors& tensors) {
  Memories memories;
  for (const at::Tensor& tensor : tensors) memories.push_back(memory_for_results(tensor));
  return memories;
}

void copy_all_back(const Tensors& tensors, const Memories& memories) {
  for (std::size_t i = 0; i < tensors.size(); ++i) copy_back(tensors[i], *memories[i]);
}

// The pointers of a call: on the stack for the usual number of ranks.
template <class Pointer>
using Pointers = c10::SmallVector<Pointer, 16>;

Pointers<void*> pointers_to_write(const Memories& memories) {
  Pointers<void*> pointers;
  for (const Memory& memory : memories) pointers.push_back(written(*memory));
  return pointers;
}

Pointers<const void*> pointers_to_read(const Memories& memories) {
  Pointers<const void*> pointers;
  for (const Memory& memory : memories) pointers.push_back(read(*memory));
  return pointers;
}

// The parts of memory in order that belong to the ranks, `bytes` each.
Pointers<void*> parts_to_write(const at::Tensor& memory, int ranks, std::size_t bytes) {
  Pointers<void*> pointers;
  for (int rank = 0; rank < ranks; ++rank)
    pointers.push_back(bytes_of(memory) + static_cast<std::size_t>(rank) * bytes);
  return pointers;
}

// What tells the ranks that their lists are alike (CallOptions::parts).
std::uint64_t parts_of(const Tensors& tensors) {
  c10::SmallVector<std::int64_t, 32> lengths;
  for (const at::Tensor& tensor : tensors) lengths.push_back(tensor.numel());
  return parts_of_lengths(lengths);
}

bool worth_flattening(const Tensors& tensors) {
  if (tensors.size() < 2) return false;
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != tensors.front().scalar_type()) return false;
    bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes <= kFlattenBytes;
}

// Calls `one(memory, call)` for each tensor's values, or once for all of them where `may_flatten`, and brings the
// results back.
template <class One>
void for_each_in_place(const Tensors& tensors, const CallOptions& call, bool may_flatten, const One& one) {
  if (may_flatten && worth_flattening(tensors)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor flat = flatten(tensors);
    CallOptions of_list = call;
    of_list.parts = parts_of(tensors);
    one(flat, of_list);
    return unflatten(flat, tensors);
  }
  for (const at::Tensor& tensor : tensors) {
    const Memory memory = memory_with_values(tensor);
    one(*memory, call);
    copy_back(tensor, *memory);
  }
}

// Slices of the rows of memory in order: `splits` rows to each rank.
template <class SliceOf, class Pointer>
Pointers<SliceOf> slices(Pointer* begin, std::span<const std::int64_t> splits, std::size_t row_count,
                         std::size_t element_bytes) {
  Pointers<SliceOf> all;
  for (const std::int64_t rows : splits) {
    const std::size_t count = static_cast<std::size_t>(rows) * row_count;
    all.push_back({begin, count});
    begin += count * element_bytes;
  }
  return all;
}

}  // namespace

// A call that waits keeps its body where it is: on the stack.
template <class CallBody>
std::shared_ptr<Work> BackendGroup::collective(const char* operation, const CollectiveOptions& options, Outputs outputs,
                                               CallBody body) {
  if (options.async) return post(operation, options, std::move(outputs), std::move(body));
  const std::shared_ptr<Channel> channel = this->channel(operation);
  const CallOptions call = call_options(options, when_called());
  const auto run_body = [&](const Outputs& given) { body(*channel, call, given); };
  // A reference to the lambda fits into a std::function; the lambda itself would be allocated.
  auto work = calls_.run(std::move(outputs), std::ref(run_body), [this] { abort(kInterrupted); });
  if (work == nullptr) fail_shut_down(operation);
  return work;
}

template <>
std::shared_ptr<Work> BackendGroup::run(BroadcastCall& given) {
  return collective("broadcast", given.options, Outputs::list(std::move(given.tensors)),
                    [root = given.options.root](Channel& channel, const CallOptions& call, const Outputs& outputs) {
                      const auto one = [&](const at::Tensor& memory, const CallOptions& options) {
                        const Elements elements = elements_of(memory);
                        channel.broadcast(written(memory), elements.count, elements.dtype, root, options);
                      };
                      for_each_in_place(outputs.flat, call, /*may_flatten=*/true, one);
                    });
}

template <>
std::shared_ptr<Work> BackendGroup::run(AllReduceCall& given) {
  Validator(*this, "all_reduce").reducible(given.tensors);
  return collective("all_reduce", given.options, Outputs::list(std::move(given.tensors)),
                    [op = given.options.op](Channel& channel, const CallOptions& call, const Outputs& outputs) {
                      const auto one = [&](const at::Tensor& memory, const CallOptions& options) {
                        const Elements elements = elements_of(memory);
                        channel.all_reduce(written(memory), elements.count, elements.dtype, op, options);
                      };
                      // With a factor the channel does not compare the parts of a list.
                      for_each_in_place(outputs.flat, call, op.kind != ReduceOp::Kind::premul_sum, one);
                    });
}

template <>
std::shared_ptr<Work> BackendGroup::run(ReduceCall& given) {
  Validator(*this, "reduce").reducible(given.tensors);
  return collective("reduce", given.options, Outputs::list(std::move(given.tensors)),
                    [op = given.options.op, root = given.options.root](Channel& channel, const CallOptions& call,
                                                                       const Outputs& outputs) {
                      for (const at::Tensor& tensor : outputs.flat) {
                        const Memory memory = memory_with_values(tensor);
                        const Elements elements = elements_of(*memory);
                        const bool here = channel.rank() == root;
                        channel.reduce(read(*memory), here ? written(*memory) : nullptr, elements.count, elements.dtype,
                                       op, root, call);
                        if (here) copy_back(tensor, *memory);
                      }
                    });
}

template <>
std::shared_ptr<Work> BackendGroup::run(AllGatherCall& given) {
  return collective(
      "all_gather", given.options, Outputs::lists(std::move(given.outputs)),
      [inputs = std::move(given.inputs)](Channel& channel, const CallOptions& call, const Outputs& outputs) {
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          const Memory input = memory_with_values(inputs[i]);
          const Memories results = memories_for_results(outputs.list_at(i));
          const Elements elements = elements_of(*input);
          channel.all_gather(read(*input), pointers_to_write(results), elements.count, elements.dtype, call);
          copy_all_back(outputs.list_at(i), results);
        }
      });
}

template <>
std::shared_ptr<Work> BackendGroup::run(AllGatherIntoTensorCall& given) {
  return collective(
      "all_gather_into_tensor", given.options, Outputs::one(std::move(given.output)),
      [input = std::move(given.input)](Channel& channel, const CallOptions& call, const Outputs& outputs) {
        const at::Tensor& output = outputs.flat.front();
        const Memory memory = memory_with_values(input);
        const Memory result = memory_for_results(output);
        const Elements elements = elements_of(*memory);
        channel.all_gather(read(*memory), parts_to_write(*result, channel.size(), memory->nbytes()), elements.count,
                           elements.dtype, call);
        copy_back(output, *result);
      });
}

template <>
std::shared_ptr<Work> BackendGroup::run(GatherCall& given) {
  return collective("gather", given.options, Outputs::lists(std::move(given.outputs)),
                    [inputs = std::move(given.inputs), root = given.options.root](
                        Channel& channel, const CallOptions& call, const Outputs& outputs) {
                      for (std::size_t i = 0; i < inputs.size(); ++i) {
                        const Memory input = memory_with_values(inputs[i]);
                        const bool here = channel.rank() == root;
                        const Memories results = here ? memories_for_results(outputs.list_at(i)) : Memories();
                        const Elements elements = elements_of(*input);
                        channel.gather(read(*input), pointers_to_write(results), elements.count, elements.dtype, root,
                                       call);
                        if (here) copy_all_back(outputs.list_at(i), results);
                      }
                    });
}

template <>
std::shared_ptr<Work> BackendGroup::run(ScatterCall& given) {
  return collective("scatter", given.options, Outputs::list(std::move(given.outputs)),
                    [inputs = std::move(given.inputs), root = given.options.root](
                        Channel& channel, const CallOptions& call, const Outputs& outputs) {
                      for (std::size_t i = 0; i < outputs.flat.size(); ++i) {
                        const bool here = channel.rank() == root;
                        const Memories parts = here ? memories_with_values(inputs[i]) : Memories();
                        const Memory result = memory_for_results(outputs.flat[i]);
                        const Elements elements = elements_of(*result);
                        channel.scatter(pointers_to_read(parts), written(*result), elements.count, elements.dtype, root,
                                        call);
                        copy_back(outputs.flat[i], *result);
                      }
                    });
}

template <>
std::shared_ptr<Work> BackendGroup::run(ReduceScatterCall& given) {
  Validator(*this, "reduce_scatter").reducible(given.outputs);
  return collective("reduce_scatter", given.options, Outputs::list(std::move(given.outputs)),
                    [inputs = std::move(given.inputs), op = given.options.op](Channel& channel, const CallOptions& call,
                                                                              const Outputs& outputs) {
                      for (std::size_t i = 0; i < outputs.flat.size(); ++i) {
                        const Memories parts = memories_with_values(inputs[i]);
                        const Memory result = memory_for_results(outputs.flat[i]);
                        const Elements elements = elements_of(*result);
                        channel.reduce_scatter(pointers_to_read(parts), written(*result), elements.count,
                                               elements.dtype, op, call);
                        copy_back(outputs.flat[i], *result);
                      }
                    });
}

template <>
std::shared_ptr<Work> BackendGroup::run(ReduceScatterTensorCall& given) {
  Validator(*this, "reduce_scatter_tensor").reducible(given.output);
  return collective("reduce_scatter_tensor", given.options, Outputs::one(std::move(given.output)),
                    [input = std::move(given.input), op = given.options.op](Channel& channel, const CallOptions& call,
                                                                            const Outputs& outputs) {
                      const at::Tensor& output = outputs.flat.front();
                      const Memory memory = memory_with_values(input);
                      const Memory result = memory_for_results(output);
                      const Elements elements = elements_of(*result);
                      const auto* begin = static_cast<const std::byte*>(read(*memory));
                      Pointers<const void*> parts;
                      for (int rank = 0; rank < channel.size(); ++rank)
                        parts.push_back(begin + static_cast<std::size_t>(rank) * result->nbytes());
                      channel.reduce_scatter(parts, written(*result), elements.count, elements.dtype, op, call);
                      copy_back(output, *result);
                    });
}

template <>
std::shared_ptr<Work> BackendGroup::run(AllToAllCall& given) {
  return collective(
      "all_to_all", given.options, Outputs::list(std::move(given.outputs)),
      [inputs = std::move(given.inputs)](Channel& channel, const CallOptions& call, const Outputs& outputs) {
        const Memories parts = memories_with_values(inputs);
        const Memories results = memories_for_results(outputs.flat);
        Pointers<ConstSlice> from;
        Pointers<Slice> to;
        for (const Memory& part : parts) from.push_back({read(*part), elements_of(*part).count});
        for (const Memory& result : results) to.push_back({written(*result), elements_of(*result).count});
        channel.all_to_all(from, to, elements_of(*parts.front()).dtype, call);
        copy_all_back(outputs.flat, results);
      });
}

template <>
std::shared_ptr<Work> BackendGroup::run(AllToAllSingleCall& given) {
  return collective("all_to_all_single", given.options, Outputs::one(std::move(given.output)),
                    [input = std::move(given.input), output_splits = std::move(given.output_splits),
                     input_splits = std::move(given.input_splits)](Channel& channel, const CallOptions& call,
                                                                   const Outputs& outputs) {
                      const at::Tensor& output = outputs.flat.front();
                      const Memory memory = memory_with_values(input);
                      const Memory result = memory_for_results(output);
                      const Elements elements = elements_of(*memory);
                      const std::size_t element_bytes = size_of(elements.dtype);
                      std::size_t row =
                          memory->element_size() / element_bytes;  // elements of a row; 1 unless it goes as bytes
                      for (const std::int64_t extent : memory->sizes().slice(1))
                        row *= static_cast<std::size_t>(extent);
                      const auto from = slices<ConstSlice>(static_cast<const std::byte*>(read(*memory)), input_splits,
                                                           row, element_bytes);
                      const auto to = slices<Slice>(bytes_of(*result), output_splits, row, element_bytes);
                      channel.all_to_all(from, to, elements.dtype, call);
                      copy_back(output, *result);
                    });
}

template <>
std::shared_ptr<Work> BackendGroup::run(BarrierCall& given) {
  return collective("barrier", given.options, Outputs(),
                    [](Channel& channel, const CallOptions& call, const Outputs&) { channel.barrier(call); });
}

template <>
std::shared_ptr<Work> BackendGroup::run(SendCall& given) {
  const std::shared_ptr<Channel> channel = this->channel("send");
  const Deadline deadline = Deadline::after(MessageTimeout::of(*this), when_called());
  Messages messages;
  for (const at::Tensor& tensor : given.tensors) messages.push_back({tensor, *memory_with_values(tensor)});
  Requests requests;
  try {
    for (const Message& message : messages) {
      requests.push_back(channel->isend(read(message.memory), message.memory.nbytes(), given.destination,
                                        static_cast<std::uint32_t>(given.tag)));
    }
  } catch (const InvalidArgument&) {
    throw;
  } catch (const std::exception&) {
    return failed_work(std::current_exception());
  }
  return std::make_shared<PointToPointWork>(false, std::move(messages), std::move(requests), deadline, channel,
                                            watcher_, shared_from_this());
}

std::shared_ptr<Work> BackendGroup::receive(const char* operation, Tensors& tensors, int source, int tag) {
  const std::shared_ptr<Channel> channel = this->channel(operation);
  const Deadline deadline = Deadline::after(MessageTimeout::of(*this), when_called());
  Messages messages;
  for (const at::Tensor& tensor : tensors) messages.push_back({tensor, *memory_for_results(tensor)});
  Requests requests;
  try {
    for (const Message& message : messages) {
      requests.push_back(
          channel->irecv(written(message.memory), message.memory.nbytes(), source, static_cast<std::uint32_t>(tag)));
    }
  } catch (const InvalidArgument&) {
    throw;
  } catch (const std::exception&) {
    return failed_work(std::current_exception());
  }
  return std::make_shared<PointToPointWork>(true, std::move(messages), std::move(requests), deadline, channel, watcher_,
                                            shared_from_this());
}

template <>
std::shared_ptr<Work> BackendGroup::run(RecvCall& given) {
  return receive("recv", given.tensors, given.source, given.tag);
}

template <>
std::shared_ptr<Work> BackendGroup::run(RecvAnySourceCall& given) {
  return receive("recv_anysource", given.tensors, kAnySource, given.tag);
}

std::shared_ptr<Work> BackendGroup::do_call(GroupCall& call) {
  const auto run_one = [this](GroupCall& one) { return std::visit([this](auto& given) { return run(given); }, one); };
  if (!is_on_device(call)) return run_one(call);
  // The limit of a piece begins when its copy is there: the device may have other work before that.
  const auto make = [&](GroupCall& one) {
    const CallLabel* const label = LabelledCall::current();
    const LabelledCall piece(label == nullptr ? CallLabel() : label->from_now());
    return run_one(one);
  };
  if (!in_place_) return staged_call(call, make);
  const CollectiveOptions* const options = options_of(call);
  return staged_call(call, make, [this, options](const c10::Stream& stream) {
    return staging_.lend(stream, [&](std::int64_t bytes) { return in_place_memory(bytes, *options); });
  });
}

}  // namespace gradwire::internal
