// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What a rank remembers from step to step, so that what a codec lost is not lost for good.
//
// A memory stands before and behind an exchange: before() turns this rank's gradient into the values to send, after()
// is told what of them was delivered (exchange.h) and turns the mean into the gradient to use. State is kept by the
// parameters' names, so that other buckets, another cap or a resume neither lose it nor mix it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::compress {

// Which part of the flat values belongs to which parameter.
struct Segment {
  std::string_view name;
  std::size_t offset = 0;
  std::size_t count = 0;
  // Of a parameter that comes in parts: the first of its values here, and how many it has (0: `count`, it is whole).
  std::size_t first = 0;
  std::size_t whole = 0;

  std::size_t of_parameter() const noexcept { return whole == 0 ? count : whole; }
};

// A memory's state to save. A key ends in the parameter's name. Keys that begin with "local/" are this rank's own; the
// others are equal on all ranks.
using MemoryState = std::map<std::string, std::vector<float>>;
inline constexpr std::string_view kLocalPrefix = "local/";

// Thread-safe for calls that name different parameters at once; save(), load() and clear() not while such a call runs.
class Memory {
 public:
  virtual ~Memory() = default;

  // "none", "error_feedback", "ef21", "momentum:momentum=0.9,clip=1".
  virtual std::string name() const = 0;

  // Whether it keeps anything. One that does not ("none") needs no `delivered`, and before() and after() do nothing.
  virtual bool remembers() const noexcept = 0;

  // Whether what becomes of a value depends on its own past alone, so that a parameter may come in parts.
  virtual bool works_by_value() const noexcept { return true; }

  // Turns this rank's gradient into the values to send, in place, among `world` ranks. `segments` lie within `values`
  // and do not overlap; what no segment covers goes out as it is. Changes nothing that lasts: only after() does, so a
  // step whose exchange failed, or whose mean was not finite, is as if it had not been. Throws InvalidArgument when a
  // parameter has another number of values than before.
  virtual void before(std::span<const Segment> segments, int world, std::span<float> values) = 0;

  // Updates the memory, and turns `mean` into the gradient, in place. `values` are what before() left, `delivered` and
  // `mean` what the exchange gave. Only for a finite mean: see Compressor.
  virtual void after(std::span<const Segment> segments, std::span<const float> values, std::span<const float> delivered,
                     std::span<float> mean) = 0;

  // All that it keeps. A parameter that it has not seen has no entry, which stands for zeros.
  virtual MemoryState save() const = 0;
  // Replaces all that it keeps. Throws InvalidArgument, and keeps what it had, for a key that is none of its own.
  // Entries of this rank's own may be missing (a rank that is new): see average_local().
  virtual void load(const MemoryState& state) = 0;
  virtual void clear() = 0;
};

// Nothing is remembered: for codecs that lose little, or nothing on average.
std::unique_ptr<Memory> make_no_memory();

// Error feedback (Seide et al. 2014; Stich et al. 2018; Karimireddy et al. 2019): what was not delivered is added to
// the next gradient.
//   send p = g + e;   e <- p - delivered;   gradient = mean
// Keeps "local/residual/NAME": 4 bytes a value. Over any number of steps, the sum of the gradients is what was
// delivered plus e.
std::unique_ptr<Memory> make_error_feedback_memory();

// EF21 (Richtarik, Sokolov and Fatkhullin 2021): ranks send how their gradient differs from what the others know of it.
//   send p = g - h;   h <- h + delivered;   a <- a + mean;   gradient = a
// Keeps "local/estimate/NAME" (h) and "aggregate/NAME" (a, the mean of all ranks' h): 8 bytes a value. A rank that has
// an aggregate but no estimate of its own starts from the aggregate. The divisor must not change between steps.
std::unique_ptr<Memory> make_ef21_memory();

struct MomentumOptions {
  float momentum = 0.9f;  // m, from 0 to below 1; the optimizer's own momentum should be 0 then
  float clip = 0;         // above 0: a parameter's gradient is first scaled down to a norm of clip / sqrt(N)
};

// Momentum correction (Lin et al. 2018, "Deep gradient compression"): error feedback of velocities, for sparse codecs.
//   u' = m u + g;   send p = v + u';   v <- p - delivered;   u <- u', 0 where delivered is not 0;   gradient = mean
// (The paper also clears v where it was sent; the subtraction is the same for codecs that send values as they are, and
// right for the others.) Clipping is by parameter, so that it does not depend on buckets. A codec that delivers
// something everywhere clears u everywhere: error feedback without momentum remains.
// Keeps "local/momentum/NAME" (u) and "local/velocity/NAME" (v): 12 bytes a value, with u' of the step under way.
// Throws InvalidArgument for options out of range.
std::unique_ptr<Memory> make_momentum_memory(const MomentumOptions& options = {});

// What every rank of a new world loads, of any size, made of the states of all ranks of the old one: entries of ranks'
// own are averaged (a missing one counts as zeros), the others taken as they are. What all ranks together owe, weighed
// as a mean, stays the same, for each of the memories. Throws InvalidArgument for no states, and for entries of one key
// with different lengths.
MemoryState average_local(std::span<const MemoryState> ranks);

}  // namespace gradwire::compress
