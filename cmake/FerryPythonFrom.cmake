# Makes a Python package of what another build has compiled: for tests of that build, and for wheels.
include_guard(GLOBAL)

set(FERRY_PYTHON_FROM "" CACHE PATH
    "A build whose Python module and plug-ins are installed; nothing is built")
option(FERRY_PYTHON_STABLE_ABI "With FERRY_PYTHON_FROM: the module of Python's stable ABI" OFF)
set(FERRY_PYTHON_NOTICES "" CACHE PATH
    "With FERRY_PYTHON_FROM: a folder with NOTICES and sbom.json; makes a whole wheel, with the program")
# scikit-build-core cannot install the contents of a folder beside the package.
set(ferry_beside "${PROJECT_SOURCE_DIR}/python/beside")
install(FILES "${ferry_beside}/_tensorferry_nanovllm.py" "${ferry_beside}/tensorferry_nanovllm.pth"
        DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
if(NOT FERRY_PYTHON_FROM)
  return()
endif()

# Installs a file of that build; where it is missing stops, and names the target that makes it.
function(ferry_install_built file target destination)
  if(NOT EXISTS "${file}")
    message(FATAL_ERROR "${file} does not exist; build the target ${target} there")
  endif()
  install(PROGRAMS "${file}" DESTINATION "${destination}" COMPONENT python)
  if(FERRY_PYTHON_NOTICES)
    cmake_path(GET file FILENAME name)
    set(installed "${destination}/${name}")
    if(NOT IS_ABSOLUTE "${destination}")
      string(PREPEND installed "\${CMAKE_INSTALL_PREFIX}/")
    endif()
    # Its debugging information is an artefact of its own.
    install(CODE "execute_process(COMMAND \"${CMAKE_STRIP}\" \"${installed}\" COMMAND_ERROR_IS_FATAL ANY)"
            COMPONENT python)
  endif()
endfunction()

set(ferry_module_pattern "_core.cpython*.so")
if(FERRY_PYTHON_STABLE_ABI)
  set(ferry_module_pattern "_core.abi3.so")
endif()
file(GLOB ferry_module "${FERRY_PYTHON_FROM}/layers/python/tensorferry/${ferry_module_pattern}")
if(NOT ferry_module)
  message(FATAL_ERROR "${FERRY_PYTHON_FROM} has no Python module; configure it with FERRY_PYTHON=ON")
endif()
ferry_install_built("${ferry_module}" ferry_python tensorferry)
ferry_install_built("${FERRY_PYTHON_FROM}/nixl/libplugin_FERRY.so" ferry_nixl_plugin tensorferry/nixl_plugin)
if(FERRY_PYTHON_NOTICES OR EXISTS "${FERRY_PYTHON_FROM}/libnccl-net-ferry.so")
  ferry_install_built("${FERRY_PYTHON_FROM}/libnccl-net-ferry.so" ferry_nccl_plugin tensorferry/nccl_plugin)
endif()
if(FERRY_PYTHON_NOTICES)
  ferry_install_built("${FERRY_PYTHON_FROM}/ferry" ferry "${SKBUILD_SCRIPTS_DIR}")
  install(FILES "${FERRY_PYTHON_NOTICES}/NOTICES" DESTINATION "${SKBUILD_METADATA_DIR}/licenses" COMPONENT python)
  install(FILES "${FERRY_PYTHON_NOTICES}/sbom.json" DESTINATION "${SKBUILD_METADATA_DIR}/sboms" COMPONENT python)
endif()
foreach(target ferry_python ferry_nixl_plugin)
  add_custom_target(${target})
endforeach()
