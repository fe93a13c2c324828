// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Several hundred random programs of collectives. To replay one: GRADWIRE_RANDOM_PROGRAM=<seed> and the filter of its
// group.
#include "gradwire/base/environment.h"
#include "gradwire/testing/conformance_test_support.h"
#include "gradwire/testing/random_program.h"

namespace gradwire::testing::random_programs_test {
namespace {

template <class Group>
class RandomPrograms : public ::testing::Test {};
using Groups =
    ::testing::Types<Shm, Gloo, Ucx, HybridUcx, RoundTrip, Threads, HybridGroup, LocalGroup>;  // the forked ones first
TYPED_TEST_SUITE(RandomPrograms, Groups);

TYPED_TEST(RandomPrograms, GiveWhatTheyShould) {
  const auto seed = environment("GRADWIRE_RANDOM_PROGRAM");
  if (seed) {
    run_random_programs<TypeParam>(std::stoull(*seed), 1);
  } else {
    run_random_programs<TypeParam>(1000, 400);
  }
}

}  // namespace
}  // namespace gradwire::testing::random_programs_test
