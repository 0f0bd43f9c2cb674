// SPDX-License-Identifier: Apache-2.0
// Compiles a hot loop once per x86-64 level and picks one when the program starts. The bits stay the same on all of them:
// the build contracts nothing by itself and std::fma is exactly rounded everywhere, in hardware or in libm.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HOLDFAST_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HOLDFAST_VECTOR_CLONES
#endif
