# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A slice of PyTorch's own tests of torch.distributed passes over the backend "gradwire" (pytorch_suite.py runs all)."""
import json
import os
import pathlib
import sys

import forks

GUARD = 500

SLICE = """
test_all_gather_coalesced_with_empty test_all_gather_object_subgroup test_all_reduce_coalesced_full_group_product
test_all_reduce_complex_unsupported_ops test_all_reduce_sum_async
test_barrier_timeout_full_group test_batch_isend_irecv_gloo_tags test_broadcast test_destroy_full_group test_gather_checks
test_get_future test_isend_torch_profiler test_monitored_barrier_gloo_rank_0_timeout test_reduce_full_group_max
test_scatter_complex test_scatter_object_list test_send_recv_any_source_torch_profiler
test_send_recv_with_tag_autograd_profiler test_sparse_all_reduce_sum
test_DistributedDataParallelCPU_grad_is_view test_accumulate_gradients_no_sync_allreduce_with_then_hook
test_ddp_create_graph test_static_graph_api_cpu
""".split()


def test_a_slice_of_pytorchs_own_suite():
    program = pathlib.Path(__file__).parent / "pytorch_suite.py"
    process = forks.start([sys.executable, str(program), *SLICE], dict(os.environ))
    try:
        output, _ = process.communicate(timeout=GUARD)
    finally:
        process.kill()
    result = json.loads(output.splitlines()[-1])
    assert result == {"passed": SLICE, "skipped": {}, "failed": {}}, "\n".join(result["failed"].values()) or result
