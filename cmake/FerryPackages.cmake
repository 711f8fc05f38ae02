# The archive and the Debian package of CPack, for builds that need nothing beyond glibc 2.34.
include_guard(GLOBAL)
if(NOT FERRY_ARCHIVES OR NOT PROJECT_IS_TOP_LEVEL OR NOT TARGET ferry)
  return()
endif()

# NOTICES and sbom.json say what the packages contain.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(ferry_notices "${PROJECT_BINARY_DIR}/notices")
set(ferry_notices_options --version "${PROJECT_VERSION}")
if(FERRY_HAVE_CUDA)
  cmake_path(GET CUDAToolkit_BIN_DIR PARENT_PATH ferry_toolkit)
  list(APPEND ferry_notices_options --cuda "${ferry_toolkit}")
endif()
if(FERRY_PYTHON)
  cmake_path(GET nanobind_DIR PARENT_PATH ferry_nanobind)
  list(APPEND ferry_notices_options --nanobind "${ferry_nanobind}")
endif()
add_custom_target(ferry_notices ALL
  COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/packaging/make_notices" ${ferry_notices_options}
          "${ferry_notices}"
  BYPRODUCTS "${ferry_notices}/NOTICES" "${ferry_notices}/sbom.json" COMMENT "" VERBATIM)
set(ferry_doc_dir "${CMAKE_INSTALL_DATADIR}/doc/tensorferry")
install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/LICENSE" "${ferry_notices}/NOTICES"
              "${ferry_notices}/sbom.json" DESTINATION "${ferry_doc_dir}")
# Where Debian's tools look for it.
install(FILES "${ferry_notices}/NOTICES" RENAME copyright DESTINATION "${ferry_doc_dir}")

set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME tensorferry)
set(CPACK_PACKAGE_VENDOR "Tensorferry")
set(CPACK_PACKAGE_CONTACT "Tensorferry maintainers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "moves tensors between GPUs of machines over TCP")
set(CPACK_PACKAGE_DESCRIPTION "The program ferry, the C++ library, and plug-ins for NCCL and NIXL. Nothing beyond
glibc is needed to run them; to link the library, OpenSSL and the CUDA toolkit are.")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGE_FILE_NAME "tensorferry-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packed")
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/debian_folders.cmake")
set(CPACK_THREADS 0)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.34)")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libssl-dev, bash-completion")
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
include(CPack)
