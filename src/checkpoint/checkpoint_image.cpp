// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_image.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <set>

#include <fmt/ranges.h>

namespace holdfast::checkpoint {
namespace {

using hdf5::DatasetInfo;
using hdf5::ElementType;

static_assert(std::endian::native == std::endian::little,
              "checkpoints hold little-endian values, copied as they are");

constexpr std::string_view format_name = "holdfast-checkpoint";
constexpr char trailer_magic[8] = {'H', 'O', 'L', 'D', 'F', 'A', 'S', 'T'};
constexpr std::size_t digest_bytes = 16;

// Trailer: magic, version, length of the HDF5 image, 24 zeros, digest of every byte of the file before the
// digest.
constexpr std::size_t version_at = 8;
constexpr std::size_t length_at = 16;
constexpr std::size_t reserved_at = 24;
constexpr std::size_t digest_at = trailer_bytes - digest_bytes;

std::uint64_t load_u64(std::byte const* from) {
    std::uint64_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

void store_u64(std::byte* to, std::uint64_t value) { std::memcpy(to, &value, sizeof value); }

void store_digest(std::byte* to,
                  Digest const& digest) {  // the order in which its hexadecimal digits are printed
    for (int i = 0; i < 8; ++i) {
        to[i] = static_cast<std::byte>(digest.high >> (56 - 8 * i));
        to[8 + i] = static_cast<std::byte>(digest.low >> (56 - 8 * i));
    }
}

void write_trailer(std::span<std::byte> file) {
    std::byte* const trailer = file.data() + file.size() - trailer_bytes;
    std::memset(trailer, 0, trailer_bytes);
    std::memcpy(trailer, trailer_magic, sizeof trailer_magic);
    store_u64(trailer + version_at, format_version);
    store_u64(trailer + length_at, file.size() - trailer_bytes);
    store_digest(trailer + digest_at, digest_of(file.first(file.size() - digest_bytes)));
}

bool has_trailer(std::span<std::byte const> file) {
    return file.size() >= trailer_bytes &&
           std::memcmp(file.data() + file.size() - trailer_bytes, trailer_magic, sizeof trailer_magic) == 0;
}

void require_trailer(std::span<std::byte const> end_of_file, std::string const& name) {
    require(has_trailer(end_of_file), ExitCode::do_not_requeue,
            "{}: not a complete checkpoint (no digest trailer at the end); it was cut off or is another kind "
            "of file",
            name);
}

Digest verify_trailer(std::span<std::byte const> file, std::string const& name) {
    require_trailer(file, name);
    std::byte const* const trailer = file.data() + file.size() - trailer_bytes;
    Digest const digest = digest_of(file.first(file.size() - digest_bytes));
    std::byte expected[digest_bytes];
    store_digest(expected, digest);
    require(std::memcmp(expected, trailer + digest_at, digest_bytes) == 0, ExitCode::do_not_requeue,
            "{}: damaged (the digest of its content is {}, not the one it was written with)", name,
            digest.hex());
    std::uint64_t const version = load_u64(trailer + version_at);
    if (version != format_version) {
        throw OtherFormatError(
            ExitCode::do_not_requeue,
            fmt::format("{}: checkpoint format {} is {} than the one this Holdfast reads ({}); "
                        "use the version that wrote it",
                        name, version, version > format_version ? "newer" : "older", format_version));
    }
    bool const plausible = load_u64(trailer + length_at) == file.size() - trailer_bytes &&
                           std::all_of(trailer + reserved_at, trailer + digest_at,
                                       [](std::byte b) { return b == std::byte{0}; });
    require(plausible, ExitCode::do_not_requeue,
            "{}: the digest trailer contradicts the file (length {}, file of {} bytes)", name,
            load_u64(trailer + length_at), file.size());
    return digest;
}

bool is_under(std::string_view path, std::string_view group) {
    if (group == "/") return true;
    return path.starts_with(group) && path.size() > group.size() && path[group.size()] == '/';
}

bool is_under_any(std::string_view path, std::vector<std::string_view> const& groups) {
    return std::any_of(groups.begin(), groups.end(),
                       [&](std::string_view group) { return is_under(path, group); });
}

std::string describe(DatasetInfo const& info) {
    return fmt::format("{} [{}]", hdf5::name_of(info.type), fmt::join(info.shape, ", "));
}

/// Reduces the kinds of field to one: a dataset and its bytes. Text is the exception, since loading resizes
/// it.
class DatasetArchive : public StateArchive {
  public:
    void field(std::string_view path, std::int64_t& value) override {
        visit({std::string(path), ElementType::i64, {}}, std::as_writable_bytes(std::span(&value, 1)));
    }
    void field(std::string_view path, double& value) override {
        visit({std::string(path), ElementType::f64, {}}, std::as_writable_bytes(std::span(&value, 1)));
    }
    void field(std::string_view path, std::string& text) override {
        visit({std::string(path), ElementType::u8, {static_cast<std::int64_t>(text.size())}},
              std::as_writable_bytes(std::span(text.data(), text.size())));
    }
    void field(std::string_view path, std::span<float> values,
               std::vector<std::int64_t> const& shape) override {
        visit_array({std::string(path), ElementType::f32, shape}, std::as_writable_bytes(values));
    }
    void field(std::string_view path, std::span<std::int64_t> values,
               std::vector<std::int64_t> const& shape) override {
        visit_array({std::string(path), ElementType::i64, shape}, std::as_writable_bytes(values));
    }
    void field(std::string_view path, std::span<double> values,
               std::vector<std::int64_t> const& shape) override {
        visit_array({std::string(path), ElementType::f64, shape}, std::as_writable_bytes(values));
    }

  private:
    virtual void visit(DatasetInfo const& info, std::span<std::byte> content) = 0;

    void visit_array(DatasetInfo const& info, std::span<std::byte> content) {
        require(content.size() == info.size_bytes(), ExitCode::internal_error,
                "state field {} has {} bytes but is declared {}", info.path, content.size(), describe(info));
        visit(info, content);
    }
};

class Declarer final : public DatasetArchive {
  public:
    std::vector<DatasetInfo> fields;

  private:
    void visit(DatasetInfo const& info, std::span<std::byte>) override { fields.push_back(info); }
};

/// Compares the fields with what a file holds, without changing them.
class Comparer final : public StateArchive {
  public:
    explicit Comparer(hdf5::ImageReader const& reader) {
        for (DatasetInfo const& info : reader.datasets()) stored_.emplace(info.path, &info);
    }

    void field(std::string_view path, std::int64_t&) override {
        compare({std::string(path), ElementType::i64, {}});
    }
    void field(std::string_view path, double&) override {
        compare({std::string(path), ElementType::f64, {}});
    }
    void field(std::string_view path, std::string&) override {
        auto const found = stored_.find(path);
        bool const any_length = found != stored_.end() && found->second->type == ElementType::u8 &&
                                found->second->shape.size() == 1;
        compare({std::string(path), ElementType::u8,
                 any_length ? found->second->shape : std::vector<std::int64_t>{-1}});
    }
    void field(std::string_view path, std::span<float>, std::vector<std::int64_t> const& shape) override {
        compare({std::string(path), ElementType::f32, shape});
    }
    void field(std::string_view path, std::span<std::int64_t>,
               std::vector<std::int64_t> const& shape) override {
        compare({std::string(path), ElementType::i64, shape});
    }
    void field(std::string_view path, std::span<double>, std::vector<std::int64_t> const& shape) override {
        compare({std::string(path), ElementType::f64, shape});
    }

    /// Empty if everything fits.
    std::string differences(std::vector<std::string_view> const& groups) const {
        std::vector<std::string> extra;
        for (auto const& [path, info] : stored_) {
            if (is_under_any(path, groups) && !asked_.contains(path)) extra.push_back(path);
        }
        std::string text;
        if (!missing_.empty()) text += fmt::format("\n  missing: {}", fmt::join(missing_, ", "));
        if (!extra.empty()) text += fmt::format("\n  extra: {}", fmt::join(extra, ", "));
        if (!misshaped_.empty())
            text += fmt::format("\n  of another shape or type: {}", fmt::join(misshaped_, ", "));
        return text;
    }

  private:
    void compare(DatasetInfo const& wanted) {
        asked_.insert(wanted.path);
        auto const found = stored_.find(wanted.path);
        if (found == stored_.end()) {
            missing_.push_back(wanted.path);
        } else if (*found->second != wanted) {
            bool const is_text = wanted.shape == std::vector<std::int64_t>{-1};
            misshaped_.push_back(fmt::format("{} (is {}, needed {})", wanted.path, describe(*found->second),
                                             is_text ? "text" : describe(wanted)));
        }
    }

    std::map<std::string, DatasetInfo const*, std::less<>> stored_;
    std::set<std::string> asked_;
    std::vector<std::string> missing_, misshaped_;
};

class Loader final : public DatasetArchive {
  public:
    explicit Loader(CheckpointFile const& file, hdf5::ImageReader const& reader)
        : file_(file), reader_(reader) {}

    using DatasetArchive::field;
    void field(std::string_view path, std::string& text) override { text = file_.text(path); }

  private:
    void visit(DatasetInfo const& info, std::span<std::byte> content) override {
        reader_.read(info, content);
    }

    CheckpointFile const& file_;
    hdf5::ImageReader const& reader_;
};

std::vector<std::string_view> const state_groups{parameters_group, momentum_group, buffers_group,
                                                 averages_group, progress_group};

Digest digest_of_state(Visit const& visit, std::vector<std::string_view> groups) {
    StateDigester digester(std::move(groups));
    visit(digester);
    return digester.finish();
}

}  // namespace

// ---- CheckpointImage ----

/// Copies the fields to their addresses, until one of them is not where the structure has it.
class CheckpointImage::Writer final : public DatasetArchive {
  public:
    explicit Writer(CheckpointImage& image) : image_(image) {}
    bool fits() const { return fits_ && num_fields_ == image_.slots_.size(); }

  private:
    void visit(DatasetInfo const& info, std::span<std::byte> content) override {
        ++num_fields_;
        auto const slot = image_.slots_.find(info.path);
        fits_ = fits_ && slot != image_.slots_.end() && slot->second.info == info;
        if (fits_ && !content.empty()) {
            std::memcpy(image_.bytes_.data() + slot->second.offset, content.data(), content.size());
        }
    }

    CheckpointImage& image_;
    std::size_t num_fields_ = 0;
    bool fits_ = true;
};

CheckpointImage::CheckpointImage(Visit const& visit) { build(visit); }

void CheckpointImage::build(Visit const& visit) {
    Declarer declarer;
    visit(declarer);
    hdf5::ImageBuilder builder;
    builder.attribute("format", std::string(format_name));
    builder.attribute("version", format_version);
    slots_.clear();
    for (DatasetInfo const& info : declarer.fields) {
        bool const is_new = slots_.emplace(info.path, Slot{info, 0}).second;
        require(is_new, ExitCode::internal_error, "state field {} is declared twice", info.path);
        builder.reserve(info);
    }
    auto image = builder.finish();
    for (auto& [path, slot] : slots_) slot.offset = image.offset_of.at(path);
    bytes_ = std::move(image.bytes);
    bytes_.resize(bytes_.size() + trailer_bytes);
}

void CheckpointImage::copy(Visit const& visit) {
    Writer writer(*this);
    visit(writer);
    if (writer.fits()) return;
    build(visit);
    Writer again(*this);
    visit(again);
    require(again.fits(), ExitCode::internal_error, "the state's fields changed while they were saved");
}

std::string CheckpointImage::find_not_finite() const {
    for (auto const& [path, slot] : slots_) {
        if (slot.info.type != ElementType::f32) continue;
        std::span<std::byte const> const content =
            std::span(bytes_).subspan(slot.offset, slot.info.size_bytes());
        constexpr std::uint32_t exponent = 0x7f80'0000;  // all ones: infinity or NaN (IEEE 754 binary32)
        bool has_nonfinite = false;
        for (std::size_t at = 0; at < content.size(); at += sizeof exponent) {
            std::uint32_t bits;
            std::memcpy(&bits, content.data() + at, sizeof bits);
            has_nonfinite |= (bits & exponent) == exponent;
        }
        if (has_nonfinite) return path;
    }
    return {};
}

std::span<std::byte const> CheckpointImage::seal() {
    write_trailer(bytes_);
    return bytes_;
}

std::span<std::byte const> CheckpointImage::save(Visit const& visit) {
    copy(visit);
    return seal();
}

Digest CheckpointImage::parameters_digest() const {
    StateDigester digester({parameters_group});
    for (auto const& [path, slot] : slots_)
        digester.add(slot.info, std::span(bytes_).subspan(slot.offset, slot.info.size_bytes()));
    return digester.finish();
}

// ---- StateDigester ----

void StateDigester::field(std::string_view path, std::int64_t& value) {
    add({std::string(path), ElementType::i64, {}}, std::as_bytes(std::span(&value, 1)));
}
void StateDigester::field(std::string_view path, double& value) {
    add({std::string(path), ElementType::f64, {}}, std::as_bytes(std::span(&value, 1)));
}
void StateDigester::field(std::string_view path, std::string& text) {
    add({std::string(path), ElementType::u8, {static_cast<std::int64_t>(text.size())}},
        std::as_bytes(std::span(text.data(), text.size())));
}
void StateDigester::field(std::string_view path, std::span<float> values,
                          std::vector<std::int64_t> const& shape) {
    add({std::string(path), ElementType::f32, shape}, std::as_bytes(values));
}
void StateDigester::field(std::string_view path, std::span<std::int64_t> values,
                          std::vector<std::int64_t> const& shape) {
    add({std::string(path), ElementType::i64, shape}, std::as_bytes(values));
}
void StateDigester::field(std::string_view path, std::span<double> values,
                          std::vector<std::int64_t> const& shape) {
    add({std::string(path), ElementType::f64, shape}, std::as_bytes(values));
}

bool StateDigester::covers(std::string_view path) const { return is_under_any(path, groups_); }

void StateDigester::add(DatasetInfo const& info, std::span<std::byte const> content) {
    if (!covers(info.path)) return;
    Digester digester;
    digester.add(static_cast<std::uint64_t>(info.path.size()));
    digester.add(info.path);
    digester.add(static_cast<std::uint64_t>(hdf5::name_of(info.type).size()));
    digester.add(hdf5::name_of(info.type));
    digester.add(static_cast<std::uint64_t>(info.shape.size()));
    for (std::int64_t const extent : info.shape) digester.add(static_cast<std::uint64_t>(extent));
    digester.add(content);
    fields_[info.path] = digester.finish();
}

Digest StateDigester::finish() const {
    Digester digester;
    for (auto const& [path, digest] : fields_) {
        digester.add(digest.high);
        digester.add(digest.low);
    }
    return digester.finish();
}

Digest state_digest(Visit const& visit) { return digest_of_state(visit, state_groups); }
Digest parameters_digest(Visit const& visit) { return digest_of_state(visit, {parameters_group}); }

Digest file_digest(std::span<std::byte const> file) {
    std::string hex;
    for (std::byte const value : file.last(digest_bytes))
        hex += fmt::format("{:02x}", static_cast<unsigned>(value));
    return parse_digest(hex);
}

// ---- CheckpointFile ----

void require_checkpoint_ends(std::span<std::byte const> first, std::span<std::byte const> last,
                             std::string const& name, Trailer trailer) {
    if (trailer == Trailer::required) require_trailer(last, name);
    hdf5::require_signature(first, name);
}

CheckpointFile::CheckpointFile(std::vector<std::byte> bytes, std::string name, Trailer trailer)
    : bytes_(std::move(bytes)), name_(std::move(name)) {
    std::span<std::byte const> image = bytes_;
    if (trailer == Trailer::required || has_trailer(image)) {
        file_digest_ = verify_trailer(image, name_);
        image = image.first(image.size() - trailer_bytes);
        reader_ = std::make_unique<hdf5::ImageReader>(image, name_, hdf5::Accept::contiguous);
        std::string const format = reader_->attribute("format");
        std::int64_t const version = reader_->integer_attribute("version");
        require(format == format_name && version == format_version, ExitCode::do_not_requeue,
                "{}: holds '{}' version {}, not '{}' version {}", name_, format, version, format_name,
                format_version);
    } else {
        reader_ = std::make_unique<hdf5::ImageReader>(image, name_);
    }
}

void CheckpointFile::load(Visit const& visit, std::vector<std::string_view> const& groups) const {
    Comparer comparer(*reader_);
    visit(comparer);
    std::string const differences = comparer.differences(groups);
    require(differences.empty(), ExitCode::do_not_requeue,
            "{}: does not hold the state of this run (a partial load would silently train something else); "
            "check --model, "
            "--width and the number of classes:{}",
            name_, differences);
    Loader loader(*this, *reader_);
    visit(loader);
}

DatasetInfo const& CheckpointFile::find(std::string_view path) const {
    auto const& all = reader_->datasets();
    auto const found =
        std::find_if(all.begin(), all.end(), [&](DatasetInfo const& info) { return info.path == path; });
    require(found != all.end(), ExitCode::do_not_requeue, "{}: dataset {} is missing", name_, path);
    return *found;
}

std::vector<std::byte> CheckpointFile::read(std::string_view path) const {
    DatasetInfo const& info = find(path);
    std::vector<std::byte> content(info.size_bytes());
    reader_->read(info, content);
    return content;
}

std::int64_t CheckpointFile::integer(std::string_view path) const {
    std::int64_t value = 0;
    reader_->read({std::string(path), ElementType::i64, {}}, std::as_writable_bytes(std::span(&value, 1)));
    return value;
}

double CheckpointFile::number(std::string_view path) const {
    double value = 0;
    reader_->read({std::string(path), ElementType::f64, {}}, std::as_writable_bytes(std::span(&value, 1)));
    return value;
}

std::string CheckpointFile::text(std::string_view path) const {
    DatasetInfo const& info = find(path);
    require(info.type == ElementType::u8 && info.shape.size() == 1, ExitCode::do_not_requeue,
            "{}: dataset {} is {}, but text (u8 of one dimension) is needed", name_, path, describe(info));
    std::string value(info.num_elements(), '\0');
    reader_->read(info, std::as_writable_bytes(std::span(value.data(), value.size())));
    return value;
}

Digest CheckpointFile::digest_over(std::vector<std::string_view> groups) const {
    StateDigester digester(std::move(groups));
    for (DatasetInfo const& info : reader_->datasets()) {
        if (digester.covers(info.path)) digester.add(info, read(info.path));
    }
    return digester.finish();
}

Digest CheckpointFile::state_digest() const { return digest_over(state_groups); }
Digest CheckpointFile::parameters_digest() const { return digest_over({parameters_group}); }

}  // namespace holdfast::checkpoint
