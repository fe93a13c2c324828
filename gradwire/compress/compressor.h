// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A compressor: a codec, a memory and an exchange. It does "all-reduce, then divide" on encodings.
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

// One call; all ranks pass the same.
struct CompressCall {
  std::uint64_t tensor = 0;  // the tensor (bucket): any number, the same at every step
  std::uint64_t step = 0;    // counts up from 0; random numbers and dgc's schedule depend on the step
  double divisor = 0;        // the divisor of the sum over all ranks; 0: the number of ranks
};

// Threads: calls for different parameters may run at the same time. The compressor keeps its buffers between calls.
//
// A long gradient is cut into pieces where the codec and the memory allow that (Codec::block, Memory::works_by_value).
// Each piece is an exchange of its own. While one piece travels, the next one is encoded. Within a piece the memory,
// the codec and the sum work block by block, each block from end to end, so that the block stays in the cache.
class Compressor {
 public:
  // The three parts must not be null. `seed`: of the random numbers of codecs that draw some, the same on all ranks.
  Compressor(std::unique_ptr<Codec> codec, std::unique_ptr<Memory> memory, std::unique_ptr<Exchange> exchange,
             std::uint64_t seed = 0);
  ~Compressor();

  // Replaces this rank's gradient by the mean of all ranks' gradients, as far as it was delivered (exchange.h). All
  // ranks get the same bits. Returns the bytes that this rank sent (Exchange::run). `segments` name the parts of
  // `gradient` for the memory: they lie within `gradient`, do not overlap, and are the same on all ranks. So are the
  // compressors' descriptions and the numbers of values; nothing compares them.
  //
  // When the gradient of any rank holds an infinity or a NaN, all ranks get a gradient that is not finite, with the
  // same bits, and no rank changes its memory: the training program is expected to skip the step, as under a gradient
  // scaler. (Calls of the same step with finite gradients have changed the memory, and so have the other pieces of this
  // gradient.)
  //
  // Throws what Exchange::run() and Memory::before() throw. `gradient` is unspecified then. The memory is unchanged,
  // except for pieces that had arrived.
  std::size_t all_reduce(Transport& transport, std::span<const Segment> segments, const CompressCall& call,
                         std::span<float> gradient);

  // The bytes that all_reduce() would return; see Exchange::bytes_sent.
  std::size_t bytes_sent(std::size_t count, int world, std::uint64_t step = 0) const;

  // The number of values in a piece when there are `world` ranks. The last piece may be shorter.
  std::size_t piece_values(int world) const noexcept;

  // The description from which make_compressor() makes this compressor.
  std::string name() const;

  std::uint64_t seed() const noexcept { return seed_; }
  const Codec& codec() const noexcept { return *codec_; }
  const Exchange& exchange() const noexcept { return *exchange_; }
  // The memory, for save(), load() and clear(). Do not call these while all_reduce() runs.
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

// Makes a compressor from the description of a codec (registry.h). These options may stand among the codec's:
//   memory=none|error_feedback|ef21|momentum   exchange=all_gather|all_reduce   seed=0
//   momentum=0.9   clip=0                      (of the momentum memory)
// An option that is not given has the codec's default (known_compressors()). The name "sign_sgd", signSGD with majority
// vote (Bernstein et al. 2018), stands for "sign:memory=none,exchange=all_reduce". Throws InvalidArgument for an
// unknown name or option, with the list of the known ones.
std::unique_ptr<Compressor> make_compressor(std::string_view description);

// One line of a help text.
struct CompressorInfo {
  std::string_view name;      // as make_compressor() takes it
  std::string options;        // all that make_compressor() takes for it, with their defaults
  std::string_view bytes;     // of an encoding of n values
  std::string_view memory;    // the default
  std::string_view exchange;  // the default
  std::string_view paper;
};

// One entry a codec, in the order of the documentation, and then the ready combinations.
const std::vector<CompressorInfo>& known_compressors();

}  // namespace gradwire::compress
