// SPDX-License-Identifier: Apache-2.0
// The C++ side of holdfast_io_test.py: `write FILE` writes a small checkpoint, `read FILE` loads weights that
// Python wrote and says whether they are those of the same state.
#include <cstdio>
#include <string_view>

#include "checkpoint/durable_file.hpp"
#include "small_state.hpp"

using namespace holdfast;
using namespace holdfast::checkpoint;

int main(int argc, char** argv) try {
    if (argc != 3) return 2;
    SmallState expected;
    if (std::string_view(argv[1]) == "write") {
        write_bytes(argv[2], expected.file());
        return 0;
    }
    CheckpointFile const file(read_file(argv[2], 1 << 20), argv[2], Trailer::optional);
    SmallState loaded;
    loaded.weight.assign(6, 0.0f);
    loaded.running_mean.assign(2, 0.0f);
    loaded.num_batches_tracked = 0;
    file.load(
        [&](StateArchive& archive) {
            archive.field("/model/conv1.weight", std::span(loaded.weight), {2, 3});
            archive.field("/buffers/bn1.running_mean", std::span(loaded.running_mean), {2});
            archive.field("/buffers/bn1.num_batches_tracked", loaded.num_batches_tracked);
        },
        {parameters_group, buffers_group});
    return loaded == expected ? 0 : 1;
} catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
}
