# Finds LibTorch and makes the targets LibTorch::cpu and, where its CUDA libraries are, LibTorch::cuda.
# Replaces LibTorch's own TorchConfig.cmake, which needs a CUDA toolkit with parts that newer toolkits lack
# (nvToolsExt), carries absolute paths of its build machine, and lets the linker drop libtorch_cuda.
#
# Takes the first LibTorch found in: LIBTORCH (CMake variable, else environment; nothing else is looked at when it
# is set), the project's .venv, CMAKE_PREFIX_PATH. One that cannot be used (incomplete, older than asked for, the
# other C++ ABI, no CUDA libraries where the component `cuda` is required) stops the configuration with one sentence.
#
# Sets LibTorch_FOUND, LibTorch_VERSION, LibTorch_ROOT (the folder with include/ and lib/), LibTorch_cuda_FOUND.

# Both targets stay among a program's needed libraries even where its own code calls nothing in them: a library
# that registers itself when loaded would be missing otherwise (libtorch_cuda), or not be found by the libraries
# that rely on it, since a program's run path is not theirs (libtorch_cpu).
set(CMAKE_LINK_LIBRARY_USING_LIBTORCH_NEEDED
    "LINKER:--push-state,--no-as-needed" "<LINK_ITEM>" "LINKER:--pop-state")
set(CMAKE_LINK_LIBRARY_USING_LIBTORCH_NEEDED_SUPPORTED TRUE)

# The folder of a LibTorch at or below `place`, or an empty string.
function(_libtorch_below place result)
  file(GLOB folders LIST_DIRECTORIES TRUE ${place} ${place}/libtorch ${place}/torch
       ${place}/lib/python3*/site-packages/torch)
  set(${result} "" PARENT_SCOPE)
  foreach(folder ${folders})
    if(EXISTS ${folder}/lib/libtorch_cpu.so OR EXISTS ${folder}/lib/libtorch.so)
      set(${result} ${folder} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Sets LibTorch_ROOT, and `looked` to the places looked at.
function(_libtorch_locate looked)
  if(NOT LIBTORCH AND NOT "$ENV{LIBTORCH}" STREQUAL "")
    # Kept, so that a later run of CMake without that environment takes the same one.
    set(LIBTORCH "$ENV{LIBTORCH}" CACHE PATH "Folder of the LibTorch to use" FORCE)
  endif()
  if(LIBTORCH)
    get_filename_component(places ${LIBTORCH} ABSOLUTE BASE_DIR ${CMAKE_BINARY_DIR})
    set(text "LIBTORCH (${LIBTORCH})")
  else()
    set(places ${CMAKE_SOURCE_DIR}/.venv ${CMAKE_PREFIX_PATH})
    string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
    list(APPEND places ${from_environment})
    list(JOIN places ", " text)
    set(text "LIBTORCH (not set), the project's .venv and CMAKE_PREFIX_PATH (${text})")
  endif()
  set(${looked} "${text}" PARENT_SCOPE)
  foreach(place ${places})
    _libtorch_below(${place} root)
    if(root)
      set(LibTorch_ROOT ${root} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

function(_libtorch_read_version)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS ${LibTorch_ROOT}/include/${header})
      file(STRINGS ${LibTorch_ROOT}/include/${header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      if("${lines}" MATCHES "MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+)")
        set(LibTorch_VERSION "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

# The value of _GLIBCXX_USE_CXX11_ABI that a library was built with, by its symbols; empty where they do not tell.
function(_libtorch_abi_of_library library result)
  set(${result} "" PARENT_SCOPE)
  file(STRINGS ${library} new REGEX "_ZN3c10.*NSt7__cxx1112basic_string" LIMIT_COUNT 1)
  file(STRINGS ${library} old REGEX "_ZN3c105ErrorC[12]E.*S[st]" LIMIT_COUNT 1)
  if(new)
    set(${result} 1 PARENT_SCOPE)
  elseif(old)
    set(${result} 0 PARENT_SCOPE)
  endif()
endfunction()

# The same of the compiler with the flags given here; empty where its standard library is another one.
function(_libtorch_abi_of_compiler result)
  separate_arguments(flags NATIVE_COMMAND "${CMAKE_CXX_FLAGS}")
  get_property(options DIRECTORY PROPERTY COMPILE_OPTIONS)
  get_property(definitions DIRECTORY PROPERTY COMPILE_DEFINITIONS)
  list(TRANSFORM definitions PREPEND -D)
  list(APPEND flags ${options} ${definitions})
  list(FILTER flags EXCLUDE REGEX "[$]<")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} ${flags} -E -dM -x c++ -include string /dev/null
                  OUTPUT_VARIABLE macros ERROR_QUIET)
  set(${result} "" PARENT_SCOPE)
  if(macros MATCHES "#define _GLIBCXX_USE_CXX11_ABI ([01])")
    set(${result} ${CMAKE_MATCH_1} PARENT_SCOPE)
  endif()
endfunction()

# Sets `result` to the reason why the LibTorch in LibTorch_ROOT cannot be used; to nothing where it can.
function(_libtorch_check result)
  set(missing "")
  foreach(file lib/libtorch_cpu.so lib/libc10.so include/ATen/core/Tensor.h include/torch/csrc/api/include/torch/nn.h)
    if(NOT EXISTS ${LibTorch_ROOT}/${file})
      list(APPEND missing ${file})
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
  set(other "set LIBTORCH to the folder of another one")
  if(missing)
    list(JOIN missing ", " missing)
    set(${result} "The LibTorch in ${LibTorch_ROOT} is incomplete: it lacks ${missing}. Install it again, or ${other}." PARENT_SCOPE)
    return()
  endif()
  if(NOT LibTorch_VERSION)
    set(${result} "The LibTorch in ${LibTorch_ROOT} does not tell its version (include/torch/headeronly/version.h). Install it again, or ${other}." PARENT_SCOPE)
    return()
  endif()
  if(LibTorch_VERSION VERSION_LESS "${LibTorch_FIND_VERSION}")
    set(${result} "The LibTorch in ${LibTorch_ROOT} is version ${LibTorch_VERSION}; ${LibTorch_FIND_VERSION} or newer is needed. Install a newer one, or ${other}." PARENT_SCOPE)
    return()
  endif()
  _libtorch_abi_of_library(${LibTorch_ROOT}/lib/libc10.so theirs)
  _libtorch_abi_of_compiler(ours)
  if(ours STREQUAL "")
    set(${result} "LibTorch is built with libstdc++, and ${CMAKE_CXX_COMPILER} with the flags given uses another C++ library. Take g++, or clang++ without -stdlib=libc++." PARENT_SCOPE)
    return()
  endif()
  if(NOT theirs STREQUAL "" AND NOT theirs EQUAL ours)
    set(${result} "The C++ ABI differs: the LibTorch in ${LibTorch_ROOT} was built with _GLIBCXX_USE_CXX11_ABI=${theirs}, this project is compiled with _GLIBCXX_USE_CXX11_ABI=${ours}. Compile with -D_GLIBCXX_USE_CXX11_ABI=${theirs}, or ${other}." PARENT_SCOPE)
    return()
  endif()
  if(LibTorch_FIND_REQUIRED_cuda AND NOT LibTorch_cuda_FOUND)
    set(${result} "CUDA is asked for, and the LibTorch in ${LibTorch_ROOT} is a CPU build (it has no lib/libtorch_cuda.so). Set LIBTORCH to the folder of one with CUDA, or build without CUDA." PARENT_SCOPE)
  endif()
endfunction()

unset(LibTorch_ROOT)
unset(LibTorch_VERSION)
_libtorch_locate(_libtorch_looked)
if(LibTorch_ROOT)
  _libtorch_read_version()
  set(LibTorch_cuda_FOUND FALSE)
  if(EXISTS ${LibTorch_ROOT}/lib/libtorch_cuda.so AND EXISTS ${LibTorch_ROOT}/lib/libc10_cuda.so)
    set(LibTorch_cuda_FOUND TRUE)
  endif()
  _libtorch_check(LibTorch_NOT_FOUND_MESSAGE)
else()
  set(LibTorch_NOT_FOUND_MESSAGE "LibTorch was not found. Looked for lib/libtorch_cpu.so in ${_libtorch_looked}. Run `make setup`, which puts one into .venv, or pass -DLIBTORCH=/path/to/libtorch.")
endif()

if(LibTorch_NOT_FOUND_MESSAGE)
  set(LibTorch_FOUND FALSE)
  if(LibTorch_FIND_REQUIRED)
    message(FATAL_ERROR "${LibTorch_NOT_FOUND_MESSAGE}")
  elseif(NOT LibTorch_FIND_QUIETLY)
    message(STATUS "${LibTorch_NOT_FOUND_MESSAGE}")
  endif()
  return()
endif()
set(LibTorch_FOUND TRUE)
if(NOT LibTorch_FIND_QUIETLY)
  message(STATUS "LibTorch ${LibTorch_VERSION} in ${LibTorch_ROOT}")
endif()
if(TARGET LibTorch::cpu)
  return()
endif()

# LibTorch::NAME wraps lib/libtorch_NAME.so, which relies on the target `base`.
function(_libtorch_target name base)
  add_library(LibTorch::torch_${name} SHARED IMPORTED)
  set_target_properties(LibTorch::torch_${name} PROPERTIES
    IMPORTED_LOCATION ${LibTorch_ROOT}/lib/libtorch_${name}.so
    INTERFACE_LINK_LIBRARIES ${base})
  add_library(LibTorch::${name} INTERFACE IMPORTED)
  set_target_properties(LibTorch::${name} PROPERTIES
    INTERFACE_LINK_LIBRARIES "$<LINK_LIBRARY:LIBTORCH_NEEDED,LibTorch::torch_${name}>")
endfunction()

add_library(LibTorch::c10 SHARED IMPORTED)
set_target_properties(LibTorch::c10 PROPERTIES
  IMPORTED_LOCATION ${LibTorch_ROOT}/lib/libc10.so
  INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_ROOT}/include;${LibTorch_ROOT}/include/torch/csrc/api/include")
_libtorch_target(cpu LibTorch::c10)
# A wheel keeps the libraries that LibTorch needs in other folders; LibTorch finds them itself when loaded.
set_property(TARGET LibTorch::c10 PROPERTY INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")

if(LibTorch_cuda_FOUND)
  add_library(LibTorch::c10_cuda SHARED IMPORTED)
  set_target_properties(LibTorch::c10_cuda PROPERTIES
    IMPORTED_LOCATION ${LibTorch_ROOT}/lib/libc10_cuda.so
    INTERFACE_LINK_LIBRARIES LibTorch::c10)
  _libtorch_target(cuda LibTorch::c10_cuda)
  set_property(TARGET LibTorch::cuda APPEND PROPERTY INTERFACE_LINK_LIBRARIES LibTorch::cpu)
  # The linker is to see the wheel's own libraries, not an older one of the system (NCCL).
  file(GLOB _libtorch_folders LIST_DIRECTORIES TRUE ${LibTorch_ROOT}/../nvidia/*/lib)
  foreach(_folder ${_libtorch_folders})
    get_filename_component(_folder ${_folder} REALPATH)
    set_property(TARGET LibTorch::c10_cuda APPEND PROPERTY INTERFACE_LINK_OPTIONS "LINKER:-rpath-link,${_folder}")
  endforeach()
  if(EXISTS ${LibTorch_ROOT}/../nvidia/nccl/include/nccl.h)
    set_property(TARGET LibTorch::c10_cuda PROPERTY
                 INTERFACE_INCLUDE_DIRECTORIES ${LibTorch_ROOT}/../nvidia/nccl/include)
  endif()
endif()
