// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/checkpoint.h"

#include <utility>
#include <vector>

#include "examples/char_lm/errors.h"
#include "gradwire/base/strings.h"
#include "gradwire/optim/checkpoint.h"

namespace char_lm {
namespace {

using gradwire::concat;

// By name, what a checkpoint and the run that resumes it must agree on.
std::vector<std::pair<std::string, std::string>> shared_options(const Options& options) {
  return {{"layers", concat(options.layers)}, {"width", concat(options.width)},     {"heads", concat(options.heads)},
          {"dtype", options.dtype},           {"context", concat(options.context)}, {"seed", concat(options.seed)},
          {"batch", concat(options.batch)},   {"optimizer", options.optimizer}};
}

std::string text_of(const gradwire::CheckpointValues& values, const std::string& key, const std::string& file) {
  const auto found = values.find(key);
  if (found == values.end() || !found->second.isString()) {
    throw UserError(concat("the file ", file, " is no checkpoint of this program"));
  }
  return found->second.toStringRef();
}

void require_match(const gradwire::CheckpointValues& values, const std::string& file, const Options& options,
                   const Vocabulary& vocabulary) {
  for (const auto& [name, wanted] : shared_options(options)) {
    const std::string found = text_of(values, name, file);
    if (found != wanted) {
      throw UserError(
          concat("the checkpoint ", file, " was made with --", name, " ", found, ", not --", name, " ", wanted));
    }
  }
  if (text_of(values, "vocabulary", file) != vocabulary.bytes()) {
    throw UserError(
        concat("the checkpoint ", file, " was trained on a text with other characters; resume with the same --text"));
  }
}

// What becomes of the hook's memory, where it does not go on as it was.
std::string remark_on(const gradwire::Checkpoint& checkpoint, const Options& options,
                      const gradwire::ProcessGroup& group, const std::string& file) {
  const std::string saved = text_of(checkpoint.values(), "hook", file);
  if (saved != options.hook) {
    return concat("The checkpoint was saved under the hook ", saved, "; ", options.hook,
                  " begins with an empty memory.");
  }
  if (checkpoint.ranks() == group.size() || !checkpoint.has_local_state()) return {};
  return concat("Each rank takes the mean of what the hook remembered on ", checkpoint.ranks(), " ranks.");
}

}  // namespace

void save_checkpoint(const std::string& file, const Options& options, const Vocabulary& vocabulary, std::int64_t step,
                     Replica& replica, torch::optim::Optimizer& optimizer) {
  gradwire::CheckpointValues values{{"step", step}, {"vocabulary", vocabulary.bytes()}, {"hook", options.hook}};
  for (const auto& [name, value] : shared_options(options)) values.emplace(name, value);
  gradwire::save_checkpoint(file, replica.core(), optimizer, values);
}

Resumed load_checkpoint(const std::string& file, const Options& options, const Vocabulary& vocabulary, Replica& replica,
                        torch::optim::Optimizer& optimizer, gradwire::ProcessGroup& group) {
  gradwire::Checkpoint checkpoint(file, group);
  require_match(checkpoint.values(), file, options, vocabulary);
  const std::int64_t step = checkpoint.values().at("step").toInt();
  if (step >= options.steps) {
    throw UserError(concat("the checkpoint ", file, " is at step ", step, " already; ask for more with --steps"));
  }
  const Resumed resumed{step, remark_on(checkpoint, options, group, file)};
  checkpoint.restore(replica.core(), optimizer, gradwire::OtherHook::start_new);
  return resumed;
}

}  // namespace char_lm
