// SPDX-License-Identifier: Apache-2.0
// Every damage a checkpoint can take: each is found, and the newest intact checkpoint is used instead. Each is also given
// a right digest: then the parsers behind the digest must load or refuse, in bounded time and memory.
#include <algorithm>
#include <csignal>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint_image.hpp"
#include "checkpoint/checkpoint_store.hpp"
#include "support/checkpoint_trailer.hpp"
#include "support/confined_children.hpp"
#include "unit/checkpoint/small_state.hpp"

namespace holdfast::checkpoint {
namespace {

using Bytes = std::vector<std::byte>;
using ::testing::HasSubstr;

constexpr std::size_t page = 4096;
constexpr unsigned seed = 20261130;

/// A state of some pages with every kind of field; all its values can be set to one byte.
struct SeveralPages {
    std::vector<float> conv = std::vector<float>(64 * 3 * 3 * 3, 0.25f);
    std::vector<float> fc = std::vector<float>(10 * 512, -0.5f);
    std::vector<float> momentum = std::vector<float>(10 * 512, 1e-3f);
    std::vector<float> running_mean = std::vector<float>(64, 0.125f);
    std::int64_t num_batches_tracked = 7, epoch = 1, step = 7;
    double loss_sum = 2.5;
    std::vector<std::int64_t> epochs = std::vector<std::int64_t>(40, 3);
    std::vector<double> losses = std::vector<double>(40, 2.25);
    std::string settings = std::string(300, 'x');

    SeveralPages() {  // no two blocks of payload alike, so that swapping any two is damage
        std::iota(conv.begin(), conv.end(), 0.25f);
        std::iota(fc.begin(), fc.end(), 10'000.0f);
        std::iota(momentum.begin(), momentum.end(), 100'000.0f);
    }

    void visit(StateArchive& archive) {
        archive.field("/model/conv1.weight", std::span(conv), {64, 3, 3, 3});
        archive.field("/model/fc.weight", std::span(fc), {10, 512});
        archive.field("/momentum/fc.weight", std::span(momentum), {10, 512});
        archive.field("/buffers/bn1.running_mean", std::span(running_mean), {64});
        archive.field("/buffers/bn1.num_batches_tracked", num_batches_tracked);
        archive.field("/progress/epoch", epoch);
        archive.field("/progress/step", step);
        archive.field("/progress/loss_sum", loss_sum);
        archive.field("/history/epoch", std::span(epochs), {static_cast<std::int64_t>(epochs.size())});
        archive.field("/history/loss", std::span(losses), {static_cast<std::int64_t>(losses.size())});
        archive.field("/settings/json", settings);
    }
    Visit visitor() {
        return [this](StateArchive& archive) { visit(archive); };
    }
    Bytes file() {
        CheckpointImage image(visitor());
        auto const bytes = image.save(visitor());
        return {bytes.begin(), bytes.end()};
    }

    /// A file of this structure in which every byte of every value is `value`.
    static Bytes file_filled_with(unsigned char value) {
        SeveralPages state;
        auto const fill = [&](auto& values) {
            std::memset(values.data(), value, values.size() * sizeof values[0]);
        };
        auto const fill_scalar = [&](auto& scalar) { std::memset(&scalar, value, sizeof scalar); };
        fill(state.conv), fill(state.fc), fill(state.momentum), fill(state.running_mean), fill(state.epochs);
        fill(state.losses), fill(state.settings);
        fill_scalar(state.num_batches_tracked), fill_scalar(state.epoch), fill_scalar(state.step),
            fill_scalar(state.loss_sum);
        return state.file();
    }
};

Bytes const& good_file() {
    static Bytes const file = SeveralPages().file();
    return file;
}

/// For each byte of the file whether it holds a value of the state; all others are structure.
std::vector<bool> const& payload() {
    static std::vector<bool> const is_payload = [] {
        Bytes const zeros = SeveralPages::file_filled_with(0), ones = SeveralPages::file_filled_with(0xFF);
        std::vector<bool> result(zeros.size(), false);
        for (std::size_t i = 0; i + test::trailer_digest_bytes < zeros.size(); ++i)
            result[i] = zeros[i] != ones[i];
        return result;
    }();
    return is_payload;
}

/// Where values and structures of the file begin and end.
std::vector<std::size_t> boundaries() {
    Bytes const& file = good_file();
    std::set<std::size_t> found{0, 8, 96, file.size() - 64, file.size() - 16};
    for (std::size_t i = 1; i < file.size(); ++i) {
        if (payload()[i] != payload()[i - 1]) found.insert(i);
    }
    for (char const* const signature : {"TREE", "SNOD", "HEAP"}) {  // groups; object headers have none
        auto const* const word = reinterpret_cast<std::byte const*>(signature);
        for (auto at = file.begin();; ++at) {
            at = std::search(at, file.end(), word, word + 4);
            if (at == file.end()) break;
            found.insert(static_cast<std::size_t>(at - file.begin()));
        }
    }
    return {found.begin(), found.end()};
}

struct Damage {
    std::string name;
    Bytes file;
};
/// Made at need: all at once would take gigabytes.
using MakeDamage = std::function<Damage(std::size_t)>;
struct Damages {
    std::size_t count = 0;
    MakeDamage make;
};

Damage flip(std::size_t bit) {
    Bytes file = good_file();
    file[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    return {"bit " + std::to_string(bit % 8) + " of byte " + std::to_string(bit / 8), std::move(file)};
}

Damages truncations() {
    std::size_t const size = good_file().size();
    std::set<std::size_t> sizes;
    for (std::size_t at = 0; at < size; at += page) sizes.insert({at, at + 1, at + page - 1});
    for (std::size_t const at : boundaries()) {
        for (std::size_t const offset : {0, 1, 2, 4, 8, 16, 24, 32, 40})
            sizes.insert({at + offset, at - offset});
    }
    std::vector<std::size_t> all;
    std::copy_if(sizes.begin(), sizes.end(), std::back_inserter(all),
                 [&](std::size_t cut) { return cut < size; });
    return {all.size(), [all](std::size_t i) {
                return Damage{
                    "cut to " + std::to_string(all[i]) + " bytes",
                    Bytes(good_file().begin(), good_file().begin() + static_cast<std::ptrdiff_t>(all[i]))};
            }};
}

Damages metadata_bits() {
    std::vector<std::size_t> bits;
    for (std::size_t i = 0; i < 8 * payload().size(); ++i) {
        if (!payload()[i / 8]) bits.push_back(i);
    }
    return {bits.size(), [bits](std::size_t i) { return flip(bits[i]); }};
}

Damages payload_bits() {
    std::vector<std::size_t> bits;
    for (std::size_t i = 0; i < 8 * payload().size(); ++i) {
        if (payload()[i / 8]) bits.push_back(i);
    }
    std::mt19937 engine(seed);
    for (std::size_t i = 0; i < 10'000; ++i) std::swap(bits[i], bits[i + engine() % (bits.size() - i)]);
    return {10'000, [bits](std::size_t i) { return flip(bits[i]); }};
}

/// Blocks of one size swapped, zeroed, repeated, left out and doubled.
Damages blocks() {
    struct Change {
        std::string name;
        std::size_t size, from, to;
    };
    std::vector<Change> changes;
    for (std::size_t const size : {std::size_t{512}, page}) {
        std::size_t const count = good_file().size() / size;
        for (std::size_t i = 0; i < count; ++i) {
            for (char const* const name : {"zeroed", "ones", "left out", "doubled"})
                changes.push_back({name, size, i, i});
            for (std::size_t j = i + 1; j < count; j += size == page ? 1 : 7) {
                changes.push_back({"swapped", size, i, j});
                changes.push_back({"repeated", size, i, j});
            }
        }
    }
    return {changes.size(), [changes](std::size_t i) {
                Change const& change = changes[i];
                Bytes file = good_file();
                auto const size = static_cast<std::ptrdiff_t>(change.size);
                auto const from = file.begin() + static_cast<std::ptrdiff_t>(change.from) * size;
                auto const to = file.begin() + static_cast<std::ptrdiff_t>(change.to) * size;
                if (change.name == "zeroed") std::fill(from, from + size, std::byte{0});
                if (change.name == "ones") std::fill(from, from + size, std::byte{0xFF});
                if (change.name == "swapped") std::swap_ranges(from, from + size, to);
                if (change.name == "repeated") std::copy(from, from + size, to);
                if (change.name == "left out") file.erase(from, from + size);
                if (change.name == "doubled") {
                    Bytes const block(from, from + size);
                    file.insert(from, block.begin(), block.end());
                }
                return Damage{change.name + " " + std::to_string(change.size) + "-byte block " +
                                  std::to_string(change.from) + " (" + std::to_string(change.to) + ")",
                              std::move(file)};
            }};
}

Bytes of_text(std::string_view text, std::size_t size = 0) {
    auto const* const begin = reinterpret_cast<std::byte const*>(text.data());
    Bytes bytes(begin, begin + text.size());
    if (size > bytes.size()) bytes.resize(size, std::byte{'z'});
    return bytes;
}

/// What is no checkpoint at all, or not one of ours.
Damages foreign_files() {
    std::vector<Damage> files;
    auto const add = [&](char const* name, Bytes file) { files.push_back({name, std::move(file)}); };
    add("empty", {});
    add("text", of_text("epoch,step,lr\n0,4,0.1\n"));
    add("zip, as torch.save writes", of_text("PK\3\4", 9000));
    add("gzip", of_text("\x1f\x8b\x08", 9000));
    add("ELF", of_text("\x7f"
                       "ELF\2\1\1",
                       9000));
    add("zeros", Bytes(9000));
    add("magic alone", of_text("HOLDFAST"));
    add("HDF5 signature alone", of_text("\x89HDF\r\n\x1a\n"));
    add("trailer alone", test::with_trailer({}));
    add("text with a right trailer", test::with_trailer(of_text("hello", 1000)));
    Bytes plain = good_file();
    plain.resize(plain.size() - trailer_bytes);
    add("HDF5 without a trailer", plain);
    for (char const* const format : {"holdfast-images", "holdfast-checkpoints", ""}) {
        hdf5::ImageBuilder builder;
        builder.attribute("format", std::string(format));
        builder.attribute("version", format_version);
        add("other HDF5 file with a right trailer", test::with_trailer(builder.finish().bytes));
    }
    {
        hdf5::ImageBuilder builder;
        builder.attribute("format", std::string("holdfast-checkpoint"));
        builder.attribute("version", std::int64_t{0});
        add("version 0 inside", test::with_trailer(builder.finish().bytes));
    }
    hdf5::ImageBuilder builder;
    builder.reserve({"/model/w", hdf5::ElementType::f32, {3}});
    add("HDF5 without attributes", test::with_trailer(builder.finish().bytes));
    Bytes twice = good_file();
    twice.insert(twice.end(), good_file().begin(), good_file().end());
    add("two checkpoints in one", twice);
    std::mt19937 engine(seed);
    Bytes noise(50'000);
    std::generate(noise.begin(), noise.end(), [&] { return static_cast<std::byte>(engine()); });
    add("noise", noise);
    return {files.size(), [files](std::size_t i) { return files[i]; }};
}

std::string refusal_of(Bytes const& file) {
    try {
        CheckpointFile(file, "c.h5");
    } catch (OtherFormatError const& error) {
        return std::string("taken for another format: ") + error.what();
    } catch (Error const& error) {
        return error.code() == ExitCode::do_not_requeue ? error.what()
                                                        : std::string("wrong code: ") + error.what();
    }
    return "accepted";
}

class EveryDamage : public ::testing::TestWithParam<std::pair<char const*, Damages (*)()>> {};

TEST_P(EveryDamage, IsDetected) {
    Damages const damages = GetParam().second();
    ASSERT_GT(damages.count, 10u);
    for (std::size_t i = 0; i < damages.count; ++i) {
        Damage const damage = damages.make(i);
        if (damage.file == good_file()) continue;  // swapped blocks that are alike
        ASSERT_THAT(refusal_of(damage.file), ::testing::StartsWith("c.h5: ")) << damage.name;
    }
}

TEST_P(EveryDamage, LeavesTheNewestIntactOneInUse) {
    Damages const damages = GetParam().second();
    TemporaryFolder run;
    CheckpointStore const store(run.path());
    std::filesystem::create_directory(run.path() / "checkpoints");
    for (std::int64_t const step : {3, 5}) write_bytes(store.path_of(step), file_of_step(step));
    // Files cost more than bytes in memory: some hundred of the thousands of bits.
    std::size_t const stride = std::max<std::size_t>(1, damages.count / 300);
    ::testing::internal::CaptureStderr();
    for (std::size_t i = 0; i < damages.count; i += stride) {
        Damage const damage = damages.make(i);
        if (damage.file == good_file()) continue;
        write_bytes(store.path_of(7), damage.file);
        auto const found = CheckpointStore(run.path()).read_newest_good(DamagedFiles::leave);
        ASSERT_TRUE(found && found->step == 5 && std::ranges::equal(found->file.bytes(), file_of_step(5)))
            << damage.name;
    }
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("skipped a checkpoint: "));
}

/// Reads, digests and loads all there is. What is wrong with how that ends; empty if it loads or is refused properly.
std::string complaint_about_reading(Bytes file) {
    try {
        CheckpointFile const checkpoint(std::move(file), "c.h5");
        checkpoint.state_digest();
        SeveralPages state;
        checkpoint.load(state.visitor());
    } catch (Error const& error) {
        if (error.code() != ExitCode::do_not_requeue)
            return fmt::format("code {}: {}", static_cast<int>(error.code()), error.what());
        if (!std::string_view(error.what()).starts_with("c.h5: "))
            return fmt::format("does not name the file: {}", error.what());
    }
    return "";
}

TEST_P(EveryDamage, WithARightDigestIsLoadedOrRefused) {
    Damages const damages = GetParam().second();
    test::ConfinedChildren children;
    auto const complaints = children.run(damages.count, [&](std::size_t i) {
        Bytes file = damages.make(i).file;
        // Shorter than a trailer there is nothing to recompute; a cut off file gets a trailer of its own.
        bool const keeps_trailer = file.size() >= trailer_bytes &&
                                   std::memcmp(file.data() + file.size() - trailer_bytes, "HOLDFAST", 8) == 0;
        if (keeps_trailer) {
            test::recompute_digest(file);
        } else {
            file = test::with_trailer(std::move(file));
        }
        return complaint_about_reading(std::move(file));
    });
    for (auto const& [number, complaint] : complaints)
        ADD_FAILURE() << damages.make(number).name << ": " << complaint;
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryDamage,
                         ::testing::Values(std::pair{"Truncations", &truncations},
                                           std::pair{"MetadataBits", &metadata_bits},
                                           std::pair{"PayloadBits", &payload_bits},
                                           std::pair{"Blocks", &blocks},
                                           std::pair{"ForeignFiles", &foreign_files}),
                         [](auto const& tested) { return tested.param.first; });

TEST(Damage, StructureAndValuesAreToldApart) {
    SeveralPages state;
    std::size_t const value_bytes =
        4 * (state.conv.size() + state.fc.size() + state.momentum.size() + state.running_mean.size()) +
        4 * 8 + 8 * (state.epochs.size() + state.losses.size()) + state.settings.size();
    EXPECT_EQ(static_cast<std::size_t>(std::count(payload().begin(), payload().end(), true)), value_bytes);
    EXPECT_GT(good_file().size(), 10 * page);
    EXPECT_GT(boundaries().size(), 25u);
}

TEST(Damage, OtherVersionsAreRefusedAndNeverSkipped) {
    Bytes image = good_file();
    image.resize(image.size() - trailer_bytes);
    TemporaryFolder run;
    CheckpointStore store(run.path());
    std::filesystem::create_directory(run.path() / "checkpoints");
    write_bytes(store.path_of(5), file_of_step(5));
    for (std::uint64_t const version :
         {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{4}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
        Bytes file = test::with_trailer(image, version);
        EXPECT_THROW(CheckpointFile(file, "c.h5"), OtherFormatError) << version;
        write_bytes(store.path_of(7), file);
        EXPECT_THROW(CheckpointStore(run.path()).read_newest_good(DamagedFiles::quarantine),
                     OtherFormatError);
        EXPECT_TRUE(std::filesystem::exists(store.path_of(7)));
        file[100] ^= std::byte{1};  // under a wrong digest it is damage, and the older one is used
        EXPECT_THAT(refusal_of(file), HasSubstr("damaged"));
        write_bytes(store.path_of(7), file);
        ::testing::internal::CaptureStderr();
        EXPECT_EQ(CheckpointStore(run.path()).read_newest_good(DamagedFiles::leave)->step, 5);
        ::testing::internal::GetCapturedStderr();
    }
}

// The tests above would be green for ever if their children noticed nothing.
TEST(ConfinedChildren, NoticeWhatGoesWrong) {
    test::ConfinedChildren children({std::size_t{2} << 30, std::size_t{64} << 20, 1});
    auto const complaints = children.run(8, [](std::size_t i) -> std::string {
        switch (i) {
            case 0:
                ::raise(SIGSEGV);
                break;
            case 1:
                if (std::FILE* const file = std::fopen("/etc/passwd", "r")) std::fclose(file);
                break;
            case 2:
                for (;;) ::usleep(1000);
            case 3:
                return "xxxxx";
            case 4:
                throw std::runtime_error("oops");
            case 5:
                std::_Exit(0);
            case 6: {
                std::vector<char> const large(std::size_t{80} << 20, 'x');
                return large.back() == 'x' ? "" : "?";
            }
        }
        return "";
    });
    EXPECT_THAT(complaints, ::testing::ElementsAre(
                                ::testing::Pair(0, HasSubstr("crashed")), ::testing::Pair(1, "opened a file"),
                                ::testing::Pair(2, HasSubstr("not done")), ::testing::Pair(3, "xxxxx"),
                                ::testing::Pair(4, HasSubstr("oops")), ::testing::Pair(5, HasSubstr("left")),
                                ::testing::Pair(6, HasSubstr("memory"))));
}

}  // namespace
}  // namespace holdfast::checkpoint
