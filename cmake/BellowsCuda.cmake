# Decides whether the CUDA module is built. Sets BELLOWS_CUDA_WHY_NOT (a sentence; empty: it is built),
# BELLOWS_CUDA_ARCHITECTURES as CMake takes them and BELLOWS_CUDA_ARCH_WORDS as messages show them ("8.0 9.0+PTX").
# With BELLOWS_CUDA=ON the configure step stops where it cannot be built.
set(BELLOWS_CUDA_ARCHS "80;90" CACHE STRING
    "Compute capabilities times ten; a release takes 75;80;86;90;100;120. The last gets PTX too, for later devices")

# Where nvcc is looked for, besides PATH.
if(NOT DEFINED BELLOWS_CUDA_HINTS)
  set(BELLOWS_CUDA_HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
endif()

# CUDA major version LibTorch was built for; empty where it does not tell.
function(_bellows_libtorch_cuda_major result)
  set(${result} "" PARENT_SCOPE)
  foreach(file build-version version.py)
    if(EXISTS ${LibTorch_ROOT}/${file})
      file(STRINGS ${LibTorch_ROOT}/${file} line REGEX "[+]cu[0-9]+" LIMIT_COUNT 1)
      if("${line}" MATCHES "[+]cu([0-9]+)[0-9]")
        set(${result} ${CMAKE_MATCH_1} PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

# NVIDIA libraries that libtorch_cuda needs and that lie neither beside it nor in its Python environment.
function(_bellows_libtorch_cuda_missing result)
  set(missing "")
  foreach(library cublas cudnn cufft cusparse curand)
    file(GLOB found ${LibTorch_ROOT}/lib/lib${library}[.-]*so* ${LibTorch_ROOT}/../nvidia/*/lib/lib${library}.so*)
    if(NOT found)
      list(APPEND missing lib${library})
    endif()
  endforeach()
  list(JOIN missing ", " missing)
  set(${result} "${missing}" PARENT_SCOPE)
endfunction()

# CUDA major version of nvcc; empty where there is none.
function(_bellows_nvcc_major result)
  find_program(BELLOWS_NVCC nvcc HINTS ${BELLOWS_CUDA_HINTS})
  set(${result} "" PARENT_SCOPE)
  if(BELLOWS_NVCC)
    execute_process(COMMAND ${BELLOWS_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET)
    if(text MATCHES "release ([0-9]+)[.]")
      set(${result} ${CMAKE_MATCH_1} PARENT_SCOPE)
    endif()
  endif()
endfunction()

function(_bellows_cuda_why_not result)
  if(BELLOWS_CUDA STREQUAL "OFF")
    set(${result} "BELLOWS_CUDA is OFF" PARENT_SCOPE)
    return()
  elseif(NOT TARGET LibTorch::cuda)
    set(${result} "the LibTorch in ${LibTorch_ROOT} is a CPU build (no lib/libtorch_cuda.so); set LIBTORCH to the \
folder of one with CUDA, or pass -DBELLOWS_CUDA=OFF" PARENT_SCOPE)
    return()
  endif()
  _bellows_libtorch_cuda_missing(missing)
  _bellows_libtorch_cuda_major(wanted)
  _bellows_nvcc_major(nvcc)
  set(${result} "" PARENT_SCOPE)
  if(missing)
    set(${result} "the LibTorch in ${LibTorch_ROOT} lacks NVIDIA libraries that its CUDA part needs (${missing}); \
install it with its dependencies (`pip install torch`, without --no-deps)" PARENT_SCOPE)
  elseif(NOT nvcc)
    set(${result} "no nvcc; install the CUDA toolkit ${wanted}, or set CUDA_HOME to one" PARENT_SCOPE)
  elseif(wanted AND NOT nvcc EQUAL wanted)
    set(${result} "nvcc (${BELLOWS_NVCC}) is of CUDA ${nvcc}, LibTorch was built for CUDA ${wanted}; set CUDA_HOME to \
a toolkit ${wanted}" PARENT_SCOPE)
  endif()
endfunction()

_bellows_cuda_why_not(BELLOWS_CUDA_WHY_NOT)
if(BELLOWS_CUDA_WHY_NOT AND BELLOWS_CUDA STREQUAL "ON")
  message(FATAL_ERROR "BELLOWS_CUDA is ON, but the CUDA module cannot be built: ${BELLOWS_CUDA_WHY_NOT}.")
endif()
if(NOT BELLOWS_CUDA_WHY_NOT)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${BELLOWS_NVCC})
  endif()
  set(BELLOWS_CUDA_ARCHITECTURES ${BELLOWS_CUDA_ARCHS})
  list(POP_BACK BELLOWS_CUDA_ARCHITECTURES _last)
  list(TRANSFORM BELLOWS_CUDA_ARCHITECTURES APPEND "-real")
  list(APPEND BELLOWS_CUDA_ARCHITECTURES ${_last})  # without a suffix: kernels and PTX
  set(CMAKE_CUDA_ARCHITECTURES ${BELLOWS_CUDA_ARCHITECTURES})
  list(TRANSFORM BELLOWS_CUDA_ARCHS REPLACE "([0-9])$" ".\\1" OUTPUT_VARIABLE _words)
  list(JOIN _words " " BELLOWS_CUDA_ARCH_WORDS)
  string(APPEND BELLOWS_CUDA_ARCH_WORDS "+PTX")
endif()
