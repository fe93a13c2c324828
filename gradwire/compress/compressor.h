// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A codec, a memory and an exchange together: the compressed form of "all-reduce, then divide".
//
//   auto compressor = make_compressor("int4:block=64,memory=error_feedback,exchange=all_reduce,seed=7");
//   compressor->all_reduce(transport, segments, {.tensor = bucket, .step = step}, gradient);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/compress/codec.h"
#include "gradwire/compress/exchange.h"
#include "gradwire/compress/memory.h"
#include "gradwire/compress/transport.h"

namespace gradwire::compress {

// What one call is; the same on all ranks.
struct CompressCall {
  std::uint64_t tensor = 0;  // which tensor (bucket): any number that stays with it
  std::uint64_t step = 0;    // counts up from 0: random numbers and dgc's schedule depend on it
  double divisor = 0;        // what the sum of all ranks is divided by; 0: the number of ranks
};

// Thread-safe for calls that name different parameters at once. Buffers are kept from call to call.
//
// A long gradient goes in pieces where the codec and the memory allow it (Codec::codes_by_block,
// Memory::works_by_value): each is an exchange of its own, and while one is on its way the next is encoded.
class Compressor {
 public:
  Compressor(std::unique_ptr<Codec> codec, std::unique_ptr<Memory> memory, std::unique_ptr<Exchange> exchange,
             std::uint64_t seed = 0);
  ~Compressor();

  // In: this rank's gradient; out: the mean of all ranks' as far as it was delivered, the same bits on all ranks.
  // Returns the bytes this rank sent (Exchange::run). `segments` name the parts of `gradient` for the memory; they lie
  // within it and do not overlap; all ranks name the same.
  //
  // An infinity or a NaN in any rank's gradient reaches all ranks as a gradient that is not finite somewhere. All ranks
  // see that in the same bits, and all leave their memories as they were before the call: the step is going to be
  // skipped, as under a gradient scaler. (Other calls of that step, whose gradients were finite, have updated theirs,
  // and so have the other pieces of this one.)
  //
  // Throws what Exchange::run() and Memory::before() throw; `gradient` is unspecified then, the memory as it was
  // but for pieces that had arrived.
  std::size_t all_reduce(Transport& transport, std::span<const Segment> segments, const CompressCall& call,
                         std::span<float> gradient);

  // What all_reduce() would return; see Exchange::bytes_sent.
  std::size_t bytes_sent(std::size_t count, int world, std::uint64_t step = 0) const;

  // How many values a piece has among `world` ranks; the last has what is left.
  std::size_t piece_values(int world) const noexcept;

  // What make_compressor() would be given for it.
  std::string name() const;

  const Codec& codec() const noexcept { return *codec_; }
  const Exchange& exchange() const noexcept { return *exchange_; }
  // For save(), load() and clear(), not while all_reduce() runs.
  Memory& memory() noexcept { return *memory_; }
  const Memory& memory() const noexcept { return *memory_; }

 private:
  struct Scratch;
  class Piece;
  std::unique_ptr<Scratch> take_scratch() GRADWIRE_EXCLUDES(mutex_);
  void give_back(std::unique_ptr<Scratch> scratch) noexcept GRADWIRE_EXCLUDES(mutex_);

  std::unique_ptr<Codec> codec_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Exchange> exchange_;
  std::uint64_t seed_;
  Mutex mutex_;
  std::size_t made_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // scratches
  std::vector<std::unique_ptr<Scratch>> idle_ GRADWIRE_GUARDED_BY(mutex_);
};

// Makes a compressor of a codec's description (registry.h) with, among its options:
//   memory=none|error_feedback|ef21|momentum   exchange=all_gather|all_reduce   seed=0
//   momentum=0.9   clip=0                      (of the momentum memory)
// What is left out has the codec's default, see known_compressors(). Also takes "sign_sgd": signSGD with majority vote
// (Bernstein et al. 2018), which is "sign:memory=none,exchange=all_reduce". Throws InvalidArgument, which lists the
// right ones, for an unknown name or option.
std::unique_ptr<Compressor> make_compressor(std::string_view description);

// One line of a help text.
struct CompressorInfo {
  std::string_view name;
  std::string options;        // all that make_compressor() takes for it, with their defaults
  std::string_view bytes;     // of an encoding of n values
  std::string_view memory;    // the default
  std::string_view exchange;  // the default
  std::string_view paper;
};

// One a codec, in the order of the documentation, then the ready combinations.
const std::vector<CompressorInfo>& known_compressors();

}  // namespace gradwire::compress
