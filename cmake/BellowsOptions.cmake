# Options of the build, and the compiler's settings that all targets share.
option(BELLOWS_BUILD_TESTS "Build the tests" ON)
option(BELLOWS_BUILD_BENCHMARKS "Build the benchmarks" OFF)
option(BELLOWS_WERROR "Treat warnings as errors" OFF)
option(BELLOWS_PRECOMPILE "Read LibTorch's common headers once; OFF finds sources that lack an include" ON)
option(BELLOWS_UNITY "Compile sources of a module several at a time: half the time for all of them; OFF finds sources that lean on others" ON)
set(BELLOWS_CUDA "AUTO" CACHE STRING "Build the CUDA module: AUTO (where possible), ON or OFF")
set_property(CACHE BELLOWS_CUDA PROPERTY STRINGS AUTO ON OFF)
set(BELLOWS_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")
if(NOT BELLOWS_MODULES)  # a shorter list, without the upper ones, is for checks of the lower ones
  set(BELLOWS_MODULES core formats tree device data nn optim amp checkpoint memory parallel nodes train)
endif()
set(BELLOWS_LIBTORCH_MINIMUM 2.11)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
# Installed programs and libraries find each other wherever the folder is moved to.
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag("-Werror -fvect-cost-model=dynamic" BELLOWS_HAS_VECTOR_COSTS)
if(BELLOWS_HAS_VECTOR_COSTS)  # GCC's -O2 leaves alone loops whose length it does not know
  string(APPEND CMAKE_CXX_FLAGS_RELEASE " -fvect-cost-model=dynamic")
endif()
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")

add_compile_options(-Wall -Wextra)
if(BELLOWS_UNITY)  # meant for headers; here a source is included by another
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC>)  # programs too: all share one precompiled header
if(BELLOWS_WERROR)
  add_compile_options(-Werror)
endif()
if(BELLOWS_SANITIZE)
  add_compile_options(-fsanitize=${BELLOWS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${BELLOWS_SANITIZE})
endif()

# ccache, set so that another checkout of the same sources hits, with a precompiled header too.
find_program(BELLOWS_CCACHE ccache)
if(BELLOWS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${BELLOWS_CCACHE})
endif()
# A fast linker, where the compiler knows one.
include(CheckLinkerFlag)
foreach(linker mold lld)
  check_linker_flag(CXX -fuse-ld=${linker} BELLOWS_HAS_${linker})
  if(BELLOWS_HAS_${linker})
    add_link_options(-fuse-ld=${linker})
    break()
  endif()
endforeach()
