# Installs tensorferry.pc, for builds that use pkg-config.
include_guard(GLOBAL)

set(ferry_pc_requires "libssl libcrypto")
set(ferry_pc_libs "-lstdc++ -ldl -lrt -lpthread")
if(NOT FERRY_ARCHIVES)
  string(APPEND ferry_pc_requires " spdlog fmt libisal")
  if(prometheus-cpp_FOUND)
    string(APPEND ferry_pc_requires " prometheus-cpp-pull")
  endif()
endif()
# The variable can be set by its user: pkg-config --define-variable=cudalibdir=DIR.
if(FERRY_HAVE_CUDA)
  set(ferry_pc_libs "-L\${cudalibdir} -lcudart_static ${ferry_pc_libs}")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/tensorferry.pc.in" "${PROJECT_BINARY_DIR}/tensorferry.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/tensorferry.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
