# Finds LibTorch and makes the targets LibTorch::cpu and, where its CUDA libraries are, LibTorch::cuda.
# Looks in: LIBTORCH (CMake variable or environment), the project's .venv, CMAKE_PREFIX_PATH. Replaces
# LibTorch's own TorchConfig.cmake, which needs a CUDA toolkit, carries absolute paths of its build machine and
# lets the linker drop libtorch_cuda.
#
# Sets LibTorch_FOUND, LibTorch_VERSION, LibTorch_ROOT (the folder with include/ and lib/).
include(FindPackageHandleStandardArgs)

set(_libtorch_hints ${LIBTORCH} $ENV{LIBTORCH})
if(NOT _libtorch_hints)
  file(GLOB _libtorch_hints ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()
find_path(LibTorch_ROOT NAMES lib/libtorch_cpu.so HINTS ${_libtorch_hints} PATH_SUFFIXES libtorch torch NO_CACHE)

if(LibTorch_ROOT)
  foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h torch/version.h)
    if(EXISTS ${LibTorch_ROOT}/include/${_header})
      file(STRINGS ${LibTorch_ROOT}/include/${_header} _line REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" LibTorch_VERSION "${_line}")
      if(LibTorch_VERSION)
        break()
      endif()
    endif()
  endforeach()
endif()
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_ROOT VERSION_VAR LibTorch_VERSION)

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION ${LibTorch_ROOT}/lib/libc10.so)
  add_library(LibTorch::cpu SHARED IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES
    IMPORTED_LOCATION ${LibTorch_ROOT}/lib/libtorch_cpu.so
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_ROOT}/include;${LibTorch_ROOT}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES LibTorch::c10
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined")
endif()
