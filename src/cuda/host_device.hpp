// SPDX-License-Identifier: Apache-2.0
// Marks a function that our kernels call too, so that host and device compute the same by construction. nvcc compiles it with
// -fmad=false, everything else with -ffp-contract=off. C++17.
#pragma once

#ifdef __CUDACC__
#define HOLDFAST_HOST_DEVICE __host__ __device__
#else
#define HOLDFAST_HOST_DEVICE
#endif
