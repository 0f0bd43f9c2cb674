// SPDX-License-Identifier: Apache-2.0
// Gives files that a stranger may have made to Holdfast's readers, each in a child that can open nothing and has little
// memory and time: `confined_reader checkpoint|weights|images FILE...` prints one line per file, how that ended.
//   checkpoint  the file gets a right digest trailer, is read whole, digested and loaded as a run's state
//   weights     as --init-from reads it: a trailer is not needed, and only /model and /buffers count
//   images      as --data reads a packed set
#include <cstdio>
#include <stdexcept>
#include <string_view>

#include "checkpoint/checkpoint_image.hpp"
#include "checkpoint/durable_file.hpp"
#include "data/packed_images.hpp"
#include "support/checkpoint_trailer.hpp"
#include "support/confined_children.hpp"
#include "unit/checkpoint/small_state.hpp"

using namespace holdfast;

namespace {

using Bytes = std::vector<std::byte>;

void read_checkpoint(Bytes bytes) {
    checkpoint::CheckpointFile const file(test::with_trailer(std::move(bytes)), "FILE");
    for (hdf5::DatasetInfo const& info : file.datasets()) file.read(info.path);
    file.state_digest();
    checkpoint::SmallState state;
    file.load(state.visitor());
}

void read_weights(Bytes bytes) {
    checkpoint::CheckpointFile const file(std::move(bytes), "FILE", checkpoint::Trailer::optional);
    std::vector<float> weight(6);
    file.load(
        [&](checkpoint::StateArchive& archive) {
            archive.field("/model/conv1.weight", std::span(weight), {2, 3});
        },
        {checkpoint::parameters_group, checkpoint::buffers_group});
}

void read_images(Bytes bytes) { data::decode_packed_images(std::move(bytes), "FILE"); }

}  // namespace

int main(int argc, char** argv) try {
    std::string_view const kind = argc > 2 ? argv[1] : "";
    auto* const read = kind == "checkpoint" ? &read_checkpoint
                       : kind == "weights"  ? &read_weights
                                            : &read_images;
    if (argc < 3 || (read == &read_images && kind != "images")) {
        std::fprintf(stderr, "Usage: %s checkpoint|weights|images FILE...\n", argv[0]);
        return 2;
    }
    std::vector<Bytes> files;
    for (int i = 2; i < argc; ++i) files.push_back(checkpoint::read_file(argv[i], std::size_t{1} << 30));
    test::Confinement confinement;
    confinement.max_complaints = files.size();
    auto const outcomes =
        test::ConfinedChildren(confinement).run(files.size(), [&](std::size_t i) -> std::string {
            try {
                read(files[i]);
            } catch (Error const& error) {
                if (error.code() != ExitCode::do_not_requeue)
                    return fmt::format("WRONG CODE {}: {}", static_cast<int>(error.code()), error.what());
                return std::string("refused: ") + error.what();
            }
            return "accepted";
        });
    for (auto const& [number, outcome] : outcomes)
        std::printf("%s\t%s\n", argv[2 + number], outcome.substr(0, outcome.find('\n')).c_str());
    return 0;
} catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
