// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ScopeExit.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <span>
#include <utility>

#include "tests/support/fake_watcher.h"

namespace gradwire::testing {
namespace {

using fake::Clock;
using fake::on_host;
using fake::watcher;

c10::DeleterFnPtr release_of_allocator();

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kFakeDevices> current_streams{};

// What lies behind an event, and when the device comes to the event.
struct FakeEvent {
  Clock behind;
  double seconds = 0;
  bool knows_time = false;
};

FakeEvent& event_at(void* event) { return *static_cast<FakeEvent*>(event); }

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
  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag flag) const override {
    if (*event == nullptr) *event = new FakeEvent;
    event_at(*event) = {watcher().snapshot(on), watcher().end_of(on), flag == c10::EventFlag::BACKEND_DEFAULT};
  }
  void block(void* event, const c10::Stream& waiting) const override {
    if (event == nullptr) return;
    watcher().follows(waiting, event_at(event).behind);
    watcher().ends_after(waiting, event_at(event).seconds);
  }
  bool queryEvent(void* event) const override { return event == nullptr || watcher().ended(event_at(event).behind); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) watcher().finish(event_at(event).behind);
  }
  // In milliseconds.
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    TORCH_CHECK(event_at(from).knows_time && event_at(to).knows_time, "an event without a time");
    return (event_at(to).seconds - event_at(from).seconds) * 1e3;
  }
  void synchronizeDevice(c10::DeviceIndex device) const override { watcher().finish_all(device); }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 12
  bool isStreamCapturing(const c10::Stream& stream) const override { return watcher().is_captured(stream); }
#endif
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<FakeEvent*>(event); }
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
                        current_stream(device));
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
thread_local bool in_kernel = false;
std::atomic<std::size_t> bytes_to_host{0};

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const at::Device device = self.is_cpu() ? to.device() : self.device();
  const c10::Stream stream = current_stream(device);
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

}  // namespace

c10::Device fake_device(int index) {
  static const bool registered = register_device();
  static_cast<void>(registered);
  return {kFakeDevice, static_cast<c10::DeviceIndex>(index)};
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

void spend_on(const c10::Stream& stream, double seconds) { watcher().spend(stream, seconds); }

void work_on(const c10::Stream& stream, std::function<void()> done) { watcher().queue(stream, std::move(done)); }

FakeCapture::FakeCapture(const c10::Stream& stream) : stream_(stream) { watcher().capture(stream_, true); }

FakeCapture::~FakeCapture() { watcher().capture(stream_, false); }

}  // namespace gradwire::testing
