# bellows_module(NAME SOURCES a.cpp … HEADERS a.h … [INTERNAL b.h …] [LIBS lib …])
# Adds one module's files to the library: to `bellows_core` for core, to `bellows` for all others. Headers
# become part of the installed file set, each checked to compile on its own (target all_verify_interface_header_sets);
# internal ones are only for this module's own sources.
function(bellows_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;HEADERS;INTERNAL;LIBS" ${ARGN})
  if(name STREQUAL "core")
    set(target bellows_core)
  else()
    set(target bellows)
  endif()
  target_sources(${target} PRIVATE ${arg_SOURCES})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${arg_HEADERS})
  target_link_libraries(${target} PRIVATE ${arg_LIBS})
  bellows_list_files(public ${arg_HEADERS})
  bellows_list_files(internal ${arg_INTERNAL})
endfunction()

# bellows_tests(MODULE a_test.cpp … [LIBS lib …] [LABELS l …] [TORCH_NN])
# One test program per module, one ctest entry per test case. With TORCH_NN, torch/nn.h is precompiled.
function(bellows_tests module)
  cmake_parse_arguments(arg "TORCH_NN" "" "LIBS;LABELS" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS cpu)
  endif()
  set(target ${module}_tests)
  add_executable(${target} ${arg_UNPARSED_ARGUMENTS})
  bellows_list_files(test ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE bellows bellows_test_main ${arg_LIBS})
  if(arg_TORCH_NN)
    target_precompile_headers(${target} PRIVATE <torch/nn.h>)
  endif()
  gtest_discover_tests(${target} TEST_PREFIX "${module}." DISCOVERY_MODE PRE_TEST
                       PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 300)
endfunction()

# bellows_programs(DIRECTORY): gathers the programs defined there under the target `programs`, to be built
# alone (`make demo`) and to be installed.
function(bellows_programs directory)
  add_custom_target(programs)
  get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      add_dependencies(programs ${target})
      set_property(GLOBAL APPEND PROPERTY BELLOWS_PROGRAMS ${target})
    endif()
  endforeach()
endfunction()

# Files that tools/check_layering.py compares with those on disk: written to listed_files.txt of the build folder
# as `KIND path`.
function(bellows_list_files kind)
  foreach(file ${ARGN})
    file(REAL_PATH ${file} file)
    file(RELATIVE_PATH file ${PROJECT_SOURCE_DIR} ${file})
    set_property(GLOBAL APPEND_STRING PROPERTY BELLOWS_LISTED "${kind} ${file}\n")
  endforeach()
endfunction()

function(bellows_write_listed_files)
  get_property(listed GLOBAL PROPERTY BELLOWS_LISTED)
  file(WRITE ${PROJECT_BINARY_DIR}/listed_files.txt "${listed}")
endfunction()
