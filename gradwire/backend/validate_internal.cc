// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/validate_internal.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "gradwire/backend/generic/rank_array_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::validate {
namespace {

// One call's arguments under examination; its methods throw unless what they name holds.
class Checker {
 public:
  Checker(const Channel& channel, std::string_view operation)
      : operation_(operation), rank_(channel.rank()), size_(channel.size()) {}

  int rank() const noexcept { return rank_; }
  std::size_t ranks() const noexcept { return static_cast<std::size_t>(size_); }

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw InvalidArgument(concat(operation_, " on rank ", rank_, " of ", size_, ": ", parts...));
  }

  void peer(int number, std::string_view role) const {
    if (number < 0 || number >= size_) {
      refuse(role, " is ", number, ", but the ranks are 0 to ", size_ - 1);
    }
  }

  void dtype(DType dtype) const {
    if (static_cast<int>(dtype) >= kDTypeCount) refuse("dtype has the unknown value ", static_cast<int>(dtype));
  }

  void op(ReduceOp op, DType dtype) const {
    if (is_defined(op, dtype)) return;
    if (static_cast<int>(op.kind) >= kReduceOpCount)
      refuse("reduce op has the unknown value ", static_cast<int>(op.kind));
    try {
      require_defined(op, dtype);
    } catch (const InvalidArgument& error) {
      refuse(error.what());
    }
  }

  // Bytes of `count` elements for each of `parts` ranks.
  std::size_t bytes(std::size_t count, DType dtype, std::size_t parts = 1) const {
    const std::size_t element = size_of(dtype);
    if (count > kMaxBytes / element / parts) {
      refuse("count is ", count, ", which is more than ", kMaxBytes / element / parts, " elements of ", name_of(dtype));
    }
    return count * element;
  }

  void pointer(const void* data, std::size_t bytes, std::string_view name) const {
    if (data == nullptr && bytes > 0) refuse(name, " is null, but ", bytes, " bytes are to be moved");
  }

  // pointer() for the entry `index` of a list; builds the name only when it is needed.
  void entry(const void* data, std::size_t bytes, std::string_view list, std::size_t index) const {
    if (data == nullptr && bytes > 0) pointer(data, bytes, concat(list, "[", index, "]"));
  }

  void one_each(std::size_t length, std::string_view name) const {
    if (length != ranks()) refuse(name, " has ", length, " entries, but needs one for each of the ", size_, " ranks");
  }

  void none(std::size_t length, std::string_view name, int root) const {
    if (length != 0)
      refuse(name, " has ", length, " entries, but belongs to the root, rank ", root, "; leave it empty");
  }

  // The two lie apart, or are the same and `may_be_same`.
  void apart(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes, bool may_be_same,
             std::string_view names) const {
    if (a_bytes == 0 || b_bytes == 0) return;
    const auto first = reinterpret_cast<std::uintptr_t>(a);
    const auto second = reinterpret_cast<std::uintptr_t>(b);
    if (first == second && may_be_same) return;
    if (first < second ? second - first < a_bytes : first - second < b_bytes) refuse(names, " overlap");
  }

 private:
  std::string_view operation_;
  int rank_;
  int size_;
};

// Where a buffer lies.
struct Extent {
  const void* data;
  std::size_t bytes;
};

// Up to so many buffers, each is compared with each: that takes less time than a sorted list. In wide worlds it would
// take milliseconds.
constexpr std::size_t kFew = 32;

std::uintptr_t begin_of(const Extent& extent) { return reinterpret_cast<std::uintptr_t>(extent.data); }

bool overlap(const Extent& a, const Extent& b) {
  return a.bytes > 0 && b.bytes > 0 && begin_of(a) < begin_of(b) + b.bytes && begin_of(b) < begin_of(a) + a.bytes;
}

// Whether two of the buffers at(0), at(1), ... at(count - 1) overlap.
template <class At>
bool any_overlap(std::size_t count, const At& at) {
  if (count <= kFew) {
    for (std::size_t i = 0; i < count; ++i) {
      const Extent one = at(i);
      for (std::size_t j = 0; j < i; ++j) {
        if (overlap(one, at(j))) return true;
      }
    }
    return false;
  }
  std::vector<Extent> sorted;
  for (std::size_t i = 0; i < count; ++i) {
    if (at(i).bytes > 0) sorted.push_back(at(i));
  }
  std::sort(sorted.begin(), sorted.end(), [](const Extent& a, const Extent& b) { return begin_of(a) < begin_of(b); });
  return std::adjacent_find(sorted.begin(), sorted.end(), [](const Extent& a, const Extent& b) {
           return begin_of(b) - begin_of(a) < a.bytes;
         }) != sorted.end();
}

// `shared` is the buffer on the other side, which may be the entry `same` (-1: any) and must lie apart from the rest.
void pointers(const Checker& check, std::span<const void* const> list, std::size_t bytes, std::string_view name,
              const void* shared, int same, bool list_is_written, std::string_view names) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    check.entry(list[i], bytes, name, i);
    check.apart(shared, bytes, list[i], bytes, same < 0 || static_cast<std::size_t>(same) == i, names);
  }
  if (!list_is_written) return;
  const auto at = [&](std::size_t i) { return Extent{list[i], bytes}; };
  if (any_overlap(list.size(), at)) check.refuse(name, " overlap");
}

// void* const* to const void* const* is a qualification that span does not convert by itself.
class ConstPointers {
 public:
  explicit ConstPointers(std::span<void* const> list) : pointers_(list.size()) {
    for (std::size_t i = 0; i < list.size(); ++i) pointers_[i] = list[i];
  }
  std::span<const void* const> span() const noexcept { return pointers_.span(); }

 private:
  generic::RankArray<const void*> pointers_;
};

// No output overlaps an input, but the own ones, which were looked at. Inputs may overlap each other.
void require_inputs_apart(const Checker& check, std::span<const ConstSlice> inputs, std::span<const Slice> outputs,
                          std::size_t element) {
  const auto own = static_cast<std::size_t>(check.rank());
  const auto extent = [&](const auto& slice) { return Extent{slice.data, slice.count * element}; };
  const auto require_apart = [&](std::size_t input, std::size_t output) {
    if (input == own && output == own) return;
    if (overlap(extent(inputs[input]), extent(outputs[output]))) check.refuse("inputs and outputs overlap");
  };
  if (inputs.size() <= kFew) {
    for (std::size_t j = 0; j < inputs.size(); ++j) {
      for (std::size_t i = 0; i < outputs.size(); ++i) require_apart(j, i);
    }
    return;
  }
  // Outputs lie apart from each other: the one that an input could overlap first is found by its place.
  std::vector<std::size_t> order(outputs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t i) { return outputs[i].count == 0; });
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return begin_of(extent(outputs[a])) < begin_of(extent(outputs[b])); });
  for (std::size_t j = 0; j < inputs.size(); ++j) {
    const Extent input = extent(inputs[j]);
    auto at = std::partition_point(order.begin(), order.end(), [&](std::size_t i) {
      const Extent output = extent(outputs[i]);
      return begin_of(output) + output.bytes <= begin_of(input);
    });
    for (; at != order.end() && begin_of(extent(outputs[*at])) < begin_of(input) + input.bytes; ++at)
      require_apart(j, *at);
  }
}

}  // namespace

void broadcast(const Channel& channel, const void* data, std::size_t count, DType dtype, int root) {
  const Checker check(channel, "broadcast");
  check.peer(root, "root");
  check.dtype(dtype);
  check.pointer(data, check.bytes(count, dtype), "data");
}

void all_reduce(const Channel& channel, const void* data, std::size_t count, DType dtype, ReduceOp op) {
  const Checker check(channel, "all_reduce");
  check.dtype(dtype);
  check.op(op, dtype);
  check.pointer(data, check.bytes(count, dtype), "data");
}

void reduce(const Channel& channel, const void* input, const void* output, std::size_t count, DType dtype, ReduceOp op,
            int root) {
  const Checker check(channel, "reduce");
  check.peer(root, "root");
  check.dtype(dtype);
  check.op(op, dtype);
  const std::size_t bytes = check.bytes(count, dtype);
  check.pointer(input, bytes, "input");
  if (check.rank() != root) return;
  check.pointer(output, bytes, "output");
  check.apart(input, bytes, output, bytes, true, "input and output");
}

void all_gather(const Channel& channel, const void* input, std::span<void* const> outputs, std::size_t count,
                DType dtype) {
  const Checker check(channel, "all_gather");
  check.dtype(dtype);
  const std::size_t bytes = check.bytes(count, dtype, check.ranks());
  check.pointer(input, bytes, "input");
  check.one_each(outputs.size(), "outputs");
  pointers(check, ConstPointers(outputs).span(), bytes, "outputs", input, check.rank(), true,
           "input and outputs of other ranks");
}

void gather(const Channel& channel, const void* input, std::span<void* const> outputs, std::size_t count, DType dtype,
            int root) {
  const Checker check(channel, "gather");
  check.peer(root, "root");
  check.dtype(dtype);
  const std::size_t bytes = check.bytes(count, dtype, check.ranks());
  check.pointer(input, bytes, "input");
  if (check.rank() != root) return check.none(outputs.size(), "outputs", root);
  check.one_each(outputs.size(), "outputs");
  pointers(check, ConstPointers(outputs).span(), bytes, "outputs", input, root, true,
           "input and outputs of other ranks");
}

void scatter(const Channel& channel, std::span<const void* const> inputs, const void* output, std::size_t count,
             DType dtype, int root) {
  const Checker check(channel, "scatter");
  check.peer(root, "root");
  check.dtype(dtype);
  const std::size_t bytes = check.bytes(count, dtype, check.ranks());
  check.pointer(output, bytes, "output");
  if (check.rank() != root) return check.none(inputs.size(), "inputs", root);
  check.one_each(inputs.size(), "inputs");
  pointers(check, inputs, bytes, "inputs", output, root, false, "output and inputs of other ranks");
}

void reduce_scatter(const Channel& channel, std::span<const void* const> inputs, const void* output, std::size_t count,
                    DType dtype, ReduceOp op) {
  const Checker check(channel, "reduce_scatter");
  check.dtype(dtype);
  check.op(op, dtype);
  const std::size_t bytes = check.bytes(count, dtype, check.ranks());
  check.pointer(output, bytes, "output");
  check.one_each(inputs.size(), "inputs");
  pointers(check, inputs, bytes, "inputs", output, -1, false, "output and inputs");
}

void all_to_all(const Channel& channel, std::span<const ConstSlice> inputs, std::span<const Slice> outputs,
                DType dtype) {
  const Checker check(channel, "all_to_all");
  check.dtype(dtype);
  check.one_each(inputs.size(), "inputs");
  check.one_each(outputs.size(), "outputs");
  const std::size_t element = size_of(dtype);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check.entry(inputs[i].data, check.bytes(inputs[i].count, dtype, check.ranks()), "inputs", i);
    check.entry(outputs[i].data, check.bytes(outputs[i].count, dtype, check.ranks()), "outputs", i);
  }
  const auto own = static_cast<std::size_t>(check.rank());
  if (any_overlap(outputs.size(), [&](std::size_t i) { return Extent{outputs[i].data, outputs[i].count * element}; })) {
    check.refuse("outputs overlap");
  }
  // The same buffer for both ways would be overwritten by a peer before it has been sent; but for the own one.
  check.apart(inputs[own].data, inputs[own].count * element, outputs[own].data, outputs[own].count * element, true,
              "inputs and outputs");
  require_inputs_apart(check, inputs, outputs, element);
  if (inputs[own].count != outputs[own].count) {
    check.refuse("a rank sends itself what it expects from itself, but inputs[", own, "] has ", inputs[own].count,
                 " elements and outputs[", own, "] has ", outputs[own].count);
  }
}

void isend(const Channel& channel, const void* data, std::size_t bytes, int destination, std::uint32_t tag) {
  const Checker check(channel, "isend");
  if (tag >= kFirstReservedTag) check.refuse("tag ", tag, " is reserved; use a tag below ", kFirstReservedTag);
  check.peer(destination, "destination");
  if (bytes > kMaxBytes) check.refuse("a message of ", bytes, " bytes is more than ", kMaxBytes);
  check.pointer(data, bytes, "data");
}

void irecv(const Channel& channel, const void* data, std::size_t bytes, int source, std::uint32_t tag) {
  const Checker check(channel, "irecv");
  if (tag >= kFirstReservedTag) check.refuse("tag ", tag, " is reserved; use a tag below ", kFirstReservedTag);
  if (source != kAnySource) check.peer(source, "source");
  if (bytes > kMaxBytes) check.refuse("a message of ", bytes, " bytes is more than ", kMaxBytes);
  check.pointer(data, bytes, "data");
}

void allocate(const Channel& channel, std::size_t bytes) {
  const Checker check(channel, "allocate");
  // One region holds the memory of all ranks, each part in whole pages.
  constexpr std::size_t kRoom = std::size_t{1} << 20;
  const std::size_t most = kMaxBytes / static_cast<std::size_t>(channel.size()) - kRoom;
  if (bytes > most) check.refuse(bytes, " bytes are more than ", most);
}

}  // namespace gradwire::validate
