// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What compression does to learning: char_lm's default model on its text for 1,000 steps on 2 ranks under one hook
// after the other, as a table. docs/hooks.md has the table as it was measured.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gradwire/base/strings.h"

namespace char_lm {
namespace {

using gradwire::concat;
using Json = nlohmann::json;

// The class of a hook, as documented: how much larger than plain averaging's its held-out loss may be. kMisses: it is
// documented to end above 5%.
constexpr double kTwoPercent = 1.02;
constexpr double kFivePercent = 1.05;
constexpr double kMisses = 0;

struct Row {
  std::string hook;
  double limit;
};

// In the order of the documentation; the first one is what the others are compared with.
const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {"allreduce", kTwoPercent}, {"fp16_compress", kTwoPercent}, {"bf16_compress", kTwoPercent},
      {"fp8_e4m3", kTwoPercent},  {"int8", kTwoPercent},          {"power_sgd:rank=4,start=10", kMisses},
      {"int4", kFivePercent},     {"one_bit", kMisses},           {"top_k:ratio=0.01", kMisses},
      {"dgc", kMisses},           {"sign_sgd", kMisses}};
  return all;
}

// What --json's summary says after training under `hook`; null when the program failed.
Json train(const std::string& hook) {
  std::string folder = testing::TempDir() + "/char_lm_convergence_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return {};
  const std::string json = folder + "/curve.json";
  const std::string command =
      concat(GRADWIRE_RUN_PROGRAM, " -n 2 ", CHAR_LM_PROGRAM, " --steps 1000 --log-every 1000",
             " --eval-batches 32 --generate 0 --hook '", hook, "' --json ", json, " > ", folder, "/out 2>&1");
  Json summary;
  if (std::system(command.c_str()) == 0) {
    std::ifstream in(json);
    for (std::string line; std::getline(in, line);) summary = Json::parse(line);
  }
  std::filesystem::remove_all(folder);
  return summary;
}

// A number that is not finite is null in JSON.
double number(const Json& summary, const char* key) {
  return summary.at(key).is_number() ? summary.at(key).get<double>() : std::nan("");
}

// Every hook ends finite with ranks that agree, and each is in the class that the documentation puts it in.
TEST(Convergence, EveryHookIsInItsDocumentedClass) {
  double plain = 0;
  std::printf("%-28s %9s %9s %12s %12s %9s\n", "hook", "held-out", "/ plain", "bytes/step", "compression", "s/step");
  for (const Row& row : rows()) {
    const Json summary = train(row.hook);
    ASSERT_TRUE(summary.is_object()) << row.hook << " did not end well";
    const double loss = number(summary, "held_out_loss");
    if (plain == 0) plain = loss;
    std::printf("%-28s %9.4f %9.4f %12.0f %12.2f %9.4f\n", row.hook.c_str(), loss, loss / plain,
                number(summary, "bytes_per_step"), number(summary, "compression_factor"),
                1 / number(summary, "steps_per_second"));
    std::fflush(stdout);
    EXPECT_TRUE(std::isfinite(loss)) << row.hook;
    EXPECT_NE(summary.at("parameter_hash"), "") << row.hook;
    if (row.limit == kMisses) continue;
    EXPECT_LE(loss, row.limit * plain) << row.hook;
  }
}

}  // namespace
}  // namespace char_lm
