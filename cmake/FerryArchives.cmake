# Links static archives where Debian has shared libraries, for programs and modules that run where
# none of these is installed.
include_guard(GLOBAL)

# The headers stay those of the system, so that a build with archives compiles the same as one
# without; packaging/build_libs makes archives of the same versions.
if(FERRY_ARCHIVES)
  foreach(pair "fmt::fmt=fmt" "spdlog::spdlog=spdlog" "ISAL::ISAL=isal" "prometheus-cpp::core=prometheus-cpp-core"
               "prometheus-cpp::pull=prometheus-cpp-pull")
    string(REPLACE "=" ";" pair "${pair}")
    list(GET pair 0 target)
    list(GET pair 1 archive)
    set(file "${FERRY_ARCHIVES}/lib${archive}.a")
    if(NOT EXISTS "${file}")
      message(FATAL_ERROR "${file} does not exist; packaging/build_libs makes it")
    endif()
    if(TARGET ${target})
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${file}" IMPORTED_SONAME "")
      get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
      foreach(configuration IN LISTS configurations)
        if(configuration)
          set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${configuration} "${file}"
                                                     IMPORTED_SONAME_${configuration} "")
        endif()
      endforeach()
      list(APPEND ferry_archives "${file}")
    endif()
  endforeach()
  if(TARGET prometheus-cpp::pull)
    # What it has inside as a shared library.
    set(civetweb "${FERRY_ARCHIVES}/libcivetweb-cpp.a" "${FERRY_ARCHIVES}/libcivetweb.a")
    set_property(TARGET prometheus-cpp::pull APPEND PROPERTY INTERFACE_LINK_LIBRARIES ${civetweb} ${CMAKE_DL_LIBS} rt)
    list(APPEND ferry_archives ${civetweb})
  endif()
  message(STATUS "Archives: those in ${FERRY_ARCHIVES}")
endif()

# Makes a program or module need nothing beyond glibc 2.34, where archives are asked for. With EXPORTS
# it shows only the symbols in that file, and needs libgcc_s, which every glibc system has: exceptions of
# ops are caught by torch, and an unwinder of its own aborts in torch's frames.
function(ferry_link_statically name)
  if(NOT FERRY_ARCHIVES OR FERRY_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "EXPORTS" "")
  target_sources(${name} PRIVATE "${PROJECT_SOURCE_DIR}/packaging/old_glibc.cc")
  # It finds no library by its own path, and wheels copy it from the build tree.
  set_target_properties(${name} PROPERTIES SKIP_BUILD_RPATH ON)
  target_link_options(${name} PRIVATE -static-libstdc++ -Wl,--gc-sections -Wl,--build-id=sha1)
  if(NOT arg_EXPORTS)
    target_link_options(${name} PRIVATE -static-libgcc)
  else()
    target_link_options(${name} PRIVATE "-Wl,--version-script=${arg_EXPORTS}")
    set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS "${arg_EXPORTS}")
  endif()
endfunction()
