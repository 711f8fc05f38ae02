# Compiles options.cc without code: as it is it must compile, and each of its cases must fail by the
# call of that case, not by anything else.
set(cases "Send" "SendOptions" "Read" "Recv" "Send" "Recv" "Notify")  # named by the error, from 1

function(compile case)
  execute_process(
    COMMAND "${CXX}" -std=c++20 -fsyntax-only "-I${SOURCE_DIR}" "-I${GENERATED_DIR}"
            -DCASE=${case} "${CMAKE_CURRENT_LIST_DIR}/options.cc"
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(result "${result}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

compile(0)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "options that apply do not compile:\n${output}")
endif()
set(case 0)
foreach(named IN LISTS cases)
  math(EXPR case "${case} + 1")
  compile(${case})
  if(result EQUAL 0)
    message(FATAL_ERROR "case ${case} compiles: an option that does not apply was accepted")
  endif()
  string(REGEX MATCHALL "error: [^\n]*" errors "${output}")
  list(LENGTH errors count)
  # g++ and clang++ name the verb, the options' type or the conversion that is missing.
  if(NOT count EQUAL 1 OR NOT errors MATCHES "${named}|[Nn]o matching")
    message(FATAL_ERROR "case ${case} fails, but not by an option of ${named}:\n${output}")
  endif()
endforeach()
