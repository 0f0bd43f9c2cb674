// SPDX-License-Identifier: Apache-2.0
// HDF5 files as byte images. Holdfast never lets the HDF5 library touch the disk: files are built in memory and written by
// our own commit protocol, and read whole, checked, then opened from the same bytes. Files are untrusted input: external
// storage, external links, virtual datasets and plug-in filters are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::hdf5 {

enum class ElementType { u8, i32, i64, f32, f64 };

std::size_t size_of(ElementType type);
std::string_view name_of(ElementType type);

/// A dataset: its absolute path ("/model/conv1.weight"), element type and shape. An empty shape is a scalar.
struct DatasetInfo {
    std::string path;
    ElementType type = ElementType::u8;
    std::vector<std::int64_t> shape;

    std::size_t num_elements() const;
    std::size_t size_bytes() const { return num_elements() * size_of(type); }
    friend bool operator==(DatasetInfo const&, DatasetInfo const&) = default;
};

/// Builds an HDF5 file in memory. Two files built by the same calls have the same bytes (no time stamps).
class ImageBuilder {
  public:
    ImageBuilder();
    ~ImageBuilder();
    ImageBuilder(ImageBuilder const&) = delete;
    ImageBuilder& operator=(ImageBuilder const&) = delete;

    /// Contiguous dataset with space allocated now and undefined content: filled later through ImageBytes::offset_of.
    void reserve(DatasetInfo const& info);
    /// Contiguous dataset with this content.
    void write(DatasetInfo const& info, std::span<std::byte const> content);
    /// Chunked, deflated dataset (for data sets that are stored once and read often).
    void write_compressed(DatasetInfo const& info, std::span<std::byte const> content,
                          std::int64_t chunk_elements, int level);
    /// String attribute of the file's root group (format name, provenance).
    void attribute(std::string const& name, std::string const& value);
    void attribute(std::string const& name, std::int64_t value);

    struct Image {
        std::vector<std::byte> bytes;
        std::map<std::string, std::size_t, std::less<>>
            offset_of;  ///< of each contiguous dataset's first byte, by path
    };
    /// Closes the file and returns its bytes. The builder is empty afterwards.
    Image finish();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

inline constexpr std::size_t signature_bytes = 8;
/// Throws Error(do_not_requeue) naming `name` unless these first bytes of a file are those of an HDF5 file.
void require_signature(std::span<std::byte const> bytes, std::string_view name);

enum class Accept {
    chunks,      ///< also in chunks and deflated: up to a thousand times the file's size
    contiguous,  ///< only what ImageBuilder's reserve() and write() make
};

/// Reads an HDF5 file from bytes. Throws Error(do_not_requeue) naming `name` for everything that is not a plain file of numeric
/// datasets; memory is bounded by the size of the file plus what read() is asked for.
class ImageReader {
  public:
    /// `bytes` must outlive the reader and is not copied.
    ImageReader(std::span<std::byte const> bytes, std::string name, Accept accept = Accept::chunks);
    ~ImageReader();
    ImageReader(ImageReader const&) = delete;
    ImageReader& operator=(ImageReader const&) = delete;

    /// Every dataset, ordered by path.
    std::vector<DatasetInfo> const& datasets() const;
    bool has(std::string_view path) const;
    /// Reads the whole dataset; `out` must have exactly its bytes. Throws if the path, type or shape is another.
    void read(DatasetInfo const& expected, std::span<std::byte> out) const;
    std::string attribute(std::string const& name) const;
    std::int64_t integer_attribute(std::string const& name) const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Version of the HDF5 library that is loaded, "1.10.8".
std::string library_version();

}  // namespace holdfast::hdf5
