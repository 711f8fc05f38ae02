# ferry_bundled_module(): a plug-in that is carried to machines with nothing of ours.
include_guard(GLOBAL)

# Archives, where there are any, before the shared libraries, of which then nothing is needed.
find_library(FERRY_SSL_ARCHIVE libssl.a)
find_library(FERRY_CRYPTO_ARCHIVE libcrypto.a)
set(ferry_bundled_ssl OpenSSL::SSL OpenSSL::Crypto)
if(FERRY_SSL_ARCHIVE AND FERRY_CRYPTO_ARCHIVE)
  set(ferry_bundled_ssl "${FERRY_SSL_ARCHIVE}" "${FERRY_CRYPTO_ARCHIVE}")
  # What the archive needs itself: in Debian 13 zlib and zstd.
  find_package(PkgConfig)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(FERRY_LIBCRYPTO QUIET libcrypto)
  endif()
  list(REMOVE_ITEM FERRY_LIBCRYPTO_STATIC_LIBRARIES ssl crypto dl pthread)
  foreach(needed IN LISTS FERRY_LIBCRYPTO_STATIC_LIBRARIES)
    find_library(FERRY_${needed}_ARCHIVE NAMES lib${needed}.a ${needed} REQUIRED)
    list(APPEND ferry_bundled_ssl "${FERRY_${needed}_ARCHIVE}")
  endforeach()
else()
  message(STATUS "Plug-ins need OpenSSL's shared libraries: there are no archives")
endif()

# A shared library of the objects of a target, of the layers as far as they are used, and of all
# that these need; it shows only the symbols in the EXPORTS file.
#
#   ferry_bundled_module(<name> OBJECTS <target> EXPORTS <file> LAYERS <layer>... [SOURCES <source>...]
#                        [LIBS <library>...])
function(ferry_bundled_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "OBJECTS;EXPORTS" "LAYERS;SOURCES;LIBS")
  # Endpoints choose their provider by a setting (ferry/net/choose_provider.cc).
  if("ferry_transfer" IN_LIST arg_LAYERS)
    list(APPEND arg_LAYERS ferry_tcpx)
    if(FERRY_TCPX)
      list(APPEND arg_LAYERS ferry_tcpx_unpack)
    endif()
  endif()
  # What fmt and spdlog have in shared libraries only.
  set(bundled "${PROJECT_SOURCE_DIR}/plugins/nccl/bundled.cc")
  add_library(${name} MODULE $<TARGET_OBJECTS:${arg_OBJECTS}> "${bundled}" ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES LINK_DEPENDS "${arg_EXPORTS}" LINKER_LANGUAGE CXX)
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}" "${FERRY_GENERATED_DIR}")
  # For their headers only: their code is in bundled.cc.
  target_compile_definitions(${name} PRIVATE SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL)
  set_source_files_properties("${bundled}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_dependencies(${name} ${arg_LAYERS})
  # By their files: as targets they would bring the shared libraries of fmt, spdlog and OpenSSL along.
  set(files ${arg_LAYERS})
  list(TRANSFORM files PREPEND "$<TARGET_FILE:")
  list(TRANSFORM files APPEND ">")
  target_link_libraries(${name} PRIVATE
    -Wl,--start-group ${files} ${ferry_bundled_ssl} ${arg_LIBS} -Wl,--end-group
    Threads::Threads ${CMAKE_DL_LIBS})
  # Threads of ours may be in it when its user unloads it, hence nodelete.
  target_link_options(${name} PRIVATE "-Wl,--version-script=${arg_EXPORTS}" -Wl,-z,nodelete
                                      -Wl,--gc-sections -Wl,--build-id=sha1)
  if(NOT FERRY_SANITIZE)
    # The sanitizers' functions are the program's, and their C++ library is shared.
    target_link_options(${name} PRIVATE -Wl,--no-undefined -static-libstdc++ -static-libgcc)
    target_sources(${name} PRIVATE "${PROJECT_SOURCE_DIR}/packaging/old_glibc.cc")
  endif()
  ferry_carry_commit(${name})
endfunction()
