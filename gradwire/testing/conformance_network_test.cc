// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups that cross hosts pass the conformance suite.
#include "gradwire/testing/conformance_suite.h"
#include "gradwire/testing/conformance_test_support.h"

namespace gradwire::testing::conformance_network_test {

INSTANTIATE_TYPED_TEST_SUITE_P(Gloo, ConformanceSuite, Gloo);
INSTANTIATE_TYPED_TEST_SUITE_P(Ucx, ConformanceSuite, Ucx);
INSTANTIATE_TYPED_TEST_SUITE_P(HybridUcx, ConformanceSuite, HybridUcx);

}  // namespace gradwire::testing::conformance_network_test
