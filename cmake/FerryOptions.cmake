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
if(FERRY_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${FERRY_CCACHE}")
endif()

set(FERRY_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
if(FERRY_WERROR)
  list(APPEND FERRY_WARNINGS -Werror)
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
  add_compile_options(${FERRY_SANITIZE_FLAGS})
  add_link_options(${FERRY_SANITIZE_FLAGS})
  # g++ sees phantom uninitialised reads through the instrumentation.
  list(APPEND FERRY_WARNINGS -Wno-maybe-uninitialized)
endif()
