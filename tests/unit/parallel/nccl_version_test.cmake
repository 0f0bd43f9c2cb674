# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=... -DFOLDER=<an empty folder> -P nccl_version_test.cmake: what the build of the GPU path says of a header and a
# library that are not of one version.
file(REMOVE_RECURSE ${FOLDER})
string(ASCII 127 binary)

# expect(<NCCL of the header> <NCCL of the library> <message, or "" if they are accepted>)
function(expect of_header of_library message)
  string(REPLACE "." ";" parts ${of_header})
  list(GET parts 0 major)
  list(GET parts 1 minor)
  list(GET parts 2 patch)
  file(WRITE ${FOLDER}/nccl.h "#define NCCL_MAJOR ${major}\n#define NCCL_MINOR ${minor}\n#define NCCL_PATCH ${patch}\n")
  file(WRITE ${FOLDER}/libnccl.so.2 "${binary}ELF ${binary} on NCCL version info${binary}NCCL version ${of_library}+cuda13.0${binary}")
  file(WRITE ${FOLDER}/configure.cmake "include(${SOURCE}/cmake/HoldfastNcclVersion.cmake)
holdfast_require_nccl_versions_agree(${FOLDER}/nccl.h ${FOLDER}/libnccl.so.2)\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -P ${FOLDER}/configure.cmake RESULT_VARIABLE code ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  if(message STREQUAL "" AND NOT code EQUAL 0)
    message(SEND_ERROR "header ${of_header} and library ${of_library} are refused: ${said}")
  elseif(NOT message STREQUAL "" AND (code EQUAL 0 OR NOT said MATCHES "${message}"))
    message(SEND_ERROR "header ${of_header} and library ${of_library}: code ${code}, ${said}")
  endif()
endfunction()

expect(2.30.7 2.30.7 "")
expect(2.30.7 2.28.9 "is of NCCL '2.30.7', but .* of '2.28.9'.*HOLDFAST_NCCL_ROOT")
expect(2.30.7 2.30.70 "is of NCCL '2.30.7', but")
expect(2.26.2 2.26.2 "needs 2.27 or newer")
