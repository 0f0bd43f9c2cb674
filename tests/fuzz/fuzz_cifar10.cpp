// SPDX-License-Identifier: Apache-2.0
// A folder of CIFAR-10's six files, changed as the input says: sizes, labels, pixels, missing files. Files of the right size
// with labels up to 9 must be read back byte for byte, all others refused. The files are holes, so a test costs no disk.
#include <array>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

#include "core/error.hpp"
#include "data/cifar10_files.hpp"

using namespace holdfast;

namespace {

constexpr off_t record_bytes = 3073, num_records = 10'000, file_bytes = record_bytes * num_records;
constexpr std::array names{"test_batch.bin",   "data_batch_1.bin", "data_batch_2.bin",
                           "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};

struct Folder {
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "holdfast-fuzz-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) std::abort();
        path = name;
        for (std::size_t i = 0; i < names.size(); ++i)
            files[i] = ::open((path / names[i]).c_str(), O_RDWR | O_CREAT, 0600);
    }
    ~Folder() { std::filesystem::remove_all(path); }

    std::filesystem::path path;
    std::array<int, names.size()> files{};
};

}  // namespace

/// Each 8 bytes of the input are one change: file, kind, value, and where.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
    static Folder const folder;
    for (int const file : folder.files) {
        if (::ftruncate(file, 0) != 0 || ::ftruncate(file, file_bytes) != 0) std::abort();
    }
    struct Change {
        std::size_t file;
        off_t at;
    };
    std::vector<Change> labels, pixels;
    for (; size >= 8; data += 8, size -= 8) {
        std::size_t const file = data[0] % names.size();
        unsigned const kind = data[1] % 4;
        std::uint8_t const value = data[2];
        std::uint32_t where;
        std::memcpy(&where, data + 4, sizeof where);
        off_t const record = where % num_records * record_bytes;
        if (kind == 0) {
            off_t const other = value % 2 == 0 ? where % (2 * file_bytes) : file_bytes + value - 129;
            if (::ftruncate(folder.files[file], other) != 0) std::abort();
        } else {
            off_t const at = kind == 1 ? record : record + 1 + where % (record_bytes - 1);
            if (::pwrite(folder.files[file], &value, 1, at) != 1) std::abort();
            (kind == 1 ? labels : pixels).push_back({file, at});
        }
    }
    auto const byte_at = [&](Change const& change) {
        std::uint8_t value = 0;
        return ::pread(folder.files[change.file], &value, 1, change.at) == 1 ? value : std::uint8_t{0};
    };
    bool is_good = true;
    for (int const file : folder.files) is_good = is_good && ::lseek(file, 0, SEEK_END) == file_bytes;
    for (Change const& label : labels) is_good = is_good && byte_at(label) < 10;
    try {
        data::TrainAndTest const sets = data::open_cifar10(folder.path);
        if (!is_good) std::abort();
        std::vector<std::uint8_t> image(record_bytes - 1);
        for (Change const& pixel : pixels) {
            off_t const record = pixel.at / record_bytes;
            data::ImageDataset const& set = pixel.file == 0 ? *sets.test : *sets.train;
            set.read(record + (pixel.file == 0 ? 0 : static_cast<off_t>(pixel.file - 1) * num_records),
                     image);
            if (image[static_cast<std::size_t>(pixel.at % record_bytes - 1)] != byte_at(pixel)) std::abort();
        }
    } catch (Error const& error) {
        if (is_good || error.code() != ExitCode::do_not_requeue) std::abort();
    }
    return 0;
}
