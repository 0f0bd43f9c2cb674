// SPDX-License-Identifier: Apache-2.0
#include "data/packed_images.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "core/error.hpp"
#include "data/jpeg.hpp"
#include "hdf5/image_file.hpp"

namespace holdfast::data {
namespace {

namespace fs = std::filesystem;
using hdf5::DatasetInfo;
using hdf5::ElementType;

constexpr char const* format_name = "holdfast-images";
constexpr std::int64_t format_version = 1;
constexpr std::int64_t max_classes = 256;                // labels are bytes
constexpr std::int64_t max_class_names_bytes = 1 << 20;  // 256 names, however long
constexpr int max_side = 4096;  // a few bytes of JPEG may claim 65,535 x 65,535 pixels
constexpr std::int64_t max_pixel_bytes = std::int64_t{64} << 30;  // all images are held in memory
// Chunks of 64 KiB make the sample 2 % larger, of 1 MiB 0.5 % smaller.
constexpr std::int64_t chunk_bytes = 256 * 1024;

class DecodedImages final : public ImageDataset {
  public:
    DecodedImages(ImageShape shape, std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels,
                  std::vector<std::string> class_names, std::string description)
        : shape_(shape),
          pixels_(std::move(pixels)),
          labels_(std::move(labels)),
          class_names_(std::move(class_names)),
          description_(std::move(description)) {}

    std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
    ImageShape shape() const override { return shape_; }
    std::vector<std::string> const& class_names() const override { return class_names_; }
    std::int64_t label(std::int64_t sample) const override {
        assert(0 <= sample && sample < size());
        return labels_[static_cast<std::size_t>(sample)];
    }
    void read(std::int64_t sample, std::span<std::uint8_t> pixels_CHW) const override {
        assert(0 <= sample && sample < size());
        assert(pixels_CHW.size() == static_cast<std::size_t>(shape_.num_values()));
        std::memcpy(pixels_CHW.data(), pixels_.data() + sample * shape_.num_values(), pixels_CHW.size());
    }
    std::string description() const override { return description_; }

  private:
    ImageShape shape_;
    std::vector<std::uint8_t> pixels_;
    std::vector<std::uint8_t> labels_;
    std::vector<std::string> class_names_;
    std::string description_;
};

/// Owns a file descriptor, if it is one.
class File {
  public:
    explicit File(int fd) : fd_(fd) {}
    ~File() {
        if (fd_ >= 0) ::close(fd_);
    }
    File(File const&) = delete;
    File& operator=(File const&) = delete;
    int get() const { return fd_; }

  private:
    int fd_;
};

std::vector<std::byte> read_whole(fs::path const& path) {
    File const file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    require(file.get() >= 0, ExitCode::do_not_requeue,
            "cannot open {}: {} (errno {}); check path and permissions", path.string(), std::strerror(errno),
            errno);
    struct stat status {};
    require(::fstat(file.get(), &status) == 0, ExitCode::do_not_requeue, "cannot inspect {}: {}",
            path.string(), std::strerror(errno));
    require(S_ISREG(status.st_mode), ExitCode::do_not_requeue, "{} is not a regular file", path.string());
    std::vector<std::byte> bytes;
    auto const read_until = [&](std::size_t end) {
        std::size_t done = bytes.size();
        bytes.resize(end);
        while (done < end) {
            ssize_t const count = ::read(file.get(), bytes.data() + done, end - done);
            if (count < 0 && errno == EINTR) continue;
            require(count >= 0, errno == EIO || errno == ESTALE ? ExitCode::retry : ExitCode::do_not_requeue,
                    "cannot read {} at offset {}: {}", path.string(), done, std::strerror(errno));
            require(count > 0, ExitCode::do_not_requeue,
                    "{} ends at offset {}, expected {} bytes; it was cut while read", path.string(), done,
                    end);
            done += static_cast<std::size_t>(count);
        }
    };
    auto const size = static_cast<std::size_t>(status.st_size);
    read_until(std::min(size, hdf5::signature_bytes));
    hdf5::require_signature(bytes, path.string());  // before gigabytes of something else are read
    read_until(size);
    return bytes;
}

/// Temporary file beside `path`, flushed, renamed over it; removed again on the way if anything fails.
void write_and_rename(fs::path const& path, std::span<std::byte const> bytes) {
    fs::path const folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    fs::path const temporary = path.string() + fmt::format(".part-{}", ::getpid());
    auto const checked = [&](bool ok, char const* action) {
        int const error = errno;
        if (!ok) ::unlink(temporary.c_str());
        require(ok, ExitCode::do_not_requeue,
                "cannot {} {}: {} (errno {}); check that {} exists, its space, quota and permissions", action,
                path.string(), std::strerror(error), error, folder.string());
    };
    {
        File const file(
            ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
        checked(file.get() >= 0, "create");
        for (std::size_t done = 0; done < bytes.size();) {
            ssize_t const count = ::write(file.get(), bytes.data() + done, bytes.size() - done);
            if (count < 0 && errno == EINTR) continue;
            checked(count > 0, "write");
            done += static_cast<std::size_t>(count);
        }
        checked(::fsync(file.get()) == 0, "flush");
    }
    checked(::rename(temporary.c_str(), path.c_str()) == 0, "give its name to");
    File const directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ::fsync(directory.get());  // EINVAL where a file system has no such thing; the file is whole in any case
}

template <typename T>
constexpr ElementType element_type = sizeof(T) == 1 ? ElementType::u8 : ElementType::i64;

class PackedReader {
  public:
    PackedReader(std::vector<std::byte> bytes, std::string name)
        : name_(std::move(name)), bytes_(std::move(bytes)), reader_(bytes_, name_) {
        std::string const format = reader_.attribute("format");
        require(format == format_name, ExitCode::do_not_requeue,
                "{} has format '{}', expected '{}'; it is no packed image set", name_, format, format_name);
        std::int64_t const version = reader_.integer_attribute("version");
        require(
            version == format_version, ExitCode::do_not_requeue,
            "{} has version {} of the packed format, this program reads version {}; pack the images again",
            name_, version, format_version);
        class_names_ = read_class_names();
    }

    std::unique_ptr<ImageDataset> split(std::string const& split, char const* kind) const;

  private:
    std::int64_t length(std::string const& dataset) const;
    template <typename T>
    std::vector<T> read(std::string const& dataset) const;
    std::vector<std::string> read_class_names() const;

    std::string name_;
    std::vector<std::byte> bytes_;
    hdf5::ImageReader reader_;
    std::vector<std::string> class_names_;
};

std::int64_t PackedReader::length(std::string const& dataset) const {
    for (DatasetInfo const& info : reader_.datasets()) {
        if (info.path != dataset) continue;
        require(info.shape.size() == 1, ExitCode::do_not_requeue,
                "{}: dataset {} has {} dimensions, expected 1", name_, dataset, info.shape.size());
        return info.shape[0];
    }
    fail(ExitCode::do_not_requeue, "{}: dataset {} is missing; pack the images again", name_, dataset);
}

template <typename T>
std::vector<T> PackedReader::read(std::string const& dataset) const {
    std::vector<T> values(static_cast<std::size_t>(length(dataset)));
    reader_.read({dataset, element_type<T>, {static_cast<std::int64_t>(values.size())}},
                 std::as_writable_bytes(std::span(values)));
    return values;
}

std::vector<std::string> PackedReader::read_class_names() const {
    std::int64_t const size = length("/class_names");
    require(size >= 1 && size <= max_class_names_bytes, ExitCode::do_not_requeue,
            "{}: /class_names has {} bytes, expected 1 to {}", name_, size, max_class_names_bytes);
    std::vector<std::string> names(1);
    for (std::uint8_t const byte : read<std::uint8_t>("/class_names")) {
        if (byte == '\n') {
            names.emplace_back();
        } else {
            names.back() += static_cast<char>(byte);
        }
    }
    if (names.back().empty()) names.pop_back();  // what ends with a line feed
    require(!names.empty() && names.size() <= max_classes, ExitCode::do_not_requeue,
            "{}: /class_names has {} names, expected 1 to {}", name_, names.size(), max_classes);
    return names;
}

std::unique_ptr<ImageDataset> PackedReader::split(std::string const& split, char const* kind) const {
    std::string const group = "/" + split;
    std::vector<std::uint8_t> labels = read<std::uint8_t>(group + "/labels");
    require(!labels.empty(), ExitCode::do_not_requeue,
            "{}: {}/labels is empty (at least one image is needed)", name_, group);
    for (std::size_t i = 0; i < labels.size(); ++i) {
        require(labels[i] < class_names_.size(), ExitCode::do_not_requeue,
                "{}: {}/labels[{}] is {}, expected 0 to {}", name_, group, i, labels[i],
                class_names_.size() - 1);
    }
    std::vector<std::int64_t> const offsets = read<std::int64_t>(group + "/offsets");
    require(offsets.size() == labels.size() + 1, ExitCode::do_not_requeue,
            "{}: {}/offsets has {} values, expected {} (one more than labels)", name_, group, offsets.size(),
            labels.size() + 1);
    std::int64_t const total = length(group + "/jpeg");
    require(offsets.front() == 0 && offsets.back() == total, ExitCode::do_not_requeue,
            "{}: {}/offsets runs from {} to {}, expected 0 to {} (the length of {}/jpeg)", name_, group,
            offsets.front(), offsets.back(), total, group);
    for (std::size_t i = 0; i < labels.size(); ++i) {
        require(offsets[i] < offsets[i + 1], ExitCode::do_not_requeue,
                "{}: {}/offsets[{}] is {} and the next is {}, expected them to grow", name_, group, i,
                offsets[i], offsets[i + 1]);
    }
    std::vector<std::uint8_t> const jpeg = read<std::uint8_t>(group + "/jpeg");
    auto const image = [&](std::size_t i) {
        return std::span(jpeg).subspan(static_cast<std::size_t>(offsets[i]),
                                       static_cast<std::size_t>(offsets[i + 1] - offsets[i]));
    };
    std::size_t current = 0;
    try {
        ImageShape const shape = jpeg_shape(image(0));
        require(shape.height <= max_side && shape.width <= max_side &&
                    shape.num_values() <= max_pixel_bytes / static_cast<std::int64_t>(labels.size()),
                ExitCode::do_not_requeue,
                "{}: {} has {} images of {}x{}, expected at most {} pixels a side and {} bytes in all", name_,
                group, labels.size(), shape.width, shape.height, max_side, max_pixel_bytes);
        auto const image_bytes = static_cast<std::size_t>(shape.num_values());
        std::vector<std::uint8_t> pixels;
        for (; current < labels.size(); ++current) {
            if (current == 1)
                pixels.reserve(labels.size() * image_bytes);  // not before an image has proved its size
            pixels.resize((current + 1) * image_bytes);
            decode_jpeg(image(current), shape, std::span(pixels).subspan(current * image_bytes, image_bytes));
        }
        std::string const description =
            fmt::format("packed images ({} {} images in {})", labels.size(), kind, name_);
        return std::make_unique<DecodedImages>(shape, std::move(pixels), std::move(labels), class_names_,
                                               description);
    } catch (JpegError const& error) {
        fail(ExitCode::do_not_requeue, "{}: {} image {} (bytes {} to {} of {}/jpeg) is damaged: {}", name_,
             split, current, offsets[current], offsets[current + 1], group, error.what());
    }
}

void add_split(hdf5::ImageBuilder& builder, ImageDataset const& dataset, std::string const& group,
               int quality) {
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset.shape().num_values()));
    std::vector<std::uint8_t> jpeg, labels;
    std::vector<std::int64_t> offsets{0};
    for (std::int64_t sample = 0; sample < dataset.size(); ++sample) {
        dataset.read(sample, pixels);
        std::vector<std::uint8_t> const image = encode_jpeg(pixels, dataset.shape(), quality);
        jpeg.insert(jpeg.end(), image.begin(), image.end());
        offsets.push_back(static_cast<std::int64_t>(jpeg.size()));
        labels.push_back(static_cast<std::uint8_t>(dataset.label(sample)));
    }
    auto const add = [&](char const* name, auto const& values) {
        using Value = typename std::decay_t<decltype(values)>::value_type;
        builder.write_compressed(
            {group + name, element_type<Value>, {static_cast<std::int64_t>(values.size())}},
            std::as_bytes(std::span(values)), chunk_bytes / static_cast<std::int64_t>(sizeof(Value)), 9);
    };
    add("/jpeg", jpeg);
    add("/offsets", offsets);
    add("/labels", labels);
}

}  // namespace

TrainAndTest open_packed_images(fs::path const& file) {
    return decode_packed_images(read_whole(file), file.string());
}

TrainAndTest decode_packed_images(std::vector<std::byte> bytes, std::string name) {
    PackedReader const reader(std::move(bytes), name);
    TrainAndTest sets{reader.split("train", "training"), reader.split("test", "test")};
    require(sets.train->shape() == sets.test->shape(), ExitCode::do_not_requeue,
            "{}: training images are {}x{}, test images {}x{}, expected one size", name,
            sets.train->shape().width, sets.train->shape().height, sets.test->shape().width,
            sets.test->shape().height);
    return sets;
}

void pack_images(ImageDataset const& train, ImageDataset const& test, fs::path const& out, int quality) {
    assert(train.class_names() == test.class_names());
    require(train.class_names().size() <= max_classes, ExitCode::do_not_requeue,
            "{} has {} classes, a packed image set at most {}", train.description(),
            train.class_names().size(), max_classes);
    std::string names;
    for (std::string const& name : train.class_names()) names += name + "\n";
    hdf5::ImageBuilder builder;
    builder.attribute("format", std::string(format_name));
    builder.attribute("version", format_version);
    builder.write({"/class_names", ElementType::u8, {static_cast<std::int64_t>(names.size())}},
                  std::as_bytes(std::span(names)));
    add_split(builder, train, "/train", quality);
    add_split(builder, test, "/test", quality);
    write_and_rename(out, builder.finish().bytes);
}

}  // namespace holdfast::data
