include_guard(GLOBAL)

# Makes ferry/kernels.h, all ops in one header, of the contract that each op has in its folder
# (ferry/kernels/<op>/<op>.h). It is made, not written, so that an op stays one folder and installs
# no header of its own; it is a concatenation, not a list of #includes, so that it needs none.
file(GLOB ferry_op_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/ferry/kernels/*/*.h")
set(ferry_kernels_text "// Made from ferry/kernels/<op>/<op>.h: the ops, for programs outside of this tree.
#pragma once
#include \"ferry/core/result.h\"
#include \"ferry/cuda/device_api.h\"
#include \"ferry/kernels/tensor.h\"
")
foreach(header IN LISTS ferry_op_headers)
  cmake_path(GET header STEM stem)
  cmake_path(GET header PARENT_PATH folder)
  cmake_path(GET folder FILENAME op)
  if(NOT stem STREQUAL op)
    continue()
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
  file(READ "${header}" text)
  string(REGEX REPLACE "#(pragma once|include \"ferry/[^\n]*)\n" "" text "${text}")
  string(APPEND ferry_kernels_text "\n// ---- ${op}\n\n${text}")
endforeach()

set(ferry_kernels_header "${FERRY_GENERATED_DIR}/ferry/kernels.h")
set(ferry_kernels_old "")
if(EXISTS "${ferry_kernels_header}")
  file(READ "${ferry_kernels_header}" ferry_kernels_old)
endif()
if(NOT ferry_kernels_old STREQUAL ferry_kernels_text)
  file(WRITE "${ferry_kernels_header}" "${ferry_kernels_text}")
endif()
