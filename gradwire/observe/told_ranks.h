// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The rank of this process in its job, where RANK and WORLD_SIZE do not tell: under mpirun and srun, and in processes
// of torch.multiprocessing.
#pragma once

namespace gradwire::observe {

// This process has made a group of `world` ranks, in which it has the rank `rank`. The group with the most ranks, of
// several the first, counts as the job. Thread-safe.
void tell_ranks(int rank, int world) noexcept;

}  // namespace gradwire::observe
