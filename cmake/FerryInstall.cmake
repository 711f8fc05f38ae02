include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

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
set_target_properties(tensorferry PROPERTIES LINKER_LANGUAGE CXX VERIFY_INTERFACE_HEADER_SETS ON)
target_compile_features(tensorferry PUBLIC cxx_std_20)
target_link_libraries(tensorferry PUBLIC ${ferry_libs})
# Two sets, because the base directories of one set may not contain each other.
target_sources(tensorferry PUBLIC
               FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ferry_headers}
               FILE_SET generated_headers TYPE HEADERS BASE_DIRS "${FERRY_GENERATED_DIR}"
               FILES "${FERRY_GENERATED_DIR}/ferry/core/version.h")

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
              "${PROJECT_SOURCE_DIR}/cmake/FindISAL.cmake"
        DESTINATION "${ferry_package_dir}")
