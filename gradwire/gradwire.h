// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// All that a training program on libtorch needs: groups, DistributedDataParallel, hooks, optimizers over several ranks,
// checkpoints. Needs C++20, which the target gradwire::gradwire brings with it. Each header may also be included by
// itself, which compiles faster. Tools for tests are in gradwire/testing/, programs without torch include
// gradwire/core.h.
#pragma once

#include "gradwire/amp/grad_scaler.h"
#include "gradwire/core.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/ddp/join.h"
#include "gradwire/functional/functional.h"
#include "gradwire/hooks/between_hosts_hook.h"
#include "gradwire/hooks/clip_hook.h"
#include "gradwire/hooks/compress_wrappers.h"
#include "gradwire/hooks/compressed_hook.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/mixed_precision_hooks.h"
#include "gradwire/hooks/optimizer_overlap_hooks.h"
#include "gradwire/hooks/policy_hook.h"
#include "gradwire/hooks/post_local_sgd_hook.h"
#include "gradwire/hooks/power_sgd.h"
#include "gradwire/hooks/quantization_hooks.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/nn/sync_batch_norm.h"
#include "gradwire/optim/checkpoint.h"
#include "gradwire/optim/diloco.h"
#include "gradwire/optim/fused_zero_hook.h"
#include "gradwire/optim/model_averaging.h"
#include "gradwire/optim/optimizer_factory.h"
#include "gradwire/optim/optimizer_in_backward.h"
#include "gradwire/optim/post_local_sgd_optimizer.h"
#include "gradwire/optim/zero_hook.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"
#include "gradwire/process_group/c10d/from_c10d.h"
#include "gradwire/process_group/hybrid/hybrid_group.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/network_payload.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/work.h"
