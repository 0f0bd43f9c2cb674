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
file(STRINGS ${HOLDFAST_TORCH_INCLUDE_DIR}/torch/headeronly/version.h version_line REGEX "define TORCH_VERSION ")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" HOLDFAST_TORCH_VERSION "${version_line}")
message(STATUS "LibTorch ${HOLDFAST_TORCH_VERSION} in ${HOLDFAST_TORCH_LIBRARY_DIR}")

add_library(holdfast_torch INTERFACE)
target_include_directories(holdfast_torch SYSTEM INTERFACE
  ${HOLDFAST_TORCH_INCLUDE_DIR} ${HOLDFAST_TORCH_INCLUDE_DIR}/torch/csrc/api/include)
target_link_libraries(holdfast_torch INTERFACE
  ${HOLDFAST_TORCH_CPU_LIBRARY} ${HOLDFAST_TORCH_LIBRARY_DIR}/libc10.so Threads::Threads)
