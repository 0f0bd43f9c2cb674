# LibTorch as the imported targets holdfast_torch (CPU) and, with HOLDFAST_WITH_CUDA, holdfast_torch_cuda.
#
# HOLDFAST_TORCH_ROOT names a LibTorch folder or an installed Python torch (the folder with include/ and lib/). Its own
# TorchConfig.cmake is not used: the one of a CUDA wheel fails on a machine without a CUDA toolkit, and on one with a toolkit
# it brings in every CUDA library (docs/decisions/002-libtorch-from-pypi.md).
set(HOLDFAST_TORCH_ROOT "$ENV{HOLDFAST_TORCH}" CACHE PATH "LibTorch: the folder with include/ATen and lib/libtorch_cpu.so")

# NO_CACHE: a changed HOLDFAST_TORCH_ROOT must be looked at again.
find_path(torch_include_dir ATen/ATen.h
  PATHS ${HOLDFAST_TORCH_ROOT}/include ${HOLDFAST_TORCH_ROOT}/torch/include NO_DEFAULT_PATH NO_CACHE)
find_library(torch_cpu_library torch_cpu
  PATHS ${HOLDFAST_TORCH_ROOT}/lib ${HOLDFAST_TORCH_ROOT}/torch/lib NO_DEFAULT_PATH NO_CACHE)
if(NOT torch_include_dir OR NOT torch_cpu_library)
  message(FATAL_ERROR "Holdfast needs LibTorch 2.8 or newer (no ATen/ATen.h and libtorch_cpu.so under HOLDFAST_TORCH_ROOT="
    "'${HOLDFAST_TORCH_ROOT}'). Run scripts/quickstart, which installs it, or set -DHOLDFAST_TORCH_ROOT=<site-packages/torch>.")
endif()
get_filename_component(HOLDFAST_TORCH_LIBRARY_DIR ${torch_cpu_library} DIRECTORY)

# 2.9 moved the numbers from the first file to the second, which the first then includes.
set(version_text "")
foreach(header torch/csrc/api/include/torch/version.h torch/headeronly/version.h)
  if(EXISTS ${torch_include_dir}/${header})
    file(STRINGS ${torch_include_dir}/${header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(APPEND version_text "${lines};")
  endif()
endforeach()
set(HOLDFAST_TORCH_VERSION "")
foreach(part MAJOR MINOR PATCH)
  if(NOT version_text MATCHES "TORCH_VERSION_${part} +([0-9]+)")
    message(FATAL_ERROR "no version number in ${torch_include_dir}/torch (version.h lacks TORCH_VERSION_${part}); "
      "is HOLDFAST_TORCH_ROOT='${HOLDFAST_TORCH_ROOT}' a LibTorch from 2.8 to 2.15?")
  endif()
  list(APPEND HOLDFAST_TORCH_VERSION ${CMAKE_MATCH_1})
endforeach()
list(JOIN HOLDFAST_TORCH_VERSION "." HOLDFAST_TORCH_VERSION)
if(HOLDFAST_TORCH_VERSION VERSION_LESS 2.8)
  message(FATAL_ERROR "LibTorch ${HOLDFAST_TORCH_VERSION} is too old (Holdfast is tested with 2.8 to 2.15); set "
    "-DHOLDFAST_TORCH_ROOT to a newer one")
endif()
message(STATUS "LibTorch ${HOLDFAST_TORCH_VERSION} in ${HOLDFAST_TORCH_LIBRARY_DIR}")

# Only torch's own folders: beside them lies a copy of fmt of another version than the library we link.
# The name changes with the LibTorch, so that another one recompiles what includes it, however old its files are.
string(SHA1 torch_key "${torch_include_dir} ${HOLDFAST_TORCH_VERSION}")
string(SUBSTRING ${torch_key} 0 8 torch_key)
set(torch_only_dir ${PROJECT_BINARY_DIR}/torch-include-${torch_key})
file(MAKE_DIRECTORY ${torch_only_dir})
foreach(folder ATen c10 caffe2 torch)
  file(CREATE_LINK ${torch_include_dir}/${folder} ${torch_only_dir}/${folder} SYMBOLIC)
endforeach()

add_library(holdfast_torch INTERFACE)
target_include_directories(holdfast_torch SYSTEM INTERFACE
  ${torch_only_dir} ${torch_only_dir}/torch/csrc/api/include)
target_link_libraries(holdfast_torch INTERFACE ${torch_cpu_library} ${HOLDFAST_TORCH_LIBRARY_DIR}/libc10.so Threads::Threads)

# What CUDA code sees: compile definitions here, so that one source file serves both builds.
add_library(holdfast_cuda_flag INTERFACE)
if(HOLDFAST_WITH_CUDA)
  target_compile_definitions(holdfast_cuda_flag INTERFACE HOLDFAST_WITH_CUDA=1)
  include(HoldfastCuda)
else()
  add_library(holdfast_nccl INTERFACE)
  target_include_directories(holdfast_nccl SYSTEM INTERFACE ${PROJECT_SOURCE_DIR}/src/parallel/nccl_declarations)
endif()
