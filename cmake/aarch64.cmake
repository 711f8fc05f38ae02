# Toolchain file that compiles for 64-bit Arm on another processor, by Debian's g++-aarch64-linux-gnu:
#
#   cmake --preset release --toolchain cmake/aarch64.cmake -DFERRY_SYSROOT=FOLDER -DFERRY_CUDA=OFF
#
# FERRY_SYSROOT has Debian's arm64 packages of what the build requires, unpacked (scripts/test_aarch64
# makes such a folder). Programs run by qemu-user-static, where that is installed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

if(NOT FERRY_SYSROOT)
  message(FATAL_ERROR "FERRY_SYSROOT is empty; set it to a folder with Debian's arm64 packages unpacked")
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FERRY_SYSROOT)
set(CMAKE_SYSROOT "${FERRY_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# Packages of this machine's processor do not count.
set(ENV{PKG_CONFIG_LIBDIR} "${FERRY_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${FERRY_SYSROOT}/usr/share/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${FERRY_SYSROOT}")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L "${FERRY_SYSROOT}")
