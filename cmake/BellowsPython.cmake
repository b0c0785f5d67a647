# BELLOWS_PYTHON: the Python that runs the tests against PyTorch itself; empty where there is none.
# BELLOWS_REQUIRE_PYTHON turns its absence into an error, so that no run of all tests leaves those out unseen.
option(BELLOWS_REQUIRE_PYTHON "Stop where no Python with PyTorch is found for the tests" OFF)

if(NOT BELLOWS_PYTHON)
  unset(BELLOWS_PYTHON CACHE)
  find_program(BELLOWS_PYTHON python NO_DEFAULT_PATH PATHS ${PROJECT_SOURCE_DIR}/.venv/bin
               DOC "Python with torch, torchvision, safetensors, tensorboard and numpy, for the tests")
endif()

set(_why "${PROJECT_SOURCE_DIR}/.venv is not there")
if(BELLOWS_PYTHON)
  # Looks the packages up without importing them: an import of torch takes seconds.
  execute_process(
    COMMAND ${BELLOWS_PYTHON} -c "import importlib.util as u; print(*[n for n in ('torch', 'torchvision', \
'safetensors', 'tensorboard', 'numpy') if u.find_spec(n) is None], sep=', ')"
    OUTPUT_VARIABLE _missing OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_VARIABLE _error RESULT_VARIABLE _result)
  if(_result)
    set(_why "${BELLOWS_PYTHON} does not run: ${_error}")
  elseif(_missing)
    set(_why "${BELLOWS_PYTHON} lacks ${_missing}")
  else()
    set(_why "")
  endif()
endif()

if(_why)
  if(BELLOWS_REQUIRE_PYTHON)
    message(FATAL_ERROR "No Python with PyTorch for the tests: ${_why}. Run `make setup`, or pass -DBELLOWS_PYTHON=/path/to/python.")
  endif()
  message(STATUS "Tests against PyTorch in Python are left out: ${_why}")
  set(BELLOWS_PYTHON "")
endif()
