// SPDX-License-Identifier: Apache-2.0
// A run's state as the bytes of a checkpoint file, and back (docs/checkpoint-format.md). The HDF5 structure
// is built once per launch; a save copies the values to their known addresses, and another thread may then
// seal the bytes with a digest trailer. Reading is strict: a file that is damaged, newer, or does not hold exactly the state asked
// for is refused. No disk access here.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/state_archive.hpp"
#include "core/digest.hpp"
#include "core/error.hpp"
#include "hdf5/image_file.hpp"

namespace holdfast::checkpoint {

/// Shows every field of the state to the archive. Must name the same fields each time; lengths may change.
using Visit = std::function<void(StateArchive&)>;

inline constexpr std::int64_t format_version = 3;
inline constexpr std::size_t trailer_bytes = 64;
inline constexpr std::string_view parameters_group = "/model";
inline constexpr std::string_view momentum_group = "/momentum";
inline constexpr std::string_view buffers_group = "/buffers";
inline constexpr std::string_view averages_group = "/ema";
inline constexpr std::string_view progress_group = "/progress";
inline constexpr std::string_view step_path = "/progress/step";

/// An intact file of another version of Holdfast: not damage, so never skipped in favour of an older one.
class OtherFormatError : public Error {
  public:
    using Error::Error;
};

class CheckpointImage {
  public:
    /// Builds the file's structure from the fields that `visit` declares, without their values.
    explicit CheckpointImage(Visit const& visit);

    /// Copies the values into the file. Builds the structure again if a field, type or shape has changed.
    void copy(Visit const& visit);
    /// A float field with a NaN or infinity among the copied values; empty if there is none.
    std::string find_not_finite() const;
    /// The finished file, valid until the next copy.
    std::span<std::byte const> seal();
    /// Both at once.
    std::span<std::byte const> save(Visit const& visit);
    /// Of what was copied last.
    Digest parameters_digest() const;

  private:
    struct Slot {
        hdf5::DatasetInfo info;
        std::size_t offset;
    };
    class Writer;
    void build(Visit const& visit);

    std::vector<std::byte> bytes_;  ///< the HDF5 image and behind it the trailer
    std::map<std::string, Slot, std::less<>> slots_;
};

/// Digest of the fields under some groups, the same for equal values whatever the order of visiting and
/// whoever wrote them.
class StateDigester : public StateArchive {
  public:
    explicit StateDigester(std::vector<std::string_view> groups) : groups_(std::move(groups)) {}

    void field(std::string_view path, std::int64_t& value) override;
    void field(std::string_view path, double& value) override;
    void field(std::string_view path, std::string& text) override;
    void field(std::string_view path, std::span<float> values,
               std::vector<std::int64_t> const& shape) override;
    void field(std::string_view path, std::span<std::int64_t> values,
               std::vector<std::int64_t> const& shape) override;
    void field(std::string_view path, std::span<double> values,
               std::vector<std::int64_t> const& shape) override;

    bool covers(std::string_view path) const;
    void add(hdf5::DatasetInfo const& info, std::span<std::byte const> content);
    Digest finish() const;

  private:
    std::vector<std::string_view> groups_;
    std::map<std::string, Digest> fields_;  ///< by path
};

/// Over parameters, momentum, buffers, averages and progress: what decides how the run goes on.
Digest state_digest(Visit const& visit);
/// Over the parameters alone.
Digest parameters_digest(Visit const& visit);

/// As CheckpointFile::file_digest, of the bytes of a finished file.
Digest file_digest(std::span<std::byte const> file);

enum class Trailer {
    required,  ///< a checkpoint
    optional,  ///< also a plain HDF5 file, as other programs write it (--init-from)
};

/// Throws Error(do_not_requeue) naming `name` if no checkpoint begins and ends with these bytes (64 of each, or the whole
/// file): cheap, and enough to refuse another kind of file before it is read.
void require_checkpoint_ends(std::span<std::byte const> first, std::span<std::byte const> last,
                             std::string const& name, Trailer trailer);

class CheckpointFile {
  public:
    /// Checks digest, version and structure. Throws Error(do_not_requeue) naming `name`, OtherFormatError for
    /// another format.
    CheckpointFile(std::vector<std::byte> bytes, std::string name, Trailer trailer = Trailer::required);

    /// Fills all fields from the datasets under `groups` (default: all). Throws Error(do_not_requeue) with
    /// every missing, extra and misshaped name, and then has changed nothing.
    void load(Visit const& visit, std::vector<std::string_view> const& groups = {"/"}) const;

    std::vector<hdf5::DatasetInfo> const& datasets() const { return reader_->datasets(); }
    bool has(std::string_view path) const { return reader_->has(path); }
    /// A dataset's raw content. Throws if it is missing.
    std::vector<std::byte> read(std::string_view path) const;
    std::int64_t integer(std::string_view path) const;
    double number(std::string_view path) const;
    std::string text(std::string_view path) const;

    Digest state_digest() const;
    Digest parameters_digest() const;
    /// Of the whole file without its trailer's last 16 bytes, which hold it. Zero where there is no trailer.
    Digest file_digest() const { return file_digest_; }
    std::string const& name() const { return name_; }
    std::span<std::byte const> bytes() const { return bytes_; }

  private:
    hdf5::DatasetInfo const& find(std::string_view path) const;
    Digest digest_over(std::vector<std::string_view> groups) const;

    std::vector<std::byte> bytes_;
    std::string name_;
    Digest file_digest_;
    std::unique_ptr<hdf5::ImageReader> reader_;
};

}  // namespace holdfast::checkpoint
