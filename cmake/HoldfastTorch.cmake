# LibTorch as the imported target holdfast_torch.
#
# HOLDFAST_TORCH_ROOT names a LibTorch folder or an installed Python torch (the folder with include/ and lib/). Its own
# TorchConfig.cmake is not used for a CPU build: the one of a CUDA wheel fails on a machine without a CUDA toolkit.
set(HOLDFAST_TORCH_ROOT "$ENV{HOLDFAST_TORCH}" CACHE PATH "LibTorch: the folder with include/torch and lib/libtorch_cpu.so")

find_path(HOLDFAST_TORCH_INCLUDE_DIR ATen/ATen.h
  PATHS ${HOLDFAST_TORCH_ROOT}/include ${HOLDFAST_TORCH_ROOT}/torch/include NO_DEFAULT_PATH)
find_library(HOLDFAST_TORCH_CPU_LIBRARY torch_cpu
  PATHS ${HOLDFAST_TORCH_ROOT}/lib ${HOLDFAST_TORCH_ROOT}/torch/lib NO_DEFAULT_PATH)
if(NOT HOLDFAST_TORCH_INCLUDE_DIR OR NOT HOLDFAST_TORCH_CPU_LIBRARY)
  message(FATAL_ERROR "Holdfast needs LibTorch 2.8 or newer (no ATen/ATen.h and libtorch_cpu.so under HOLDFAST_TORCH_ROOT="
    "'${HOLDFAST_TORCH_ROOT}'). Run scripts/quickstart, which installs it, or set -DHOLDFAST_TORCH_ROOT=<site-packages/torch>.")
endif()
get_filename_component(HOLDFAST_TORCH_LIBRARY_DIR ${HOLDFAST_TORCH_CPU_LIBRARY} DIRECTORY)
file(READ ${HOLDFAST_TORCH_INCLUDE_DIR}/torch/headeronly/version.h version_text)
set(HOLDFAST_TORCH_VERSION "")
foreach(part MAJOR MINOR PATCH)
  string(REGEX MATCH "TORCH_VERSION_${part} ([0-9]+)" unused "${version_text}")
  list(APPEND HOLDFAST_TORCH_VERSION ${CMAKE_MATCH_1})
endforeach()
list(JOIN HOLDFAST_TORCH_VERSION "." HOLDFAST_TORCH_VERSION)
message(STATUS "LibTorch ${HOLDFAST_TORCH_VERSION} in ${HOLDFAST_TORCH_LIBRARY_DIR}")

# Only torch's own folders: beside them lies a copy of fmt of another version than the library we link.
set(torch_include_dir ${PROJECT_BINARY_DIR}/torch-include)
file(MAKE_DIRECTORY ${torch_include_dir})
foreach(folder ATen c10 caffe2 torch)
  file(CREATE_LINK ${HOLDFAST_TORCH_INCLUDE_DIR}/${folder} ${torch_include_dir}/${folder} SYMBOLIC)
endforeach()

add_library(holdfast_torch INTERFACE)
target_include_directories(holdfast_torch SYSTEM INTERFACE
  ${torch_include_dir} ${torch_include_dir}/torch/csrc/api/include)
target_link_libraries(holdfast_torch INTERFACE
  ${HOLDFAST_TORCH_CPU_LIBRARY} ${HOLDFAST_TORCH_LIBRARY_DIR}/libc10.so Threads::Threads)
