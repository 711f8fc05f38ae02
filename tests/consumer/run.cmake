# Installs the build in BUILD_DIR into a scratch prefix, then builds this folder and
# examples/cpp against it and runs them, as a user of the package would.
set(scratch "${BUILD_DIR}/consumer")
file(REMOVE_RECURSE "${scratch}")

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${scratch}/prefix")
function(build source binary)
  run("${CMAKE_COMMAND}" -S "${source}" -B "${binary}" -G "${GENERATOR}"
      "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_CXX_FLAGS=${FLAGS}"
      "-DCMAKE_PREFIX_PATH=${scratch}/prefix")
  run("${CMAKE_COMMAND}" --build "${binary}")
endfunction()

build("${CMAKE_CURRENT_LIST_DIR}" "${scratch}/build")
run("${scratch}/build/consumer")
build("${CMAKE_CURRENT_LIST_DIR}/../../examples/cpp" "${scratch}/examples")
run("${scratch}/examples/write")
