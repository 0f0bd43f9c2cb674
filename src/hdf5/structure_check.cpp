// SPDX-License-Identifier: Apache-2.0
#include "hdf5/structure_check.hpp"

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/error.hpp"

// Section numbers are those of the HDF5 File Format Specification, version 3.0.
namespace holdfast::hdf5 {
namespace {

constexpr std::uint64_t undefined = ~std::uint64_t{0};
constexpr std::uint64_t superblock_bytes = 96;  // II.A with offsets and lengths of 8 bytes
constexpr std::uint64_t tree_prefix_bytes = 24;
constexpr std::uint64_t symbol_bytes = 40;
constexpr std::uint64_t message_prefix_bytes = 8;
constexpr std::uint64_t end_of_free_list = 1;
constexpr std::uint64_t chunk_index_k = 32;  // superblock 0 has no field for it
constexpr unsigned max_dimensions = 32;

constexpr std::uint64_t padded(std::uint64_t size) { return (size + 7) / 8 * 8; }

/// Header messages, IV.A.2.
enum Message : unsigned {
    nothing = 0,
    dataspace_message = 1,
    link_info_message = 2,
    datatype_message = 3,
    old_fill_message = 4,
    fill_message = 5,
    link_message = 6,
    external_files_message = 7,
    layout_message = 8,
    group_info_message = 10,
    filters_message = 11,
    attribute_message = 12,
    old_time_message = 14,
    continuation_message = 16,
    symbol_table_message = 17,
    time_message = 18,
    reference_count_message = 22
};

class Walk {
  public:
    Walk(std::span<std::byte const> bytes, std::string const& name) : bytes_(bytes), name_(name) {}

    void superblock() {
        require_at(8, 1, "superblock");
        if (unsigned const version = at<std::uint8_t>(8); version != 0)
            fail(ExitCode::do_not_requeue,
                 "{}: it is of another HDF5 file format than expected (superblock {}, not 0); write it with "
                 "the "
                 "original one, h5py.File(path, \"w\", libver=\"earliest\")",
                 name_, version);
        require_at(0, superblock_bytes, "superblock");
        std::uint64_t const root = at<std::uint64_t>(64);
        bool const plain = at<std::uint8_t>(13) == 8 && at<std::uint8_t>(14) == 8 &&
                           at<std::uint64_t>(24) == 0 &&          // base address
                           at<std::uint64_t>(32) == undefined &&  // free space
                           at<std::uint64_t>(48) == undefined;    // driver information
        if (!plain) refuse("superblock", 0);
        // The library takes what lies behind this address for absent.
        end_ = at<std::uint64_t>(40);
        if (end_ > bytes_.size() || end_ < superblock_bytes) refuse("end of file", 40);
        leaf_k_ = at<std::uint16_t>(16);
        internal_k_ = at<std::uint16_t>(18);
        if (leaf_k_ == 0 || internal_k_ == 0) refuse("superblock", 16);
        add_object(56, root);
        while (!object_headers_.empty()) {
            std::uint64_t const next = object_headers_.back();
            object_headers_.pop_back();
            // A second name of an object is refused elsewhere, by its path.
            if (seen_headers_.insert(next).second) object_header(next);
        }
        check_cached_groups();
    }

  private:
    [[noreturn]] void refuse(char const* what, std::uint64_t address) const {
        fail(ExitCode::do_not_requeue, "{}: the file is damaged ({} at byte {} cannot be right)", name_, what,
             address);
    }

    void require_at(std::uint64_t address, std::uint64_t size, char const* what) const {
        std::uint64_t const end = end_ != 0 ? end_ : bytes_.size();
        if (address > end || size > end - address) refuse(what, address);
    }

    /// Whoever calls has made sure that it is within the file.
    template <typename Integer>
    Integer at(std::uint64_t address) const {
        Integer value;
        std::memcpy(&value, bytes_.data() + address, sizeof value);
        return value;
    }

    void require_signature_at(std::uint64_t address, std::uint64_t size, char const* signature,
                              char const* what) {
        require_at(address, size, what);
        if (std::memcmp(bytes_.data() + address, signature, 4) != 0) refuse(what, address);
        // Each belongs to one group or dataset, so that nothing goes round in a circle.
        if (!seen_.insert(address).second) refuse(what, address);
    }

    // IV.A.1.a: version 1, messages in one or more pieces.
    void object_header(std::uint64_t address) {
        require_at(address, 16, "object header");
        if (at<std::uint8_t>(address) != 1) refuse("object header", address);
        struct Piece {
            std::uint64_t address, size;
        };
        std::vector<Piece> pieces{{address + 16, at<std::uint32_t>(address + 8)}};
        std::uint64_t num_messages = 0;
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            Piece const piece = pieces[i];
            require_at(piece.address, piece.size, "object header");
            std::uint64_t position = piece.address;
            std::uint64_t const end = piece.address + piece.size;
            while (end - position >= message_prefix_bytes) {
                auto const type = at<std::uint16_t>(position);
                std::uint64_t const size = at<std::uint16_t>(position + 2);
                auto const flags = at<std::uint8_t>(position + 4);
                std::uint64_t const body = position + message_prefix_bytes;
                if (size > end - body || size % 8 != 0) refuse("header message", position);
                // Shared messages (2) lead to other places; the library crashes on some.
                if ((flags & 2) != 0) refuse("shared header message", position);
                if (type == continuation_message) {
                    if (size < 16) refuse("header message", position);
                    pieces.push_back({at<std::uint64_t>(body), at<std::uint64_t>(body + 8)});
                    if (!seen_.insert(pieces.back().address).second) refuse("header continuation", body);
                } else if (type == symbol_table_message) {
                    if (size < 16) refuse("header message", position);
                    group_of_header_[address] = body;
                    group(at<std::uint64_t>(body), at<std::uint64_t>(body + 8));
                } else {
                    message(type, body, size);
                }
                position = body + size;
                ++num_messages;
            }
            if (position != end) refuse("object header", piece.address);
        }
        if (num_messages != at<std::uint16_t>(address + 2)) refuse("object header", address);
    }

    // The library reads some fields of a message without asking whether it is that long.
    void message(unsigned type, std::uint64_t body, std::uint64_t size) {
        auto const require_size = [&](std::uint64_t wanted) {
            if (size < wanted) refuse("header message", body);
        };
        switch (type) {
            case nothing:
            case external_files_message:  // refused elsewhere, by its dataset's path
                return;
            case dataspace_message:
                dataspace(body, size);
                return;
            case datatype_message:
                datatype(body, size, 0);
                return;
            case old_fill_message:
                require_size(4);
                require_size(4 + std::uint64_t{at<std::uint32_t>(body)});
                return;
            case fill_message: {
                require_size(4);
                unsigned const version = at<std::uint8_t>(body);
                bool const has_value = version == 1 || (version == 2 && at<std::uint8_t>(body + 3) != 0) ||
                                       (version == 3 && (at<std::uint8_t>(body + 1) & 0x20) != 0);
                if (version < 1 || version > 3) refuse("header message", body);
                std::uint64_t const value = version == 3 ? 2 : 4;
                if (has_value) {
                    require_size(value + 4);
                    // A negative size says that there is no value.
                    auto const value_size = at<std::int32_t>(body + value);
                    if (value_size > 0) require_size(value + 4 + static_cast<std::uint64_t>(value_size));
                }
                return;
            }
            case layout_message:
                layout(body, size);
                return;
            case filters_message:
                filters(body, size);
                return;
            case attribute_message:
                attribute(body, size);
                return;
            case old_time_message:
                require_size(16);
                return;
            case time_message:
            case reference_count_message:
                require_size(8);
                return;
            case link_info_message:
            case link_message:
            case group_info_message:
                fail(ExitCode::do_not_requeue,
                     "{}: has links of the newer kind, as an external link is (a file must hold its data "
                     "itself); "
                     "copy the data into the file",
                     name_);
            default:
                refuse("header message", body);
        }
    }

    // IV.A.2.b. The number of elements.
    std::uint64_t dataspace(std::uint64_t body, std::uint64_t size) const {
        if (size < 4) refuse("dataspace", body);
        unsigned const version = at<std::uint8_t>(body), rank = at<std::uint8_t>(body + 1),
                       flags = at<std::uint8_t>(body + 2);
        std::uint64_t const head = version == 1 ? 8 : 4;
        std::uint64_t const lists = 1 + (flags & 1) + (version == 1 ? flags >> 1 & 1 : 0);
        if (version < 1 || version > 2 || rank > max_dimensions || size < head + lists * 8 * rank)
            refuse("dataspace", body);
        if (version == 2 && at<std::uint8_t>(body + 3) == 2) return 0;  // null
        std::uint64_t elements = 1;
        for (unsigned i = 0; i < rank; ++i) {
            auto const extent = at<std::uint64_t>(body + head + 8 * i);
            elements = extent != 0 && elements > undefined / extent ? undefined : elements * extent;
        }
        return elements;
    }

    // IV.A.2.d. The size of an element.
    std::uint64_t datatype(std::uint64_t body, std::uint64_t size, int depth) const {
        constexpr unsigned integer = 0, real = 1, text = 3, bits = 4, reference = 7, variable_length = 9;
        if (size < 8 || depth > 4) refuse("datatype", body);
        unsigned const kind = at<std::uint8_t>(body) & 0xF, version = at<std::uint8_t>(body) >> 4;
        std::uint64_t properties = 0;
        if (kind == integer || kind == bits) properties = 4;
        if (kind == real) properties = 12;
        if (version < 1 || version > 3 || size - 8 < properties) refuse("datatype", body);
        if (kind == variable_length) {
            datatype(body + 8, size - 8, depth + 1);
        } else if (kind != integer && kind != real && kind != text && kind != bits && kind != reference) {
            fail(ExitCode::do_not_requeue,
                 "{}: has an unsupported element type (HDF5 class {} at byte {}); store plain numbers", name_,
                 kind, body);
        }
        return at<std::uint32_t>(body + 4);
    }

    // IV.A.2.l
    void filters(std::uint64_t body, std::uint64_t size) const {
        if (size < 8) refuse("filters", body);
        unsigned const version = at<std::uint8_t>(body), count = at<std::uint8_t>(body + 1);
        if (version < 1 || version > 2) refuse("filters", body);
        std::uint64_t position = version == 1 ? 8 : 2;
        auto const take = [&](std::uint64_t bytes) {
            if (bytes > size - position) refuse("filters", body);
            return std::exchange(position, position + bytes);
        };
        for (unsigned i = 0; i < count; ++i) {
            auto const id = at<std::uint16_t>(body + take(2));
            std::uint64_t const name = version == 1 || id >= 256 ? at<std::uint16_t>(body + take(2)) : 0;
            take(2);  // flags
            std::uint64_t const values = at<std::uint16_t>(body + take(2));
            std::uint64_t const name_at = take(version == 1 ? padded(name) : name);
            if (name > 0 && std::memchr(bytes_.data() + body + name_at, 0, name) == nullptr)
                refuse("filters", body);
            take(4 * values + (version == 1 && values % 2 == 1 ? 4 : 0));
        }
    }

    // IV.A.2.m
    void attribute(std::uint64_t body, std::uint64_t size) const {
        if (size < 9) refuse("attribute", body);
        unsigned const version = at<std::uint8_t>(body), flags = at<std::uint8_t>(body + 1);
        if (version < 1 || version > 3 || (version > 1 && flags != 0))
            refuse("attribute", body);  // shared parts
        std::uint64_t position = version == 3 ? 9 : 8;
        auto const part = [&](unsigned length_at) {
            std::uint64_t const length = at<std::uint16_t>(body + length_at);
            std::uint64_t const space = version == 1 ? padded(length) : length;
            if (space > size - position) refuse("attribute", body);
            return std::pair(body + std::exchange(position, position + space), length);
        };
        auto const [name_at, name_length] = part(2);
        auto const [type_at, type_length] = part(4);
        auto const [space_at, space_length] = part(6);
        if (name_length == 0 || std::memchr(bytes_.data() + name_at, 0, name_length) == nullptr)
            refuse("attribute", body);
        std::uint64_t const element_bytes = datatype(type_at, type_length, 0);
        std::uint64_t const elements = dataspace(space_at, space_length);
        if (element_bytes != 0 && elements > (size - position) / element_bytes) refuse("attribute", body);
    }

    // III.D: the names of a group. Its free list is a chain through the segment.
    void heap(std::uint64_t address) {
        require_signature_at(address, 32, "HEAP", "name heap");
        heap_size_ = at<std::uint64_t>(address + 8);
        heap_data_ = at<std::uint64_t>(address + 24);
        require_at(heap_data_, heap_size_, "name heap");
        std::uint64_t free_block = at<std::uint64_t>(address + 16);
        for (std::uint64_t blocks = 0; free_block != end_of_free_list; ++blocks) {
            if (heap_size_ < 16 || free_block > heap_size_ - 16 || blocks > heap_size_ / 16)
                refuse("free list of a name heap", address);
            std::uint64_t const size = at<std::uint64_t>(heap_data_ + free_block + 8);
            if (size < 16 || size > heap_size_ - free_block) refuse("free list of a name heap", address);
            free_block = at<std::uint64_t>(heap_data_ + free_block);
        }
    }

    void group(std::uint64_t tree, std::uint64_t heap_address) {
        heap(heap_address);
        group_tree(tree, 256);
    }

    // III.A.1, node type 0. `above`: the level of the parent.
    void group_tree(std::uint64_t address, unsigned above) {
        std::uint64_t const node_bytes = tree_prefix_bytes + 2 * internal_k_ * 16 + 8;
        require_signature_at(address, node_bytes, "TREE", "group index");
        unsigned const level = at<std::uint8_t>(address + 5);
        std::uint64_t const count = at<std::uint16_t>(address + 6);
        if (at<std::uint8_t>(address + 4) != 0 || count > 2 * internal_k_ || level >= above ||
            (above != 256 && level + 1 != above))
            refuse("group index", address);
        for (std::uint64_t i = 0; i <= count; ++i) {
            std::uint64_t const key = address + tree_prefix_bytes + i * 16;
            require_name(at<std::uint64_t>(key), key);
            if (i == count) break;
            std::uint64_t const child = at<std::uint64_t>(key + 8);
            if (level > 0) {
                group_tree(child, level);
            } else {
                symbols(child);
            }
        }
    }

    // III.B and III.C
    void symbols(std::uint64_t address) {
        require_signature_at(address, 8 + 2 * leaf_k_ * symbol_bytes, "SNOD", "group node");
        std::uint64_t const count = at<std::uint16_t>(address + 6);
        if (count > 2 * leaf_k_) refuse("group node", address);
        for (std::uint64_t i = 0; i < count; ++i) {
            std::uint64_t const entry = address + 8 + i * symbol_bytes;
            require_name(at<std::uint64_t>(entry), entry);
            auto const kind = at<std::uint32_t>(entry + 16);
            if (kind > 2) refuse("group entry", entry);
            if (kind == 2) {  // a soft link, refused elsewhere by its path
                require_name(at<std::uint32_t>(entry + 24), entry);
                continue;
            }
            std::uint64_t const header = at<std::uint64_t>(entry + 8);
            add_object(entry, header);
        }
    }

    void require_name(std::uint64_t offset, std::uint64_t where) const {
        bool ends = false;
        if (offset < heap_size_) {
            auto const* const begin = bytes_.data() + heap_data_ + offset;
            ends = std::memchr(begin, 0, heap_size_ - offset) != nullptr;
        }
        if (!ends) refuse("name", where);
    }

    /// An entry may repeat where its group's index and heap are; the library believes it.
    void check_cached_groups() const {
        for (auto const& [entry, header] : cached_groups_) {
            auto const found = group_of_header_.find(header);
            bool const same = found != group_of_header_.end() &&
                              std::memcmp(bytes_.data() + entry + 24, bytes_.data() + found->second, 16) == 0;
            if (!same) refuse("group entry", entry);
        }
    }

    void add_object(std::uint64_t entry, std::uint64_t header) {
        if (at<std::uint32_t>(entry + 16) == 1) cached_groups_.push_back({entry, header});
        object_headers_.push_back(header);
    }

    // IV.A.2.i. Compact and contiguous content is checked where datasets are listed.
    void layout(std::uint64_t body, std::uint64_t size) {
        constexpr unsigned chunked = 2, compact = 0;
        if (size < 8) refuse("layout", body);
        unsigned const version = at<std::uint8_t>(body), kind = at<std::uint8_t>(body + 1);
        if (version == 4) return;  // virtual datasets in a file of the original format; refused elsewhere
        if (version != 3) refuse("layout", body);
        if (kind == compact && at<std::uint16_t>(body + 2) > size - 4) refuse("layout", body);
        if (kind != compact && size < 18) refuse("layout", body);
        if (kind != chunked) return;
        unsigned const dimensions = at<std::uint8_t>(body + 2);  // one more than the dataset has
        if (dimensions < 2 || dimensions > max_dimensions + 1 || size < 11 + 4 * std::uint64_t{dimensions})
            refuse("layout", body);
        std::uint64_t const tree = at<std::uint64_t>(body + 3);
        if (tree != undefined) chunk_tree(tree, dimensions, 256);
    }

    // III.A.1, node type 1. The chunks themselves are checked where datasets are listed.
    void chunk_tree(std::uint64_t address, unsigned dimensions, unsigned above) {
        std::uint64_t const key_bytes = 8 + 8 * std::uint64_t{dimensions};
        require_signature_at(address, tree_prefix_bytes + 2 * chunk_index_k * (key_bytes + 8) + key_bytes,
                             "TREE", "chunk index");
        unsigned const level = at<std::uint8_t>(address + 5);
        std::uint64_t const count = at<std::uint16_t>(address + 6);
        if (at<std::uint8_t>(address + 4) != 1 || count > 2 * chunk_index_k || level >= above ||
            (above != 256 && level + 1 != above))
            refuse("chunk index", address);
        for (std::uint64_t i = 0; level > 0 && i < count; ++i)
            chunk_tree(at<std::uint64_t>(address + tree_prefix_bytes + i * (key_bytes + 8) + key_bytes),
                       dimensions, level);
    }

    std::span<std::byte const> bytes_;
    std::string const& name_;
    std::uint64_t end_ = 0;
    std::uint64_t leaf_k_ = 0, internal_k_ = 0;
    std::uint64_t heap_data_ = 0, heap_size_ = 0;             ///< of the group that is walked
    std::vector<std::uint64_t> object_headers_;               ///< still to be walked
    std::map<std::uint64_t, std::uint64_t> group_of_header_;  ///< where a group's header has its message
    std::vector<std::pair<std::uint64_t, std::uint64_t>>
        cached_groups_;                            ///< entries that repeat it, and headers
    std::set<std::uint64_t> seen_headers_, seen_;  ///< object headers; all other structures
};

}  // namespace

void check_structure(std::span<std::byte const> bytes, std::string const& name) {
    Walk(bytes, name).superblock();
}

}  // namespace holdfast::hdf5
