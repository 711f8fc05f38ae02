# Makes the library tensorferry of all layers, and installs it with headers, programs and package.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)
include(FerryKernelsHeader)

get_property(ferry_layers GLOBAL PROPERTY FERRY_LAYERS)
get_property(ferry_headers GLOBAL PROPERTY FERRY_HEADERS)
get_property(ferry_libs GLOBAL PROPERTY FERRY_LIBS)
list(REMOVE_DUPLICATES ferry_libs)

set(ferry_objects "")
foreach(layer IN LISTS ferry_layers)
  get_target_property(type ${layer} TYPE)
  if(NOT type STREQUAL "INTERFACE_LIBRARY")
    list(APPEND ferry_objects "$<TARGET_OBJECTS:${layer}>")
  endif()
endforeach()

add_library(tensorferry STATIC ${ferry_objects})
add_library(tensorferry::tensorferry ALIAS tensorferry)
# That a header can be included alone shows where the first thing that its source includes is it: such
# headers need no compilation of their own (in builds that do not unite the library's sources). This is
# looked up when configuring; scripts/check_layers.py sees to it that it stays so.
set(ferry_shown_headers "")
foreach(header IN LISTS ferry_headers)
  string(REGEX REPLACE "\\.h$" ".cc" source "${header}")
  cmake_path(RELATIVE_PATH header BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE included)
  if(NOT CMAKE_UNITY_BUILD AND EXISTS "${source}")
    file(STRINGS "${source}" includes REGEX "^#include " LIMIT_COUNT 1)
    if(includes STREQUAL "#include \"${included}\"")
      list(APPEND ferry_shown_headers "${header}")
    endif()
  endif()
endforeach()
list(REMOVE_ITEM ferry_headers ${ferry_shown_headers})
set_target_properties(tensorferry PROPERTIES LINKER_LANGUAGE CXX)
target_compile_features(tensorferry PUBLIC cxx_std_20)
set(ferry_linked_libs ${ferry_libs})
if(FERRY_ARCHIVES)
  # They become part of the library, so its users need none of them.
  list(REMOVE_ITEM ferry_linked_libs fmt::fmt spdlog::spdlog ISAL::ISAL prometheus-cpp::pull)
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/merge.mri" CONTENT
"CREATE $<TARGET_FILE:tensorferry>.merged
ADDLIB $<TARGET_FILE:tensorferry>
ADDLIB $<JOIN:${ferry_archives},
ADDLIB >
SAVE
END
")
  # Debugging information would be most of it.
  add_custom_command(TARGET tensorferry POST_BUILD
    COMMAND sh -c "\"$1\" -M <\"$2\" && \"$3\" --strip-debug \"$4.merged\" && mv \"$4.merged\" \"$4\""
            merge "${CMAKE_AR}" "${PROJECT_BINARY_DIR}/merge.mri" "${CMAKE_STRIP}" "$<TARGET_FILE:tensorferry>"
    VERBATIM)
endif()
target_link_libraries(tensorferry PUBLIC ${ferry_linked_libs})
# What is installed. Two sets, because the base directories of one set may not contain each other.
set(ferry_generated_headers ferry/core/version.h ferry/kernels.h)
file(STRINGS "${PROJECT_SOURCE_DIR}/cmake/public_headers.txt" ferry_public_headers REGEX "^ferry/")
file(STRINGS "${PROJECT_SOURCE_DIR}/cmake/public_device_headers.txt" ferry_device_headers
     REGEX "^ferry/")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             "${PROJECT_SOURCE_DIR}/cmake/public_headers.txt"
             "${PROJECT_SOURCE_DIR}/cmake/public_device_headers.txt")
list(REMOVE_ITEM ferry_public_headers ${ferry_generated_headers})
if(NOT FERRY_TCPX)
  list(FILTER ferry_public_headers EXCLUDE REGEX "^ferry/tcpx/")
endif()
if(NOT FERRY_KERNELS)
  list(FILTER ferry_public_headers EXCLUDE REGEX "^ferry/kernels/")
  list(REMOVE_ITEM ferry_generated_headers ferry/kernels.h)
endif()
list(APPEND ferry_public_headers ${ferry_device_headers})
list(TRANSFORM ferry_public_headers PREPEND "${PROJECT_SOURCE_DIR}/")
list(TRANSFORM ferry_generated_headers PREPEND "${FERRY_GENERATED_DIR}/")
target_sources(tensorferry PUBLIC
               FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ferry_public_headers}
               FILE_SET generated_headers TYPE HEADERS BASE_DIRS "${FERRY_GENERATED_DIR}"
               FILES ${ferry_generated_headers})

# All headers, installed or not, and in unity builds, where each would need a compilation, those that are
# installed: a target that only the test headers.self_contained builds.
if(CMAKE_UNITY_BUILD)
  set(ferry_headers ${ferry_public_headers})
  list(FILTER ferry_headers EXCLUDE REGEX "\\.cuh$")  # nvcc compiles them
endif()
add_library(ferry_all_headers INTERFACE)
target_link_libraries(ferry_all_headers INTERFACE tensorferry)
set_target_properties(ferry_all_headers PROPERTIES
  VERIFY_INTERFACE_HEADER_SETS ON
  INTERFACE_HEADER_SETS_TO_VERIFY "HEADERS;generated_headers")
target_sources(ferry_all_headers INTERFACE
               FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}"
               FILES ${ferry_headers} "${PROJECT_SOURCE_DIR}/ferry/ferry.h"
               FILE_SET generated_headers TYPE HEADERS BASE_DIRS "${FERRY_GENERATED_DIR}"
               FILES ${ferry_generated_headers})

set(ferry_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Tensorferry")
install(TARGETS tensorferry EXPORT TensorferryTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILE_SET generated_headers DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT TensorferryTargets NAMESPACE tensorferry:: DESTINATION "${ferry_package_dir}")
if(TARGET ferry)
  install(TARGETS ferry RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/TensorferryConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/TensorferryConfig.cmake"
                              INSTALL_DESTINATION "${ferry_package_dir}"
                              NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/TensorferryConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/TensorferryConfig.cmake"
              "${PROJECT_BINARY_DIR}/TensorferryConfigVersion.cmake"
        DESTINATION "${ferry_package_dir}")
if(NOT FERRY_ARCHIVES)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/FindISAL.cmake" DESTINATION "${ferry_package_dir}")
endif()
include(FerryPkgConfig)
