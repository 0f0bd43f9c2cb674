// SPDX-License-Identifier: Apache-2.0
// A walk through all metadata of an HDF5 file of the original format (superblock 0, what ImageBuilder and h5py's "earliest"
// write), before the HDF5 library sees it. Version 1.10.8 trusts addresses, sizes and lists in a file: some make it read
// outside the file's bytes, go round in circles, or ask for gigabytes of memory. Later formats are refused: their checksums
// protect from damage, not from intent, and inside they may hold the older structures.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace holdfast::hdf5 {

/// `bytes` begin with the HDF5 signature. Throws Error(do_not_requeue) naming `name` unless superblock, groups, object headers and chunk indices of the file are
/// of known kinds, lie within it and end. What they say about content is not judged.
void check_structure(std::span<std::byte const> bytes, std::string const& name);

}  // namespace holdfast::hdf5
