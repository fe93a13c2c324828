// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include "gradwire/base/strings.h"

namespace gradwire::testing {
namespace {

using StreamName = std::pair<c10::DeviceIndex, c10::StreamId>;
using Clock = std::map<StreamName, std::uint64_t>;  // how far each stream has got, as another one knows

StreamName name_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

struct Access {
  std::uintptr_t begin, end;
  StreamName stream;
  std::uint64_t time;
  bool writes;
};

struct Allocation {
  std::uintptr_t end;
  std::byte* bytes;               // what the device finds at its addresses
  StreamName stream;              // the allocator hands its memory out anew to this one, when it goes
  std::set<StreamName> recorded;  // and not before these are done
  std::vector<Access> accesses;
};

class Watcher {
 public:
  void allocated(void* memory, std::size_t size, std::byte* bytes, const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    allocations_[begin] = {begin + size, bytes, name_of(stream), {}, {}};
  }
  // What the device finds at an address of its memory.
  std::byte* bytes_at(const void* memory) {
    const std::lock_guard lock(mutex_);
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const auto after = allocations_.upper_bound(address);
    TORCH_CHECK(after != allocations_.begin(), "no memory of the fake device");
    const auto& [begin, allocation] = *std::prev(after);
    TORCH_CHECK(address <= allocation.end, "no memory of the fake device");
    return allocation.bytes + (address - begin);
  }
  // Returns the bytes of the allocation, and its size.
  std::span<std::byte> freed(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(reinterpret_cast<std::uintptr_t>(memory));
    if (found == allocations_.end()) return {};
    const Allocation& gone = found->second;
    for (const Access& access : gone.accesses) {
      if (access.stream == gone.stream || gone.recorded.contains(access.stream)) continue;
      if (clocks_[gone.stream][access.stream] < access.time)
        report("memory of ", gone.stream, " was freed while it may be in use on ", access.stream);
    }
    const std::span<std::byte> bytes(gone.bytes, gone.end - found->first);
    allocations_.erase(found);
    return bytes;
  }
  void recorded(const void* memory, const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    if (Allocation* allocation = find(reinterpret_cast<std::uintptr_t>(memory)))
      allocation->recorded.insert(name_of(stream));
  }
  void accessed(const void* memory, std::size_t bytes, const c10::Stream& stream, bool writes) {
    const std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    Allocation* allocation = find(begin);
    if (allocation == nullptr || bytes == 0) return;
    const StreamName name = name_of(stream);
    Clock& clock = clocks_[name];
    const Access now{begin, begin + bytes, name, ++clock[name], writes};
    std::erase_if(allocation->accesses, [&](const Access& before) {
      if (before.end <= now.begin || now.end <= before.begin) return false;
      if (before.stream != name && (before.writes || writes) && clock[before.stream] < before.time) {
        report(writes ? "written by " : "read by ", name, before.writes ? " while written by " : " while read by ",
               before.stream);
      }
      return writes && now.begin <= before.begin && before.end <= now.end && clock[before.stream] >= before.time;
    });
    allocation->accesses.push_back(now);
  }
  Clock snapshot(const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    return clocks_[name_of(stream)];
  }
  void follows(const c10::Stream& stream, const Clock& before) {
    const std::lock_guard lock(mutex_);
    Clock& clock = clocks_[name_of(stream)];
    for (const auto& [name, time] : before) clock[name] = std::max(clock[name], time);
  }
  // The last kernel of `stream` does not end before let_go().
  void hang(const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    const StreamName name = name_of(stream);
    hanging_[name] = clocks_[name][name];
  }
  void let_go(const StreamName& stream) {
    const std::lock_guard lock(mutex_);
    hanging_.erase(stream);
  }
  bool ended(const Clock& event) {
    const std::lock_guard lock(mutex_);
    if (!captured_.empty()) reports_.push_back("an event was asked while a stream was captured");
    return std::all_of(hanging_.begin(), hanging_.end(), [&](const auto& kernel) {
      const auto reached = event.find(kernel.first);
      return reached == event.end() || reached->second < kernel.second;
    });
  }
  // A copy that `stream` has queued. The host sees its result only after it has waited for it.
  void queue(const c10::Stream& stream, std::function<void()> copy) {
    const std::lock_guard lock(mutex_);
    const StreamName name = name_of(stream);
    queued_.push_back({name, clocks_[name][name], std::move(copy)});
  }
  // The host waits for an event.
  void finish(const Clock& event) {
    std::vector<std::function<void()>> done;
    {
      const std::lock_guard lock(mutex_);
      if (!captured_.empty()) reports_.push_back("the host waited for an event while a stream was captured");
      std::erase_if(queued_, [&](Queued& each) {
        const auto reached = event.find(each.stream);
        if (reached == event.end() || reached->second < each.time) return false;
        done.push_back(std::move(each.copy));
        return true;
      });
    }
    for (const auto& copy : done) copy();
  }
  void capture(const c10::Stream& stream, bool begin) {
    const std::lock_guard lock(mutex_);
    if (begin) captured_.insert(name_of(stream));
    if (!begin) captured_.erase(name_of(stream));
  }
  bool is_captured(const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    return captured_.contains(name_of(stream));
  }
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(reports_, {});
  }

 private:
  Allocation* find(std::uintptr_t memory) {
    auto after = allocations_.upper_bound(memory);
    if (after == allocations_.begin()) return nullptr;
    --after;
    return memory < after->second.end ? &after->second : nullptr;
  }
  void report(const char* what, const StreamName& one, const char* how, const StreamName& other) {
    reports_.push_back(
        concat("device ", int{one.first}, ": ", what, "stream ", one.second, how, "stream ", other.second));
  }

  std::mutex mutex_;
  std::map<StreamName, Clock> clocks_;
  std::map<StreamName, std::uint64_t> hanging_;  // the time of the kernel that does not end
  std::set<StreamName> captured_;
  struct Queued {
    StreamName stream;
    std::uint64_t time;
    std::function<void()> copy;
  };
  std::vector<Queued> queued_;
  std::map<std::uintptr_t, Allocation> allocations_;
  std::vector<std::string> reports_;
};

Watcher& watcher() {
  static Watcher* const one = new Watcher;  // tensors of other statics may go after it
  return *one;
}

c10::DeleterFnPtr release_of_allocator();

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kFakeDevices> current_streams{};

class FakeGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kFakeDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kFakeDevice, std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override { return {kFakeDevice, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream getStream(c10::Device device) const noexcept override { return stream(device, current(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> last{0};
    return stream(device, ++last);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(next.device(), std::exchange(current(next.device()), next.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeDevices; }
  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Clock;
    *static_cast<Clock*>(*event) = watcher().snapshot(on);
  }
  void block(void* event, const c10::Stream& waiting) const override {
    if (event != nullptr) watcher().follows(waiting, *static_cast<Clock*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || watcher().ended(*static_cast<Clock*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) watcher().finish(*static_cast<Clock*>(event));
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 12
  bool isStreamCapturing(const c10::Stream& stream) const override { return watcher().is_captured(stream); }
#endif
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Clock*>(event); }
  bool queryStream(const c10::Stream&) const override { return true; }
  // As CUDA's allocator, which ignores memory that it has not allocated itself, for example of from_blob().
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& on) const override {
    if (memory.get_deleter() == release_of_allocator()) watcher().recorded(memory.get(), on);
  }

 private:
  static c10::StreamId& current(const c10::Device& device) {
    return current_streams[static_cast<std::size_t>(device.index() < 0 ? current_device : device.index())];
  }
  static c10::Stream stream(const c10::Device& device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, {kFakeDevice, device.index() < 0 ? current_device : device.index()}, id);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard)

class FakeAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device{kFakeDevice, current_device};
    const std::size_t size = std::max<std::size_t>(bytes, 1);
    void* const memory = map(size, PROT_NONE);
    watcher().allocated(memory, size, static_cast<std::byte*>(map(size, PROT_READ | PROT_WRITE)),
                        current_fake_stream(device));
    return {memory, memory, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void* map(std::size_t size, int protection) {
    void* const memory = ::mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "mmap");
    return memory;
  }
  static void release(void* memory) {
    const std::span<std::byte> bytes = watcher().freed(memory);
    if (bytes.empty()) return;
    ::munmap(memory, bytes.size());
    ::munmap(bytes.data(), bytes.size());
  }
};

FakeAllocator& allocator() {
  static FakeAllocator one;
  return one;
}

c10::DeleterFnPtr release_of_allocator() { return allocator().raw_deleter(); }

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  at::Device getDeviceFromPtr(void*) const override { return {kFakeDevice, current_device}; }
};

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, c10::dtype_or_default(dtype));
}

// The same memory, as the CPU sees it.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu() || tensor.numel() == 0)
    return tensor.is_cpu() ? tensor : at::empty(tensor.sizes(), tensor.dtype());
  return at::from_blob(watcher().bytes_at(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(at::kCPU).dtype(tensor.scalar_type()));
}

thread_local bool in_kernel = false;
std::atomic<std::size_t> bytes_to_host{0};

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const at::Device device = self.is_cpu() ? to.device() : self.device();
  const c10::Stream stream = current_fake_stream(device);
  if (!self.is_cpu()) access_on(stream, self, false);
  if (!to.is_cpu()) access_on(stream, to, true);
  if (to.is_cpu() && !in_kernel) bytes_to_host += self.nbytes();
  if (non_blocking && to.is_cpu() && !in_kernel) {
    // What the device has now; the memory of the host shows nothing of it before the host has waited.
    const at::Tensor now = on_host(self).clone();
    to.view({-1}).view(at::kByte).fill_(0xff);
    watcher().queue(stream, [to = to, now] { to.copy_(now); });
    return to;
  }
  on_host(to).copy_(on_host(self));
  return to;
}

// In new memory, without the values.
void give_sizes(const at::Tensor& tensor, at::IntArrayRef sizes) {
  const at::Tensor fresh = at::empty(sizes, tensor.options());
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(fresh.storage());
  impl->set_storage_offset(0);
  impl->set_sizes_contiguous(sizes);
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (to.sizes() != self.sizes()) give_sizes(to, self.sizes());
  return copy_from(self, to, false);
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // The value of a tensor, for the host, is a copy to the host.
  const bool reads_value = op.schema().name() == "aten::_local_scalar_dense";
  if (reads_value && !in_kernel) bytes_to_host += sizeof(double);
  const bool outer = std::exchange(in_kernel, true);
  const auto leave = c10::make_scope_exit([&] { in_kernel = outer; });
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided",
         [](const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<std::int64_t> offset) {
           return at::native::as_strided_tensorimpl(self, size, stride, offset);
         });
  m.impl("view", [](const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); });
  m.impl("_reshape_alias", [](const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
    return at::native::_reshape_alias(self, size, stride);
  });
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

bool register_device() {
  c10::register_privateuse1_backend("fake");
  static FakeHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kFakeDevice, &allocator());
  return true;
}

// A call of the engine's: its stream follows the caller's, then who waits follows it.
class FakeWork final : public c10d::Work {
 public:
  explicit FakeWork(c10::Event end) : end_(std::move(end)) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    end_.block(current_fake_stream(end_.device()));
    return true;
  }

 private:
  const c10::Event end_;
};

class FakeEngine final : public c10d::Backend {
 public:
  FakeEngine(std::shared_ptr<Meeting> meeting, int rank, int size, std::shared_ptr<FakeFaults> faults)
      : c10d::Backend(rank, size), meeting_(std::move(meeting)), faults_(std::move(faults)) {}
  ~FakeEngine() override { let_go(); }
  const std::string getBackendName() const override { return "nccl"; }
  void abort() override {
    meeting_->abort("the engine was aborted");
    let_go();
  }
  c10d::ErrorType getError() override { return failed_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return call(tensors.front(), tensors.front(), options.asyncOp, [](const at::Tensor& mine, const auto& all) {
      mine.copy_(all.front());
      for (std::size_t rank = 1; rank < all.size(); ++rank) mine.add_(all[rank]);
    });
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const auto root = static_cast<std::size_t>(options.rootRank);
    return call(tensors.front(), tensors.front(), options.asyncOp,
                [root](const at::Tensor& mine, const auto& all) { mine.copy_(all[root]); });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    return call(input, output, options.asyncOp,
                [](const at::Tensor& whole, const auto& all) { whole.copy_(at::cat(all)); });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>&,
                                               std::vector<std::int64_t>&,
                                               const c10d::AllToAllOptions& options) override {
    const std::int64_t part = input.numel() / getSize();
    return call(input, output, options.asyncOp, [&, this](const at::Tensor& mine, const auto& all) {
      for (std::size_t rank = 0; rank < all.size(); ++rank)
        mine.narrow(0, static_cast<std::int64_t>(rank) * part, part).copy_(all[rank].narrow(0, getRank() * part, part));
    });
  }

 private:
  template <class Combine>
  c10::intrusive_ptr<c10d::Work> call(const at::Tensor& from, const at::Tensor& to, bool async,
                                      const Combine& combine) {
    const c10::Stream caller = current_fake_stream(from.device());
    if (!own_) own_ = new_fake_stream(from.device());
    const c10::Stream stream = async ? *own_ : caller;
    if (async) {
      c10::Event begin(kFakeDevice);
      begin.record(caller);
      begin.block(stream);
    }
    for (const at::Tensor& tensor : {from, to})
      c10::impl::VirtualGuardImpl(kFakeDevice).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
    access_on(stream, from, false);
    access_on(stream, to, true);
    if (faults_ && faults_->hang) {
      hang(stream);
    } else if (faults_ && faults_->failing_rank >= 0) {
      failed_ = failed_ || faults_->failing_rank == getRank();
    } else {
      combine(on_host(to), meeting_->meet(getRank(), on_host(from)));
    }
    if (!async) return {};
    c10::Event end(kFakeDevice);
    end.record(stream);
    return c10::make_intrusive<FakeWork>(std::move(end));
  }

  void hang(const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    watcher().hang(stream);
    hanging_.insert(name_of(stream));
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    for (const StreamName& stream : std::exchange(hanging_, {})) watcher().let_go(stream);
  }

  const std::shared_ptr<Meeting> meeting_;
  const std::shared_ptr<FakeFaults> faults_;
  std::atomic<bool> failed_{false};
  std::optional<c10::Stream> own_;
  std::mutex mutex_;
  std::set<StreamName> hanging_;
};

}  // namespace

c10::Device fake_device(int index) {
  static const bool registered = register_device();
  static_cast<void>(registered);
  return {kFakeDevice, static_cast<c10::DeviceIndex>(index)};
}

c10::Stream current_fake_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(kFakeDevice).getStream(device);
}

c10::Stream new_fake_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(kFakeDevice).getNewStream(device);
}

std::vector<std::string> take_fake_races() { return watcher().take(); }

std::size_t take_fake_bytes_to_host() { return bytes_to_host.exchange(0); }

void access_on(const c10::Stream& stream, const at::Tensor& tensor, bool writes) {
  // From the first byte to the last: what lies between strides counts too, which no test here minds.
  std::size_t elements = tensor.numel() == 0 ? 0 : 1;
  for (std::int64_t i = 0; i < tensor.dim() && elements > 0; ++i)
    elements += static_cast<std::size_t>((tensor.size(i) - 1) * tensor.stride(i));
  watcher().accessed(tensor.const_data_ptr(), elements * tensor.element_size(), stream, writes);
}

FakeCapture::FakeCapture(const c10::Stream& stream) : stream_(stream) { watcher().capture(stream_, true); }

FakeCapture::~FakeCapture() { watcher().capture(stream_, false); }

c10::intrusive_ptr<c10d::Backend> make_fake_engine(std::shared_ptr<Meeting> meeting, int rank, int size,
                                                   std::shared_ptr<FakeFaults> faults) {
  return c10::make_intrusive<FakeEngine>(std::move(meeting), rank, size, std::move(faults));
}

}  // namespace gradwire::testing
