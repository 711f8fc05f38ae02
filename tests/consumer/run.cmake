# Installs the build in BUILD_DIR into a scratch prefix, then builds this folder and
# examples/cpp against it and runs them, as a user of the package would. STANDIN: that for
# GPUDirect-TCPX.
set(scratch "${BUILD_DIR}/consumer")
file(REMOVE_RECURSE "${scratch}")

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${scratch}/prefix")
function(build source binary)
  run("${CMAKE_COMMAND}" -S "${source}" -B "${binary}" -G "${GENERATOR}"
      "-DCMAKE_CXX_COMPILER=${CXX}"
      "-DCMAKE_PREFIX_PATH=${scratch}/prefix")
  run("${CMAKE_COMMAND}" --build "${binary}")
endfunction()

build("${CMAKE_CURRENT_LIST_DIR}" "${scratch}/build")
run("${scratch}/build/consumer")
build("${CMAKE_CURRENT_LIST_DIR}/../../examples/cpp" "${scratch}/examples")
run("${scratch}/examples/write")
set(ENV{FERRY_DEVICES} simulated:2)
run("${scratch}/examples/write_gpu")
run("${scratch}/examples/pipeline")
run("${scratch}/examples/add_gelu")
# Without devices both say so.
set(ENV{FERRY_DEVICES} none)
foreach(example write_gpu pipeline add_gelu)
  execute_process(COMMAND "${scratch}/examples/${example}" RESULT_VARIABLE result
                  ERROR_VARIABLE said)
  if(NOT result EQUAL 77 OR NOT said MATCHES "skipped: .*devices=none")
    message(FATAL_ERROR "${example} without devices: ${result}, ${said}")
  endif()
endforeach()
# The handle goes through the pipe. Without a GPU the first two are skipped.
set(receive "${scratch}/examples/tcpx_receive" receive "${STANDIN}")
set(send "${scratch}/examples/tcpx_receive" send "${STANDIN}")
set(ENV{NCCL_DYNAMIC_CHUNK_SIZE} 524288)
set(ENV{FERRY_DEVICES} auto)
set(ENV{FERRY_STANDIN_GPU} 1)
execute_process(COMMAND ${receive} COMMAND ${send} RESULTS_VARIABLE results)
if(NOT results STREQUAL "0;0" AND NOT results STREQUAL "77;77")
  message(FATAL_ERROR "tcpx_receive on a GPU: ${results}")
endif()
set(ENV{FERRY_DEVICES} simulated:1:1:open)
set(ENV{FERRY_STANDIN_GPU} 0)
run(${receive} COMMAND ${send})
