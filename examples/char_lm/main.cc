// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Trains a character transformer, data-parallel: gradwire-run -n 2 char_lm
//
// Exit codes: 0, 1 (training failed: a rank died, the disk is full), 2 (something the user can put right).
// Signals keep their default actions: SIGTERM ends the program at once; a checkpoint is written whole or not at all.
#include <c10/util/Exception.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "examples/char_lm/errors.h"
#include "examples/char_lm/options.h"
#include "examples/char_lm/ranks.h"
#include "examples/char_lm/text.h"
#include "examples/char_lm/trainer.h"
#include "gradwire/base/error.h"
#include "gradwire/process_group/init.h"

namespace {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

void run(const std::vector<std::string>& arguments) {
  using namespace char_lm;
  const Options options = parse_options(arguments);
  const Text text = options.text.empty() ? load_folder(kLicenceFolder) : load_file(options.text);
  Corpus::require_length(text, options.context);
  train(options, text, join_ranks(options.backend));
  gradwire::destroy_process_group();
}

int fail(int code, const std::string& message) {
  // One write, so that the sentences of several ranks do not mingle.
  std::cerr << "char_lm: " + message + "\n" << std::flush;
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
    return 0;
  } catch (const char_lm::HelpRequest& help) {
    std::cout << help.text;
    return 0;
  } catch (const char_lm::UserError& error) {
    return fail(kBadInput, error.what());
  } catch (const gradwire::InvalidArgument& error) {
    return fail(kBadInput, error.what());
  } catch (const gradwire::UnsupportedError& error) {
    return fail(kBadInput, error.what());
  } catch (const c10::Error& error) {
    return fail(kFailed, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  }
}
