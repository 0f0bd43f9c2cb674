// SPDX-License-Identifier: Apache-2.0
#include "hdf5/image_file.hpp"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <zlib.h>

#include <fmt/ranges.h>
#include <hdf5.h>

#include "core/error.hpp"
#include "hdf5/structure_check.hpp"

namespace holdfast::hdf5 {
namespace {

constexpr int max_group_depth = 16;  // ours is 2; a file may not choose our recursion
// H5Dget_chunk_info walks the chunk index from its start on every call (1.10 and 1.12 have nothing better).
constexpr hsize_t max_chunks = 4096;
// A deflate stream cannot expand more (zlib, "Maximum Compression Factor": 1032:1).
constexpr std::uint64_t max_deflate_ratio = 1032;
// Header messages of the HDF5 file format specification, version 3, section IV.A.2.
constexpr unsigned external_files_message = 7;
constexpr std::uint64_t known_messages = [] {
    std::uint64_t bits = 0;
    for (unsigned const message : {0,                  // nothing
                                   1, 3, 4, 5, 8, 11,  // dataset: space, type, fill, layout, filters
                                   2, 6, 10, 17,       // group: links
                                   12, 21,             // attributes
                                   14, 16, 18, 22}) {  // times, continuation, reference count
        bits |= std::uint64_t{1} << message;
    }
    return bits;
}();
constexpr std::size_t max_attribute_bytes = 64 * 1024;  // the HDF5 object header's own limit

/// Held around every use of the library: many builds of it are not thread-safe. Also turns off, for this
/// thread, the error stack it would print.
class LibraryUse {
  public:
    LibraryUse() : lock_(mutex()) {
        static bool const prepared = prepare();
        static_cast<void>(prepared);
        H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    }

  private:
    static std::recursive_mutex& mutex() {
        static std::recursive_mutex instance;
        return instance;
    }

    static bool prepare() {
        unsigned major = 0, minor = 0, release = 0;
        H5get_libversion(&major, &minor, &release);
        require(major == H5_VERS_MAJOR && minor == H5_VERS_MINOR && release == H5_VERS_RELEASE,
                ExitCode::do_not_requeue,
                "HDF5 {}.{}.{} is loaded but Holdfast was built with {}.{}.{} (the library aborts on such a "
                "mix); "
                "check LD_LIBRARY_PATH and the loaded modules, or build again",
                major, minor, release, H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE);
        H5PLset_loading_state(0);          // no code is loaded because a file names a filter
        H5Lunregister(H5L_TYPE_EXTERNAL);  // no link leads into another file
        return true;
    }

    std::lock_guard<std::recursive_mutex> lock_;
};

/// What the library says went wrong, innermost first; empty if it says nothing.
std::string library_error() {
    std::string text;
    auto const collect = [](unsigned, H5E_error2_t const* entry, void* data) -> herr_t {
        auto& out = *static_cast<std::string*>(data);
        if (out.empty() && entry->desc != nullptr) out = entry->desc;
        return 0;
    };
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &text);
    return text.empty() ? std::string() : fmt::format(" (HDF5: {})", text);
}

/// Our own calls with good arguments: failing means no memory or a bug.
template <typename Result>
Result hdf5_check(Result result, char const* call) {
    if (result < 0) fail(ExitCode::internal_error, "HDF5 call {} failed{}", call, library_error());
    return result;
}

/// Owns one HDF5 identifier.
class Handle {
  public:
    using Close = herr_t (*)(hid_t);
    Handle() = default;
    Handle(hid_t id, Close close) : id_(id), close_(close) {}
    Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
    Handle& operator=(Handle&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(close_, other.close_);
        return *this;
    }
    ~Handle() { reset(); }

    hid_t get() const { return id_; }
    explicit operator bool() const { return id_ >= 0; }
    void reset() {
        if (id_ >= 0) close_(std::exchange(id_, -1));
    }

  private:
    hid_t id_ = -1;
    Close close_ = nullptr;
};

Handle checked(hid_t id, Handle::Close close, char const* call) { return {hdf5_check(id, call), close}; }

hid_t native_type(ElementType type) {
    switch (type) {
        case ElementType::u8:
            return H5T_STD_U8LE;
        case ElementType::i32:
            return H5T_STD_I32LE;
        case ElementType::i64:
            return H5T_STD_I64LE;
        case ElementType::f32:
            return H5T_IEEE_F32LE;
        case ElementType::f64:
            return H5T_IEEE_F64LE;
    }
    std::abort();
}

constexpr ElementType all_types[] = {ElementType::u8, ElementType::i32, ElementType::i64, ElementType::f32,
                                     ElementType::f64};

Handle make_space(std::vector<std::int64_t> const& shape) {
    if (shape.empty()) return checked(H5Screate(H5S_SCALAR), H5Sclose, "H5Screate");
    std::vector<hsize_t> const dims(shape.begin(), shape.end());
    return checked(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose,
                   "H5Screate_simple");
}

/// Size of what a zlib stream holds; nothing if it is not one complete stream. HDF5 itself does not compare
/// it with the size of a chunk and reads beyond the buffer of one that is too short (1.10.8).
std::optional<std::uint64_t> inflated_size(std::span<std::byte const> stream) {
    z_stream inflater{};
    if (inflateInit(&inflater) != Z_OK) return std::nullopt;
    std::vector<Bytef> sink(64 * 1024);
    inflater.next_in = const_cast<Bytef*>(reinterpret_cast<Bytef const*>(stream.data()));
    std::size_t left = stream.size();
    std::uint64_t size = 0;
    int status = Z_OK;
    while (status == Z_OK) {
        if (inflater.avail_in == 0) {  // zlib counts in 32 bits
            inflater.avail_in = static_cast<uInt>(std::min<std::size_t>(left, 1u << 30));
            left -= inflater.avail_in;
        }
        inflater.next_out = sink.data();
        inflater.avail_out = static_cast<uInt>(sink.size());
        status = inflate(&inflater, Z_NO_FLUSH);
        size += sink.size() - inflater.avail_out;
    }
    inflateEnd(&inflater);
    return status == Z_STREAM_END ? std::optional(size) : std::nullopt;
}

/// A name for an image in memory. The core driver takes two open files of one name for the same file, and looks
/// whether a file of that name is there, which below /dev/null none can be.
std::string image_name() {
    static std::atomic<unsigned> num_images{0};
    return fmt::format("/dev/null/holdfast-image-{}", num_images++);
}

/// Lets the core driver work on `bytes` themselves. H5LTopen_file_image does so too, but opens a file "file_image_0"
/// in the working directory on the way and fails where there is one.
void set_image(hid_t access, std::span<std::byte const>& bytes) {
    H5FD_file_image_callbacks_t callbacks{};
    callbacks.image_malloc = [](std::size_t size, H5FD_file_image_op_t, void* data) -> void* {
        auto const& image = *static_cast<std::span<std::byte const>*>(data);
        // The library takes a mutable pointer but only reads: the file is opened read-only.
        return size == image.size() ? const_cast<std::byte*>(image.data()) : nullptr;
    };
    callbacks.image_memcpy = [](void* to, void const* from, std::size_t, H5FD_file_image_op_t,
                                void*) -> void* { return to == from ? to : nullptr; };
    callbacks.image_realloc = [](void*, std::size_t, H5FD_file_image_op_t, void*) -> void* {
        return nullptr;
    };
    callbacks.image_free = [](void*, H5FD_file_image_op_t, void*) -> herr_t { return 0; };
    callbacks.udata_copy = [](void* data) { return data; };
    callbacks.udata_free = [](void*) -> herr_t { return 0; };
    callbacks.udata = &bytes;
    hdf5_check(H5Pset_file_image_callbacks(access, &callbacks), "H5Pset_file_image_callbacks");
    hdf5_check(H5Pset_file_image(access, const_cast<std::byte*>(bytes.data()), bytes.size()),
               "H5Pset_file_image");
}

std::string describe(DatasetInfo const& info) {
    return fmt::format("{} [{}]", name_of(info.type), fmt::join(info.shape, ", "));
}

}  // namespace

std::size_t size_of(ElementType type) {
    switch (type) {
        case ElementType::u8:
            return 1;
        case ElementType::i32:
            return 4;
        case ElementType::i64:
            return 8;
        case ElementType::f32:
            return 4;
        case ElementType::f64:
            return 8;
    }
    std::abort();
}

std::string_view name_of(ElementType type) {
    switch (type) {
        case ElementType::u8:
            return "u8";
        case ElementType::i32:
            return "i32";
        case ElementType::i64:
            return "i64";
        case ElementType::f32:
            return "f32";
        case ElementType::f64:
            return "f64";
    }
    std::abort();
}

std::size_t DatasetInfo::num_elements() const {
    std::size_t count = 1;
    for (std::int64_t const extent : shape) count *= static_cast<std::size_t>(extent);
    return count;
}

std::string library_version() {
    LibraryUse const use;
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    return fmt::format("{}.{}.{}", major, minor, release);
}

// ---- ImageBuilder ----

struct ImageBuilder::State {
    Handle file;
    Handle link_creation;
    std::map<std::string, std::size_t, std::less<>> offset_of;

    Handle create(DatasetInfo const& info, Handle const& creation);
    Handle create_contiguous(DatasetInfo const& info);
    void attribute(std::string const& name, hid_t type, void const* value);
};

ImageBuilder::ImageBuilder() : state_(std::make_unique<State>()) {
    LibraryUse const use;
    Handle const access = checked(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "H5Pcreate");
    hdf5_check(H5Pset_fapl_core(access.get(), 16u << 20, 0), "H5Pset_fapl_core");
    // Images written with a later lower bound cannot be opened again from memory by 1.10.8 (measured).
    hdf5_check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST),
               "H5Pset_libver_bounds");
    Handle const creation = checked(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "H5Pcreate");
    hdf5_check(H5Pset_obj_track_times(creation.get(), 0), "H5Pset_obj_track_times");
    state_->file = checked(H5Fcreate(image_name().c_str(), H5F_ACC_TRUNC, creation.get(), access.get()),
                           H5Fclose, "H5Fcreate");
    state_->link_creation = checked(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "H5Pcreate");
    hdf5_check(H5Pset_create_intermediate_group(state_->link_creation.get(), 1),
               "H5Pset_create_intermediate_group");
}

ImageBuilder::~ImageBuilder() {
    LibraryUse const use;
    state_.reset();
}

Handle ImageBuilder::State::create(DatasetInfo const& info, Handle const& creation) {
    Handle const space = make_space(info.shape);
    return checked(H5Dcreate2(file.get(), info.path.c_str(), native_type(info.type), space.get(),
                              link_creation.get(), creation.get(), H5P_DEFAULT),
                   H5Dclose, "H5Dcreate2");
}

Handle ImageBuilder::State::create_contiguous(DatasetInfo const& info) {
    Handle const creation = checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "H5Pcreate");
    hdf5_check(H5Pset_layout(creation.get(), H5D_CONTIGUOUS), "H5Pset_layout");
    hdf5_check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time");
    hdf5_check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), "H5Pset_fill_time");
    hdf5_check(H5Pset_obj_track_times(creation.get(), 0), "H5Pset_obj_track_times");
    Handle dataset = create(info, creation);
    haddr_t const offset = H5Dget_offset(dataset.get());
    if (info.num_elements() > 0 && offset == HADDR_UNDEF) hdf5_check(-1, "H5Dget_offset");
    offset_of[info.path] = info.num_elements() > 0 ? static_cast<std::size_t>(offset) : 0;
    return dataset;
}

void ImageBuilder::reserve(DatasetInfo const& info) {
    LibraryUse const use;
    state_->create_contiguous(info);
}

void ImageBuilder::write(DatasetInfo const& info, std::span<std::byte const> content) {
    assert(content.size() == info.size_bytes());
    LibraryUse const use;
    Handle const dataset = state_->create_contiguous(info);
    if (content.empty()) return;
    hdf5_check(H5Dwrite(dataset.get(), native_type(info.type), H5S_ALL, H5S_ALL, H5P_DEFAULT, content.data()),
               "H5Dwrite");
}

void ImageBuilder::write_compressed(DatasetInfo const& info, std::span<std::byte const> content,
                                    std::int64_t chunk_elements, int level) {
    assert(content.size() == info.size_bytes() && chunk_elements > 0);
    if (info.shape.empty() || content.empty()) return write(info, content);
    LibraryUse const use;
    // Whole rows of the first dimension, so that a chunk is one run of memory.
    std::vector<hsize_t> chunk(info.shape.begin(), info.shape.end());
    auto const row_elements = static_cast<std::int64_t>(info.num_elements()) / info.shape[0];
    chunk[0] =
        static_cast<hsize_t>(std::clamp<std::int64_t>(chunk_elements / row_elements, 1, info.shape[0]));
    auto const num_chunks = (static_cast<hsize_t>(info.shape[0]) + chunk[0] - 1) / chunk[0];
    require(num_chunks <= max_chunks, ExitCode::internal_error,
            "dataset {} would have {} chunks, {} at most can be read back; use larger ones than {} elements",
            info.path, num_chunks, max_chunks, chunk_elements);
    Handle const creation = checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "H5Pcreate");
    hdf5_check(H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data()), "H5Pset_chunk");
    hdf5_check(H5Pset_deflate(creation.get(), static_cast<unsigned>(level)), "H5Pset_deflate");
    hdf5_check(H5Pset_obj_track_times(creation.get(), 0), "H5Pset_obj_track_times");
    Handle const dataset = state_->create(info, creation);
    hdf5_check(H5Dwrite(dataset.get(), native_type(info.type), H5S_ALL, H5S_ALL, H5P_DEFAULT, content.data()),
               "H5Dwrite");
}

void ImageBuilder::State::attribute(std::string const& name, hid_t type, void const* value) {
    Handle const space = checked(H5Screate(H5S_SCALAR), H5Sclose, "H5Screate");
    Handle const attribute =
        checked(H5Acreate2(file.get(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                "H5Acreate2");
    hdf5_check(H5Awrite(attribute.get(), type, value), "H5Awrite");
}

void ImageBuilder::attribute(std::string const& name, std::string const& value) {
    LibraryUse const use;
    Handle const type = checked(H5Tcopy(H5T_C_S1), H5Tclose, "H5Tcopy");
    hdf5_check(H5Tset_size(type.get(), std::max<std::size_t>(value.size(), 1)), "H5Tset_size");
    hdf5_check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "H5Tset_strpad");
    hdf5_check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "H5Tset_cset");
    state_->attribute(name, type.get(), value.c_str());
}

void ImageBuilder::attribute(std::string const& name, std::int64_t value) {
    LibraryUse const use;
    state_->attribute(name, H5T_STD_I64LE, &value);
}

ImageBuilder::Image ImageBuilder::finish() {
    LibraryUse const use;
    hdf5_check(H5Fflush(state_->file.get(), H5F_SCOPE_GLOBAL), "H5Fflush");
    ssize_t const size = hdf5_check(H5Fget_file_image(state_->file.get(), nullptr, 0), "H5Fget_file_image");
    Image image;
    image.bytes.resize(static_cast<std::size_t>(size));
    hdf5_check(H5Fget_file_image(state_->file.get(), image.bytes.data(), image.bytes.size()),
               "H5Fget_file_image");
    image.offset_of = std::move(state_->offset_of);
    *state_ = State{};
    return image;
}

// ---- ImageReader ----

void require_signature(std::span<std::byte const> bytes, std::string_view name) {
    constexpr char signature[signature_bytes + 1] = "\x89HDF\r\n\x1a\n";
    require(bytes.size() >= signature_bytes && std::memcmp(bytes.data(), signature, signature_bytes) == 0,
            ExitCode::do_not_requeue, "{}: not an HDF5 file (no HDF5 signature at the start)", name);
}

struct ImageReader::State {
    std::string name;
    std::span<std::byte const> bytes;
    std::uint64_t file_size = 0;
    Accept accept = Accept::chunks;
    Handle file;
    std::vector<DatasetInfo> datasets;

    template <typename... Args>
    [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
        fail(ExitCode::do_not_requeue, "{}: {}", name, fmt::format(format, std::forward<Args>(args)...));
    }
    /// A call that only a damaged or hostile file makes fail.
    template <typename Result>
    Result parsed(Result result, std::string const& what) const {
        if (result < 0) refuse("cannot read {}, the file is damaged{}", what, library_error());
        return result;
    }

    void list_datasets();
    /// Looks at an object without opening it, which would already follow what its header says.
    H5O_info_t check_header(std::string const& path) const;
    DatasetInfo inspect(hid_t dataset, std::string const& path) const;
    void check_storage(hid_t dataset, DatasetInfo const& info) const;
    void check_chunks(hid_t dataset, hid_t creation, DatasetInfo const& info) const;
    DatasetInfo const* find(std::string_view path) const;
    Handle open_attribute(std::string const& attribute) const;
};

ImageReader::ImageReader(std::span<std::byte const> bytes, std::string name, Accept accept)
    : state_(std::make_unique<State>()) {
    LibraryUse const use;
    state_->name = std::move(name);
    state_->bytes = bytes;
    state_->file_size = bytes.size();
    state_->accept = accept;
    require_signature(bytes, state_->name);
    check_structure(bytes, state_->name);
    Handle const access = checked(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "H5Pcreate");
    hdf5_check(H5Pset_fapl_core(access.get(), 1u << 16, 0), "H5Pset_fapl_core");
    set_image(access.get(), state_->bytes);
    hid_t const id = H5Fopen(image_name().c_str(), H5F_ACC_RDONLY, access.get());
    state_->file = Handle(state_->parsed(id, "it as an HDF5 file"), H5Fclose);
    state_->list_datasets();
}

ImageReader::~ImageReader() {
    LibraryUse const use;
    state_.reset();
}

H5O_info_t ImageReader::State::check_header(std::string const& path) const {
    H5O_info_t info;
    parsed(H5Oget_info_by_name2(file.get(), path.c_str(), &info, H5O_INFO_BASIC | H5O_INFO_HDR, H5P_DEFAULT),
           path);
    auto const has = [&](unsigned message) { return (info.hdr.mesg.present >> message & 1) != 0; };
    if (has(external_files_message)) {
        refuse("{} keeps its content in another file (external storage is refused, it could name any file)",
               path);
    }
    // HDF5 1.10.8 crashes on some of them, as on a shared fill value.
    if (info.hdr.mesg.shared != 0) refuse("{} shares a part of its header with another object", path);
    for (unsigned message = 0; message < 64; ++message) {
        if (has(message) && (known_messages >> message & 1) == 0) {
            refuse("{} has header message {}, which no plain file of numbers needs", path, message);
        }
    }
    return info;
}

void ImageReader::State::list_datasets() {
    struct Link {
        std::string name;
        H5L_type_t type;
    };
    struct Group {
        std::string path;  ///< with a slash at its end
        int depth;
    };
    std::vector<Group> open_groups{{"/", 0}};
    std::set<haddr_t> seen{check_header("/").addr};
    while (!open_groups.empty()) {
        Group const group = std::move(open_groups.back());
        open_groups.pop_back();
        std::vector<Link> links;
        auto const collect = [](hid_t, char const* link, H5L_info_t const* info, void* data) -> herr_t {
            static_cast<std::vector<Link>*>(data)->push_back({link, info->type});
            return 0;
        };
        parsed(H5Literate_by_name(file.get(), group.path.c_str(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr,
                                  collect, &links, H5P_DEFAULT),
               "group " + group.path);
        for (Link const& link : links) {
            std::string const path = group.path + link.name;
            if (link.type != H5L_TYPE_HARD) {
                refuse("{} is {} link (a file must hold its data itself); copy the data into the file", path,
                       link.type == H5L_TYPE_EXTERNAL ? "an external" : "a soft or user-defined");
            }
            H5O_info_t const info = check_header(path);
            if (!seen.insert(info.addr).second)
                refuse("{} is a second name of an object (every object has one)", path);
            if (info.type == H5O_TYPE_GROUP) {
                if (group.depth + 1 > max_group_depth)
                    refuse("{} is nested deeper than {} groups", path, max_group_depth);
                open_groups.push_back({path + "/", group.depth + 1});
            } else if (info.type == H5O_TYPE_DATASET) {
                Handle const dataset(parsed(H5Dopen2(file.get(), path.c_str(), H5P_DEFAULT), path), H5Dclose);
                datasets.push_back(inspect(dataset.get(), path));
            } else {
                refuse("{} is neither a group nor a dataset", path);
            }
        }
    }
    std::sort(datasets.begin(), datasets.end(), [](auto const& a, auto const& b) { return a.path < b.path; });
}

DatasetInfo ImageReader::State::inspect(hid_t dataset, std::string const& path) const {
    DatasetInfo info;
    info.path = path;
    Handle const type(parsed(H5Dget_type(dataset), path), H5Tclose);
    auto const* const match =
        std::find_if(std::begin(all_types), std::end(all_types),
                     [&](ElementType candidate) { return H5Tequal(type.get(), native_type(candidate)) > 0; });
    if (match == std::end(all_types)) {
        refuse("{} has an unsupported element type (u8, i32, i64, f32 and f64, little endian, are known)",
               path);
    }
    info.type = *match;

    Handle const space(parsed(H5Dget_space(dataset), path), H5Sclose);
    H5S_class_t const space_class = H5Sget_simple_extent_type(space.get());
    if (space_class != H5S_SCALAR && space_class != H5S_SIMPLE)
        refuse("{} has no elements at all (null dataspace)", path);
    hsize_t dims[H5S_MAX_RANK] = {};
    int const rank = parsed(H5Sget_simple_extent_dims(space.get(), dims, nullptr), path);
    std::uint64_t size = size_of(info.type);
    for (int i = 0; i < rank; ++i) {
        if (dims[i] != 0 && size > std::numeric_limits<std::int64_t>::max() / dims[i]) {
            refuse("{} declares more than 2^63 bytes", path);
        }
        size *= dims[i];
        info.shape.push_back(static_cast<std::int64_t>(dims[i]));
    }
    if (std::any_of(dims, dims + rank,
                    [](hsize_t extent) { return extent > std::numeric_limits<std::int64_t>::max(); })) {
        refuse("{} declares an extent over 2^63", path);
    }
    check_storage(dataset, info);
    return info;
}

void ImageReader::State::check_storage(hid_t dataset, DatasetInfo const& info) const {
    Handle const creation(parsed(H5Dget_create_plist(dataset), info.path), H5Pclose);
    H5D_layout_t const layout = H5Pget_layout(creation.get());
    if (layout != H5D_CONTIGUOUS && layout != H5D_COMPACT && layout != H5D_CHUNKED) {
        refuse("{} is a virtual dataset (refused, it could name any file)", info.path);
    }
    if (layout == H5D_CHUNKED && accept == Accept::contiguous) {
        refuse("{} is stored in chunks (compressed or filtered content is refused here)", info.path);
    }
    if (info.num_elements() == 0) return;
    if (layout == H5D_CHUNKED) return check_chunks(dataset, creation.get(), info);

    std::uint64_t const stored = H5Dget_storage_size(dataset);
    bool backed = stored == info.size_bytes() && stored <= file_size;
    if (layout == H5D_CONTIGUOUS) {
        haddr_t const offset = H5Dget_offset(dataset);
        backed = backed && offset != HADDR_UNDEF && offset <= file_size - stored;
    }
    if (!backed) {
        refuse("{} declares {} bytes but the file does not hold them ({} bytes stored, file of {} bytes)",
               info.path, info.size_bytes(), stored, file_size);
    }
}

void ImageReader::State::check_chunks(hid_t dataset, hid_t creation, DatasetInfo const& info) const {
    int const num_filters = parsed(H5Pget_nfilters(creation), info.path);
    int num_deflate = 0;
    for (int i = 0; i < num_filters; ++i) {
        unsigned flags = 0, filter_config = 0;
        std::size_t num_values = 0;
        H5Z_filter_t const filter = H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &num_values,
                                                   nullptr, 0, nullptr, &filter_config);
        if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE) {
            refuse(
                "{} uses HDF5 filter {} (only deflate and shuffle are read); store it with gzip or "
                "uncompressed",
                info.path, static_cast<int>(filter));
        }
        if (filter == H5Z_FILTER_DEFLATE) ++num_deflate;
    }
    if (num_deflate > 1) refuse("{} is deflated {} times", info.path, num_deflate);

    hsize_t chunk[H5S_MAX_RANK] = {};
    int const rank = parsed(H5Pget_chunk(creation, H5S_MAX_RANK, chunk), info.path);
    if (rank != static_cast<int>(info.shape.size())) refuse("{}: rank of chunks and shape differ", info.path);
    std::uint64_t const max_bytes = num_deflate > 0 ? file_size * max_deflate_ratio : file_size;
    std::uint64_t chunk_bytes = size_of(info.type);
    std::uint64_t expected_chunks = 1;
    for (int i = 0; i < rank; ++i) {
        if (chunk[i] == 0 || chunk_bytes > max_bytes / chunk[i]) {
            refuse("{} has chunks larger than the file could hold", info.path);
        }
        chunk_bytes *= chunk[i];
        hsize_t const along =
            (static_cast<hsize_t>(info.shape[static_cast<std::size_t>(i)]) - 1) / chunk[i] + 1;
        if (along > max_chunks || (expected_chunks *= along) > max_chunks) {
            refuse("{} has more than {} chunks; store it in larger ones", info.path, max_chunks);
        }
    }
    Handle const space(parsed(H5Dget_space(dataset), info.path), H5Sclose);
    hsize_t num_chunks = 0;
    parsed(H5Dget_num_chunks(dataset, space.get(), &num_chunks), info.path);
    if (num_chunks != expected_chunks) {
        refuse("{} declares {} bytes but the file holds {} of its {} chunks", info.path, info.size_bytes(),
               num_chunks, expected_chunks);
    }
    std::uint64_t stored = 0;
    for (hsize_t i = 0; i < num_chunks; ++i) {
        hsize_t first_element[H5S_MAX_RANK] = {};
        unsigned skipped_filters = 0;
        haddr_t address = HADDR_UNDEF;
        hsize_t size = 0;
        parsed(H5Dget_chunk_info(dataset, space.get(), i, first_element, &skipped_filters, &address, &size),
               info.path);
        bool const backed = address != HADDR_UNDEF && size <= file_size && address <= file_size - size;
        if (!backed || (num_filters == 0 && size != chunk_bytes) || skipped_filters != 0) {
            refuse("chunk {} of {} is damaged ({} bytes at {}, file of {} bytes)", i, info.path, size,
                   address, file_size);
        }
        if (num_deflate > 0) {
            auto const inflated = inflated_size(bytes.subspan(address, size));
            if (inflated != chunk_bytes) {
                refuse("chunk {} of {} is damaged (it does not inflate to {} bytes)", i, info.path,
                       chunk_bytes);
            }
        }
        stored += size;
    }
    std::uint64_t const bound = num_deflate > 0 ? stored * max_deflate_ratio : stored;
    if (info.size_bytes() > bound) {
        refuse("{} declares {} bytes but the file does not hold them ({} bytes stored)", info.path,
               info.size_bytes(), stored);
    }
}

std::vector<DatasetInfo> const& ImageReader::datasets() const { return state_->datasets; }

DatasetInfo const* ImageReader::State::find(std::string_view path) const {
    auto const found =
        std::lower_bound(datasets.begin(), datasets.end(), path,
                         [](DatasetInfo const& info, std::string_view key) { return info.path < key; });
    return found != datasets.end() && found->path == path ? &*found : nullptr;
}

bool ImageReader::has(std::string_view path) const { return state_->find(path) != nullptr; }

void ImageReader::read(DatasetInfo const& expected, std::span<std::byte> out) const {
    DatasetInfo const* const found = state_->find(expected.path);
    if (found == nullptr) state_->refuse("dataset {} is missing", expected.path);
    if (*found != expected) {
        state_->refuse("dataset {} is {}, but {} is needed", expected.path, describe(*found),
                       describe(expected));
    }
    assert(out.size() == expected.size_bytes());
    if (out.empty()) return;
    LibraryUse const use;
    Handle const dataset(
        state_->parsed(H5Dopen2(state_->file.get(), expected.path.c_str(), H5P_DEFAULT), expected.path),
        H5Dclose);
    state_->parsed(
        H5Dread(dataset.get(), native_type(expected.type), H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data()),
        "dataset " + expected.path);
}

Handle ImageReader::State::open_attribute(std::string const& attribute) const {
    if (parsed(H5Aexists(file.get(), attribute.c_str()), "attribute " + attribute) == 0) {
        refuse("attribute '{}' of the root group is missing", attribute);
    }
    Handle handle(parsed(H5Aopen(file.get(), attribute.c_str(), H5P_DEFAULT), "attribute " + attribute),
                  H5Aclose);
    Handle const space(parsed(H5Aget_space(handle.get()), "attribute " + attribute), H5Sclose);
    if (H5Sget_simple_extent_npoints(space.get()) != 1)
        refuse("attribute '{}' is not a single value", attribute);
    return handle;
}

std::string ImageReader::attribute(std::string const& name) const {
    LibraryUse const use;
    Handle const attribute = state_->open_attribute(name);
    Handle const type(state_->parsed(H5Aget_type(attribute.get()), "attribute " + name), H5Tclose);
    std::size_t const size = H5Tget_size(type.get());
    if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0 ||
        size > max_attribute_bytes) {
        state_->refuse("attribute '{}' is not a fixed-length string", name);
    }
    std::string value(size, '\0');
    state_->parsed(H5Aread(attribute.get(), type.get(), value.data()), "attribute " + name);
    value.resize(std::min(value.size(), value.find('\0')));
    return value;
}

std::int64_t ImageReader::integer_attribute(std::string const& name) const {
    LibraryUse const use;
    Handle const attribute = state_->open_attribute(name);
    Handle const type(state_->parsed(H5Aget_type(attribute.get()), "attribute " + name), H5Tclose);
    if (H5Tget_class(type.get()) != H5T_INTEGER || H5Tget_size(type.get()) > 8) {
        state_->refuse("attribute '{}' is not an integer", name);
    }
    std::int64_t value = 0;
    state_->parsed(H5Aread(attribute.get(), H5T_NATIVE_INT64, &value), "attribute " + name);
    return value;
}

}  // namespace holdfast::hdf5
