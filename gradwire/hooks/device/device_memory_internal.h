// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Compression memories whose state is on a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/compress/memory.h"

namespace gradwire::internal {

// The vectors that memories keep, by the key that the state of a checkpoint has (memory.h). Thread-safe.
class DeviceVectors {
 public:
  // The values of `segments` under `prefix`, one segment after another; zeros where nothing is kept. `like` tells the
  // device. Throws InvalidArgument when a parameter has another number of values.
  at::Tensor get(std::string_view prefix, std::span<const compress::Segment> segments, const at::Tensor& like);
  bool has(std::string_view prefix, const compress::Segment& segment) const;
  // Keeps the parts of `values`, which lie as get() returns them.
  void set(std::string_view prefix, std::span<const compress::Segment> segments, const at::Tensor& values);

  // Adds the vectors that get() or set() has used on a device to `state`, instead of those that are there.
  void save(compress::MemoryState& state) const;
  // Forgets all vectors; the next fill() loads others. So a job on the CPU, which never calls fill(), has no second
  // copy.
  void forget();
  // Takes the vectors of `memory`, if forget() was called since the last fill().
  void fill(const compress::Memory& memory);
  // revert() brings back the vectors of the last keep(), whatever was called since then; without a keep() it does
  // nothing. Nothing is copied, because a vector is replaced and never written in place.
  void keep();
  void revert();
  // Brings the vectors of `parameter`, which lie by the strides `before`, into the strides `now`. As
  // compress::Memory::reorder().
  void reorder(std::string_view parameter, at::IntArrayRef sizes, at::IntArrayRef before, at::IntArrayRef now);
  // As compress::Memory::hold(), restore() and release(). Nothing is copied.
  void hold(std::string_view parameter);
  void restore(std::string_view parameter);
  void release();
  // Multiplies the vectors whose keys begin with `prefix`.
  void scale(std::string_view prefix, double factor);

 private:
  struct Entry {
    at::Tensor values;
    bool used = false;  // on a device since fill()
  };
  struct Kept {
    std::map<std::string, Entry, std::less<>> entries;
    bool must_fill = false;
  };
  mutable Mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_ GRADWIRE_GUARDED_BY(mutex_);
  bool must_fill_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::optional<Kept> kept_ GRADWIRE_GUARDED_BY(mutex_);
  // Of hold(), by key; not given: there was no vector.
  std::map<std::string, std::optional<Entry>, std::less<>> held_ GRADWIRE_GUARDED_BY(mutex_);
};

// The device's form of a compress::Memory: the same arithmetic on tensors (float32, 1-D). `segments` cover the values,
// one after another. Instead of a branch on whether the mean is finite, which the host would have to wait for, each
// new state is chosen on the device, by `finite` (bool, one element a value or one for all).
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual bool remembers() const noexcept { return true; }
  // Returns the values to send; `gradient` itself where nothing is kept.
  virtual at::Tensor before(std::span<const compress::Segment> segments, int world, const at::Tensor& gradient) = 0;
  // Updates the state, and returns the gradient to use. `values` is the result of before().
  virtual at::Tensor after(std::span<const compress::Segment> segments, const at::Tensor& values,
                           const at::Tensor& delivered, const at::Tensor& mean, const at::Tensor& finite) = 0;
};

// Makes the device's form of the memory with this name (compress::Memory::name()), over `vectors`, which must outlive
// it. Throws UnsupportedError for a memory that gradwire does not have.
std::unique_ptr<DeviceMemory> make_device_memory(const std::string& name, DeviceVectors& vectors);

}  // namespace gradwire::internal
