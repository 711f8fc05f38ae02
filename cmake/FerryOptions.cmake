# Build type, compiler warnings, sanitizers and caches for all targets.
include_guard(GLOBAL)
include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

find_program(FERRY_CCACHE ccache)
set(ferry_ccache_launcher "${FERRY_CCACHE}")
if(FERRY_CCACHE AND SKBUILD AND NOT DEFINED ENV{CCACHE_BASEDIR})
  # `pip install .` has no script that sets these, as scripts/test does for the presets.
  set(ferry_ccache_launcher "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
                            "${FERRY_CCACHE}")
endif()
if(FERRY_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ferry_ccache_launcher})
endif()

set(FERRY_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
# -Wpedantic rejects the code that nvcc passes to g++.
set(FERRY_CUDA_WARNINGS -Xcompiler=-Wall,-Wextra,-Wshadow -Xptxas=--warn-on-spills)
if(FERRY_WERROR)
  list(APPEND FERRY_WARNINGS -Werror)
  list(APPEND FERRY_CUDA_WARNINGS -Werror=all-warnings -Xptxas=--warning-as-error)
endif()

# The presets compile up to 16 files of a target as one, because most of what a file costs is its headers.
# So what is in anonymous namespaces has names that are unique in a layer, its tests, and its testing/.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ takes every file but the outermost for a header, and an anonymous namespace there for a slip.
  list(APPEND FERRY_WARNINGS -Wno-subobject-linkage)
endif()

set(FERRY_SANITIZE_FLAGS "")
if(FERRY_SANITIZE STREQUAL "address")
  set(FERRY_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=all
      -fno-omit-frame-pointer)
elseif(FERRY_SANITIZE STREQUAL "thread")
  set(FERRY_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
elseif(FERRY_SANITIZE)
  message(FATAL_ERROR "FERRY_SANITIZE is '${FERRY_SANITIZE}'; it can be empty, address or thread")
endif()
if(FERRY_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${FERRY_SANITIZE_FLAGS}>")
  add_link_options(${FERRY_SANITIZE_FLAGS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ sees phantom uninitialised reads through the instrumentation.
    list(APPEND FERRY_WARNINGS -Wno-maybe-uninitialized)
  endif()
endif()

if(FERRY_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "FERRY_FUZZ needs clang++; use the preset fuzz")
  endif()
  # Tells the fuzzer which code an input reaches.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
