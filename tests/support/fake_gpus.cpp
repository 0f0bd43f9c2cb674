// SPDX-License-Identifier: Apache-2.0
// The program's view of GPUs, for tests on machines without them: each process sees those that FAKE_GPUS names ("GPU-a GPU-b").
// The linker puts these in the place of cuda/device_runtime.hpp's (-Wl,--wrap), for all that asks which GPUs there are.
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

extern "C++" {
bool fake_supports_gpus() __asm__("__wrap__ZN8holdfast4cuda13supports_gpusEv");
std::vector<std::string> fake_visible_device_uuids() __asm__(
    "__wrap__ZN8holdfast4cuda20visible_device_uuidsB5cxx11Ev");
}

bool fake_supports_gpus() { return true; }

std::vector<std::string> fake_visible_device_uuids() {
    char const* const names = std::getenv("FAKE_GPUS");
    std::istringstream words(names == nullptr ? "" : names);
    std::vector<std::string> uuids;
    for (std::string uuid; words >> uuid;) uuids.push_back(uuid);
    return uuids;
}
