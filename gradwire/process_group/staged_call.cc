// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/staged_call_internal.h"
#include "gradwire/process_group/tensor_memory_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::internal {
namespace {

// How a call with tensors of the CPU is made, and where its large tensors are staged.
struct Make {
  const std::function<std::shared_ptr<Work>(GroupCall& call)>& call;
  const LendStaging& lend;
};

// Large enough that the start of a copy and of a collective costs little, and small enough that two are quickly filled.
constexpr std::int64_t kPieceBytes = StagingMemory::kBufferBytes;
// Up to here memory of the call's own costs less than buffers that a group keeps are worth.
constexpr std::int64_t kSmallBytes = std::int64_t{256} << 10;

c10::Stream current_stream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Newer versions of torch have the question, older ones have not.
template <class Guard>
bool captures(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return false;
  }
}

// Pinned for CUDA, as far as the machine has such memory: a rank that failed here would leave the others waiting.
at::Tensor staging_for(const at::Tensor& tensor, at::IntArrayRef sizes) {
  const auto options = at::TensorOptions(at::kCPU).dtype(tensor.scalar_type());
  if (!tensor.is_cuda()) return at::empty(sizes, options);
  try {
    return at::empty(sizes, options.pinned_memory(true));
  } catch (const c10::Error&) {
    return at::empty(sizes, options);
  }
}

// Whether a copy of `memory` onto the device of `tensor` may go on after the call: memory that is not pinned may be
// given to others before it has been read.
bool may_be_read_later(const at::Tensor& tensor, const at::Tensor& memory) {
  return tensor.is_cuda() && memory.is_pinned();
}

// The host waits until the current stream of `device` has done what it has queued so far.
class Mark {
 public:
  explicit Mark(const at::Device& device) : event_(device.type()) { event_.record(current_stream(device)); }
  void wait() const { event_.synchronize(); }

 private:
  c10::Event event_;
};

// The staging memory of one call.
class Staging {
 public:
  at::Tensor reads(const at::Tensor& tensor) { return stage(tensor, true, false); }
  at::Tensor writes(const at::Tensor& tensor) { return stage(tensor, false, true); }
  at::Tensor both(const at::Tensor& tensor) { return stage(tensor, true, true); }
  Tensors each(const Tensors& tensors, at::Tensor (Staging::*stage_one)(const at::Tensor&)) {
    Tensors staged;
    for (const at::Tensor& tensor : tensors) staged.push_back((this->*stage_one)(tensor));
    return staged;
  }
  std::vector<Tensors> each(const std::vector<Tensors>& lists, at::Tensor (Staging::*stage_one)(const at::Tensor&)) {
    std::vector<Tensors> staged;
    for (const Tensors& list : lists) staged.push_back(each(list, stage_one));
    return staged;
  }

  // Waits until what is read has arrived.
  void settle() const {
    for (const at::Device& device : devices_of(read_)) Mark(device).wait();
  }
  void bring_back() const {
    for (const auto& [tensor, memory] : written_) {
      const at::Tensor on_device = *memory_for_results(tensor);
      on_device.copy_(memory, /*non_blocking=*/may_be_read_later(tensor, memory));
      copy_back(tensor, on_device);
    }
  }

 private:
  at::Tensor stage(const at::Tensor& tensor, bool read, bool write) {
    if (tensor.is_cpu()) return tensor;
    at::Tensor memory = staging_for(tensor, tensor.sizes());
    if (read) {
      memory.copy_(*memory_with_values(tensor), /*non_blocking=*/true);
      read_.push_back(tensor);
    }
    if (write) written_.emplace_back(tensor, memory);
    return memory;
  }

  Tensors read_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
};

// `given` with fields of its own, on the CPU.
template <class Given, class... Fields>
std::shared_ptr<Work> make_with(const Make& make, const Given& given, Fields&... fields) {
  GroupCall staged = [&]() -> GroupCall {
    if constexpr (requires { given.output_splits; }) {
      return Given{fields..., given.output_splits, given.input_splits, given.options};
    } else {
      return Given{fields..., given.options};
    }
  }();
  options_of(staged)->async = false;
  return make.call(staged);
}

template <class Given>
void call_whole(const Make& make, Given& given) {
  Staging staging;
  std::shared_ptr<Work> work;
  if constexpr (requires { given.outputs; }) {
    auto outputs = staging.each(given.outputs, &Staging::writes);
    auto inputs = staging.each(given.inputs, &Staging::reads);
    staging.settle();
    work = make_with(make, given, outputs, inputs);
  } else if constexpr (requires { given.output; }) {
    at::Tensor output = staging.writes(given.output);
    at::Tensor input = staging.reads(given.input);
    staging.settle();
    work = make_with(make, given, output, input);
  } else {
    auto tensors = staging.each(given.tensors, &Staging::both);
    staging.settle();
    work = make_with(make, given, tensors);
  }
  work->wait();
  staging.bring_back();
}

// One tensor of all_reduce, broadcast or reduce. While a piece is on the network, the device copies the next one, and
// the result of the last one.
template <class Given>
class Pieces {
 public:
  Pieces(const Make& make, Given& given, const at::Tensor& tensor)
      : make_(make),
        given_(given),
        memory_(*memory_with_values(tensor)),
        flat_(memory_.view({-1})),
        length_(std::max<std::int64_t>(1, kPieceBytes / static_cast<std::int64_t>(tensor.element_size()))) {
    const Mark context(tensor.device());  // a thread without a call of CUDA so far has none
    if (make.lend) lease_ = make.lend(current_stream(tensor.device()));
    const std::int64_t longest = std::min(length_, flat_.numel());
    for (int i = 0; i < (flat_.numel() > length_ ? 2 : 1); ++i) {
      buffers_[i] = lease_ ? lease_->buffer(i, tensor.scalar_type()).narrow(0, 0, longest)  //
                           : staging_for(tensor, {longest});
    }
  }

  void run(const at::Tensor& tensor) {
    const std::int64_t pieces = (flat_.numel() + length_ - 1) / length_;
    fetch(0);
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      const Mark here = *std::exchange(fetched_, std::nullopt);
      if (piece + 1 < pieces) fetch(piece + 1);
      here.wait();
      Tensors one{buffer(piece)};
      make_with(make_, given_, one)->wait();
      part(piece).copy_(buffer(piece), /*non_blocking=*/lease_ != nullptr || may_be_read_later(memory_, buffers_[0]));
    }
    copy_back(tensor, memory_);
  }

 private:
  at::Tensor part(std::int64_t piece) const {
    const std::int64_t begin = piece * length_;
    return flat_.narrow(0, begin, std::min(length_, flat_.numel() - begin));
  }
  // The stream fills a buffer only after it has copied the buffer's last result.
  at::Tensor buffer(std::int64_t piece) const { return buffers_[piece % 2].narrow(0, 0, part(piece).numel()); }
  void fetch(std::int64_t piece) {
    buffer(piece).copy_(part(piece), /*non_blocking=*/true);
    fetched_.emplace(flat_.device());
  }

  const Make& make_;
  Given& given_;
  const at::Tensor memory_;  // the tensor, or a copy in order
  const at::Tensor flat_;
  const std::int64_t length_;                    // of a piece, in elements
  std::unique_ptr<StagingMemory::Lease> lease_;  // null: the buffers are the call's own
  at::Tensor buffers_[2];
  std::optional<Mark> fetched_;  // of the piece that is fetched and not yet sent
};

// Small tensors go together, up to kPieceBytes at a time, and each large one by itself.
template <class Given>
void call_in_place(const Make& make, Given& given) {
  const std::int64_t longest = make.lend ? kSmallBytes : kPieceBytes;
  const bool on_devices = std::none_of(given.tensors.begin(), given.tensors.end(),
                                       [](const at::Tensor& tensor) { return tensor.is_cpu(); });
  const auto is_large = [&](const at::Tensor& tensor) {
    return on_devices && static_cast<std::int64_t>(tensor.nbytes()) > longest;
  };
  Tensors together;
  std::int64_t bytes = 0;
  const auto flush = [&] {
    if (together.empty()) return;
    Given some{together, given.options};
    call_whole(make, some);
    together.clear();
    bytes = 0;
  };
  for (const at::Tensor& tensor : given.tensors) {
    if (is_large(tensor)) continue;
    const auto more = static_cast<std::int64_t>(tensor.nbytes());
    if (bytes + more > kPieceBytes) flush();
    together.push_back(tensor);
    bytes += more;
  }
  flush();
  for (const at::Tensor& tensor : given.tensors) {
    if (is_large(tensor)) Pieces<Given>(make, given, tensor).run(tensor);
  }
}

std::shared_ptr<Work> send(const Make& make, const SendCall& given) {
  Staging staging;
  Tensors tensors = staging.each(given.tensors, &Staging::reads);
  staging.settle();
  GroupCall staged = SendCall{tensors, given.destination, given.tag};
  return make.call(staged);  // the Work keeps the staging memory
}

template <class Given>
std::shared_ptr<Work> receive(const Make& make, const Given& given) {
  auto staging = std::make_shared<Staging>();
  Tensors tensors = staging->each(given.tensors, &Staging::writes);
  GroupCall staged = [&]() -> GroupCall {
    if constexpr (requires { given.source; }) {
      return Given{tensors, given.source, given.tag};
    } else {
      return Given{tensors, given.tag};
    }
  }();
  return work_after(
      make.call(staged), [staging] { staging->bring_back(); }, Outputs::list(given.tensors));
}

template <class Given>
Outputs outputs_of(const Given& given) {
  if constexpr (std::is_same_v<Given, AllGatherCall> || std::is_same_v<Given, GatherCall>) {
    return Outputs::lists(given.outputs);
  } else if constexpr (requires { given.outputs; }) {
    return Outputs::list(given.outputs);
  } else if constexpr (requires { given.output; }) {
    return Outputs::one(given.output);
  } else {
    return Outputs::list(given.tensors);
  }
}

template <class Given>
std::shared_ptr<Work> staged(const Make& make, Given& given) {
  if constexpr (std::is_same_v<Given, BarrierCall>) {
    GroupCall same = given;
    return make.call(same);
  } else if constexpr (std::is_same_v<Given, SendCall>) {
    return send(make, given);
  } else if constexpr (std::is_same_v<Given, RecvCall> || std::is_same_v<Given, RecvAnySourceCall>) {
    return receive(make, given);
  } else {
    try {
      if constexpr (requires { given.tensors; }) {
        call_in_place(make, given);
      } else {
        call_whole(make, given);
      }
    } catch (const InvalidArgument&) {
      throw;
    } catch (const UnsupportedError&) {
      throw;
    } catch (...) {
      return failed_work(std::current_exception());
    }
    return completed_work(outputs_of(given));
  }
}

}  // namespace

bool is_stageable(c10::DeviceType device) {
  const bool has_streams =
      device == c10::DeviceType::CUDA || device == c10::DeviceType::XPU || device == c10::DeviceType::PrivateUse1;
  return has_streams && c10::impl::hasDeviceGuardImpl(device);
}

bool stages(const ProcessGroup& group, c10::DeviceType device) { return stages_devices(group) && is_stageable(device); }

bool is_captured(const c10::Device& device) {
  return !device.is_cpu() && captures(c10::impl::VirtualGuardImpl(device.type()), current_stream(device));
}

bool is_on_device(const GroupCall& call) {
  bool found = false;
  for_each_tensor(call, [&](const at::Tensor& tensor) { found = found || !tensor.is_cpu(); });
  return found;
}

std::shared_ptr<Work> staged_call(GroupCall& call, const std::function<std::shared_ptr<Work>(GroupCall& call)>& make,
                                  const LendStaging& lend) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for_each_tensor(call, [&](const at::Tensor& tensor) {
    if (!is_captured(tensor.device())) return;
    throw UnsupportedError(concat(name_of(call), " of tensors on ", tensor.device(),
                                  " was captured into a CUDA graph, but the engine moves memory of the host, which a "
                                  "graph cannot repeat; make this call outside of the capture"));
  });
  return std::visit([&](auto& given) { return staged({make, lend}, given); }, call);
}

}  // namespace gradwire::internal
