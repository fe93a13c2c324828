// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Our own groups, the fault-injecting one, and one as a user would write it pass the conformance suite.
#include "gradwire/testing/conformance_suite.h"
#include "gradwire/testing/conformance_test_support.h"

namespace gradwire::testing::conformance_test {

// First: their ranks are forked.
INSTANTIATE_TYPED_TEST_SUITE_P(Shm, ConformanceSuite, Shm);
INSTANTIATE_TYPED_TEST_SUITE_P(RoundTrip, ConformanceSuite, RoundTrip);
INSTANTIATE_TYPED_TEST_SUITE_P(Threads, ConformanceSuite, Threads);
INSTANTIATE_TYPED_TEST_SUITE_P(Hybrid, ConformanceSuite, HybridGroup);
INSTANTIATE_TYPED_TEST_SUITE_P(FaultInjecting, ConformanceSuite, FaultInjectingGroup);
INSTANTIATE_TYPED_TEST_SUITE_P(User, ConformanceSuite, LocalGroup);

}  // namespace gradwire::testing::conformance_test
