// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memories: they keep what an encoding lost, and send it in a later step.
//
// A memory is called before and after an exchange. before() turns this rank's gradient into the values to send. after()
// gets the part of the values that was delivered (exchange.h), and turns the mean into the gradient to use. A memory
// keeps its state by the names of the parameters, so other buckets, another bucket cap or a resumed run neither lose
// the state nor mix it up.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::compress {

// The part of the flat values that belongs to one parameter.
struct Segment {
  std::string_view name;   // the parameter's, as in the module
  std::size_t offset = 0;  // of its first value within the flat values
  std::size_t count = 0;   // of its values here
  // For a parameter that comes in parts: the index of the part's first value within the parameter, and the number of
  // values of the whole parameter (0: `count`; the parameter is whole).
  std::size_t first = 0;
  std::size_t whole = 0;

  std::size_t of_parameter() const noexcept { return whole == 0 ? count : whole; }  // values of the whole parameter
};

// The state of a memory, for a checkpoint. A key ends in the name of the parameter. Entries whose key begins with
// "local/" belong to this rank; the other entries are equal on all ranks.
using MemoryState = std::map<std::string, std::vector<float>>;
inline constexpr std::string_view kLocalPrefix = "local/";

// Threads: before(), after(), hold() and reorder() for different parameters may run at the same time. The other methods
// that are not const, and save(), may not run beside them.
class Memory {
 public:
  virtual ~Memory() = default;

  // The name with its options: "none", "error_feedback", "ef21", "momentum:momentum=0.9,clip=1".
  virtual std::string name() const = 0;

  // False for a memory that keeps nothing ("none"): before() copies, after() does nothing, and `delivered` is not
  // needed.
  virtual bool remembers() const noexcept = 0;

  // True: what happens to a value depends on the past of that value alone, so a parameter may come in parts.
  virtual bool works_by_value() const noexcept { return true; }

  // Makes the `values` to send of this rank's `gradient`; `world` is the number of ranks. Both spans have one length,
  // and may be the same memory. `segments` lie within them and do not overlap; values that no segment covers are sent
  // as they are. Does not change the state: only after() does, so a step whose exchange failed, or whose mean was not
  // finite, leaves no trace, and a second call gives the same values. Throws InvalidArgument when a parameter has
  // another number of values than in the step before, also for an empty part of the parameter.
  virtual void before(std::span<const Segment> segments, int world, std::span<const float> gradient,
                      std::span<float> values) = 0;

  // Updates the state, and turns `mean` into the gradient to use, in place. `values` is the result of the last before()
  // for these values; `delivered` and `mean` are the results of the exchange. Call only when the mean is finite (see
  // Compressor).
  virtual void after(std::span<const Segment> segments, std::span<const float> values, std::span<const float> delivered,
                     std::span<float> mean) = 0;

  // Returns a copy of the state. A parameter that the memory has not seen has no entry; a missing entry means zeros.
  virtual MemoryState save() const = 0;
  // Replaces the state. "local/" entries may be missing, as on a new rank (see average_local()). Throws InvalidArgument
  // for a key that this kind of memory does not have, and keeps the old state then.
  virtual void load(const MemoryState& state) = 0;
  virtual void clear() = 0;

  // Puts what there is of a parameter into another order: value i becomes what was value from[i]. `from` holds each
  // number below the parameter's number of values once. Does nothing for a parameter that the memory has not seen.
  // Throws InvalidArgument when the parameter has another number of values. As after() for threads.
  virtual void reorder(std::string_view parameter, std::span<const std::size_t> from) = 0;

  // For a step that may have to be taken back: revert() brings back the state at the last keep(), whatever was called
  // since then. Nothing is copied ahead: after the first keep(), after() keeps each value before it overwrites the
  // value, in memory as large as the state. Without a keep(), revert() does nothing.
  virtual void keep() = 0;
  virtual void revert() = 0;

  // For a mean that may turn out not to be applied to a parameter: hold() holds the parameter's state as it is, in
  // memory as large as that state, and restore() brings it back, whatever after() did since then. restore() does
  // nothing for a parameter that is not held. release() ends the holding of all parameters; so do load(), clear() and
  // revert().
  virtual void hold(std::string_view parameter) = 0;
  virtual void restore(std::string_view parameter) = 0;
  virtual void release() = 0;
};

// Keeps nothing. For codecs that lose little, or nothing on average.
std::unique_ptr<Memory> make_no_memory();

// Error feedback (Seide et al. 2014; Stich et al. 2018; Karimireddy et al. 2019): adds what was not delivered to the
// next gradient.
//   send p = g + e;   e <- p - delivered;   gradient = mean
// Keeps "local/residual/NAME": 4 bytes a value. Over any number of steps, the sum of the gradients is what was
// delivered plus e. For a step whose mean is not applied, hold() and restore() take the step back.
std::unique_ptr<Memory> make_error_feedback_memory();

// EF21 (Richtarik, Sokolov and Fatkhullin 2021): a rank sends the difference between its gradient and the estimate of
// the gradient that the other ranks have.
//   send p = g - h;   h <- h + delivered;   a <- a + mean;   gradient = a
// Keeps "local/estimate/NAME" (h) and "aggregate/NAME" (a, the mean of all ranks' h): 8 bytes a value. A rank with an
// aggregate but without an estimate starts from the aggregate. The divisor must be the same at every step.
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

// Returns the state that every rank of a new world loads, whatever its size, from the states of all ranks of the old
// world. "local/" entries are averaged (a missing entry counts as zeros); the other entries are copied. An estimate of
// EF21 that one of the ranks lacks is left out: that rank took the aggregate for it, so the aggregate is the mean of
// all estimates, and all ranks start from it. For each kind of memory, the mean over all ranks of what is still to be
// sent stays the same. Throws InvalidArgument when `ranks` is empty, or when entries of one key differ in length.
MemoryState average_local(std::span<const MemoryState> ranks);

}  // namespace gradwire::compress
