# The GPU build: nvcc, one CUDA runtime and one NCCL. Both libraries are the ones LibTorch itself loads, because two with one
# soname in a process lose calls; they lie beside torch in site-packages/nvidia, or on a system LibTorch in its lib/.
#
#   holdfast_cuda_runtime   cuda_runtime.h and libcudart
#   holdfast_nccl           nccl.h. libnccl is not linked: it is loaded with libtorch_cuda, when a GPU is used
#                           (docs/decisions/010-loading-cuda.md)
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "HOLDFAST_WITH_CUDA=ON needs a CUDA toolkit (no nvcc found). Set -DCMAKE_CUDA_COMPILER=<path of nvcc>, "
    "or -DHOLDFAST_WITH_CUDA=OFF for a CPU build.")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  # A100, RTX 30, RTX 40, H100/H200; the last one also as PTX for whatever comes later.
  set(CMAKE_CUDA_ARCHITECTURES "80-real;86-real;89-real;90" CACHE STRING "CUDA architectures")
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # holdfast_cuda_runtime names the one to link
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
find_package(CUDAToolkit REQUIRED)

get_filename_component(nvidia_dir ${HOLDFAST_TORCH_LIBRARY_DIR}/../../nvidia ABSOLUTE)

# holdfast_find_cuda_library(<variable> <file pattern>): the first match beside torch, then in torch's own lib folder.
function(holdfast_find_cuda_library variable pattern)
  file(GLOB found LIST_DIRECTORIES false ${nvidia_dir}/*/lib/${pattern} ${HOLDFAST_TORCH_LIBRARY_DIR}/${pattern})
  list(POP_FRONT found first)
  set(${variable} "${first}" PARENT_SCOPE)
endfunction()

set(HOLDFAST_CUDART_LIBRARY "" CACHE FILEPATH "libcudart to link; empty: the one beside LibTorch, else the toolkit's")
set(cudart "${HOLDFAST_CUDART_LIBRARY}")
if(NOT cudart)
  holdfast_find_cuda_library(cudart "libcudart*.so.*")
endif()
if(NOT cudart)
  set(cudart ${CUDA_cudart_LIBRARY})
endif()
if(cudart MATCHES "\\.so\\.([0-9]+)" AND NOT CMAKE_MATCH_1 STREQUAL CUDAToolkit_VERSION_MAJOR)
  message(FATAL_ERROR "LibTorch is built for CUDA ${CMAKE_MATCH_1} but nvcc is of CUDA ${CUDAToolkit_VERSION} (the runtime "
    "that LibTorch loads, ${cudart}, could not run its code). Set -DCMAKE_CUDA_COMPILER or -DHOLDFAST_TORCH_ROOT to a pair "
    "of one major version.")
endif()
# A toolkit that is little more than a compiler has no NVTX; LibTorch's packages then may.
file(GLOB include_dirs_beside_torch ${nvidia_dir}/*/include)
find_path(nvtx_include_dir nvtx3/nvToolsExt.h PATHS ${CUDAToolkit_INCLUDE_DIRS} ${include_dirs_beside_torch}
  NO_DEFAULT_PATH NO_CACHE)
if(NOT nvtx_include_dir)
  message(FATAL_ERROR "HOLDFAST_WITH_CUDA=ON needs NVTX's headers (no nvtx3/nvToolsExt.h in ${CUDAToolkit_INCLUDE_DIRS}; profilers "
    "see the phases of a step by them). They are a part of the CUDA toolkit: install the package cuda-nvtx-X-Y of its version.")
endif()
add_library(holdfast_cuda_runtime INTERFACE)
target_include_directories(holdfast_cuda_runtime SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${nvtx_include_dir})
target_link_libraries(holdfast_cuda_runtime INTERFACE ${cudart} holdfast_cuda_flag)

set(HOLDFAST_NCCL_ROOT "" CACHE PATH "NCCL: the folder with include/nccl.h and lib/libnccl.so; empty: the one beside LibTorch")
find_path(nccl_include_dir nccl.h
  PATHS ${HOLDFAST_NCCL_ROOT}/include ${nvidia_dir}/nccl/include NO_DEFAULT_PATH NO_CACHE)
find_library(nccl_library NAMES libnccl.so.2 libnccl.so
  PATHS ${HOLDFAST_NCCL_ROOT}/lib ${HOLDFAST_NCCL_ROOT}/lib64 ${nvidia_dir}/nccl/lib NO_DEFAULT_PATH NO_CACHE)
if(NOT nccl_include_dir OR NOT nccl_library)
  message(FATAL_ERROR "HOLDFAST_WITH_CUDA=ON needs NCCL (no nccl.h and libnccl.so under ${nvidia_dir}/nccl or "
    "HOLDFAST_NCCL_ROOT='${HOLDFAST_NCCL_ROOT}'). Set -DHOLDFAST_NCCL_ROOT to the one LibTorch uses.")
endif()
include(HoldfastNcclVersion)
holdfast_require_nccl_versions_agree(${nccl_include_dir}/nccl.h ${nccl_library})
message(STATUS "CUDA ${CUDAToolkit_VERSION}, runtime ${cudart}, NCCL ${nccl_library}")
get_filename_component(HOLDFAST_NCCL_LIBRARY_DIR ${nccl_library} DIRECTORY)
add_library(holdfast_nccl INTERFACE)
target_include_directories(holdfast_nccl SYSTEM INTERFACE ${nccl_include_dir})
target_link_libraries(holdfast_nccl INTERFACE holdfast_cuda_runtime)
