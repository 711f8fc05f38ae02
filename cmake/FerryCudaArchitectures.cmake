# What device code is made for, as entries of CMAKE_CUDA_ARCHITECTURES.
include_guard(GLOBAL)

# Releases: every GPU from 8.0 on, and PTX for those that come later. Forms with wgmma are compiled for
# 90a only. 100 and 120 without "a" run on 10.3 and 12.1, too.
set(FERRY_CUDA_RELEASE_ARCHITECTURES 80 86-real 89-real 90a-real 100-real 120)
# Where there is no GPU: 8.0 and 9.0 as machine code, the others by PTX.
set(FERRY_CUDA_USUAL_ARCHITECTURES 80 90a-real)

# The entries for GPUs of these compute capabilities ("9.0"), each once. Kernels do not compile for those
# before 8.0, which are left out.
function(ferry_cuda_targets_of variable)
  set(targets "")
  foreach(capability IN LISTS ARGN)
    string(STRIP "${capability}" capability)
    if(capability STREQUAL "9.0")
      list(APPEND targets 90a-real)
    elseif(capability MATCHES "^([89]|[1-9][0-9])[.]([0-9])$")
      list(APPEND targets ${CMAKE_MATCH_1}${CMAKE_MATCH_2}-real)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES targets)
  set(${variable} "${targets}" PARENT_SCOPE)
endfunction()

# The compute capabilities of this machine's GPUs; empty where nvidia-smi is missing or fails.
function(ferry_cuda_capabilities variable)
  set(${variable} "" PARENT_SCOPE)
  find_program(FERRY_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(FERRY_NVIDIA_SMI)
  if(FERRY_NVIDIA_SMI)
    execute_process(COMMAND "${FERRY_NVIDIA_SMI}" --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE capabilities RESULT_VARIABLE failed ERROR_QUIET TIMEOUT 60
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT failed)
      string(REPLACE "\n" ";" capabilities "${capabilities}")
      set(${variable} "${capabilities}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# `wanted` is AUTO, RELEASE, or entries, which are returned as they are. Others stop: `ferry info` reads
# the entries to tell which GPUs have code, so names as "native" cannot be taken.
function(ferry_cuda_architectures variable wanted)
  if(wanted STREQUAL "RELEASE")
    set(wanted ${FERRY_CUDA_RELEASE_ARCHITECTURES})
  elseif(wanted STREQUAL "AUTO")
    ferry_cuda_capabilities(capabilities)
    ferry_cuda_targets_of(wanted ${capabilities})
    if(NOT wanted)
      set(wanted ${FERRY_CUDA_USUAL_ARCHITECTURES})
    endif()
  endif()
  foreach(target IN LISTS wanted)
    if(NOT target MATCHES "^[0-9][0-9]+a?(-real|-virtual)?$")
      message(FATAL_ERROR "FERRY_CUDA_ARCH has '${target}'; it can be AUTO, RELEASE, or entries as "
                          "86-real (machine code), 80-virtual (PTX), 80 (both) and 90a-real")
    endif()
  endforeach()
  set(${variable} "${wanted}" PARENT_SCOPE)
endfunction()
