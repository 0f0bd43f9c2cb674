// SPDX-License-Identifier: Apache-2.0
// Preloaded into one rank, it says that the library named by OTHER_VERSION_OF is another than the one that is there.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>

namespace {

bool is_of(char const* library) {
    char const* const name = std::getenv("OTHER_VERSION_OF");
    return name != nullptr && std::strcmp(name, library) == 0;
}

}  // namespace

extern "C" int MPI_Get_library_version(char* text, int* length) {
    if (is_of("mpi")) {
        *length = std::sprintf(text, "Open MPI v99.0");
        return 0;
    }
    auto const real = reinterpret_cast<int (*)(char*, int*)>(dlsym(RTLD_NEXT, "MPI_Get_library_version"));
    return real(text, length);
}

namespace at {

std::string show_config() {
    if (is_of("libtorch")) return "PyTorch built with:\n  - Build settings: TORCH_VERSION=99.0, USE_CUDA=0\n";
    auto const real = reinterpret_cast<std::string (*)()>(dlsym(RTLD_NEXT, "_ZN2at11show_configB5cxx11Ev"));
    return real();
}

}  // namespace at
