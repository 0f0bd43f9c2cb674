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

enum Message : unsigned { layout_message = 8, continuation_message = 16, symbol_table_message = 17 };

class Walk {
  public:
    Walk(std::span<std::byte const> bytes, std::string const& name) : bytes_(bytes), name_(name) {}

    void superblock() {
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
            if (seen_.insert(next).second) object_header(next);
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
                } else if (type == layout_message) {
                    layout(body, size);
                }
                position = body + size;
                ++num_messages;
            }
            if (position != end) refuse("object header", piece.address);
        }
        if (num_messages != at<std::uint16_t>(address + 2)) refuse("object header", address);
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
            if (found == group_of_header_.end()) continue;  // a group that has got links of the newer kind
            if (std::memcmp(bytes_.data() + entry + 24, bytes_.data() + found->second, 16) != 0)
                refuse("group entry", entry);
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
        cached_groups_;  ///< entries that repeat it, and headers
    std::set<std::uint64_t> seen_;
};

}  // namespace

bool is_original_format(std::span<std::byte const> bytes) {
    return bytes.size() > 8 && bytes[8] == std::byte{0};
}

void check_structure(std::span<std::byte const> bytes, std::string const& name) {
    Walk(bytes, name).superblock();
}

}  // namespace holdfast::hdf5
