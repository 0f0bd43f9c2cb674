# Everything Holdfast stands on. A dependency that is asked for and not found is an error that names the variable to set.
set(MPI_CXX_SKIP_MPICXX ON)  # only libmpi: the C++ bindings are gone from MPI
find_package(Threads REQUIRED)
find_package(MPI REQUIRED COMPONENTS C CXX)
# Also for who links only the C library from C++: mpi.h otherwise declares the bindings of libmpi_cxx.
set_property(TARGET MPI::MPI_C APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 1.10 REQUIRED COMPONENTS C)
find_package(CLI11 2.1 REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(spdlog 1.10 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(JPEG REQUIRED)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)

add_library(holdfast_hdf5_c INTERFACE)
target_include_directories(holdfast_hdf5_c SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
target_compile_definitions(holdfast_hdf5_c INTERFACE ${HDF5_DEFINITIONS})
target_link_libraries(holdfast_hdf5_c INTERFACE ${HDF5_C_LIBRARIES})

include(HoldfastTorch)
