// SPDX-License-Identifier: Apache-2.0
// Preloaded into one rank, it says that the library named by OTHER_VERSION_OF is another than the one that is there.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
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

namespace caffe2 {

std::map<std::string, std::string> const& GetBuildOptions() {
    static std::map<std::string, std::string> const others{{"TORCH_VERSION", "99.0"}, {"USE_CUDA", "0"}};
    if (is_of("libtorch")) return others;
    using Function = std::map<std::string, std::string> const& (*)();
    auto const real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "_ZN6caffe215GetBuildOptionsB5cxx11Ev"));
    return real();
}

}  // namespace caffe2
