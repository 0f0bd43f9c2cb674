// SPDX-License-Identifier: Apache-2.0
#include "data/cifar10_files.hpp"

#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "core/error.hpp"

namespace holdfast::data {
namespace {

namespace fs = std::filesystem;

constexpr ImageShape image_shape{3, 32, 32};
constexpr std::int64_t num_classes = 10;
constexpr std::int64_t record_bytes = 1 + 3 * 32 * 32;
constexpr std::int64_t records_per_file = 10000;
constexpr std::int64_t file_bytes = records_per_file * record_bytes;

ExitCode exit_code_for(int error) {
    bool const may_pass = error == EIO || error == ESTALE || error == ETIMEDOUT || error == EAGAIN ||
                          error == EMFILE || error == ENFILE || error == ENOMEM;
    return may_pass ? ExitCode::retry : ExitCode::do_not_requeue;
}

class BatchFile {
  public:
    explicit BatchFile(fs::path path);
    BatchFile(BatchFile&& other) noexcept
        : path_(std::move(other.path_)),
          fd_(std::exchange(other.fd_, -1)),
          labels_(std::move(other.labels_)) {}
    BatchFile& operator=(BatchFile&&) = delete;
    ~BatchFile() {
        if (fd_ >= 0) ::close(fd_);
    }

    std::int64_t label(std::int64_t record) const { return labels_[static_cast<std::size_t>(record)]; }
    void read(std::int64_t offset, std::span<std::uint8_t> out) const;

  private:
    void check_labels();

    fs::path path_;
    int fd_ = -1;
    std::vector<std::uint8_t> labels_;
};

BatchFile::BatchFile(fs::path path) : path_(std::move(path)) {
    // Non-blocking: opening a named pipe would wait for a writer for ever.
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int const error = errno;
    if (fd_ < 0 && error == ENOENT) {
        fail(ExitCode::do_not_requeue,
             "{} is missing (all six files of CIFAR-10's binary version are needed); unpack the archive "
             "again or fetch it "
             "with scripts/fetch-cifar10",
             path_.string());
    }
    require(fd_ >= 0, exit_code_for(error), "cannot open {}: {}", path_.string(), std::strerror(error));
    try {
        struct stat status {};
        require(::fstat(fd_, &status) == 0, exit_code_for(errno), "cannot inspect {}: {}", path_.string(),
                std::strerror(errno));
        require(S_ISREG(status.st_mode), ExitCode::do_not_requeue,
                "{} is {} (a file of {} bytes is needed); unpack the archive again", path_.string(),
                S_ISDIR(status.st_mode) ? "a directory" : "not a regular file", file_bytes);
        require(
            status.st_size == file_bytes, ExitCode::do_not_requeue,
            "{} has {} bytes, expected {} ({} records of {} bytes); the file is {}, unpack the archive again",
            path_.string(), static_cast<std::int64_t>(status.st_size), file_bytes, records_per_file,
            record_bytes, status.st_size < file_bytes ? "cut short" : "too long or another one");
        check_labels();
    } catch (...) {
        ::close(fd_);
        throw;
    }
}

void BatchFile::check_labels() {
    constexpr std::int64_t records_per_read = 250;
    static_assert(records_per_file % records_per_read == 0);
    std::vector<std::uint8_t> records(records_per_read * record_bytes);
    labels_.reserve(records_per_file);
    for (std::int64_t first = 0; first < records_per_file; first += records_per_read) {
        read(first * record_bytes, records);
        for (std::int64_t i = 0; i < records_per_read; ++i) {
            std::uint8_t const label = records[static_cast<std::size_t>(i * record_bytes)];
            require(label < num_classes, ExitCode::do_not_requeue,
                    "{} has label {} at offset {} (record {}), expected 0 to {}; the file is damaged or not "
                    "CIFAR-10's, "
                    "unpack the archive again",
                    path_.string(), label, (first + i) * record_bytes, first + i, num_classes - 1);
            labels_.push_back(label);
        }
    }
}

void BatchFile::read(std::int64_t offset, std::span<std::uint8_t> out) const {
    std::size_t done = 0;
    while (done < out.size()) {
        ssize_t const count = ::pread(fd_, out.data() + done, out.size() - done,
                                      static_cast<off_t>(offset) + static_cast<off_t>(done));
        if (count < 0 && errno == EINTR) continue;
        require(count >= 0, exit_code_for(errno), "cannot read {} at offset {}: {}", path_.string(),
                offset + static_cast<std::int64_t>(done), std::strerror(errno));
        require(count > 0, ExitCode::do_not_requeue,
                "{} ends at offset {}, expected {} bytes; it was cut while in use", path_.string(),
                offset + static_cast<std::int64_t>(done), file_bytes);
        done += static_cast<std::size_t>(count);
    }
}

class Cifar10 final : public ImageDataset {
  public:
    Cifar10(std::vector<BatchFile> files, std::string description)
        : files_(std::move(files)), description_(std::move(description)) {}

    std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()) * records_per_file; }
    ImageShape shape() const override { return image_shape; }
    std::vector<std::string> const& class_names() const override { return cifar10_class_names(); }
    std::int64_t label(std::int64_t sample) const override {
        return file_of(sample).label(sample % records_per_file);
    }
    void read(std::int64_t sample, std::span<std::uint8_t> pixels_CHW) const override {
        assert(pixels_CHW.size() == static_cast<std::size_t>(image_shape.num_values()));
        file_of(sample).read(sample % records_per_file * record_bytes + 1, pixels_CHW);
    }
    std::string description() const override { return description_; }

  private:
    BatchFile const& file_of(std::int64_t sample) const {
        assert(0 <= sample && sample < size());
        return files_[static_cast<std::size_t>(sample / records_per_file)];
    }

    std::vector<BatchFile> files_;
    std::string description_;
};

/// Also true where the answer is withheld: opening it then says why.
bool is_present(fs::path const& path) {
    std::error_code ignored;
    return fs::status(path, ignored).type() != fs::file_type::not_found;
}

bool holds_batches(fs::path const& folder) {
    for (char const* const name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                   "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) {
        if (is_present(folder / name)) return true;
    }
    return false;
}

/// The folder with the six files, or why there is none.
fs::path find_batches(fs::path const& folder) {
    fs::path const inner = folder / "cifar-10-batches-bin";
    if (holds_batches(folder)) return folder;
    if (is_present(inner)) return inner;
    require(!is_present(folder / "cifar-10-batches-py") && !is_present(folder / "data_batch_1"),
            ExitCode::do_not_requeue,
            "{} holds CIFAR-10's Python version (pickles, which Holdfast does not read); fetch the binary "
            "version with "
            "scripts/fetch-cifar10",
            folder.string());
    for (char const* const archive : {"cifar-10-binary.tar.gz", "cifar-10-binary.tar"}) {
        require(!is_present(folder / archive), ExitCode::do_not_requeue,
                "{} is not unpacked yet; unpack it with: tar -xf {} -C {}", (folder / archive).string(),
                (folder / archive).string(), folder.string());
    }
    fail(ExitCode::do_not_requeue,
         "{} neither is nor holds CIFAR-10's folder cifar-10-batches-bin; check --data, or fetch the files "
         "with "
         "scripts/fetch-cifar10 {}",
         folder.string(), folder.string());
}

}  // namespace

std::vector<std::string> const& cifar10_class_names() {
    static std::vector<std::string> const names{"airplane", "automobile", "bird",  "cat",  "deer",
                                                "dog",      "frog",       "horse", "ship", "truck"};
    return names;
}

TrainAndTest open_cifar10(fs::path const& folder) {
    fs::path const batches = find_batches(folder);
    std::vector<BatchFile> train;
    for (int i = 1; i <= 5; ++i) train.emplace_back(batches / fmt::format("data_batch_{}.bin", i));
    std::vector<BatchFile> test;
    test.emplace_back(batches / "test_batch.bin");
    auto const make = [&](std::vector<BatchFile> files, char const* kind) {
        std::size_t const size = files.size() * records_per_file;
        return std::make_unique<Cifar10>(
            std::move(files), fmt::format("CIFAR-10 ({} {} images in {})", size, kind, batches.string()));
    };
    return {make(std::move(train), "training"), make(std::move(test), "test")};
}

}  // namespace holdfast::data
