# CPack runs this before it packs: Debian's zsh looks for packages' completions in a folder of its own.
if(CPACK_GENERATOR STREQUAL "DEB")
  file(GLOB_RECURSE completions "${CPACK_TEMPORARY_DIRECTORY}/*/share/zsh/site-functions/_*")
  foreach(completion IN LISTS completions)
    cmake_path(GET completion PARENT_PATH functions)
    cmake_path(REPLACE_FILENAME functions "vendor-completions" OUTPUT_VARIABLE folder)
    file(RENAME "${functions}" "${folder}")
  endforeach()
endif()
