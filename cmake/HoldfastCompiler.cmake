# Compile options of our own targets. No -march: one code path for all instruction sets, because the bits of a run must not
# depend on the machine that compiled it. -ffp-contract=off: GCC's default fuses a*b+c where it likes, and then the result
# depends on how replicas are spread over ranks (docs/decisions/003-exact-arithmetic.md).
include(CheckCXXCompilerFlag)

find_program(HOLDFAST_CCACHE ccache)
mark_as_advanced(HOLDFAST_CCACHE)
if(HOLDFAST_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HOLDFAST_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${HOLDFAST_CCACHE})
endif()

add_library(holdfast_options INTERFACE)
target_compile_features(holdfast_options INTERFACE cxx_std_20)
target_compile_options(holdfast_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-Wall;-Wextra;-Wpedantic;-Wshadow;-Wnon-virtual-dtor>)
if(HOLDFAST_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "HOLDFAST_FUZZERS needs clang (libFuzzer is a part of it); set CMAKE_CXX_COMPILER=clang++")
  endif()
  target_compile_options(holdfast_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link,address;-fno-omit-frame-pointer;-UNDEBUG>)
  target_link_options(holdfast_options INTERFACE -fsanitize=address)
endif()
if(HOLDFAST_WARNINGS_AS_ERRORS)
  target_compile_options(holdfast_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()

# holdfast_add_library(<folder> SOURCES ... [LINKS ...] [PRIVATE_LINKS ...]): target holdfast_<folder> from src/<folder>.
# Headers are included as "<folder>/<file>.hpp".
function(holdfast_add_library folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS;PRIVATE_LINKS")
  add_library(holdfast_${folder} STATIC ${arg_SOURCES})
  target_include_directories(holdfast_${folder} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(holdfast_${folder} PUBLIC ${arg_LINKS} PRIVATE holdfast_options ${arg_PRIVATE_LINKS})
endfunction()
